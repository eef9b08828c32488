"""Gram-Schmidt in C++, against QR in float64."""

import pytest
import torch

from hypersphere.functional._kernels.libraries import switched_off
from hypersphere.functional._kernels.orthogonal import orthonormal
from hypersphere.functional.orthogonalize import apply_orthogonal
from tolerances import close

from reference import orthogonalize as reference

native = pytest.mark.skipif(
    switched_off() or orthonormal._library() is None, reason="needs a C++ compiler"
)


def near(d, lead=()):
    return torch.eye(d).roll(1, 0) + 0.3 * torch.randn(*lead, d, d) / d**0.5


@native
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("lead", [(), (2,)])
@pytest.mark.parametrize("d", [1, 5, 64, 65, 130, 200, 256])
def test_both_factors(d, lead, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        U = near(d, lead)
        Q, T, inverses = orthonormal.orthonormalize(U)
        again = orthonormal.orthonormalize(U)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(Q, again[0])
    for k, u in enumerate(U.view(-1, d, d)):
        expected, upper = torch.linalg.qr(u.double())
        signs = upper.diagonal().sign()
        expected, upper = expected * signs, signs.unsqueeze(-1) * upper
        close(Q.view(-1, d, d)[k], expected, scale=10)
        for i, inverse in enumerate(inverses):
            first, last = 64 * i, min(64 * i + 64, d)
            own = inverse.reshape(-1, last - first, last - first)[k]
            block = torch.linalg.inv(upper[first:last, first:last])
            close(own, block, scale=10)
            assert torch.equal(own, own.triu())
            close(T.view(-1, d, d)[k, first:last, last:], upper[first:last, last:], scale=10)


@native
@pytest.mark.parametrize("method", ["gram_schmidt", "householder"])
def test_maps_take_this_way(method, monkeypatch):
    calls = []
    found = orthonormal.orthonormalize
    monkeypatch.setattr(orthonormal, "orthonormalize", lambda U: calls.append(1) or found(U))
    U, V, G = near(150).requires_grad_(), torch.randn(150, 4), torch.randn(150, 4)
    wide = U.detach().double().requires_grad_()
    turned, expected = apply_orthogonal(U, V, method), getattr(reference, method)(wide) @ V.double()
    close(turned, expected, scale=10)
    (slope,) = torch.autograd.grad(turned, U, G)
    (exact,) = torch.autograd.grad(expected, wide, G.double())
    close(slope / exact.norm(), exact / exact.norm(), scale=10)
    assert calls == [1]


def test_other_types_and_dependent_columns(monkeypatch):
    U = near(70)
    assert orthonormal.orthonormalize(U.double()) is None
    U[:, 3] = U[:, 2]
    turned = apply_orthogonal(U, torch.eye(70), "gram_schmidt")
    close(turned.mT @ turned, torch.eye(70), scale=10)
    monkeypatch.setenv("HYPERSPHERE_NATIVE", "0")
    assert orthonormal.orthonormalize(U) is None
