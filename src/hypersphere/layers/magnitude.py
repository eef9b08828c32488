"""Magnitudes as modules: what an operator keeps about its h(|x|), the learned radius included."""

from __future__ import annotations

import copy

from torch import Tensor, nn

from ..functional.magnitude import (
    BETA,
    MAGNITUDE_KINDS,
    RADIUS_KINDS,
    MagnitudeKind,
    check_magnitude,
)
from ..functional.magnitude import magnitude as magnitude_function
from .positive import PositiveParameter
from .running_norm import RunningNorm

__all__ = [
    "BallMagnitude",
    "LinearMagnitude",
    "LogMagnitude",
    "Magnitude",
    "MixedMagnitude",
    "SegmentedMagnitude",
    "SphereMagnitude",
    "TanhMagnitude",
    "make_magnitude",
]


class Magnitude(nn.Module):
    """h(|x|) with its constants; `bounded`, `smooth` and `radius` are the properties of 4.3.2."""

    kind: MagnitudeKind = "sphere"
    bounded: bool = True
    smooth: bool = True

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        check_magnitude(self.kind, alpha)
        self.alpha = float(alpha)
        self.beta: float | None = None

    @property
    def learns_radius(self) -> bool:
        return False

    @property
    def radius(self) -> Tensor | float:
        """Where the slope of h changes, in units of |x|; 0 means that it does not."""
        return 0.0

    @property
    def rho_and_mean(self) -> tuple[Tensor | float, float | RunningNorm]:
        """rho, and the E|x| it is counted in: a number, or what makes it from patch norms."""
        return 1.0, 1.0

    def bind(self, filters: int) -> Magnitude:
        """The magnitude as a layer of so many filters holds it: its own copy."""
        return copy.deepcopy(self)

    def forward(self, norm: Tensor) -> Tensor:
        """h of norms whose second dimension is the filter's (or 1), as in a layer's output."""
        radius = self.radius if self.kind in RADIUS_KINDS else 1.0
        if isinstance(radius, Tensor) and radius.numel() > 1:
            radius = radius.reshape(-1, *[1] * (norm.ndim - 2))
        return magnitude_function(norm, self.kind, self.alpha, self.beta, radius)

    def extra_repr(self) -> str:
        beta = "" if self.beta is None else f", beta={self.beta:g}"
        return f"alpha={self.alpha:g}{beta}"


class SphereMagnitude(Magnitude):
    """h = alpha, Eq. 4.4."""

    kind = "sphere"


class LinearMagnitude(Magnitude):
    """h = alpha |x|, Eq. 4.7."""

    kind = "linear"
    bounded = False


class LogMagnitude(Magnitude):
    """h = alpha log(1 + |x|), Eq. 4.9."""

    kind = "log"
    bounded = False


class MixedMagnitude(Magnitude):
    """h = alpha |x| + beta log(1 + |x|), Eq. 4.10."""

    kind = "mixed"
    bounded = False

    def __init__(self, alpha: float = 1.0, beta: float = BETA["mixed"]) -> None:
        super().__init__(alpha)
        check_magnitude(self.kind, alpha, beta)
        self.beta = float(beta)


class _RadiusMagnitude(Magnitude):
    """A magnitude with an operator radius rho, fixed or learned.

    learn_radius=False: rho is `radius`, in the units of |x| (Eq. 4.5, 4.6, 4.8).
    learn_radius=True: rho is learned for each filter, starts at `radius` and counts in units of
    the mean patch norm E|x| (Eq. C.1-C.3): of the batch in training, the running mean in
    evaluation. `momentum` is the weight of a new batch in the running mean; `sync` takes the mean
    over all processes of torch.distributed.

    The text keeps a mean "per kernel", but patch norms do not depend on the kernel: there is one
    per layer. The released code moves the running mean by 0.001 a step and learns r with
    rho = r^2 + 1e-4; here rho is 1e-3 + softplus(raw).
    """

    def __init__(
        self,
        alpha: float = 1.0,
        radius: float = 1.0,
        learn_radius: bool = True,
        momentum: float = 0.1,
        sync: bool = False,
    ) -> None:
        super().__init__(alpha)
        check_magnitude(self.kind, alpha, None, radius)
        self.start, self.learn_radius = float(radius), learn_radius
        self.rho = PositiveParameter(self.start) if learn_radius else None
        self.running = RunningNorm(momentum, sync) if learn_radius else None

    @property
    def learns_radius(self) -> bool:
        return self.learn_radius

    @property
    def radius(self) -> Tensor | float:
        if self.rho is None or self.running is None:
            return self.start
        return self.rho() * self.running.mean

    @property
    def rho_and_mean(self) -> tuple[Tensor | float, float | RunningNorm]:
        if self.rho is None or self.running is None:
            return self.start, 1.0
        return self.rho(), self.running

    def bind(self, filters: int) -> Magnitude:
        bound = copy.deepcopy(self)
        if bound.rho is not None:
            bound.rho = bound.rho.expand(filters)
        return bound

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, radius={self.start:g}, learn_radius={self.learn_radius}"


class BallMagnitude(_RadiusMagnitude):
    __doc__ = "h = alpha min(|x|, rho) / rho, Eq. 4.5 and C.2.\n" + (_RadiusMagnitude.__doc__ or "")

    kind = "ball"
    smooth = False


class TanhMagnitude(_RadiusMagnitude):
    __doc__ = "h = alpha tanh(|x| / rho), Eq. 4.6 and C.1.\n" + (_RadiusMagnitude.__doc__ or "")

    kind = "tanh"


class SegmentedMagnitude(_RadiusMagnitude):
    __doc__ = "h = alpha |x| up to |x| = rho, with slope beta from there; Eq. 4.8 and C.3.\n" + (
        _RadiusMagnitude.__doc__ or ""
    )

    kind = "segmented"

    def __init__(
        self,
        alpha: float = 1.0,
        beta: float = BETA["segmented"],
        radius: float = 1.0,
        learn_radius: bool = True,
        momentum: float = 0.1,
        sync: bool = False,
    ) -> None:
        super().__init__(alpha, radius, learn_radius, momentum, sync)
        check_magnitude(self.kind, alpha, beta)
        self.beta = float(beta)

    @property
    def bounded(self) -> bool:  # type: ignore[override]
        return self.beta == 0

    @property
    def smooth(self) -> bool:  # type: ignore[override]
        return self.beta == self.alpha


_BY_NAME: dict[str, type[Magnitude]] = {
    "sphere": SphereMagnitude,
    "ball": BallMagnitude,
    "tanh": TanhMagnitude,
    "linear": LinearMagnitude,
    "segmented": SegmentedMagnitude,
    "log": LogMagnitude,
    "mixed": MixedMagnitude,
}


def make_magnitude(magnitude: str | Magnitude) -> Magnitude:
    """A magnitude from its name with the settings of C.2, or as it is.

    >>> make_magnitude("segmented")
    SegmentedMagnitude(
      alpha=1, beta=0.5, radius=1, learn_radius=True
      (rho): PositiveParameter()
      (running): RunningNorm(momentum=0.1, sync=False)
    )
    """
    if isinstance(magnitude, Magnitude):
        return magnitude
    if not isinstance(magnitude, str):
        raise TypeError(f"magnitude must be a name or a Magnitude, got {magnitude!r}")
    if magnitude not in _BY_NAME:
        raise ValueError(
            f"unknown magnitude {magnitude!r}; expected one of {', '.join(MAGNITUDE_KINDS)}, or an "
            f"instance such as TanhMagnitude(radius=2.0, learn_radius=False)"
        )
    return _BY_NAME[magnitude]()
