"""`python -m hypersphere` is the `hypersphere` command (torchrun needs this form)."""

from .cli import main

if __name__ == "__main__":
    raise SystemExit(main())
