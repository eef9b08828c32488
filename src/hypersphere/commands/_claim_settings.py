"""The settings of a claim's runs: which of them decide on the outcome, and how two differ."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from hypersphere.training.config import Config

__all__ = ["difference", "fingerprint", "outcome", "settings_of"]


def fingerprint(config: Config) -> str:
    """A name for the settings that decide on the outcome of a run."""
    text = json.dumps(outcome(settings_of(config.to_dict())), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def outcome(values: dict[str, Any]) -> dict[str, Any]:
    """The settings that decide on the outcome of a run."""
    for section, keys in (("train", ("threads", "quiet", "compile")), ("data", ("workers",))):
        kept = values.get(section, {})
        values = {**values, section: {k: v for k, v in kept.items() if k not in keys}}
    if values["schedule"]["name"] == "cosine":  # the other settings are of other schedules
        values["schedule"] = {k: values["schedule"][k] for k in ("name", "warmup", "end")}
    return values


def settings_of(values: dict[str, Any]) -> dict[str, Any]:
    """Settings without places, and without what says where the text's number stands."""
    kept = {k: v for k, v in values.items() if k not in ("run", "fabric", "dissertation", "parts")}
    kept["data"] = {k: v for k, v in kept["data"].items() if k != "root"}
    plain: dict[str, Any] = json.loads(json.dumps(kept))
    return plain


def difference(base: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """What `other` has in place of the settings of `base`, by section."""
    found: dict[str, Any] = {}
    for key in dict.fromkeys([*base, *other]):
        one, two = base.get(key), other.get(key)
        if isinstance(one, dict) and isinstance(two, dict):
            inner = difference(one, two)
            if inner:
                found[key] = inner
        elif one != two:
            found[key] = two
    return found
