"""Find the layers of any model: the one search behind convert, rotate and the regularizers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Literal

from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.parameter import is_lazy

from .kinds import held_weights
from .sites import Findings, LeftOut, Site
from .wrappers import adapted_layer, lora_reader, saved_copies, weight_source, weight_state

__all__ = ["find_layers"]

_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
_BLOCKS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


def find_layers(
    model: nn.Module, embeddings: bool = False, lora: Literal["effective", "base"] = "effective"
) -> Findings:
    """Every weight of a model that holds neurons, with its role, and what else has a weight.

    Found are convolutions (grouped and transposed too), linear and bilinear layers, the Conv1D of
    Hugging Face (weight (in, out)), the projections of nn.MultiheadAttention, recurrent layers and
    cells, linear layers of other libraries (a weight of shape (out_features, in_features)), and
    whatever declares `neuron_role` and has a weight with one neuron per row, such as a head. They
    may be parametrized, normalized by the older torch.nn.utils, tied, sharded by FSDP2, quantized,
    wrapped by PEFT, or on the meta device; `state` and `note` of a site say so. A module that is
    used twice is found once. The numbers of LoRA are no layers of their own: a wrapped layer is
    found with its effective weight. A module with neuron_role = "none" is passed over.

    The output layer is what declares neuron_role = "output" or is named by get_output_embeddings()
    (Hugging Face); if nothing does, the last linear layer, unless that declares "hidden" or is part
    of a repeated block (a backbone without its head).

    Args:
        model: any module.
        embeddings: whether embeddings are found, one neuron per entry of the vocabulary.
        lora: "effective" reads W + B A of a layer wrapped by LoRA, "base" W alone.

    Returns:
        The findings; printed, they are a table.

    >>> net = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    >>> print(find_layers(net))
    layer  what             role      remarks
    1      linear 6 x 4     hidden
    3      linear 3 x 6     output
    0      Embedding(9, 4)  left out  embeddings=False
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"find_layers expects a module; got {type(model).__name__}")
    if lora not in ("effective", "base"):
        raise ValueError(f"lora must be 'effective' or 'base'; got {lora!r}")
    search = _Search(model, embeddings, lora)
    search.visit("", model)
    return Findings(_with_roles(model, search.sites), search.left_out)


