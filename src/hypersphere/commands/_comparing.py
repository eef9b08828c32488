"""Every config with every seed: what `hypersphere compare` and `hypersphere claims` train."""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypersphere._terminal import duration
from hypersphere.commands import _config
from hypersphere.commands._compare_arguments import Arguments
from hypersphere.commands._comparison import Method, better, metric_value, result_record, table
from hypersphere.commands._metrics import refuse_metric, usual_metric
from hypersphere.commands._output import check_output
from hypersphere.commands._recorded import is_recorded
from hypersphere.commands._yaml import parse_list
from hypersphere.registry import unknown_name
from hypersphere.training.campaign import Ended, PlannedRun, run_all
from hypersphere.training.config import Config
from hypersphere.training.own_parts import without_places
from hypersphere.training.run.checkpoint import write_atomically
from hypersphere.training.run.records import read_record, run_config

__all__ = ["Comparison", "make_folder", "seeded"]

# What two runs may differ in and still be the same run: where things are, and how many threads.
_PLACES = {
    "data": ("root", "workers"),
    "train": ("threads", "compile", "quiet"),
    "run": None,
    "fabric": None,
}
TUNING_SEED = 10_000  # not one of the seeds that count


class Comparison:
    """Every config with every seed; first the tuning runs, then those that count."""

    def __init__(self, arguments: Arguments, command: str) -> None:
        self.arguments, self.command = arguments, command
        shared = [*arguments.rest, "--run.report", "false"]
        options = arguments.options or [[] for _ in arguments.specs]
        # All configs are read before the first is trained: a typing error costs no hour.
        self.configs = [
            _config.read(spec, [*shared, *own])
            for spec, own in zip(arguments.specs, options, strict=True)
        ]
        for config in self.configs:
            _config.check(config)
        names = arguments.names or _labels(arguments.specs)
        for number, name in enumerate(names):
            if name in names[:number]:
                raise _config.ConfigError(
                    f"{arguments.specs[number]} is the second config with the name {name!r}: each "
                    f"one stands once, and files of one name are in folders of different names"
                )
        self.methods = [
            Method(name, spec, vars(config.dissertation))
            for name, spec, config in zip(names, arguments.specs, self.configs, strict=True)
        ]
        self.ended: dict[tuple[str, int], Ended] = {}
        self.known: dict[Path, Ended] = {}  # runs whose folders are elsewhere
        self.metric = arguments.metric or self._usual_metric()
        self.baseline = self._find_baseline()
        pairs = list(zip(self.methods, self.configs, strict=True))
        for method, config in pairs:
            for metric in self._metrics(method):
                refuse_metric(metric, config, method.name)
        self.grids = [self._grid(method, config) for method, config in pairs]
        self.tuning_seconds = 0.0
        self.began, self.done, self.fresh = time.monotonic(), 0, 0
        tuning = sum(len(grid) for grid in self.grids if len(grid) > 1)
        self.total = tuning + len(self.methods) * len(arguments.seeds)

    def run(self) -> None:
        """Train what is missing; the record is whole after every run."""
        make_folder(self.arguments.folder, "--folder")
        self._tune()
        runs: dict[Path, tuple[Method, int]] = {}
        planned = []
        # Seed by seed: an early stop leaves every method with the same seeds.
        for seed in self.arguments.seeds:
            for method, config in zip(self.methods, self.configs, strict=True):
                if method.failed:
                    continue
                place = self.arguments.folder / f"{method.name}-seed{seed}"
                run = self._plan(place, seeded(config, method.chosen, method.name, seed))
                planned.append(dataclasses.replace(run, name=f"{method.name}, seed {seed}"))
                _refuse_twins(runs.get(run.folder), method)
                runs[run.folder] = (method, seed)

        def note(run: PlannedRun, how: Ended) -> None:
            method, seed = runs[run.folder]
            self._see(run, how)
            self._take(method, seed, how)
            self._say(run.name, self.metric, method.last[seed], how)
            self._record()

        run_all(planned, self.arguments.jobs, note, self.known)

    def _see(self, run: PlannedRun, how: Ended) -> None:
        """Called with every run that has ended, of tuning too."""

    def _take(self, method: Method, seed: int, how: Ended) -> None:
        """Let a run count for its method."""
        for kind, values in (("last", method.last), ("best", method.best)):
            if kind in how.summary or not is_recorded(how):  # older records have no best one
                values[seed] = self._value(how, kind, self.metric, method.name)
        method.seconds[seed] = how.seconds
        self.ended[method.name, seed] = how

    def _tune(self) -> None:
        """For each method, the settings with the best value on held-out training samples."""
        trials: dict[Path, tuple[Method, dict[str, Any]]] = {}
        planned = []
        for method, config, grid in zip(self.methods, self.configs, self.grids, strict=True):
            for values in grid if len(grid) > 1 else []:
                text = ",".join(f"{key}={value}" for key, value in values.items())
                place = self.arguments.folder / "tuning" / f"{method.name}-{text}"
                run = self._plan(place, self._trial(config, values, method.name))
                planned.append(dataclasses.replace(run, name=f"{method.name}, {text}"))
                _refuse_twins(trials.get(run.folder), method)
                trials[run.folder] = (method, values)

        def note(run: PlannedRun, how: Ended) -> None:
            method, values = trials[run.folder]
            self._see(run, how)
            config = self.configs[self.methods.index(method)]
            metric = self._tuning_metric(config)
            kind = "best" if config.task == "graph" else "last"
            value = self._value(how, kind, metric, method.name)
            self.tuning_seconds += how.seconds
            method.tuning.append({"values": values, "metric": metric, "value": value})
            self._say(run.name, metric, value, how)
            self._write()

        run_all(planned, self.arguments.jobs, note, self.known)
        for method, grid in zip(self.methods, self.grids, strict=True):
            method.tuning.sort(key=lambda trial, grid=grid: grid.index(trial["values"]))  # type: ignore[misc]
            found = [trial for trial in method.tuning if trial["value"] is not None]
            if method.tuning and not found and self.arguments.divergence_counts:
                method.chosen = grid[0]  # nothing works: the seeds will show that
            elif method.tuning and not found:
                method.failed = True
                self.total -= len(self.arguments.seeds)
                told = "no run converged in tuning, so no seed is trained; try other values"
                print(f"{method.name}: {told}", file=sys.stderr, flush=True)
            if found:
                sign = 1 if better(found[0]["metric"]) == "lower" else -1
                method.chosen = min(found, key=lambda trial: sign * trial["value"])["values"]
        for method, grid in zip(self.methods, self.grids, strict=True):
            if len(grid) == 1:
                method.chosen = grid[0]
        if planned:
            self._write()

    def _trial(self, config: Config, values: dict[str, Any], name: str) -> Config:
        """The config of a run that tries some values of the tuned settings."""
        # A graph has validation nodes of its own.
        held = {} if config.task == "graph" else {"data.holdout": self.arguments.holdout}
        return seeded(config, {**values, **held}, name, TUNING_SEED)

    def _plan(self, place: Path, config: Config) -> PlannedRun:
        """A run of exactly this config: its file, and a folder that holds no other run."""
        place = self._place(place, config)
        file = place.parent / "configs" / f"{place.name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, _config.dump(config))
        plugins = [word for name in self.arguments.plugins for word in ("--plugin", name)]
        alone = self.arguments.jobs > 1 or self.arguments.one_thread
        threads = ["--train.threads", "1"] if alone else []
        return PlannedRun(place.name, place, file, (*plugins, *threads, "--train.quiet", "true"))

    def _place(self, place: Path, config: Config) -> Path:
        """Where a run goes: a folder that is empty or holds this very run."""
        _refuse_other(place, config)
        return place

    def _value(self, how: Ended, kind: str, metric: str, name: str) -> float | None:
        if how.diverged is not None:
            return None
        return metric_value(how.summary, kind, metric, name)

    def _say(self, name: str, metric: str, value: float | None, how: Ended) -> None:
        self.done += 1
        result = "not converged" if value is None else f"{metric} {value:.4f}"
        if how.before:
            return
        self.fresh += 1
        left = ""
        if self.done < self.total:
            pace = (time.monotonic() - self.began) / self.fresh
            left = f", about {duration(pace * (self.total - self.done))} left"
        line = f"run {self.done} of {self.total}: {name}: {result} ({how.seconds:.0f} s){left}"
        print(line, file=sys.stderr, flush=True)

    def _record(self) -> None:
        """Called after every run that counts."""
        self._write()

    def _write(self) -> None:
        """The table and comparison.json, of what has ended so far."""
        record = result_record(self.methods, self.metric, self.command, self.baseline)
        text = json.dumps(record, indent=1) + "\n"
        write_atomically(self.arguments.folder / "comparison.json", text)
        shown = table(self.methods, self.metric, self.baseline)
        write_atomically(self.arguments.folder / "comparison.txt", shown + "\n")

    def _metrics(self, method: Method) -> list[str]:
        """What is asked of the runs of a method."""
        return [self.metric]

    def _usual_metric(self) -> str:
        pairs = zip(self.configs, self.methods, strict=True)
        found = [usual_metric(config, method.name) for config, method in pairs]
        metrics = sorted({metric for metric, _ in found})
        if len(metrics) > 1:
            raise _config.ConfigError(
                f"the configs have different metrics ({', '.join(metrics)}): choose one with "
                f"--metric"
            )
        for said in [said for _, said in found if said][:1]:
            print(f"hypersphere compare: {said}", file=sys.stderr, flush=True)
        return metrics[0]

    def _tuning_metric(self, config: Config) -> str:
        if config.task == "graph":
            return "validation_accuracy"
        if self.arguments.tuning_metric is not None:
            return self.arguments.tuning_metric
        # Pairs of unseen classes are for the test: settings are chosen by the held-out samples.
        return "error" if self.metric.startswith("verification_") else self.metric

    def _find_baseline(self) -> Method | None:
        wanted = self.arguments.baseline
        if wanted is None:
            return None
        for method in self.methods:
            path, variants = _config.split_spec(method.spec)
            if wanted in (method.name, method.spec, path.stem, ",".join(variants), *variants[:1]):
                return method
        names = [method.name for method in self.methods]
        raise _config.ConfigError(str(unknown_name("baseline", wanted, names)))

    def _grid(self, method: Method, config: Config) -> list[dict[str, Any]]:
        """Every combination of the tuned values that concern a method."""
        keys: dict[str, list[Any]] = {}
        for text in self.arguments.tune:
            key, equals, values = text.partition("=")
            name, colon, own = key.rpartition(":")
            if not equals or not values or not own:
                raise _config.ConfigError(f"--tune takes KEY=V1,V2,...; got {text!r}")
            names = [other.name for other in self.methods]
            variants = {other.name: _config.split_spec(other.spec)[1] for other in self.methods}
            known = [*names, *(v for own_ones in variants.values() for v in own_ones)]
            if colon and name not in known:
                raise _config.ConfigError(
                    f"--tune {text}: {unknown_name('config', name, dict.fromkeys(known))}"
                )
            concerned = [method.name] if name in names else variants[method.name]
            if colon and name not in concerned:
                continue
            keys[own] = parse_list(values)
        grid = [dict(zip(keys, v, strict=True)) for v in itertools.product(*keys.values())]
        for combination in grid:
            _with_values(config, combination, method.name)  # a wrong key or value is an error now
        return grid


