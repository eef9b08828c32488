"""The geometry of a checkpoint and of features, in words; and the same while a network trains."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from .geometry.class_geometry import class_mean_cosines
from .geometry.feature_uniformity import FeatureUniformityResult, feature_uniformity
from .geometry.geometry import neuron_weights
from .geometry.neural_collapse import NeuralCollapseResult, neural_collapse
from .geometry.weights import InspectionResult, inspect_weights
from .results import plain

__all__ = ["FeatureInspection", "InspectionLog", "inspect_features"]


@dataclass
class FeatureInspection:
    """Result of :func:`inspect_features`.

    Args:
        uniformity: uniformity and alignment, beside the values of uniform directions.
        collapse: NC1 to NC4; None without labels of two classes.
        smallest_class_angle: between the means of two classes, in degrees; None without classes.
        mean_class_angle: the mean over pairs of classes, in degrees.
    """

    uniformity: FeatureUniformityResult
    collapse: NeuralCollapseResult | None
    smallest_class_angle: float | None
    mean_class_angle: float | None

    def remarks(self) -> list[str]:
        """What stands out, in words.

        Returns:
            Sentences; never empty.
        """
        found = []
        spread = self.uniformity
        if spread.excess > 2.0:
            found.append(
                f"The features use little of the sphere: uniformity {spread.uniformity:.2f}, "
                f"{spread.uniform:.2f} for uniform directions in {spread.dim} dimensions."
            )
        if self.smallest_class_angle is not None and self.smallest_class_angle < 15:
            found.append(f"Two class means are {self.smallest_class_angle:.1f} degrees apart.")
        if self.collapse is not None and self.collapse.within_class < 0.05:
            found.append(
                f"The features have nearly collapsed to their class means "
                f"(NC1 {self.collapse.within_class:.2g})."
            )
        return found or ["Nothing stands out in the features."]


def inspect_features(
    features: Tensor,
    labels: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
) -> FeatureInspection:
    """Uniformity, alignment, collapse and class angles of features.

    Args:
        features: (n, d), n >= 2.
        labels: (n,) classes. Default: none; then there is only the uniformity.
        weight: (C, d) of the classifier, for NC2 to NC4. Default: none.
        bias: (C,) of the classifier, for NC4. Default: none.

    Returns:
        The figures, and in words what stands out.
    """
    uniformity = feature_uniformity(features, labels)
    if labels is None or len(labels.unique()) < 2:
        return FeatureInspection(uniformity, None, None, None)
    collapse = neural_collapse(features, labels, weight, bias)
    cosine = torch.tensor(class_mean_cosines(features, labels).cosine, dtype=torch.float64)
    i, j = torch.triu_indices(len(cosine), len(cosine), 1)
    angles = cosine[i, j].clamp(-1, 1).acos().rad2deg()
    return FeatureInspection(uniformity, collapse, float(angles.min()), float(angles.mean()))


class InspectionLog:
    """A callback for any training loop: the geometry of the weights, a JSON line at a time::

        log = hs.evaluation.InspectionLog(model, "inspection.jsonl", every=100)
        for step, batch in enumerate(loader):
            ...
            log(step)

    Args:
        model: any module.
        path: file to which lines are added; None to keep them in `results` only.
        every: number of steps between two looks.
    """

    def __init__(self, model: nn.Module, path: str | Path | None = None, every: int = 100) -> None:
        if every < 1:
            raise ValueError(f"every is a number of steps, at least 1; got {every}")
        self.model, self.path, self.every = model, Path(path) if path else None, every
        self.results: list[tuple[int, InspectionResult]] = []

    def __call__(self, step: int) -> InspectionResult | None:
        """Look at the weights if it is time.

        Args:
            step: number of the update.

        Returns:
            What was found, or None between two looks.
        """
        if step % self.every:
            return None
        result = inspect_weights(neuron_weights(self.model, embeddings=True))
        self.results.append((step, result))
        if self.path is not None:
            line = {"step": step, "remarks": result.remarks(), **plain(result)}
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        return result
