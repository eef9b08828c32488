"""The decoupled operators as Triton kernels; imported only where a route leads here."""
