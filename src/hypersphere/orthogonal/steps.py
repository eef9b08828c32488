"""What has to happen around an optimizer's step: refuse the wrong one, forget what is over."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

__all__ = ["forget_state", "only_ogd_steps", "orthogonal_parameters", "watch_optimizers"]

_WATCHED: list[Any] = []
# Note [Marks]
# A mark on a parameter is lost where another one takes its place (FSDP2, assign=True), so the
# modules are remembered, and asked for their parameters when an optimizer steps.
_FOR_OGD: WeakSet[nn.Module] = WeakSet()


def watch_optimizers() -> None:
    """Look at the parameters of every optimizer before it steps, from now on."""
    if not _WATCHED:
        _WATCHED.append(register_optimizer_step_pre_hook(_before_step))


def only_ogd_steps(module: nn.Module) -> None:
    """From now on only OGD may step the parameter U of a module. Note [Marks]."""
    _FOR_OGD.add(module)
    watch_optimizers()


def orthogonal_parameters() -> set[int]:
    """The ids of all parameters that OGD steps along the group. Note [Marks]."""
    return {id(module._parameters.get("U")) for module in _FOR_OGD}


def _before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    keeps_orthogonal = getattr(optimizer, "keeps_orthogonal", False)
    orthogonal = set() if keeps_orthogonal else orthogonal_parameters()
    for group in optimizer.param_groups:
        for p in group["params"]:
            if isinstance(p, Tensor) and vars(p).get("forget_state"):
                optimizer.state.pop(p, None)
                del p.forget_state  # type: ignore[attr-defined]
            if id(p) in orthogonal and p.grad is not None:
                raise RuntimeError(
                    f"{type(optimizer).__name__} would not keep R of method 'ogd' orthogonal: "
                    f"train it with hypersphere.orthogonal.OGD, or choose another method, such as "
                    f"rotate(model, method='cayley')"
                )


def forget_state(p: Tensor) -> None:
    """Have whatever optimizer steps `p` next begin anew: its state belongs to an older p."""
    p.forget_state = True  # type: ignore[attr-defined]
    watch_optimizers()
