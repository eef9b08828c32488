"""Margins that depend on the length of the feature, which tells the quality of a picture."""

from __future__ import annotations

from collections.abc import Sized
from typing import Annotated

import torch
from torch import Tensor, nn

from ..functional.angles import row_norm
from ..functional.margins import Margin
from ..ranges import Range
from ..registry import register
from .collectives import joint_sum

__all__ = ["AdaptiveMargin", "MagnitudeMargin"]


def _norms(features: Tensor) -> Tensor:
    return row_norm(features.to(torch.promote_types(features.dtype, torch.float32)))


@register("margin", "adaptive", source="AdaFace (2022), Eq. 8-10")
class AdaptiveMargin(nn.Module):
    """psi = cos(theta - m q) - m (1 + q), with the quality q in [-1, 1] of each sample (AdaFace).

    q = h (|x| - mean) / std, clipped, is the length of the feature against the running mean and
    standard deviation of lengths. Low quality (q = -1) gives an additive angular margin, which
    spends little gradient on hard samples, high quality (q = 1) one that stresses them. No gradient
    flows through q. Features (B, d) and labels (B,) -> a `Margin`.

    Args:
        m: the margin, one number for all classes.
        h: how many standard deviations fill the range of q: q = 1 is 1 / h of them.
        momentum: share of the current batch in the running statistics.

    >>> margin = AdaptiveMargin(m=0.4)
    >>> margin.bind(torch.full((1, 4), 10.0), None)  # as long as the mean: q = 0
    Margin(m=1.0, shift=tensor([[-0.]]), subtract=tensor([[0.4000]]))
    """

    mean: Tensor
    std: Tensor
    sync = False  # whether a batch is that of all processes; `training.synchronize` turns it on

    def __init__(
        self,
        m: Annotated[float, Range(ge=0, lt=1.5)] = 0.4,
        h: Annotated[float, Range(gt=0)] = 0.333,
        momentum: Annotated[float, Range(gt=0, le=1)] = 0.99,
    ) -> None:
        super().__init__()
        if isinstance(m, Tensor) and m.ndim == 0:
            m = float(m)
        if not isinstance(m, (int, float)):
            got = f"{len(m)} numbers" if isinstance(m, Sized) else f"a {type(m).__name__}"
            raise ValueError(
                f"expected one number m for all classes, got {got}: it is the quality that varies "
                "this margin. ArcFaceHead and AMSoftmaxHead take numbers per class and schedules"
            )
        if not 0 <= m < 1.5 or not h > 0 or not 0 < momentum <= 1:
            raise ValueError(
                f"expected m in [0, 1.5), h > 0 and momentum in (0, 1]; got {m}, {h}, {momentum}"
            )
        self.m, self.h, self.momentum = m, h, momentum
        self.reset_state()

    def reset_state(self, device: torch.device | None = None) -> None:
        """The statistics at the start, where the released code has them; the first batch replaces
        nearly all of that.

        Args:
            device: where they are kept. Default: torch's default device.
        """
        self.register_buffer("mean", torch.tensor(20.0, device=device))
        self.register_buffer("std", torch.tensor(100.0, device=device))

    @torch.no_grad()
    def observe(self, features: Tensor, labels: Tensor) -> None:
        """Take a training batch into the running statistics.

        Args:
            features: (B, d).
            labels: (B,) integers; samples below 0 do not count.
        """
        norms, counts = _norms(features).clamp(1e-3, 100), (labels >= 0).float()
        number, total = joint_sum(torch.stack([counts.sum(), (norms * counts).sum()]), self.sync)
        mean = total / number.clamp_min(1)
        distances = joint_sum(((norms - mean).square() * counts).sum(), self.sync)
        square = distances / (number - 1).clamp_min(1)
        self.mean.copy_(
            torch.where(number > 0, self.mean.lerp(mean.to(self.mean), self.momentum), self.mean)
        )
        # One length has no spread.
        new = self.std.lerp(square.sqrt().to(self.std), self.momentum)
        self.std.copy_(torch.where(number > 1, new, self.std))

    @torch.no_grad()
    def quality(self, features: Tensor) -> Tensor:
        """q of each sample.

        Args:
            features: (B, d).

        Returns:
            (B,), in [-1, 1].
        """
        norms = _norms(features).clamp(1e-3, 100)
        return (self.h * (norms - self.mean) / (self.std + 1e-3)).clamp(-1, 1)

    def bind(self, features: Tensor, labels: Tensor | None) -> Margin:
        """The margin of a batch.

        Args:
            features: (B, d).
            labels: (B,) integers; None for all classes at once.

        Returns:
            A `Margin` with numbers (B,), or (B, 1) without labels.
        """
        q = self.quality(features)
        q = q if labels is not None else q[:, None]
        return Margin(shift=-self.m * q, subtract=self.m * (1 + q))

    def extra_repr(self) -> str:
        return f"m={self.m:g}, h={self.h:g}, momentum={self.momentum:g}"


