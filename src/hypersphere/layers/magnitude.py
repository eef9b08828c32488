"""Magnitudes as modules: what an operator keeps about its h(|x|), the learned radius included."""

from __future__ import annotations

import copy
from typing import Any, TypeAlias

from torch import Tensor, nn

from ..functional.magnitude import CallableMagnitude, MagnitudeFunction, magnitude_function
from ..functional.magnitude import Magnitude as MagnitudeKind
from ..functional.magnitude_functions import MixedLength, SegmentedLength
from ..registry import entry
from .own_formula import require_value
from .positive import PositiveParameter
from .running_norm import RunningNorm

__all__ = [
    "NAMED_MAGNITUDES",
    "BallMagnitude",
    "LinearMagnitude",
    "LogMagnitude",
    "Magnitude",
    "MagnitudeLike",
    "MixedMagnitude",
    "RadiusMagnitude",
    "SegmentedMagnitude",
    "SphereMagnitude",
    "TanhMagnitude",
    "make_magnitude",
]


class Magnitude(nn.Module):
    """h(|x|) with its constants: a module whose `formula` has value, ratio and slopes.

    `bounded`, `smooth` and `radius` are the properties of 4.3.2. To write an own one, subclass it
    and define ``value(self, norm)``, which maps norms of any shape to h over alpha; if
    ``slope(self, norm)``, its derivative, is defined too, it is used where h / |x| is needed at 0.
    Parameters of the module are trained with the layer.

    Input: norms whose second dimension is the filter's (or 1), as in the output of a layer; the
    result has the same shape.

    Args:
        alpha: scales h, > 0.
        kind: a registered name, whose formulas the module has. Default: the subclass's own.
        beta: the second constant of named formulas. Default: theirs.

    >>> import torch
    >>> class Root(Magnitude):
    ...     def value(self, norm):
    ...         return norm.sqrt()
    >>> Root(alpha=3.0)(torch.tensor([[4.0]]))
    tensor([[6.]])
    """

    _name: str | None = None
    _formula: MagnitudeFunction | None = None

    def __init__(
        self, alpha: float = 1.0, kind: str | None = None, beta: float | None = None
    ) -> None:
        super().__init__()
        if kind is not None:
            self._name = kind
        if self._name is None:
            require_value(self, Magnitude, "norm", "its h as a function of |x|")
        # Named formulas are looked up once; they have no state to share.
        self._formula = None if self._name is None else magnitude_function(self._name)
        used = self.formula.check(alpha, beta, 1.0)
        self.alpha = float(alpha)
        self.beta = None if self.formula.default_beta is None else float(used)

    @property
    def kind(self) -> MagnitudeKind:
        """The registered name of h, or h itself where it has none."""
        return _OwnMagnitude(self) if self._name is None else self._name

    @property
    def formula(self) -> MagnitudeFunction:
        """The one object that has value, ratio and slopes of h."""
        return magnitude_function(self.kind) if self._formula is None else self._formula

    @property
    def bounded(self) -> bool:
        """Whether h stays below a constant for all |x| (4.3.2)."""
        return self.formula.is_bounded(self.alpha, self.beta or 0.0)

    @property
    def smooth(self) -> bool:
        """Whether h is differentiable for all |x| > 0 (4.3.2)."""
        return self.formula.is_smooth(self.alpha, self.beta or 0.0)

    @property
    def learns_radius(self) -> bool:
        """Whether the radius is a parameter."""
        return False

    @property
    def radius(self) -> Tensor | float:
        """Where the slope of h changes, in units of |x|; 0 means that it does not."""
        return 0.0

    @property
    def rho_and_mean(self) -> tuple[Tensor | float, float | RunningNorm]:
        """rho, and the E|x| it is counted in: a number, or what computes it from patch norms."""
        return (1.0, 1.0)

    def value(self, norm: Tensor) -> Tensor:
        """h over alpha; what a subclass defines.

        Args:
            norm: |x|, any shape.

        Returns:
            h over alpha, shaped like norm.
        """
        raise NotImplementedError

    def bind(self, filters: int) -> Magnitude:
        """The magnitude as a layer holds it: its own copy.

        Args:
            filters: number of filters of the layer.

        Returns:
            The copy.
        """
        return copy.deepcopy(self)

    def forward(self, norm: Tensor) -> Tensor:
        radius = self.radius if self.formula.has_radius else 1.0
        if isinstance(radius, Tensor) and radius.numel() > 1:
            radius = radius.reshape(-1, *[1] * (norm.ndim - 2))
        return self.formula.value(norm, self.alpha, self.beta or 0.0, radius)

    def extra_repr(self) -> str:
        beta = "" if self.beta is None else f", beta={self.beta:g}"
        return f"alpha={self.alpha:g}{beta}"


