"""The Bessel ratio and log normalizer against mpmath, everywhere and across the seams."""

import math

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mpf

from hypersphere import functional as HF

from reference import von_mises_fisher as reference

FUNCTIONS = [
    HF.vmf_mean_length,
    HF.vmf_mean_length_slope,
    HF.vmf_log_normalizer,
    HF.vmf_kl_uniform,
]
KAPPAS = [0.0, *(10.0**k for k in range(-8, 7)), 18.0, 35.999, 36.0, 36.001, 333.3]
DIMS = [2, 3, 4, 7, 16, 36, 37, 38, 39, 128, 1000, 10_000]


def exact(kappa, dim):
    """A, A', log Z and kappa A - log(Z / Z(0)) with 50 digits."""
    with mpmath.workdps(reference.DIGITS):
        A, log_z = reference.mean_length(kappa, dim), reference.log_normalizer(kappa, dim)
        slope = 1 - A * A - (dim - 1) * A / mpf(kappa) if kappa else 1 / mpf(dim)
        return A, slope, log_z, mpf(kappa) * A - log_z + reference.log_area(dim)


def affordable(kappa):
    """At d = 10,000, mpmath sums 1e5 terms per value between the two regions where it is fast."""
    return kappa <= 1e4 or kappa >= 9e5


def worst_errors(dim, kappas):
    """Largest error of the four functions, relative or, of the logarithms below 1, absolute."""
    got = [f(torch.tensor(kappas, dtype=torch.float64), dim).tolist() for f in FUNCTIONS]
    worst = [0.0] * 4
    for i, kappa in enumerate(kappas):
        for j, want in enumerate(exact(kappa, dim)):
            scale = max(abs(want), 1 if j >= 2 else 0) or 1
            worst[j] = max(worst[j], float(abs(got[j][i] - want) / scale))
    return worst


@pytest.mark.parametrize("dim", DIMS)
def test_values_against_mpmath(dim):
    kappas = [k for k in KAPPAS if dim < 10_000 or affordable(k)]
    mean, slope, log_z, divergence = worst_errors(dim, kappas)
    assert mean < 1e-14
    assert slope < 1e-11
    assert log_z < 1e-13  # log Z crosses zero, where only its absolute error is small
    assert divergence < 1e-13


@pytest.mark.slow
@pytest.mark.parametrize("dim", [2, 3, 5, 10, 30, 37, 38, 99, 300, 3000, 10_000])
def test_values_on_a_fine_grid(dim):
    kappas = [0.0, *(10.0 ** (k / 5) for k in range(-40, 31))]
    kappas = [k for k in kappas if dim < 10_000 or affordable(k)]
    assert max(worst_errors(dim, kappas)) < 1e-10


@pytest.mark.slow
def test_values_between_the_regions_where_mpmath_is_fast():
    assert max(worst_errors(10_000, [1e5])) < 1e-13


def test_values_at_100_000_in_10_000_dimensions():
    """Between the regions: A = kappa / (d + kappa A_{d+2}), which there contracts, in 50 digits."""
    kappa, dim = 1e5, 10_000
    with mpmath.workdps(50):
        A = mpf(1)
        for d in range(dim + 40_000, dim - 1, -2):
            A = mpf(kappa) / (d + mpf(kappa) * A)
    got = HF.vmf_mean_length(torch.tensor(kappa, dtype=torch.float64), dim)
    assert abs(float(got) / float(A) - 1) < 1e-15


@pytest.mark.parametrize("dim", [2, 3, 17, 37, 38])
@pytest.mark.parametrize("center", [1.0, 18.0, 36.0])
def test_no_jump_across_the_seams(dim, center):
    """Second differences follow the second derivative down to rounding error."""
    step = 2e-4
    kappa = center + step * torch.arange(-20, 21, dtype=torch.float64)
    for function, scale in zip(FUNCTIONS, (1, 1, center, center), strict=True):
        value = function(kappa, dim)
        second = value[2:] - 2 * value[1:-1] + value[:-2]
        inner = kappa[1:-1].requires_grad_()
        (slope,) = torch.autograd.grad(function(inner, dim).sum(), inner, create_graph=True)
        (curvature,) = torch.autograd.grad(slope.sum(), inner)
        kappa = kappa.detach()
        assert (second - curvature * step**2).abs().max() < 4e-15 * (1 + scale)


