"""Data: readers of the usual on-disk layouts, splits, batches in memory, augmentation."""

from __future__ import annotations

# Each of these registers its reader; the import order is the order of `list_datasets()`.
from .digits import load_digits  # isort: skip
from .letters import letters, load_letters  # isort: skip
from .idx import load_idx, read_idx  # isort: skip
from .cifar import load_cifar  # isort: skip
from .image_folder import load_folder  # isort: skip
from .lfw import load_lfw  # isort: skip
from .megaface import Identification, load_megaface  # isort: skip
from .omniglot import load_omniglot  # isort: skip
from .modelnet import load_modelnet  # isort: skip
from .planetoid import GraphDataset, load_planetoid  # isort: skip
from .mini_imagenet import load_mini_imagenet  # isort: skip
from .record_io import load_rec  # isort: skip
from .shards import Shards, load_webdataset  # isort: skip
from .arrow import load_arrow  # isort: skip

from .augment import CenterCrop, Compose, Flip, PadCrop, RandomCrop, Resize, augmentation
from .checksums import checksum, verify
from .class_imbalance import grow_linearly, imbalanced, keep_per_class, thin_classes
from .dataset import ArrayDataset, Dataset, Split
from .download import download
from .encoded import EncodedPictures
from .episodes import Episode, EpisodeSampler
from .errors import DamagedData, MissingData
from .files import data_root
from .image_files import ImageFiles, read_image, read_images
from .loader import BatchLoader
from .normalize import Normalize
from .npz import read_npz
from .people import People, divide_people
from .point_clouds import JitterPoints, RotateUp, SamplePoints, ScalePoints, ShiftPoints, Tilt
from .readers import list_datasets, load, reader_options
from .shard_loader import ShardLoader
from .splits import closed_set, open_set
from .unpickle import RefusedPickle, read_pickle
from .verification_pairs import Pairs, draw_pairs

__all__ = [
    "ArrayDataset",
    "BatchLoader",
    "CenterCrop",
    "Compose",
    "DamagedData",
    "Dataset",
    "EncodedPictures",
    "Episode",
    "EpisodeSampler",
    "Flip",
    "GraphDataset",
    "Identification",
    "ImageFiles",
    "JitterPoints",
    "MissingData",
    "Normalize",
    "PadCrop",
    "Pairs",
    "People",
    "RandomCrop",
    "RefusedPickle",
    "Resize",
    "RotateUp",
    "SamplePoints",
    "ScalePoints",
    "ShardLoader",
    "Shards",
    "ShiftPoints",
    "Split",
    "Tilt",
    "augmentation",
    "checksum",
    "closed_set",
    "data_root",
    "divide_people",
    "download",
    "draw_pairs",
    "grow_linearly",
    "imbalanced",
    "keep_per_class",
    "letters",
    "list_datasets",
    "load",
    "load_arrow",
    "load_cifar",
    "load_digits",
    "load_folder",
    "load_idx",
    "load_letters",
    "load_lfw",
    "load_megaface",
    "load_mini_imagenet",
    "load_modelnet",
    "load_omniglot",
    "load_planetoid",
    "load_rec",
    "load_webdataset",
    "open_set",
    "read_idx",
    "read_image",
    "read_images",
    "read_npz",
    "read_pickle",
    "reader_options",
    "thin_classes",
    "verify",
]
