"""The options of the parts that a config names, derived from the register and their signatures.

A new argument of a head, a model or a regularizer is at once an option of the config: its name,
type, range and default come from the signature, its text from the docstring. Nothing is listed
twice.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Union

from hypersphere import data as _data  # noqa: F401 - data sets enter the register
from hypersphere import heads, models, orthogonal, registry, regularizers
from hypersphere.layers.angular import make_angular
from hypersphere.layers.custom_magnitude import CustomMagnitude
from hypersphere.layers.magnitude import make_magnitude
from hypersphere.ranges import NonEmpty, Range, check, literal_choices, range_of, without_range
from hypersphere.registry import unknown_name
from hypersphere.training.argument_texts import argument_texts
from hypersphere.training.config import Config
from hypersphere.training.initialize import initialize
from hypersphere.training.own_parts import NAMED_BY_OPTION
from hypersphere.training.sections import hints_of

__all__ = [
    "CHANGES",
    "REQUIRED",
    "Option",
    "check_part_options",
    "construct",
    "names_in_section",
    "options",
]
__all__ += ["resolve", "section_options", "unknown_name"]

REQUIRED = inspect.Parameter.empty

# The kind of part that each section of a config names.
KIND_OF_SECTION = {
    "model": "model",
    "head": "head",
    "regularizers": "regularizer",
    "hooks": "hook",
    "data": "data",
    "task": "task",
}
# Sections that change a network once it is built, in this order; each may be left out.
CHANGES = ("init", "low_rank", "rotate")
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "init": initialize,
    "low_rank": regularizers.low_rank,
    "rotate": orthogonal.rotate,
    "annealing": heads.LambdaAnnealing,
}
# Filled in by the program, not by the user.
_DERIVED = {
    "head": ("in_features", "num_classes"),
    "data": ("name", "root"),
    "init": ("net",),
    "low_rank": ("model",),
    "rotate": ("model", "generator"),
    "model": ("style",),
    "angular": ("kind",),
    "magnitude": ("kind",),
}
# Options of a model that come from the data unless they are given.
_FROM_DATA = ("in_channels", "image_size")
# Ranges of options whose signature has none, for every part that has an option of this name.
_RANGES: dict[str, Range] = {
    "every": Range(ge=1),
    "std": Range(gt=0),
    "rank": Range(ge=1),
    "begin": Range(ge=0),
    "ramp": Range(ge=0),
    "end": Range(ge=0),
    "widths": Range(ge=1),
    "features": Range(ge=1),
    "in_channels": Range(ge=1),
    "image_size": Range(ge=1),
    "kernel_size": Range(ge=1),
    "size": Range(ge=1),
    "workers": Range(ge=0, le=1024),
    "copies": Range(ge=1),
    "test_copies": Range(ge=1),
}


@dataclass(frozen=True)
class Option:
    """One argument of a part.

    Args:
        name: its name.
        type: its type, as far as a config can express it.
        default: its default; `REQUIRED` if it has none.
        help: its text in the docstring.
        choices: the names it may have, where they are known.
        range: the numbers it may have, where they are limited.
        given: what the config at hand sets; `REQUIRED` if it sets nothing.
    """

    name: str
    type: Any
    default: Any = REQUIRED
    help: str = ""
    choices: tuple[str, ...] = ()
    range: Range | NonEmpty | None = None
    given: Any = REQUIRED


# What every head takes beside the arguments of its class.
_HEAD_OPTIONS = (
    Option(
        "annealing",
        dict[str, Any] | None,
        None,
        "Options of lambda annealing (2.2.7, A.7), from the easy loss to the full margin. "
        "Default: no annealing.",
    ),
    Option(
        "sharded",
        bool,
        False,
        "Spread the classes over the processes: each holds a part of the class weights.",
    ),
    Option(
        "detached",
        bool,
        False,
        "Let the head's loss train the head alone; hooks then train the network.",
    ),
)
# What every regularizer takes: the schedule of its term.
_SCHEDULE = (
    Option("begin", int, 0, "First update at which the term counts.", range=Range(ge=0)),
    Option("ramp", int, 0, "Updates over which its weight rises linearly.", range=Range(ge=0)),
    Option(
        "end",
        int | None,
        None,
        "Update from which it no longer counts. Default: it counts to the end.",
        range=Range(ge=0),
    ),
)


def names_in_section(kind: str) -> list[str]:
    """The names that may stand in a section.

    Args:
        kind: a section of the config, or a kind of the register.

    Returns:
        The registered names, in the order of their registration.
    """
    return registry.names(KIND_OF_SECTION.get(kind, kind))


def options(kind: str, name: str = "") -> dict[str, Option]:
    """The options of a part, in the order of its signature.

    Args:
        kind: a section of the config or a kind of the register; also "init", "low_rank", "rotate"
            and "annealing", which have no names.
        name: the registered name.

    Returns:
        Each option by its name.

    Raises:
        ValueError: if there is no such part, with the nearest name.

    >>> options("init")["std"].range
    Range(gt=0, ge=None, lt=None, le=None)
    """
    kind = KIND_OF_SECTION.get(kind, kind)
    if kind in _FUNCTIONS:
        return _signature(_FUNCTIONS[kind], skip=_DERIVED.get(kind, ()))
    entry = registry.entry(kind, name)
    if kind == "task":  # its options are sections of the config
        return {}
    target, skip = _target(kind, name), list(_DERIVED.get(kind, ()))
    if kind in ("angular", "magnitude", "margin") and inspect.isroutine(target):
        skip += list(inspect.signature(target).parameters)[:1]  # the cosine or the norm
    found = _signature(target, skip)
    if kind == "model":
        return _model_options(entry, found)
    extra = {"head": _HEAD_OPTIONS, "regularizer": _SCHEDULE}.get(kind, ())
    return found | {option.name: option for option in extra}


def _model_options(entry: registry.Entry, found: dict[str, Option]) -> dict[str, Option]:
    """With the options of `Style` if the model takes a style, and the defaults of its table."""
    if "style" in inspect.signature(entry.target).parameters:
        style = _signature(models.Style, skip=())
        found = found | {key: option for key, option in style.items() if key not in found}
    for key, value in entry.details.get("defaults", {}).items():
        found[key] = dataclasses.replace(found[key], default=_listed(value))
    for key in _FROM_DATA:
        if key in found:
            text = found[key].help and f"{found[key].help} Default: that of the data."
            hint: Any = Union[(found[key].type, None)]  # noqa: UP007 - the type is a value
            found[key] = dataclasses.replace(found[key], type=hint, default=None, help=text)
    return found


def section_options(section: str = "") -> dict[str, Option]:
    """The options of a fixed section of the config.

    Args:
        section: "data", "optimizer", ...; empty for those of the config itself, task and seed.

    Returns:
        Each option by its name.
    """
    cls = hints_of(Config)[section] if section else Config
    found = _signature(cls, skip=() if section else _sections())
    named = {"data": ("name", "data"), "": ("task", "task")}.get(section)
    if named is not None:
        option, kind = named
        known = tuple(registry.names(kind))
        found[option] = dataclasses.replace(found[option], choices=known)
    return found


def _sections() -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(Config) if f.name not in ("task", "seed"))


def check_part_options(kind: str, name: str, values: Mapping[str, Any]) -> None:
    """Refuse unknown options and numbers out of their range.

    Args:
        kind: a section of the config or a kind of the register.
        name: the registered name.
        values: the options that are given.

    Raises:
        ValueError: with the nearest option, or with the range.
    """
    known = options(kind, name)
    place = f"{kind}.{name}" if name else kind
    for key, value in values.items():
        if key not in known:
            raise unknown_name(f"option of {place}", key, known)
        label = f"{kind}.{key}" if kind in ("model", "head") else f"{place}.{key}"
        check(label, value, known[key].type, known[key].range)


def construct(kind: str, name: str, values: Mapping[str, Any], **derived: Any) -> Any:
    """Build a part.

    Args:
        kind: a section of the config or a kind of the register.
        name: the registered name.
        values: its options, from the config.
        derived: its arguments that come from the program, such as the number of classes.

    Returns:
        What the class or function gives.

    Raises:
        ValueError: for an unknown name or option, or a number out of its range.
    """
    check_part_options(kind, name, values)
    target = _target(KIND_OF_SECTION.get(kind, kind), name)
    settings = {key: resolve(key, value) for key, value in values.items()}
    if kind in ("angular", "magnitude", "margin") and inspect.isroutine(target):
        function = functools.partial(target, **settings)
        # An operator that is a function makes layers; a magnitude says what it is.
        return CustomMagnitude(function) if kind == "magnitude" else function
    return target(**settings, **derived)


def _target(kind: str, name: str) -> Any:
    """The class or function that takes the options of a part."""
    if kind in _FUNCTIONS:
        return _FUNCTIONS[kind]
    entry = registry.entry(kind, name)
    if entry.own or kind not in ("angular", "magnitude"):
        return entry.target
    # Formulas are registered; a config sets the options of the module that holds one.
    return type(make_angular(name) if kind == "angular" else make_magnitude(name))


def resolve(key: str, value: Any) -> Any:
    """The object that an option names: an angular activation, a magnitude or a margin.

    Args:
        key: the option: "angular", "magnitude", "operator" or "margin".
        value: ``{"name": "sigmoid", "k": 0.3}``, the name of a part that is not of this package,
            or the settings of a `hypersphere.heads.Margin` such as ``{"m": 4}``.

    Returns:
        The object; any other value as it is.
    """
    kind = NAMED_BY_OPTION.get(key)
    if kind is None:
        return value
    if isinstance(value, str):
        own = value in registry.names(kind) and registry.entry(kind, value).own
        is_class = own and inspect.isclass(registry.entry(kind, value).target)
        return construct(kind, value, {}) if is_class else value
    if not isinstance(value, Mapping):
        return value
    if "name" in value:
        settings = {k: v for k, v in value.items() if k != "name"}
        return construct(kind, value["name"], settings)
    return heads.Margin(**value) if kind == "margin" else value


def _signature(target: Callable[..., Any], skip: Sequence[str]) -> dict[str, Option]:
    """The options that a class or function takes."""
    read = _read_signature if isinstance(target, Hashable) else _read_signature.__wrapped__
    return dict(read(target, tuple(skip), registry.revision()))


@functools.lru_cache(maxsize=512)  # every config of a comparison asks for the same ones
def _read_signature(
    target: Callable[..., Any], skip: tuple[str, ...], revision: int
) -> dict[str, Option]:
    function: Any = target.__init__ if isinstance(target, type) else target  # type: ignore[misc]
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except Exception:  # a hint that only exists for type checkers: the option stays, untyped
        hints = {}
    if dataclasses.is_dataclass(target):
        hints = hints_of(target if isinstance(target, type) else type(target))
    texts = argument_texts(target)
    found = {}
    for name, parameter in inspect.signature(target).parameters.items():
        if name in skip or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        hint = hints.get(name, Any)
        plain = plain_type(without_range(hint))
        names_part = name in NAMED_BY_OPTION and plain not in (int, float)  # no margin of a hinge
        if names_part and plain is not Any:  # a name, or a name with settings
            plain = Union[(plain, str, dict[str, Any])]  # noqa: UP007 - the type is a value
        default = _listed(_default(target, name, parameter.default))
        if plain is float and isinstance(default, int):
            default = float(default)  # a whole number as the default of a float reads back as one
        limits = range_of(hint) or _RANGES.get(name)
        found[name] = Option(
            name, plain, default, texts.get(name, ""), _choices(name, hint, names_part), limits
        )
    return found


def _default(target: Any, name: str, default: Any) -> Any:
    """The default of a parameter; that of a dataclass field may have to be made."""
    if dataclasses.is_dataclass(target):
        for item in dataclasses.fields(target):
            if item.name == name and item.default_factory is not dataclasses.MISSING:
                return item.default_factory()
    return default


def _choices(name: str, hint: Any, names_part: bool) -> tuple[str, ...]:
    """What a type or the register says that an option may be."""
    if names_part:
        plain = ("plain",) if name == "operator" else ()
        return (*plain, *registry.names(NAMED_BY_OPTION[name]))
    return literal_choices(without_range(hint))


def plain_type(hint: Any) -> Any:
    """The part of a type that a config file can express; an object becomes a dictionary.

    Args:
        hint: a type.

    >>> plain_type(Union[str, Callable[..., Any]])
    typing.Union[str, dict[str, typing.Any]]
    >>> plain_type(Sequence[int])
    list[int]
    """
    if hint is Any or hint in (int, float, str, bool, type(None)):
        return hint
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Literal, dict):
        return hint
    if origin in (Union, types.UnionType):
        members = list(dict.fromkeys(plain_type(a) for a in arguments))
        return Union[tuple(members)] if Any not in members else Any  # noqa: UP007 - a list of them
    if origin is tuple and Ellipsis not in arguments:
        return hint if all(plain_type(a) == a for a in arguments) else Any
    if origin in (list, tuple, Sequence, Collection, Iterable) and arguments:
        return list[plain_type(arguments[0])]  # type: ignore[misc]
    return dict[str, Any]


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
