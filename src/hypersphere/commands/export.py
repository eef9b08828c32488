"""`hypersphere export RUN [FOLDER]`: ONNX, preprocessing, threshold, card and a small script."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from .._terminal import complain, printable
from ._numbers import Name, read_as
from ._output import output_folder
from ._rates import rate
from .gallery import spoken


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="hypersphere export",
        description="Write a trained run as a folder that needs neither torch nor this package: "
        "model.onnx (any number of pictures), preprocessing.json, decision.json (thresholds with "
        "their false-accept rates, class names), MODEL_CARD.md and predict.py, which needs "
        "onnxruntime, numpy and Pillow. The ONNX file is compared with the run.",
    )
    parser.add_argument(
        "run", type=read_as(Name), metavar="RUN", help="run folder of `hypersphere train`"
    )
    parser.add_argument(
        "folder",
        nargs="?",
        type=output_folder,
        metavar="FOLDER",
        help="where to write (default: RUN/export)",
    )
    parser.add_argument("--scores", action="store_true", help="also scores of the trained classes")
    parser.add_argument(
        "--gallery",
        type=read_as(Name),
        metavar="GALLERY",
        help="also the people of this gallery",
    )
    parser.add_argument(
        "--far",
        type=rate,
        help="false-accept rate of the threshold (default: the gallery's; of a pair 0.001, or the "
        "nearest that the run has)",
    )
    parser.add_argument(
        "--weights",
        choices=["last", "best"],
        default="last",
        help="those the run ended with, or those of its best test (default: last)",
    )
    options = parser.parse_args(list(argv))
    from ..evaluation import Gallery
    from ..training.export import export_run
    from ..training.export.bundle import FAR
    from ..training.run.checkpoint import RunError
    from ..training.run.trained import TrainedRun

    try:
        run = TrainedRun.open(options.run, options.weights)
        # Without the model: a gallery that does not say whose its features are would take its name.
        gallery = Gallery.load(options.gallery) if options.gallery else None
        folder = Path(options.folder or Path(options.run) / "export")
        with spoken("export"):
            made = export_run(run, folder, scores=options.scores, gallery=gallery, far=options.far)
    except (ValueError, OSError, RunError) as error:
        complain("export", error)
        return 1
    print(f"{printable(made.folder)}: equal to the run to {made.gap:.1e}")
    for found in (made.pair, made.search):
        if found is not None:
            print()
            print(printable(found, newlines=True))
    if options.far is None and gallery is None and made.pair and made.pair.far != FAR:
        complain(
            "export",
            f"there is no threshold at a false-accept rate of {FAR:g}: the nearest, at "
            f"{made.pair.far:g}, goes with it; choose another by --far",
        )
    if made.pair is None and made.search is None:
        how = f"evaluate threshold {options.run} --weights {options.weights}"
        if options.gallery:
            how = f"gallery calibrate {options.gallery} --run {options.run} --far 0.01"
        complain(
            "export",
            f"no threshold goes with it, so it accepts nobody: `hypersphere {how}` fits one from "
            "people who were not trained on; then export again",
        )
    return 0
