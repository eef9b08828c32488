import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hypersphere import functional as HF

from edges import EDGE_IDS, EDGES, LOW_PRECISION
from reference import angles as reference


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("name", "x", "y", "theta"), EDGES, ids=EDGE_IDS)
def test_edge_table(name, x, y, theta, dtype):
    x = x.to(dtype, copy=True).requires_grad_()
    y = y.to(dtype, copy=True).requires_grad_()
    eps = torch.finfo(dtype).eps
    value = HF.angle(x, y).detach()
    assert float(value) == pytest.approx(theta, abs=4 * eps, rel=8 * eps)
    assert float(HF.pairwise_angle(x[None], y[None]).detach()) == pytest.approx(
        theta, abs=4 * eps, rel=8 * eps
    )
    assert float(HF.cosine(x, y).detach()) == pytest.approx(math.cos(theta), abs=4 * eps)
    assert float(HF.cosine(x, y).detach()) == pytest.approx(
        reference.cosine(x.detach(), y.detach()), abs=4 * eps
    )
    for function in (HF.angle, HF.cosine, lambda a, b: HF.arccos(HF.cosine(a, b))):
        for gradient in torch.autograd.grad(function(x, y), (x, y)):
            assert gradient.isfinite().all()


@pytest.mark.parametrize("dtype", LOW_PRECISION)
def test_low_precision_is_computed_in_float32(dtype):
    x, y = torch.randn(50, 16).to(dtype), torch.randn(50, 16).to(dtype)
    for function in (HF.cosine, HF.angle, HF.pairwise_cosine, HF.pairwise_angle):
        result = function(x, y)
        assert result.dtype == dtype
        assert torch.equal(result, function(x.float(), y.float()).to(dtype))
    assert HF.row_norm(torch.full((4,), 300.0, dtype=torch.float16)).item() == 600.0


def test_angle_keeps_all_digits_where_arccos_loses_half():
    theta = 1e-6
    x = torch.tensor([1.0, 0.0])
    y = torch.tensor([math.cos(theta), math.sin(theta)])
    assert float(HF.angle(x, y)) == pytest.approx(theta, rel=1e-6)
    assert float(HF.arccos(HF.cosine(x, y))) == 0.0  # the cosine has already forgotten


@pytest.mark.parametrize("theta", [1e-7, 1e-5, 1e-3, 0.1, 1.0, 3.0])
def test_float32_angles_are_exact_to_float_precision(theta):
    x = HF.uniform_on_sphere(40, 16, dtype=torch.float64)
    z = HF.uniform_on_sphere(40, 16, dtype=torch.float64)
    z = HF.normalize(z - (z * x).sum(1, keepdim=True) * x)
    x, y = x.float(), (x * math.cos(theta) + z * math.sin(theta)).float()
    true = torch.tensor([reference.exact_angle(a, b) for a, b in zip(x, y, strict=True)])
    torch.testing.assert_close(HF.angle(x, y), true, rtol=2e-7, atol=0)
    torch.testing.assert_close(HF.pairwise_angle(x, y).diagonal(), true, rtol=2e-7, atol=0)


def test_gradients():
    x = torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
    y = torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
    cos = torch.linspace(-0.95, 0.95, 7, dtype=torch.float64, requires_grad=True)
    for function in (HF.cosine, HF.angle, HF.pairwise_cosine):
        assert torch.autograd.gradcheck(function, (x, y))
        assert torch.autograd.gradgradcheck(function, (x, y))
    assert torch.autograd.gradcheck(HF.pairwise_angle, (x, y))
    for function in (HF.arccos, lambda c: HF.cos_multiple(c, 4)):
        assert torch.autograd.gradcheck(function, (cos,))
        assert torch.autograd.gradgradcheck(function, (cos,))
    assert torch.autograd.gradcheck(HF.normalize, (x,))
    assert torch.autograd.gradcheck(HF.row_norm, (x,))


@pytest.mark.parametrize("m", [0, 1, 2, 3, 4, 7, 12])
def test_cos_multiple_is_the_cosine_of_the_multiple(m):
    theta = torch.linspace(0, math.pi, 101, dtype=torch.float64)
    torch.testing.assert_close(
        HF.cos_multiple(theta.cos(), m), (m * theta).cos(), atol=1e-13, rtol=0
    )


