"""Reads a run folder for a report: whatever is there is used, whatever is missing is named."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["RunData", "flatten", "read_run"]


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
    """Read what there is in a run folder. Only a path that is no folder at all is an error.

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
    run = RunData(name=folder.resolve().name, path=folder)
    run.record = _json(folder / "run.json", run.missing)
    run.summary = _json(folder / "summary.json", run.missing)
    run.metrics = _lines(folder / "metrics.jsonl", run.missing)
    run.features = _arrays(folder / "features.npz", run.missing)
    run.config_text = _text(folder / "config.yaml", run.missing)
    if run.config_text and parse_config is not None:
        try:
            parsed = parse_config(run.config_text)
            run.config = parsed if isinstance(parsed, dict) else {}
        except Exception as error:  # any reader, any error: the page goes on without it
            run.missing.append(f"config.yaml could not be parsed: {error}")
    if not run.config and isinstance(run.record.get("config"), dict):
        run.config = run.record["config"]  # the same settings, as run.json keeps them
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
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _text(path: Path, missing: list[str]) -> str:
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        missing.append(f"{path.name} is not there")
    except (OSError, UnicodeDecodeError) as error:
        missing.append(f"{path.name} cannot be read: {error}")
    return ""


def _json(path: Path, missing: list[str]) -> dict[str, Any]:
    text = _text(path, missing)
    if not text:
        return {}
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        missing.append(f"{path.name} is damaged: {error}")
        return {}
    if not isinstance(value, dict):
        missing.append(f"{path.name} should hold an object, it holds a {type(value).__name__}")
        return {}
    return value


def _lines(path: Path, missing: list[str]) -> list[dict[str, Any]]:
    rows, bad = [], 0
    for line in _text(path, missing).splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            bad += 1
            continue
        if isinstance(row, dict):
            rows.append(row)
        else:
            bad += 1
    if bad:
        missing.append(f"{path.name}: {bad} damaged line{'s' if bad > 1 else ''} left out")
    return rows


def _arrays(path: Path, missing: list[str]) -> dict[str, np.ndarray]:
    if not path.exists():
        missing.append(f"{path.name} is not there: no picture of the features")
        return {}
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, KeyError) as error:
        missing.append(f"{path.name} is damaged: {error}")
        return {}
    features, labels = arrays.get("features"), arrays.get("labels")
    if features is None or labels is None or features.ndim != 2 or len(features) != len(labels):
        missing.append(f"{path.name} holds no matching features (n, d) and labels (n,)")
        return {}
    if not np.isfinite(features).all():
        missing.append(f"{path.name}: rows with NaN or infinite features left out")
        keep = np.isfinite(features).all(1)
        arrays = {k: v[keep] if len(v) == len(keep) else v for k, v in arrays.items()}
    return arrays if len(arrays["features"]) else {}
