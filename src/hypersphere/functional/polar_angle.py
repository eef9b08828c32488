r"""How the angle between a random direction and its mean moves with the concentration.

For a density on the sphere that depends on theta = angle(x, mu) alone, theta has a density
f(theta; kappa) and a distribution function F. A sample that keeps its rank F(theta; kappa) while
kappa changes moves by

    d theta / d kappa = -(dF/dkappa) / f(theta) = -1/f(theta) int_0^theta g(phi) f(phi) d phi,

with the score g = d log f / d kappa. This is the implicit gradient of a reparameterized sample,
exact whichever way the sample was drawn; of a sample drawn by rejection, the gradient through the
accepted proposal alone would be biased. As the score has mean zero, -int_0^theta is int_theta^pi.
The side on which g does not change its sign is integrated with Gauss-Legendre nodes, over the
window in which f is above rounding error.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ._kernels.bessel.ratio import bessel_ratio
from .angles import _double
from .power_spherical import power_spherical_log_slope
from .von_mises_fisher import _check

__all__ = ["power_spherical_angle_slope", "vmf_angle_slope"]


def _legendre(count: int) -> tuple[tuple[float, float], ...]:
    """Nodes and weights on [0, 1], by Newton's method on the Legendre polynomial P_n."""
    pairs = []
    for i in range(count):
        x = math.cos(math.pi * (i + 0.75) / (count + 0.5))
        for _ in range(4):
            before, value = 1.0, x
            for k in range(2, count + 1):
                before, value = value, ((2 * k - 1) * x * value - (k - 1) * before) / k
            slope = count * (x * value - before) / (x * x - 1)
            x -= value / slope
        pairs.append(((1 + x) / 2, 1 / ((1 - x * x) * slope * slope)))
    return tuple(pairs)


NODES = _legendre(48)
# exp(-WIDTH^2 / 2) is below rounding error, also where theta is one deviation behind the peak.
WIDTH = 10.0


def vmf_angle_slope(theta: Tensor, kappa: Tensor, dim: int) -> Tensor:
    """d theta / d kappa at fixed rank, for the angle of a von Mises-Fisher sample to the mean.

    The density of the angle is proportional to exp(kappa cos(theta)) sin(theta)^(d-2).

    Args:
        theta: Angles in (0, pi), of any shape.
        kappa: Concentrations >= 0 that broadcast with `theta`.
        dim: Dimension d >= 2 of the space around the sphere.

    Returns:
        Negative slopes, of the broadcast shape, in the wider type of the two; without gradient.

    >>> vmf_angle_slope(torch.tensor(1.0), torch.tensor(2.0), 3)
    tensor(-0.2397)
    """
    angle, x, dtype = _prepare(theta, kappa, dim)
    gap = bessel_ratio(x, dim).gap
    score = gap - 2 * (angle / 2).sin().square()  # cos(theta) - A
    sine, cosine = angle.sin(), angle.cos()
    cotangent = cosine / sine

    def score_times_density(step: Tensor) -> Tensor:
        s, c = (step / 2).sin(), (step / 2).cos()
        rise = -2 * s * (sine * c + cosine * s)  # cos(theta + step) - cos(theta)
        exponent = x * rise
        if (
            dim > 2
        ):  # log(sin(theta + step) / sin(theta)); the floor is for rounding next to the poles
            ratio = (2 * s * (cotangent * c - s)).clamp_min(-1 + 1e-16)
            exponent += (dim - 2) * torch.log1p(ratio)
        return (score + rise) * exponent.exp_()

    def curvature(phi: Tensor) -> Tensor:
        """A lower bound of -(log f)'' between theta and phi."""
        return x * phi.cos() + (dim - 2) / phi.clamp_max(math.pi / 2).sin().square()

    # Below theta < pi/2 the curvature only grows. Above, it is smallest at the end of the window,
    # which so depends on itself: some rounds from the short side, or else the whole rest.
    rest = math.pi - angle
    window = torch.zeros_like(angle)
    for _ in range(4):
        window = _deviations(curvature(angle + window)).minimum(rest)
    settled = _deviations(curvature(angle + window)) <= 1.1 * window
    above = torch.where(settled, window, rest)
    below = _deviations(curvature(angle)).minimum(angle)
    lower = score > 0
    slope = _integrate(score_times_density, angle, lower, torch.where(lower, below, above))
    return slope.to(dtype)


