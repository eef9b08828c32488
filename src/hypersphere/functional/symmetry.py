"""Symmetric point sets: orbits of finite groups, root systems, and starts made of them.

A reflection group is given by its diagram: simple roots a_i with a_i . a_j = -cos(pi / m_ij). The
orbit of a point is as small as the point is special: the fundamental weights (a_i . w_j = 0 for
i != j) have the smallest, points between two weights the next, and a general point has one image
for each element of the group.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .angles import normalize

__all__ = ["orbit", "root_system", "symmetric_starts", "symmetry_groups"]

# Images beyond which an orbit is not followed.
MAX_ORBIT = 100_000
_Draw = Callable[[torch.Generator, int], Tensor]


def symmetry_groups(dim: int) -> list[str]:
    """Names of the groups for ``symmetry`` of :func:`minimize_energy` in R^dim.

    Args:
        dim: dimension of the space, >= 2.

    Returns:
        Reflection groups of that rank, their rotations ("+"), and cyclic groups up to C12.

    >>> symmetry_groups(3)[:6]
    ['A3', 'A3+', 'B3', 'B3+', 'H3', 'H3+']
    """
    names = [f"A{dim}", f"B{dim}"] if dim > 2 else []
    names += [f"D{dim}"] if dim > 3 else []
    names += {3: ["H3"], 4: ["F4", "H4"], 6: ["E6"], 7: ["E7"], 8: ["E8"]}.get(dim, [])
    return [name + sign for name in names for sign in ("", "+")] + [f"C{k}" for k in range(2, 13)]


def root_system(name: str) -> Tensor:
    """The roots of a reflection group as unit vectors: where the mirrors' normals point.

    Args:
        name: A, B or D and the rank ("D5"), "E6", "E7", "E8", "F4", "H3" or "H4".

    Returns:
        (number of roots, rank), float64. D4, D5, E6, E7 and E8 have 24, 40, 72, 126 and 240 roots,
        the best known kissing configurations of their dimensions.

    >>> x = root_system("E8")
    >>> x.shape, (x @ x.T).fill_diagonal_(-1).amax().round(decimals=12)
    (torch.Size([240, 8]), tensor(0.5000, dtype=torch.float64))
    """
    roots = _simple_roots(name)
    found = torch.cat([orbit(root, _reflections(roots)) for root in roots])
    return found[~_equal(found, found, lines=False).tril(-1).any(1)]


def orbit(point: Tensor, generators: Tensor, limit: int = MAX_ORBIT, lines: bool = False) -> Tensor:
    """All images of a point under the group that the matrices generate.

    Args:
        point: (d,), unit length.
        generators: (k, d, d), orthogonal matrices of a finite group.
        limit: the number of images above which a ValueError is raised.
        lines: whether x and -x are the same.

    Returns:
        (images, d), float64, the point itself first.

    >>> turn = torch.tensor([[[0.0, -1.0], [1.0, 0.0]]])
    >>> orbit(torch.tensor([1.0, 0.0]), turn).tolist()
    [[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]]
    """
    point, generators = point.double(), generators.double()
    if generators.ndim != 3 or generators.shape[1:] != (len(point), len(point)):
        raise ValueError(
            f"expected generators (k, {len(point)}, {len(point)}) for a point in R^{len(point)}; "
            f"got {tuple(generators.shape)}"
        )
    found = fresh = point[None]
    while len(fresh):
        images = (generators @ fresh.T).transpose(1, 2).flatten(0, 1)
        images = images[~_equal(images, found, lines).any(1)]
        fresh = images[~_equal(images, images, lines).tril(-1).any(1)]
        found = torch.cat([found, fresh])
        if len(found) > limit:
            raise ValueError(f"the orbit has more than {limit} points")
    return found


def symmetric_starts(
    n: int,
    dim: int,
    count: int,
    symmetry: str,
    generator: torch.Generator,
    lines: bool = False,
) -> Tensor:
    """Sets of n points made of random orbits of a group, (count, n, dim).

    Each point is moved by a thousandth of the spacing, so that a symmetric saddle is left.

    Args:
        n: number of points.
        dim: dimension of the space.
        count: number of sets.
        symmetry: one of :func:`symmetry_groups`, or "any" for all of them in turn.
        generator: of the random orbits.
        lines: whether the points stand for lines.

    Returns:
        (count, n, dim), float64.
    """
    names = symmetry_groups(dim) if symmetry == "any" else [symmetry]
    if not set(names) <= set(symmetry_groups(dim)):
        raise ValueError(
            f"unknown symmetry {symmetry!r} in R^{dim}; choose any or one of "
            f"{', '.join(symmetry_groups(dim))}"
        )
    groups = []
    for name in names:
        strata = _strata(name, dim, n, lines)
        if _reachable(strata, n):
            groups.append(strata)
    if not groups:
        sizes = sorted({stratum.size for stratum in _strata(names[0], dim, 4 * n, lines)})
        raise ValueError(
            f"{n} points cannot be composed of orbits of {symmetry} in R^{dim}: those of "
            f"{names[0]} have {', '.join(map(str, sizes)) or 'more'} points"
        )
    starts = []
    for number in range(count):
        strata = groups[number % len(groups)]
        chosen = _compose(strata, n, generator)
        points = torch.cat([strata[k].sample(generator) for k in chosen])
        noise = torch.randn(n, dim, generator=generator, dtype=torch.float64)
        starts.append(normalize(points + 1e-3 * n ** (-1 / (dim - 1)) * noise))
    return torch.stack(starts)


@dataclass
class _Stratum:
    """Points whose orbits have the same size; once: there is only one such orbit."""

    size: int
    once: bool
    sample: Callable[[torch.Generator], Tensor]


def _strata(name: str, dim: int, largest: int, lines: bool) -> list[_Stratum]:
    """The kinds of orbits of at most `largest` points."""
    cyclic = re.fullmatch(r"C(\d+)", name)
    if cyclic:
        turn = torch.eye(dim, dtype=torch.float64)
        angle = 2 * math.pi / int(cyclic[1])
        turn[:2, :2] = torch.tensor(
            [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]],
            dtype=torch.float64,
        )
        fixed = torch.eye(dim, dtype=torch.float64)[2:]
        ends = [fixed, -fixed] if dim == 3 and not lines else [fixed] if dim > 2 else []
        whole = torch.cat([torch.eye(dim, dtype=torch.float64), -torch.eye(dim).double()])
        spans = [(end, dim == 3) for end in ends] + [(whole, False)]
        return _sized(spans, turn[None], largest, lines)
    roots = _simple_roots(name.rstrip("+"))
    weights = normalize(torch.linalg.inv(roots).T.contiguous())
    matrices = _reflections(roots)
    every = [[k] for k in range(dim)] + [[i, j] for i in range(dim) for j in range(i)]
    if name.endswith("+"):
        matrices = matrices[:1] @ matrices[1:]
        # On a mirror an orbit of the rotations is as large as anywhere else
        every = [face for face in every if dim - len(face) >= 2] + [list(range(dim))]
    elif dim > 2:
        every.append(list(range(dim)))
    return _sized([(weights[face], len(face) == 1) for face in every], matrices, largest, lines)


def _sized(
    spans: list[tuple[Tensor, bool]], matrices: Tensor, largest: int, lines: bool
) -> list[_Stratum]:
    """Strata of positive combinations of the given vectors, with the sizes of their orbits."""
    strata = []
    for vectors, once in spans:

        def draw(generator: torch.Generator, limit: int, vectors: Tensor = vectors) -> Tensor:
            share = torch.rand(len(vectors), generator=generator, dtype=torch.float64)
            return orbit(normalize((share @ vectors)[None])[0], matrices, limit, lines)

        try:
            size = len(draw(torch.Generator().manual_seed(1), largest))
        except ValueError:
            continue

        def sample(generator: torch.Generator, draw: _Draw = draw, size: int = size) -> Tensor:
            # So close to a mirror that a point and its image count as one: another point
            while len(images := draw(generator, MAX_ORBIT)) != size:
                pass
            return images

        strata.append(_Stratum(size, once, sample))
    return strata


def _reachable(strata: list[_Stratum], n: int) -> list[set[int]] | None:
    """For each stratum, the rests that it and the later ones can fill; None if n is not one."""
    fills: list[set[int]] = [{0}]
    for stratum in reversed(strata):
        before = fills[0]
        most = 1 if stratum.once else n // stratum.size
        fills.insert(0, {r + k * stratum.size for r in before for k in range(most + 1)})
        fills[0] = {r for r in fills[0] if r <= n}
    return fills if n in fills[0] else None


def _compose(strata: list[_Stratum], n: int, generator: torch.Generator) -> list[int]:
    """A random choice of strata whose sizes add up to n."""
    order = torch.randperm(len(strata), generator=generator).tolist()
    fills = _reachable([strata[k] for k in order], n)
    assert fills is not None  # the same strata in another order
    chosen, rest = [], n
    for position, k in enumerate(order):
        stratum = strata[k]
        most = 1 if stratum.once else n // stratum.size
        possible = [c for c in range(most + 1) if rest - c * stratum.size in fills[position + 1]]
        pick = possible[int(torch.randint(len(possible), (), generator=generator))]
        chosen += [k] * pick
        rest -= pick * stratum.size
    return chosen


def _simple_roots(name: str) -> Tensor:
    """Unit vectors (rank, rank) with products -cos(pi / m), from the Coxeter diagram."""
    match = re.fullmatch(r"([ABDEFH])(\d+)", name)
    rank = int(match[2]) if match else 0
    kinds = {"A": rank >= 1, "B": rank >= 2, "D": rank >= 4, "E": rank in (6, 7, 8),
             "F": rank == 4, "H": rank in (3, 4)}  # fmt: skip
    if match is None or not kinds[match[1]]:
        raise ValueError(
            f"unknown reflection group {name!r}; expected A1, A2, ..., B2, B3, ..., D4, D5, ..., "
            "E6, E7, E8, F4, H3 or H4"
        )
    kind = match[1]
    edges = {(k, k + 1): 3 for k in range(rank - 1)}
    if kind in "DE":  # the last node hangs on an inner one
        edges.pop((rank - 2, rank - 1))
        edges[(rank - 3 if kind == "D" else 2, rank - 1)] = 3
    elif kind == "B":
        edges[(rank - 2, rank - 1)] = 4
    elif kind == "H":
        edges[(rank - 2, rank - 1)] = 5
    elif kind == "F":
        edges[(1, 2)] = 4
    gram = torch.eye(rank, dtype=torch.float64)
    for (i, j), m in edges.items():
        gram[i, j] = gram[j, i] = -math.cos(math.pi / m)
    factor: Tensor = torch.linalg.cholesky(gram)
    return factor


def _reflections(roots: Tensor) -> Tensor:
    """I - 2 a a^T for each unit row a."""
    eye = torch.eye(roots.shape[1], dtype=roots.dtype)
    return eye - 2 * roots[:, :, None] * roots[:, None]


def _equal(a: Tensor, b: Tensor, lines: bool) -> Tensor:
    """Which unit rows of a and b are the same point, or the same line."""
    cos = a @ b.T
    return (cos.abs() if lines else cos) > 1 - 1e-10
