"""Which layer went bad first, in the order of the forward pass, once a loss is not finite."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hypersphere.training.sharding import is_spread, local

__all__ = ["ADVICE", "BAD_BATCH", "WENT_BAD_BEFORE", "NotFinite", "bad_parameters", "explain"]
__all__ += ["check_lengths", "is_finite", "layers_in_order", "spoiled_buffer"]

ADVICE = "; a smaller learning rate, clipping (train.clip) or warm-up (schedule.warmup) often helps"
BAD_BATCH = "the batch itself holds NaN or infinity"
WENT_BAD_BEFORE = "went bad in the update before"


class NotFinite(ArithmeticError):
    """A loss, weight or test value is NaN or infinite; the message names what went bad first."""


def is_finite(value: Any) -> bool:
    """Whether no number in tensors, or in lists and dictionaries of them, is NaN or infinite."""
    if isinstance(value, Tensor):
        return not value.is_floating_point() or bool(torch.isfinite(value).all())
    if isinstance(value, dict):
        return all(is_finite(v) for v in value.values())
    if isinstance(value, (tuple, list)):
        return all(is_finite(v) for v in value)
    return True


@torch.no_grad()
def bad_parameters(model: nn.Module) -> list[str]:
    """Names of the parameters that hold NaN or infinity, or are so large that their length
    overflows, in the order of the model.

    One wait for the device. Where weights are spread over processes, call it on all of them: a row
    that is bad on one process is a bad weight on all.
    """
    named = list(model.named_parameters())
    if not named:
        return []
    lengths = [_length(local(value)) for _, value in named]
    bad = (~torch.stack([torch.isfinite(length) for length in lengths])).int()
    if is_spread(model):
        dist.all_reduce(bad, op=dist.ReduceOp.MAX)
    return [name for (name, _), is_bad in zip(named, bad.tolist(), strict=True) if is_bad]


def _length(value: Tensor) -> Tensor:
    kind = torch.float64 if value.dtype == torch.float64 else torch.float32
    return torch.linalg.vector_norm(value, dtype=kind)


def spoiled_buffer(model: nn.Module) -> str:
    """ "; its buffer 'norm.running_var' is not finite", of the first such buffer, or an empty text.

    Buffers tell something only where no pass in training mode has written to them since.
    """
    bad = next((name for name, value in model.named_buffers() if not is_finite(value)), None)
    return "" if bad is None else f"; its buffer '{bad}' is not finite"


def check_lengths(features: Tensor, model: nn.Module | None = None) -> None:
    """`NotFinite` if features (N, d) of test samples, or their lengths, are not finite."""
    bad = int((~torch.isfinite(features.float().norm(dim=1))).sum())
    if bad:
        why = spoiled_buffer(model) if model is not None else ""
        raise NotFinite(
            f"the features of {bad} of {len(features)} test samples are not finite: the network's "
            f"output overflows on them, so there is nothing to report{why}" + ADVICE
        )


@dataclass
class Layer:
    """A module as the forward pass met it: its name, class, and whether its output is finite."""

    name: str
    kind: str
    finite: bool = True


def layers_in_order(model: nn.Module, run: Callable[[], Any]) -> list[Layer]:
    """Run once more, watching every module: in the order in which they finished, inner ones first.

    Modules that are not called as such (a head, whose ``loss`` is called) come last, in the order
    of the model.
    """
    found: dict[str, Layer] = {}
    handles = []

    def watch(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            layer = found.setdefault(name, Layer(name, type(module).__name__))
            layer.finite = layer.finite and is_finite(output)

        return hook

    for name, module in model.named_modules():
        handles.append(module.register_forward_hook(watch(name)))
    try:
        with torch.no_grad():
            run()
    finally:
        for handle in handles:
            handle.remove()
    for name, module in model.named_modules():
        found.setdefault(name, Layer(name, type(module).__name__))
    return list(found.values())


def explain(
    step: int,
    model: nn.Module,
    good_batch: bool,
    run: Callable[[], Any],
    terms: Iterable[tuple[str, Any]],
) -> str:
    """One sentence about where the first NaN or infinity is.

    Order of suspicion: the batch; then layer by layer, in the order of the forward pass, the
    parameters and the output; then a regularizer; then the loss itself. Buffers are no evidence:
    the failed pass has already written to them (the statistics of BatchNorm).
    """
    start = f"the loss is not finite at step {step}: "
    if not good_batch:
        return f"{start}{BAD_BATCH}; check the data"
    layers = layers_in_order(model, run)
    spoiled = bad_parameters(model)
    owners = {name: name.rpartition(".")[0] for name in spoiled}
    for layer in layers:
        own = [name for name, owner in owners.items() if owner == layer.name]
        if own:
            when = WENT_BAD_BEFORE if step else "is not finite from the start"
            return start + f"'{own[0]}' {when}{_others(own[0], spoiled)}" + ADVICE
        if not layer.finite:
            name = layer.name or "the model"
            return start + f"the output of layer '{name}' ({layer.kind}) went bad first" + ADVICE
    for name, value in terms:
        if not is_finite(value):
            return start + f"the term '{name}' went bad, every layer's output is finite" + ADVICE
    return start + "every layer's output is finite, so the head's loss went bad" + ADVICE


def _others(first: str, spoiled: list[str]) -> str:
    """In the backward pass NaN travels towards the input: the last one named may be its origin."""
    rest = [name for name in spoiled if name != first]
    return f" (and {len(rest)} more, the last of them '{rest[-1]}')" if rest else ""