def power_spherical_angle_slope(theta: Tensor, kappa: Tensor, dim: int) -> Tensor:
    """d theta / d kappa at fixed rank, for the angle of a power spherical sample to the mean.

    The density of the angle is proportional to (1 + cos(theta))^kappa sin(theta)^(d-2).

    Args:
        theta: Angles in (0, pi), of any shape.
        kappa: Concentrations >= 0 that broadcast with `theta`.
        dim: Dimension d >= 2 of the space around the sphere.

    Returns:
        Negative slopes, of the broadcast shape, in the wider type of the two; without gradient.

    >>> power_spherical_angle_slope(torch.tensor(1.0), torch.tensor(2.0), 3)
    tensor(-0.1594)
    """
    angle, x, dtype = _prepare(theta, kappa, dim)
    mean = power_spherical_log_slope(x, dim)
    # f is proportional to cos(theta/2)^p sin(theta/2)^(d-2)
    p = 2 * x + (dim - 2)
    log_cosine, log_sine = _log_cosine(angle / 2), (angle / 2).sin().log()
    lower = 2 * log_cosine + mean > 0

    def score_times_density(step: Tensor) -> Tensor:
        half = (angle + step) / 2
        logarithm = _log_cosine(half)
        exponent = p * (logarithm - log_cosine)
        if dim > 2:
            exponent += (dim - 2) * (half.sin().log() - log_sine)
        return (2 * logarithm + mean) * exponent.exp_()

    # (log f)'' = -p / (4 cos^2) - (d-2) / (4 sin^2), each bounded on its side of theta
    below = p / 4 + (dim - 2) / (4 * (angle / 2).sin().square())
    above = p / (4 * (angle / 2).cos().square()) + (dim - 2) / 4
    window = torch.where(
        lower, _deviations(below).minimum(angle), _deviations(above).minimum(math.pi - angle)
    )
    # log(1 + cos(phi)) and its fractional powers are singular at pi; in higher dimensions, sin(phi)
    # takes them to zero there.
    grade = 6 if dim <= 6 else 1
    return _integrate(score_times_density, angle, lower, window, grade).to(dtype)


def _log_cosine(angle: Tensor) -> Tensor:
    """log cos(angle) on [0, pi/2], to all digits also for small angles."""
    square = angle.sin().square()
    return torch.where(square < 0.5, 0.5 * torch.log1p(-square), angle.cos().log())


def _prepare(theta: Tensor, kappa: Tensor, dim: int) -> tuple[Tensor, Tensor, torch.dtype]:
    _check(theta, dim, "theta")
    _check(kappa, dim)
    dtype = torch.promote_types(theta.dtype, kappa.dtype)
    angle, x = _double(theta.detach()), _double(kappa.detach())
    angle, x = angle + torch.zeros_like(x), x + torch.zeros_like(angle)  # to the broadcast shape
    # At the poles themselves the ratio of densities is 0/0; next to them it has its limit.
    return angle.clamp(1e-150, math.pi - 1e-15), x, dtype


def _deviations(curvature: Tensor) -> Tensor:
    """WIDTH standard deviations at that curvature; more than pi where it is not positive."""
    return WIDTH * curvature.clamp_min(1.0).rsqrt()


def _integrate(
    integrand: Callable[[Tensor], Tensor],
    theta: Tensor,
    lower: Tensor,
    window: Tensor,
    grade: int = 1,
) -> Tensor:
    """The integral over the window below theta, negated, or over the one above it.

    The integrand takes the signed distance from theta. Where the window above theta ends at pi, the
    substitution 1 - (1 - y)^grade smooths that end.
    """
    step = torch.where(lower, -window, window)
    graded = (~lower & (window >= math.pi - theta)).to(theta)
    total = torch.zeros_like(theta)
    for y, weight in NODES:  # node by node: memory of a few copies of theta
        if grade == 1:
            total += weight * integrand(y * step)
            continue
        node = y + graded * (1 - (1 - y) ** grade - y)
        scale = weight * (1 + graded * (grade * (1 - y) ** (grade - 1) - 1))
        total += scale * integrand(node * step)
    return total * step
