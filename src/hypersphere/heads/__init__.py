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
from .curricular import CurricularFaceHead
from .design import MarginCheck, check_margin, plot_margins
from .diagnosis import Diagnosis, diagnose
from .hinge import HingeHead
from .margin import MarginHead
from .margin_values import HeldMargin, MarginSchedule, long_tail_margins
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
from .quality import AdaFaceHead, MagFaceHead
from .quality_margins import AdaptiveMargin, MagnitudeMargin
from .shard_files import load_shards, save_shards
from .sharded import ignore_in_ddp, shard, unshard
from .sphereface2 import SphereFace2Head
from .sphereface_r import SphereFaceRHead
from .subcenters import dominant_subcenters, find_outliers, keep_dominant
from .theory import (
    angular_margin,
    automatic_scale,
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
    "AdaFaceHead",
    "AdaptiveMargin",
    "ArcFaceHead",
    "CiderHead",
    "CurricularFaceHead",
    "Diagnosis",
    "GASoftmaxHead",
    "HeldMargin",
    "HingeHead",
    "LSoftmaxHead",
    "LambdaAnnealing",
    "MagFaceHead",
    "MagnitudeMargin",
    "Margin",
    "MarginCheck",
    "MarginHead",
    "MarginSchedule",
    "MetricLoss",
    "PrototypeHead",
    "SSoftmaxHead",
    "SoftmaxHead",
    "SphereFace2Head",
    "SphereFaceRHead",
    "VonMisesFisherHead",
    "WSoftmaxHead",
    "angular_margin",
    "automatic_scale",
    "center_loss",
    "check_margin",
    "decision_boundary",
    "diagnose",
    "dominant_subcenters",
    "find_outliers",
    "ignore_in_ddp",
    "inter_class_angle",
    "intra_class_angle",
    "keep_dominant",
    "load_shards",
    "long_tail_margins",
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
