"""YAML and command line -> `training.Config`: the only place that knows either.

    hypersphere train FILE.yaml[:variant,variant...] [--section.key value ...]

A file may name a `base` file it builds on and carry `variants`, named sets of changes; both are
merged key by key, and null removes a key (`_files.py`). The names in the merged settings decide
which options exist (each head has its own), then jsonargparse checks every value against the type
in the constructor's signature.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from hypersphere import ranges, registry
from hypersphere._optional import require
from hypersphere.commands._files import (
    DEFAULT_NAMES,
    check_length,
    load_file,
    merge,
    recipe_root,
    renamed,
    split_spec,
    variants_of,
)
from hypersphere.commands._misread import check_minutes, check_text
from hypersphere.commands._options import type_text
from hypersphere.commands._overrides import NAMED, choose_parts, join_part_options, read_overrides
from hypersphere.commands._values import read_values
from hypersphere.commands._yaml import ConfigError
from hypersphere.ranges import Range, literal_choices, range_of
from hypersphere.registry import unknown_name
from hypersphere.training.config import Config
from hypersphere.training.own_parts import plugins_of, require_parts
from hypersphere.training.parts import (
    CHANGES,
    KIND_OF_SECTION,
    Option,
    check_part_options,
    options,
    section_options,
)
from hypersphere.training.run.checkpoint import RunError
from hypersphere.training.run.records import read_record, run_config
from hypersphere.training.sections import hints_of

__all__ = ["ConfigError", "dump", "load_file", "merge", "read", "recipe_root", "split_spec"]
__all__ += [
    "all_options",
    "check",
    "chosen_parts",
    "read_settings",
    "require_plugins",
    "variants_of",
]

FIXED = tuple(
    f.name for f in dataclasses.fields(Config) if dataclasses.is_dataclass(f.default_factory)
)
# Dictionaries whose keys the constructor checks.
FREE = ("data.options", "head.annealing", "gan.generator")


def read(
    spec: str | None,
    arguments: Sequence[str] = (),
    prog: str = "hypersphere train",
    defaults: Mapping[str, Any] | None = None,
    variants: Sequence[str] = (),
) -> Config:
    """A typed `Config` from a file and the command line.

    Args:
        spec: a config file, with variants behind a colon; None for the defaults.
        arguments: ``--section.key value`` options.
        prog: the command, for messages.
        defaults: sections to start from, if there is no file.
        variants: further variants of the file.

    Returns:
        The config.

    Raises:
        ConfigError: for whatever is wrong with file or command line.
    """
    settings, overrides = read_settings(spec, arguments, defaults, variants)
    chosen_names = chosen_parts(settings, overrides)
    options_by_key, known = _known(json.dumps(chosen_names), registry.revision())
    flat = dict(_flatten(settings, known))
    overrides = join_part_options(flat, overrides, known)
    flat = {key: value for key, value in flat.items() if key not in overrides}
    _check_keys([*flat, *overrides], known, chosen_names)
    try:
        parsed = read_values(options_by_key, {**flat, **overrides}, prog)
    except Exception as error:  # jsonargparse has several kinds; all mean a wrong value
        raise ConfigError(_readable(error, known)) from None
    check_text(flat, parsed)
    check_minutes({**flat, **overrides}, parsed)
    return _assemble(parsed, chosen_names)


def check(config: Config) -> None:
    """Refuse a config whose run could not start, before its data are read.

    Args:
        config: the config.

    Raises:
        ConfigError: with the section and the reason.
    """
    from hypersphere.training.checks import check_settings

    try:
        check_settings(config)
    except (ValueError, RunError) as error:
        raise ConfigError(str(error)) from None


def read_settings(
    spec: str | None,
    arguments: Sequence[str],
    defaults: Mapping[str, Any] | None,
    variants: Sequence[str] = (),
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(sections of the file, options of the command line)."""
    settings = renamed(defaults or {})
    if spec is not None:
        path, chosen = split_spec(spec)
        settings = load_file(path, [*chosen, *variants])
    elif variants:
        raise ConfigError(
            f"--variant {','.join(variants)} lays changes over a file, and none was given: "
            f"hypersphere recipes lists files with variants"
        )
    overrides = read_overrides(arguments)
    settings = choose_parts(settings, overrides)
    given = {k: v for k, v in overrides.items() if v not in ("null", "None")}
    length = {k: given[f"train.{k}"] for k in ("steps", "epochs") if f"train.{k}" in given}
    check_length(length, "the command line")
    if length:
        settings = merge(settings, {"train": length})
    for section in (*DEFAULT_NAMES, "data"):
        # Another head, another data set on the command line: the options of the old one go.
        if f"{section}.name" in overrides:
            settings = merge(settings, {section: {"name": overrides[f"{section}.name"]}})
    return settings, overrides


