"""Symmetric products and eliminations in C++, against the equations in float64."""

import pytest
import torch

from hypersphere.functional._kernels.libraries import switched_off
from hypersphere.functional._kernels.orthogonal import symmetric
from hypersphere.functional.orthogonalize import apply_orthogonal, solve_each
from tolerances import close

from reference import orthogonalize as reference

native = pytest.mark.skipif(
    switched_off() or symmetric._library() is None, reason="needs a C++ compiler"
)
SIZES = [1, 5, 64, 65, 130, 192, 200]


@pytest.fixture(params=[1, 2, 3])
def threads(request):
    """Fewer, as many and more than there are shifts or blocks for."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def definite(d, lead=()):
    A = torch.randn(*lead, d, d) / d**0.5
    return A.mT @ A + 0.5 * torch.eye(d)


@pytest.mark.parametrize("lead", [(), (2,)])
@pytest.mark.parametrize("d", SIZES)
def test_products_that_are_symmetric_or_skew(d, lead, threads):
    A = torch.randn(*lead, d, d) / d**0.5
    W, M = A - A.mT, definite(d, lead)
    exact = A.double().mT @ A.double()
    gram = symmetric.half_product(A, A, turned=True)
    close(gram, exact, scale=3)
    square = symmetric.half_product(W, W)
    close(square, W.double() @ W.double(), scale=10)
    cube = symmetric.half_product(W, square, sign=-1)
    close(cube, W.double() @ W.double() @ W.double(), scale=30)
    close(symmetric.half_product(W, W, scale=0.25), 0.25 * square, scale=3)
    close(symmetric.half_product(M.double(), M.double()), M.double() @ M.double())
    assert torch.equal(gram, symmetric.half_product(A, A, turned=True))
    if d > 130 and not switched_off() and symmetric._library() is not None:
        assert torch.equal(gram, gram.mT) and torch.equal(cube, -cube.mT)


@native
@pytest.mark.parametrize("lead", [(), (2,)])
@pytest.mark.parametrize("shifts", [[0.3], [0.0, 4.0], [0.1, 1.0, 30.0]])
@pytest.mark.parametrize(("d", "n"), [(1, 1), (5, 7), (64, 3), (130, 40), (200, 17)])
def test_equations_with_several_shifts(d, n, shifts, lead, threads):
    M, rows, more = definite(d, lead), torch.randn(*lead, n, d), torch.randn(*lead, n, d)
    found = symmetric.solve(M, shifts, rows)
    again = symmetric.solve_again(found.factors, found.inverses, more)
    eye = torch.eye(d, dtype=torch.float64)
    for j, shift in enumerate(shifts):
        A = M.double() + shift * eye
        close(found.rows[..., j, :, :], solve_each(A, rows.double().mT).mT, scale=10)
        close(again[..., j, :, :], solve_each(A, more.double().mT).mT, scale=10)
    twice = symmetric.solve(M, shifts, rows)
    assert torch.equal(found.rows, twice.rows)


@native
@pytest.mark.parametrize("n", [3, 90])
def test_loewdin_takes_this_way(n, monkeypatch, threads):
    """In low rank for few columns, and with a gradient in M for many."""
    calls = []
    solve = symmetric.solve
    monkeypatch.setattr(symmetric, "solve", lambda *a: calls.append(1) or solve(*a))
    U = (torch.eye(200) + 0.3 * torch.randn(200, 200) / 200**0.5).requires_grad_()
    V, G = torch.randn(200, n, requires_grad=True), torch.randn(200, n)
    wide, columns = (t.detach().double().requires_grad_() for t in (U, V))
    turned = apply_orthogonal(U, V, "loewdin")
    expected = reference.loewdin(wide) @ columns
    close(turned, expected, scale=10)
    found = torch.autograd.grad(turned, (U, V), G)
    for one, other in zip(
        found, torch.autograd.grad(expected, (wide, columns), G.double()), strict=True
    ):
        close(one / other.norm(), other / other.norm(), scale=10)
    assert calls == [1]


def test_other_types_and_a_user_who_wants_none(monkeypatch):
    M, rows = definite(140), torch.randn(2, 140)
    assert symmetric.solve(M.double(), [1.0], rows.double()) is None
    expected = symmetric.half_product(M, M)
    monkeypatch.setenv("HYPERSPHERE_NATIVE", "0")
    assert symmetric.solve(M, [1.0], rows) is None
    close(symmetric.half_product(M, M), expected, scale=10)