class _Search:
    """One walk through a model, in the order of named_modules."""

    def __init__(self, model: nn.Module, embeddings: bool, lora: str) -> None:
        self.embeddings, self.lora = embeddings, lora
        self.sites: list[Site] = []
        self.left_out: list[LeftOut] = []
        self.seen: set[int] = set()
        self.owners: dict[int, list[str]] = {}
        for name, module in model.named_modules():  # each module once: twice used is not tied
            for key, value in module._parameters.items():
                if value is not None:
                    self.owners.setdefault(id(value), []).append(_join(name, key))

    def visit(
        self,
        name: str,
        module: nn.Module,
        reader: Callable[[], Tensor] | None = None,
        note: str = "",
        copy: bool = False,
    ) -> None:
        if id(module) in self.seen or getattr(module, "neuron_role", None) == "none":
            return
        self.seen.add(id(module))
        base, copies = adapted_layer(module), saved_copies(module)
        if base is not None:
            self._visit_adapter(name, module, base, copy)
            return
        if copies is not None:
            original, active = copies
            if active:
                reason = "frozen: PEFT trains a copy (modules_to_save)"
                self.left_out.append(
                    LeftOut(_join(name, "original_module"), _describe(original), reason)
                )
            for key, part in active.items() or [("", original)]:
                full = f"{name}.modules_to_save.{key}" if key else f"{name}.original_module"
                self.visit(full, part, note="copy that PEFT trains" if key else "", copy=bool(key))
            return
        found = self._own_weights(name, module, reader, note, copy)
        if not found:
            self._account(name, module)
        for key, child in module.named_children():
            if key != "parametrizations":
                self.visit(_join(name, key), child, copy=copy, note=note)

    def _visit_adapter(self, name: str, wrapper: nn.Module, base: nn.Module, copy: bool) -> None:
        kind = type(wrapper).__module__.split(".")[-2:-1]
        reader = lora_reader(wrapper, base) if self.lora == "effective" else None
        note = "LoRA: W + B A" if reader else f"base of {' '.join(kind) or 'an adapter'}"
        parts = [
            key
            for key, child in wrapper.named_children()
            if next(child.parameters(), None) is not None
        ]
        self.left_out += [
            LeftOut(_join(name, key), type(getattr(wrapper, key)).__name__, f"adapter of {name}")
            for key in parts
            if key != "base_layer"
        ]
        self.visit(name, base, reader, note, copy)

    def _own_weights(
        self,
        name: str,
        module: nn.Module,
        reader: Callable[[], Tensor] | None,
        note: str,
        copy: bool,
    ) -> bool:
        if any(p is not None and is_lazy(p) for p in module._parameters.values()):
            reason = "not initialized yet: run one batch through the model first"
            self.left_out.append(LeftOut(name, type(module).__name__, reason))
            return True
        found = False
        for parameter, layout, kind in held_weights(module, self.embeddings):
            state, remark, own_reader = weight_state(module, parameter, self.owners)
            self.sites.append(
                Site(
                    name, module, parameter, layout, kind,
                    state=state,
                    note="; ".join(text for text in (note, remark) if text),
                    copy=copy,
                    source=weight_source(module, parameter),
                    reader=reader or own_reader,
                )
            )  # fmt: skip
            found = True
        return found

    def _account(self, name: str, module: nn.Module) -> None:
        """Note a module that has a weight of its own and is no known layer."""
        if isinstance(module, _EMBEDDINGS):
            self.left_out.append(LeftOut(name, _describe(module), "embeddings=False"))
            return
        for key, value in module._parameters.items():
            if value is not None and value.ndim >= 2 and len(value) > 1:
                shape = tuple(value.shape)
                what = f"{type(module).__name__}.{key} {shape}"
                reason = "unknown layer: set neuron_role on it if its weight has a neuron per row"
                self.left_out.append(LeftOut(name, what, reason))


def _with_roles(model: nn.Module, found: list[Site]) -> list[Site]:
    outputs = set(_declared_outputs(model))
    if not outputs:
        last = next((site for site in reversed(found) if _may_be_output(site)), None)
        # A last linear layer that calls itself hidden is an embedding, one inside a block belongs
        # to a backbone: the head stands elsewhere.
        hidden = last is None or getattr(last.module, "neuron_role", None) == "hidden"
        if last is not None and not hidden and id(last.module) not in _inside_blocks(model):
            outputs = {id(last.module)}
    return [site.with_role("output") if id(site.module) in outputs else site for site in found]


def _declared_outputs(model: nn.Module) -> Iterator[int]:
    declared: list[Any] = [
        m for m in model.modules() if getattr(m, "neuron_role", None) == "output"
    ]
    for module in model.modules():
        ask = getattr(module, "get_output_embeddings", None)
        if callable(ask):
            with suppress(AttributeError, NotImplementedError):  # a model that has none
                declared.append(ask())
            break  # the outermost model knows
    for module in declared:
        if isinstance(module, nn.Module):
            yield from (id(part) for part in module.modules())


def _inside_blocks(model: nn.Module) -> set[int]:
    """Everything inside the repeated blocks of a network, such as the layers of a transformer."""
    blocks: list[nn.Module] = [m for m in model.modules() if isinstance(m, _BLOCKS)]
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and module is not model:
            blocks += [m for m in module if any(m.children()) and type(m) is not nn.Sequential]
    return {id(part) for block in blocks for part in block.modules()}


def _may_be_output(site: Site) -> bool:
    # The output map of attention is inside the network, however late it comes.
    inner = isinstance(site.module, NonDynamicallyQuantizableLinear)
    return site.kind in ("linear", "bilinear") and not inner


def _describe(module: nn.Module) -> str:
    if isinstance(module, _EMBEDDINGS):
        return f"{type(module).__name__}({module.num_embeddings}, {module.embedding_dim})"
    weight = getattr(module, "weight", None)
    return type(module).__name__ + (f" {tuple(weight.shape)}" if isinstance(weight, Tensor) else "")


def _join(*parts: str) -> str:
    return ".".join(part for part in parts if part)
