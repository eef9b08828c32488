"""Evaluation: verification, identification, retrieval, robustness, few-shot, geometry and more.

Every function takes tensors and gives a small dataclass: `print(result)` shows a table,
`result.to_json(path)` keeps it.
"""

from __future__ import annotations

from .checkpoint_files import read_checkpoint
from .class_errors import ClassificationResult, classification
from .extraction import extract
from .feature_files import load_features, save_tensors
from .fewshot import FewShotResult, fewshot
from .fingerprints import model_hash
from .gallery import Gallery, GalleryError, Match
from .generative import FrechetResult, InceptionResult, frechet_distance, inception_score
from .geometry.class_geometry import (
    ClassMeansResult,
    ConfidenceResult,
    class_mean_cosines,
    confidence_and_hardness,
)
from .geometry.feature_uniformity import FeatureUniformityResult, feature_uniformity
from .geometry.geometry import (
    GeometryResult,
    effective_rank,
    geometry,
    neuron_weights,
    pair_angles,
)
from .geometry.neural_collapse import NeuralCollapseResult, neural_collapse
from .geometry.separability import angular_fisher_score, angular_visual_hardness
from .geometry.weights import InspectedLayer, InspectionResult, inspect_weights
from .inspection import FeatureInspection, InspectionLog, inspect_features
from .out_of_distribution import (
    OutOfDistributionResult,
    familiarity,
    out_of_distribution,
)
from .rare_classes import ImbalanceResult, imbalance
from .recognition import (
    PROTOCOLS,
    SPHEREFACE_TEMPLATE,
    AllPairsResult,
    Face,
    IdentificationResult,
    OpenSetResult,
    PairList,
    Protocol,
    RetrievalResult,
    Roc,
    SearchIndex,
    VerificationResult,
    YuNet,
    align_face,
    all_pairs,
    concatenate_patches,
    crop_patch,
    detect_and_align,
    divide,
    faiss_search,
    identification,
    open_set_identification,
    read_pairs,
    retrieval,
    roc_curve,
    search,
    similarity_transform,
    templates,
    verification,
)
from .results import Result
from .robustness.attacks import bim, fgsm, pgd, training_loss
from .robustness.curves import AdversarialTraining, RobustnessResult, attack, robustness
from .robustness.deepfool import deepfool

__all__ = [
    "PROTOCOLS",
    "SPHEREFACE_TEMPLATE",
    "AdversarialTraining",
    "AllPairsResult",
    "ClassMeansResult",
    "ClassificationResult",
    "ConfidenceResult",
    "Face",
    "FeatureInspection",
    "FeatureUniformityResult",
    "FewShotResult",
    "FrechetResult",
    "Gallery",
    "GalleryError",
    "GeometryResult",
    "IdentificationResult",
    "ImbalanceResult",
    "InceptionResult",
    "InspectedLayer",
    "InspectionLog",
    "InspectionResult",
    "Match",
    "NeuralCollapseResult",
    "OpenSetResult",
    "OutOfDistributionResult",
    "PairList",
    "Protocol",
    "Result",
    "RetrievalResult",
    "RobustnessResult",
    "Roc",
    "SearchIndex",
    "VerificationResult",
    "YuNet",
    "align_face",
    "all_pairs",
    "angular_fisher_score",
    "angular_visual_hardness",
    "attack",
    "bim",
    "class_mean_cosines",
    "classification",
    "concatenate_patches",
    "confidence_and_hardness",
    "crop_patch",
    "deepfool",
    "detect_and_align",
    "divide",
    "effective_rank",
    "extract",
    "faiss_search",
    "familiarity",
    "feature_uniformity",
    "fewshot",
    "fgsm",
    "frechet_distance",
    "geometry",
    "identification",
    "imbalance",
    "inception_score",
    "inspect_features",
    "inspect_weights",
    "load_features",
    "model_hash",
    "neural_collapse",
    "neuron_weights",
    "open_set_identification",
    "out_of_distribution",
    "pair_angles",
    "pgd",
    "read_checkpoint",
    "read_pairs",
    "retrieval",
    "robustness",
    "roc_curve",
    "save_tensors",
    "search",
    "similarity_transform",
    "templates",
    "training_loss",
    "verification",
]
