"""An Optuna study that outlives the processes that work on it.

A trial is "complete" (a result), "pruned" (its loss diverged: an answer too), or nothing: one that
was interrupted fails, and its settings are tried again by whoever goes on with the study. A trial
that was killed cannot say so; its `owner` shows that nobody is at work on it any more.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import sqlite3
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypersphere._optional import require
from hypersphere._reading import Unreadable, check_regular
from hypersphere.commands._config import ConfigError
from hypersphere.training.interrupt import Interrupted

__all__ = ["claim", "finished", "next_sampler", "open_study", "recover", "seal"]


def owner() -> str:
    """This process, as a name: machine and number."""
    return f"{socket.gethostname()}-{os.getpid()}"


def is_gone(name: str) -> bool:
    """Whether an owner is a process of this machine that has ended."""
    host, _, number = name.rpartition("-")
    if host != socket.gethostname() or not number.isdigit():
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


def open_study(name: str, storage: str, minimize: bool, settings: Mapping[str, Any]) -> Any:
    """The study of that name, new or continued; one made with other settings is refused."""
    optuna = require("optuna", extra="sweep")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if storage.startswith("sqlite:///") and os.path.lexists(storage.removeprefix("sqlite:///")):
        _check_database(Path(storage.removeprefix("sqlite:///")))
    direction = "minimize" if minimize else "maximize"
    try:
        study = optuna.create_study(
            study_name=name, storage=storage, direction=direction, load_if_exists=True
        )
        changed = [t.number for t in study.trials if not _is_sealed(t)]
        given, found = study.user_attrs.get("settings"), study.direction.name.lower()
    except Interrupted:
        raise
    except Exception as error:  # a damaged database fails in any way
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(f"study {name!r} in {storage} cannot be read: {said}") from None
    if changed:
        raise ConfigError(
            f"study {name!r} in {storage} is damaged: trial {changed[0]} was changed after it was "
            f"finished; choose another name with --study"
        )
    if found != direction:
        raise ConfigError(
            f"study {name!r} in {storage} was made to {found}, not to {direction}: give or leave "
            f"out --minimize, or choose another name with --study"
        )
    wanted = json.loads(json.dumps(settings, default=str))
    if given is None:
        study.set_user_attr("settings", wanted)
    elif given != wanted:
        other = sorted(
            k for k in wanted if not isinstance(given, dict) or wanted[k] != given.get(k)
        )
        raise ConfigError(
            f"study {name!r} in {storage} was made with other settings ({', '.join(other)}): "
            f"its trials cannot be compared with new ones; choose another name with --study"
        )
    return study


def _check_database(path: Path) -> None:
    """ConfigError if a file is no whole SQLite database."""
    try:
        check_regular(path)
        with contextlib.closing(sqlite3.connect(path)) as base:
            said = base.execute("pragma quick_check(1)").fetchone()[0]
    except (OSError, Unreadable, sqlite3.Error) as error:
        said = str(error)
    if said != "ok":
        raise ConfigError(f"{path} is no whole database of trials: {said}")


def seal(trial: Any, value: float) -> None:
    """Sign a trial with the checksum of what was tried and what came out."""
    trial.set_user_attr("seal", _checksum(trial.params, value))


def _is_sealed(trial: Any) -> bool:
    """Whether a trial is as it was when it was finished; those of earlier versions may be."""
    if trial.state.name != "COMPLETE" or "seal" not in trial.user_attrs:
        return True
    return bool(trial.user_attrs["seal"] == _checksum(trial.params, trial.value))


def _checksum(params: Mapping[str, Any], value: float) -> str:
    return f"{zlib.crc32(json.dumps([dict(params), value], sort_keys=True).encode()):08x}"


def finished(study: Any) -> int:
    """Trials with an answer."""
    return sum(t.state.name in ("COMPLETE", "PRUNED") for t in study.trials)


def next_sampler(study: Any, shared: bool) -> Any:
    """What proposes the next trial: of the finished trials alone, so that an interrupted study
    goes on as it would have; among several workers at random, lest they propose the same.
    """
    samplers = require("optuna.samplers", extra="sweep")
    return samplers.TPESampler(seed=None if shared else finished(study))


def claim(trial: Any) -> None:
    """Sign a trial with the process that works on it."""
    trial.set_user_attr("owner", owner())


def recover(study: Any, runs: Path) -> int:
    """End the trials whose process is gone, queue them and interrupted ones again, and clear away
    what they left in `runs`; returns how many are tried again.
    """
    states = require("optuna.trial", extra="sweep").TrialState
    for left in runs.glob("fold-*"):
        if is_gone(left.name.removeprefix("fold-").rpartition("-")[0]):
            shutil.rmtree(left, ignore_errors=True)
    trials = study.get_trials(deepcopy=False)
    again = {t.user_attrs.get("again") for t in trials}
    count = 0
    for trial in trials:
        killed = trial.state == states.RUNNING and is_gone(trial.user_attrs.get("owner", ""))
        if killed:
            study.tell(trial.number, state=states.FAIL)
        interrupted = trial.state == states.FAIL and trial.user_attrs.get("interrupted")
        if (killed or interrupted) and trial.number not in again and trial.params:
            study.enqueue_trial(trial.params, user_attrs={"again": trial.number})
            count += 1
    return count
