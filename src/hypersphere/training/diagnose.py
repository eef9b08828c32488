"""Which layer went bad first, once a loss is no longer finite."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hypersphere.training.sharding import local

__all__ = ["NotFinite", "bad_parameters", "explain", "first_bad_output", "is_finite"]


class NotFinite(ArithmeticError):
    """The loss is NaN or infinite; the message names the layer that first went bad."""


def is_finite(value: Any) -> bool:
    """Whether no number in tensors, or in lists and dictionaries of them, is NaN or infinite."""
    if isinstance(value, Tensor):
        return not value.is_floating_point() or bool(torch.isfinite(value).all())
    if isinstance(value, dict):
        return all(is_finite(v) for v in value.values())
    if isinstance(value, (tuple, list)):
        return all(is_finite(v) for v in value)
    return True


def bad_parameters(model: nn.Module) -> list[str]:
    """Names of the parameters and buffers that hold NaN or infinity, in the order of the model."""
    named = [*model.named_parameters(), *model.named_buffers()]
    bad = [not is_finite(local(value.detach())) for _, value in named]
    if any(
        hasattr(value, "full_tensor") for _, value in named
    ):  # FSDP: a row that is bad on one process is a bad weight on all
        flags = torch.tensor(bad, dtype=torch.int32, device=named[0][1].device)
        dist.all_reduce(flags, op=dist.ReduceOp.MAX)
        bad = flags.bool().tolist()
    return [name for (name, _), is_bad in zip(named, bad, strict=True) if is_bad]


def first_bad_output(model: nn.Module, run: Callable[[], Any]) -> tuple[str, str] | None:
    """Run once more, watching every layer: (name, class) of the first with a non-finite output."""
    found: list[tuple[str, str]] = []
    handles = []

    def watch(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if not found and not is_finite(output):
                found.append((name or "the model", type(module).__name__))

        return hook

    for name, module in model.named_modules():
        handles.append(module.register_forward_hook(watch(name)))
    try:
        with torch.no_grad():
            run()
    finally:
        for handle in handles:
            handle.remove()
    # A container finishes after its parts, so the first report is always the innermost layer.
    return found[0] if found else None


def explain(
    step: int,
    model: nn.Module,
    good_batch: bool,
    run: Callable[[], Any],
    terms: Iterable[tuple[str, Any]],
) -> str:
    """One sentence about where the first NaN or infinity is.

    Order of suspicion: the batch; weights already spoiled by the last update (in the backward pass
    NaN travels towards the input, so the bad weight nearest the output came first); the forward
    pass; a regularizer.
    """
    start = f"the loss is not finite at step {step}: "
    advice = (
        "; a smaller learning rate, clipping (train.clip) or warm-up (schedule.warmup) often helps"
    )
    if not good_batch:
        return start + "the batch itself holds NaN or infinity; check the data"
    spoiled = bad_parameters(model)
    if spoiled:
        more = f" (and {len(spoiled) - 1} more)" if len(spoiled) > 1 else ""
        return start + f"'{spoiled[-1]}'{more} went bad in the update before" + advice
    layer = first_bad_output(model, run)
    if layer is not None:
        return start + f"the output of layer '{layer[0]}' ({layer[1]}) went bad first" + advice
    for name, value in terms:
        if not is_finite(value):
            return start + f"the term '{name}' went bad, every layer's output is finite" + advice
    return start + "every layer's output is finite, so the head's loss went bad" + advice
