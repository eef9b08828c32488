"""YAML files as plain dictionaries, with bounds on what a file may cost to read.

A config may come from anywhere. Only regular files of moderate size are opened; nesting, aliases
and the number of values are bounded before anything is built; keys are text and stand once;
values are text, numbers, true, false and null.
"""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import Any

from hypersphere._optional import require

__all__ = ["ConfigError", "parse_list", "parse_yaml", "read_yaml"]

MAX_BYTES = 1 << 20
MAX_DEPTH = 50
MAX_VALUES = 100_000  # after every alias is replaced by what it stands for
PLAIN = ("str", "int", "float", "bool", "null", "seq", "map", "merge", "value")
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")
AMBIGUOUS = re.compile(r"[-+]?(0[0-9_]+|[0-9][0-9_.]*(:[0-9.]+)+)")  # octal, and minutes: 010, 1:30
WORDS = {"timestamp": "a date", "binary": "binary data", "set": "a set"}


class ConfigError(ValueError):
    """The config or the command line is wrong; the message says where, with the nearest name."""


def read_yaml(path: Path) -> dict[str, Any]:
    """The content of a YAML file.

    Args:
        path: the file.

    Returns:
        Its keys and values; empty for an empty file.

    Raises:
        ConfigError: if it is not a regular file of moderate size, not YAML, or holds something
            that a config cannot hold; the message gives the line.
    """
    return parse_yaml(_read_text(path), path)


def parse_yaml(text: str, path: Path) -> dict[str, Any]:
    """The content of a YAML text.

    Args:
        text: the text.
        path: where it stands, for messages.

    Returns:
        Its keys and values; empty for an empty text.

    Raises:
        ConfigError: if it is not YAML, or holds something that a config cannot hold; the message
            gives the line.
    """
    yaml = require("yaml", extra="train")
    # libyaml's parser reads the same language ten times as fast; it is not in every build.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check_depth(path, yaml.parse(text, Loader=loader))
        root = yaml.compose(text, Loader=loader)
        if root is None:
            return {}
        _check_node(path, yaml, root, {}, set())
        content = yaml.load(text, Loader=loader)
    except ConfigError:
        raise
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise ConfigError(f"{path} is not readable as YAML: {_one_line(error)}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(
            f"{path} must hold sections (data, model, ...); got {type(content).__name__}"
        )
    return content


def parse_list(text: str) -> list[Any]:
    """The values of a comma-separated list on the command line.

    Args:
        text: the list, such as "1e-3,0.1" or "[8, 8],[16, 16]".

    Returns:
        Its values, as a config file has them; 1e-3 is a number, which in YAML 1.1 it is not.

    Raises:
        ConfigError: if it is no such list.

    >>> parse_list("1e-3,2,cosine")
    [0.001, 2, 'cosine']
    """
    yaml = require("yaml", extra="train")
    try:
        values = yaml.safe_load(f"[{text}]")
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{text!r} is no list of values: {_one_line(error)}") from None
    return [_number(value) for value in values]


def _number(value: Any) -> Any:
    """Numbers of all notations as numbers."""
    if isinstance(value, list):
        return [_number(item) for item in value]
    if isinstance(value, str) and NUMBER.fullmatch(value):
        return float(value)
    return value


def _read_text(path: Path) -> str:
    try:
        # Before opening: a pipe would wait for a writer, a device would never end.
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise ConfigError(f"{path} is a folder, not a config file")
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"{path} is a pipe or a device, not a config file")
        with open(path, "rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(f"there is no config {path}") from None
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path} cannot be read: {error}") from None
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{path} is larger than {MAX_BYTES >> 20} MB: too large for a config")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not readable as YAML: {error}") from None


def _check_depth(path: Path, events: Any) -> None:
    """Parsing is a loop, composing recurses: what is nested too deeply is refused before it."""
    depth = 0
    for number, event in enumerate(events):
        name = type(event).__name__
        depth += name.endswith("StartEvent") - name.endswith("EndEvent")
        line = event.start_mark.line + 1
        if depth > MAX_DEPTH:
            raise ConfigError(f"{path}, line {line}: nested more than {MAX_DEPTH} levels deep")
        if number > 4 * MAX_VALUES:
            raise ConfigError(f"{path}, line {line}: more than {MAX_VALUES} values")


def _check_node(path: Path, yaml: Any, node: Any, sizes: dict[int, int], above: set[int]) -> int:
    """The number of values below a node, aliases expanded; refuses what a config cannot hold."""
    key = id(node)
    if key in sizes:
        return sizes[key]
    place = f"{path}, line {node.start_mark.line + 1}"
    if key in above:
        raise ConfigError(f"{place}: an alias that contains itself")
    kind = node.tag.rpartition(":")[2]
    if not (node.tag.startswith("tag:yaml.org,2002:") and kind in PLAIN):
        what = WORDS.get(kind, f"of type {node.tag}")
        shown = f"{node.value} is {what}" if isinstance(node.value, str) else f"a value is {what}"
        raise ConfigError(
            f"{place}: {shown}; a config holds text, numbers, true, false and null, in lists and "
            f"sections (quote what is meant as text)"
        )
    if kind in ("int", "float") and (number := _unexpected(yaml, kind, node.value)) is not None:
        raise ConfigError(
            f"{place}: {node.value} is {number} in YAML 1.1: write that, or quote what is meant as "
            f"text"
        )
    above.add(key)
    size = 1
    if isinstance(node, yaml.MappingNode):
        _check_keys(path, yaml, node)
        size += sum(_check_node(path, yaml, value, sizes, above) for _, value in node.value)
    elif isinstance(node, yaml.SequenceNode):
        size += sum(_check_node(path, yaml, value, sizes, above) for value in node.value)
    above.discard(key)
    if size > MAX_VALUES:
        raise ConfigError(f"{place}: more than {MAX_VALUES} values once its aliases are expanded")
    sizes[key] = size
    return size


def _unexpected(yaml: Any, kind: str, text: str) -> Any:
    """What octal digits or minutes stand for, if it is not the number that people read."""
    if not AMBIGUOUS.fullmatch(text):
        return None
    number = yaml.safe_load(f"!!{kind} {text}")
    return None if ":" not in text and number == float(text) else number


def _check_keys(path: Path, yaml: Any, node: Any) -> None:
    """Refuse keys that are not text, and keys that stand twice."""
    seen: dict[str, int] = {}
    for key, _ in node.value:
        line = key.start_mark.line + 1
        kind = key.tag.rpartition(":")[2]
        if not isinstance(key, yaml.ScalarNode) or kind not in ("str", "merge", "value"):
            shown = repr(key.value) if isinstance(key.value, str) else "a list or section"
            raise ConfigError(f"{path}, line {line}: the key {shown} is not text; quote it")
        if key.value in seen and kind != "merge":
            raise ConfigError(
                f"{path}, line {line}: the key {key.value!r} stands twice (also in line "
                f"{seen[key.value]})"
            )
        seen[key.value] = line


def _one_line(error: Exception) -> str:
    return " ".join(line.strip() for line in str(error).splitlines() if line.strip())
