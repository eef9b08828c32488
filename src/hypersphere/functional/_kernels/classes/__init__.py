"""Log-sum-exp and cross entropy over classes, in chunks."""
