"""`hypersphere compare A.yaml[:variant,...] B.yaml ... --seeds 0 1 2`: mean and deviation over
seeds.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypersphere._terminal import complain
from hypersphere.commands import _config
from hypersphere.commands.plugins import take_plugins
from hypersphere.training.own_parts import without_places
from hypersphere.training.run.checkpoint import RunError
from hypersphere.training.run.records import read_record, run_config

USAGE = """usage: hypersphere compare CONFIG.yaml[:VARIANT,...] ... [--seeds 0 1 2]
                           [--folder FOLDER] [--section.key value ...]

Trains every config with every seed (runs that are complete are not repeated) and prints
mean +- deviation of the last and the best test value. Further options apply to all of them.

  --seeds N ...    seeds (default: 0 1 2)
  --folder FOLDER  where the runs go (default: runs/compare)
  --metric NAME    of the test, default: accuracy; error, top5_error, loss, ...
  --plugin MODULE  import parts of your own from a module or a .py file; may be repeated

Options of the configs: `hypersphere train CONFIG.yaml --help`.
"""


def main(argv: Sequence[str]) -> int:
    if not argv or any(a in ("-h", "--help") for a in argv):
        print(USAGE)
        return 0
    from hypersphere.training.diagnose import NotFinite
    from hypersphere.training.interrupt import Interrupted
    from hypersphere.training.run.checkpoint import write_atomically

    try:
        specs, seeds, folder, metric, rest = _arguments(take_plugins(argv))
        rows = compare(specs, seeds, folder, rest, metric)
    except _config.ConfigError as error:
        complain("compare", error)
        return 2
    except Interrupted as stop:
        print(
            "hypersphere compare: interrupted; the same command goes on from here", file=sys.stderr
        )
        return 128 + stop.signal
    except (RunError, NotFinite, ValueError, FileNotFoundError) as error:
        complain("compare", error)
        return 1
    print(table(rows, metric))
    command = shlex.join(["hypersphere", "compare", *argv])
    record = json.dumps(result_record(rows, metric, command), indent=1) + "\n"
    write_atomically(folder / "comparison.json", record)
    print(f"\nruns and comparison.json are in {folder}")
    return 0


def compare(
    specs: Sequence[str],
    seeds: Sequence[int],
    folder: Path,
    arguments: Sequence[str] = (),
    metric: str = "accuracy",
) -> list[dict[str, Any]]:
    """Train each config with each seed; one row per config with the values of all seeds."""
    from hypersphere.training.interrupt import Interrupted
    from hypersphere.training.job import train

    # All configs are read before the first is trained: a typing error should not cost an hour.
    configs = [_config.read(spec, [*arguments, "--run.report", "false"]) for spec in specs]
    rows = []
    for spec, name, config in zip(specs, _labels(specs), configs, strict=True):
        row: dict[str, Any] = {"name": name, "spec": spec, "metric": metric}
        row.update(seeds=list(seeds), last=[], best=[])
        row["recipe"] = vars(config.dissertation)
        for seed in seeds:
            config = dataclasses.replace(config, seed=seed)
            place = folder / f"{name}-seed{seed}"
            summary = _finished(place, config)
            if summary is None:
                print(f"{name}, seed {seed}", file=sys.stderr)
                outcome = train(
                    config,
                    place,
                    resume=(place / "run.json").exists(),
                    config_text=_config.dump(config),
                )
                if outcome.interrupted is not None:
                    raise Interrupted(outcome.interrupted)
                summary = read_record(place / "summary.json")
            for kind in ("last", "best"):
                if metric not in summary[kind]:
                    known = ", ".join(k for k in summary[kind] if k != "step")
                    raise ValueError(f"the test of {name} has no {metric!r}; it has: {known}")
                row[kind].append(summary[kind][metric])
        rows.append(row)
    return rows


def result_record(rows: Sequence[dict[str, Any]], metric: str, command: str) -> dict[str, Any]:
    """The comparison as a result file: `reports.markdown_table` sets it beside the dissertation.

    "ours" is the last test value of each seed, in the unit of the text (percent for shares).
    """
    percent = is_share(metric)
    scale = 100.0 if percent else 1.0
    sources = dict.fromkeys(row["recipe"]["source"] for row in rows if row["recipe"]["source"])
    lines = []
    for row in rows:
        recipe = row["recipe"]
        quoted = printed(recipe, metric)
        lines.append(
            {
                **row,
                "name": recipe["row"] or row["name"],
                "ours": [round(scale * value, 6) for value in row["last"]],
                "dissertation": quoted,
                "differs": recipe["note"] or "none",
            }
        )
    return {
        "table": ", ".join(sources) or "comparison",
        "unit": f"{metric} (%)" if percent else metric,
        "command": command,
        "rows": lines,
    }


def _finished(place: Path, config: Any) -> dict[str, Any] | None:
    """The summary of a complete run of exactly this config, if the folder holds one."""
    try:
        saved = run_config(read_record(place / "run.json"), place / "run.json")
    except FileNotFoundError:
        return None
    if "thesis" in saved:  # the section's name in earlier versions
        saved["dissertation"] = saved.pop("thesis")
    saved = without_places(saved)
    ours = without_places(json.loads(json.dumps(config.to_dict())))
    if {**saved, "run": None} != {**ours, "run": None}:
        raise ValueError(f"{place} holds a run of another config: choose another --folder")
    try:
        summary = read_record(place / "summary.json")
    except (FileNotFoundError, RunError):  # the run goes on from its checkpoint, and writes it
        return None
    whole = all(isinstance(summary.get(kind), dict) for kind in ("last", "best"))
    return summary if whole and "seconds" in summary else None


def spread(values: Sequence[float], percent: bool) -> str:
    """'97.31 +- 0.12': mean and sample deviation."""
    scale = 100.0 if percent else 1.0
    mean = scale * statistics.fmean(values)
    deviation = scale * statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{mean:.2f} +- {deviation:.2f}" if percent else f"{mean:.4f} +- {deviation:.4f}"


def is_share(metric: str) -> bool:
    """Whether a metric is a share, which the text prints in percent.

    >>> [is_share(m) for m in ("validation_accuracy", "top5_error", "loss")]
    [True, True, False]
    """
    return "accuracy" in metric or "error" in metric


def printed(recipe: dict[str, Any], metric: str) -> float | None:
    """The number that the dissertation prints for a metric of a recipe.

    Args:
        recipe: the section ``dissertation`` of the recipe.
        metric: name of the metric.

    Returns:
        The number, or None if there is none.
    """
    if recipe["metric"] == metric:
        return recipe["value"]
    return (recipe.get("also") or {}).get(metric)


def table(rows: Sequence[dict[str, Any]], metric: str) -> str:
    """Name, last, best, and the dissertation's number where the config has one."""
    from hypersphere.evaluation.results import format_table

    percent = is_share(metric)
    lines = []
    for row in rows:
        value = printed(row["recipe"], metric)
        quoted = "" if value is None else f"{value:g}"
        lines.append(
            [row["name"], spread(row["last"], percent), spread(row["best"], percent), quoted]
        )
    unit = " (%)" if percent else ""
    return format_table(
        lines, header=["config", f"last {metric}{unit}", f"best {metric}{unit}", "text"]
    )


