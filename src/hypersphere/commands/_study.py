"""An Optuna study that outlives the processes that work on it.

A trial is "complete" (a result), "pruned" (its loss diverged: an answer too), or nothing: one that
was interrupted fails, and its settings are tried again by whoever goes on with the study. A trial
that was killed cannot say so; its `owner` shows that nobody is at work on it any more.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypersphere._optional import require
from hypersphere.commands._config import ConfigError

__all__ = ["claim", "finished", "next_sampler", "open_study", "recover"]


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
    study = optuna.create_study(
        study_name=name,
        storage=storage,
        direction="minimize" if minimize else "maximize",
        load_if_exists=True,
    )
    wanted = json.loads(json.dumps(settings, default=str))
    given = study.user_attrs.get("settings")
    if given is None:
        study.set_user_attr("settings", wanted)
    elif given != wanted:
        changed = sorted(k for k in wanted if wanted[k] != given.get(k))
        raise ConfigError(
            f"study {name!r} in {storage} was made with other settings ({', '.join(changed)}): "
            f"its trials cannot be compared with new ones; choose another name with --study"
        )
    return study


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
