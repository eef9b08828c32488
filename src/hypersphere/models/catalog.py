"""The networks by name: what builds each, the numbers of its table, and one line about it."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from .. import registry
from .blocks import Style

__all__ = ["ModelEntry", "add_table", "create", "list_models", "model_entry"]

_STYLE = tuple(item.name for item in dataclasses.fields(Style))


@dataclass(frozen=True)
class ModelEntry:
    """A network of the register.

    Args:
        name: the name that `create` takes.
        build: the class or function that makes the network.
        source: table, equation or section of the dissertation it comes from; may be empty.
        description: one line about it.
        defaults: options that differ from those of ``build``: the numbers of its table.
        own: whether a user registered it, rather than this package.
    """

    name: str
    build: Callable[..., nn.Module]
    source: str
    description: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    own: bool = False

    @property
    def takes_style(self) -> bool:
        """Whether ``build`` has a parameter ``style``, and so the options of `Style`."""
        return "style" in inspect.signature(self.build).parameters

    @property
    def options(self) -> tuple[str, ...]:
        """Every option that `create` takes for this network."""
        named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        parameters = inspect.signature(self.build).parameters.values()
        own = [p.name for p in parameters if p.kind in named and p.name != "style"]
        return (*own, *(s for s in _STYLE if s not in own)) if self.takes_style else tuple(own)


def add_table(
    name: str, build: Callable[..., nn.Module], source: str, description: str, **defaults: Any
) -> None:
    """Register one table of the dissertation: ``build`` with the numbers of ``defaults``."""
    registry.register(
        "model", name, source=source, description=description, defaults=dict(defaults)
    )(build)


def model_entry(name: str) -> ModelEntry:
    """The registered network of that name.

    Args:
        name: one of `list_models`.

    Returns:
        Its builder, defaults, source and description.

    Raises:
        ValueError: if there is none, with the nearest name.
    """
    return _described(registry.entry("model", name))


def list_models() -> list[str]:
    """The names of all networks: the dissertation's families in its order, then a user's own.

    Returns:
        The names that `create` takes.

    >>> "cnn9" in list_models()
    True
    """
    return registry.names("model")


def create(name: str, **options: Any) -> Any:
    """Build a network by name; options that are not given are those of its table.

    A network of your own enters with ``@hs.register("model", "mine")`` on a class or function that
    returns an ``nn.Module`` with an integer ``out_features``, the width of its features. Its
    parameters are the options. If one of them is called ``style``, it receives a `Style` made of
    the style options; otherwise the network has none. ``defaults={...}`` and ``description=...``
    may be given to ``register``.

    Args:
        name: one of `list_models`.
        options: style options (operator, angular, norm, activation, k, learn_k, weighted, rescale;
            see `Style`), and those of the network's class, such as widths, in_channels, features
            and image_size.

    Returns:
        The network, a `Backbone` for those of this package: samples in, features
        (B, ``out_features``) out.

    Raises:
        ValueError: for an unknown name or option, with the nearest one.
        TypeError: if a registered builder returns something without ``out_features``.

    >>> import torch
    >>> net = create("cnn9", in_channels=1, image_size=28, widths=(16, 32, 64), features=2)
    >>> net(torch.zeros(4, 1, 28, 28)).shape
    torch.Size([4, 2])
    >>> create("cnn9", width=(16, 32, 64))
    Traceback (most recent call last):
    ValueError: unknown option of cnn9 'width'; did you mean 'widths'? (known: widths, depths, ...
    """
    found = model_entry(name)
    parameters = inspect.signature(found.build).parameters.values()
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
    for option in options:
        if option not in found.options and not takes_any:
            raise registry.unknown_name(f"option of {name}", option, found.options)
    settings = {**found.defaults, **options}
    if found.takes_style and "style" not in settings:
        own = inspect.signature(found.build).parameters
        chosen = {k: settings.pop(k) for k in _STYLE if k in settings and k not in own}
        settings["style"] = Style(**chosen)
    network = found.build(**settings)
    width = getattr(network, "out_features", None)
    if not isinstance(network, nn.Module) or not isinstance(width, int):
        raise TypeError(
            f"the model {name!r} ({found.build.__module__}) has to return an nn.Module with an "
            f"integer out_features, the width of its features; got {type(network).__name__} with "
            f"out_features={width!r}"
        )
    return network


def _described(found: registry.Entry) -> ModelEntry:
    details = found.details
    description = str(details.get("description") or found.summary)
    defaults = details.get("defaults", {})
    return ModelEntry(found.name, found.target, found.source, description, defaults, found.own)
