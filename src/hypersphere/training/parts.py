"""The things a config can name, and the arguments each takes: read from their own constructors.

So a new argument of a head, layer or regularizer is at once an option of the config, typed and
documented by its signature; nothing is listed twice.
"""

from __future__ import annotations

import difflib
import inspect
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, Union

__all__ = ["CHANGES", "REQUIRED", "Option", "construct", "names", "options", "unknown_name"]

REQUIRED = inspect.Parameter.empty

HEADS = {
    "softmax": "SoftmaxHead",
    "l_softmax": "LSoftmaxHead",
    "w_softmax": "WSoftmaxHead",
    "s_softmax": "SSoftmaxHead",
    "a_softmax": "ASoftmaxHead",
    "ga_softmax": "GASoftmaxHead",
    "am_softmax": "AMSoftmaxHead",
    "arcface": "ArcFaceHead",
    "margin": "MarginHead",
    "hinge": "HingeHead",
}
REGULARIZERS = {
    "mhe": "MHE",
    "comhe": "CoMHE",
    "orthonormal": "Orthonormal",
    "orthogonal": "Orthogonal",
    "srip": "SRIP",
}
HOOKS = {
    "project_weights": "ProjectWeights",
    "weighted_gradients": "WeightGradients",
    "class_energy": "ClassEnergyTerm",
    "orthogonality": "OrthogonalityTerm",
    "adversarial": "AdversarialTraining",
    "monitor": "Monitor",
    "metric_loss": "MetricLossTerm",
    "clip_weights": "ClipWeights",
}
# Filled in from the data, not by the user.
_DERIVED = {
    "head": ("in_features", "num_classes"),
    "init": ("net",),
    "low_rank": ("model",),
    "rotate": ("model", "generator"),
}
# Sections that change a network once it is built, in this order; each may be left out.
CHANGES = ("init", "low_rank", "rotate")
# Of a model they may be given, but come from the data otherwise.
_FROM_DATA = ("in_channels", "image_size")
# Every regularizer also takes the schedule of its term.
_SCHEDULE = {"begin": (int, 0), "ramp": (int, 0), "end": (int | None, None)}


@dataclass(frozen=True)
class Option:
    """One argument: its type as far as a config can express it, and its default."""

    name: str
    type: Any
    default: Any = REQUIRED


def unknown_name(kind: str, name: str, known: Iterable[str]) -> ValueError:
    """An error that names the nearest spelling.

    >>> unknown_name("head", "asoftmax", ["softmax", "a_softmax"])
    ValueError("unknown head 'asoftmax'; did you mean 'a_softmax'? (known: softmax, a_softmax)")
    """
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return ValueError(f"unknown {kind} {name!r}{hint} (known: {', '.join(known)})")


def names(kind: str) -> list[str]:
    """What may stand as a name in section `kind`."""
    if kind == "model":
        from hypersphere.models import list_models

        return list_models()
    table = {"head": HEADS, "regularizers": REGULARIZERS, "hooks": HOOKS}[kind]
    return list(table)


def _target(kind: str, name: str) -> Any:
    """The class or function behind a name."""
    if kind in CHANGES:
        return _change(kind)
    if name not in names(kind):
        raise unknown_name(kind.rstrip("s"), name, names(kind))
    if kind == "model":
        from hypersphere.models import entry

        return entry(name)
    if kind == "head":
        from hypersphere import heads

        return getattr(heads, HEADS[name])
    if kind == "regularizers":
        from hypersphere import regularizers

        return getattr(regularizers, REGULARIZERS[name])
    from hypersphere.training import adversarial, hooks, metric_losses, monitors
    from hypersphere.training.tasks import gan_penalties

    for module in (hooks, adversarial, gan_penalties, metric_losses, monitors):
        if hasattr(module, HOOKS[name]):
            return getattr(module, HOOKS[name])
    raise AssertionError(name)


def _change(kind: str) -> Any:
    if kind == "init":
        from hypersphere.training.initialize import initialize

        return initialize
    if kind == "low_rank":
        from hypersphere.regularizers import low_rank

        return low_rank
    from hypersphere.orthogonal import rotate

    return rotate


def options(kind: str, name: str = "") -> dict[str, Option]:
    """Options of the thing `name` of section `kind`, in the order of its signature.

    >>> options("hooks", "project_weights")["every"]
    Option(name='every', type=<class 'int'>, default=1)
    """
    target = _target(kind, name)
    if kind == "model":
        found = _signature(target.build, skip=("style",))
        from hypersphere.models import Style

        hints = typing.get_type_hints(Style)
        for item in fields(Style):
            found[item.name] = Option(item.name, plain_type(hints[item.name]), item.default)
        for key, value in target.defaults.items():
            found[key] = Option(key, found[key].type, _listed(value))
        for key in _FROM_DATA:
            if key in found:
                found[key] = Option(key, found[key].type | None, None)
        return found
    found = _signature(target, skip=_DERIVED.get(kind, ()))
    if kind == "head":
        found["annealing"] = Option("annealing", dict[str, Any] | None, None)
        found["sharded"] = Option("sharded", bool, False)  # classes spread over the processes
        found["detached"] = Option("detached", bool, False)  # its loss trains the head alone
    if kind == "regularizers":
        for key, (hint, default) in _SCHEDULE.items():
            found[key] = Option(key, hint, default)
    return found


def construct(kind: str, name: str, values: Mapping[str, Any], **derived: Any) -> Any:
    """Build the thing: `values` from the config, `derived` from the program."""
    known = options(kind, name)
    for key in values:
        if key not in known:
            raise unknown_name(f"option of {kind}.{name}", key, known)
    target = _target(kind, name)
    return target(**{k: resolve(k, v) for k, v in values.items()}, **derived)


def resolve(key: str, value: Any) -> Any:
    """`{"name": "sigmoid", "k": 0.3}` for an angular activation or a magnitude becomes that
    object, and so does `{"m": 4}` for a margin.
    """
    if key == "margin" and isinstance(value, dict):
        from hypersphere.heads import Margin

        return Margin(**value)
    if not (isinstance(value, dict) and "name" in value):
        return value
    from hypersphere import layers

    suffix = "Angular" if key == "angular" else "Magnitude"
    settings = dict(value)
    name = settings.pop("name")
    known = {_snake(n.removesuffix(suffix)): n for n in layers.__all__ if n.endswith(suffix)}
    if name not in known:
        raise unknown_name(f"{key}", name, known)
    return getattr(layers, known[name])(**settings)


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(name))


def _signature(target: Callable[..., Any], skip: Sequence[str]) -> dict[str, Option]:
    function: Any = target.__init__ if isinstance(target, type) else target  # type: ignore[misc]
    try:
        hints = typing.get_type_hints(function)
    except Exception:  # a hint that only exists for type checkers: the option stays, untyped
        hints = {}
    found = {}
    for name, parameter in inspect.signature(target).parameters.items():
        if name in skip or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        hint, default = plain_type(hints.get(name, Any)), _listed(parameter.default)
        if hint is float and isinstance(default, int):
            default = float(default)  # a whole number as the default of a float reads back as one
        found[name] = Option(name, hint, default)
    return found


def plain_type(hint: Any) -> Any:
    """The part of a type hint that a config file can express; an object becomes a dictionary.

    >>> plain_type(Union[str, Callable[..., Any]])
    typing.Union[str, dict[str, typing.Any]]
    >>> plain_type(Sequence[int])
    list[int]
    """
    if hint is Any or hint in (int, float, str, bool, type(None)):
        return hint
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
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
