"""Evaluation: verification, identification, retrieval, robustness, few-shot, geometry and more.

Every function takes tensors and gives a small dataclass: `print(result)` shows a table,
`result.to_json(path)` keeps it.
"""

from __future__ import annotations

from .class_errors import (
    ClassificationResult,
    ClassMeansResult,
    ConfidenceResult,
    class_mean_cosines,
    classification,
    confidence_and_hardness,
)
from .extraction import extract
from .feature_files import load_features, save_tensors
from .fewshot import FewShotResult, fewshot
from .fingerprints import model_hash
from .gallery.gallery import Gallery, Match
from .gallery.store import GalleryError
from .generative import FrechetResult, InceptionResult, frechet_distance, inception_score
from .geometry.geometry import (
    GeometryResult,
    effective_rank,
    geometry,
    neuron_weights,
    pair_angles,
)
from .geometry.separability import angular_fisher_score, angular_visual_hardness
from .rare_classes import ImbalanceResult, imbalance
from .recognition.alignment import SPHEREFACE_TEMPLATE, align_face, similarity_transform
from .recognition.all_pairs import AllPairsResult, all_pairs
from .recognition.detection import Face, YuNet, detect_and_align
from .recognition.identification import IdentificationResult, divide, identification
from .recognition.open_set import OpenSetResult, open_set_identification
from .recognition.pair_lists import PairList, read_pairs
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
    "FewShotResult",
    "FrechetResult",
    "Gallery",
    "GalleryError",
    "GeometryResult",
    "IdentificationResult",
    "ImbalanceResult",
    "InceptionResult",
    "Match",
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
    "fewshot",
    "fgsm",
    "frechet_distance",
    "geometry",
    "identification",
    "imbalance",
    "inception_score",
    "load_features",
    "model_hash",
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
