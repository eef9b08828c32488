"""Hyperspherical energy (chapter 5): how far a set of neurons is from evenly spread directions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._kernels.autograd import full_precision
from ._kernels.energy.pair_energy import pair_energies
from ._kernels.energy.potential import Potential
from .host import demand

__all__ = ["distance_floor", "hyperspherical_energy", "log_energy", "set_energies"]

DISTANCES = ("euclidean", "geodesic")


def hyperspherical_energy(
    weight: Tensor,
    s: float = 2.0,
    half_space: bool = False,
    distance: str = "euclidean",
    weights: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    r"""Energy of the directions of N neurons, Eq. 5.1:

    .. math:: E_s = \sum_{i \ne j} f_s(|\hat w_i - \hat w_j|), \quad f_s(z) = z^{-s},
        \quad f_0(z) = \log z^{-1}

    The result is float32 for 16-bit neurons: float16 cannot hold the energy of coinciding ones.

    Differs from the released code: s = 0 is log(1/d), not log(1/d^2); geodesic distances are
    radians, not fractions of pi; the floor on distances does not depend on \|w\| (see
    :func:`distance_floor`); the half space really has 2N neurons.

    Args:
        weight: (N, ...), one neuron per row, flattened; N >= 2. Lengths do not matter, and a zero
            row counts as orthogonal to everything.
        s: power of the Riesz kernel, >= 0; 0 is the logarithmic energy.
        half_space: energy of the 2N directions {w, -w} (5.3.4), without a 2N x 2N matrix.
        distance: "euclidean", or "geodesic" for the angle in radians (Eq. 5.5).
        weights: (N,) positive factors beta_i that scale the directions before the distance is taken
            (Eq. D.10); Euclidean distance only. A large one makes its neuron stay put. Factors
            whose energies the floating type cannot hold are limited to those that it can.
        reduction: "sum" is Eq. 5.1; "mean" divides by the number of ordered pairs, N(N-1), or
            2N(2N-1) in the half space (Eq. 5.4).

    Returns:
        A scalar.

    >>> triangle = torch.tensor([[1.0, 0.0], [-0.5, 0.75**0.5], [-0.5, -(0.75**0.5)]])
    >>> hyperspherical_energy(5 * triangle, s=2.0)  # all distances are sqrt(3)
    tensor(0.3333)
    >>> hyperspherical_energy(triangle, s=0.0, reduction="sum")
    tensor(-3.2958)
    """
    if weight.ndim < 2 or len(weight) < 2 or weight[0].numel() == 0:
        raise ValueError(
            f"hyperspherical_energy expects weight (N, ...) with one neuron per row and N >= 2, "
            f"got {tuple(weight.shape)}"
        )
    return set_energies(weight.flatten(1)[None], s, half_space, distance, weights, reduction)[0]


def log_energy(
    weight: Tensor,
    s: float = 2.0,
    half_space: bool = False,
    distance: str = "euclidean",
    weights: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """E_log = sum of log f_s = s E_0, Eq. 5.3: by Jensen a lower bound, exp(mean) <= mean of E_s.

    Args:
        weight: (N, ...), one neuron per row, flattened; N >= 2.
        s: power of the Riesz kernel, > 0.
        half_space: energy of the 2N directions {w, -w} (5.3.4).
        distance: "euclidean", or "geodesic" for the angle in radians (Eq. 5.5).
        weights: (N,) positive factors beta_i of the directions (Eq. D.10). Default: none.
        reduction: "sum", or "mean" over ordered pairs.

    Returns:
        A scalar, in float32 or wider.

    >>> w = torch.eye(3)
    >>> log_energy(w, s=2.0).exp() <= hyperspherical_energy(w, s=2.0) + 1e-6
    tensor(True)
    """
    if not s > 0:
        raise ValueError(f"log_energy expects s > 0 (log f_0 has no meaning in Eq. 5.3), got {s}")
    return s * hyperspherical_energy(weight, 0.0, half_space, distance, weights, reduction)


def set_energies(
    neurons: Tensor,
    s: float = 2.0,
    half_space: bool = False,
    distance: str = "euclidean",
    weights: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Energy of each of B separate sets of neurons, Eq. 5.1; no pairs between sets.

    Args:
        neurons: (B, N, d), N >= 2, one neuron per row.
        s: power of the Riesz kernel, >= 0; 0 is the logarithmic energy.
        half_space: energy of the 2N directions {w, -w} (5.3.4).
        distance: "euclidean", or "geodesic" for the angle in radians (Eq. 5.5).
        weights: (N,) positive factors beta_i of the directions (Eq. D.10). Default: none.
        reduction: "sum", or "mean" over ordered pairs.

    Returns:
        (B,), in float32 or wider.

    >>> set_energies(torch.eye(4).reshape(2, 2, 4), s=2.0)
    tensor([0.5000, 0.5000])
    """
    if neurons.ndim != 3 or neurons.shape[1] < 2 or neurons.shape[2] < 1:
        raise ValueError(f"expected neurons (B, N, d) with N >= 2, got {tuple(neurons.shape)}")
    if not neurons.is_floating_point():
        raise TypeError(f"expected floating-point neurons, got {neurons.dtype}")
    check_kernel(s, distance)
    if reduction not in ("sum", "mean"):
        raise ValueError(f"reduction must be 'sum' or 'mean', got {reduction!r}")
    wide = neurons.float() if neurons.dtype.itemsize < 4 else neurons
    beta = _check_weights(weights, wide, s, distance)
    floor = distance_floor(s, wide.dtype)
    potential = Potential(float(s), distance == "geodesic", half_space, floor)
    with full_precision(neurons.device.type):
        energies = pair_energies(wide, beta, potential)
    if reduction == "mean":
        points = neurons.shape[1] * (2 if half_space else 1)
        energies = energies / (points * (points - 1))
    return energies


