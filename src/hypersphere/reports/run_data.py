"""Reads a run folder for a report: whatever is there is used, whatever is missing is named."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .._reading import Unreadable, read_sealed, read_text
from ..data.npz import read_npz
from ..training.run.records import changed_config, changed_file

__all__ = ["RunData", "flatten", "read_run"]

FILES = ("run.json", "config.yaml", "metrics.jsonl", "summary.json", "features.npz")


@dataclass
class RunData:
    """One run as the report sees it.

    Args:
        name: of the run folder.
        path: the run folder.
        config_text: the text of config.yaml.
        config: the same, parsed.
        record: run.json.
        summary: summary.json.
        metrics: the lines of metrics.jsonl.
        features: the arrays of features.npz.
        results: name -> the other JSON files, such as those of `hypersphere evaluate`.
        missing: in words, what could not be read.
    """

    name: str
    path: Path
    config_text: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    record: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    features: dict[str, np.ndarray] = field(default_factory=dict)
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def series(self, split: str, key: str) -> tuple[list[float], list[float]]:
        """One metric over the run.

        Args:
            split: "train" or "test".
            key: the metric.

        Returns:
            Steps and values, in the order they were written.
        """
        points = [
            (row["step"], row[key])
            for row in self.metrics
            if row.get("split") == split and _is_number(row.get(key)) and "step" in row
        ]
        return [p[0] for p in points], [p[1] for p in points]

    def keys(self, split: str) -> list[str]:
        """The scalar metrics of a split.

        Args:
            split: "train" or "test".

        Returns:
            Their names, in order of appearance.
        """
        seen: dict[str, None] = {}
        for row in self.metrics:
            if row.get("split") == split:
                seen.update(dict.fromkeys(k for k, v in row.items() if _is_number(v)))
        return [k for k in seen if k not in ("step", "time")]

    def layers(self, key: str = "energy") -> dict[str, tuple[list[float], list[float]]]:
        """A per-layer monitor over the run.

        Args:
            key: the monitor, such as "energy".

        Returns:
            layer -> (steps, values).
        """
        result: dict[str, tuple[list[float], list[float]]] = {}
        for row in self.metrics:
            if isinstance(row.get(key), Mapping):
                for layer, value in row[key].items():
                    if _is_number(value):
                        steps, values = result.setdefault(layer, ([], []))
                        steps.append(row.get("step", len(steps)))
                        values.append(value)
        return result


def read_run(path: str | Path, parse_config: Callable[[str], Any] | None = None) -> RunData:
    """Read what there is in a run folder. Only a folder without any file of a run is an error.

    Args:
        path: the run folder.
        parse_config: from the text of config.yaml to a dictionary (the command passes a YAML
            reader). Default: the config of run.json is used.

    Returns:
        The run, with a list of what could not be read.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise FileNotFoundError(
            f"no run folder at {folder}: expected a folder written by `hypersphere train`"
        )
    if not any(os.path.lexists(folder / name) for name in FILES):
        raise FileNotFoundError(
            f"no run in {folder}: it has none of {', '.join(FILES)}, which `hypersphere train` "
            f"writes"
        )
    run = RunData(name=folder.resolve().name, path=folder)
    run.record = _json(folder / "run.json", run.missing)
    run.summary = _summary(_json(folder / "summary.json", run.missing), run.missing)
    run.metrics = _lines(folder / "metrics.jsonl", run.missing)
    run.features = _arrays(folder / "features.npz", run.missing)
    recorded = run.summary.get("files")
    for name, entry in recorded.items() if isinstance(recorded, dict) else ():
        if name in FILES and (change := changed_file(folder / name, entry)):
            run.missing.append(change)
    settings = run.record.get("config")
    changed = changed_config(folder / "config.yaml", run.record)
    if changed:
        kept = "; the settings shown are those of run.json" if isinstance(settings, dict) else ""
        run.missing.append(changed + kept)
    run.config_text = _text(folder / "config.yaml", run.missing)
    if run.config_text and parse_config is not None and not (changed and settings):
        try:
            parsed = parse_config(run.config_text)
            run.config = parsed if isinstance(parsed, dict) else {}
        except Exception as error:  # any reader, any error: the page goes on without it
            run.missing.append(f"config.yaml could not be parsed: {error}")
        if not run.config and not run.config_text.strip():
            run.missing.append("config.yaml is empty")
    if not run.config and isinstance(settings, dict):
        run.config = settings  # the same settings, as run.json keeps them
    elif isinstance(settings, dict) and (key := _first_difference(run.config, settings)):
        run.missing.append(f"config.yaml differs from the config in run.json: {key}")
    for extra in sorted(folder.glob("*.json")):
        if extra.name not in ("run.json", "summary.json"):
            result = _json(extra, run.missing)
            if result:
                run.results[extra.stem] = result
    return run


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested config as one level: {"a": {"b": 1}} -> {"a.b": 1}.

    Args:
        config: name -> value or another such mapping.
        prefix: put before each name.

    Returns:
        dotted name -> value.

    >>> flatten({"head": {"m": 4, "name": "asoftmax"}, "seed": 0})
    {'head.m': 4, 'head.name': 'asoftmax', 'seed': 0}
    """
    result: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            result.update(flatten(value, name + "."))
        else:
            result[name] = value
    return result


def _is_number(value: Any) -> bool:
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) < 1 << 63  # what an array can hold
    return isinstance(value, float)


def _first_difference(config: Mapping[str, Any], recorded: Mapping[str, Any]) -> str:
    """The first setting that two records of one config give differently."""
    one, other = (flatten(values) for values in (config, recorded))
    for key in {**one, **other}:
        if key.startswith("parts.") or key in ("parts", "train.steps", "train.epochs"):
            continue  # of these config.yaml has only what it needs
        if one.get(key) != other.get(key) and not (one.get(key) == {} or other.get(key) == {}):
            return key
    return ""


def _text(path: Path, missing: list[str]) -> str:
    try:
        return read_text(path)
    except FileNotFoundError:
        missing.append(f"{path.name} is not there")
    except Unreadable as error:
        missing.append(str(error).replace(str(path), path.name))
    return ""


def _json(path: Path, missing: list[str]) -> dict[str, Any]:
    try:
        return read_sealed(path)
    except FileNotFoundError:
        missing.append(f"{path.name} is not there")
    except Unreadable as error:
        missing.append(str(error).replace(str(path), path.name))
    return {}


def _summary(content: dict[str, Any], missing: list[str]) -> dict[str, Any]:
    """Entries of the type that they should have."""
    kept = {}
    for key, value in content.items():
        kind: Any = dict if key in ("last", "best", "verification") else object
        if isinstance(value, kind) and (key != "seconds" or _is_number(value)):
            kept[key] = value
        else:
            missing.append(f"summary.json: {key} is damaged")
    return kept


def _lines(path: Path, missing: list[str]) -> list[dict[str, Any]]:
    rows, bad = [], 0
    for line in _text(path, missing).splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            bad += 1
            continue
        if isinstance(row, dict) and _is_number(row.get("step")) and math.isfinite(row["step"]):
            rows.append(row)
        else:
            bad += 1
    if bad:
        missing.append(f"{path.name}: {bad} damaged line{'s' if bad > 1 else ''} left out")
    return rows


def _arrays(path: Path, missing: list[str]) -> dict[str, np.ndarray]:
    try:
        arrays = read_npz(path)
    except FileNotFoundError:
        missing.append(f"{path.name} is not there: no picture of the features")
        return {}
    except ValueError as error:
        missing.append(f"{path.name} is damaged: {error}")
        return {}
    features, labels = arrays.get("features"), arrays.get("labels")
    fits = (
        features is not None
        and labels is not None
        and features.ndim == 2
        and labels.shape == features.shape[:1]
        and features.size > 0
        and features.dtype.kind in "fiu"
        and labels.dtype.kind in "iu"
    )
    if not fits:
        missing.append(f"{path.name} holds no matching features (n, d) and labels (n,)")
        return {}
    assert features is not None
    if not np.isfinite(features).all():
        missing.append(f"{path.name}: rows with NaN or infinite features left out")
        keep = np.isfinite(features).all(1)
        arrays = {k: v[keep] if v.ndim and len(v) == len(keep) else v for k, v in arrays.items()}
    return arrays if len(arrays["features"]) else {}
