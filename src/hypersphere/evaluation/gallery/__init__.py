"""Galleries: known people (or things) that can be asked, in memory and on disk."""

from .gallery import Gallery, Match
from .store import GalleryError

__all__ = ["Gallery", "GalleryError", "Match"]
