"""The commands that read files, and what each of them leaves to compare."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from reliability.calls import Answer, call, compare, limited
from reliability.judging import Reader
from reliability.worlds import SWEEP

# --- what commands leave ------------------------------------------------------------------------


def _weights(name: str) -> Callable[[Path], Any]:
    def read(folder: Path) -> Any:
        saved = sorted((folder / name / "checkpoints").glob("step-*"))
        return saved[-1].name, (saved[-1] / "model.safetensors").read_bytes()

    return read


def _record(name: str) -> Callable[[Path], Any]:
    """Weights, curves and summary of a run, without its times."""

    def read(folder: Path) -> Any:
        metrics = folder / name / "metrics.jsonl"
        text = metrics.read_text(errors="replace") if metrics.exists() else ""
        curves = [re.sub(r'"time": [\d.]+', "", line) for line in text.splitlines()]
        summary = json.loads((folder / name / "summary.json").read_text())
        timeless = {k: v for k, v in summary.items() if k in ("last", "best", "verification")}
        return _weights(name)(folder), curves, timeless

    return read


def _file(name: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).read_text()


def _pictures(name: str) -> Callable[[Path], Any]:
    """The pixels of all pictures of a folder; a damaged picture is listed and left out."""

    def read(folder: Path) -> Any:
        from PIL import Image

        places = sorted((folder / name).rglob("*.png"))
        return {str(p.relative_to(folder)): Image.open(p).tobytes() for p in places}

    return read


def _comparison(folder: Path) -> Any:
    """The rows of a comparison, without their times."""
    rows = json.loads((folder / "several" / "comparison.json").read_text())["rows"]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def _gallery(folder: Path) -> Any:
    record = json.loads((folder / "people" / "gallery.json").read_text())
    return record["names"], record["features"], record["threshold"]


# --- commands -----------------------------------------------------------------------------------


def command(name: str, *arguments: str, **how: Any) -> Reader:
    """A reader that is a call of the command."""
    return Reader(name, lambda folder: call(arguments, folder), **how)


def report(drawn: str = "") -> Reader:
    """`hypersphere report`, with those still figures, which take seconds, that draw the damaged
    file: "features", "curves" or none.
    """

    def run(folder: Path) -> Answer:
        from hypersphere.reports import stills

        name, drawing = {
            "": ("page._stills", lambda *arguments: ()),
            "curves": ("stills._feature_stills", lambda *arguments: ()),
            "features": ("page.stills", stills._feature_stills),
        }[drawn]
        with mock.patch(f"hypersphere.reports.{name}", drawing):
            return call(["report", "run", "-o", "page.html"], folder)

    return Reader("report", run, _file("page.html"), kept=lambda folder: None)


def data(name: str) -> Reader:
    """`hypersphere data NAME`."""
    return command(f"data {name}", "data", name, "--root", "data")


def training(name: str) -> Reader:
    """`hypersphere train` on a data set."""
    return command(
        f"train on {name}", "train", f"{name}.yaml", "--run.folder", "run", result=_record("run")
    )


def _shards(folder: Path) -> Answer:
    """`load_shards`: a head changes completely, or not at all."""
    import torch

    import hypersphere as hs

    torch.manual_seed(1)
    head = hs.heads.ArcFaceHead(6, 9)
    before = head.weight.detach().clone()
    answer = Answer(["load_shards"])
    try:
        with limited():
            hs.heads.load_shards(head, folder / "head")
        answer.out = str(head.weight.tolist())
    except (ValueError, FileNotFoundError) as error:
        answer.code, answer.err = 1, f"hypersphere heads: {str(error).splitlines()[0]}"
        if not torch.equal(before, head.weight):
            answer.escaped = "refused, but the head was changed\n"
    except BaseException as error:
        answer.code, answer.escaped = -1, f"{type(error).__name__}: {error}\n"
    return answer


SHARDS = Reader("load_shards", _shards)
RESUME = command(
    "train --resume",
    "train",
    "--resume",
    "run",
    result=_record("run"),
    kept=_weights("run"),
)
INIT = command(
    "train --train.init_from",
    *("train", "small.yaml", "--train.init_from", "run", "--train.steps", "1"),
    *("--run.folder", "new"),
    result=_record("new"),
)
INIT_BEST = command(
    "train --train.init_from",
    *("train", "small.yaml", "--train.init_from", "run/checkpoints/best", "--train.steps", "1"),
    *("--run.folder", "new"),
    result=_record("new"),
)
EVALUATE = command(
    "evaluate",
    *("evaluate", "classification", "run", "--quiet", "--no-cache", "--json", "out.json"),
    result=_file("out.json"),
)
EVALUATE_BEST = command(
    "evaluate --weights best",
    *("evaluate", "retrieval", "run", "--quiet", "--no-cache", "--json", "out.json"),
    *("--weights", "best"),
    result=_file("out.json"),
)
CACHED = command(
    "evaluate", "evaluate", "classification", "run", "--quiet", "--json", "out.json",
    result=_file("out.json"),
)  # fmt: skip
PAIRS = command(
    "evaluate --pairs",
    *("evaluate", "verification", "run", "--quiet", "--no-cache", "--protocol", "plain"),
    *("--pairs", "pictures/pairs.txt", "--folds", "3", "--json", "out.json"),
    result=_file("out.json"),
)
IMAGES = command(
    "evaluate --images",
    *("evaluate", "retrieval", "run", "--quiet", "--no-cache", "--images", "pictures"),
    *("--json", "out.json"),
    result=_file("out.json"),
)
ENROLL_RUN = command(
    "gallery enroll --run",
    *("gallery", "enroll", "people", "--run", "run", "--images", "pictures"),
    result=_gallery,
)
COMPARE = Reader(
    "compare",
    compare,
    result=_comparison,
    spoken=False,  # it may say that a run goes on
)
SWEPT = command(
    "sweep",
    *SWEEP,
    result=_file("runs/sweep-small/best.json"),
    spoken=False,  # without a database all trials are tried again
)
GALLERY = (
    command("gallery list", "gallery", "list", "people"),
    command("gallery identify", "gallery", "identify", "people", "--features", "packed.npz"),
    command(
        "gallery verify", "gallery", "verify", "people", "person 1", "--features", "packed.npz"
    ),
    command(
        "gallery enroll",
        *("gallery", "enroll", "people", "--features", "plain.npz"),
        result=_gallery,
    ),
    command("gallery remove", "gallery", "remove", "people", "person 2", result=_gallery),
)
CALIBRATE = command(
    "gallery calibrate",
    *("gallery", "calibrate", "people", "--features", "strangers.npz", "--far", "0.2"),
    result=_gallery,
)
EXPORT = command(
    "export", "export", "run", "out", "--weights", "best",
    result=lambda folder: (folder / "out" / "preprocessing.json").read_text(), spoken=False,
)  # fmt: skip
CLAIMS = command("claims", "claims", "--results", "claims")
ALIGN = command("align", "align", "photos", "crops", result=_pictures("crops"))


def features(file: str) -> tuple[Reader, ...]:
    return (
        command("evaluate retrieval", "evaluate", "retrieval", "--features", file, "--ks", "1"),
        command(
            "evaluate identification", "evaluate", "identification", "--features", file,
            "--ranks", "1",
        ),
        command(
            "gallery enroll", "gallery", "enroll", "people", "--features", file, result=_gallery
        ),
    )  # fmt: skip
