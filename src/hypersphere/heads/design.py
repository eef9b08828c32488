"""The rule a margin has to obey: psi(theta) <= g(theta) and decreasing on [0, pi] (Part I)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._optional import require
from ..functional.angular import Angular, angular
from ..functional.margins import Margin as Margin
from ..functional.margins import Psi, psi_value

__all__ = ["MarginCheck", "check_margin", "plot_margins"]


@dataclass(frozen=True)
class MarginCheck:
    """What `check_margin` found; true if the rule holds, and `str` says it in words.

    Args:
        finite: whether psi is finite on all of [0, pi].
        excess: largest psi - g.
        excess_at: the angle of it, in radians.
        rise: largest upward step.
        rise_at: the angle at which it ends, in radians.
        jump: largest downward step in excess of a steep slope.
        jump_at: the angle at which it ends, in radians.
        tolerance: what counts as zero.
    """

    finite: bool
    excess: float
    excess_at: float
    rise: float
    rise_at: float
    jump: float
    jump_at: float
    tolerance: float

    @property
    def below(self) -> bool:
        """psi(theta) <= g(theta): the target is never easier than without the margin."""
        return self.finite and self.excess <= self.tolerance

    @property
    def decreasing(self) -> bool:
        """psi never rises on [0, pi]."""
        return self.finite and self.rise <= self.tolerance

    @property
    def continuous(self) -> bool:
        """psi has no jump on [0, pi]."""
        return self.finite and self.jump <= self.tolerance

    def __bool__(self) -> bool:
        return self.below and self.decreasing

    def __str__(self) -> str:
        if not self.finite:
            return "psi is not finite on all of [0, pi]: a gradient would be lost there"
        found = []
        if not self.below:
            found.append(
                f"psi is {self.excess:.3g} above g at theta = {self.excess_at:.3f}: features there "
                f"are classified more easily than without margin; lower psi, it has to stay below g"
            )
        if not self.decreasing:
            found.append(
                f"psi rises by {self.rise:.3g} just before theta = {self.rise_at:.3f}: the "
                f"gradient pushes features away from their class there; continue it "
                f"downwards, e.g. by g(phi - k pi) - 2k"
            )
        if not self.continuous:
            found.append(
                f"psi jumps by {self.jump:.3g} at theta = {self.jump_at:.3f}: allowed, but the "
                f"loss jumps with it"
            )
        return "; ".join(found) or "psi is below g and decreasing on [0, pi]"


def check_margin(
    psi: Psi,
    kind: Angular = "cosine",
    k: float | None = None,
    points: int = 20_001,
    tolerance: float = 1e-9,
) -> MarginCheck:
    """Check on a fine grid of [0, pi] that psi <= g everywhere and psi never rises.

    Args:
        psi: a `Margin` or any callable of cos(theta).
        kind: the activation g that the other classes have.
        k: curvature of the sigmoid activation.
        points: points of the grid.
        tolerance: what counts as zero.

    Returns:
        True if the rule holds; printed, it says where it fails and what to do.

    >>> bool(check_margin(Margin(m=3)))
    True
    >>> print(check_margin(lambda cos: torch.cos(cos.acos() + 0.5)))  # not continued beyond pi - m
    psi is 0.122 above g at theta = 3.142: features there are classified more easily ...
    """
    theta, values, plain = _psi_curves(psi, kind, k, points)
    excess = values - plain
    steps = values.diff()
    # A jump is a step that does not shrink with the grid: far above its neighbors on both sides.
    size = steps.abs()
    around = torch.maximum(size.roll(1), size.roll(-1))
    around[0], around[-1] = size[1], size[-2]
    jump = torch.where(size > 20 * around + 1e-6, -steps, torch.zeros_like(steps))
    top, rise, fall = int(excess.argmax()), int(steps.argmax()), int(jump.argmax())
    return MarginCheck(
        finite=bool(values.isfinite().all()),
        excess=float(excess[top]),
        excess_at=float(theta[top]),
        rise=max(0.0, float(steps[rise])),
        rise_at=float(theta[rise + 1]),
        jump=max(0.0, float(jump[fall])),
        jump_at=float(theta[fall + 1]),
        tolerance=tolerance,
    )


def plot_margins(
    margins: Mapping[str, Psi] | Psi,
    kind: Angular = "cosine",
    k: float | None = None,
    ax: Any = None,
) -> Any:
    """psi over theta, beside g.

    Args:
        margins: a psi, or several by name.
        kind: the activation g that the other classes have.
        k: curvature of the sigmoid activation.
        ax: matplotlib axes to draw on. Default: new ones.

    Returns:
        The matplotlib axes.
    """
    if ax is None:
        _, ax = require("matplotlib.pyplot", extra="report").subplots(figsize=(5, 3.5))
    named = margins if isinstance(margins, Mapping) else {"psi": margins}
    for name, psi in named.items():
        theta, values, plain = _psi_curves(psi, kind, k, 1001)
        ax.plot(theta.rad2deg(), values, label=name)
    ax.plot(theta.rad2deg(), plain, color="black", linestyle="--", label="no margin")
    ax.set(xlabel="theta in degrees", ylabel="psi", xlim=(0, 180), xticks=range(0, 181, 30))
    ax.legend(loc="upper right")  # psi falls
    return ax


def _psi_curves(
    psi: Psi, kind: Angular, k: float | None, points: int
) -> tuple[Tensor, Tensor, Tensor]:
    theta = torch.linspace(0, math.pi, points, dtype=torch.float64)
    cos = theta.cos()
    with torch.no_grad():
        plain = angular(cos, kind, k)
        values = psi_value(psi, cos, kind, k)
    if values.shape != cos.shape:
        raise ValueError(
            f"psi maps cos(theta) to one number each: expected shape {tuple(cos.shape)}, "
            f"got {tuple(values.shape)}"
        )
    return theta, values, plain
