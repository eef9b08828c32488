"""Adversarial attacks and accuracy under them."""

from .attacks import bim, fgsm, pgd, training_loss
from .curves import AdversarialTraining, RobustnessResult, attack, robustness
from .deepfool import deepfool

__all__ = [
    "AdversarialTraining",
    "RobustnessResult",
    "attack",
    "bim",
    "deepfool",
    "fgsm",
    "pgd",
    "robustness",
    "training_loss",
]
