"""Heads: the class weights, and every large-margin objective on them.

head = hs.heads.ASoftmaxHead(in_features=512, num_classes=10572, m=4)
head(features)                  # (B, C) scores, for inference
head(features, labels)          # (B, C) scores with the margin on the target
head.loss(features, labels)     # their cross entropy, without the (B, C) matrix
"""

from ..functional.margins import Margin
from .annealing import LambdaAnnealing
from .center import center_loss, move_centers
from .cider import CiderHead
from .class_densities import VonMisesFisherHead
from .design import MarginCheck, check_margin, plot_margins
from .diagnosis import Diagnosis, diagnose
from .hinge import HingeHead
from .margin import MarginHead
from .metric_learning import MetricLoss
from .objectives import (
    AMSoftmaxHead,
    ArcFaceHead,
    ASoftmaxHead,
    GASoftmaxHead,
    LSoftmaxHead,
    SoftmaxHead,
    SSoftmaxHead,
    WSoftmaxHead,
)
from .prototype import PrototypeHead
from .shard_files import load_shards, save_shards
from .sharded import ignore_in_ddp, shard, unshard
from .theory import (
    angular_margin,
    decision_boundary,
    inter_class_angle,
    intra_class_angle,
    m_min_binary,
    m_min_multiclass,
    minimum_loss,
    minimum_scale,
)

__all__ = [
    "AMSoftmaxHead",
    "ASoftmaxHead",
    "ArcFaceHead",
    "CiderHead",
    "Diagnosis",
    "GASoftmaxHead",
    "HingeHead",
    "LSoftmaxHead",
    "LambdaAnnealing",
    "Margin",
    "MarginCheck",
    "MarginHead",
    "MetricLoss",
    "PrototypeHead",
    "SSoftmaxHead",
    "SoftmaxHead",
    "VonMisesFisherHead",
    "WSoftmaxHead",
    "angular_margin",
    "center_loss",
    "check_margin",
    "decision_boundary",
    "diagnose",
    "ignore_in_ddp",
    "inter_class_angle",
    "intra_class_angle",
    "load_shards",
    "m_min_binary",
    "m_min_multiclass",
    "minimum_loss",
    "minimum_scale",
    "move_centers",
    "plot_margins",
    "save_shards",
    "shard",
    "unshard",
]