def seeded(config: Config, values: dict[str, Any], name: str, seed: int) -> Config:
    """The config with some of its settings changed, and with this seed."""
    return dataclasses.replace(_with_values(config, values, name), seed=seed)


def _with_values(config: Config, values: dict[str, Any], name: str) -> Config:
    """The config with some of its settings changed, by their dotted names."""
    if not values:
        return config
    settings = json.loads(json.dumps(config.to_dict()))
    for key, value in values.items():
        *path, last = key.split(".")
        section = settings
        for part in path:
            section = section.get(part) if isinstance(section, dict) else None
            if section is None:
                raise _config.ConfigError(f"{name} has no setting {key!r} to tune")
        section[last] = value
    try:
        return Config.from_dict(settings)
    except (TypeError, ValueError) as error:
        raise _config.ConfigError(f"{name}: {error}") from None


def _refuse_other(place: Path, config: Config) -> None:
    """ValueError if the folder holds a run of another config."""
    try:
        saved = run_config(read_record(place / "run.json"), place / "run.json")
    except FileNotFoundError:
        return
    saved = Config.from_dict(saved).to_dict()
    ours = json.loads(json.dumps(config.to_dict()))
    if _settings(json.loads(json.dumps(saved))) != _settings(ours):
        raise ValueError(f"{place} holds a run of another config: choose another --folder")


