"""The still figures of a page, drawn from what the run folder holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import figures
from .interactive import shown_classes
from .run_data import RunData

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Still", "stills"]


class Still(NamedTuple):
    """A figure of the page.

    Args:
        stem: of its file.
        caption: what it shows in words (its alt text).
        figure: the matplotlib figure.
    """

    stem: str
    caption: str
    figure: Figure


def stills(run: RunData) -> Iterator[Still]:
    """Every figure that this run's data allows.

    Args:
        run: the run.

    Returns:
        The figures, drawn one after the other.
    """
    accuracy = run.series("test", "accuracy")
    if len(accuracy[0]) > 1:
        curve = figures.training_curves({"test": [accuracy]}, "accuracy")
        yield Still("accuracy", "Test accuracy over the iterations.", curve)
    energies = {k: v for k, v in run.layers("energy").items() if np.isfinite(v[1]).all()}
    if energies:
        caption = "Hyperspherical energy of each layer over the iterations, relative to its start."
        yield Still("energy", caption, figures.energy_curves(energies))
    yield from _feature_stills(run)
    for name, result in run.results.items():
        rates = _roc_rates(result.get("roc"))
        if rates is not None:
            caption = f"Receiver operating characteristic of {name}."
            yield Still(f"roc-{name}", caption, figures.roc_curves({name: rates}))
        curves = _cmc_curves(name, result)
        if curves:
            caption = f"Cumulative match characteristic of {name}."
            yield Still(f"cmc-{name}", caption, figures.cmc_curves(curves))


def _roc_rates(roc: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """False and true accept rates from the cumulative counts that an evaluation writes."""
    if not isinstance(roc, Mapping) or not {"accepted", "false"} <= set(roc):
        return None
    true, false = np.asarray(roc["accepted"], float), np.asarray(roc["false"], float)
    if len(true) < 2 or len(true) != len(false) or not (true[-1] > 0 and false[-1] > 0):
        return None
    return false / false[-1], true / true[-1]


def _cmc_curves(name: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """One curve, or one for each number of distractors, as an identification writes them."""
    cmc = result.get("cmc")
    if not isinstance(cmc, list) or not cmc:
        return {}
    if not isinstance(cmc[0], list):
        return {name: cmc}
    counts = result.get("distractors")
    known = isinstance(counts, list) and len(counts) == len(cmc)
    labels = [f"{n:,} distractors" for n in counts] if known else range(1, len(cmc) + 1)  # type: ignore[union-attr]
    return {str(label): curve for label, curve in zip(labels, cmc, strict=True) if curve}


def _feature_stills(run: RunData) -> Iterator[Still]:
    if not run.features:
        return
    features = np.asarray(run.features["features"], dtype=float)
    labels = np.asarray(run.features["labels"]).astype(int)
    classes = run.features.get("classes")
    if classes is not None and len(classes) <= labels.max():
        classes = None
    if labels.min() >= 0 and features.shape[1] in (2, 3):
        draw: Any = figures.features_2d if features.shape[1] == 2 else figures.features_3d
        where = "in the plane" if features.shape[1] == 2 else "on the unit sphere"
        present = np.unique(labels)
        some = shown_classes(present)
        few = "" if len(some) == len(present) else f", {len(some)} of {len(present)} classes"
        rows = np.isin(labels, some)
        names = [str(c if classes is None else classes[c]) for c in some]
        # Numbered anew, so that the classes shown have the first colors, each its own.
        drawing = draw(features[rows], np.searchsorted(some, labels[rows]), classes=names)
        yield Still("features", f"Test features by class, {where}{few}.", drawing)
    directions = np.asarray(run.features.get("directions", features), dtype=float)
    norms = np.linalg.norm(directions, axis=1, keepdims=True)
    directions = directions / np.where(norms > 0, norms, 1)
    same, different = _pair_angles(directions, labels)
    if len(same) and len(different):
        caption = "Angles between test features of the same class and of different classes."
        yield Still("pair-angles", caption, figures.pair_angle_histogram(same, different))
    present = np.unique(labels)
    if 2 <= len(present) <= 100:
        means = np.stack([directions[labels == c].mean(0) for c in present])
        means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)
        known = None if classes is None else [str(classes[c]) for c in present]
        matrix = figures.class_cosine_matrix(means @ means.T, known)
        yield Still("class-cosines", "Cosine between the mean features of the classes.", matrix)


def _pair_angles(directions: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Angles of up to 200,000 random pairs, split by whether the classes agree."""
    generator = np.random.default_rng(0)
    first, second = generator.integers(len(directions), size=(2, 200_000))
    keep = first != second
    first, second = first[keep], second[keep]
    angles = np.arccos(np.clip((directions[first] * directions[second]).sum(1), -1, 1))
    same = labels[first] == labels[second]
    return angles[same], angles[~same]
