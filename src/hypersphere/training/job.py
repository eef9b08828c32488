"""A whole run from its settings: prepare, train, conclude, record."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypersphere.training.conclude import conclude
from hypersphere.training.config import Config
from hypersphere.training.diagnose import NotFinite
from hypersphere.training.distributed import make_fabric, one_process
from hypersphere.training.fsdp import is_fsdp
from hypersphere.training.loop import fit
from hypersphere.training.own_parts import place_of
from hypersphere.training.prepare import Job, prepare
from hypersphere.training.processes import named_failures
from hypersphere.training.run.checkpoint import RunError
from hypersphere.training.run.folder import RunFolder, describe_run
from hypersphere.training.run.load import load_net
from hypersphere.training.run.lock import FolderInUse, FolderLock
from hypersphere.training.run.own_data import (
    as_started,
    check_classes,
    describe_data,
    differs,
    keep_data,
)
from hypersphere.training.run.records import text_checksum
from hypersphere.training.run.resume import changed_settings, record_changes
from hypersphere.training.sharding import is_spread

__all__ = ["Outcome", "SetupError", "train"]


class SetupError(ValueError):
    """Data, model, head or optimizer cannot be built from these settings."""


@dataclass
class Outcome:
    """What a run ended with.

    Args:
        folder: where it is recorded.
        last: values of the last test, with its step.
        best: values of the best test, with its step.
        interrupted: the signal that stopped the run, or None.
        verification: of classes never trained, where the data have pairs of them.
        step: how many updates it has.
    """

    folder: Path
    last: dict[str, Any]
    best: dict[str, Any]
    interrupted: int | None
    verification: Any = None
    step: int = 0


def train(
    config: Config,
    folder: Path | str,
    resume: bool = False,
    config_text: str | None = None,
    fabric: Any = None,
) -> Outcome:
    """Run a config in a folder, from its data to its features and folded weights.

    Args:
        config: the settings of the run.
        folder: where everything is recorded.
        resume: go on with the run in the folder, if there is one. Default: False.
        config_text: kept in the folder as config.yaml.
        fabric: devices and processes. Default: those of ``config.fabric``.

    Returns:
        The values of the last and the best test.

    Raises:
        SetupError: if data, model, head or optimizer cannot be built.
        NotFinite: if a loss, a weight or a test value is NaN or infinite.
        RunError: if the run cannot go on, for a reason the user can act on.
    """
    fabric = fabric or make_fabric(**vars(config.fabric))
    with named_failures(fabric):
        record = RunFolder(folder, write=fabric.is_global_zero)
        lock = FolderLock(record.path)
        try:
            _acquire(lock, fabric)
            return _train(config, record, resume, config_text, fabric, lock)
        finally:
            lock.release()


def _train(
    config: Config,
    record: RunFolder,
    resume: bool,
    config_text: str | None,
    fabric: Any,
    lock: FolderLock,
) -> Outcome:
    resumed = resume and (record.path / "run.json").exists()
    try:
        changes = changed_settings(record.path, config) if resumed else {}
        started = as_started(config.data, record.path) if resumed else config.data
        job = prepare(dataclasses.replace(config, data=started), fabric)
        if resumed and job.loaders is not None:
            check_classes(job.loaders, record.path)
            change = differs(job.loaders, record.path)
            if change:
                raise RunError(
                    f"{change}. Bring back the data of then, or start a new run "
                    f"(--train.init_from {record.path} takes over the weights)"
                )
    except BaseException as error:
        lock.release()
        record.discard()
        # torch and constructors say so when settings do not fit together; in the loop the same
        # errors are bugs.
        if isinstance(error, (TypeError, RuntimeError)) and not isinstance(error, RunError):
            raise SetupError(f"cannot set up this run: {error}{place_of(error)}") from error
        raise
    say = _speaker(fabric, config.train.quiet)
    for note in job.notes:
        say(note)
    if resumed:
        record_changes(record, config, changes, job.settings.steps, config_text)
    else:
        if job.loaders is not None:
            keep_data(record, job.loaders)
        # run.json last: a folder that has it can be resumed, however early the process ends.
        if config_text is not None:
            record.text("config.yaml", config_text)
        record.json("run.json", _description(config, fabric, job, config_text))
    record.remove("diverged.json")  # of an earlier attempt
    try:
        run = fit(job.task, record, fabric, job.settings, job.hooks, resume)
        outcome = Outcome(record.path, run.tested, run.best, run.interrupted, step=run.step)
        if run.interrupted is None and fabric.is_global_zero:
            # The first process goes on alone, with the whole network.
            if is_fsdp(fabric) or is_spread(job.task.model):
                job.task.model = load_net(record.path).to(fabric.device)
            with one_process():
                outcome.verification = conclude(job, run, record, say)
    except NotFinite as error:
        record.json("diverged.json", {"reason": str(error)})  # a result, too: see campaign.py
        raise
    fabric.barrier()
    return outcome


def _acquire(lock: FolderLock, fabric: Any) -> None:
    """Take the lock in the process that writes; all of them stop if it is taken."""
    problem = None
    if fabric.is_global_zero:
        try:
            lock.acquire()
        except FolderInUse as error:
            problem = str(error)
    if fabric.world_size > 1:
        problem = fabric.broadcast(problem)
    if problem is not None:
        raise FolderInUse(problem)


def _description(config: Config, fabric: Any, job: Job, config_text: str | None) -> dict[str, Any]:
    """run.json: versions and hardware, the config, and what the data told."""
    details: dict[str, Any] = {"processes": fabric.world_size, "task": config.task}
    details["config"] = config.to_dict()
    if job.loaders is not None:
        details["data"] = describe_data(job.loaders)
    if config_text is not None:
        details["config_checksums"] = [text_checksum(config_text)]
    return describe_run(config.seed, **details)


def _speaker(fabric: Any, quiet: bool) -> Any:
    def say(message: str) -> None:
        if fabric.is_global_zero and not quiet:
            print(message, file=sys.stderr, flush=True)

    return say
