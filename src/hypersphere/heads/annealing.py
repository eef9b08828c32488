"""The lambda of annealing: from an easy loss to the full margin (2.2.7, A.7)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .._optional import require

__all__ = ["LambdaAnnealing"]


class LambdaAnnealing(nn.Module):
    """lambda(t) = max(minimum, base (1 + gamma t)^-power) after t steps.

    The target's score is (lambda g + psi) / (1 + lambda): nearly the loss without margin at first,
    then more and more of the margin. Give it to a head, and call `step()` once per update:

        head.annealing = LambdaAnnealing.sphereface()

    It is part of the head's state dict, numbers and t both, so a resumed run goes on where it was
    (in the released layers t started over). What is loaded replaces what was set, also nothing; a
    checkpoint without a schedule leaves it as it is. Called, it returns lambda as a scalar tensor.

    Args:
        base: lambda at t = 0, >= 0.
        gamma: how fast lambda falls, >= 0.
        power: exponent of the fall, >= 0.
        minimum: where lambda stops, >= 0.
        iteration: t to begin with, >= 0.

    >>> annealing = LambdaAnnealing(base=1000.0, gamma=0.12, power=1.0, minimum=5.0)
    >>> annealing.value
    1000.0
    >>> for _ in range(10_000):
    ...     annealing.step()
    >>> annealing.value
    5.0
    """

    iteration: Tensor

    def __init__(
        self,
        base: float = 1000.0,
        gamma: float = 0.12,
        power: float = 1.0,
        minimum: float = 5.0,
        iteration: int = 0,
    ) -> None:
        super().__init__()
        for name, number in (
            ("base", base),
            ("gamma", gamma),
            ("power", power),
            ("minimum", minimum),
            ("iteration", iteration),
        ):
            if not number >= 0:
                raise ValueError(f"LambdaAnnealing expects {name} >= 0, got {number}")
        self.base, self.gamma, self.power, self.minimum = base, gamma, power, minimum
        # A tensor, so that a compiled step does not compile anew for each lambda; saved below.
        self.register_buffer("iteration", torch.tensor(iteration), persistent=False)

    @classmethod
    def sphereface(cls) -> LambdaAnnealing:
        """A-Softmax on faces: the released SphereFace layer, 1000 (1 + 0.12 t)^-1, at least 5.

        Returns:
            The schedule.
        """
        return cls(base=1000.0, gamma=0.12, power=1.0, minimum=5.0)

    @classmethod
    def lsoftmax_mnist(cls) -> LambdaAnnealing:
        """L-Softmax on MNIST: the released layer's example, 1000 (1 + 2.5e-5 t)^-35, down to 0.

        Returns:
            The schedule.
        """
        return cls(base=1000.0, gamma=2.5e-5, power=35.0, minimum=0.0)

    def at(self, t: int) -> float:
        """lambda after t steps.

        Args:
            t: number of updates.

        Returns:
            lambda.
        """
        falling: float = self.base * (1 + self.gamma * t) ** -self.power
        return max(self.minimum, falling)

    @property
    def value(self) -> float:
        """lambda now."""
        return self.at(int(self.iteration))

    def forward(self) -> Tensor:
        """lambda now, as a tensor: what the head computes with."""
        t = self.iteration.to(torch.float32)
        return (self.base * (1 + self.gamma * t) ** -self.power).clamp_min(self.minimum)

    def step(self) -> None:
        """Count one update."""
        self.iteration += 1

    def steps_to_minimum(self) -> int | None:
        """After how many steps lambda reaches its minimum.

        Returns:
            The number of steps; None if it never does.

        >>> LambdaAnnealing.sphereface().steps_to_minimum()
        1659
        """
        if self.base <= self.minimum:
            return 0
        if self.minimum == 0 or self.gamma == 0 or self.power == 0:
            return None
        t = ((self.base / self.minimum) ** (1 / self.power) - 1) / self.gamma
        return int(-(-t // 1))

    def plot(self, steps: int = 30_000, ax: Any = None) -> Any:
        """lambda over the updates, on a logarithmic axis.

        Args:
            steps: updates to show.
            ax: matplotlib axes to draw on. Default: new ones.

        Returns:
            The matplotlib axes.
        """
        if ax is None:
            _, ax = require("matplotlib.pyplot", extra="report").subplots(figsize=(5, 3))
        times = sorted({round(steps * i / 500) for i in range(501)})
        ax.plot(times, [self.at(t) for t in times])
        if self.iteration > 0:
            ax.axvline(int(self.iteration), linestyle=":", color="gray", label="now")
            ax.legend(loc="upper right")  # lambda falls
        # symlog, because lambda may go down to 0
        ax.set(xlabel="update", ylabel="lambda", yscale="symlog", title=repr(self))
        return ax

    def get_extra_state(self) -> Tensor:
        # One tensor: every checkpoint format can hold it, and no cast of the module touches it.
        numbers = [self.base, self.gamma, self.power, self.minimum, int(self.iteration)]
        return torch.tensor(numbers, dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        *schedule, iteration = state.tolist()
        self.base, self.gamma, self.power, self.minimum = schedule
        self.iteration.fill_(int(iteration))

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        state_dict.setdefault(f"{prefix}_extra_state", self.get_extra_state())
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __repr__(self) -> str:
        return (
            f"LambdaAnnealing(base={self.base:g}, gamma={self.gamma:g}, power={self.power:g}, "
            f"minimum={self.minimum:g}, iteration={int(self.iteration)})"
        )
