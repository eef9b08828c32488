"""Angular activations against Eq. 4.11-4.14 in theta, with their derivatives."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hypersphere import functional as HF

from kinds import ANGULAR_KINDS
from reference import decoupled as reference

THETAS = torch.linspace(0, math.pi, 61, dtype=torch.float64)


@pytest.mark.parametrize("kind", ANGULAR_KINDS)
@pytest.mark.parametrize("k", [0.05, 0.3, 1.0, 50.0])
def test_equation(kind, k):
    want = torch.tensor([reference.angular(t, kind, k) for t in THETAS.tolist()])
    got = HF.angular(THETAS.cos(), kind, k)
    # cos(theta) itself loses half the digits of theta at its ends, and a small k magnifies them.
    torch.testing.assert_close(got, want.double(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ANGULAR_KINDS)
def test_ends_and_middle_are_exact(kind):
    got = HF.angular(torch.tensor([1.0, 0.0, -1.0]), kind)
    torch.testing.assert_close(got, torch.tensor([1.0, 0.0, -1.0]), rtol=0, atol=1e-6)


@given(
    st.sampled_from(ANGULAR_KINDS),
    st.floats(0.02, 20),
    st.lists(st.floats(-1, 1), min_size=2, max_size=2, unique=True),
)
def test_odd_bounded_and_increasing_in_the_cosine(kind, k, cosines):
    low, high = sorted(cosines)
    c = torch.tensor([low, high, -low, -high], dtype=torch.float64)
    g = HF.angular(c, kind, k)
    assert g.abs().max() <= 1 + 1e-12
    assert g[0] <= g[1]
    torch.testing.assert_close(g[:2], -g[2:])


@pytest.mark.parametrize("kind", ANGULAR_KINDS)
def test_gradients(kind):
    c = torch.tensor([-0.95, -0.3, 0.2, 0.8], dtype=torch.float64, requires_grad=True)
    k = torch.tensor([0.2, 0.5, 1.0, 3.0], dtype=torch.float64, requires_grad=True)

    def g(c, k):
        return HF.angular(c, kind, k)

    assert torch.autograd.gradcheck(g, (c, k))
    assert torch.autograd.gradgradcheck(g, (c, k))
    (slope,) = torch.autograd.grad(g(c, k).sum(), c)
    torch.testing.assert_close(HF.angular_derivative(c.detach(), kind, k.detach()), slope)
    if kind == "sigmoid":
        (slope,) = torch.autograd.grad(g(c, k).sum(), k)
        torch.testing.assert_close(HF.angular_derivative_k(c.detach(), k.detach()), slope)


@pytest.mark.parametrize("kind", ANGULAR_KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_finite_at_the_ends(kind, dtype):
    c = torch.tensor([-1.0, 1.0], dtype=dtype, requires_grad=True)
    g = HF.angular(c, kind)
    assert g.dtype == dtype
    g.sum().backward()
    assert c.grad.isfinite().all()
    assert HF.angular_derivative(c.detach(), kind).isfinite().all()


def test_rounding_beyond_one_counts_as_one():
    c = torch.tensor([1.0000001, -1.0000001])
    assert HF.angular(c, "linear").tolist() == pytest.approx([1, -1])


def test_large_k_is_linear_and_small_k_a_step():
    c = torch.linspace(-0.99, 0.99, 9, dtype=torch.float64)
    torch.testing.assert_close(
        HF.angular(c, "sigmoid", 1e4), HF.angular(c, "linear"), rtol=0, atol=1e-6
    )
    c = torch.tensor([-0.1, 0.1])
    torch.testing.assert_close(HF.angular(c, "sigmoid", 1e-3), c.sign())


def test_any_callable_and_per_sample_transforms():
    c = torch.tensor([0.5, -0.5])
    assert HF.angular(c, torch.relu).tolist() == [0.5, 0.0]
    slopes = torch.func.vmap(torch.func.grad(lambda c: HF.angular(c, "linear")))(c)
    torch.testing.assert_close(slopes, HF.angular_derivative(c, "linear"))


def test_messages():
    c = torch.zeros(2)
    with pytest.raises(ValueError, match=r"'cosin'.*linear, cosine, sigmoid, square_cosine"):
        HF.angular(c, "cosin")
    with pytest.raises(ValueError, match="k > 0"):
        HF.angular(c, "sigmoid", k=0.0)
    with pytest.raises(TypeError, match=r"int64.*\.float"):
        HF.angular(torch.zeros(2, dtype=torch.long), "linear")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["linear", "sigmoid"])
def test_slopes_of_16_bit_cosines_stop_at_their_rounding(kind, dtype):
    one = torch.ones((), dtype=dtype, requires_grad=True)
    (slope,) = torch.autograd.grad(HF.angular(one, kind), one)
    below = torch.tensor(1 - torch.finfo(dtype).eps / 2, dtype=torch.float64)
    bound = HF.angular_derivative(below, kind).item()
    assert slope.item() == pytest.approx(bound, rel=0.2)
    assert HF.angular_derivative(one.detach(), kind).item() == pytest.approx(bound, rel=0.2)


@pytest.mark.parametrize("kind", ANGULAR_KINDS)
def test_forward_mode_to_the_second_order(kind):
    c = torch.tensor([-0.9, -0.3, 0.2, 0.7], dtype=torch.float64)

    def g(c):
        return HF.angular(c, kind)

    slope = HF.angular_derivative(c, kind)
    _, tangent = torch.func.jvp(g, (c,), (torch.ones_like(c),))
    torch.testing.assert_close(tangent, slope)
    torch.testing.assert_close(torch.func.jacfwd(g)(c), slope.diag())
    twice = torch.func.jacrev(torch.func.jacrev(lambda c: g(c).sum()))(c)
    leaf = c.clone().requires_grad_()
    (first,) = torch.autograd.grad(g(leaf).sum(), leaf, create_graph=True)
    if first.requires_grad:
        torch.testing.assert_close(twice.diag(), torch.autograd.grad(first.sum(), leaf)[0])
    for hessian in (torch.func.hessian, lambda f: torch.func.jacfwd(torch.func.jacfwd(f))):
        torch.testing.assert_close(hessian(lambda c: g(c).sum())(c), twice)
    with torch.autograd.forward_ad.dual_level():
        dual = g(torch.autograd.forward_ad.make_dual(c, torch.ones_like(c)))
        torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(dual).tangent, slope)
    ends = torch.tensor([-1.0, 1.0, 0.5])
    value, tangent = torch.func.jvp(g, (ends,), (torch.ones_like(ends),))
    torch.testing.assert_close(value, g(ends))
    torch.testing.assert_close(tangent, HF.angular_derivative(ends, kind))


@pytest.mark.parametrize("transform", [torch.func.jacrev, torch.func.jacfwd])
def test_transformed_slopes_are_as_exact_as_plain_ones(transform):
    c = torch.linspace(-0.99, 0.99, 50, dtype=torch.float64)
    found = transform(lambda c: HF.angular(c, "linear"))(c).diagonal()
    torch.testing.assert_close(found, 2 / math.pi / (1 - c * c).sqrt(), rtol=1e-13, atol=0)
