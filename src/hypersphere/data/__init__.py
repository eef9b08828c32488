"""Data: readers of the usual on-disk layouts, splits, batches in memory, augmentation."""

from __future__ import annotations

from .augment import CenterCrop, Compose, Flip, PadCrop, RandomCrop, Resize, augmentation
from .dataset import ArrayDataset, Dataset, Split
from .digits import load_digits
from .errors import DamagedData, MissingData
from .idx import load_idx, read_idx
from .loader import BatchLoader
from .normalize import Normalize
from .pairs import Pairs, draw_pairs
from .registry import list_datasets, load
from .splits import closed_set, open_set

__all__ = [
    "ArrayDataset",
    "BatchLoader",
    "CenterCrop",
    "Compose",
    "DamagedData",
    "Dataset",
    "Flip",
    "MissingData",
    "Normalize",
    "PadCrop",
    "Pairs",
    "RandomCrop",
    "Resize",
    "Split",
    "augmentation",
    "closed_set",
    "draw_pairs",
    "list_datasets",
    "load",
    "load_digits",
    "load_idx",
    "open_set",
    "read_idx",
]
