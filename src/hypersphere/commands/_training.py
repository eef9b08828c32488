"""What `hypersphere train` does: read the config, choose the folder, train, tell."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypersphere._terminal import columns_of, complain, hanging, printable, wrapped
from hypersphere.commands import _config
from hypersphere.commands._help import help_text
from hypersphere.commands._memory import keep_memory
from hypersphere.commands._overrides import read_overrides
from hypersphere.commands._train_arguments import TrainArguments, is_first_process
from hypersphere.commands._unused import refuse_unused_options
from hypersphere.commands.plugins import import_plugin
from hypersphere.training.own_parts import plugins_of
from hypersphere.training.progress import is_share


def run(arguments: TrainArguments, default: Mapping[str, Any], begun: bool) -> int:
    """Do what the command line asks for.

    Args:
        arguments: the command line.
        default: the sections of a run without a config.
        begun: whether the first words are said.

    Returns:
        The exit code.
    """
    from hypersphere.training.campaign import FOLDER_TAKEN
    from hypersphere.training.diagnose import NotFinite
    from hypersphere.training.run.checkpoint import RunError
    from hypersphere.training.run.lock import FolderInUse

    try:
        return _run(arguments, default, begun)
    except _config.ConfigError as error:
        complain("train", error)
        return 2
    except (RunError, NotFinite, ValueError, FileNotFoundError, PermissionError) as error:
        complain("train", error)
        return FOLDER_TAKEN if isinstance(error, FolderInUse) else 1


def _run(arguments: TrainArguments, default: Mapping[str, Any], begun: bool) -> int:
    for plugin in arguments.plugins:
        import_plugin(plugin)
    if arguments.print_schema:
        from hypersphere.commands._schema import config_schema

        print(json.dumps(config_schema(), indent=1))
        return 0
    spec, resume, rest = arguments.spec, arguments.resume, arguments.rest
    elsewhere = read_overrides(rest).get("run.folder")
    if isinstance(resume, str) and elsewhere is not None and Path(elsewhere) != Path(resume):
        raise _config.ConfigError(
            f"--resume goes on in {resume}, and --run.folder names {elsewhere}: leave --run.folder "
            f"out (--train.init_from {resume} starts a new run from its weights)"
        )
    if isinstance(resume, str):
        _config.require_plugins(Path(resume))
        spec = spec or _config_of_run(Path(resume))
    defaults = default if spec is None else None
    if arguments.topic:
        topic = arguments.topic if isinstance(arguments.topic, str) else ""
        print(help_text(spec, rest, defaults, topic))
        return 0
    config = _config.read(spec, rest, defaults=defaults, variants=arguments.variants)
    text = _config.dump(config)
    if arguments.print_config:
        print(text, end="")
        return 0
    refuse_unused_options(config, read_overrides(rest))
    _config.check(config)
    folder = choose_folder(config, spec, resume)
    keep_memory()
    return train_and_tell(config, folder, resume is not None, text, begun)


def _config_of_run(folder: Path) -> str:
    """The config that a run goes on with; one that is not what the run wrote is refused."""
    from hypersphere.training.run.records import changed_config, read_record

    path = folder / "config.yaml"
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no run folder {folder}")
    if (folder / "run.json").exists() and changed_config(path, read_record(folder / "run.json")):
        raise ValueError(
            f"{path} is damaged or was changed after the run wrote it: put it back as it was "
            f"(run.json holds the same settings under 'config'), and give what is to change as "
            f"options, such as --train.steps 2000"
        )
    return str(path)


def choose_folder(config: Any, spec: str | None, resume: bool | str | None) -> Path:
    """The folder of this run: given, the newest runs/NAME to resume, or a new one."""
    from hypersphere.training.run.folder import new_folder, newest_folder
    from hypersphere.training.run.lock import FolderLock

    if isinstance(resume, str):
        return Path(resume)
    if config.run.folder is not None:
        folder = Path(config.run.folder)
        if resume is None and (folder / "run.json").exists() and is_first_process():
            lock = FolderLock(folder)
            if lock.is_held():
                lock.acquire()  # says who is training in it
                lock.release()
            raise ValueError(f"{folder} holds a run: continue it with --resume, or choose another")
        return folder
    name = config.run.name
    if name is None:
        path, variants = _config.split_spec(spec or f"{config.data.name}.yaml")
        name = "-".join([path.stem, *variants])
    base = Path("runs") / name
    return newest_folder(base) if resume else _agreed(new_folder, base)


def _agreed(choose: Any, base: Path) -> Path:
    """One choice for all processes of a run: the first makes it, Fabric's children read it."""
    key = "HYPERSPHERE_RUN_FOLDER"
    if key not in os.environ or is_first_process():
        os.environ[key] = str(choose(base))
    return Path(os.environ[key])


