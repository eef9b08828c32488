"""`hypersphere sweep CONFIG.yaml --search head.m=1:4 ...`: settings by cross-validation, with
Optuna.
"""

from __future__ import annotations

import contextlib
import json
import math
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from hypersphere._optional import require
from hypersphere._terminal import begin, complain, duration
from hypersphere.commands._files import split_spec
from hypersphere.commands._numbers import read_value
from hypersphere.commands._yaml import ConfigError
from hypersphere.commands.plugins import import_plugin, split_plugins
from hypersphere.ranges import Inside, Range

USAGE = """usage: hypersphere sweep CONFIG.yaml[:VARIANT,...] --search KEY=SPACE ...
                         [--trials 20] [--folds 3] [--storage URL]
                         [--study NAME] [--section.key value ...]

SPACE is what may stand for the option KEY:
  1:4            whole numbers from 1 to 4
  0.1:0.9        numbers from 0.1 to 0.9
  1e-4:1e-1:log  numbers on a logarithmic scale
  a,b,c          one of these

  hypersphere sweep my.yaml --search head.m=1:4 \\
      --search model.angular=linear,cosine,sigmoid \\
      --search regularizers.mhe.hidden=0.01:100:log

Each trial trains --folds times on all but one part of the training set and is
scored on that part; the test set is never touched. Trials are kept in SQLite
(runs/sweep-NAME/sweep.db); any Optuna storage works, and several processes or
machines that name the same --storage and --study share the work. However a
sweep ends, the same command goes on with it: finished trials stay, one that was
interrupted or killed is no result and is tried again.

  --trials N       finished trials the study shall have (default: 20)
  --folds N        parts of the cross-validation (default: 3)
  --metric NAME    of the test (default: accuracy); errors, losses and distances
                   are minimized, everything else is maximized
  --minimize       less of the metric is better, whatever its name says
  --plugin MODULE  import parts of your own from a module or a .py file; may be
                   repeated

Options of the config: `hypersphere train CONFIG.yaml --help`.
"""


def main(argv: Sequence[str]) -> int:
    if any(a in ("-h", "--help") for a in argv):
        print(USAGE)
        return 0
    try:
        words, plugins = split_plugins(argv)
        spec, own, texts, rest = _arguments(words)
    except ConfigError as error:
        complain("sweep", error)
        return 2
    begin(f"reading {spec} ...", everywhere=True)
    from hypersphere.training.interrupt import Interrupted, raising
    from hypersphere.training.run.checkpoint import RunError

    try:
        with raising():
            for name in plugins:
                import_plugin(name)
            own["plugins"] = plugins
            return _run(spec, own, texts, rest)
    except Interrupted as stop:
        print(
            "hypersphere sweep: interrupted; finished trials are kept, and the same command goes "
            "on from here",
            file=sys.stderr,
        )
        return 128 + stop.signal
    except ConfigError as error:
        complain("sweep", error)
        return 2
    except (RunError, ValueError, FileNotFoundError) as error:
        complain("sweep", error)
        return 1


@dataclass(frozen=True)
class Space:
    """What may stand for an option.

    Args:
        ask: asks an Optuna trial for the value of a key.
        ends: its bounds, or all of its choices.
    """

    ask: Callable[[Any, str], Any]
    ends: tuple[Any, ...]


def parse_space(text: str) -> Space:
    """'1:4', '1e-3:1:log' or 'a,b' -> what Optuna chooses from.

    >>> parse_space("1:4").ends
    (1, 4)
    """
    if "," in text:
        choices = text.split(",")
        return Space(lambda t, key: t.suggest_categorical(key, choices), tuple(choices))
    parts = text.split(":")
    if len(parts) in (2, 3) and parts[2:] in ([], ["log"]):
        log = len(parts) == 3
        whole = all(p.lstrip("-").isdigit() for p in parts[:2])
        try:
            low, high = (int(p) if whole else float(p) for p in parts[:2])
        except ValueError:
            raise _no_space(text) from None
        if not (low in Range() and high in Range() and low <= high and (low > 0 or not log)):
            least = ", > 0 on a logarithmic scale" if log else ""
            raise ConfigError(f"{text!r} is no space: give finite numbers{least}, the lower first")
        if whole:
            return Space(lambda t, key: t.suggest_int(key, low, high, log=log), (low, high))
        return Space(lambda t, key: t.suggest_float(key, low, high, log=log), (low, high))
    raise _no_space(text)


def _no_space(text: str) -> ConfigError:
    return ConfigError(f"{text!r} is no space: give low:high, low:high:log, or a,b,c")


