"""Point configurations of minimum energy (5.3.7): Thomson, Whyte and Tammes problems.

The energy landscape has exponentially many minima, so the search is a crowd: random or symmetric
starts descend together by a batched L-BFGS in float64, and the best are finished to machine
precision, by Newton steps on the sphere or, for Tammes, by the equations of the contacts.
"""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor

from ._kernels.energy.contacts import largest_cosine
from ._kernels.energy.descent import descend
from ._kernels.energy.newton import MAX_DENSE, newton, riesz
from ._kernels.energy.points_large_s import minimize_large_s
from ._kernels.energy.potential import Potential
from .angles import uniform_on_sphere
from .energy import distance_floor
from .symmetry import symmetric_starts

__all__ = ["minimize_energy"]

# Powers above which d^-s is handled by its logarithm.
LARGE_S = 12.0
# Rest of the gradient, relative to the forces in it, above which a configuration is not finished.
UNFINISHED = 1e-9
TOO_LARGE = "too many coordinates to solve the contacts; the fourth digit of the angle may grow"


def minimize_energy(
    n: int,
    dim: int,
    s: float = 1.0,
    half_space: bool = False,
    restarts: int | None = None,
    seed: int = 0,
    symmetry: str | None = None,
) -> Tensor:
    """n unit vectors in R^dim of the lowest energy E_s found (Eq. 5.6).

    Args:
        n: number of points, n >= 1.
        dim: dimension of the space around the sphere, dim >= 1; 3 is the ordinary sphere.
        s: power of the Riesz kernel, s >= 0. 1 is Thomson's problem (harmonic, Coulomb), 0 is
            Whyte's (logarithmic), math.inf is Tammes' (the largest smallest distance, solved by
            its contacts).
        half_space: spread the 2n points {x, -x}, i.e. n lines instead of n points.
        restarts: number of starts. Default: as many as the published optima on the 2-sphere
            needed (n <= 100 for Thomson, n <= 60 for Tammes), fewer for large problems.
        seed: the same seed gives the same points.
        symmetry: a group of :func:`symmetry_groups`, such as "H3+" or "E8", for starts made of its
            orbits, or "any" for all groups of the dimension in turn; the points then move freely.
            Default: random starts; packings by default also take half as many of "any".

    Returns:
        The points, (n, dim), float64, on the CPU. If the best configuration could not be finished
        to machine precision, a warning says what is left.

    >>> x = minimize_energy(4, 3)
    >>> (x @ x.T)[0, 1:]  # the regular tetrahedron
    tensor([-0.3333, -0.3333, -0.3333], dtype=torch.float64)
    """
    points, rest = search_points(n, dim, s, half_space, restarts, seed, symmetry)
    if rest:
        warnings.warn(f"minimize_energy({n}, {dim}, s={s:g}): {rest}", stacklevel=2)
    return points


def search_points(
    n: int,
    dim: int,
    s: float,
    half_space: bool,
    restarts: int | None,
    seed: int,
    symmetry: str | None = None,
    finish: bool = True,
) -> tuple[Tensor, str]:
    """:func:`minimize_energy`, and what is left to do if the points are not finished.

    finish: whether problems too large for a dense matrix are finished as well.
    """
    if n < 1 or dim < 1:
        raise ValueError(f"minimize_energy expects n >= 1 points in dim >= 1, got n={n}, dim={dim}")
    if not s >= 0:
        raise ValueError(f"minimize_energy expects s >= 0 (math.inf for Tammes), got s={s}")
    if restarts is not None and restarts < 1:
        raise ValueError(f"restarts must be at least 1, got {restarts}")
    if dim == 1 and n > (1 if half_space else 2):
        raise ValueError(f"a line has only two directions: {n} points need dim >= 2")
    generator = torch.Generator().manual_seed(seed)
    count = restarts or _default_restarts(n, dim, s)
    if n == 1 or dim == 1:
        start = uniform_on_sphere(n, dim, generator, torch.float64)
        return (start if n == 1 else torch.tensor([[1.0], [-1.0]], dtype=torch.float64)), ""
    if symmetry is None:
        start = uniform_on_sphere(count * n, dim, generator, torch.float64).view(count, n, dim)
    else:
        start = symmetric_starts(n, dim, count, symmetry, generator, half_space)
    if s > LARGE_S:
        crowds = [start]
        if symmetry is None and s == math.inf and restarts is None and 2 < dim < 9 and n <= 150:
            # Some packings are found from nothing else. A crowd of their own: in one crowd the best
            # after the first steps are kept, and most of those come from random starts.
            crowds += [symmetric_starts(n, dim, count // 2, "any", generator, half_space)]
        found = [minimize_large_s(crowd, s, half_space, finish) for crowd in crowds if len(crowd)]
        angles = [float(largest_cosine(points[None], half_space)) for points, _ in found]
        best, finished = found[angles.index(min(angles))]
        return best, "" if finished else TOO_LARGE
    potential = Potential(float(s), False, half_space, distance_floor(s, torch.float64))
    objective = riesz(potential)
    crowd, energy = descend(objective, start)
    if not finish and n * (dim - 1) > MAX_DENSE:
        return crowd[int(energy.argmin())], ""
    minima = [newton(x, potential) for x in crowd[energy.argsort()[:2]]]
    energies = objective(torch.stack([x for x, _ in minima]))[0]
    best, rest = minima[int(energies.argmin())]
    return (
        best,
        "" if rest < UNFINISHED else f"the gradient is still {rest:.1e} of the forces in it",
    )


def _default_restarts(n: int, dim: int, s: float) -> int:
    # On the 2-sphere at least one start in 20 ends in the best known Thomson configuration for each
    # n <= 100; packings have more and deeper wrong basins.
    crowd = 100 + 2 * n if s > LARGE_S else 20 + 3 * n // 2
    affordable = int(1.5e7 / (n * n * dim))  # keeps a thousand points within a minute
    return max(1, min(crowd, affordable))
