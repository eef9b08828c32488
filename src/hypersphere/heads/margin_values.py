"""Margins that are not one number: one per class, one per update, one per sample.

A head asks such a margin for what it is now: `bind(features, labels)` gives a `Margin` whose
numbers are tensors that broadcast against the angles. Whatever a margin remembers is in the state
dict of its head.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from ..functional.margins import MARGIN_RANGES, Margin, Psi

__all__ = [
    "HeldMargin",
    "MarginSchedule",
    "MarginValue",
    "bound",
    "long_tail_margins",
    "make_held_margin",
]

Role = Literal["m", "shift", "subtract"]


class MarginSchedule(nn.Module):
    """A margin that changes in the course of training: from `start` to `end`, linearly.

    It is `start` until update `begin`, and `end` after `steps` more. Give it to a head in place of
    a number, and call `step()` once per update (training does so):

        head = hs.heads.ArcFaceHead(512, 1000, m=hs.heads.MarginSchedule(0.0, 0.5, steps=5000))

    It is part of the head's state dict, numbers and t both, so a resumed run goes on where it was.

    Args:
        start: the margin at first.
        end: the margin at last.
        steps: updates from one to the other, >= 0.
        begin: updates before the first change, >= 0.
        iteration: t to begin with.

    >>> schedule = MarginSchedule(0.0, 0.5, steps=4)
    >>> for _ in range(3):
    ...     schedule.step()
    >>> schedule.value
    0.375
    """

    iteration: Tensor

    def __init__(
        self,
        start: float = 0.0,
        end: float = 0.5,
        steps: int = 1000,
        begin: int = 0,
        iteration: int = 0,
    ) -> None:
        super().__init__()
        if not (math.isfinite(start) and math.isfinite(end)):
            raise ValueError(f"MarginSchedule expects finite margins, got {start} and {end}")
        if min(steps, begin, iteration) < 0:
            raise ValueError(
                f"MarginSchedule expects steps, begin, iteration >= 0, got {steps}, {begin} and "
                f"{iteration}"
            )
        self.start, self.end, self.steps, self.begin = float(start), float(end), steps, begin
        # A tensor, so that a compiled step does not compile anew at each update; saved below.
        self.register_buffer("iteration", torch.tensor(iteration), persistent=False)

    def at(self, t: int) -> float:
        """The margin after t steps.

        Args:
            t: number of updates.

        Returns:
            The margin.
        """
        share = min(1.0, max(0.0, (t - self.begin) / self.steps)) if self.steps else 1.0
        return self.start + share * (self.end - self.start) if t >= self.begin else self.start

    @property
    def value(self) -> float:
        """The margin now."""
        return self.at(int(self.iteration))

    def forward(self) -> Tensor:
        """The margin now, as a scalar tensor: what the head computes with."""
        t = self.iteration.to(torch.float32) - self.begin
        share = (t / self.steps).clamp(0, 1) if self.steps else (t >= 0).to(torch.float32)
        return self.start + share * (self.end - self.start)

    def step(self) -> None:
        """Count one update."""
        self.iteration += 1

    def reset_state(self, device: torch.device) -> None:
        """Back to t = 0, on a device; for a head that was made without one.

        Args:
            device: where t is kept.
        """
        self.register_buffer("iteration", torch.tensor(0, device=device), persistent=False)

    def get_extra_state(self) -> Tensor:
        # One tensor: every checkpoint format can hold it, and no cast of the module touches it.
        numbers = [self.start, self.end, self.steps, self.begin, int(self.iteration)]
        return torch.tensor(numbers, dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        self.start, self.end, *counts = state.tolist()
        self.steps, self.begin, iteration = (int(count) for count in counts)
        self.iteration.fill_(iteration)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        state_dict.setdefault(f"{prefix}_extra_state", self.get_extra_state())
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __repr__(self) -> str:
        return (
            f"MarginSchedule(start={self.start:g}, end={self.end:g}, steps={self.steps}, "
            f"begin={self.begin}, iteration={int(self.iteration)})"
        )


MarginValue: TypeAlias = float | Sequence[float] | Tensor | MarginSchedule | Mapping[str, Any]


class HeldMargin(nn.Module):
    """A `Margin` with one of its numbers per class, or from a schedule.

    Features (B, d) and labels (B,) -> a `Margin`. `head.margin` is one if a head was given a tensor
    or a schedule for its m. A checkpoint without margins leaves those of the head as they are.

    Args:
        role: the number of `Margin` that is held: "m", "shift" or "subtract".
        value: (C,) tensor, one number per class, or a `MarginSchedule`.
        beyond: as in `Margin`.
    """

    per_class: Tensor | None

    def __init__(
        self,
        role: Role,
        value: Tensor | MarginSchedule,
        beyond: Literal["falling", "flat"] = "falling",
    ) -> None:
        super().__init__()
        self.role, self.beyond = role, beyond
        self.schedule = value if isinstance(value, MarginSchedule) else None
        per_class = None if isinstance(value, MarginSchedule) else value.detach().float().clone()
        self.register_buffer("per_class", per_class)
        least, most = MARGIN_RANGES[role]
        if isinstance(value, MarginSchedule):
            low, high = sorted((value.start, value.end))
        else:
            low, high = float(value.min()), float(value.max())
        if not (least <= low and high < most):
            raise ValueError(
                f"expected margins in [{least:g}, {most:.4g}), got {low:.4g} to {high:.4g}"
            )

    def bind(self, features: Tensor, labels: Tensor | None) -> Margin:
        """The margin of a batch.

        Args:
            features: (B, d).
            labels: (B,) integers, those below 0 of no class; None for all classes at once.

        Returns:
            A `Margin` with a number per sample, per class (C,) without labels, or one for all.
        """
        if self.schedule is not None:
            now = self.schedule()
        else:
            assert self.per_class is not None
            now = self.per_class if labels is None else self.per_class[labels.clamp_min(0)]
        values: dict[str, Any] = {self.role: now}
        return Margin(beyond=self.beyond, **values)

    def forward(self, cos: Tensor) -> Tensor:
        """psi of the schedule's present margin; cosines and result of any one shape."""
        if self.schedule is None:
            raise ValueError("margins per class need labels: call bind(features, labels)")
        return self.bind(cos, None)(cos)

    def typical(self) -> float:
        """One number for what is held: the mean over classes, or the end of the schedule.

        Returns:
            The number.
        """
        if self.schedule is not None:
            return self.schedule.end
        assert self.per_class is not None
        return float(self.per_class.mean())

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        if self.per_class is not None:
            state_dict.setdefault(f"{prefix}per_class", self.per_class)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __repr__(self) -> str:
        held = self.schedule
        if held is None:
            assert self.per_class is not None
            low, high = float(self.per_class.min()), float(self.per_class.max())
            return f"HeldMargin({self.role} per class, {low:.3g} to {high:.3g})"
        return f"HeldMargin({self.role}={held!r})"


