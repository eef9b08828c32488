"""Point configurations of minimum energy (5.3.7): Thomson, Whyte and Tammes problems.

The energy landscape has exponentially many minima, so the search is a crowd: random starts descend
together by a batched L-BFGS in float64, and the best are finished by Newton steps on the sphere,
which reach machine precision in a few iterations.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ._kernels.energy.descent import descend
from ._kernels.energy.newton import newton, riesz
from ._kernels.energy.points_large_s import minimize_large_s
from ._kernels.energy.potential import Potential
from .angles import uniform_on_sphere
from .energy import distance_floor

__all__ = ["minimize_energy"]

# Powers above which d^-s is handled by its logarithm.
LARGE_S = 12.0


def minimize_energy(
    n: int,
    dim: int,
    s: float = 1.0,
    half_space: bool = False,
    restarts: int | None = None,
    seed: int = 0,
) -> Tensor:
    """n unit vectors in R^dim of the lowest energy E_s found (Eq. 5.6).

    Args:
        n: number of points, n >= 1.
        dim: dimension of the space around the sphere, dim >= 1; 3 is the ordinary sphere.
        s: power of the Riesz kernel, s >= 0. 1 is Thomson's problem (harmonic, Coulomb), 0 is
            Whyte's (logarithmic), math.inf is Tammes' (the largest smallest distance, reached by
            raising s and then polishing the contacts).
        half_space: spread the 2n points {x, -x}, i.e. n lines instead of n points.
        restarts: number of random starts. Default: as many as the published optima on the 2-sphere
            up to n = 100 needed, fewer for large problems.
        seed: the same seed gives the same points.

    Returns:
        The points, (n, dim), float64, on the CPU.

    >>> x = minimize_energy(4, 3)
    >>> (x @ x.T)[0, 1:]  # the regular tetrahedron
    tensor([-0.3333, -0.3333, -0.3333], dtype=torch.float64)
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
    start = uniform_on_sphere(count * n, dim, generator, torch.float64).view(count, n, dim)
    if n == 1 or dim == 1:
        return start[0] if n == 1 else torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    if s > LARGE_S:
        return minimize_large_s(start, s, half_space)
    potential = Potential(float(s), False, half_space, distance_floor(s, torch.float64))
    objective = riesz(potential)
    crowd, energy = descend(objective, start)
    finished = torch.stack([newton(x, potential) for x in crowd[energy.argsort()[:2]]])
    return finished[int(objective(finished)[0].argmin())]


def _default_restarts(n: int, dim: int, s: float) -> int:
    # On the 2-sphere at least one start in 20 ends in the best known Thomson configuration for each
    # n <= 100; packings have more and deeper wrong basins.
    crowd = 100 + 2 * n if s > LARGE_S else 20 + 3 * n // 2
    affordable = int(1.5e7 / (n * n * dim))  # keeps a thousand points within a minute
    return max(1, min(crowd, affordable))