def _settings(values: dict[str, Any]) -> dict[str, Any]:
    """What makes a run: everything but places and threads."""
    values = without_places(values)
    for section, keys in _PLACES.items():
        if keys is None:
            values.pop(section, None)
        else:
            values[section] = {k: v for k, v in values[section].items() if k not in keys}
    return values


def _labels(specs: Sequence[str]) -> list[str]:
    """A short name for each config: the file's, with its folder only where needed to tell them
    apart.
    """
    paths = [_config.split_spec(spec) for spec in specs]
    short = ["-".join([path.stem, *variants]) for path, variants in paths]
    if len(set(short)) == len(short):
        return short
    folders = [path.resolve().parent.name for path, _ in paths]
    return [f"{folder}-{name}" for folder, name in zip(folders, short, strict=True)]


def _refuse_twins(other: tuple[Method, Any] | None, method: Method) -> None:
    """A folder holds the run of one method."""
    if other is not None:
        raise _config.ConfigError(
            f"{other[0].name} and {method.name} have the same settings, so that a run of one is a "
            "run of the other: leave one out"
        )


def make_folder(folder: Path, flag: str) -> None:
    """Make a folder that the command line names, unless it is there.

    Args:
        folder: the folder.
        flag: the option that names it.

    Raises:
        ConfigError: if it cannot be made, or belongs to a run or a gallery.
    """
    try:
        check_output(folder)
        for file in ("run.json", "gallery.json"):
            if (folder / file).exists():
                what = file.removesuffix(".json")
                raise ValueError(f"{folder} is the folder of a {what}: name another one")
        folder.mkdir(parents=True, exist_ok=True)
    except ValueError as error:
        raise _config.ConfigError(f"{flag}: {error}") from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise _config.ConfigError(
            f"{flag} {folder}: the folder cannot be made ({reason.lower()}); name a place where "
            f"you may write, with no file on its path"
        ) from None
