"""Directional distributions straight from their definitions, with mpmath in 50 digits."""

from functools import cache

import mpmath
from mpmath import mpf

DIGITS = 50


@cache
def log_bessel(order, x):
    """log I_order(x)."""
    return mpmath.log(mpmath.besseli(order, x, maxterms=10**7))


def mean_length(kappa, dim):
    """A_d(kappa) = I_{d/2}(kappa) / I_{d/2-1}(kappa)."""
    with mpmath.workdps(DIGITS):
        kappa, half = mpf(kappa), mpf(dim) / 2
        if kappa == 0:
            return mpf(0)
        return mpmath.exp(log_bessel(half, kappa) - log_bessel(half - 1, kappa))


def log_area(dim):
    """Logarithm of the surface 2 pi^(d/2) / Gamma(d/2) of the unit sphere in R^d."""
    with mpmath.workdps(DIGITS):
        half = mpf(dim) / 2
        return mpmath.log(2) + half * mpmath.log(mpmath.pi) - mpmath.loggamma(half)


def log_normalizer(kappa, dim):
    """log of (2 pi)^(d/2) I_{d/2-1}(kappa) / kappa^(d/2-1)."""
    with mpmath.workdps(DIGITS):
        kappa, half = mpf(kappa), mpf(dim) / 2
        if kappa == 0:
            return log_area(dim)
        scale = half * mpmath.log(2 * mpmath.pi) - (half - 1) * mpmath.log(kappa)
        return scale + log_bessel(half - 1, kappa)


def angle_slope(theta, kappa, dim, family="vmf"):
    """-(dF/dkappa) / f of the angle to the mean direction, by adaptive quadrature."""
    with mpmath.workdps(30):
        theta, kappa = mpf(theta), mpf(kappa)

        def log_density(phi):
            rest = (dim - 2) * mpmath.log(mpmath.sin(phi)) if dim > 2 else 0
            if family == "vmf":
                return kappa * mpmath.cos(phi) + rest
            return kappa * mpmath.log(2 * mpmath.cos(phi / 2) ** 2) + rest

        def statistic(phi):
            return mpmath.cos(phi) if family == "vmf" else mpmath.log(2 * mpmath.cos(phi / 2) ** 2)

        if family == "vmf":
            mean = mean_length(kappa, dim)
        else:
            beta = mpf(dim - 1) / 2
            mean = mpmath.log(2) + mpmath.digamma(kappa + beta) - mpmath.digamma(kappa + 2 * beta)
        at_theta = log_density(theta)
        # The score has mean zero: integrate over the tail, on a grid of the density's width.
        width = 1 / mpmath.sqrt(1 + kappa + dim)
        past_mean = statistic(theta) < mean
        tail = mpmath.pi - theta if past_mean else theta
        length = min(tail, 40 * width)
        count = int(mpmath.ceil(length / width / 4))
        sign = 1 if past_mean else -1
        grid = [theta + sign * length * mpf(i) / count for i in range(count + 1)]

        def integrand(phi):
            if not 0 < phi < mpmath.pi:
                return mpf(0)
            return (statistic(phi) - mean) * mpmath.exp(log_density(phi) - at_theta)

        return mpmath.quad(integrand, grid)


def power_log_normalizer(kappa, dim):
    """log of 2^(alpha + beta) pi^beta Gamma(alpha) / Gamma(alpha + beta)."""
    with mpmath.workdps(DIGITS):
        beta = mpf(dim - 1) / 2
        alpha = beta + mpf(kappa)
        powers = (alpha + beta) * mpmath.log(2) + beta * mpmath.log(mpmath.pi)
        return powers + mpmath.loggamma(alpha) - mpmath.loggamma(alpha + beta)


def power_entropy(kappa, dim):
    """log N - kappa E[log(1 + mu.x)]."""
    with mpmath.workdps(DIGITS):
        kappa, beta = mpf(kappa), mpf(dim - 1) / 2
        mean = mpmath.log(2) + mpmath.digamma(kappa + beta) - mpmath.digamma(kappa + 2 * beta)
        return power_log_normalizer(kappa, dim) - kappa * mean
