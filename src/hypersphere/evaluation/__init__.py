"""Evaluation: verification, identification, retrieval, robustness, few-shot, geometry and more.

Every function takes tensors and gives a small dataclass: `print(result)` shows a table,
`result.to_json(path)` keeps it.
"""

from __future__ import annotations

from .class_errors import ClassificationResult, classification
from .extraction import extract
from .feature_files import load_features, save_tensors
from .fewshot import FewShotResult, fewshot
from .fingerprints import model_hash
from .gallery import Gallery, GalleryError, Match, NoThreshold
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
    Threshold,
    ThresholdsResult,
    VerificationResult,
    YuNet,
    align_face,
    all_pairs,
    concatenate_patches,
    crop_patch,
    detect_and_align,
    divide,
    faiss_search,
    fit_threshold,
    fit_thresholds,
    identification,
    impostor_searches,
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
    "FeatureUniformityResult",
    "FewShotResult",
    "FrechetResult",
    "Gallery",
    "GalleryError",
    "GeometryResult",
    "IdentificationResult",
    "ImbalanceResult",
    "InceptionResult",
    "Match",
    "NeuralCollapseResult",
    "NoThreshold",
    "OpenSetResult",
    "PairList",
    "Protocol",
    "Result",
    "RetrievalResult",
    "RobustnessResult",
    "Roc",
    "SearchIndex",
    "Threshold",
    "ThresholdsResult",
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
    "feature_uniformity",
    "fewshot",
    "fgsm",
    "fit_threshold",
    "fit_thresholds",
    "frechet_distance",
    "geometry",
    "identification",
    "imbalance",
    "impostor_searches",
    "inception_score",
    "load_features",
    "model_hash",
    "neural_collapse",
    "neuron_weights",
    "open_set_identification",
    "pair_angles",
    "pgd",
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