def _run(spec: str, own: dict[str, Any], texts: dict[str, str], rest: list[str]) -> int:
    from hypersphere.commands import _study
    from hypersphere.commands._comparison import better
    from hypersphere.commands._overrides import read_overrides
    from hypersphere.training.run.lock import FolderLock

    require("optuna", extra="sweep")
    for key in ("run.folder", "run.name"):
        if key in texts or key in read_overrides(rest):
            raise ConfigError(
                f"--{key} would change nothing: a sweep is in runs/sweep-STUDY, named by --study"
            )
    space = {key: parse_space(text) for key, text in texts.items()}
    # Wrong names and values are refused here, before the first trial.
    config = _check_spaces(spec, rest, space)
    path, variants = split_spec(spec)
    name = own.setdefault("study", "-".join([path.stem, *variants]))
    try:
        read_value("--study", name, Annotated[str, Inside()])
    except ValueError as error:
        raise ConfigError(str(error)) from None
    own["folds"], own["trials"] = _count(own, "folds", 2), _count(own, "trials", 1)
    folder = Path("runs") / f"sweep-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"config": _comparable(config), "search": texts}
    settings.update(folds=own["folds"], metric=own["metric"])
    # Workers that share a storage by its name share the work; others would do it twice.
    lock = FolderLock(folder, advice="let both name the same --storage, to share the work")
    with contextlib.nullcontext() if "storage" in own else lock:
        own.setdefault("shared", "storage" in own)
        own.setdefault("storage", f"sqlite:///{folder / 'sweep.db'}")
        minimize = "minimize" in own or better(own["metric"]) == "lower"
        study = _study.open_study(name, own["storage"], minimize, settings)
        _search(study, spec, rest, space, own, folder)
        command = [spec, *rest, *(word for name in own["plugins"] for word in ("--plugin", name))]
        return _tell(study, folder, own["storage"], own["metric"], own["folds"], command)


def _search(
    study: Any,
    spec: str,
    rest: list[str],
    space: dict[str, Space],
    own: dict[str, Any],
    folder: Path,
) -> None:
    """Trials until there are enough of them."""
    from hypersphere.commands import _study
    from hypersphere.training.diagnose import NotFinite
    from hypersphere.training.interrupt import Interrupted

    no_result = require("optuna", extra="sweep").TrialPruned
    folds, metric, trials = own["folds"], own["metric"], own["trials"]
    retried = _study.recover(study, folder / "runs")
    before = _study.finished(study)
    if before or retried:
        again = f"; {retried} interrupted, tried again" if retried else ""
        print(f"study {own['study']}: {before} of {trials} trials are finished{again}", flush=True)
    began = time.monotonic()

    def tell(result: str, shown: str) -> None:
        """The trial that has just ended, how many there are, and how long the others will take."""
        done = _study.finished(study) + 1
        left = ""
        if done < trials:  # those of other processes that share the study make it shorter
            pace = (time.monotonic() - began) / max(1, done - before)
            left = f", about {duration(pace * (trials - done))} left"
        print(f"trial {done} of {trials}: {result}  {shown}{left}", flush=True)

    def objective(trial: Any) -> float:
        _study.claim(trial)
        values = {key: found.ask(trial, key) for key, found in space.items()}
        shown = "  ".join(f"{k} {_short(v)}" for k, v in values.items())
        arguments = _with(rest, values)
        try:
            _checked(spec, rest, values)
        except ValueError as error:
            _check_spaces(spec, rest, space)  # stops here if it is the config that is wrong by now
            # Each value is in its range, and yet they do not go together.
            tell(f"refused ({error})", shown)
            raise no_result(str(error)) from None
        try:
            value = cross_validate(spec, arguments, folds, metric, folder / "runs")
        except Interrupted:
            trial.set_user_attr("interrupted", True)
            raise
        except NotFinite as error:
            tell("diverged", shown)
            raise no_result(str(error)) from None
        _study.seal(trial, value)
        tell(f"{metric} {value:.4f}", shown)
        return value

    while _study.finished(study) < trials:
        study.sampler = _study.next_sampler(study, own["shared"])
        study.optimize(objective, n_trials=1)