class _OwnMagnitude(CallableMagnitude):
    """The h that a subclass of Magnitude defines by `value`."""

    def __init__(self, module: Magnitude) -> None:
        super().__init__(module.value)
        self.own_slope = getattr(module, "slope", None)
        self.__name__ = type(module).__name__


class SphereMagnitude(Magnitude):
    """h = alpha, Eq. 4.4.

    Args:
        alpha: the constant, > 0.
    """

    _name = "sphere"

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__(alpha)


class LinearMagnitude(Magnitude):
    """h = alpha |x|, Eq. 4.7.

    Args:
        alpha: slope, > 0.
    """

    _name = "linear"

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__(alpha)


class LogMagnitude(Magnitude):
    """h = alpha log(1 + |x|), Eq. 4.9.

    Args:
        alpha: weight of the logarithm, > 0.
    """

    _name = "log"

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__(alpha)


class MixedMagnitude(Magnitude):
    """h = alpha |x| + beta log(1 + |x|), Eq. 4.10.

    Args:
        alpha: slope of the linear part, > 0.
        beta: weight of the logarithm, >= 0.
    """

    _name = "mixed"

    def __init__(self, alpha: float = 1.0, beta: float = MixedLength.default_beta) -> None:
        super().__init__(alpha, beta=beta)


class RadiusMagnitude(Magnitude):
    """A registered magnitude with an operator radius rho, fixed or learned.

    With learn_radius=True, rho is learned for each filter and counts in units of the mean patch
    norm E|x| (Eq. C.1-C.3): of the batch in training, the running mean in evaluation. The text
    keeps a mean "per kernel", but patch norms do not depend on the kernel: there is one per layer.
    The released code moves the running mean by 0.001 per step and learns r with rho = r^2 + 1e-4;
    here rho is 1e-3 + softplus(raw).

    Args:
        kind: a registered name, whose formulas have a radius.
        alpha: scales h, > 0.
        beta: the second constant of the formulas. Default: theirs.
        radius: rho in the units of |x| (Eq. 4.5, 4.6, 4.8), or where learning starts; > 0.
        learn_radius: whether rho is learned.
        momentum: weight of a new batch in the running mean, in (0, 1].
        sync: whether batch means are over all processes of torch.distributed.
    """

    def __init__(
        self,
        kind: str,
        alpha: float = 1.0,
        beta: float | None = None,
        radius: float = 1.0,
        learn_radius: bool = True,
        momentum: float = 0.1,
        sync: bool = False,
    ) -> None:
        super().__init__(alpha, kind, beta)
        self.formula.check(alpha, beta, radius)
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
        radius: Tensor = self.rho() * self.running.mean
        return radius

    @property
    def rho_and_mean(self) -> tuple[Tensor | float, float | RunningNorm]:
        if self.rho is None or self.running is None:
            return (self.start, 1.0)
        return (self.rho(), self.running)

    def bind(self, filters: int) -> Magnitude:
        bound = copy.deepcopy(self)
        if bound.rho is not None:
            bound.rho = bound.rho.expand(filters)
        return bound

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, radius={self.start:g}, learn_radius={self.learn_radius}"


class BallMagnitude(RadiusMagnitude):
    """h = alpha min(|x|, rho) / rho, Eq. 4.5 and C.2; see :class:`RadiusMagnitude`.

    Args:
        alpha: the bound of h, > 0.
        radius: rho in the units of |x|, or where learning starts; > 0.
        learn_radius: whether rho is learned per filter, in units of the mean patch norm.
        momentum: weight of a new batch in the running mean patch norm, in (0, 1].
        sync: whether batch means are over all processes of torch.distributed.
    """

    _name = "ball"

    def __init__(
        self,
        alpha: float = 1.0,
        radius: float = 1.0,
        learn_radius: bool = True,
        momentum: float = 0.1,
        sync: bool = False,
    ) -> None:
        super().__init__("ball", alpha, None, radius, learn_radius, momentum, sync)


