"""Recognition: verification, identification, open set, retrieval, and what they need."""

from .alignment import SPHEREFACE_TEMPLATE, align_face, similarity_transform
from .all_pairs import AllPairsResult, all_pairs
from .detection import Face, YuNet, detect_and_align
from .identification import IdentificationResult, divide, identification
from .impostors import ThresholdsResult, fit_thresholds, impostor_searches
from .open_set import OpenSetResult, open_set_identification
from .pair_files import PairList, read_pairs
from .protocols import PROTOCOLS, Protocol
from .retrieval import RetrievalResult, retrieval
from .roc import Roc, roc_curve
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
    "IdentificationResult",
    "OpenSetResult",
    "PairList",
    "Protocol",
    "RetrievalResult",
    "Roc",
    "SearchIndex",
    "Threshold",
    "ThresholdsResult",
    "VerificationResult",
    "YuNet",
    "align_face",
    "all_pairs",
    "concatenate_patches",
    "crop_patch",
    "detect_and_align",
    "divide",
    "faiss_search",
    "fit_threshold",
    "fit_thresholds",
    "identification",
    "impostor_searches",
    "open_set_identification",
    "read_pairs",
    "retrieval",
    "roc_curve",
    "search",
    "similarity_transform",
    "templates",
    "verification",
]