def require_plugins(folder: Path) -> None:
    """Refuse a run folder whose parts are not registered.

    Args:
        folder: a run folder.

    Raises:
        ConfigError: if a part is missing; the message says which plugin has it.
    """
    try:
        parts = run_config(read_record(folder / "run.json"), folder / "run.json").get("parts")
    except (OSError, RunError):
        return  # what is wrong with the folder is said by whoever reads it
    try:
        require_parts(parts)
    except ValueError as error:
        raise ConfigError(f"{folder}: {error}") from None


def dump(config: Config) -> str:
    """The resolved config as YAML; reading it gives the same config.

    Args:
        config: a config.

    Returns:
        The text; its first lines name the plugins that it needs.
    """
    yaml = require("yaml", extra="train")

    values = _lists(config.to_dict())
    values.pop("parts", None)
    if values["train"]["epochs"] is not None:
        del values["train"]["steps"]  # the two exclude each other
    notes = "".join(f"# needs --plugin {shlex.quote(name)}\n" for name in plugins_of(config))
    # libyaml writes the same text four times as fast; it is not in every build.
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    style = {"sort_keys": False, "default_flow_style": None, "width": 100}
    return notes + yaml.dump(values, Dumper=dumper, **style)


def _lists(value: Any) -> Any:
    """Lists for tuples, which YAML does not have."""
    if isinstance(value, Mapping):
        return {key: _lists(item) for key, item in value.items()}
    return [_lists(item) for item in value] if isinstance(value, (list, tuple)) else value


