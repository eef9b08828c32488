"""What can be wrong with a gallery."""

from __future__ import annotations

__all__ = ["GalleryError"]


class GalleryError(ValueError):
    """A gallery that does not fit: another model or dimension, a damaged file, an unknown name."""
