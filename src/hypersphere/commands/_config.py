"""YAML and command line -> `training.Config`: the only place that knows either.

    hypersphere train FILE.yaml[:variant,variant...] [--section.key value ...]

A file may name a `base` file it builds on and carry `variants`, named sets of changes; both are
merged key by key, and null removes a key. The names in the merged settings decide which options
exist (each head has its own), then jsonargparse checks every value against the type in the
constructor's signature.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hypersphere._optional import require
from hypersphere.training.config import Config
from hypersphere.training.parts import CHANGES, REQUIRED, options, unknown_name

__all__ = ["ConfigError", "dump", "load_file", "read", "split_spec"]

FIXED = (
    "data",
    "optimizer",
    "schedule",
    "train",
    "few_shot",
    "gan",
    "fabric",
    "run",
    "thesis",
)
NAMED = ("regularizers", "hooks")
# Dictionaries whose keys the constructor checks.
FREE = ("data.options", "head.annealing", "gan.generator")
DEFAULT_NAMES = {"model": "cnn9", "head": "softmax"}


class ConfigError(ValueError):
    """The config or the command line is wrong; the message says where, with the nearest name."""


def split_spec(spec: str) -> tuple[Path, list[str]]:
    """'a/b.yaml:mhe,cpu' -> (a/b.yaml, [mhe, cpu]).

    >>> split_spec("recipes/x.yaml:mhe,cpu")[1]
    ['mhe', 'cpu']
    """
    path, _, variants = spec.partition(".yaml:")
    if variants:
        return Path(path + ".yaml"), variants.split(",")
    return Path(spec), []


def variants_of(path: Path) -> list[str]:
    """The names of a file's variants, those of its base included."""
    return list(_read_file(path)[1])


def load_file(path: Path, variants: Sequence[str] = ()) -> dict[str, Any]:
    """The settings of a file with its base and the chosen variants merged in."""
    settings, known = _read_file(path)
    for name in variants:
        if name not in known:
            raise ConfigError(str(unknown_name(f"variant of {path.name}", name, known)))
        settings = merge(settings, known[name] or {})
    return settings


