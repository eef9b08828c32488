"""A sharded head inside a model that DDP wraps: its rows are its own, and it is sharded before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from .margin import MarginHead

__all__ = ["ROWWISE", "ignore_in_ddp", "refuse_earlier_ddp", "watch_ddp"]

ROWWISE = ("weight", "bias")  # parameters with one row per class


def ignore_in_ddp(model: nn.Module) -> nn.Module:
    """Tell DDP, before it wraps a model, to leave the rows of sharded heads alone.

    `shard` also sees to it that DDP does so by itself; see Note [Rows under DDP].

    Args:
        model: a module that holds sharded heads.

    Returns:
        The model.
    """
    ignored = list(getattr(model, "_ddp_params_and_buffers_to_ignore", []))
    ignored += [name for name in _row_names(model) if name not in ignored]
    model._ddp_params_and_buffers_to_ignore = ignored  # type: ignore[assignment]
    return model


def _row_names(model: nn.Module) -> list[str]:
    """The parameters in `model` that are rows of a sharded head, by their full names."""
    found = []
    for prefix, module in model.named_modules():
        if isinstance(module, MarginHead) and module.shard is not None:
            dot = f"{prefix}." if prefix else ""
            found += [f"{dot}{name}" for name in ROWWISE if getattr(module, name) is not None]
    return found


# Note [Rows under DDP]: DDP sends all parameters of process 0 to the others when it wraps a model.
# The rows of a sharded head would be overwritten by those of other classes where all shards have
# one size, and process 0 would wait forever where they have not. DDP keeps the model as its
# attribute `module` before it sends anything, and torch tells of every such assignment. So the
# first `shard` asks to be told, and adds the rows to what this DDP leaves alone.
_watching: list[Any] = []


def watch_ddp() -> None:
    """Ask torch to be told, from now on, of every model that DDP wraps."""
    if not _watching:
        _watching.append(nn.modules.module.register_module_module_registration_hook(_spare_rows))


def _spare_rows(wrapper: nn.Module, name: str, model: nn.Module | None) -> None:
    if not isinstance(wrapper, nn.parallel.DistributedDataParallel) or name != "module":
        return
    rows = [] if model is None else _row_names(model)
    if model is None or not rows:
        return
    ignored = getattr(wrapper, "parameters_to_ignore", None)
    if not isinstance(ignored, set):
        raise RuntimeError(
            "this version of torch wraps a sharded head without asking: call "
            "hypersphere.heads.ignore_in_ddp(model) before DistributedDataParallel(model), or wrap "
            "the backbone alone"
        )
    ignored.update(rows)
    left = [p for n, p in model.named_parameters() if n not in ignored and p.requires_grad]
    if not left:
        raise RuntimeError(
            "DistributedDataParallel has nothing to do here: all parameters are rows of a sharded "
            "head, which exchanges what it needs by itself. Wrap the backbone alone"
        )
    wrapper._module_parameters = [p for n, p in model.named_parameters() if n not in ignored]


def refuse_earlier_ddp(replaced: Iterable[Any]) -> None:
    """Refuse a DDP from before `shard`: it waits for gradients of a weight that is gone.

    Args:
        replaced: weak references to the parameters that shards have replaced.
    """
    ddp = nn.parallel.DistributedDataParallel._get_active_ddp_module()  # type: ignore[no-untyped-call]
    if ddp is None or not torch.is_grad_enabled():
        return
    old = [p for one in replaced if (p := one()) is not None]
    if any(p is one for p in ddp._module_parameters for one in old):
        raise RuntimeError(
            "expected DistributedDataParallel around a head that is sharded already, got one made "
            "before shard(head): wrap in DDP after shard(head)"
        )