def test_neighbouring_dimensions_join_smoothly():
    """From d = 37 to 38 the recursion ends; A is analytic in d, so high differences are tiny."""
    kappa = torch.tensor([0.5, 5.0, 40.0, 60.0, 500.0], dtype=torch.float64)
    values = torch.stack([HF.vmf_mean_length(kappa, d) for d in range(24, 58)])
    for _ in range(10):
        values = values.diff(dim=0)
    assert values.abs().max() < 1e-9


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dim", [2, 10, 60])
def test_gradients_twice(function, dim):
    kappa = torch.tensor([0.0, 1e-3, 0.3, 0.9999, 1.0, 3.0, 35.999, 36.0, 200.0]).double()
    kappa.requires_grad_()
    assert torch.autograd.gradcheck(lambda k: function(k, dim), kappa, atol=1e-8)
    assert torch.autograd.gradgradcheck(lambda k: function(k, dim), kappa, atol=1e-8)


@pytest.mark.parametrize("dim", [2, 3, 40, 10_000])
def test_second_derivative_at_the_extremes(dim):
    """A'' by its closed form in 80 digits; it is 0/0 at 0 and tends to (d - 1) / kappa^3."""
    kappas = [1e-6, 1e-3, 0.999, 1.0, 1.42, 30.0, 99.0, 101.0, 1e3, 1e4]
    kappa = torch.tensor(kappas, dtype=torch.float64, requires_grad=True)
    (second,) = torch.autograd.grad(HF.vmf_mean_length_slope(kappa, dim).sum(), kappa)
    for got, k in zip(second.tolist(), kappas, strict=True):
        with mpmath.workdps(80):
            half, x = mpf(dim) / 2, mpf(k)
            A = mpmath.besseli(half, x, maxterms=10**7) / mpmath.besseli(
                half - 1, x, maxterms=10**7
            )
            slope = 1 - A * A - (dim - 1) * A / x
            want = -2 * A * slope - (dim - 1) * (slope / x - A / x**2)
        assert abs(got / float(want) - 1) < 1e-8


def test_coefficients_of_the_expansion():
    """At nu = 0, I_1 / I_0 = 1 - 1/(2x) - 1/(8x^2) - 1/(8x^3) - 25/(128x^4) - 13/(32x^5) - ..."""
    from hypersphere.functional._kernels.bessel.debye import TERMS, ratio_polynomials

    gamma = ratio_polynomials(TERMS)
    assert [p[0] for p in gamma[:5]] == [-1 / 2, -1 / 8, -1 / 8, -25 / 128, -13 / 32]
    assert [len(p) for p in gamma] == list(range(1, TERMS + 1))
    # next to kappa = 0, A / kappa = 1/(2 nu + 2) = 1/(2 nu) + gamma / nu^2
    order = 40.0
    total = sum(sum(p) / order**k for k, p in enumerate(gamma))
    assert 1 / (2 * order) + total / order**2 == pytest.approx(1 / (2 * order + 2), rel=1e-15)


def test_closed_forms():
    kappa = torch.tensor([1e-3, 0.5, 7.0, 300.0], dtype=torch.float64)
    torch.testing.assert_close(HF.vmf_mean_length(kappa, 3), 1 / kappa.tanh() - 1 / kappa)
    log_sinh = kappa + torch.log(-torch.expm1(-2 * kappa)) - math.log(2)
    log_z = math.log(4 * math.pi) + log_sinh - kappa.log()
    torch.testing.assert_close(HF.vmf_log_normalizer(kappa, 3), log_z)
    circle = torch.special.i1e(kappa) / torch.special.i0e(kappa)
    torch.testing.assert_close(HF.vmf_mean_length(kappa, 2), circle)


@given(st.integers(2, 2000), st.floats(1e-6, 1e5))
def test_identities(dim, kappa):
    kappa = torch.tensor(kappa, dtype=torch.float64)
    A, above = HF.vmf_mean_length(kappa, dim), HF.vmf_mean_length(kappa, dim + 2)
    torch.testing.assert_close(A, kappa / (dim + kappa * above), rtol=1e-14, atol=0)
    assert above < A  # falls with the dimension, rises with kappa
    slope = HF.vmf_mean_length_slope(kappa, dim)
    assert slope > 0
    torch.testing.assert_close(slope, 1 - A * A - (dim - 1) * A / kappa, rtol=1e-9, atol=1e-15)
    # Amos (1974)
    nu = dim / 2 - 1
    lower = kappa / (nu + 0.5 + torch.hypot(kappa, kappa.new_tensor(nu + 1.5)))
    upper = kappa / (nu + torch.hypot(kappa, kappa.new_tensor(nu + 2.0)))
    assert lower * (1 - 1e-15) <= A <= upper * (1 + 1e-15)