def chosen_parts(settings: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Which model, head, regularizers and hooks: they decide which options exist."""
    chosen: dict[str, Any] = {}
    for section in (*FIXED, *CHANGES):
        value = settings.get(section)
        if value is not None and not isinstance(value, Mapping):
            raise ConfigError(f"{section} is a section of options; got {value!r}")
    for section, default in DEFAULT_NAMES.items():
        value = settings.get(section) or {}
        if not isinstance(value, Mapping):
            raise ConfigError(f"{section} is a section with a name and options; got {value!r}")
        name = overrides.get(f"{section}.name", value.get("name", default))
        if not isinstance(name, str) or not name:
            raise ConfigError(f"{section}.name is the name of a {section}; got {name!r}")
        chosen[section] = name
    for section in NAMED:
        value = settings.get(section) or {}
        if not isinstance(value, Mapping):
            raise ConfigError(f"{section} is a section of names, each with options; got {value!r}")
        for name, part in value.items():
            if not isinstance(part, Mapping):
                raise ConfigError(f"{section}.{name} is a section of options; got {part!r}")
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


@functools.lru_cache(maxsize=64)  # compare and sweep read many configs of the same parts
def _known(names: str, revision: int) -> tuple[dict[str, Option], dict[str, Any]]:
    """Every option of the parts named (as JSON) by its key, and the types of the keys."""
    chosen = json.loads(names)
    try:
        found = dict(all_options(chosen))
    except ValueError as error:
        near = "" if "did you mean" in str(error) else "; a part of your own needs --plugin MODULE"
        raise ConfigError(f"{error}{near}") from None
    known: dict[str, Any] = {}
    for key, option in found.items():
        limited = isinstance(option.range, Range)
        known[key] = Annotated[option.type, option.range] if limited else option.type
    for section in NAMED:
        known.update({f"{section}.{name}": None for name in chosen[section]})
    return found, known


def all_options(chosen: Mapping[str, Any]) -> Iterator[tuple[str, Option]]:
    """Every option of a config that names these parts, with its key."""
    for option in section_options().values():
        yield option.name, option
    for section in FIXED:
        for option in section_options(section).values():
            yield f"{section}.{option.name}", option
    for section in DEFAULT_NAMES:
        kind = KIND_OF_SECTION[section]
        text = f"The {section}, by name: `hypersphere {kind}s` lists them."
        yield (
            f"{section}.name",
            Option("name", str, chosen[section], text, tuple(registry.names(kind))),
        )
        for option in options(section, chosen[section]).values():
            yield f"{section}.{option.name}", option
    for section in CHANGES:
        for option in options(section).values() if chosen[section] else ():
            yield f"{section}.{option.name}", option
    for section in NAMED:
        for name in chosen[section]:
            for option in options(section, name).values():
                yield f"{section}.{name}.{option.name}", option


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
        mappings = [*FREE, *(k for k in known if _is_mapping(known[k]))]
        if all(key.split(".")) and any(key.startswith(f"{k}.") for k in mappings):
            continue
        section = key.split(".")[0]
        if key in (*FIXED, *DEFAULT_NAMES):
            raise ConfigError(
                f"{key} is a section: give its options, such as --{_first(key, known)}"
            )
        near = registry.nearest(key, known)
        hint = f"; did you mean '{near}'?" if near else ""
        where = ""
        if section in DEFAULT_NAMES and section in chosen:
            where = f" ({section}.name is {chosen[section]!r})"
        raise ConfigError(f"unknown key '{key}'{hint}{where}")


def _first(section: str, known: Iterable[str]) -> str:
    return next(key for key in known if key.startswith(f"{section}."))


def _is_mapping(hint: Any) -> bool:
    return "dict" in str(hint)


def _assemble(parsed: dict[str, Any], chosen: Mapping[str, Any]) -> Config:
    """The config, its numbers in their ranges."""
    hints = hints_of(Config)
    sections: dict[str, Any] = {"task": parsed["task"], "seed": parsed["seed"]}
    for section in DEFAULT_NAMES:
        sections[section] = dict(parsed[section])
    for section in CHANGES:
        sections[section] = dict(parsed[section]) if chosen[section] else None
    for section in NAMED:
        given = parsed.get(section) or {}
        sections[section] = {name: dict(given.get(name) or {}) for name in chosen[section]}
    try:
        registry.entry("task", parsed["task"])
        for section in FIXED:
            sections[section] = hints[section](**parsed[section])
        for section in DEFAULT_NAMES:
            values = {k: v for k, v in sections[section].items() if k != "name"}
            check_part_options(section, chosen[section], values)
        check_part_options("annealing", "", sections["head"].get("annealing") or {})
        for section in CHANGES:
            check_part_options(section, "", sections[section] or {})
        for section in NAMED:
            for name, values in sections[section].items():
                check_part_options(section, name, values)
        return Config(**sections)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _readable(error: Exception, known: Mapping[str, Any]) -> str:
    """jsonargparse's message without its nesting and its names of types."""
    text = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
    found = re.fullmatch(r'Parser key "([\w.]+)": Expected an? (.+)\. Got value: ?(.*)', text)
    union = re.match(r'Parser key "([\w.]+)": Does not validate .* Given value: ?(.*)', text)
    wrong = union or found
    if wrong is not None and range_of(known.get(wrong[1])) is not None:
        hint = known[wrong[1]]
        # Of a list whose items are numbers, one item may be wrong.
        kind = {"<class 'int'>": int, "<class 'float'>": float}.get(wrong[2], hint)
        try:  # a word where a number belongs, such as nan: the message has the range
            ranges.check(wrong[1], wrong.groups()[-1], kind, range_of(hint))
        except ValueError as refused:
            return str(refused)
    if union is not None and union[1] in known:
        allowed = literal_choices(known[union[1]])
        if allowed:
            return str(unknown_name(union[1], union[2], allowed))
        return f"{union[1]} expects {type_text(known[union[1]])}, got {union[2]}"
    if found is None:
        return text or repr(error)
    key, kind, value = found.groups()
    if kind.startswith("typing.Literal["):
        choices = [str(choice) for choice in ast.literal_eval(kind.removeprefix("typing.Literal"))]
        return str(unknown_name(key, value, choices))
    plain = re.sub(r"<class '(.*?)'>", r"\1", kind)
    return f"{key} expects a value of type {plain}, got {value}"