@register("margin", "magnitude", source="MagFace (2021), Eq. 3-6")
class MagnitudeMargin(nn.Module):
    """psi = cos(theta + m(|x|)): the longer a feature, the larger its margin (MagFace).

    m rises linearly from `low` at |x| = `shortest` to `high` at `longest`, and is constant beyond.
    Its gradient moves the lengths: together with the `penalty`, samples near their class become
    long and others stay short. Features (B, d) and labels (B,) -> a `Margin`.

    Args:
        low: margin of short features, in radians.
        high: margin of long features, in radians.
        shortest: length below which the margin is `low`.
        longest: length above which it is `high`.
        pull: weight of the penalty; lambda_g of the paper.

    >>> MagnitudeMargin().bind(torch.full((1, 4), 30.0), None)  # |x| = 60
    Margin(m=1.0, shift=tensor([[0.6250]]), subtract=0.0)
    """

    def __init__(
        self,
        low: Annotated[float, Range(ge=0, lt=3)] = 0.45,
        high: Annotated[float, Range(ge=0, lt=3)] = 0.8,
        shortest: Annotated[float, Range(gt=0)] = 10.0,
        longest: Annotated[float, Range(gt=0)] = 110.0,
        pull: Annotated[float, Range(ge=0)] = 35.0,
    ) -> None:
        super().__init__()
        if not 0 <= low <= high < 3 or not 0 < shortest < longest or not pull >= 0:
            raise ValueError(
                f"expected 0 <= low <= high < 3 (radians), 0 < shortest < longest and pull >= 0; "
                f"got {low}, {high}, {shortest}, {longest}, {pull}"
            )
        self.low, self.high, self.pull = low, high, pull
        self.shortest, self.longest = shortest, longest

    def _lengths(self, features: Tensor) -> Tensor:
        return _norms(features).clamp(self.shortest, self.longest)

    def bind(self, features: Tensor, labels: Tensor | None) -> Margin:
        """The margin of a batch.

        Args:
            features: (B, d).
            labels: (B,) integers; None for all classes at once.

        Returns:
            A `Margin` with numbers (B,), or (B, 1) without labels.
        """
        slope = (self.high - self.low) / (self.longest - self.shortest)
        shift = self.low + slope * (self._lengths(features) - self.shortest)
        return Margin(shift=shift if labels is not None else shift[:, None])

    def penalty(self, features: Tensor) -> Tensor:
        """pull (1 / |x| + |x| / longest^2), smallest at |x| = longest; lengths as for the margin.

        Args:
            features: (B, d).

        Returns:
            (B,), to be added to the losses of the samples.
        """
        a = self._lengths(features)
        return self.pull * (1 / a + a / self.longest**2)

    def extra_repr(self) -> str:
        return (
            f"low={self.low:g}, high={self.high:g}, shortest={self.shortest:g}, "
            f"longest={self.longest:g}, pull={self.pull:g}"
        )
