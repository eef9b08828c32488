"""Which weights a single module holds itself, and how they hold their neurons."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from .filter_matrix import FilterMatrix

__all__ = ["Held", "held_weights", "is_conv1d"]


class Held(NamedTuple):
    """A weight that a module holds: its attribute, its neurons and the kind of the layer."""

    parameter: str
    layout: FilterMatrix
    kind: str


def held_weights(module: nn.Module, embeddings: bool = False) -> Iterator[Held]:
    """The weights of one module, without those of its children."""
    if isinstance(module, nn.MultiheadAttention):
        yield from _attention(module)
    elif isinstance(module, nn.RNNCellBase):
        yield from (_gates(module, name) for name in ("weight_ih", "weight_hh"))
    elif isinstance(module, nn.RNNBase):
        names = [n for n in module._flat_weights_names if n.startswith("weight")]
        yield from (_gates(module, name) for name in names)
    elif isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        if embeddings:
            size = (module.num_embeddings, module.embedding_dim)
            yield Held("weight", FilterMatrix(size, size[1]), "embedding")
    elif is_conv1d(module):
        shape = _shape(module.weight)
        yield Held("weight", FilterMatrix(shape, shape[0], transposed=True), "Conv1D")
    else:
        layout = _rows(module)
        if layout is not None:
            yield Held("weight", layout[0], layout[1])


def is_conv1d(module: nn.Module) -> bool:
    """Whether it is the Conv1D of Hugging Face, a linear layer with weight (in, out).

    Known by name and shape, as transformers need not be there.
    """
    if not any(cls.__name__ == "Conv1D" for cls in type(module).__mro__):
        return False  # without asking for the weight, which may have to be computed
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.shape[1:] == (getattr(module, "nf", 0),)


def _rows(module: Any) -> tuple[FilterMatrix, str] | None:
    # Sizes come from what a layer says of itself: the storage of a quantized weight has others.
    if isinstance(module, _ConvTransposeNd):
        inputs, outputs = module.in_channels // module.groups, module.out_channels // module.groups
        shape = (module.in_channels, outputs, *module.kernel_size)
        return FilterMatrix(shape, inputs, module.groups, True), "transposed convolution"
    if isinstance(module, _ConvNd):
        inputs = module.in_channels // module.groups
        shape = (module.out_channels, inputs, *module.kernel_size)
        return FilterMatrix(shape, inputs, module.groups), "convolution"
    if isinstance(module, nn.Bilinear):
        shape = (module.out_features, module.in1_features, module.in2_features)
        return FilterMatrix(shape, shape[1]), "bilinear"
    if isinstance(module, nn.Linear):
        return FilterMatrix((module.out_features, module.in_features), module.in_features), "linear"
    return _declared(module)


def _declared(module: Any) -> tuple[FilterMatrix, str] | None:
    """A neuron_role with a weight, or a linear layer by another name: weight (out, in)."""
    weight = getattr(module, "weight", None)
    sizes = [
        tuple(getattr(module, f"{side}_{what}", None) for side in ("out", "in"))
        for what in ("features", "channels")
    ]
    features = sizes[0]
    if not isinstance(weight, Tensor):
        # Quantized layers keep no tensor, or a method, under this name.
        packed = any(hasattr(module, name) for name in ("qweight", "W_q", "_packed_params"))
        if packed and all(isinstance(size, int) for size in features):
            return FilterMatrix(features, features[1]), "linear"  # type: ignore[arg-type]
        return None
    if weight.ndim < 2:
        return None
    shape = _shape(weight)
    if getattr(module, "subcenters", 1) > 1:  # (C, K, d): every sub-center is a direction
        shape = (shape[0] * shape[1], shape[2])
    if getattr(module, "neuron_role", None) is not None or shape in sizes:
        return FilterMatrix(shape, shape[1]), "linear"
    return None


def _attention(module: nn.MultiheadAttention) -> Iterator[Held]:
    # out_proj is a linear layer of its own; q, k and v are three layers, stacked or apart.
    if module._qkv_same_embed_dim:
        width = module.embed_dim
        layout = FilterMatrix((3 * width, width), width, sets=3)
        yield Held("in_proj_weight", layout, "attention")
        return
    for part in ("q_proj_weight", "k_proj_weight", "v_proj_weight"):
        shape = _shape(getattr(module, part))
        yield Held(part, FilterMatrix(shape, shape[1]), "attention")


def _gates(module: Any, name: str) -> Held:
    """The gates of a recurrent cell are layers of their own: four of an LSTM, three of a GRU."""
    shape = _shape(getattr(module, name))
    gates = 1 if name.startswith("weight_hr") else shape[0] // module.hidden_size
    return Held(name, FilterMatrix(shape, shape[1], sets=gates), "recurrent")


def _shape(weight: Any) -> tuple[int, ...]:
    return tuple(weight.shape)
