"""Separation, KoLeo, Gram determinant, polarization and covering."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hypersphere import functional as HF
from hypersphere.functional._kernels.spreading import row_blocks as blocks

from edges import LOW_PRECISION
from reference import spreading as reference

OPTIMA = {
    "simplex": lambda: reference.simplex(4),
    "cross-polytope": lambda: reference.cross_polytope(4),
    "icosahedron": reference.icosahedron,
}


def points(seed=0, count=9, dim=5):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, dim, dtype=torch.float64, generator=generator)


PLACES = points(7, 6, 5)  # where potentials are looked at, instead of the inner search

# name -> (fast, slow), each a function of the weight and of the half space
LOSSES = {
    "separation": (HF.separation, reference.separation),
    "separation mean": (
        lambda w, half: HF.separation(w, half, "mean"),
        lambda w, half: reference.separation(w, half, "mean"),
    ),
    "koleo": (HF.koleo, reference.koleo),
    "gram_determinant": (
        lambda w, half: HF.gram_determinant(w, 0.8, half, 1e-4),
        lambda w, half: reference.gram_determinant(w, 0.8, half, 1e-4),
    ),
    "polarization": (
        lambda w, half: HF.polarization(w, 2.0, half, points=PLACES),
        lambda w, half: -torch.stack([reference.potential(w, v, 2.0, half) for v in PLACES]).amin(),
    ),
    "polarization log": (
        lambda w, half: HF.polarization(w, 0.0, half, points=PLACES),
        lambda w, half: -torch.stack([reference.potential(w, v, 0.0, half) for v in PLACES]).amin(),
    ),
    "polarization geodesic": (
        lambda w, half: HF.polarization(w, 1.0, half, "geodesic", PLACES),
        lambda w, half: (
            -torch.stack([reference.potential(w, v, 1.0, half, "geodesic") for v in PLACES]).amin()
        ),
    ),
    "covering": (
        lambda w, half: HF.covering(w, 5.0, half, PLACES),
        lambda w, half: torch.stack([reference.depth(w, v, 5.0, half) for v in PLACES]).amax(),
    ),
}


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_value_and_gradient_are_those_of_the_double_loop(name, half, monkeypatch):
    fast, slow = LOSSES[name]
    w = points().requires_grad_()
    expected = slow(w, half)
    (gradient,) = torch.autograd.grad(expected, w)
    for entries in (blocks.BLOCK_ENTRIES, 20):  # whole, and in blocks of two rows
        monkeypatch.setattr(blocks, "BLOCK_ENTRIES", entries)
        value = fast(w, half)
        torch.testing.assert_close(value, expected, rtol=1e-11, atol=1e-13)
        torch.testing.assert_close(
            torch.autograd.grad(value, w)[0], gradient, rtol=1e-9, atol=1e-12
        )
    rounded = fast(w.detach().float(), half)
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded.double(), expected.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_gradients_of_first_and_second_order(name, half):
    def function(w):
        return LOSSES[name][0](w, half)

    w = points(3, 6, 5).requires_grad_()
    assert torch.autograd.gradcheck(function, w)
    assert torch.autograd.gradgradcheck(function, w)


@given(st.integers(0, 10_000), st.booleans())
def test_rotation_and_positive_scaling_change_nothing(seed, half):
    w = points(seed, 8, 4)
    generator = torch.Generator().manual_seed(seed)
    rotation = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64, generator=generator)).Q
    lengths = torch.rand(8, 1, dtype=torch.float64, generator=generator) * 1e6 + 1e-6
    moved = lengths * w @ rotation
    for loss in (HF.separation, HF.koleo):
        torch.testing.assert_close(loss(moved, half), loss(w, half))
    torch.testing.assert_close(
        HF.gram_determinant(moved, half_space=half), HF.gram_determinant(w, half_space=half)
    )
    v = points(seed + 1, 3, 4)
    torch.testing.assert_close(
        HF.polarization(moved, 2.0, half, points=v @ rotation),
        HF.polarization(w, 2.0, half, points=v),
    )
    torch.testing.assert_close(
        HF.covering(moved, 5.0, half, v @ rotation), HF.covering(w, 5.0, half, v)
    )


def everything(w, half=False):
    """Each loss with its own inner search."""
    return {
        "separation": HF.separation(w, half),
        "separation mean": HF.separation(w, half, "mean"),
        "koleo": HF.koleo(w, half),
        "gram_determinant": HF.gram_determinant(w, half_space=half),
        "polarization": HF.polarization(w, half_space=half),
        "covering": HF.covering(w, half_space=half),
    }


def test_half_space_is_full_space_on_both_signs():
    w = points(5, 7, 4)
    w[3] = 0
    both = torch.cat([w, -w])
    full, half = everything(both), everything(w, True)
    # A zero neuron and its mirror image are two of the 2N: their distance is sqrt(2).
    for name in ("separation", "separation mean", "koleo"):
        torch.testing.assert_close(half[name], full[name], rtol=1e-9, atol=1e-9)
    for name in ("polarization", "covering"):
        torch.testing.assert_close(half[name], full[name], rtol=1e-6, atol=1e-6)
    w = points(5, 7, 4)
    torch.testing.assert_close(
        HF.gram_determinant(w, half_space=True), HF.gram_determinant(torch.cat([w, -w]))
    )


@pytest.mark.parametrize("entries", [blocks.BLOCK_ENTRIES, 50])
def test_sets_are_separate(entries, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_ENTRIES", entries)
    w = torch.stack([points(1), points(2), reference.simplex(8)[:, :5], points(3)])
    w[3, 4], w[3, 7] = w[3, 2], 0
    for loss in (
        lambda x, **options: HF.separation(x, True, **options),
        lambda x, **options: HF.koleo(x, **options),
        lambda x, **options: HF.gram_determinant(x, half_space=True, **options),
        lambda x, **options: HF.polarization(x, **options),
        lambda x, **options: HF.covering(x, half_space=True, **options),
    ):
        together = loss(w, sets=True)
        assert together.shape == (4,)
        torch.testing.assert_close(
            together, torch.stack([loss(one) for one in w]), rtol=1e-6, atol=1e-6
        )


# --- known optima --------------------------------------------------------------------------------


def with_holes(w, half=False, count=128, steps=300):
    """Losses whose inner problem is solved to the end, at points found for w itself."""
    held = w.detach()
    v = HF.polarization_points(held, 2.0, half, count=count, steps=steps)
    z = HF.covering_points(held, 30.0, half, count=count, steps=steps)
    return {
        "separation": HF.separation(w, half),
        "separation mean": HF.separation(w, half, "mean"),
        "koleo": HF.koleo(w, half),
        "gram_determinant": HF.gram_determinant(w, half_space=half),
        "polarization": HF.polarization(w, 2.0, half, points=v),
        "covering": HF.covering(w, 30.0, half, z),
    }


@pytest.mark.parametrize("entries", [blocks.BLOCK_ENTRIES, 20])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("shape", OPTIMA)
def test_gradient_vanishes_at_regular_bodies(shape, dtype, entries, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_ENTRIES", entries)
    w = (2 * OPTIMA[shape]()).to(dtype).requires_grad_()
    small = 1e-6 if dtype == torch.float64 else 1e-3
    for name, value in with_holes(w).items():
        (gradient,) = torch.autograd.grad(value, w)
        assert float(gradient.norm()) < small, name


@pytest.mark.parametrize("shape", OPTIMA)
def test_regular_bodies_are_not_improved_by_small_changes(shape):
    w = OPTIMA[shape]()
    best = with_holes(w)
    generator = torch.Generator().manual_seed(1)
    for size in (1e-2, 1e-1):
        for _ in range(3):
            noise = torch.randn(w.shape, dtype=w.dtype, generator=generator)
            changed = with_holes(w + size * noise)
            for name, value in changed.items():
                assert float(value) > float(best[name]), (name, size)


@pytest.mark.parametrize("name", ["separation", "koleo", "gram_determinant"])
def test_lines_of_the_icosahedron_are_optimal_in_the_half_space(name):
    w = reference.icosahedron()[:6]
    loss = {
        "separation": HF.separation,
        "koleo": HF.koleo,
        "gram_determinant": lambda x, half: HF.gram_determinant(x, half_space=half),
    }[name]
    x = w.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(x, True), x)
    assert float(gradient.norm()) < 1e-9
    for seed in range(5):
        assert float(loss(w + 0.05 * points(seed, 6, 3), True)) > float(loss(w, True))


def test_closed_forms_at_regular_bodies():
    d = 4
    edge = math.sqrt(2 + 2 / d)
    w = reference.simplex(d)
    assert float(HF.separation(w)) == pytest.approx(-edge, rel=1e-12)
    assert float(HF.koleo(w)) == pytest.approx(-math.log(edge), rel=1e-12)
    off = math.exp(-(edge**2))
    log_det = d * math.log(1 - off + 1e-6) + math.log(1 + d * off + 1e-6)
    assert float(HF.gram_determinant(w)) == pytest.approx(-log_det / (d + 1), rel=1e-9)
    # The deepest point of a simplex is opposite to a corner: cosines -1 and 1/d.
    low = (0.25 + d / (2 - 2 / d)) / (d + 1)
    assert float(HF.polarization(w)) == pytest.approx(-low, rel=1e-9)
    # The largest hole of the icosahedron is over the middle of a face.
    w = reference.icosahedron()
    radius = float(HF.covering_radius(w))
    assert math.degrees(radius) == pytest.approx(37.377368, abs=1e-5)
    value = float(HF.covering(w, 2000.0))
    assert value == pytest.approx(4 * math.sin(radius / 2) ** 2 + math.log(12 / 3) / 2000, abs=1e-5)


def test_inner_search_finds_the_deepest_hole_of_random_points():
    for seed in range(3):
        w = HF.normalize(points(seed, 20, 3))
        found = float(
            HF.covering(w, 300.0, points=HF.covering_points(w, 300.0, count=64, steps=100))
        )
        exact = 4 * math.sin(float(HF.covering_radius(w)) / 2) ** 2
        assert exact - 1e-6 <= found <= exact + math.log(20) / 300
        # No direction of a fine grid has a smaller potential than the best point found.
        generator = torch.Generator().manual_seed(100 + seed)
        grid = HF.uniform_on_sphere(20_000, 3, generator, torch.float64)
        potential = (2 - 2 * grid @ w.T).reciprocal().mean(1)
        assert -float(HF.polarization(w)) <= float(potential.min()) + 1e-12


def test_search_goes_on_from_its_last_points():
    w = points(0, 30, 3)
    first = HF.covering_points(w, 50.0, count=8, steps=2)
    warm = HF.covering_points(w, 50.0, count=8, steps=2, start=first)
    at = {steps: float(HF.covering(w, 50.0, points=v)) for steps, v in ((2, first), (4, warm))}
    assert at[4] >= at[2]
    torch.testing.assert_close(first, HF.covering_points(w, 50.0, count=8, steps=2))
    values = [float(HF.covering(w, 50.0, points=v[None])) for v in first]
    assert values == sorted(values, reverse=True)


# --- edges ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("entries", [blocks.BLOCK_ENTRIES, 20])
def test_duplicate_opposite_zero_and_tiny_neurons_stay_finite(half, dtype, entries, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_ENTRIES", entries)
    w = torch.randn(9, 5, dtype=dtype)
    w[1], w[2], w[6] = 3 * w[0], -w[0], w[0] + 1e-4 * w[7]
    for zeros in (False, True):
        if zeros:
            w[3], w[4], w[5] = 0, 0, 1e-25 * w[5]
        x = w.clone().requires_grad_()
        for name, value in everything(x, half).items():
            (gradient,) = torch.autograd.grad(value, x)
            assert value.isfinite() and gradient.isfinite().all(), name
            assert not zeros or bool((gradient[3:5] == 0).all()), name


@pytest.mark.parametrize("entries", [blocks.BLOCK_ENTRIES, 20])
@pytest.mark.parametrize("half", [False, True])
def test_collapsed_features_are_pushed_apart(half, entries, monkeypatch):
    """Differences resolve what cosines cannot: directions within 1e-4 of each other."""
    monkeypatch.setattr(blocks, "BLOCK_ENTRIES", entries)
    x = (torch.ones(16, 8) + 1e-4 * torch.randn(16, 8)).requires_grad_()
    HF.koleo(x, half).backward()
    assert float(x.grad.norm(dim=1).min()) > 100
    expected = reference.koleo(x.detach().double())
    assert float(HF.koleo(x.detach(), half)) == pytest.approx(float(expected), rel=1e-2)


def test_all_equal_is_finite_without_gradient():
    x = torch.ones(4, 3, requires_grad=True)
    floor = 8 * torch.finfo(torch.float32).eps
    values = everything(x.detach())
    assert float(values["separation"]) == pytest.approx(-floor)
    assert float(values["koleo"]) == pytest.approx(-math.log(floor))
    # eigenvalues 4 and three times 0, and the ridge
    ridge = -(math.log(4) + 3 * math.log(1e-6)) / 4
    assert float(values["gram_determinant"]) == pytest.approx(ridge, rel=1e-5)
    assert float(values["polarization"]) == pytest.approx(-0.25)
    assert float(values["covering"]) == pytest.approx(4.0, rel=1e-5)
    for value in everything(x).values():
        assert torch.autograd.grad(value, x)[0].isfinite().all()


@pytest.mark.parametrize("dtype", LOW_PRECISION)
def test_low_precision_is_computed_in_float32(dtype):
    w = torch.randn(10, 6).to(dtype)
    for name, value in everything(w).items():
        assert value.dtype == torch.float32
        torch.testing.assert_close(value, everything(w.float())[name])


def test_autocast_does_not_touch_them():
    w = torch.randn(10, 6)
    expected = everything(w)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for name, value in everything(w).items():
            torch.testing.assert_close(value, expected[name], rtol=0, atol=0)


def test_convolution_filters_are_flattened():
    w = torch.randn(6, 2, 3, 3)
    for name, value in everything(w).items():
        torch.testing.assert_close(value, everything(w.flatten(1))[name])


def test_memory_stays_far_below_the_square(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_ENTRIES", 2**14)
    largest = 0
    original = torch.bmm

    def watched(a, b):
        nonlocal largest
        product = original(a, b)
        largest = max(largest, product.numel())
        return product

    monkeypatch.setattr(torch, "bmm", watched)
    w = torch.randn(600, 8, requires_grad=True)
    (HF.separation(w, True) + HF.koleo(w) + HF.covering(w) + HF.polarization(w)).backward()
    assert largest <= 32 * 600
    w = reference.simplex(599).requires_grad_()  # all are tied
    value = HF.koleo(w)
    (gradient,) = torch.autograd.grad(value, w)
    assert float(gradient.norm()) < 1e-9
    assert largest <= 599 * 600


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: HF.separation(torch.zeros(5)), r"feature per row, N >= 2; got \(5,\)"),
        (lambda: HF.koleo(torch.zeros(1, 5)), "koleo expects"),
        (lambda: HF.gram_determinant(torch.zeros(3, 0)), r"got \(3, 0\)"),
        (lambda: HF.covering(torch.zeros(0, 4)), r"got \(0, 4\)"),
        (lambda: HF.polarization(torch.eye(3), sets=True), r"\(sets, N, d\)"),
        (lambda: HF.separation(torch.eye(3), reduction="sum"), "'min' or 'mean', got 'sum'"),
        (lambda: HF.gram_determinant(torch.eye(3), epsilon=0.0), "epsilon"),
        (lambda: HF.gram_determinant(torch.eye(3), ridge=-1.0), "ridge"),
        (lambda: HF.polarization(torch.eye(3), s=-1.0), "0 <= s < inf"),
        (lambda: HF.polarization(torch.eye(3), distance="chord"), "'euclidean' or 'geodesic'"),
        (lambda: HF.polarization(torch.eye(3), points=torch.eye(2)), r"points \(P, 3\)"),
        (lambda: HF.covering(torch.eye(3), sharpness=0.0), "sharpness"),
        (lambda: HF.covering_points(torch.eye(3), count=0), "count >= 1"),
    ],
)
def test_wrong_arguments_are_told(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_integers_are_refused():
    for loss in (HF.separation, HF.koleo, HF.gram_determinant, HF.polarization, HF.covering):
        with pytest.raises(TypeError, match="int64"):
            loss(torch.ones(3, 3, dtype=torch.int64))


def test_neurons_that_are_not_finite_are_named():
    with pytest.raises(ValueError, match="they hold NaN or infinity"):
        HF.gram_determinant(torch.full((4, 3), torch.nan))
