"""Config files: a file, the base it builds on, and its variants, merged key by key."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hypersphere.commands._yaml import ConfigError, read_yaml
from hypersphere.registry import unknown_name

__all__ = ["load_file", "merge", "recipe_root", "renamed", "split_spec", "variants_of"]

# Sections that name one part, whose options are its own.
DEFAULT_NAMES = {"model": "cnn9", "head": "softmax"}
# What sections were called in earlier versions.
FORMER_NAMES = {"thesis": "dissertation"}


def split_spec(spec: str) -> tuple[Path, list[str]]:
    """The file and the variants of "a/b.yaml:mhe,cpu".

    Args:
        spec: a path, with the names of variants behind a colon.

    Returns:
        The path and the names.

    >>> split_spec("recipes/x.yaml:mhe,cpu")[1]
    ['mhe', 'cpu']
    """
    path, _, variants = spec.partition(".yaml:")
    if variants:
        return Path(path + ".yaml"), variants.split(",")
    return Path(spec), []


def variants_of(path: Path) -> list[str]:
    """The names of a file's variants, those of its base included.

    Args:
        path: a config file.
    """
    return list(_read_file(path)[1])


def load_file(path: Path, variants: Sequence[str] = ()) -> dict[str, Any]:
    """The settings of a file with its base and the chosen variants merged in.

    Args:
        path: a config file.
        variants: names of its variants, in the order in which they are laid over it. A variant may
            have ``variants`` of its own: further changes for when one of that name comes after it.

    Returns:
        The sections.

    Raises:
        ConfigError: if a file cannot be read, or a variant is not there.
    """
    settings, known = _read_file(path)
    own: dict[str, Any] = {}  # what the chosen variants say about others that are laid over them
    for name in variants:
        if name not in known:
            raise ConfigError(str(unknown_name(f"variant of {path.name}", name, known)))
        changes = dict(known[name] or {})
        inner = changes.pop("variants", None) or {}
        settings = merge(merge(settings, changes), own.get(name) or {})
        own = {k: merge(own.get(k) or {}, inner.get(k) or {}) for k in [*own, *inner]}
    return settings


def _read_file(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(settings, variants) of a file, laid over those of its bases; not to be changed."""
    chain: list[tuple[Path, int]] = []
    step: Path | None = _shipped(path)
    while step is not None:
        changed = _time_of_change(step)
        if step.resolve() in [seen.resolve() for seen, _ in chain]:
            names = " -> ".join(str(seen) for seen, _ in chain)
            raise ConfigError(f"{names} -> {step}: a base that builds on itself")
        chain.append((step, changed))
        base = _parsed(step, changed)[0]
        step = None if base is None else _shipped(step.parent / base)
    return _merged(tuple(chain))


def _shipped(path: Path) -> Path:
    """The path, or the shipped recipe of that name, which is found from anywhere."""
    if path.parts[:1] == ("recipes",) and not path.exists():
        return recipe_root().joinpath(*path.parts[1:])
    return path


def _time_of_change(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        raise ConfigError(f"there is no config {path}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None


@functools.lru_cache(maxsize=256)  # a table is one file with many variants, each read by itself
def _merged(chain: tuple[tuple[Path, int], ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    settings: dict[str, Any] = {}
    variants: dict[str, Any] = {}
    for path, changed in reversed(chain):
        _, content, own = _parsed(path, changed)
        settings = merge(settings, content)
        variants = {
            name: merge(variants.get(name) or {}, own.get(name) or {}) for name in [*variants, *own]
        }
    return settings, variants


@functools.lru_cache(maxsize=256)
def _parsed(path: Path, changed: int) -> tuple[str | None, dict[str, Any], dict[str, Any]]:
    """(base, settings, variants) of one file."""
    content = dict(read_yaml(path))
    base, variants = content.pop("base", None), content.pop("variants", None) or {}
    if base is not None and not (isinstance(base, str) and base.strip()):
        raise ConfigError(f"{path}: base is the path of another config; got {base!r}")
    if not isinstance(variants, dict):
        raise ConfigError(
            f"{path}: variants is a section of names, each with changes; got {variants!r}"
        )
    for name, changes in variants.items():
        if changes is not None and not isinstance(changes, dict):
            raise ConfigError(f"{path}: the variant {name!r} is a set of changes; got {changes!r}")
    # A run's record has every key; a config that someone writes gives one of the two.
    if not (path.parent / "run.json").is_file():
        for name, part in {"": content, **variants}.items():
            check_length((part or {}).get("train"), f"variant {name!r} of {path}" if name else path)
    return base, renamed(content), {name: renamed(part or {}) for name, part in variants.items()}


def check_length(train: Any, place: object) -> None:
    """Refuse steps and epochs beside each other: they say the same thing twice.

    Args:
        train: the section ``train`` of one level.
        place: what a message calls that level.
    """
    if isinstance(train, Mapping) and None not in (train.get("steps"), train.get("epochs")):
        raise ConfigError(f"{place} gives both train.steps and train.epochs: leave one of them out")


def renamed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with the sections' names of this version.

    Args:
        settings: sections, some of them perhaps under an earlier name.

    >>> renamed({"thesis": {"row": "a"}})
    {'dissertation': {'row': 'a'}}
    """
    for old, new in FORMER_NAMES.items():
        if old in settings and new in settings:
            raise ConfigError(f"{old} is the earlier name of {new}: keep one of the two sections")
    return {FORMER_NAMES.get(key, key): value for key, value in settings.items()}


def recipe_root() -> Path:
    """The shipped recipes: in the installed package, or at the top of a checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "recipes"
    return inside if inside.is_dir() else package.parents[1] / "recipes"


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with changes laid over them, key by key.

    A section that names another part (another head, another model) starts afresh: the options of
    the old one are not its own.

    Args:
        base: sections.
        changes: sections or parts of them; null replaces a value, too.

    Returns:
        New sections.

    >>> merge({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}})
    {'a': {'b': 3, 'c': 2}}
    >>> merge({"head": {"name": "a_softmax", "m": 4}}, {"head": {"name": "softmax"}})
    {'head': {'name': 'softmax'}}

    Another data set keeps how it is served, but not the options of the other's reader:

    >>> merge({"data": {"name": "lfw", "batch_size": 8, "options": {"people": 10}}},
    ...       {"data": {"name": "mnist"}})
    {'data': {'name': 'mnist', 'batch_size': 8}}

    Steps replace epochs, and epochs steps:

    >>> merge({"train": {"epochs": 5, "keep": 1}}, {"train": {"steps": 60}})
    {'train': {'keep': 1, 'steps': 60}}
    """
    result = dict(base)
    for key, value in changes.items():
        old = result.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            renamed = key in DEFAULT_NAMES and value.get("name", old.get("name")) != old.get("name")
            kept = {} if renamed else dict(old)
            if key == "data" and value.get("name", old.get("name")) != old.get("name"):
                kept.pop("options", None)
            if key == "train":
                for one, other in (("steps", "epochs"), ("epochs", "steps")):
                    if value.get(one) is not None and other not in value:
                        kept.pop(other, None)
            result[key] = merge(kept, value)
        else:
            result[key] = value
    return result
