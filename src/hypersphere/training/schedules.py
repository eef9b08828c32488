"""Learning-rate schedules in iterations, as the dissertation states them.

Each is a factor on the base learning rate, a plain function of the number t of finished updates, so
that resuming needs nothing but t; only "divided by 10 when saturated" has a memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.optim import Optimizer

from hypersphere.ranges import LARGEST_RATE
from hypersphere.training.diagnose import NotFinite

__all__ = ["LearningRate", "Plateau", "constant", "every", "half_cosine", "linear_ramp", "steps"]

Factor = Callable[[int], float]


def constant() -> Factor:
    """Factor 1 throughout."""
    return lambda t: 1.0


def steps(at: Sequence[int], factor: float = 0.1) -> Factor:
    """Multiply by `factor` at each iteration of `at`: "divided by 10 at 16K and 24K iterations"
    (2.3.6).

    >>> f = steps([16000, 24000]); [round(f(t), 6) for t in (15999, 16000, 24000)]
    [1.0, 0.1, 0.01]
    """
    marks = sorted(at)
    return lambda t: factor ** sum(t >= mark for mark in marks)


def every(period: int, factor: float = 0.7) -> Factor:
    """Multiply by `factor` once per `period` iterations (PointNet, F.3).

    >>> every(200_000, 0.7)(400_000)
    0.48999999999999994
    """
    return lambda t: factor ** (t // period)


def half_cosine(total: int, end: float = 0.0) -> Factor:
    """Half a cosine from 1 at t = 0 to `end` at t = total.

    >>> f = half_cosine(100); [round(f(t), 6) for t in (0, 50, 100, 150)]
    [1.0, 0.5, 0.0, 0.0]
    """
    return lambda t: end + (1 - end) * 0.5 * (1 + math.cos(math.pi * min(t, total) / total))


def linear_ramp(length: int) -> Factor:
    """From 1/length to 1 over the first `length` iterations; 1 at once if length = 0."""
    return lambda t: min(1.0, (t + 1) / length) if length > 0 else 1.0


@dataclass
class Plateau:
    """Divide by 1/`factor` when the watched value has not improved for `patience` observations
    (4.6, E.1, F.3).

    >>> p = Plateau(patience=2)
    >>> [p.observe(v) or p(0) for v in (1.0, 0.9, 0.9, 0.9)]
    [1.0, 1.0, 1.0, 0.1]
    """

    factor: float = 0.1
    patience: int = 5
    threshold: float = 1e-3  # an improvement has to exceed this, so that noise is not progress
    minimum: float = 1e-4  # never below this share of the base learning rate
    value: float = 1.0
    best: float = field(default=math.inf)
    waited: int = 0

    def __call__(self, t: int) -> float:
        return self.value

    def observe(self, loss: float) -> None:
        """Take one value of what should go down (the test loss or error)."""
        if loss < self.best - self.threshold:
            self.best, self.waited = loss, 0
            return
        self.waited += 1
        if self.waited >= self.patience:
            self.value, self.waited = max(self.minimum, self.value * self.factor), 0

    def state_dict(self) -> dict[str, float]:
        return {"value": self.value, "best": self.best, "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value, self.best, self.waited = state["value"], state["best"], state["waited"]


class LearningRate:
    """Sets the learning rates of an optimizer before update t: base x factor(t) x warm-up(t).

    Groups keep their own base rate (e.g. one for rotations), read once from the optimizer.
    """

    def __init__(self, optimizer: Optimizer, factor: Factor, warmup: int = 0) -> None:
        self.optimizer = optimizer
        self.factor = factor
        self.warmup = linear_ramp(warmup)
        self.base = [float(group["lr"]) for group in optimizer.param_groups]

    def set(self, t: int) -> float:
        """Apply the schedule for update t; returns the first group's rate."""
        try:
            scale = self.factor(t) * self.warmup(t)
        except OverflowError:  # a power beyond float64
            scale = math.inf
        largest = max(self.base, default=0.0) * scale
        if not largest <= LARGEST_RATE:
            raise NotFinite(
                f"the learning rate of step {t} is {largest:.3g}; expected at most "
                f"{LARGEST_RATE:g}: look at optimizer.lr and schedule.factor"
            )
        for group, base in zip(self.optimizer.param_groups, self.base, strict=True):
            group["lr"] = base * scale
        return self.base[0] * scale

    def observe(self, loss: float) -> None:
        if isinstance(self.factor, Plateau):
            self.factor.observe(loss)

    def state_dict(self) -> dict[str, Any]:
        memory = self.factor.state_dict() if isinstance(self.factor, Plateau) else None
        return {"base": self.base, "plateau": memory}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.base = state["base"]
        if state["plateau"] is not None and isinstance(self.factor, Plateau):
            self.factor.load_state_dict(state["plateau"])