def train_and_tell(config: Any, folder: Path, resume: bool, text: str, begun: bool) -> int:
    """Train, then say what came out and where it is."""
    from hypersphere.training.baseline import gain_over
    from hypersphere.training.distributed import make_fabric
    from hypersphere.training.processes import end_processes
    from hypersphere.training.run.checkpoint import RunError
    from hypersphere.training.run.folder import RunFolder

    try:
        fabric = make_fabric(**vars(config.fabric))
    except RunError:  # a process ended
        raise
    except (TypeError, ValueError, RuntimeError) as error:  # e.g. an accelerator that is not there
        raise _config.ConfigError(f"fabric: {error}") from error
    if not begun and fabric.is_global_zero and not config.train.quiet:
        print(f"loading {config.data.name} ...", file=sys.stderr, flush=True)
    if fabric.world_size > 1:
        with fabric.meeting.exchange():
            folder = Path(fabric.broadcast(str(folder)))
    began = time.perf_counter()
    try:
        outcome, twin = _train_both(config, folder, resume, text, fabric)
    except KeyboardInterrupt:  # outside of the loop, which saves first: see `interrupt.py`
        if not (fabric.is_global_zero and (folder / "run.json").exists()):
            raise
        print(_advice(config, folder))
        return 128 + signal.SIGINT
    if fabric.world_size > 1:
        end_processes()
    if not fabric.is_global_zero:
        return 0 if outcome.interrupted is None else 128 + outcome.interrupted
    if outcome.interrupted is not None:
        stopped = outcome if twin is None else twin
        print(_advice(config, outcome.folder, f" at step {stopped.step}, saved"))
        return 128 + outcome.interrupted
    gain = None
    if twin is not None:
        gain = gain_over(config, outcome.verification, twin.verification)
        RunFolder(outcome.folder).json("baseline.json", gain.record())
    print(_results(outcome, gain, time.perf_counter() - began))
    if config.run.report:
        print(_report(outcome.folder))
    return 0


def _train_both(config: Any, folder: Path, resume: bool, text: str, fabric: Any) -> tuple[Any, Any]:
    """The run and, where it is wanted, the plain network beside it."""
    from hypersphere.training.baseline import FOLDER, plain_twin
    from hypersphere.training.job import train

    loud = fabric.is_global_zero and not config.train.quiet
    outcome = train(config, folder, resume, text, fabric)
    twin = None
    if config.run.baseline and outcome.interrupted is None and outcome.verification is not None:
        if loud:
            print("the plain network, for comparison:", file=sys.stderr, flush=True)
        plain = plain_twin(config)
        beside = outcome.folder / FOLDER
        twin = train(plain, beside, (beside / "run.json").exists(), _config.dump(plain), fabric)
        outcome.interrupted = twin.interrupted
    return outcome, twin


def _advice(config: Any, folder: Path, where: str = "") -> str:
    """What became of an interrupted run, and the command that goes on with it, in one line."""
    plugins = [word for name in plugins_of(config) for word in ("--plugin", name)]
    command = ["hypersphere", "train", "--resume", str(folder), *plugins]
    text = f"stopped{where}; continue with: {shlex.join(command)}"
    return wrapped(text, columns_of(sys.stdout) - 1) if sys.stdout.isatty() else text


def _results(outcome: Any, gain: Any, seconds: float) -> str:
    lines = []
    for name, record in (("last", outcome.last), ("best", outcome.best)):
        values = "  ".join(
            f"{k} {v:.2%}" if is_share(k) else f"{k} {v:.4f}"
            for k, v in record.items()
            if isinstance(v, float)
        )
        lines.append(f"{name:<5} step {record.get('step', 0)}: {values}")
    if outcome.verification is not None:
        step = outcome.last.get("step", 0)
        lines += ["", f"verification of classes never trained (last weights, step {step}):"]
        lines += [str(outcome.verification)]
    if gain is not None:
        lines += ["", str(gain), "", hanging("", gain.sentence())]
    lines += ["", f"{seconds:.1f} s; everything is in {printable(outcome.folder)}"]
    return "\n".join(lines)


def _report(folder: Path) -> str:
    try:
        from hypersphere.reports import write_page
    except ImportError:
        return "no report page: it needs `pip install 'torch-hypersphere[report]'`"
    try:
        return f"to see it, open {write_page(folder)} in a browser"
    except ModuleNotFoundError as error:
        return f"no report page: {error}"
