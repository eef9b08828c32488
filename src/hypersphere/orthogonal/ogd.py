"""Gradient descent that stays orthogonal (7.3.5)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.sgd import sgd

from ..functional.host import known
from ..functional.orthogonalize import half_product, spectral_norm
from .block_matrix import mark_orthogonal
from .pretrained import whole
from .steps import orthogonal_parameters
from .task_values import put_value

# Note [Step length]
# The fixed point (7.6) converges for (lr / 2) |W| < 1; longer steps are cut to half of that.
_REACH = 0.5
# Note [Drift]
# With b = (lr / 2) |W|_2, two iterations leave |Y^T Y - I| <= 4 b^4: the series of the Cayley
# transform is cut after its third power. The sum over the steps, with one rounding error each, is
# followed; before it passes this bound the matrix is pulled back.
_DRIFT = 4e-6
# The norm of the highest power of W bounds b to some ten percent. From this size of W and this
# drift, in units of rounding errors, on, estimating |W|_2 costs less than the Newton-Schulz steps
# that it spares.
_LARGE, _LOOK = 384, 8.0
# Note [Not waiting]
# On an accelerator |W| is not waited for: the step is cut there, and each step pulls back.


class OGD(Optimizer):
    r"""Orthogonality-preserving gradient descent (Eq. 7.5, 7.6); SGD on everything else.

    For an orthogonal U with gradient G,

        W <- momentum W - 1/2 (G U^T - U G^T),
        Y_0 = U + lr W U,  Y_{i+1} = U + lr/2 W (U + Y_i),  U <- Y_iterations.

    The W of 7.5 becomes 1/2 (G U^T - U G^T) with U U^T = I. 7.5 is printed with the gradient's own
    sign; descent needs the minus. Momentum is kept as the skew W: W U is tangent at every U, and
    along its own Cayley curve it is carried without change. What the iterations leave of the
    Cayley transform is followed and undone by a Newton-Schulz step U <- U (3 I - U^T U) / 2 before
    it can pass 4e-6, so R stays orthogonal however long the training.

    Args:
        params: the groups of :func:`parameter_groups`, or any others: the matrices of
            ``rotate(method="ogd")`` are known by their mark. A group with ``orthogonal=True`` holds
            further matrices (..., d, d) that start orthogonal. Weight decay does not apply to them.
        lr: learning rate of both parts; a group may have its own.
        momentum: as in torch.optim.SGD.
        iterations: iterations of the fixed point, >= 1.
        weight_decay: as in torch.optim.SGD; not for the matrices.
        nesterov: as in torch.optim.SGD; for the matrices the direction is momentum W plus the
            newest term of W.

    >>> from hypersphere.orthogonal import orthogonality_error, parameter_groups, rotate
    >>> layer = rotate(torch.nn.Linear(8, 5), method="ogd")
    >>> optimizer = OGD(parameter_groups(layer), lr=0.1, momentum=0.9)
    >>> for _ in range(20):
    ...     optimizer.zero_grad()
    ...     layer(torch.randn(16, 8)).square().mean().backward()
    ...     optimizer.step()
    >>> orthogonality_error(layer) < 1e-5
    True
    """

    keeps_orthogonal = True

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
        if nesterov and momentum == 0:
            raise ValueError("nesterov needs a momentum above 0; got momentum=0")
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
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step on all parameters that have a gradient.

        Args:
            closure: computes the loss and its gradients anew. Default: gradients are there.

        Returns:
            The loss of the closure, or None.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        marked = orthogonal_parameters()
        for group in self.param_groups:
            plain = []
            for p in group["params"]:
                if p.grad is None:
                    continue
                if group["orthogonal"] or id(p) in marked:
                    self._step_orthogonal(p, group)
                else:
                    plain.append(p)
            if plain:
                self._step_plain(plain, group)
        return loss

    def _step_orthogonal(self, U: Tensor, group: dict[str, Any]) -> None:
        state = self.state[U]
        wide = torch.promote_types(U.dtype, torch.float32)
        # What FSDP2 has sharded is gathered: every process takes the same step on whole matrices.
        R = whole(U).to(wide).reshape(-1, *U.shape[-2:])
        W = whole(cast(Tensor, U.grad)).to(wide).reshape(R.shape) @ R.mT
        W = (W - W.mT).mul_(-0.5)  # in this order it lies by rows, as W does
        if group["momentum"]:
            past = state.get("momentum_buffer")
            # Loading a state casts the buffer to the type of the parameter.
            total = W if past is None else past.to(wide).mul_(group["momentum"]).add_(W)
            state["momentum_buffer"] = total
            W = W.add(total, alpha=group["momentum"]) if group["nesterov"] else total
        size = _norm_bound(W)
        put_value(U, self._moved(R, W, size, group, state).reshape(U.shape).to(U.dtype))
        mark_orthogonal(U)

    def _moved(
        self, R: Tensor, W: Tensor, size: Tensor, group: dict[str, Any], state: Any
    ) -> Tensor:
        """R along W, orthogonal; Note [Step length]."""
        found = known(size)
        if found is None:  # Note [Not waiting]
            cut = torch.clamp(2.0 * _REACH / size.clamp_min(1e-30), max=float(group["lr"]))
            W, Y = W * cut, R
            for _ in range(group["iterations"]):
                Y = torch.baddbmm(R, W, Y, alpha=0.5)
            Y = torch.baddbmm(R, W, Y)
            return torch.baddbmm(Y, Y, Y.mT @ Y, beta=1.5, alpha=-0.5)
        lr = min(float(group["lr"]), 2.0 * _REACH / max(found, 1e-30))
        count = group["iterations"] + 1
        total, power = _powers(W, lr / 2, count)
        b = cast(float, known(_norm_bound(power))) * lr / 2  # of (lr/2 W)^count
        Y = torch.baddbmm(R, total, R, alpha=lr)
        return self._pulled_back(Y, W, b ** (1 / count), lr, group, state)

    def _pulled_back(
        self, Y: Tensor, W: Tensor, b: float, lr: float, group: dict[str, Any], state: Any
    ) -> Tensor:
        """Y, orthogonal again where it could have left. Note [Drift]."""
        eps = torch.finfo(Y.dtype).eps
        power = 2 * ((group["iterations"] + 3) // 2)
        if W.shape[-1] >= _LARGE and 4.0 * b**power > _LOOK * eps:
            b = min(b, 1.2 * lr / 2 * spectral_norm(W))
        drift = state.get("drift", 0.0) + 4.0 * b**power + eps
        while drift > max(_DRIFT, 8 * eps):
            Y = torch.baddbmm(Y, Y, half_product(Y, Y, turned=True), beta=1.5, alpha=-0.5)
            drift = drift * drift + 2 * eps
        state["drift"] = drift
        return Y

    def _step_plain(self, params: list[Tensor], group: dict[str, Any]) -> None:
        buffers = [self.state[p].get("momentum_buffer") for p in params]
        sgd(
            params,
            [cast(Tensor, p.grad) for p in params],
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


def _powers(W: Tensor, factor: float, count: int) -> tuple[Tensor, Tensor]:
    """W + c W^2 + ... + c^(count - 1) W^count of skew matrices, and the last term; count >= 2.

    With c = lr/2, the fixed point of 7.6 after i iterations is U + lr (W + ... + c^i W^(i+1)) U.
    Powers are symmetric or skew, which is half the work of a product with U; one of those is left.
    """
    power = half_product(W, W, scale=factor)
    total = W + power
    for k in range(3, count + 1):
        power = half_product(W, power, sign=-1 if k % 2 else 1, scale=factor)
        total += power
    return total, power


def _norm_bound(power: Tensor) -> Tensor:
    """At least |W^k|_2, the largest of a batch: |W^k|_F / sqrt 2, as eigenvalues come in pairs."""
    bound: Tensor = torch.linalg.matrix_norm(power).max() / math.sqrt(2.0)
    return bound
