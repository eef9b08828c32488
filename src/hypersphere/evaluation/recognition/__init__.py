"""Recognition: verification, identification, open set, retrieval, and what they need."""

from .alignment import SPHEREFACE_TEMPLATE, align_face, similarity_transform
from .all_pairs import AllPairsResult, all_pairs
from .detection import Face, YuNet, detect_and_align
from .fairness import FairnessResult, error_by_group
from .feature_quality import QualityResult, enrollable, quality_by_norm
from .gallery_growth import GalleryGrowthResult, error_by_gallery_size
from .identification import IdentificationResult, divide, identification
from .impostors import ThresholdsResult, fit_thresholds, impostor_searches
from .open_set import OpenSetResult, open_set_identification
from .pair_files import PairList, read_pairs
from .protocols import PROTOCOLS, Protocol
from .retrieval import RetrievalResult, retrieval
from .roc import Roc, roc_curve
from .score_calibration import ReliabilityResult, ScoreCalibration, calibrate_scores, reliability
from .search import faiss_search, search
from .search_index import SearchIndex
from .templates import concatenate_patches, crop_patch, templates
from .thresholds import Threshold, fit_threshold
from .verification import VerificationResult, verification

__all__ = [
    "PROTOCOLS",
    "SPHEREFACE_TEMPLATE",
    "AllPairsResult",
    "Face",
    "FairnessResult",
    "GalleryGrowthResult",
    "IdentificationResult",
    "OpenSetResult",
    "PairList",
    "Protocol",
    "QualityResult",
    "ReliabilityResult",
    "RetrievalResult",
    "Roc",
    "ScoreCalibration",
    "SearchIndex",
    "Threshold",
    "ThresholdsResult",
    "VerificationResult",
    "YuNet",
    "align_face",
    "all_pairs",
    "calibrate_scores",
    "concatenate_patches",
    "crop_patch",
    "detect_and_align",
    "divide",
    "enrollable",
    "error_by_gallery_size",
    "error_by_group",
    "faiss_search",
    "fit_threshold",
    "fit_thresholds",
    "identification",
    "impostor_searches",
    "open_set_identification",
    "quality_by_norm",
    "read_pairs",
    "reliability",
    "retrieval",
    "roc_curve",
    "search",
    "similarity_transform",
    "templates",
    "verification",
]