def make_held_margin(
    role: Role,
    m: Any,
    num_classes: int,
    beyond: Literal["falling", "flat"] = "falling",
) -> Margin | HeldMargin:
    """The margin of a head from its argument m.

    Args:
        role: which number of `Margin` it is.
        m: a number, numbers per class (a tensor or a list), a `MarginSchedule`, or the settings of
            one as a config has them, such as ``{"start": 0.0, "end": 0.5, "steps": 1000}``.
        num_classes: number of classes C.
        beyond: as in `Margin`.

    Returns:
        A `Margin` for a number, else a `HeldMargin`.
    """
    if isinstance(m, Mapping):
        m = MarginSchedule(**m)
    if isinstance(m, MarginSchedule):
        return HeldMargin(role, m, beyond)
    if isinstance(m, (Tensor, list, tuple)) or getattr(m, "ndim", 0) == 1:
        values = torch.as_tensor(m)
        if values.ndim != 0:
            if tuple(values.shape) != (num_classes,):
                raise ValueError(
                    f"expected margins of shape ({num_classes},), one per class; "
                    f"got {tuple(values.shape)}"
                )
            return HeldMargin(role, values, beyond)
        m = values.item()
    numbers: dict[str, Any] = {role: m}
    return Margin(beyond=beyond, **numbers)


def bound(margin: Any, features: Tensor, labels: Tensor | None) -> Psi:
    """What a margin is for a batch.

    Args:
        margin: a margin of a head.
        features: (B, d).
        labels: (B,) integers; None for all classes at once.

    Returns:
        What its method `bind` gives, or the margin itself if it has none.
    """
    bind = getattr(margin, "bind", None)
    psi: Psi = margin if bind is None else bind(features, labels)
    return psi


def long_tail_margins(counts: Tensor, largest: float = 0.5, power: float = 0.25) -> Tensor:
    """Margins per class, larger for rarer ones: largest (n_min / n_j)^power (LDAM, 2019).

    With power 1/4 they balance the error bounds of frequent and rare classes.

    Args:
        counts: (C,) samples of each class, > 0.
        largest: margin of the rarest class.
        power: exponent; 0 gives all classes the same margin.

    Returns:
        Margins (C,), to be given to a head as its m.

    >>> long_tail_margins(torch.tensor([16, 1]))
    tensor([0.2500, 0.5000])
    """
    counts = torch.as_tensor(counts)
    if counts.ndim != 1 or not bool((counts > 0).all()):
        raise ValueError(
            f"expected the number of samples of each class, (C,) and > 0; got shape "
            f"{tuple(counts.shape)}"
            + (f" with {int((counts <= 0).sum())} classes without samples" if counts.ndim else "")
        )
    numbers = counts.to(torch.get_default_dtype())
    return largest * (numbers.min() / numbers).pow(power)
