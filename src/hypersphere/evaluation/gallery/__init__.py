"""Galleries: known people (or things) that can be asked, in memory and on disk."""

from .decision import NoThreshold
from .gallery import Gallery, Match
from .gallery_error import GalleryError

__all__ = ["Gallery", "GalleryError", "Match", "NoThreshold"]
