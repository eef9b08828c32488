"""Parameter counts, layer shapes, and the table of all networks for the docs."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from .blocks import Backbone
from .registry import create, entry, list_models


class LayerRow(NamedTuple):
    """One layer, in the order they run: its place, its class, its output, what it learns."""

    name: str
    kind: str
    shape: tuple[int, ...]
    parameters: int


def count_parameters(model: nn.Module) -> int:
    """Number of trained values.

    >>> count_parameters(nn.Linear(3, 2))
    8
    """
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def layer_rows(model: Backbone, batch: int = 2) -> list[LayerRow]:
    """The layers of a network with the shapes they give out (the batch comes first).

    >>> for row in layer_rows(create("mlp", activation="none")):
    ...     print(*row)
    layers.0.linear Linear (2, 256) 200960
    layers.1.linear Linear (2, 256) 65792
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    rows: list[LayerRow] = []
    handles = []

    def watch(name: str, module: nn.Module) -> None:
        def note(_: nn.Module, __: object, output: Tensor) -> None:
            shape = tuple(output.shape)
            rows.append(LayerRow(name, _kind(module), shape, count_parameters(module)))

        handles.append(module.register_forward_hook(note))

    kinds = (nn.modules.conv._ConvNd, nn.Linear)
    modules = dict(model.named_modules())
    layers = {name for name, module in modules.items() if isinstance(module, kinds)}
    for name, module in modules.items():
        leaf = not list(module.children()) and not isinstance(module, (nn.Identity, nn.Sequential))
        # What a layer consists of (a learned radius, a parametrization) is shown as the layer.
        inside = any(name.startswith(f"{layer}.") for layer in layers)
        if name in layers or (leaf and not inside):
            watch(name, module)
    training = model.training
    try:
        # Fake tensors have shapes and no values: a wide network on large images costs nothing.
        with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
            model.eval()(*model.example_inputs(batch))
    finally:
        model.train(training)
        for handle in handles:
            handle.remove()
    return rows


def _kind(module: nn.Module) -> str:
    # A parametrized layer is an instance of a class made on the fly, named Parametrized<Class>.
    return type(module).__name__.removeprefix("Parametrized")


def model_table() -> list[tuple[str, str, int, int, str]]:
    """(name, source, parameters, features, description) of every network, without allocating."""
    rows = []
    for name in list_models():
        found = entry(name)
        with torch.device("meta"):
            model = create(name)
        rows.append(
            (name, found.source, count_parameters(model), model.out_features, found.description)
        )
    return rows


def markdown_table() -> str:
    """`model_table` for docs/models.md."""
    lines = ["| name | from | parameters | features | what |", "|---|---|--:|--:|---|"]
    for name, source, parameters, features, description in model_table():
        lines.append(f"| `{name}` | {source} | {parameters:,} | {features:,} | {description} |")
    return "\n".join(lines)
