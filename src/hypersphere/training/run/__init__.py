"""A run on disk: folder, checkpoints, state, resumption."""
