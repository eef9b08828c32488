"""Gradient descent that stays orthogonal (7.3.5), and the parameter groups it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.sgd import sgd

from .rotation import Matrix, rotations

# A matrix is pulled back to orthogonality before its estimated error exceeds this.
_DRIFT = 1e-6
# Note [Step length]
# The fixed point (7.6) converges for (lr / 2) |W| < 1; longer steps are cut to half of that.
_REACH = 0.5


class OGD(Optimizer):
    r"""Orthogonality-preserving gradient descent (Eq. 7.5, 7.6); SGD on everything else.

    For an orthogonal U with momentum M <- momentum M - grad,

        W = 1/2 (M U^T - U M^T),  M <- W U,
        Y_0 = U + lr M,  Y_{i+1} = U + lr/2 W (U + Y_i),  U <- Y_iterations,

    that is the W of 7.5 with U U^T = I used, and the momentum carried in the tangent space. (7.5 is
    printed with the gradient's own sign; descent needs the minus.) What two iterations leave of
    the Cayley transform, 4 (lr/2 \|W\|)^4, is followed and undone by a Newton-Schulz step
    U <- U (3 I - U^T U) / 2 as soon as the sum could pass 1e-6, so R stays orthogonal however long
    the training.

    Args:
        params: the groups of :func:`parameter_groups`; a group with ``orthogonal=True`` holds
            matrices (..., d, d) that start orthogonal. Weight decay does not apply to those.
        lr: learning rate of both parts; a group may have its own.
        momentum, weight_decay, nesterov: as in torch.optim.SGD.
        iterations: of the fixed point.

    >>> from hypersphere.orthogonal import orthogonality_error, rotate
    >>> layer = rotate(nn.Linear(8, 5), method="ogd")
    >>> optimizer = OGD(parameter_groups(layer), lr=0.1, momentum=0.9)
    >>> for _ in range(20):
    ...     optimizer.zero_grad()
    ...     layer(torch.randn(16, 8)).square().mean().backward()
    ...     optimizer.step()
    >>> orthogonality_error(layer) < 1e-5
    True
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.1,
        momentum: float = 0.0,
        iterations: int = 2,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        if lr < 0 or momentum < 0 or weight_decay < 0:
            raise ValueError(
                f"lr, momentum and weight_decay must not be negative; got {lr}, {momentum}, "
                f"{weight_decay}"
            )
        if iterations < 1:
            raise ValueError(f"iterations must be at least 1; got {iterations}")
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "iterations": iterations,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "orthogonal": False,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            if group["orthogonal"]:
                for U in group["params"]:
                    if U.grad is not None:
                        self._step_orthogonal(U, group)
            else:
                self._step_plain(group)
        return loss

    def _step_orthogonal(self, U: Tensor, group: dict[str, Any]) -> None:
        state = self.state[U]
        wide = torch.promote_types(U.dtype, torch.float32)
        R, M = U.to(wide), -U.grad.to(wide)  # type: ignore[union-attr]
        if group["momentum"] and "momentum_buffer" in state:
            M.add_(state["momentum_buffer"], alpha=group["momentum"])
        W = M @ R.mT
        W = (W - W.mT).mul_(0.5)
        M = W @ R
        if group["momentum"]:
            state["momentum_buffer"] = M
        size = torch.linalg.matrix_norm(W, keepdim=True)
        lr = (2 * _REACH / size.clamp_min(1e-30)).clamp_max(group["lr"])  # Note [Step length]
        base = torch.addcmul(R, M, 0.5 * lr)  # U + lr/2 W U
        Y = torch.addcmul(R, M, lr)
        for _ in range(group["iterations"]):
            Y = torch.addcmul(base, W @ Y, 0.5 * lr)
        reach = float((0.5 * lr * size).max())
        eps = torch.finfo(wide).eps
        order = 2 * ((group["iterations"] + 3) // 2)
        drift = state.get("drift", 0.0) + 8.0 * reach**order + eps
        while drift > max(_DRIFT, 4 * eps):
            Y = torch.sub(1.5 * Y, Y @ (Y.mT @ Y), alpha=0.5)
            drift = drift * drift + 2 * eps
        state["drift"] = drift
        U.copy_(Y)

    def _step_plain(self, group: dict[str, Any]) -> None:
        params = [p for p in group["params"] if p.grad is not None]
        if not params:
            return
        buffers = [self.state[p].get("momentum_buffer") for p in params]
        sgd(
            params,
            [p.grad for p in params],
            buffers,
            weight_decay=group["weight_decay"],
            momentum=group["momentum"],
            lr=group["lr"],
            dampening=0.0,
            nesterov=group["nesterov"],
            maximize=False,
        )
        if group["momentum"]:
            for p, buffer in zip(params, buffers, strict=True):
                self.state[p]["momentum_buffer"] = buffer


def parameter_groups(model: nn.Module, weight_decay: float = 5e-4) -> list[dict[str, Any]]:
    """Optimizer groups: rotation parameters without weight decay, the rest with.

    Rotations of method "ogd" come in a group of their own with ``orthogonal=True``, for
    :class:`OGD`. Parameters marked `no_weight_decay` (on themselves, or on their module by name)
    have none either. Frozen parameters, such as the neurons, are left out.

    >>> from hypersphere.orthogonal import rotate
    >>> model = nn.Sequential(rotate(nn.Linear(4, 4), "ogd"), nn.Linear(4, 2))
    >>> [(g["name"], g["weight_decay"], len(g["params"])) for g in parameter_groups(model)]
    [('orthogonal', 0.0, 1), ('decayed', 0.0005, 3)]
    """
    groups: dict[str, dict[str, Any]] = {
        "orthogonal": {"params": [], "weight_decay": 0.0, "orthogonal": True},
        "rotations": {"params": [], "weight_decay": 0.0},
        "undecayed": {"params": [], "weight_decay": 0.0},
        "decayed": {"params": [], "weight_decay": weight_decay},
    }
    kind: dict[int, str] = {}
    for _, _, _, rotation in rotations(model):
        for p in rotation.map.parameters():
            orthogonal = isinstance(rotation.map, Matrix) and rotation.map.method == "ogd"
            kind[id(p)] = "orthogonal" if orthogonal else "rotations"
    for module in model.modules():
        marked = getattr(module, "no_weight_decay", ())
        for name, p in module.named_parameters():
            if marked is True or name in (marked or ()) or getattr(p, "no_weight_decay", False):
                kind.setdefault(id(p), "undecayed")
    for p in model.parameters():
        if p.requires_grad:
            groups[kind.get(id(p), "decayed")]["params"].append(p)
    return [{"name": name, **group} for name, group in groups.items() if group["params"]]
