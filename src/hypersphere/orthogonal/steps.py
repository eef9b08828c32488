"""What has to happen around an optimizer's step: refuse the wrong one, forget what is over."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

__all__ = ["forget_state", "watch_optimizers"]

_WATCHED: list[Any] = []


def watch_optimizers() -> None:
    """Look at the parameters of every optimizer before it steps, from now on."""
    if not _WATCHED:
        _WATCHED.append(register_optimizer_step_pre_hook(_before_step))


def _before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    keeps_orthogonal = getattr(optimizer, "keeps_orthogonal", False)
    for group in optimizer.param_groups:
        for p in group["params"]:
            marks = vars(p) if isinstance(p, Tensor) else {}
            if not marks:  # nearly every parameter
                continue
            if marks.get("forget_state"):
                optimizer.state.pop(p, None)
                del p.forget_state
            if marks.get("orthogonal") and not keeps_orthogonal and p.grad is not None:
                raise RuntimeError(
                    f"{type(optimizer).__name__} would not keep R of method 'ogd' orthogonal: "
                    f"train it with hypersphere.orthogonal.OGD, or choose another method, such as "
                    f"rotate(model, method='cayley')"
                )


def forget_state(p: Tensor) -> None:
    """Have whatever optimizer steps `p` next begin anew: its state belongs to an older p."""
    p.forget_state = True  # type: ignore[attr-defined]
    watch_optimizers()
