"""`export_run`: everything that a program without torch needs to use a trained run, checked."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...evaluation import Gallery, Threshold, model_hash
from ..run.kept_thresholds import kept_thresholds
from ..run.trained import TrainedRun
from .card import model_card
from .onnx_model import compare_onnx, write_onnx
from .predict_script import NEAREST_CLASS, PAIR, SEARCH

__all__ = ["Exported", "export_run"]

TOLERANCE = 1e-4
FAR = 1e-3  # of a pair, where the run has a threshold at this rate; else the nearest it has
CLASS_SCORES = (
    "class scores: no decision about unknown people, who have a nearest trained class as everybody "
    "has; no threshold above applies to these scores"
)
NO_PAIRS = (
    "no threshold of a pair goes with it: the gallery was calibrated by an earlier version, which "
    "kept no scores of pairs; `hypersphere gallery calibrate GALLERY --run {run} --far {far:g}` "
    "fits both thresholds"
)
# Pillow's modes of 8 bits at most
MODES = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBX", "RGBa", "CMYK", "YCbCr", "HSV")
BILINEAR = 2  # Pillow's number
ABOUT = {
    "modes": "mode of the file -> mode of the network, of Pillow; others have more than 8 bits",
    "orientation": "turn the picture as its EXIF data say, before all else",
    "size": "width and height of the network's pictures",
    "resampling": f"Pillow's number of the method; {BILINEAR} is bilinear",
    "shape": "height, width, channels",
    "mean": "of pixels in 0..255, against (channels, height, width); subtracted",
    "std": "of pixels in 0..255, against (channels, height, width); then divided by",
}
ALIGNMENT = {  # what `aligned` of a gallery or run means for whoever uses the export
    True: "faces aligned to the template of 112 x 96 (`hypersphere align`), not whole pictures",
    False: "pictures as they are, without alignment of faces",
}


@dataclass
class Exported:
    """What `export_run` made.

    Args:
        folder: where it is.
        gap: largest difference between the ONNX file and the run.
        pair: the threshold of a single comparison that went with it.
        search: the threshold of a search in the gallery that went with it.
    """

    folder: Path
    gap: float
    pair: Threshold | None
    search: Threshold | float | None


def export_run(
    run: TrainedRun | str | Path,
    folder: str | Path,
    *,
    scores: bool = False,
    gallery: Gallery | None = None,
    far: float | None = None,
) -> Exported:
    """Write model.onnx, preprocessing.json, decision.json, MODEL_CARD.md and predict.py.

    Args:
        run: a run, or its folder.
        folder: where to write; must be new or empty.
        scores: also export the scores of the trained classes.
        gallery: export its people, too, with their threshold; it must come from the same weights.
        far: false-accept rate of the threshold. Default: that of the gallery; of a pair 0.001, or
            the rate nearest to it that the run has a threshold for.

    Returns:
        Where it is, and how exact.

    Raises:
        ValueError: if the run is not of pictures, the gallery is empty or of another model, the run
            has thresholds of other weights only, or the ONNX file differs from the run by more
            than 1e-4.
    """
    run = run if isinstance(run, TrainedRun) else TrainedRun.open(run)
    folder = Path(folder)
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty: choose another folder")
    aligned = None if gallery is None else gallery.aligned
    prepared = preprocessing(run, run.aligned if aligned is None else aligned)
    notes = [] if gallery is None else _doubts(run, gallery, far)
    decision, pair, search = _decision(run, gallery, far)
    if gallery is not None and far is not None and pair is None:
        notes.append(NO_PAIRS.format(run=run.folder, far=far))
    for note in notes:
        warnings.warn(note, stacklevel=2)
    if "alignment" in prepared:
        notes.append(f"pictures: {prepared['alignment']}")
    if scores:
        notes.append(CLASS_SCORES)
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        model, flips = partial / "model.onnx", decision["flips"]
        write_onnx(run.model, run.shape, model, scores, flips)
        gap = compare_onnx(run.model, model, _examples(run), scores, flips)
        if not gap <= TOLERANCE:
            raise ValueError(f"the ONNX file differs from the run by {gap:.1e}, over {TOLERANCE:g}")
        _write_json(partial / "preprocessing.json", prepared)
        _write_json(partial / "decision.json", {**decision, "classes": run.classes})
        script = SEARCH if gallery is not None else NEAREST_CLASS if scores else PAIR
        (partial / "predict.py").write_text(script, encoding="utf-8")
        if gallery is not None:
            names = np.array(gallery.names)
            np.savez(partial / "gallery.npz", features=gallery.features.numpy(), names=names)
        marks = {p.name: _sha256(p) for p in sorted(partial.iterdir())}
        title = folder.resolve().name
        card = model_card(run, title, pair, search, gap, marks, notes)
        (partial / "MODEL_CARD.md").write_text(card, encoding="utf-8")
        if folder.exists():
            folder.rmdir()  # empty, as checked
        os.replace(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return Exported(folder, gap, pair, search)


def preprocessing(run: TrainedRun, aligned: bool | None = None) -> dict[str, Any]:
    """How a picture file becomes the network's input, as data that predict.py obeys.

    Args:
        run: the run.
        aligned: whether the pictures have to be aligned faces. Default: unknown.

    Returns:
        What `ABOUT` says, and a word on alignment where it is known.
    """
    if len(run.shape) != 3 or run.shape[0] not in (1, 3):
        raise ValueError(
            f"export is for pictures of 1 or 3 channels; this run takes samples {run.shape}"
        )
    if run.config.data.augment == "imagenet":
        raise ValueError(
            "export is for runs that test on the whole picture; data.augment imagenet resizes and "
            "crops it first"
        )
    channels, height, width = run.shape
    mean, std = (torch.as_tensor(v).float() for v in (run.normalize.mean, run.normalize.std))
    return {
        "modes": dict.fromkeys(MODES, "L" if channels == 1 else "RGB"),
        "orientation": "exif",
        "size": [width, height],
        "resampling": BILINEAR,
        "shape": [height, width, channels],
        "mean": (255 * mean).tolist(),
        "std": (255 * std).tolist(),
        "about": ABOUT,
    } | ({} if aligned is None else {"alignment": ALIGNMENT[aligned]})


def _doubts(run: TrainedRun, gallery: Gallery, far: float | None) -> list[str]:
    """Refuse a gallery that is not of this run; what has to be said of one that may be."""
    if len(gallery) == 0:
        raise ValueError("the gallery is empty: enroll somebody first")
    if gallery.fingerprint and gallery.fingerprint != model_hash(run.model):
        raise ValueError("the gallery was made with another model than this run's")
    with torch.no_grad():
        dim = run.model.features(_examples(run)[:1]).shape[1]  # type: ignore[operator]
    dim *= 2 if gallery.flips == "concatenate" else 1
    if gallery.dim != dim:
        raise ValueError(
            f"the gallery has features of dimension {gallery.dim}; with flips {gallery.flips} this "
            f"run makes {dim}: enroll again with `hypersphere gallery enroll --run {run.folder}`"
        )
    notes = []
    if not gallery.fingerprint:
        notes.append(
            "the gallery does not say which model made its features: if it was another than this "
            "run's, its names mean nothing; enroll with --run to be sure"
        )
    if far is None:  # a threshold at `far` is fitted for the gallery as it is now
        notes.append(gallery.decision.outgrown(len(gallery.people), len(gallery)))
    return list(filter(None, notes))


def _decision(
    run: TrainedRun, gallery: Gallery | None, far: float | None
) -> tuple[dict[str, Any], Threshold | None, Threshold | float | None]:
    """decision.json, and the thresholds in it."""
    search: Threshold | float | None = None
    if gallery is not None:
        kept, flips = gallery.decision, gallery.flips
        pair, search = kept.pair, kept.search
        if far is not None:
            search = kept.at(far, len(gallery.people), len(gallery))
            pair = kept.pair_at(far)
    else:
        flips, pair = _kept(run, far)
    record = {
        "rule": "accepted if the cosine of unit features is at least value",
        "flips": flips,
        "pair": pair.to_dict() if pair else None,
        "search": search.to_dict() if isinstance(search, Threshold) else search,
        "in_words": _in_words(pair, search, gallery is not None),
    }
    if isinstance(search, float):
        record["search"] = {"value": search}
    return record, pair, search


def _in_words(pair: Threshold | None, search: Threshold | float | None, searches: bool) -> str:
    """What predict.py says after each score."""
    least = search if searches else pair
    if least is None:
        return "no threshold: nobody is accepted"
    value = least.value if isinstance(least, Threshold) else least
    rate = f", at FAR {least.far:g}" if isinstance(least, Threshold) else ""
    return f"{'accepted' if searches else 'same'} from {value:.4f} on{rate}"


def _kept(run: TrainedRun, far: float | None) -> tuple[str, Threshold | None]:
    """Flips and threshold of a pair of the run folder, of the weights that are exported."""
    folder = run.folder
    flips, found = kept_thresholds(folder, run.weights, run.step)
    found = [entry for entry in found if entry.gallery_size == 1]
    if far is not None and not any(abs(entry.far - far) < 1e-12 for entry in found):
        rates = ", ".join(f"{entry.far:g}" for entry in found) or "none"
        raise ValueError(
            f"{folder} has thresholds of pairs at {rates}; not at {far:g}: `hypersphere evaluate "
            f"threshold {folder} --weights {run.weights} --far {far:g}` adds it"
        )
    wanted = FAR if far is None else far
    best = min(found, key=lambda entry: abs(np.log(entry.far / wanted)), default=None)
    return flips, best


def _examples(run: TrainedRun) -> Tensor:
    """Prepared pictures to compare on: noise of the right shape; the run's data may be far away."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (5, *run.shape), generator=generator, dtype=torch.uint8)
    return run.transform(pixels)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
