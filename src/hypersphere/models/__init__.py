"""The networks of the dissertation, by name: `create("cnn9", operator="sphere")`.

A network returns features; `Classifier` joins it with a head.
"""

# The import order is the order of `list_models()`.
from .plain_cnn import PlainCNN  # isort: skip
from .resnet import ResNet  # isort: skip
from .sphereface import SphereFace  # isort: skip
from .mlp import MLP  # isort: skip
from .autoencoder import Autoencoder  # isort: skip
from .gcn import GCN, normalized_adjacency  # isort: skip
from .pointnet import PointNet  # isort: skip
from .pointnet2 import PointNet2, ball_query, farthest_points  # isort: skip
from .sngan import Discriminator, Generator  # isort: skip
from .blocks import Backbone, Style
from .catalog import ModelEntry, create, list_models, model_entry
from .classifier import Classifier
from .summary import LayerRow, count_parameters, layer_rows, model_table

# The names these had before.
Entry, entry = ModelEntry, model_entry

__all__ = [
    "GCN",
    "MLP",
    "Autoencoder",
    "Backbone",
    "Classifier",
    "Discriminator",
    "Entry",
    "Generator",
    "LayerRow",
    "ModelEntry",
    "PlainCNN",
    "PointNet",
    "PointNet2",
    "ResNet",
    "SphereFace",
    "Style",
    "ball_query",
    "count_parameters",
    "create",
    "entry",
    "farthest_points",
    "layer_rows",
    "list_models",
    "model_entry",
    "model_table",
    "normalized_adjacency",
]
