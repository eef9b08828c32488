"""Text -> values of the declared types, by jsonargparse; what is not given has its default.

One parser of all options would check every default again with each config: each option has a
parser of its own, made when the option is first given.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from hypersphere._optional import require
from hypersphere.training.parts import REQUIRED, Option

__all__ = ["read_values"]

MODE = "hypersphere"  # of jsonargparse's parsers: how it reads text
MINUTES = re.compile(r"[0-9]:[0-9]")
INT = re.compile(r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)")
FLOAT = re.compile(
    r"[-+]?([0-9][0-9_]*\.?[0-9_]*|\.[0-9_]+)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)

_readers: dict[Any, Callable[..., Any]] = {}


def read_values(options: Mapping[str, Option], given: Mapping[str, Any], prog: str) -> Any:
    """The value of every option, in nested dictionaries.

    Args:
        options: each option by its key, such as ``head.name``.
        given: values by key, as text or as they stand in a file; a key may go on below that of an
            option that is a dictionary.
        prog: the command, for messages.

    Returns:
        The values; those of ``a.b`` are at ``["a"]["b"]``.

    Raises:
        Exception: of jsonargparse, for a value that is not of its type or that is missing.
    """
    tokens: dict[str, list[str]] = {}
    for key, value in given.items():
        token = f"--{key}={value if isinstance(value, str) else json.dumps(value)}"
        tokens.setdefault(_option_of(key, options), []).append(token)
    missing = [k for k, option in options.items() if option.default is REQUIRED and k not in tokens]
    found = {key: _read(key, options.get(key), texts, prog) for key, texts in tokens.items()}
    found |= {key: _read(key, options[key], [], prog) for key in missing}
    values: dict[str, Any] = {}
    for key, option in options.items():
        *path, name = key.split(".")
        place = values
        for part in path:
            place = place.setdefault(part, {})
        place[name] = found[key] if key in found else _copy(option.default)
    return values


def _option_of(key: str, options: Mapping[str, Option]) -> str:
    """The option that a key belongs to: itself, or what it goes on below."""
    place = key
    while place not in options:
        place, dot, _ = place.rpartition(".")
        if not dot:
            return key  # jsonargparse says what is wrong with it
    return place


def _read(key: str, option: Option | None, tokens: list[str], prog: str) -> Any:
    """The value of one option."""
    # The text too: unions of other order are equal, and read in their order.
    kind, default = (option.type, repr(option.default)) if option else (None, "")
    same = (prog, key, kind, str(kind), default)
    if same not in _readers:
        _readers[same] = _reader(key, option, prog)
    return _copy(_readers[same](*tokens))


def _reader(key: str, option: Option | None, prog: str) -> Callable[..., Any]:
    """What reads one option, or refuses a key that is none."""
    jsonargparse = require("jsonargparse", extra="train")
    jsonargparse.set_loader(MODE, _load, (require("yaml", extra="train").YAMLError,))
    parser = jsonargparse.ArgumentParser(
        prog=prog, exit_on_error=False, add_help=False, parser_mode=MODE
    )
    if option is not None:
        required = option.default is REQUIRED
        how = {"required": True} if required else {"default": option.default}
        parser.add_argument(f"--{key}", type=option.type, **how)

    @functools.lru_cache(maxsize=64)  # configs of a comparison differ in few values
    def read(*tokens: str) -> Any:
        value = parser.parse_args(list(tokens)).as_dict()
        for part in key.split("."):
            value = value[part]
        return value

    return read


def _load(text: str) -> Any:
    """What a text stands for, as jsonargparse reads it, but 1:30 is text and no number of minutes,
    and text that begins with # is no comment.
    """
    from jsonargparse import get_loader

    if MINUTES.search(text):
        yaml = require("yaml", extra="train")
        return _stands_for(text, yaml.load(text, Loader=_without_minutes()))
    return _stands_for(text, get_loader("yaml")(text))


def _stands_for(text: str, value: Any) -> Any:
    return text if value is None and text.strip().startswith("#") else value


@functools.cache
def _without_minutes() -> Any:
    """A loader of YAML 1.1 with the numbers of YAML 1.2."""
    yaml = require("yaml", extra="train")

    class Loader(yaml.SafeLoader):  # type: ignore[misc, name-defined]
        """What it takes for a number, date or text is its own."""

    kept = ("bool", "null", "merge", "value")
    Loader.yaml_implicit_resolvers = {}
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items():
        rules = [rule for rule in found if rule[0].rpartition(":")[2] in kept]
        Loader.yaml_implicit_resolvers[first] = rules
    for kind, pattern in (("int", INT), ("float", FLOAT)):
        whole = re.compile(f"(?:{pattern.pattern})$")
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", whole, list("-+0123456789."))
    return Loader


def _copy(value: Any) -> Any:
    """A value that whoever gets it may change."""
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value
