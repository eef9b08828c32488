"""Tammes' problem by contacts, large problems, symmetric starts, published records."""

import itertools
import math
import warnings

import pytest
import torch
from scipy.optimize import linprog

from hypersphere import functional as HF
from hypersphere.functional._kernels.energy.contacts import (
    largest_cosine,
    pack_points,
    tangent_bases,
)
from hypersphere.functional._kernels.energy.linear_program import ContactRows, smallest_maximum
from hypersphere.functional._kernels.energy.newton import newton
from hypersphere.functional._kernels.energy.potential import Potential


def degrees(points):
    return math.degrees(float(HF.separation_distance(points)))


def random_points(n, d, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return HF.uniform_on_sphere(n, d, generator, torch.float64)


def make_pairs(x, radius):
    """All pairs of a configuration, one at a time."""
    n = len(x)
    basis = tangent_bases(x)
    top = float(largest_cosine(x[None], False))
    ij = list(itertools.combinations(range(n), 2))
    left = torch.stack([basis[i].T @ x[j] for i, j in ij])
    right = torch.stack([basis[j].T @ x[i] for i, j in ij])
    gap = torch.tensor([(top - float(x[i] @ x[j])) / radius for i, j in ij], dtype=torch.float64)
    i, j = torch.tensor(ij).T
    return ContactRows(n, i[None], j[None], left[None], right[None], gap[None].clamp_min(0))


@pytest.mark.parametrize("n, d, radius", [(6, 3, 0.1), (9, 4, 0.02), (5, 2, 0.3)])
@pytest.mark.parametrize("dense", [True, False])
def test_the_linear_program_agrees_with_scipy(n, d, radius, dense):
    x = random_points(n, d)
    pairs = make_pairs(x, radius)
    if not dense:
        pairs.rows = None
    y, force, c = smallest_maximum(pairs)
    m = d - 1
    rows = torch.zeros(len(pairs.gap[0]), n, m, dtype=torch.float64)
    for k, (i, j) in enumerate(zip(pairs.i[0].tolist(), pairs.j[0].tolist(), strict=True)):
        rows[k, i] += pairs.left[0, k]
        rows[k, j] += pairs.right[0, k]
    matrix = torch.cat([rows.flatten(1), -torch.ones(len(rows), 1, dtype=torch.float64)], 1)
    bounds = [(-1, 1)] * (n * m) + [(None, None)]
    found = linprog([0] * (n * m) + [1], matrix.numpy(), pairs.gap[0].numpy(), bounds=bounds)
    assert float(c) == pytest.approx(found.fun, abs=1e-8)
    assert float(force.sum()) == pytest.approx(1, abs=1e-6) and float(y.abs().max()) <= 1 + 1e-12
    assert bool((matrix[:, :-1] @ y.flatten() - c <= pairs.gap[0] + 1e-9).all())


def test_packing_reaches_the_last_digits():
    start = HF.minimize_energy(12, 3, 30.0, restarts=5)
    noise = 1e-3 * random_points(12, 3, seed=1)
    packed, finished = pack_points(HF.normalize(start + noise)[None])
    assert bool(finished) and degrees(packed[0]) == pytest.approx(
        math.degrees(math.atan(2)), abs=1e-12
    )


def test_forces_balance_in_a_packing():
    """At the optimum sum_j f_ij x_j is parallel to x_i for forces f >= 0, not all zero."""
    x = HF.minimize_energy(10, 3, math.inf, restarts=20)
    force = smallest_maximum(make_pairs(x, 1e-6))[1][0]
    total = torch.zeros_like(x)
    for f, (i, j) in zip(force.tolist(), itertools.combinations(range(10), 2), strict=True):
        total[i] += f * x[j]
        total[j] += f * x[i]
    tangent = total - (total * x).sum(1, keepdim=True) * x
    assert float(tangent.abs().max()) < 1e-6 < float(force.max())


@pytest.mark.parametrize("n", [6, 8, 10])
def test_angles_of_the_table(n):
    known = HF.best_known(n, 3, math.inf)
    found = HF.minimize_energy(n, 3, math.inf, restarts=12)
    assert abs(degrees(found) - known.value) <= known.precision + 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("n", [27, 34, 45])  # short of the record before contacts were solved
def test_packings_that_a_smooth_energy_misses(n):
    known = HF.best_known(n, 3, math.inf)
    assert abs(degrees(HF.minimize_energy(n, 3, math.inf)) - known.value) <= known.precision + 1e-9


@pytest.mark.parametrize("name, n, dim", [("D4", 24, 4), ("D5", 40, 5), ("E6", 72, 6)])
def test_kissing_configurations_from_symmetric_starts(name, n, dim):
    found = HF.minimize_energy(n, dim, math.inf, restarts=1, symmetry=name)
    assert degrees(found) == pytest.approx(60, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name, n, dim", [("E7", 126, 7), ("E8", 240, 8)])
def test_larger_kissing_configurations(name, n, dim):
    found = HF.minimize_energy(n, dim, math.inf, restarts=1, symmetry=name)
    assert degrees(found) == pytest.approx(60, abs=1e-9)


@pytest.mark.parametrize(
    "name, count, angle",
    [("A3", 12, 60), ("B3", 18, 45), ("D4", 24, 60), ("D5", 40, 60), ("E6", 72, 60),
     ("E7", 126, 60), ("E8", 240, 60), ("F4", 48, 45), ("H3", 30, 36), ("H4", 120, 36)],
)  # fmt: skip
def test_root_systems(name, count, angle):
    roots = HF.root_system(name)
    assert roots.shape == (count, int(name[1:]))
    assert degrees(roots) == pytest.approx(angle, abs=1e-9)
    mirrored = roots - 2 * torch.outer(roots @ roots[0], roots[0])  # the set maps to itself
    assert float((mirrored @ roots.T).amax(1).min()) == pytest.approx(1)


@pytest.mark.parametrize("symmetry, n", [("B3+", 24), ("H3+", 12), ("C3", 7), ("any", 20)])
def test_symmetric_starts_have_the_asked_size(symmetry, n):
    points = HF.minimize_energy(n, 3, 1.0, restarts=3, symmetry=symmetry)
    assert points.shape == (n, 3)
    known = HF.best_known(n, 3, 1.0).value
    energy = float(HF.hyperspherical_energy(points, 1.0, reduction="sum")) / 2
    assert energy >= known - 1e-8


def test_a_point_on_a_mirror_is_drawn_again():
    from hypersphere.functional.symmetry import symmetric_starts

    # One of these orbits begins so close to a mirror that a point and its image are one
    starts = symmetric_starts(24, 3, 400, "B3", torch.Generator().manual_seed(71))
    assert starts.shape == (400, 24, 3)


def test_symmetry_that_does_not_fit_is_told():
    with pytest.raises(ValueError, match="unknown symmetry 'E8' in R.3"):
        HF.minimize_energy(12, 3, symmetry="E8")
    with pytest.raises(ValueError, match="cannot be composed"):
        HF.minimize_energy(239, 8, symmetry="E8", restarts=1)
    with pytest.raises(ValueError, match="unknown reflection group"):
        HF.root_system("E9")
    with pytest.raises(ValueError, match="more than 3"):
        HF.orbit(torch.tensor([1.0, 0.0]), torch.tensor([[[0.0, -1.0], [1.0, 0.0]]]), limit=3)
    with pytest.raises(ValueError, match="generators"):
        HF.orbit(torch.tensor([1.0, 0.0]), torch.eye(3)[None])


def test_lines_of_symmetric_starts():
    lines = HF.minimize_energy(6, 3, math.inf, half_space=True, restarts=2, symmetry="H3")
    cos = (lines @ lines.T).abs().fill_diagonal_(0)
    assert float(cos.max()) == pytest.approx(5**-0.5, abs=1e-12)


def test_truncated_newton_meets_the_dense_one():
    from hypersphere.functional._kernels.energy import newton as module

    x = HF.minimize_energy(40, 3, 1.0, restarts=2)
    x = HF.normalize(x + 1e-3 * random_points(40, 3))
    potential = Potential(1.0, False, False, 1e-12)
    dense, rest = newton(x, potential)
    limit, module.MAX_DENSE = module.MAX_DENSE, 0
    try:
        iterative, other = newton(x, potential)
    finally:
        module.MAX_DENSE = limit
    torch.testing.assert_close(iterative @ iterative.T, dense @ dense.T, rtol=0, atol=1e-9)
    # Where Newton stops depends on rounding: the last step is taken if it still helps.
    assert rest < 1e-10 and other < 1e-10


@pytest.mark.parametrize("s", [2.0, 30.0, pytest.param(0.0, marks=pytest.mark.slow)])
def test_no_limit_is_silent_any_more(s):
    """1760 coordinates: beyond the dense Hessian, and still without a gradient."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        points = HF.minimize_energy(160, 12, s, restarts=1).requires_grad_()
    if s < 12:
        HF.hyperspherical_energy(points, s, reduction="sum").backward()
        scale = float(HF.hyperspherical_energy(points.detach(), s + 1, reduction="sum"))
        assert float(points.grad.norm()) < 1e-7 * scale


def test_records_are_found_and_their_absence_is_told():
    assert HF.best_known(100, 3, 1.0).value == 4448.350634331
    assert HF.best_known(151, 3, 1.0) is None and HF.best_known(9, 4, 1.0) is None
    assert HF.best_known(150, 3, 1.0).precision == pytest.approx(5e-10)
    assert HF.best_known(139, 3, 1.0).precision == pytest.approx(5e-6)  # five decimals are known
    assert HF.best_known(8, 4, math.inf).value == pytest.approx(90)
    assert HF.best_known(5, 4, math.inf).value == pytest.approx(math.degrees(math.acos(-0.25)))
    assert HF.best_known(40, 5, math.inf).value == 60
    assert HF.best_known(131, 3, math.inf) is None and HF.best_known(12, 3, 2.0) is None
    assert all(
        HF.best_known(n, 3, math.inf).value >= HF.best_known(n + 1, 3, math.inf).value
        for n in range(4, 130)
    )
