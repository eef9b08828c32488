"""Factorizations by blocks of columns: the same results for every width of the blocks."""

import pytest
import torch

from hypersphere.functional._kernels.orthogonal import packed, panels
from hypersphere.functional.orthogonalize import (
    apply_orthogonal,
    apply_packed,
    orthogonalize,
    pack_skew,
    skew,
)
from tolerances import close

from reference import orthogonalize as reference

DISTINCT = ("gram_schmidt", "householder", "loewdin", "cayley")


@pytest.fixture(params=[1, 2, 5, 48])
def width(request, monkeypatch):
    monkeypatch.setattr(panels, "WIDTH", request.param)


def near(method, *shape):
    """Where training stays, and with it the ways by blocks."""
    U = 0.15 * torch.randn(*shape, dtype=torch.float64)
    return U if method == "cayley" else U + torch.eye(shape[-1], dtype=torch.float64).roll(1, 0)


@pytest.mark.parametrize("method", DISTINCT)
def test_the_map_and_its_gradients(width, method):
    for shape, n in (((5, 5), 3), ((5, 5), 1), ((2, 4, 4), 2)):
        U = near(method, *shape).requires_grad_()
        V = torch.randn(*shape[:-1], n, dtype=torch.float64, requires_grad=True)
        R = [getattr(reference, method)(u) for u in U.detach().reshape(-1, *shape[-2:])]
        expected = torch.stack(R).view(shape) @ V
        torch.testing.assert_close(apply_orthogonal(U, V, method), expected, atol=1e-9, rtol=0)
        assert torch.autograd.gradcheck(lambda U, V: apply_orthogonal(U, V, method), (U, V))


@pytest.mark.parametrize("lead", [(), (1, 1), (2, 1)])
@pytest.mark.parametrize("method", ["cayley", "exponential"])
def test_packed_numbers(width, lead, method):
    d = 6
    U, V = near("cayley", *lead, d, d), torch.randn(*lead, d, 2, dtype=torch.float64)
    numbers = pack_skew(U).requires_grad_()
    expected = apply_orthogonal(U, V.requires_grad_(), method)
    torch.testing.assert_close(apply_packed(numbers, V, method), expected, atol=1e-9, rtol=0)
    assert torch.autograd.gradcheck(lambda u, v: apply_packed(u, v, method), (numbers, V))


def test_packed_blocks_are_single_ones():
    numbers = (1e-2 * torch.randn(2, packed.packed_length(130))).requires_grad_()
    V, G = torch.randn(2, 130, 3), torch.randn(2, 130, 3)
    together = apply_packed(numbers, V, "cayley")
    (slopes,) = torch.autograd.grad(together, numbers, G)
    for i in range(2):
        one = numbers[i].detach().requires_grad_()
        single = apply_packed(one, V[i], "cayley")
        (slope,) = torch.autograd.grad(single, one, G[i])
        close(together[i].detach(), single.detach(), scale=3)
        close(slopes[i], slope, scale=10)


@pytest.mark.parametrize("table", [1, 1024])
@pytest.mark.parametrize("lead", [(), (1,), (2, 3)])
@pytest.mark.parametrize("d", [1, 2, 7])
def test_identity_plus_skew(d, lead, table, monkeypatch):
    monkeypatch.setattr(packed, "_TABLE", table)
    U = torch.randn(*lead, d, d)
    result = packed.identity_plus_skew(pack_skew(U), d)
    torch.testing.assert_close(result, torch.eye(d) + skew(U), rtol=0, atol=0)


@pytest.mark.parametrize("scale", [1e-2, 1.0, 1e6, 1e20])
def test_packed_numbers_of_every_size(scale):
    """An odd size has an eigenvalue 0, beside which the 1 of I - W would be lost to rounding."""
    U, G = scale * torch.randn(33, 33), torch.randn(33, 33)
    results = []
    for dtype in (torch.float32, torch.float64):
        numbers = pack_skew(U).to(dtype).requires_grad_()
        R = apply_packed(numbers, torch.eye(33, dtype=dtype), "cayley")
        (slope,) = torch.autograd.grad(R, numbers, G.to(dtype))
        results.append((R.detach(), slope * max(scale, 1.0)))
    assert (results[0][0].mT @ results[0][0] - torch.eye(33)).abs().max() < 1e-5
    if scale < 1e10:
        close(*results, scale=100)
    assert results[0][1].isfinite().all()


@pytest.mark.parametrize("method", ["gram_schmidt", "householder"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("apart", [0.0, 1e-12, 1e-5, 1e-2])
def test_one_column_that_depends_on_another_is_seen(method, dtype, apart):
    """Among many that do not, where a few steps of Lanczos overlook it and lengths are all 1."""
    d = 300
    U = torch.linalg.qr(torch.randn(d, d, dtype=torch.float64)).Q
    U += 0.3 * torch.randn(d, d, dtype=torch.float64) / d**0.5
    U[:, 250] = U[:, 10] + apart * U[:, 250]
    R = orthogonalize(U.to(dtype), method)
    close(R.mT @ R, torch.eye(d, dtype=dtype), scale=3)


@pytest.mark.parametrize("noise", [0.0, 1e-4, 1e-3, 1e-2, 0.1])
@pytest.mark.parametrize("d", [2, 4, 64])
def test_slopes_of_loewdin_near_an_orthogonal_matrix(d, noise):
    U = torch.eye(d) + noise * torch.randn(d, d) / d**0.5
    V, G = torch.randn(d, 2), torch.randn(d, 2)

    def slope(U, rotated):
        U = U.clone().requires_grad_()
        return torch.autograd.grad(rotated(U), U, G.to(U.dtype))[0]

    def by_newton_schulz(U):  # autograd through the reference divides by differences
        for _ in range(40):
            U = 1.5 * U - 0.5 * U @ (U.mT @ U)
        return U @ V.double()

    found = slope(U, lambda U: apply_orthogonal(U, V, "loewdin"))
    close(found, slope(U.double(), by_newton_schulz), scale=10)