def _read_file(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(settings, variants) of a file, laid over those of its base; not to be changed."""
    if not path.exists() and path.parts[:1] == ("recipes",):
        path = recipe_root().joinpath(*path.parts[1:])  # those that are shipped, from anywhere
    try:
        changed = path.stat().st_mtime_ns
    except FileNotFoundError:
        raise ConfigError(f"there is no config {path}") from None
    return _parsed(path, changed)


@functools.lru_cache(maxsize=256)  # a table is one file with many variants, each read by itself
def _parsed(path: Path, changed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    yaml = require("yaml", extra="train")
    # libyaml's parser is the same language, ten times as fast; it is not in every build.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        content = yaml.load(path.read_text("utf-8"), Loader=loader) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} is not readable as YAML: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(
            f"{path} must hold sections (data, model, ...); got {type(content).__name__}"
        )
    base = content.pop("base", None)
    own = content.pop("variants", None) or {}
    settings, variants = _read_file(path.parent / base) if base is not None else ({}, {})
    merged = {
        name: merge(variants.get(name) or {}, own.get(name) or {}) for name in [*variants, *own]
    }
    return merge(settings, content), merged


def recipe_root() -> Path:
    """The shipped recipes: in the installed package, or at the top of a checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "recipes"
    return inside if inside.is_dir() else package.parents[1] / "recipes"


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes` laid over it, key by key.

    A section that names another thing (another head, another model) starts afresh: the options of
    the old one are not its own.

    >>> merge({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}})
    {'a': {'b': 3, 'c': 2}}
    >>> merge({"head": {"name": "a_softmax", "m": 4}}, {"head": {"name": "softmax"}})
    {'head': {'name': 'softmax'}}

    Another data set keeps how it is served, but not the options of the other's reader:

    >>> merge({"data": {"name": "lfw", "batch_size": 8, "options": {"people": 10}}},
    ...       {"data": {"name": "mnist"}})
    {'data': {'name': 'mnist', 'batch_size': 8}}
    """
    result = dict(base)
    for key, value in changes.items():
        old = result.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            renamed = key in DEFAULT_NAMES and value.get("name", old.get("name")) != old.get("name")
            kept = {} if renamed else dict(old)
            if key == "data" and value.get("name", old.get("name")) != old.get("name"):
                kept.pop("options", None)
            result[key] = merge(kept, value)
        else:
            result[key] = value
    return result


def read(
    spec: str | None,
    arguments: Sequence[str] = (),
    prog: str = "hypersphere train",
    defaults: Mapping[str, Any] | None = None,
    variants: Sequence[str] = (),
) -> Config:
    """A typed `Config` from a file (or `defaults`) and `--section.key value` arguments."""
    settings = dict(defaults or {})
    if spec is not None:
        path, chosen = split_spec(spec)
        settings = load_file(path, [*chosen, *variants])
    elif variants:
        raise ConfigError(
            f"--variant {','.join(variants)} lays changes over a file, and none was given: "
            f"hypersphere recipes lists files with variants"
        )
    overrides = _overrides(arguments)
    settings = _without_nulls(_remove(settings, overrides))
    for section in (*DEFAULT_NAMES, "data"):  # another head, another data set on the command
        # line: the options of the old one go
        if f"{section}.name" in overrides:
            settings = merge(settings, {section: {"name": overrides[f"{section}.name"]}})
    chosen_names = _names(settings, overrides)
    parser, known = _parser(prog, json.dumps(chosen_names))
    flat = dict(_flatten(settings, known))
    _check_keys([*flat, *overrides], known, chosen_names)
    tokens = [f"--{key}={_token(value)}" for key, value in {**flat, **overrides}.items()]
    try:
        parsed = parser.parse_args(tokens).as_dict()
    except Exception as error:  # jsonargparse has several kinds; all mean a wrong value
        raise ConfigError(_readable(error)) from None
    return _assemble(parsed, chosen_names)


def help_text(spec: str | None, arguments: Sequence[str], prog: str, defaults: Any = None) -> str:
    """Every option of the things that are named, with type and default."""
    settings = dict(defaults or {})
    if spec is not None:
        path, chosen = split_spec(spec)
        settings = load_file(path, chosen)
    overrides = _overrides(arguments)
    named = _names(_without_nulls(_remove(settings, overrides)), overrides)
    parser, _ = _parser(prog, json.dumps(named))
    return parser.format_help()


def dump(config: Config) -> str:
    """The resolved config as YAML; reading it gives the same config."""
    yaml = require("yaml", extra="train")

    def plain(value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        if isinstance(value, Mapping):
            return {k: plain(v) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(v) for v in value]
        return value

    return yaml.safe_dump(plain(config), sort_keys=False, default_flow_style=None, width=100)


def _overrides(arguments: Sequence[str]) -> dict[str, Any]:
    """--a.b value, --a.b=value and bare --a.b (true) -> {"a.b": value}."""
    found: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        token = rest.pop(0)
        if not token.startswith("--"):
            raise ConfigError(f"expected --section.key value; got {token!r}")
        key, equals, value = token[2:].partition("=")
        if not equals:
            value = "true" if not rest or rest[0].startswith("--") else rest.pop(0)
        found[key] = value
    return found


def _names(settings: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Which model, head, regularizers and hooks: they decide which options exist."""
    chosen: dict[str, Any] = {}
    for section, default in DEFAULT_NAMES.items():
        value = settings.get(section) or {}
        if not isinstance(value, Mapping):
            raise ConfigError(f"{section} is a section with a name and options; got {value!r}")
        chosen[section] = overrides.get(f"{section}.name", value.get("name", default))
    for section in NAMED:
        value = settings.get(section) or {}
        if not isinstance(value, Mapping):
            raise ConfigError(f"{section} is a section of names, each with options; got {value!r}")
        names = dict.fromkeys(value)
        for key in overrides:
            parts = key.split(".")
            if parts[0] == section and len(parts) > 1:
                names[parts[1]] = None
        chosen[section] = list(names)
    for section in CHANGES:
        given = any(k.startswith(f"{section}.") for k in overrides)
        chosen[section] = settings.get(section) is not None or given
    return chosen


@functools.lru_cache(maxsize=64)  # compare and sweep read many configs of the same things
def _parser(prog: str, names: str) -> tuple[Any, dict[str, Any]]:
    """A jsonargparse parser with every option of the things named (as JSON), and their keys."""
    chosen = json.loads(names)
    jsonargparse = require("jsonargparse", extra="train")
    parser = jsonargparse.ArgumentParser(prog=prog, exit_on_error=False, add_help=False)
    known: dict[str, Any] = {}

    def add(key: str, hint: Any, default: Any, text: str = "") -> None:
        known[key] = hint
        required = default is REQUIRED
        extra = {"required": True} if required else {"default": default}
        parser.add_argument(f"--{key}", type=hint, help=text or " ", **extra)

    from typing import get_type_hints

    hints = get_type_hints(Config)
    for item in dataclasses.fields(Config):
        if item.name in ("task", "seed"):
            add(item.name, hints[item.name], item.default)
    for section in FIXED:
        cls = hints[section]
        texts = _documented(cls)
        types = get_type_hints(cls)
        for item in dataclasses.fields(cls):
            default = item.default
            if default is dataclasses.MISSING:
                default = item.default_factory()  # type: ignore[operator]
            add(f"{section}.{item.name}", types[item.name], default, texts.get(item.name, ""))
    try:
        for section in DEFAULT_NAMES:
            add(f"{section}.name", str, chosen[section])
            for option in options(section, chosen[section]).values():
                add(f"{section}.{option.name}", option.type, option.default)
        for section in CHANGES:
            for option in options(section).values() if chosen[section] else ():
                add(f"{section}.{option.name}", option.type, option.default)
        for section in NAMED:
            for name in chosen[section]:
                known[f"{section}.{name}"] = None
                for option in options(section, name).values():
                    add(f"{section}.{name}.{option.name}", option.type, option.default)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return parser, known


def _flatten(
    settings: Mapping[str, Any], known: Mapping[str, Any], prefix: str = ""
) -> Iterable[tuple[str, Any]]:
    for name, value in settings.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and (key not in known or known[key] is None):
            yield from _flatten(value, known, f"{key}.")
        else:
            yield key, value


def _check_keys(keys: Iterable[str], known: Mapping[str, Any], chosen: Mapping[str, Any]) -> None:
    """Refuse what does not exist, with the nearest name."""
    for key in keys:
        if key in known or key in NAMED or key in CHANGES:
            continue
        if any(key.startswith(f"{free}.") for free in FREE):
            continue
        if any(key.startswith(f"{k}.") and _is_mapping(known[k]) for k in known):
            continue
        section = key.split(".")[0]
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.4)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        where = ""
        if section in DEFAULT_NAMES and section in chosen:
            where = f" ({section}.name is {chosen[section]!r})"
        raise ConfigError(f"unknown key '{key}'{hint}{where}")


def _is_mapping(hint: Any) -> bool:
    return "dict" in str(hint)


def _token(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _remove(settings: Mapping[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """`--regularizers.mhe null`, `--rotate null`: take the thing out of both."""
    kept = dict(settings)
    for key in [k for k, v in overrides.items() if v in ("null", "None")]:
        section, _, name = key.partition(".")
        if section in NAMED and name and "." not in name:
            kept[section] = {k: v for k, v in (kept.get(section) or {}).items() if k != name}
            del overrides[key]
        elif key in CHANGES:
            kept.pop(key, None)
            del overrides[key]
    return kept


def _without_nulls(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Drop sections and named things set to null; the null of an option is a value."""
    kept = {k: v for k, v in settings.items() if v is not None}
    for section in NAMED:
        if isinstance(kept.get(section), Mapping):
            kept[section] = {k: v or {} for k, v in kept[section].items() if v is not None}
    return kept


def _assemble(parsed: dict[str, Any], chosen: Mapping[str, Any]) -> Config:
    from typing import get_type_hints

    hints = get_type_hints(Config)
    sections: dict[str, Any] = {"task": parsed["task"], "seed": parsed["seed"]}
    for section in FIXED:
        sections[section] = hints[section](**parsed[section])
    for section in DEFAULT_NAMES:
        sections[section] = dict(parsed[section])
    for section in CHANGES:
        sections[section] = dict(parsed[section]) if chosen[section] else None
    for section in NAMED:
        given = parsed.get(section) or {}
        sections[section] = {name: dict(given.get(name) or {}) for name in chosen[section]}
    return Config(**sections)


def _documented(cls: type) -> dict[str, str]:
    """The lines 'name: text' of a docstring's Args."""
    lines = (cls.__doc__ or "").splitlines()
    pairs = (line.strip().partition(": ") for line in lines)
    return {name: text for name, _, text in pairs if text and " " not in name}


def _readable(error: Exception) -> str:
    """jsonargparse's message without its nesting and its names of types."""
    text = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
    found = re.fullmatch(r'Parser key "([\w.]+)": Expected an? (.+)\. Got value: (.*)', text)
    if found is None:
        return text or repr(error)
    key, kind, value = found.groups()
    if kind.startswith("typing.Literal["):
        choices = [str(choice) for choice in ast.literal_eval(kind.removeprefix("typing.Literal"))]
        return str(unknown_name(key, value, choices))
    plain = re.sub(r"<class '(.*?)'>", r"\1", kind)
    return f"{key} expects a value of type {plain}, got {value}"
