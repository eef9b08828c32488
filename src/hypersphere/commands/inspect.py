"""`hypersphere inspect FILE_OR_RUN`: the geometry of any checkpoint, in words and as a page."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from .._terminal import complain, printable
from ..ranges import Range
from ._features import tell_zero_rows
from ._numbers import read_as
from ._output import output_file

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["main"]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="hypersphere inspect",
        description="The geometry of a checkpoint: energies of the neurons relative to random and "
        "to the best possible, near duplicates, rank, spectra, lengths; and of features: "
        "uniformity, alignment, collapse, class angles. No code of the checkpoint is run.",
    )
    parser.add_argument(
        "checkpoint",
        type=Path,
        metavar="FILE_OR_RUN",
        help=".safetensors, a state dict (.pt, .pth, .bin, .ckpt), a Hugging Face folder, or a run",
    )
    parser.add_argument(
        "--features",
        type=Path,
        help=".npz or .safetensors with features [and labels, weight, bias]; of a run without "
        "it: its test set",
    )
    parser.add_argument(
        "--weights", choices=("last", "best"), default="last", help="of a run (default: last)"
    )
    parser.add_argument(
        "--limit",
        type=read_as(Annotated[int, Range(ge=0)]),
        default=2000,
        help="test samples of a run (default: 2000; 0: none)",
    )
    parser.add_argument("-o", "--output", type=output_file(".html"), help="write the page: .html")
    parser.add_argument("--json", type=output_file(".json"), help="write all figures: .json")
    options = parser.parse_args(argv)
    for path in (options.output, options.json):
        if path is not None and not path.parent.is_dir():
            parser.error(f"there is no folder {path.parent} for {path.name}")
    try:
        return _inspect(options)
    except (OSError, ValueError, RuntimeError) as error:
        complain("inspect", error)
        return 1


def show(text: str) -> None:
    """Print lines whose names may come from a stranger's file."""
    for line in text.split("\n"):
        print(printable(line))


def _inspect(options: argparse.Namespace) -> int:
    from ..evaluation import inspect_features, inspect_weights
    from ..evaluation.results import format_table, plain
    from ..evaluation.writing import naming
    from ..reports.inspection_page import write_inspection

    tensors, features, labels, weight, bias = _read(options)
    result = inspect_weights(tensors)
    show(format_table([row for row in result.rows() if len(row) > 1], result.header()))
    remarks, tables, found = result.remarks(), [], None
    if features is not None:
        found = inspect_features(features, labels, weight, bias)
        if options.features is not None:
            tell_zero_rows("inspect", features)
        remarks = [*remarks, *found.remarks()]
        measured = [found.uniformity] + ([found.collapse] if found.collapse else [])
        for part in measured:
            show(f"\n{part}")
            tables.append(("Features", part.header(), list(part.rows())))
        if found.smallest_class_angle is not None:
            line = (f"{found.smallest_class_angle:.1f}", f"{found.mean_class_angle:.1f}")
            print(f"\nangles of class means: smallest {line[0]}, mean {line[1]} degrees")
            tables.append(("Angles of class means, degrees", ("smallest", "mean"), [line]))
    show("\n".join(["", *(f"- {remark}" for remark in remarks)]))
    if options.json is not None:
        content = {"weights": plain(result), "features": plain(found), "remarks": remarks}
        with naming(options.json):
            options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        show(str(options.json))
    if options.output is not None:
        title = f"Geometry of {options.checkpoint.name}"
        page = write_inspection(options.output, title, remarks, result.layers, tables)
        show(str(page))
    return 0


def _read(
    options: argparse.Namespace,
) -> tuple[dict[str, Tensor], Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """Weights, features, labels, the classifier's weight and bias, as far as they are there."""
    from ..evaluation.checkpoint_files import read_checkpoint
    from ..evaluation.feature_files import load_features, pick, pick_optional
    from ..evaluation.inputs import check_features
    from ._features import read_labels

    run = options.checkpoint / "run.json"
    features = labels = weight = bias = None
    if run.is_file():
        tensors, features, labels, weight, bias = _read_run(options)
    else:
        tensors = read_checkpoint(options.checkpoint)
    if options.features is not None:
        arrays = load_features(options.features)
        features = check_features("features", pick(arrays, "features", options.features))
        labels = read_labels(arrays, options.features) if arrays.has("labels") else None
        weight = pick_optional(arrays, "weight", options.features)
        bias = pick_optional(arrays, "bias", options.features)
        if weight is not None and weight.ndim != 2:
            raise ValueError(
                f"{options.features}: weight: expected (C, {features.shape[1]}), a row per class; "
                f"got {tuple(weight.shape)}. Leave it out for the figures of the features alone"
            )
    if weight is not None and features is not None and weight.shape[1] != features.shape[1]:
        weight = None
    return tensors, features, labels, weight, bias


def _read_run(options: argparse.Namespace) -> Any:
    from torch import Tensor

    from ..training.run.checkpoint import load_weights
    from ..training.run.load import find_weights
    from ..training.run.trained import TrainedRun

    place, _ = find_weights(options.checkpoint, options.weights)
    tensors = load_weights(place / "model.safetensors")
    nothing = (tensors, None, None, None, None)
    if options.features is not None or not options.limit:
        return nothing
    try:
        run = TrainedRun.open(options.checkpoint, options.weights)
    except ValueError as error:  # such as a run without classes, or of a plugin that is not given
        show(f"no features: {error}\n")
        return nothing
    samples = run.test_samples().first(options.limit)
    features = run.extract(samples.images)
    head = getattr(run.model, "head", None)
    weight, bias = getattr(head, "weight", None), getattr(head, "bias", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        return tensors, features, samples.labels, None, None
    # A head of somebody else may call anything a bias
    per_class = isinstance(bias, Tensor) and bias.shape == weight.shape[:1]
    return tensors, features, samples.labels, weight.detach(), bias if per_class else None