def _short(value: Any) -> str:
    """A number with the digits that tell trials apart; best.json has all of them."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _tell(
    study: Any, folder: Path, storage: str, metric: str, folds: int, command: list[str]
) -> int:
    """Say which trial is the best, and keep it as best.json."""
    from hypersphere.training.run.checkpoint import write_atomically

    if not any(t.state.name == "COMPLETE" for t in study.trials):
        raise ValueError(
            f"every one of {len(study.trials)} trials diverged or was refused: search elsewhere"
        )
    best = {"value": study.best_value, "parameters": study.best_params, "metric": metric}
    write_atomically(folder / "best.json", json.dumps(best, indent=2) + "\n")
    best_options = [word for k, v in study.best_params.items() for word in (f"--{k}", str(v))]
    print(f"\nbest {metric} {study.best_value:.4f} over {folds} folds; all trials: {storage}")
    print(f"train with it: {shlex.join(['hypersphere', 'train', *command, *best_options])}")
    return 0


def _arguments(argv: list[str]) -> tuple[str, dict[str, Any], dict[str, str], list[str]]:
    """(config, own options, spaces by key, options for every trial)."""
    if not argv or argv[0].startswith("--"):
        raise ConfigError(
            "name a config and what to search, as in `hypersphere sweep my.yaml --search "
            "head.m=1:4`; --help tells more"
        )
    spec = argv.pop(0)
    own: dict[str, Any] = {"trials": "20", "folds": "3", "metric": "accuracy"}
    space: dict[str, str] = {}
    rest: list[str] = []
    while argv:
        flag = argv.pop(0)
        name = flag.removeprefix("--")
        takes_value = name in ("search", "trials", "folds", "metric", "storage", "study")
        if takes_value and (not argv or argv[0].startswith("--") or not argv[0].strip()):
            raise ConfigError(f"{flag} needs a value")
        if flag == "--search":
            key, _, space[key] = argv.pop(0).partition("=")
        elif flag == "--minimize":
            own["minimize"] = True
        elif takes_value:
            own[name] = argv.pop(0)
        else:
            rest.append(flag)
    if not space:
        raise ConfigError("name at least one --search KEY=SPACE")
    return spec, own, space, rest


def _count(own: dict[str, Any], name: str, least: int) -> int:
    if not own[name].isdecimal() or int(own[name]) < least:
        raise ConfigError(f"--{name} takes a whole number >= {least}; got {own[name]!r}")
    return int(own[name])


def _comparable(config: Any) -> dict[str, Any]:
    """The settings that decide a trial's value; where data and runs are does not."""
    from hypersphere.training.own_parts import without_places

    settings = without_places(config.to_dict())
    for section in ("fabric", "run", "dissertation"):
        del settings[section]
    for section, keys in {
        "data": ("root", "workers"),
        "train": ("quiet", "threads", "compile"),
    }.items():
        for key in keys:
            del settings[section][key]
    return settings


def _with(rest: Sequence[str], values: dict[str, Any]) -> list[str]:
    return [*rest, *(f"--{key}={value}" for key, value in values.items())]


def _check_spaces(spec: str, rest: Sequence[str], space: dict[str, Space]) -> Any:
    """The config of a first trial; the ends of each space make configs, or if an option may only
    come near to its end (a momentum below 1), the numbers next to them.
    """
    try:
        return _check_ends(spec, rest, {key: found.ends for key, found in space.items()})
    except ValueError:
        with contextlib.suppress(ValueError):
            return _check_ends(spec, rest, {k: _just_inside(s.ends) for k, s in space.items()})
        raise


def _just_inside(ends: tuple[Any, ...]) -> tuple[Any, ...]:
    if not isinstance(ends[0], float):
        return ends
    return math.nextafter(ends[0], ends[1]), math.nextafter(ends[1], ends[0])


def _check_ends(spec: str, rest: Sequence[str], ends: dict[str, tuple[Any, ...]]) -> Any:
    """Each end of a space makes a config, beside the first or the last ends of the others (a begin
    that is late for one end of another space may suit its last).
    """
    first, last = ({key: found[i] for key, found in ends.items()} for i in (0, -1))
    config = _checked(spec, rest, first)
    for key, found in ends.items():
        for end in found[1:]:
            try:
                _checked(spec, rest, {**first, key: end})
            except ValueError:
                if len(ends) == 1:
                    raise
                _checked(spec, rest, {**last, key: end})
    return config


def _checked(spec: str, rest: Sequence[str], values: dict[str, Any]) -> Any:
    """The config of a trial that could start."""
    from hypersphere.commands import _config

    config = _config.read(spec, _with(rest, values))
    _config.check(config)
    return config


def cross_validate(
    spec: str, arguments: Sequence[str], folds: int, metric: str, folder: Path
) -> float:
    """Mean of the last test value over folds of the training part."""
    from hypersphere.commands import _config, _study
    from hypersphere.training.crossval import cross_validated

    config = _config.read(spec, [*arguments, "--run.report", "false", "--train.quiet", "true"])
    values = cross_validated(config, folds, folder, _study.owner())
    if metric not in values[0]:
        known = ", ".join(k for k in values[0] if k != "step")
        raise ValueError(f"the test has no {metric!r}; it has: {known}")
    return sum(v[metric] for v in values) / len(values)
