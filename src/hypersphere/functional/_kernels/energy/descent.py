"""L-BFGS for a crowd of point configurations at once.

Each configuration x moves along -H g, H the inverse Hessian as the last pairs (s, y) of steps and
changes of the gradient g show it: H_{k+1} = (I - rho s y^T) H_k (I - rho y s^T) + rho s s^T with
rho = 1 / s^T y, applied by the two-loop recursion and never formed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...angles import normalize

__all__ = ["Objective", "descend"]

Objective = Callable[[Tensor], tuple[Tensor, Tensor]]  # (R, n, d) -> (R,), (R, n, d)


def descend(
    objective: Objective,
    x: Tensor,
    iterations: int = 600,
    memory: int = 10,
    tolerance: float = 1e-11,
) -> tuple[Tensor, Tensor]:
    """L-BFGS for all configurations of a crowd (R, n, d) at once; each stops on its own.

    The energy ignores lengths, so its gradient is tangent and no constraint is needed.
    """
    final, energies = x.clone(), x.new_zeros(len(x))
    index = torch.arange(len(x))
    value, gradient = objective(x)
    steps: list[Tensor] = []
    changes: list[Tensor] = []
    quiet = torch.zeros(len(x), dtype=torch.long)
    for _ in range(iterations):
        direction = _two_loop(gradient, steps, changes)
        slope = (direction * gradient).sum((1, 2))
        lost = slope >= 0
        if bool(lost.any()):
            direction[lost] = -gradient[lost]
            slope = (direction * gradient).sum((1, 2))
        if not steps:  # no scale yet: move a fraction of the typical spacing
            direction = direction / direction.norm(dim=-1).amax(-1)[:, None, None]
            direction *= 0.3 * x.shape[1] ** (-1 / (x.shape[2] - 1))
            slope = (direction * gradient).sum((1, 2))
        new, new_value, new_gradient = _backtrack(objective, x, value, gradient, direction, slope)
        steps.append(new - x)
        changes.append(new_gradient - gradient)
        steps, changes = steps[-memory:], changes[-memory:]
        small = value - new_value <= tolerance * new_value.abs().clamp_min(1e-3)
        quiet = torch.where(small, quiet + 1, 0)
        x, value, gradient = new, new_value, new_gradient
        done = quiet >= 3
        if bool(done.any()):
            final[index[done]], energies[index[done]] = x[done], value[done]
            keep = ~done
            if not bool(keep.any()):
                return normalize(final), energies
            index, x, value, gradient, quiet = (t[keep] for t in (index, x, value, gradient, quiet))
            steps, changes = [t[keep] for t in steps], [t[keep] for t in changes]
    final[index], energies[index] = x, value
    return normalize(final), energies


def _two_loop(gradient: Tensor, steps: list[Tensor], changes: list[Tensor]) -> Tensor:
    """-H gradient by the L-BFGS recursion, one row per configuration; bad pairs count 0."""
    q = -gradient.flatten(1)
    pairs = []
    for step, change in zip(steps, changes, strict=True):
        a, b = step.flatten(1), change.flatten(1)
        curvature = (a * b).sum(1)
        usable = curvature > 1e-14 * b.square().sum(1)
        pairs.append((a, b, torch.where(usable, 1 / torch.where(usable, curvature, 1.0), 0.0)))
    alphas = []
    for a, b, rho in reversed(pairs):
        alpha = rho * (a * q).sum(1)
        alphas.append(alpha)
        q = q - alpha[:, None] * b
    if pairs:
        a, b, rho = pairs[-1]
        scale = 1 / (rho * b.square().sum(1)).clamp_min(1e-300)
        q = q * torch.where(rho > 0, scale, 1.0)[:, None]
    for (a, b, rho), alpha in zip(pairs, reversed(alphas), strict=True):
        q = q + (alpha - rho * (b * q).sum(1))[:, None] * a
    return q.view_as(gradient)


def _backtrack(
    objective: Objective,
    x: Tensor,
    value: Tensor,
    gradient: Tensor,
    direction: Tensor,
    slope: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Halve the step of those that did not go down enough (Armijo); after 12 halvings stay."""
    new = x + direction
    new_value, new_gradient = objective(new)
    factor = 1.0
    for trial in range(12):
        failed = ~(new_value <= value + 1e-4 * factor * slope)
        if not bool(failed.any()):
            break
        factor *= 0.5 if trial else 0.3
        some = x[failed] + factor * direction[failed]
        new[failed] = some
        new_value[failed], new_gradient[failed] = objective(some)
    worse = ~(new_value <= value)
    if bool(worse.any()):
        new[worse], new_value[worse], new_gradient[worse] = x[worse], value[worse], gradient[worse]
    return new, new_value, new_gradient