@given(st.integers(2, 10_000), st.floats(0, 1 - 1e-9))
def test_concentration_inverts_the_mean_length(dim, length):
    R = torch.tensor(length, dtype=torch.float64)
    kappa = HF.vmf_concentration(R, dim)
    assert abs(HF.vmf_mean_length(kappa, dim) - R) < 4e-16
    assert kappa.isfinite() and kappa >= 0


@pytest.mark.parametrize("dim", [2, 3, 64, 10_000])
def test_concentration_from_kappa_and_back(dim):
    kappa = torch.tensor([0.0, *(10.0**k for k in range(-6, 7))], dtype=torch.float64)
    got = HF.vmf_concentration(HF.vmf_mean_length(kappa, dim), dim)
    # a mean length next to 1 holds only so many digits of kappa
    digits = 1e-15 / (kappa * HF.vmf_mean_length_slope(kappa, dim)).clamp_min(1e-300)
    assert ((got - kappa).abs() <= kappa * (1e-14 + digits)).all()


def test_concentration_at_its_ends_and_its_gradient():
    R = torch.tensor([0.0, 1.0, 1.5, -0.1], dtype=torch.float64)
    assert HF.vmf_concentration(R, 3).tolist() == [0.0, math.inf, math.inf, 0.0]
    R = torch.zeros((), dtype=torch.float64, requires_grad=True)
    HF.vmf_concentration(R, 5).backward()
    assert float(R.grad) == pytest.approx(5, rel=1e-14)
    R = torch.tensor([0.01, 0.2, 0.7, 0.99], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda r: HF.vmf_concentration(r, 5), R, eps=1e-8, atol=1e-4)


def test_sphere_log_area():
    for dim in (1, 2, 3, 400, 10_000):
        assert HF.sphere_log_area(dim) == pytest.approx(float(reference.log_area(dim)), rel=1e-14)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_types_shapes_and_edges(function):
    wide = torch.tensor([[0.0, 2.5, 1e6]], dtype=torch.float64)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        narrow = function(wide.clamp_max(6e4).to(dtype), 8)
        assert narrow.dtype == dtype and narrow.shape == wide.shape
        exactly = function(wide.clamp_max(6e4).to(dtype).double(), 8)
        torch.testing.assert_close(narrow, exactly.to(dtype), rtol=0, atol=0)
    assert function(torch.empty(0, 3), 4).shape == (0, 3)
    assert function(torch.tensor(torch.nan), 4).isnan()
    many = torch.linspace(0, 100, 70_001, dtype=torch.float64)  # more than one chunk
    torch.testing.assert_close(function(many, 5)[::7000], function(many[::7000], 5))
    mapped = torch.func.vmap(lambda k: function(k, 3))(many[:5])
    torch.testing.assert_close(mapped, function(many[:5], 3), rtol=1e-14, atol=1e-20)


def test_huge_concentrations_stay_finite():
    kappa = torch.tensor([1e9, 1e15, 1e100], dtype=torch.float64)
    for dim in (2, 3, 100, 10_000):
        assert torch.stack([f(kappa, dim) for f in FUNCTIONS]).isfinite().all()
        limit = (dim - 1) / (2 * kappa[:2] ** 2)
        torch.testing.assert_close(
            HF.vmf_mean_length_slope(kappa[:2], dim), limit, rtol=2e-5, atol=0
        )


def test_parity():
    kappa = torch.tensor([0.3, 2.0, 80.0], dtype=torch.float64)
    for dim in (3, 100):
        torch.testing.assert_close(HF.vmf_mean_length(-kappa, dim), -HF.vmf_mean_length(kappa, dim))
        for even in FUNCTIONS[1:]:
            torch.testing.assert_close(even(-kappa, dim), even(kappa, dim))


@pytest.mark.parametrize("function", [*FUNCTIONS, HF.vmf_concentration])
def test_wrong_arguments_are_named(function):
    with pytest.raises(TypeError, match="floating-point tensor, got float"):
        function(1.0, 3)
    with pytest.raises(TypeError, match="floating-point tensor, got torch.int64"):
        function(torch.tensor(1), 3)
    for dim in (1, 2.0, True):
        with pytest.raises(ValueError, match="an integer >= 2; got"):
            function(torch.tensor(0.5), dim)
