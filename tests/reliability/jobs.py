"""What a fault may hit: every task, and every command that writes."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from reliability.worlds import TASKS, features_world, graph_world

STEPS = {"steps": 6, "log_every": 1, "test_every": 3, "checkpoint_every": 2, "quiet": True}
ALWAYS = (
    "cli",
    "commands.train",
    "commands._training",
    "training.baseline",
    "training.campaign",
    "training.checks",
    "training.job",
    "training.tasks.classification",
)
PACKAGES = ("jsonargparse", "safetensors.torch", "sklearn.datasets")
PACKAGES += ("torch._dynamo", "PIL.Image", "scipy.sparse", "torch.distributed.fsdp")
VARYING = ("run.json", "metrics.jsonl", "summary.json", "state.json", "config.yaml")


@dataclass(frozen=True)
class Job:
    """A call of the command that changes files.

    Args:
        name: what it does.
        prepare: makes what it needs in a folder; gives further calls that do so.
        words: the call, by what is in the folder: `train` goes on with `train --resume`.
        result: what it leaves, to compare.
        once: whether a repetition would do it twice, so that it is repeated only if it was lost.
        both: the two calls of two processes at once.
        joined: what is wrong after both; None if the result has to be that of one.
        modules: what it imports of the library, beside those of `train`.
        packages: what it imports of others.
    """

    name: str
    prepare: Callable[[Path], Sequence[Sequence[str]]]
    words: Callable[[Path], list[str]]
    result: Callable[[Path], Any]
    once: bool = False
    both: Callable[[Path], tuple[list[str], list[str]]] = lambda folder: ([], [])
    joined: Callable[[Path], str] | None = None
    modules: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()

    def imports(self) -> None:
        """Import what it needs, and read what every child would read again, before a child is made;
        nothing is computed.
        """
        for name in (*ALWAYS, *self.modules):
            importlib.import_module(f"hypersphere.{name}")
        for name in (*PACKAGES, *self.packages):
            importlib.import_module(name)
        importlib.import_module("hypersphere.training.distributed").import_fabric()
        read = importlib.import_module("hypersphere.commands._config").read
        for config in TASKS.values():
            read(None, defaults=yaml.safe_load(config))
        importlib.import_module("hypersphere.data.digits")._table()
        if "commands.compare" in self.modules:
            importlib.import_module("hypersphere.training.campaign").subprocess = FORKING


class Forked:
    """Takes the place of `subprocess.Popen` in a comparison: a worker without its imports."""

    def __init__(self, command: Sequence[str], **_: Any) -> None:
        self.code: int | None = None
        to_read, to_write = os.pipe()
        from_read, from_write = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(to_write)
            os.close(from_read)
            _work(to_read, from_write)
        os.close(to_read)
        os.close(from_write)
        self.stdin, self.stdout = os.fdopen(to_write, "wb"), os.fdopen(from_read, "rb")

    def poll(self) -> int | None:
        """The exit code, once it has ended."""
        if self.code is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code

    def wait(self, timeout: float = 60.0) -> int | None:
        """Wait for its end."""
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("worker", timeout)
            time.sleep(0.01)
        return self.code

    def send_signal(self, number: int) -> None:
        """Send a signal, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)


def _work(tasks: int, answers: int) -> None:
    """The worker of a comparison, in a process of its own that ends here."""
    code = 1
    try:
        from hypersphere.commands import _worker

        os.setsid()
        os.dup2(tasks, 0)
        os.dup2(answers, 1)
        os.close(tasks)
        os.close(answers)
        sys.stdin = open(0, encoding="utf-8")  # noqa: SIM115
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        code = _worker.work()
    finally:
        os._exit(code)


# What `campaign.py` takes of the module `subprocess`.
FORKING = SimpleNamespace(
    Popen=Forked, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired
)

# --- results ------------------------------------------------------------------------------------


def _timeless(path: Path) -> list[str]:
    lines = path.read_text().splitlines()
    return [re.sub(r'"(time|seconds|checksum)": [^,}]+', "", line) for line in lines]


def trained(folder: Path) -> dict[str, Any]:
    """Everything of a run but times and places: weights, states, curves, values, pictures."""
    newest = sorted((folder / "checkpoints").glob("step-*"))[-1]
    files = [p for p in folder.rglob("*") if p.is_file() and not p.name.startswith(".")]
    kept = [p for p in files if p.parent.name == newest.name or p.parent.name[:5] != "step-"]
    found: dict[str, Any] = {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in kept
        if p.name not in VARYING
    }
    found["curves"] = _timeless(folder / "metrics.jsonl")
    summary = json.loads((folder / "summary.json").read_text())
    found["summary"] = {
        k: v for k, v in summary.items() if k not in ("seconds", "files", "checksum")
    }
    return found


def _compared(folder: Path) -> dict[str, Any]:
    rows = json.loads((folder / "several" / "comparison.json").read_text())["rows"]
    found: dict[str, Any] = {"rows": [{**row, "seconds": None} for row in rows]}
    for run in sorted(p.parent for p in (folder / "several").glob("*/run.json")):
        found[run.name] = trained(run)
    return found


def _swept(folder: Path) -> dict[str, Any]:
    import sqlite3

    with sqlite3.connect(folder / "runs" / "sweep-c" / "sweep.db") as base:
        trials = base.execute(
            "select p.param_value, v.value from trials t join trial_params p using (trial_id) "
            "join trial_values v using (trial_id) where t.state = 'COMPLETE' order by t.number"
        ).fetchall()
    best = json.loads((folder / "runs" / "sweep-c" / "best.json").read_text())
    left = [str(p) for p in (folder / "runs" / "sweep-c" / "runs").glob("fold-*")]
    return {"trials": trials, "best": best, "left": left}