@given(scale=st.floats(1e-20, 1e20), seed=st.integers(0, 1000))
def test_positive_scaling_changes_no_angle(scale, seed):
    x, y = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    torch.testing.assert_close(HF.angle(scale * x, y), HF.angle(x, y), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(HF.pairwise_angle(scale * x, y), HF.pairwise_angle(x, y))
    torch.testing.assert_close(HF.row_norm(scale * x), scale * HF.row_norm(x))


@given(seed=st.integers(0, 1000))
def test_triangle_inequality_and_rotation(seed):
    generator = torch.Generator().manual_seed(seed)
    x, y, z = torch.randn(3, 6, generator=generator, dtype=torch.float64)
    assert HF.angle(x, z) <= HF.angle(x, y) + HF.angle(y, z) + 1e-12
    rotation = torch.linalg.qr(torch.randn(6, 6, generator=generator, dtype=torch.float64)).Q
    torch.testing.assert_close(HF.geodesic_distance(rotation @ x, rotation @ y), HF.angle(x, y))


def test_uniform_sampling_is_uniform_and_seeded():
    draw = [HF.uniform_on_sphere(4000, 3, torch.Generator().manual_seed(5)) for _ in range(2)]
    assert torch.equal(*draw)
    torch.testing.assert_close(HF.row_norm(draw[0]), torch.ones(4000))
    # Archimedes: a coordinate of a uniform point in R^3 is uniform on [-1, 1].
    grid = torch.linspace(-1, 1, 21)
    cdf = (draw[0][:, 2, None] <= grid).float().mean(0)
    assert (cdf - (grid + 1) / 2).abs().max() < 0.03
    assert min(HF.uniformity_test(draw[0])) > 0.01
    assert HF.uniform_on_sphere(2, 8, dtype=torch.bfloat16).dtype == torch.bfloat16


def test_uniformity_test_tells_axes_from_sides():
    generator = torch.Generator().manual_seed(1)
    girdle = torch.randn(2000, 3, generator=generator) * torch.tensor([1.0, 1.0, 0.6])
    result = HF.uniformity_test(girdle)  # balanced, so only the axis test sees it
    assert result.bingham < 1e-6 < result.rayleigh
    p = [HF.uniformity_test(torch.randn(300, 4, generator=generator)) for _ in range(200)]
    for column in zip(*p, strict=True):  # under uniformity the p-values are uniform
        assert 0.02 < sum(v < 0.1 for v in column) / 200 < 0.2


def test_separation_distance():
    points = torch.randn(30, 4, dtype=torch.float64, requires_grad=True)
    value = HF.separation_distance(points).detach()
    assert float(value) == pytest.approx(reference.separation_distance(points.detach()), rel=1e-12)
    assert torch.autograd.gradcheck(HF.separation_distance, (points,))
    doubled = torch.cat([points.detach(), points.detach()[:1]])
    assert float(HF.separation_distance(doubled)) == pytest.approx(0, abs=1e-7)


def test_separation_distance_over_several_chunks():
    points = HF.uniform_on_sphere(1500, 3, dtype=torch.float64)
    points[1400] = HF.normalize(points[1300] + 1e-5)
    value = HF.separation_distance(points)
    torch.testing.assert_close(value, HF.angle(points[1400], points[1300]))


PHI = (1 + math.sqrt(5)) / 2
ICOSAHEDRON = torch.tensor(
    [p for a in (-1, 1) for b in (-PHI, PHI) for p in ((0, a, b), (a, b, 0), (b, 0, a))],
    dtype=torch.float64,
)
CUBE = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * 3)


