"""The model card of an export: data, versions, evaluation, decision, intended use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..._reading import Unreadable, read_json
from ...evaluation.recognition.thresholds import Threshold
from ...evaluation.results import round_up

__all__ = ["model_card"]

INTENDED = """\
Recognition of the kind of pictures it was trained on: the features of two pictures are compared by
their cosine. It decides only at the thresholds above; where there is none, it decides nothing.

**Not intended** for other pictures (other cameras, light, ages, poses, or parts of the population
than in the data), and not for decisions about people without a human who can overrule them. The
rates above hold for people like those they were measured on. Before use, fit the threshold anew on
people of the place where it will work (`hypersphere gallery calibrate`), and look at the errors of
each group (`hypersphere.evaluation.error_by_group`)."""


def model_card(
    run: Any,
    title: str,
    pair: Threshold | None,
    search: Threshold | float | None,
    gap: float,
    files: Mapping[str, str],
    notes: Sequence[str] = (),
) -> str:
    """The card as Markdown.

    Args:
        run: a `TrainedRun`.
        title: name of the model.
        pair: threshold of a single comparison.
        search: threshold of a search.
        gap: largest difference between the ONNX file and the run.
        files: file -> SHA-256.
        notes: further sentences about the decision.

    Returns:
        The text.
    """
    details = read_json(run.folder / "run.json")
    config = run.config
    parameters = sum(p.numel() for p in run.model.parameters())
    channels = "x".join(map(str, run.shape))
    lines = [
        f"# {title}",
        "",
        f"{_name(config.model)} with the head {_name(config.head)}: {parameters:,} parameters, "
        f"pictures of {channels}, {run.weights} weights (step {run.step}). The ONNX file gives the "
        f"run's outputs to {gap:.1e}.",
        "",
        "## Data",
        "",
        *_data(run),
        "",
        "## Training",
        "",
        f"- seed {config.seed}, optimizer {config.optimizer.name} with lr {config.optimizer.lr:g}, "
        f"batches of {config.data.batch_size}",
        f"- started {details.get('started', 'unknown')}, "
        f"commit {details.get('commit') or 'unknown'}",
        "- versions: " + ", ".join(f"{k} {v}" for k, v in details.get("versions", {}).items()),
        "",
        "## Evaluation",
        "",
        *_evaluation(run),
        "",
        "## Decision",
        "",
        *_decision(pair, search),
        *(f"- {note}" for note in notes),
        "",
        "## Intended use",
        "",
        INTENDED,
        "",
        "## Files",
        "",
        "| file | SHA-256 |",
        "|---|---|",
        *(f"| {name} | {mark} |" for name, mark in files.items()),
        "",
    ]
    return "\n".join(lines)


def _name(section: Any) -> str:
    return str(section.get("name", "own")) if isinstance(section, dict) else type(section).__name__


def _data(run: Any) -> list[str]:
    data = run.config.data
    lines = [f"- {data.name}, {len(run.classes):,} classes; normalize {data.normalize!r}"]
    people = _read(run.folder / "split.json").get("people", {})
    for part, whose in (
        ("calibration", "thresholds were fitted on"),
        ("test", "nothing was fitted on"),
    ):
        if people.get(part):
            lines.append(f"- {len(people[part]):,} other people, whom {whose}")
    left_out = _read(run.folder / "split.json").get("unreadable", [])
    if left_out:
        lines.append(f"- {len(left_out):,} pictures could not be read and were left out")
    return lines


def _evaluation(run: Any) -> list[str]:
    """What was measured of the weights that are exported; of other weights nothing is said."""
    lines = []
    measured = _read(run.folder / "summary.json").get(run.weights) or {}
    if isinstance(measured.get("error"), float):
        lines.append(f"- classification error on the test part: {100 * measured['error']:.2f} %")
    found = _read(run.folder / "verification.json")
    if found and found.get("step", run.step) == run.step:
        whole = ""  # of all pairs only the curve is known
        if "interval" in found:
            low, high = (100 * bound for bound in found["interval"])
            whole = f"{100 * found['accuracy']:.2f} % (95 %: {low:.2f} to {high:.2f}), "
        protocol = found.get("protocol")
        whose = f"people never trained ({protocol})" if protocol else "every pair of the test part"
        lines.append(f"- verification of {whose}: {whole}EER {100 * found['eer']:.2f} %")
        for point in found["tar_at_far"]:
            if point.get("tar") is not None:
                lines.append(f"  - TAR {100 * point['tar']:.2f} % at FAR {point['far']:g}")
    if not lines:
        how = f"`hypersphere evaluate verification RUN --weights {run.weights}`"
        lines = [f"- none of these weights was kept in the run folder: {how}"]
    return lines


def _decision(pair: Threshold | None, search: Threshold | float | None) -> Sequence[str]:
    lines = []
    for what, found in (("a pair", pair), ("a search", search)):
        if isinstance(found, Threshold):
            among = f" among {found.gallery_size:,} people" if found.gallery_size > 1 else ""
            whose = f" of {found.people:,} people" if found.people else ""
            lines.append(
                f"- {what}{among}: accepted from a cosine of {round_up(found.value)} on (95 %: "
                f"{found.interval()}); false-accept rate {found.far:g}, fitted on "
                f"{found.negatives:,} impostors{whose}"
            )
        elif found is not None:
            lines.append(f"- {what}: accepted from {found:g} on, chosen by hand")
    how = (
        "`hypersphere evaluate threshold RUN`, of a gallery `hypersphere gallery calibrate GALLERY`"
    )
    return lines or [f"- no threshold, so nobody is accepted: {how}, fits one"]


def _read(path: Path) -> dict[str, Any]:
    try:
        found = read_json(path)
    except (FileNotFoundError, Unreadable):
        return {}
    return found if isinstance(found, dict) else {}
