"""The decoupled operators: plain, tiled for the cache of a processor, and for torch.compile."""
