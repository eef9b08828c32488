"""The networks by name: what builds each, its table, and one line about it."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .blocks import Backbone, Style, unknown

_STYLE = tuple(item.name for item in dataclasses.fields(Style))
_ENTRIES: dict[str, Entry] = {}


@dataclass(frozen=True)
class Entry:
    """A registered network: its builder, the numbers of its table, where they are from."""

    name: str
    build: Callable[..., Backbone]
    source: str
    description: str
    defaults: dict[str, Any] = field(default_factory=dict)

    @property
    def options(self) -> tuple[str, ...]:
        """Every option `create` takes for this network."""
        own = (name for name in inspect.signature(self.build).parameters if name != "style")
        return (*own, *_STYLE)


def register(
    name: str, build: Callable[..., Backbone], source: str, description: str, **defaults: Any
) -> None:
    """Add a network; `defaults` are the numbers of its table."""
    _ENTRIES[name] = Entry(name, build, source, description, defaults)


def entry(name: str) -> Entry:
    """The registered network of that name, or an error with the nearest name."""
    if name not in _ENTRIES:
        raise unknown("model", name, _ENTRIES)
    return _ENTRIES[name]


def list_models() -> list[str]:
    """All names, in the order of the dissertation's families.

    >>> "cnn9" in list_models()
    True
    """
    return list(_ENTRIES)


def create(name: str, **options: Any) -> Backbone:
    """Build a network by name; options not given are those of its table.

    Style options (all networks): operator, angular, norm, activation, weighted, rescale; see
    `Style`. Shape options: widths, in_channels, features, image_size and those of the network's
    class.

    >>> import torch
    >>> net = create("cnn9", in_channels=1, image_size=28, widths=(16, 32, 64), features=2)
    >>> net(torch.zeros(4, 1, 28, 28)).shape
    torch.Size([4, 2])
    >>> create("cnn9", width=(16, 32, 64))
    Traceback (most recent call last):
    ValueError: unknown option of cnn9 'width'; did you mean 'widths'? known: widths, depths, ...
    """
    found = entry(name)
    for option in options:
        if option not in found.options:
            raise unknown(f"option of {name}", option, found.options)
    settings = {**found.defaults, **options}
    style = Style(**{key: settings.pop(key) for key in _STYLE if key in settings})
    return found.build(**settings, style=style)
