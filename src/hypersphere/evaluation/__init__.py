"""Evaluation: verification, identification, retrieval, robustness, few-shot, geometry and more.

Every function takes tensors and gives a small dataclass: `print(result)` shows a table,
`result.to_json(path)` keeps it.
"""

from __future__ import annotations

from .classification import (
    ClassificationResult,
    ClassMeansResult,
    ConfidenceResult,
    class_mean_cosines,
    classification,
    confidence_and_hardness,
)
from .features import extract, load_features, model_hash, save_tensors
from .few_shot import FewShotResult, fewshot
from .gallery.gallery import Gallery, Match
from .gallery.store import GalleryError
from .generative import FrechetResult, InceptionResult, frechet_distance, inception_score
from .geometry.directions import (
    GeometryResult,
    effective_rank,
    geometry,
    neuron_weights,
    pair_angles,
)
from .geometry.feature_uniformity import FeatureUniformityResult, feature_uniformity
from .geometry.neural_collapse import NeuralCollapseResult, neural_collapse
from .geometry.separability import angular_fisher_score, angular_visual_hardness
from .imbalance import ImbalanceResult, imbalance
from .recognition.alignment import SPHEREFACE_TEMPLATE, align_face, similarity_transform
from .recognition.all_pairs import AllPairsResult, all_pairs
from .recognition.detection import Face, YuNet, detect_and_align
from .recognition.identification import IdentificationResult, divide, identification
from .recognition.open_set import OpenSetResult, open_set_identification
from .recognition.pairs import PairList, read_pairs
from .recognition.protocols import PROTOCOLS, Protocol
from .recognition.retrieval import RetrievalResult, retrieval
from .recognition.roc import Roc, roc_curve
from .recognition.search import faiss_search, search
from .recognition.search_index import SearchIndex
from .recognition.templates import concatenate_patches, crop_patch, templates
from .recognition.verification import VerificationResult, verification
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
    "OpenSetResult",
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
    "feature_uniformity",
    "fewshot",
    "fgsm",
    "frechet_distance",
    "geometry",
    "identification",
    "imbalance",
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
