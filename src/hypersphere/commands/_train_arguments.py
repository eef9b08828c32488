"""The command line of `hypersphere train`, read without torch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypersphere.commands._files import load_file, split_spec
from hypersphere.commands._yaml import ConfigError
from hypersphere.commands.plugins import split_plugins

__all__ = ["TrainArguments", "first_words", "is_first_process", "read_train_arguments"]


@dataclass
class TrainArguments:
    """What the words of the command line ask for; `rest` are options of the config."""

    spec: str | None = None
    variants: list[str] = field(default_factory=list)
    resume: bool | str | None = None
    topic: bool | str | None = None  # of --help
    print_config: bool = False
    print_schema: bool = False
    plugins: list[str] = field(default_factory=list)
    rest: list[str] = field(default_factory=list)


def read_train_arguments(argv: Sequence[str]) -> TrainArguments:
    """What the words of a command line ask for.

    Args:
        argv: the words after `hypersphere train`.

    Raises:
        ConfigError: if an option lacks its value.
    """
    words, plugins = split_plugins(["--help" if word == "-h" else word for word in argv])
    found = TrainArguments(plugins=plugins)
    found.print_config, found.print_schema = (
        flag in words for flag in ("--print_config", "--print_schema")
    )
    words = [word for word in words if word not in ("--print_config", "--print_schema")]
    found.spec = words.pop(0) if words and not words[0].startswith("-") else None
    found.resume, words = _take(words, "--resume", optional=True)
    variant, words = _take(words, "--variant")
    found.variants = variant.split(",") if isinstance(variant, str) else []
    found.topic, words = _take(words, "--help", optional=True)
    baseline, words = _take(words, "--baseline", optional=True)
    if baseline is not None:
        words += ["--run.baseline", str(baseline).lower()]
    found.rest = words
    return found


def first_words(arguments: TrainArguments, default: Mapping[str, Any]) -> str:
    """What a run says before anything is imported or loaded.

    Args:
        arguments: the command line.
        default: the sections of a run without a config.

    Returns:
        The words; empty for a run that is told to be quiet, and where nothing is trained.

    Raises:
        ConfigError: if the config file cannot be read.
    """
    if arguments.topic or arguments.print_config or arguments.print_schema:
        return ""
    settings: Any = default
    spec = arguments.spec
    if spec is None and isinstance(arguments.resume, str):
        spec = str(Path(arguments.resume, "config.yaml"))
    if spec is not None:
        path, variants = split_spec(spec)
        try:
            settings = load_file(path, [*variants, *arguments.variants])
        except ConfigError:
            if arguments.spec is not None:
                raise
            return ""  # of a run folder there is more to say
    if str(_value("train.quiet", arguments.rest, settings)).lower() == "true":
        return ""
    name = _value("data.name", arguments.rest, settings)
    return f"loading {name} ..." if isinstance(name, str) and name else "starting ..."


def is_first_process() -> bool:
    """Whether this is the process of a run that speaks."""
    return os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0"


def _value(key: str, options: Sequence[str], settings: Any) -> Any:
    """The last value of an option on the command line, else that of the config."""
    found = _take(list(options), f"--{key}", optional=True)[0]
    for part in key.split("."):
        settings = settings.get(part) if isinstance(settings, Mapping) else None
    return settings if found is None else found


def _take(
    words: list[str], flag: str, optional: bool = False
) -> tuple[bool | str | None, list[str]]:
    """Take `flag [value]` out of the words: its value, True if it stands alone, or None."""
    rest: list[str] = []
    found: bool | str | None = None
    items = iter(range(len(words)))
    for i in items:
        name, equals, value = words[i].partition("=")
        if name != flag:
            rest.append(words[i])
        elif equals:
            found = value
        elif i + 1 < len(words) and not words[i + 1].startswith("--"):
            found = words[next(items)]
        elif optional:
            found = True
        else:
            raise ConfigError(f"{flag} needs a value")
    return found, rest