class TanhMagnitude(RadiusMagnitude):
    """h = alpha tanh(|x| / rho), Eq. 4.6 and C.1; see :class:`RadiusMagnitude`.

    Args:
        alpha: the bound of h, > 0.
        radius: rho in the units of |x|, or where learning starts; > 0.
        learn_radius: whether rho is learned per filter, in units of the mean patch norm.
        momentum: weight of a new batch in the running mean patch norm, in (0, 1].
        sync: whether batch means are over all processes of torch.distributed.
    """

    _name = "tanh"

    def __init__(
        self,
        alpha: float = 1.0,
        radius: float = 1.0,
        learn_radius: bool = True,
        momentum: float = 0.1,
        sync: bool = False,
    ) -> None:
        super().__init__("tanh", alpha, None, radius, learn_radius, momentum, sync)


class SegmentedMagnitude(RadiusMagnitude):
    """h = alpha |x| up to |x| = rho, with slope beta from there; Eq. 4.8 and C.3.

    See :class:`RadiusMagnitude`.

    Args:
        alpha: slope up to rho, > 0.
        beta: slope from there, >= 0.
        radius: rho in the units of |x|, or where learning starts; > 0.
        learn_radius: whether rho is learned per filter, in units of the mean patch norm.
        momentum: weight of a new batch in the running mean patch norm, in (0, 1].
        sync: whether batch means are over all processes of torch.distributed.
    """

    _name = "segmented"

    def __init__(
        self,
        alpha: float = 1.0,
        beta: float = SegmentedLength.default_beta,
        radius: float = 1.0,
        learn_radius: bool = True,
        momentum: float = 0.1,
        sync: bool = False,
    ) -> None:
        super().__init__("segmented", alpha, beta, radius, learn_radius, momentum, sync)


MagnitudeLike: TypeAlias = str | Magnitude

# The modules of the named magnitudes that have a class of their own.
NAMED_MAGNITUDES: dict[str, type[Magnitude]] = {
    "sphere": SphereMagnitude,
    "ball": BallMagnitude,
    "tanh": TanhMagnitude,
    "linear": LinearMagnitude,
    "segmented": SegmentedMagnitude,
    "log": LogMagnitude,
    "mixed": MixedMagnitude,
}


def make_magnitude(magnitude: MagnitudeLike, **settings: Any) -> Magnitude:
    """A magnitude from its registered name with the settings of C.2, or as it is.

    Args:
        magnitude: a name or a Magnitude.
        settings: arguments of the named magnitude, such as its radius.

    Returns:
        The module.

    Raises:
        ValueError: if the name is unknown, with the nearest one.
        TypeError: if it is neither a name nor a Magnitude.

    >>> make_magnitude("segmented")
    SegmentedMagnitude(
      alpha=1, beta=0.5, radius=1, learn_radius=True
      (rho): PositiveParameter()
      (running): RunningNorm(momentum=0.1, sync=False)
    )
    """
    if isinstance(magnitude, str):
        return _by_name(magnitude, settings)
    if not isinstance(magnitude, Magnitude):
        raise TypeError(f"magnitude must be a name or a Magnitude, got {magnitude!r}")
    if settings:
        raise TypeError(f"settings belong to a name, got {settings} and {magnitude!r}")
    return magnitude


def _by_name(name: str, settings: dict[str, Any]) -> Magnitude:
    try:
        target = entry("magnitude", name).target
    except ValueError as error:
        raise ValueError(
            f"{error}, or an instance such as TanhMagnitude(radius=2.0, learn_radius=False)"
        ) from None
    if name in NAMED_MAGNITUDES:
        return NAMED_MAGNITUDES[name](**settings)
    if isinstance(target, type) and issubclass(target, Magnitude):
        return target(**settings)
    if magnitude_function(name).has_radius:
        return RadiusMagnitude(name, **settings)
    return Magnitude(kind=name, **settings)