def _labels(specs: Sequence[str]) -> list[str]:
    """A short name for each config: the file's, with its folder only where needed to tell them
    apart.
    """
    paths = [_config.split_spec(spec) for spec in specs]
    short = ["-".join([path.stem, *variants]) for path, variants in paths]
    if len(set(short)) == len(short):
        return short
    return [f"{path.parent.name}-{name}" for (path, _), name in zip(paths, short, strict=True)]


def _arguments(argv: list[str]) -> tuple[list[str], list[int], Path, str, list[str]]:
    specs: list[str] = []
    while argv and not argv[0].startswith("--"):
        specs.append(argv.pop(0))
    if not specs:
        raise _config.ConfigError("name at least one config")
    seeds, folder, metric, rest = [0, 1, 2], Path("runs/compare"), "accuracy", []
    while argv:
        flag = argv.pop(0)
        if flag == "--seeds":
            seeds = []
            while argv and not argv[0].startswith("--"):
                seeds.append(_integer(argv.pop(0)))
        elif flag == "--folder" and argv:
            folder = Path(argv.pop(0))
        elif flag == "--metric" and argv:
            metric = argv.pop(0)
        else:
            rest.append(flag)
    return specs, seeds, folder, metric, rest


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise _config.ConfigError(f"--seeds takes whole numbers; got {text!r}") from None
