"""psi: against the equations, continuous and decreasing, with finite derivatives everywhere."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hypersphere.functional import Margin, angular, anneal, margin, margin_derivative

from reference import margins as reference

KINDS = ["cosine", "linear", "sigmoid", "square_cosine"]
ANGLES = torch.linspace(0, math.pi, 257, dtype=torch.float64)


@pytest.mark.parametrize("m", [1, 2, 3, 4, 7])
def test_integer_m_is_equation_2_6(m):
    expected = [reference.psi_2_6(t, m) for t in ANGLES.tolist()]
    assert margin(ANGLES.cos(), m).tolist() == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "numbers", [{"m": 3}, {"m": 1.7}, {"shift": 0.5}, {"subtract": 0.35}, {"m": 1.2, "shift": 0.3}]
)
def test_the_one_rule(kind, numbers):
    k = torch.tensor(0.3, dtype=torch.float64) if kind == "sigmoid" else None
    inside = ANGLES[1:-1]
    expected = [reference.psi(t, kind=kind, k=0.3, **numbers) for t in inside.tolist()]
    got = margin(inside.cos(), kind=kind, k=k, **numbers)
    assert got.tolist() == pytest.approx(expected, abs=1e-9)
    assert torch.equal(Margin(**numbers)(inside.cos(), kind, k), got)


@given(
    m=st.floats(1, 6),
    shift=st.floats(0, 3),
    kind=st.sampled_from(KINDS),
    k=st.floats(0.05, 3),
)
def test_continuous_decreasing_and_below_g(m, shift, kind, k):
    theta = torch.linspace(0, math.pi, 4001, dtype=torch.float64)
    psi = margin(theta.cos(), m, shift, kind=kind, k=k)
    steps = psi.diff()
    assert steps.max() <= 1e-7  # decreasing
    slope = {"cosine": 1.0, "linear": 1.0, "square_cosine": 2.0, "sigmoid": 1 / k + 2}[kind]
    assert steps.min() >= -m * slope * math.pi / 4000 - 1e-6  # continuous: no step without a slope
    assert (psi <= angular(theta.cos(), kind, k) + 1e-7).all()


def test_no_margin_is_g_bit_for_bit():
    cos = torch.linspace(-1, 1, 101)
    for kind in KINDS:
        assert torch.equal(margin(cos, m=1, kind=kind), angular(cos, kind))
    assert Margin(m=1).trivial and not Margin(m=1.01).trivial


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("numbers", [{"m": 1}, {"m": 4}, {"m": 2.5}, {"shift": 0.5}])
def test_derivative_is_that_of_autograd(kind, numbers):
    cos = torch.linspace(-0.999, 0.999, 88, dtype=torch.float64, requires_grad=True)
    k = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(lambda c, k: margin(c, kind=kind, k=k, **numbers), (cos[::9], k))
    (expected,) = torch.autograd.grad(margin(cos, kind=kind, k=k, **numbers).sum(), cos)
    got = margin_derivative(cos.detach(), kind=kind, k=k.detach(), **numbers)
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("numbers", [{"m": 4}, {"m": 1.5}, {"shift": 0.5}, {"subtract": 0.3}])
def test_finite_at_the_ends(dtype, kind, numbers):
    ends = torch.tensor([-1.0, -1 + 1e-7, 0.0, 1 - 1e-7, 1.0], dtype=dtype, requires_grad=True)
    psi = margin(ends, kind=kind, **numbers)
    assert psi.dtype == dtype and psi.isfinite().all()
    (gradient,) = torch.autograd.grad(psi.float().sum(), ends)
    assert gradient.isfinite().all()
    numbers = {n: v for n, v in numbers.items() if n != "subtract"}
    assert margin_derivative(ends.detach(), kind=kind, **numbers).isfinite().all()


def test_derivative_at_theta_0_is_m_squared():
    one = torch.ones((), dtype=torch.float64)
    assert margin_derivative(one, m=4).item() == pytest.approx(16, rel=1e-6)


def test_float32_keeps_its_digits_at_the_folds():
    theta = torch.pi / 4 + torch.linspace(-1e-3, 1e-3, 41, dtype=torch.float64)
    for kind in KINDS:
        exact = margin(theta.cos(), m=4, kind=kind, k=0.3)
        assert (margin(theta.cos().float(), m=4, kind=kind, k=0.3) - exact).abs().max() < 3e-6


def test_annealing_mixes():
    psi, plain = torch.tensor(-2.0), torch.tensor(0.5)
    assert anneal(psi, plain, 0.0) == psi
    assert anneal(psi, plain, 4.0).item() == pytest.approx((4 * 0.5 - 2) / 5)
    assert anneal(psi, plain, 1e9).item() == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"m": 0.5}, "m >= 1"),
        ({"shift": 30}, r"radians\(30\) = 0.524"),
        ({"shift": -0.1}, "radians"),
        ({"subtract": -1}, "m >= 0"),
        ({"m": 2, "kind": "sinus"}, "unknown angular activation 'sinus'"),
    ],
)
def test_wrong_margins_are_named(numbers, message):
    with pytest.raises(ValueError, match=message):
        margin(torch.zeros(2), **numbers)