@pytest.mark.parametrize(
    ("points", "radius"),
    [
        (torch.eye(2), 3 * math.pi / 4),
        (torch.cat([torch.eye(2), -torch.eye(2)]), math.pi / 4),
        (torch.cat([torch.eye(3), -torch.eye(3)]), math.acos(1 / math.sqrt(3))),
        (torch.cat([torch.eye(5), -torch.eye(5)]), math.acos(1 / math.sqrt(5))),
        (CUBE, math.acos(1 / math.sqrt(3))),
        (ICOSAHEDRON, 0.6523581398),  # circumradius of a face seen from the centre: 37.3774 degrees
        (torch.tensor([[0.0, 0.0, 2.0]]), math.pi),  # one point: its antipode
        (torch.tensor([[1.0], [-1.0]]), 0.0),  # a line has no other directions
        (torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), math.pi / 2),  # flat through the origin
        (torch.cat([torch.eye(9)[:4], -torch.eye(9)[:4]]), math.pi / 2),  # the same in R^9
        (torch.tensor([[2.0, 1.0, 0], [1.0, 2.0, 0]]), math.pi - math.acos(0.8) / 2),
    ],
)
def test_covering_radius_of_known_configurations(points, radius):
    assert float(HF.covering_radius(points.double())) == pytest.approx(radius, abs=1e-9)


def test_covering_radius_against_a_grid_and_sampling():
    points = HF.uniform_on_sphere(25, 3, dtype=torch.float64)
    exact = float(HF.covering_radius(points))
    assert exact == pytest.approx(reference.covering_radius_on_grid(points), abs=0.02)
    assert exact >= reference.covering_radius_on_grid(points)
    # Above the hull's dimensions: cross-polytope in R^8, whose deepest hole is a sign vector.
    cross = torch.cat([torch.eye(8), -torch.eye(8)]).double()
    sampled = float(
        HF.covering_radius(cross, samples=20_000, generator=torch.Generator().manual_seed(0))
    )
    assert sampled == pytest.approx(math.acos(1 / math.sqrt(8)), abs=2e-3)


def test_hole_radii_against_brute_force():
    points = HF.uniform_on_sphere(14, 3, dtype=torch.float64)
    angles = torch.tensor(reference.hole_angles(points), dtype=torch.float64)
    torch.testing.assert_close(HF.hole_radii(points), 2 * (angles / 2).sin(), atol=1e-8, rtol=0)
    assert len(HF.hole_radii(points)) == 2 * 14 - 4  # Euler: a simplicial polyhedron
    assert len(HF.hole_radii(CUBE)) == 6  # a square face is one hole
    largest = 2 * torch.sin(HF.covering_radius(points) / 2)
    torch.testing.assert_close(
        HF.hole_moment(points, 400.0) ** (1 / 400), largest, rtol=0.01, atol=0
    )


def test_expected_hole_moment_against_simulation():
    generator = torch.Generator().manual_seed(3)
    draws = [
        HF.hole_moment(HF.uniform_on_sphere(400, 3, generator).double(), 2.0) for _ in range(20)
    ]
    mean = float(torch.stack(draws).mean())
    assert mean == pytest.approx(HF.expected_hole_moment(400, 3, 2.0), rel=0.03)


def test_errors_say_what_came():
    with pytest.raises(ValueError, match=r"equal length along dim -1.*\(3,\) and \(4,\)"):
        HF.angle(torch.ones(3), torch.ones(4))
    with pytest.raises(ValueError, match=r"x of shape \(n, d\), got \(3,\)"):
        HF.pairwise_cosine(torch.ones(3))
    with pytest.raises(TypeError, match=r"floating-point.*int64"):
        HF.normalize(torch.ones(3, dtype=torch.int64))
    with pytest.raises(ValueError, match="integer m >= 0, got 1.5"):
        HF.cos_multiple(torch.ones(1), 1.5)
    with pytest.raises(ValueError, match="n >= 2, got"):
        HF.separation_distance(torch.ones(1, 3))
    with pytest.raises(ValueError, match="dimension 7"):
        HF.hole_radii(torch.eye(7))
    with pytest.raises(ValueError, match="lie in a plane"):
        HF.hole_radii(torch.eye(3))
    with pytest.raises(ValueError, match="lie in a plane"):
        HF.hole_radii(torch.ones(2, 1))
    with pytest.raises(ValueError, match="n >= 0 and dim >= 1"):
        HF.uniform_on_sphere(3, 0)


def test_compiles_without_graph_breaks():
    def loss(x, y):
        return HF.arccos(HF.pairwise_cosine(x, y)).sum() + HF.angle(x, y).sum()

    x, y = torch.randn(4, 6), torch.randn(4, 6)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, y), loss(x, y))
