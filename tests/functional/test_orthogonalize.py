"""Each map against its definition, its gradient, and the places where the definitions break."""

import itertools

import pytest
import torch

from hypersphere import functional as HF
from hypersphere.functional._kernels.orthogonal import exponential as _exponential
from hypersphere.functional._kernels.orthogonal import loewdin as _loewdin
from hypersphere.functional._kernels.orthogonal import triangular as _triangular
from hypersphere.functional.orthogonalize import (
    METHODS,
    apply_orthogonal,
    apply_packed,
    orthogonalize,
    pack_skew,
)
from tolerances import close

from reference import orthogonalize as reference

DISTINCT = ("gram_schmidt", "householder", "loewdin", "cayley", "exponential")


def error(R: torch.Tensor) -> float:
    eye = torch.eye(R.shape[-1], dtype=torch.float64)
    return float((R.double().mT @ R.double() - eye).abs().max())


@pytest.mark.parametrize("d", [1, 2, 7, 24])
@pytest.mark.parametrize("method", METHODS)
def test_is_the_map_of_its_definition(method, d):
    U = torch.randn(d, d, dtype=torch.float64)
    expected = getattr(reference, method)(U)
    torch.testing.assert_close(orthogonalize(U, method), expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize("method", DISTINCT)
def test_batches_are_blocks(method):
    U = torch.randn(2, 3, 5, 5, dtype=torch.float64)
    R = orthogonalize(U, method)
    for i in range(2):
        for j in range(3):
            expected = getattr(reference, method)(U[i, j])
            torch.testing.assert_close(R[i, j], expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize("near", [False, True])
@pytest.mark.parametrize("n", [2, 7])
@pytest.mark.parametrize("method", DISTINCT)
def test_apply_is_the_product_and_gradients_are_right(method, n, near):
    d = 5
    U = torch.randn(2, d, d, dtype=torch.float64)
    if near:  # where training stays: Loewdin takes its poles instead of the SVD
        U = 0.1 * U + (0 if method in ("cayley", "exponential") else torch.eye(d))
    V = torch.randn(2, d, n, dtype=torch.float64)
    U.requires_grad_()
    V.requires_grad_()
    product = orthogonalize(U, method) @ V
    torch.testing.assert_close(apply_orthogonal(U, V, method), product, atol=1e-9, rtol=0)
    assert torch.autograd.gradcheck(lambda U, V: apply_orthogonal(U, V, method), (U, V))


@pytest.mark.parametrize("start", ["normal", "orthogonal", "drifted"])
@pytest.mark.parametrize("method", DISTINCT)
def test_float32_orthogonal_at_576(method, start):
    d = 576
    U = torch.randn(d, d)
    if start == "orthogonal":
        U = torch.zeros(d, d) if method in ("cayley", "exponential") else HF.random_rotation(d)
    elif start == "drifted":
        turn = torch.eye(d) if method in ("cayley", "exponential") else HF.random_rotation(d)
        U = turn + 0.02 * torch.randn(d, d)
    V = torch.nn.functional.normalize(torch.randn(d, 64), dim=0)
    W = apply_orthogonal(U, V, method)
    assert (W.mT @ W - V.mT @ V).abs().max() < 1e-5
    if (start == "normal" and method != "exponential") or start == "drifted":
        assert error(orthogonalize(U, method)) < 1e-5


def test_determinants():
    U = torch.randn(8, 6, 6)
    for method in ("cayley", "exponential"):
        close(torch.linalg.det(orthogonalize(U, method)), torch.ones(8), scale=3)
    close(torch.linalg.det(orthogonalize(U, "householder")), -torch.ones(8), scale=3)


EDGES = {
    "identity": torch.eye(8),
    "negative identity": -torch.eye(8),
    "first column is e1": torch.cat([torch.eye(8)[:, :1], torch.randn(8, 7)], dim=1),
    "equal singular values": 3.0 * torch.linalg.qr(torch.randn(8, 8))[0],
    "two singular values": torch.diag(torch.tensor([2.0] * 4 + [1.0] * 4)),
    "rank one short": torch.cat([torch.randn(8, 7), torch.zeros(8, 1)], dim=1),
    "zero": torch.zeros(8, 8),
    "tiny": 1e-25 * torch.randn(8, 8),
    "huge": 1e15 * torch.randn(8, 8),
    "near -I for Cayley": 1e6 * torch.randn(8, 8),
}


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("method", DISTINCT)
def test_edges_are_finite(method, edge):
    U = EDGES[edge].clone().requires_grad_()
    V = torch.randn(8, 3, requires_grad=True)
    W = apply_orthogonal(U, V, method)
    W.square().sum().backward()
    assert W.isfinite().all() and U.grad.isfinite().all() and V.grad.isfinite().all()
    if not (method == "exponential" and edge == "huge"):
        assert torch.allclose(W.mT @ W, V.mT @ V, atol=2e-5)


@pytest.mark.parametrize("edge", ["identity", "negative identity", "first column is e1"])
def test_householder_follows_algorithm_3_where_nothing_is_left_to_reflect(edge):
    U = EDGES[edge].double()
    expected = reference.householder(U)
    torch.testing.assert_close(orthogonalize(U, "householder"), expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize("method", ["gram_schmidt", "householder", "loewdin"])
def test_scale_of_u_does_not_matter(method):
    U = torch.randn(12, 12)
    R = orthogonalize(U, method)
    for scale in (1e-12, 1e-3, 1e3):
        close(orthogonalize(scale * U, method), R, scale=3)


@pytest.mark.parametrize("dtype,bound", [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_loewdin_of_an_ill_conditioned_matrix(dtype, bound):
    left, right = (HF.random_rotation(48, dtype=torch.float64) for _ in range(2))
    U = ((left * torch.logspace(0, -6, 48, dtype=torch.float64)) @ right.T).to(dtype)
    R = orthogonalize(U.requires_grad_(), "loewdin")
    assert error(R.detach()) < bound
    # The small singular vectors of U carry its rounding error times the condition.
    assert (R.double() - left @ right.T).abs().max() < 1e6 * torch.finfo(dtype).eps
    R.sum().backward()
    assert U.grad.isfinite().all()


def test_loewdin_is_nearest():
    U = torch.randn(6, 6, dtype=torch.float64)
    R = orthogonalize(U, "loewdin")
    for _ in range(20):
        other = R @ orthogonalize(0.1 * torch.randn(6, 6, dtype=torch.float64), "cayley")
        assert (U - R).norm() <= (U - other).norm()


@pytest.mark.parametrize("method,wrong", [("exponential", (-0.1, 0.1)), ("loewdin", (0.99, 1.01))])
def test_recovers_from_a_spectrum_that_was_underestimated(method, wrong, monkeypatch):
    U, V = torch.randn(6, 6, requires_grad=True), torch.randn(6, 2)
    expected = apply_orthogonal(U, V, method)
    (gradient,) = torch.autograd.grad(expected.sum(), U)
    for kernel in (_exponential, _loewdin, _triangular):
        monkeypatch.setattr(kernel, "spectrum", lambda *args, **kwargs: wrong)
    result = apply_orthogonal(U, V, method)
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=0)
    (again,) = torch.autograd.grad(result.sum(), U)
    torch.testing.assert_close(again, gradient, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("method", DISTINCT)
def test_half_precision_and_autocast(method):
    U, V = torch.randn(8, 8), torch.randn(8, 3)
    expected = apply_orthogonal(U, V, method)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(apply_orthogonal(U, V, method), expected)
    low = apply_orthogonal(U.bfloat16(), V.bfloat16(), method)
    assert low.dtype == torch.bfloat16
    exact = apply_orthogonal(U.bfloat16().float(), V.bfloat16().float(), method)
    assert torch.equal(low, exact.bfloat16())


def test_random_rotation_is_uniform():
    R = HF.random_rotation(3, (4000,), dtype=torch.float64)
    close(torch.linalg.det(R), torch.ones(4000, dtype=torch.float64))
    assert error(R) < 1e-12
    # Uniform: every entry has mean 0 and variance 1/3, and the trace has mean 0 and variance 1.
    assert R.mean(0).abs().max() < 0.05
    assert (R.square().mean(0) - 1 / 3).abs().max() < 0.03
    trace = R.diagonal(dim1=-2, dim2=-1).sum(-1)
    assert abs(trace.mean()) < 0.08 and abs(trace.var() - 1) < 0.1
    again = HF.random_rotation(4, generator=torch.Generator().manual_seed(3))
    assert torch.equal(again, HF.random_rotation(4, generator=torch.Generator().manual_seed(3)))


def test_messages():
    with pytest.raises(ValueError, match="unknown method 'qr'; expected one of: gram_schmidt"):
        orthogonalize(torch.eye(3), "qr")
    with pytest.raises(ValueError, match=r"square matrices \(\.\.\., d, d\); got \(3, 4\)"):
        orthogonalize(torch.ones(3, 4))
    with pytest.raises(ValueError, match="one vector of length d per column"):
        apply_orthogonal(torch.eye(3), torch.ones(4, 2))
    with pytest.raises(ValueError, match="floating-point"):
        orthogonalize(torch.ones(3, 3, dtype=torch.long))


@pytest.mark.parametrize("method", DISTINCT)
def test_nothing_to_rotate(method):
    assert orthogonalize(torch.randn(0, 5, 5), method).shape == (0, 5, 5)
    assert apply_orthogonal(torch.randn(5, 5), torch.randn(5, 0), method).shape == (5, 0)


@pytest.mark.parametrize("method", DISTINCT)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_run_that_went_bad_shows_it(method, bad):
    """Rather than to stop in the middle of a factorization."""
    U = torch.randn(6, 6)
    U[1, 2] = bad
    U.requires_grad_()
    R = orthogonalize(U, method)
    assert not R.isfinite().all()
    R.sum().backward()
    assert not U.grad.isfinite().all()


@pytest.mark.parametrize("method", DISTINCT)
def test_under_another_default_device(method):
    U = torch.randn(8, 8)
    expected = orthogonalize(U, method)
    with torch.device("meta"):
        torch.testing.assert_close(orthogonalize(U, method), expected)


@pytest.mark.parametrize("method", ["gram_schmidt", "householder"])
def test_an_overlooked_singular_value(method):
    """One far from all others, which a few Lanczos steps may not see."""
    generator = torch.Generator().manual_seed(0)
    for outlier in (1e-1, 1e-2, 1e-3, 1e-4):
        left, right = (torch.randn(192, 192, generator=generator) for _ in range(2))
        sigma = torch.linspace(1, 0.25, 192)
        sigma[50] = outlier
        U = torch.linalg.qr(left)[0] * sigma @ torch.linalg.qr(right)[0]
        assert error(orthogonalize(U, method)) < 5e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e-10, 1e5, 1e10, 1e19, 1e30])
@pytest.mark.parametrize("d", [1, 2, 5, 8, 33])
@pytest.mark.parametrize("method", DISTINCT)
def test_orthogonal_at_every_scale(method, d, scale, dtype):
    U = (scale * torch.randn(d, d, dtype=dtype)).requires_grad_()
    R = orthogonalize(U, method)
    assert error(R.detach()) < (1e-5 if dtype == torch.float32 else 1e-6)
    R.mul(torch.randn(d, d, dtype=dtype)).sum().backward()
    assert U.grad.isfinite().all()


@pytest.mark.parametrize("method", ["loewdin", "gram_schmidt", "cayley", "exponential"])
def test_a_sign_has_no_gradient(method):
    U = torch.tensor([[-0.3]], requires_grad=True)
    orthogonalize(U, method).sum().backward()
    assert U.grad.item() == 0


def test_cayley_of_a_large_odd_matrix_is_that_of_float64():
    U = 1e5 * torch.randn(33, 33)
    V, G = torch.randn(33, 4), torch.randn(33, 4)
    results = []
    for dtype in (torch.float32, torch.float64):
        u, v = U.to(dtype).requires_grad_(), V.to(dtype).requires_grad_()
        result = apply_orthogonal(u, v, "cayley")
        slopes = torch.autograd.grad(result, (u, v), G.to(dtype))
        results.append((result, slopes[0] * 1e5, slopes[1]))
    close(*results, scale=10)


@pytest.mark.parametrize("method", DISTINCT)
def test_blocks_with_two_threads(method):
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        U = 1e-5 * torch.randn(1, 3, 256, 256, dtype=torch.float64)
        U = U if method in ("cayley", "exponential") else U + torch.eye(256, dtype=torch.float64)
        U.requires_grad_()
        R = orthogonalize(U, method)
        (grad,) = torch.autograd.grad(R, U, torch.ones_like(R))
    finally:
        torch.set_num_threads(threads)
    assert error(R.detach()) < 1e-12
    single = [orthogonalize(U[0, i].detach(), method) for i in range(3)]
    assert torch.allclose(R[0], torch.stack(single), atol=1e-12)
    assert grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [0.0, 1e-6, 1e-2, 0.1, 0.3, 3.0, 1e5, 1e30])
def test_blocks_of_cayley_near_the_identity_and_far(scale, dtype):
    """Small blocks are inverted by products, larger turns by a factorization, the largest twice."""
    U = (scale * torch.randn(2, 3, 9, 9, dtype=torch.float64)).to(dtype).requires_grad_()
    R = orthogonalize(U, "cayley")
    assert error(R.detach()) < (2e-6 if dtype == torch.float32 else 1e-7)
    G = torch.randn(R.shape, dtype=dtype)
    (grad,) = torch.autograd.grad(R, U, G)
    for i in range(2):
        for j in range(3):
            u = U[i, j].detach().requires_grad_()
            single = orthogonalize(u, "cayley")
            (expected,) = torch.autograd.grad(single, u, G[i, j])
            if scale < 1e10:
                close(R[i, j].detach(), single.detach(), scale=10)
                close(grad[i, j] * max(1.0, scale), expected * max(1.0, scale), scale=100)
    assert grad.isfinite().all()


def test_blocks_of_cayley_have_the_right_gradient():
    for scale in (0.05, 2.0):
        U = (scale * torch.randn(2, 4, 4, dtype=torch.float64)).requires_grad_()
        V = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda u, v: apply_orthogonal(u, v, "cayley"), (U, V))
        assert torch.autograd.gradcheck(lambda u: orthogonalize(u, "cayley"), (U,))


@pytest.mark.parametrize("method", DISTINCT)
def test_second_derivatives_are_refused_before_a_term_is_lost(method):
    U = (torch.eye(4) + 0.1 * torch.randn(4, 4)).requires_grad_()
    for dtype, power in itertools.product((torch.float32, torch.float64), (1, 2)):
        for x, rotate in ((U, apply_orthogonal), (pack_skew(U), apply_packed)):
            if rotate is apply_packed and method not in ("cayley", "exponential"):
                continue
            x = x.detach().to(dtype).requires_grad_()
            rotated = rotate(x, torch.randn(4, 2, dtype=dtype), method)
            # A loss that is linear in the rotated columns has a gradient that is a constant.
            loss = rotated.pow(power).sum() + x.pow(3).sum()
            with pytest.raises(RuntimeError, match="rotations have no second derivatives"):
                (slope,) = torch.autograd.grad(loss, x, create_graph=True)
                torch.autograd.grad(slope.sum(), x)


@pytest.mark.parametrize("method", ["gram_schmidt", "householder", "loewdin", "cayley"])
def test_shapes_without_numbers(method):
    U, V = torch.empty(4, 4, device="meta"), torch.empty(4, 2, device="meta")
    assert apply_orthogonal(U, V, method).shape == (4, 2)
    assert orthogonalize(U, method).shape == (4, 4)


@pytest.mark.parametrize("d", [5, 40])
def test_gradients_of_loewdin_in_float32(d):
    """The poles have the right values, and the right slopes."""
    for seed in range(10):
        torch.manual_seed(seed)
        U, V = torch.eye(d) + 0.15 * torch.randn(d, d) / (d / 5) ** 0.5, torch.randn(d, 3)
        G = torch.randn(d, 3)
        results = []
        for dtype in (torch.float32, torch.float64):
            u = U.to(dtype).requires_grad_()
            rotated = apply_orthogonal(u, V.to(dtype), "loewdin")
            results.append(torch.autograd.grad(rotated, u, G.to(dtype))[0])
        assert (results[0] - results[1]).norm() < 5e-5 * results[1].norm()
