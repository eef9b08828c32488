"""Parameter counts, layer shapes, and the table of all networks for the docs."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from .catalog import create, list_models, model_entry


class LayerRow(NamedTuple):
    """One layer, in the order they run.

    Args:
        name: its place in the network.
        kind: its class.
        shape: the shape of its output, the batch first.
        parameters: trained values it holds.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    parameters: int


def count_parameters(model: nn.Module) -> int:
    """Number of trained values.

    Args:
        model: any module.

    Returns:
        The number of values in parameters that require a gradient.

    >>> count_parameters(nn.Linear(3, 2))
    8
    """
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def layer_rows(model: nn.Module, batch: int = 2) -> list[LayerRow]:
    """The layers of a network with the shapes of their outputs, without computing them.

    Args:
        model: a network with ``example_inputs(batch)`` or ``input_shape``, as a `Backbone` has.
        batch: samples of the batch.

    Returns:
        One row per layer, in the order they run.

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
            model.eval()(*example_inputs(model, batch))
    finally:
        model.train(training)
        for handle in handles:
            handle.remove()
    return rows


def _kind(module: nn.Module) -> str:
    # A parametrized layer is an instance of a class made on the fly, named Parametrized<Class>.
    return type(module).__name__.removeprefix("Parametrized")


def example_inputs(model: nn.Module, batch: int = 2) -> tuple[Tensor, ...]:
    """Inputs of a network, from its ``example_inputs`` or its ``input_shape``."""
    own = getattr(model, "example_inputs", None)
    if callable(own):
        return tuple(own(batch))
    shape = getattr(model, "input_shape", None)
    if shape is None:
        raise ValueError(
            f"the shapes of {type(model).__name__} are unknown: give it input_shape, the shape of "
            f"one sample, or example_inputs(batch), the arguments of forward"
        )
    return (torch.zeros(batch, *shape),)


ModelRow = tuple[str, str, "int | None", "int | None", str]


def model_table() -> list[ModelRow]:
    """Every network with its size, without allocating it.

    Returns:
        Rows (name, source, parameters, features, description). A user's own network that cannot
        be built without options has None in place of both numbers.
    """
    rows: list[ModelRow] = []
    for name in list_models():
        found = model_entry(name)
        parameters = features = None
        try:
            with torch.device("meta"):
                model = create(name)
            parameters, features = count_parameters(model), model.out_features
        except Exception:
            if not found.own:
                raise
        rows.append((name, found.source, parameters, features, found.description))
    return rows


def models_markdown() -> str:
    """`model_table` for docs/models.md: the networks of this package."""
    lines = ["| name | from | parameters | features | what |", "|---|---|--:|--:|---|"]
    for name, source, parameters, features, description in model_table():
        if not model_entry(name).own:
            lines.append(f"| `{name}` | {source} | {parameters:,} | {features:,} | {description} |")
    return "\n".join(lines)
