"""What may change when a run goes on: how long and how often, where, and on what; not what is
learned. Everything else would leave a run that none of its records describes.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypersphere.training.config import Config
from hypersphere.training.run.checkpoint import RunError, list_checkpoints
from hypersphere.training.run.folder import RunFolder
from hypersphere.training.run.records import read_record, run_config, text_checksum

__all__ = ["MAY_CHANGE", "changed_settings", "for_processes", "record_changes"]

MAY_CHANGE = (
    "train.steps",
    "train.epochs",
    "train.log_every",
    "train.test_every",
    "train.checkpoint_every",
    "train.checkpoint_seconds",
    "train.keep",
    "train.threads",
    "train.compile",
    "data.workers",
    "train.quiet",
    "data.root",
    "fabric",
    "run",
    "parts",
    "dissertation",  # what the text says of the run, not what the run does
)
FROM_DATA = ("model.in_channels", "model.image_size")


def changed_settings(folder: Path, config: Config) -> dict[str, tuple[Any, Any]]:
    """{key: (before, now)} of a recorded run and the config it is to go on with.

    `RunError` names every key that must stay as it was.
    """
    saved = run_config(read_record(folder / "run.json"), folder / "run.json")
    # Through JSON, where a tuple is a list; through Config, so that settings added later have
    # their default.
    before = dict(_flat(json.loads(json.dumps(Config.from_dict(saved).to_dict()))))
    now = dict(_flat(json.loads(json.dumps(config.to_dict()))))
    keys = [k for k in {**before, **now} if before.get(k) != now.get(k)]
    # Left open, they come from the data; a run of an earlier version recorded what came.
    keys = [k for k in keys if k not in FROM_DATA or now.get(k) is not None]
    changes = {k: (before.get(k), now.get(k)) for k in keys}
    refused = [k for k in keys if k not in MAY_CHANGE and k.partition(".")[0] not in MAY_CHANGE]
    if refused:
        listed = ", ".join(
            f"{k} {_shown(changes[k][0])} (not {_shown(now.get(k))})" for k in refused
        )
        raise RunError(
            f"{folder} was started with {listed}, and goes on with what it was started with: leave "
            f"that out to resume it, or start a new run without --resume (--train.init_from "
            f"{folder} takes over its weights). On resume may change: {', '.join(MAY_CHANGE)}"
        )
    return changes


def record_changes(
    record: RunFolder,
    config: Config,
    changes: Mapping[str, tuple[Any, Any]],
    steps: int,
    config_text: str | None,
) -> None:
    """Say the changes and keep them: config.yaml, run.json's config, and a note in run.json."""
    saved = list_checkpoints(record.checkpoints)
    if not saved and _is_finished(record.path):
        raise RunError(
            f"{record.path} is a finished run whose checkpoints are gone: there is nothing to go "
            f"on from. Put {record.checkpoints} back, or train in another folder without --resume"
        )
    if saved and int(saved[-1].name[5:]) > steps:
        raise RunError(
            f"{record.path} is at step {int(saved[-1].name[5:])}, beyond the {steps} asked for"
        )
    if not changes or not record.write:
        return
    print(
        "resumed with "
        + ", ".join(f"{k} {_shown(b)} -> {_shown(n)}" for k, (b, n) in changes.items())
    )
    details = read_record(record.path / "run.json")
    note = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "changed": {k: list(v) for k, v in changes.items()},
    }
    details["config"] = config.to_dict()
    details["changes"] = [*details.get("changes", []), note]
    if config_text is not None:  # both: the process may be killed before config.yaml is written
        before = record.path / "config.yaml"
        known = [text_checksum(before.read_text("utf-8"))] if before.is_file() else []
        details["config_checksums"] = [text_checksum(config_text), *known]
    record.json("run.json", details)
    if config_text is not None:
        record.text("config.yaml", config_text)


def _is_finished(folder: Path) -> bool:
    """Whether a run came to its end: a test on the way writes a summary without the time."""
    try:
        return "seconds" in read_record(folder / "summary.json")
    except (OSError, RunError):
        return False


def for_processes(task: dict[str, Any], count: int) -> dict[str, Any]:
    """A task's state, with the place in the data for `count` processes: they share the same
    batches, so only the size of each one's part is another. Streamed shards are dealt out to the
    processes, whose batches would be others: they are refused.

    >>> loader = {"epoch": 3, "batch": 7, "batch_size": 64, "world_size": 1}
    >>> for_processes({"loader": loader}, 2)["loader"]
    {'epoch': 3, 'batch': 7, 'batch_size': 32, 'world_size': 2}
    """
    if "loader" not in task:
        return task
    loader = task["loader"]
    if "shards" in loader and loader["world_size"] != count:
        raise RunError(
            f"the checkpoint is of {loader['world_size']} processes that read shards of their own, "
            f"and cannot go on with {count}: the samples would be others. Resume with "
            f"{loader['world_size']} (fabric.devices, torchrun), or start a new run without "
            "--resume (--train.init_from takes over the weights)"
        )
    together = loader["batch_size"] * loader["world_size"]
    return {**task, "loader": {**loader, "batch_size": together // count, "world_size": count}}


def _flat(values: Mapping[str, Any], prefix: str = "") -> Any:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        elif value != {}:  # no options and no such thing are alike
            yield f"{prefix}{key}", value


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "none" if value is None else str(value)