def distance_floor(s: float, dtype: torch.dtype = torch.float32) -> float:
    """Smallest distance the energy tells apart: 8 sqrt(eps), more for an s that would overflow.

    In float32 it is 2.8e-3 (0.16 degrees) and in float64 1.2e-7, a few times the error with which
    2 - 2 cos resolves a distance. Above s = 5.5 in float32 (20 in float64) it rises, so that the
    energy of a million coinciding pairs and their gradients stay finite.

    Args:
        s: power of the Riesz kernel.
        dtype: of the neurons; 16-bit types are computed in float32.

    Returns:
        The distance.

    >>> f"{distance_floor(2.0):.4f} {distance_floor(30.0):.3f}"
    '0.0028 0.250'
    """
    info = torch.finfo(torch.float32 if dtype.itemsize < 4 else dtype)
    return max(8 * math.sqrt(info.eps), math.pow(info.max, -0.5 / (s + 2)))


def check_kernel(s: float, distance: str) -> None:
    """Refuse a power or a distance for which the energy is not defined."""
    if not 0 <= s < math.inf:
        raise ValueError(f"the energy is defined for 0 <= s < inf, got s={s}")
    if distance not in DISTANCES:
        raise ValueError(f"distance must be 'euclidean' or 'geodesic', got {distance!r}")


def _check_weights(
    weights: Tensor | None, neurons: Tensor, s: float, distance: str
) -> Tensor | None:
    """The factors beta in the type of the neurons, within the range that it can hold."""
    if weights is None:
        return None
    if distance != "euclidean":
        raise ValueError(
            "weights scale the directions (Eq. D.10), which leaves angles as they are: use them "
            "with distance='euclidean'"
        )

    def message() -> str:
        smallest = f", smallest {float(weights.min()):g}" if weights.numel() else ""
        return (
            f"weights must be {neurons.shape[1]} positive numbers, one per neuron; got shape "
            f"{tuple(weights.shape)}{smallest}"
        )

    if weights.shape != neurons.shape[1:2]:
        raise ValueError(message())
    demand((weights > 0).all(), message)
    # The energy of a pair is about beta^-s; on the way to its slope there is beta^-(s+2).
    largest = torch.finfo(neurons.dtype).max
    low, high = math.pow(1e-8 * largest, -1 / (s + 2)), math.sqrt(largest) / 4
    return weights.detach().double().clamp(low, high).to(neurons)
