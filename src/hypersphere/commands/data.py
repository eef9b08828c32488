"""`hypersphere data [NAME] [--root FOLDER] [--download] [--verify]`: list, fetch and check data."""

from __future__ import annotations

from hypersphere.data.__main__ import main

__all__ = ["main"]