def _people(folder: Path) -> Any:
    """Names and features; old features that a killed process left go with the next change."""
    record = json.loads((folder / "people" / "gallery.json").read_text())
    features = (folder / "people" / record["features"]).read_bytes()
    return record["names"], hashlib.sha256(features).hexdigest()


# --- jobs ---------------------------------------------------------------------------------------


def _config(task: str, **train: Any) -> str:
    config = yaml.safe_load(TASKS[task])
    config["train"] = {**STEPS, **train}
    return yaml.safe_dump(config)


def _training(task: str) -> Job:
    def prepare(folder: Path) -> list[list[str]]:
        if task == "graph":
            graph_world(folder)
            config = yaml.safe_load((folder / "citeseer.yaml").read_text())
            config["train"] = STEPS
            (folder / "c.yaml").write_text(yaml.safe_dump(config))
        else:
            (folder / "c.yaml").write_text(_config(task))
        return []

    start = ["train", "c.yaml", "--run.folder", "run"]

    def words(folder: Path) -> list[str]:
        return ["train", "--resume", "run"] if (folder / "run/run.json").exists() else start

    return Job(
        f"train, {task}",
        prepare,
        words,
        lambda folder: trained(folder / "run"),
        both=lambda folder: (start, start),
        modules=(f"training.tasks.{task}",) if task != "rotated" else (),
    )


def _prepare_compare(folder: Path) -> list[list[str]]:
    # Long enough to be met at work by the next comparison, after this one was killed.
    (folder / "c.yaml").write_text(_config("classification", steps=150, checkpoint_every=40))
    (folder / "d.yaml").write_text(_config("rotated"))
    return []


COMPARE = ["compare", "c.yaml", "d.yaml", "--seeds", "0", "1", "--folder", "several"]
SWEEP = ["sweep", "c.yaml", "--trials", "3", "--folds", "2"]
SWEEP += ["--search", "optimizer.lr=1e-3:1e-1:log"]


def _prepare_run(folder: Path) -> list[list[str]]:
    (folder / "c.yaml").write_text(_config("classification"))
    return [["train", "c.yaml", "--run.folder", "run"]]


def _prepare_sweep(folder: Path) -> list[list[str]]:
    (folder / "c.yaml").write_text(_config("classification"))
    return []


REPORT = ["report", "run", "-o", "page.html"]
EVALUATE = ["evaluate", "classification", "run", "--quiet", "--json", "out.json"]
ENROLL = ["gallery", "enroll", "people", "--features", "packed.npz"]
MORE = ["gallery", "enroll", "people", "--features", "more.npz"]
OTHERS = ["gallery", "enroll", "people", "--features", "others.npz"]
REMOVE = ["gallery", "remove", "people", "person 2"]


def _prepare_gallery(folder: Path) -> list[list[str]]:
    import numpy as np

    features_world(folder)
    with np.load(folder / "plain.npz") as arrays:
        names = np.array([f"{name} of another family" for name in arrays["names"]])
        np.savez(folder / "more.npz", features=arrays["features"][:, ::-1], names=names)
        names = np.array([f"{name} of a third family" for name in arrays["names"]])
        np.savez(folder / "others.npz", features=-arrays["features"], names=names)
    return []


def _enrolled(folder: Path) -> list[list[str]]:
    return [*_prepare_gallery(folder), ENROLL]


def _all_people(folder: Path) -> str:
    names = _people(folder)[0]
    return "" if len(names) == 24 else f"{len(names)} features of 24, {sorted(set(names))}"


def _constant(words: list[str]) -> Callable[[Path], list[str]]:
    return lambda folder: words


def _twice(words: list[str]) -> Callable[[Path], tuple[list[str], list[str]]]:
    return lambda folder: (words, words)


JOBS: list[Job] = [
    *(_training(task) for task in (*TASKS, "graph")),
    Job(
        "compare", _prepare_compare, _constant(COMPARE), _compared, both=_twice(COMPARE),
        modules=("commands.compare", "commands._comparing", "commands._worker"),
    ),
    Job(
        "sweep", _prepare_sweep, _constant(SWEEP), _swept, both=_twice(SWEEP),
        modules=("commands.sweep", "commands._study", "training.crossval"),
        packages=("optuna.storages", "optuna.samplers", "sqlalchemy.orm", "alembic.migration"),
    ),
    Job(
        "report", _prepare_run, _constant(REPORT),
        lambda folder: (folder / "page.html").read_text(), both=_twice(REPORT),
        modules=("commands.report", "reports", "reports.page", "reports.stills"),
        packages=("matplotlib.pyplot", "matplotlib.backends.backend_agg", "plotly.graph_objects"),
    ),
    Job(
        "evaluate", _prepare_run, _constant(EVALUATE),
        lambda folder: (folder / "out.json").read_text(), both=_twice(EVALUATE),
        modules=("commands.evaluate", "evaluation"),
    ),
    Job(
        "gallery enroll, a new gallery", _prepare_gallery, _constant(ENROLL), _people, once=True,
        both=lambda folder: (ENROLL, MORE), joined=_all_people,
        modules=("commands.gallery", "evaluation", "training.run.trained"),
    ),
    Job(
        "gallery enroll, more people", _enrolled, _constant(MORE), _people, once=True,
        both=lambda folder: (MORE, OTHERS),
        joined=lambda folder: "" if len(_people(folder)[0]) == 36 else "lost",
        modules=("commands.gallery", "evaluation", "training.run.trained"),
    ),
    Job(
        "gallery remove", _enrolled, _constant(REMOVE), _people, once=True, both=_twice(REMOVE),
        joined=lambda folder: "" if len(_people(folder)[0]) == 9 else "not 9 are left",
        modules=("commands.gallery", "evaluation", "training.run.trained"),
    ),
]  # fmt: skip
