"""Cayley, determinants and series in C++, against the equations in float64."""

import math
from pathlib import Path

import pytest
import torch

from hypersphere.functional._kernels.libraries import switched_off
from hypersphere.functional._kernels.orthogonal import (
    elimination,
    exponential,
    orthonormal,
    spectra,
    symmetric,
)
from hypersphere.functional._kernels.orthogonal.packed import packed_length
from hypersphere.functional.orthogonalize import apply_orthogonal, apply_packed, pack_skew
from hypersphere.orthogonal import rotate
from tolerances import close

from reference import orthogonalize as reference

native = pytest.mark.skipif(
    switched_off() or elimination._library() is None, reason="needs a C++ compiler"
)


def problem(d, n, lead=(), size=0.1):
    """Numbers of W, columns V, a gradient G."""
    numbers = size * torch.randn(*lead, packed_length(d))
    return numbers, torch.randn(*lead, d, n), torch.randn(*lead, d, n)


def by_equation(numbers, V, G):
    """R V and its gradients in W and V, by autograd through the reference."""
    numbers, V = (t.double().requires_grad_() for t in (numbers, V))
    d = V.shape[-2]
    above = torch.ones(d, d).triu(1).bool()
    U = [
        torch.zeros(d, d).double().masked_scatter(above, n)
        for n in numbers.view(-1, numbers.shape[-1])
    ]
    R = torch.stack([reference.cayley(u) for u in U]).view(*V.shape[:-1], d)
    turned = R @ V
    return turned, *torch.autograd.grad(turned, (numbers, V), G.double())


@native
@pytest.mark.parametrize("lead", [(), (1,), (3,)])
@pytest.mark.parametrize(("d", "n"), [(2, 1), (3, 3), (63, 5), (64, 64), (65, 2), (150, 7)])
def test_the_map_and_its_gradients(d, n, lead):
    numbers, V, G = problem(d, n, lead)
    found = elimination.cayley(numbers, V)
    assert found is not None
    turned, kept = found
    Z, slopes = elimination.cayley_gradient(kept, G, True)
    expected, in_W, in_V = by_equation(numbers, V, G)
    close(turned, expected, scale=30)
    close(Z - G, in_V, scale=30)
    close(slopes / math.sqrt(d * n), in_W / math.sqrt(d * n), scale=30)
    assert elimination.cayley_gradient(kept, G, False)[1] is None


@native
@pytest.mark.parametrize(("d", "count"), [(3, 5), (72, 8), (130, 3), (200, 2)])
def test_many_matrices_are_as_one_after_the_other(d, count):
    """Each thread takes matrices of its own; the rest is shared."""
    numbers, V, G = problem(d, 3, (count,), size=1 / d**0.5)
    turned, kept = elimination.cayley(numbers, V)
    Z, slopes = elimination.cayley_gradient(kept, G, True)
    for i in range(count):
        one, own = elimination.cayley(numbers[i], V[i])
        z, slope = elimination.cayley_gradient(own, G[i], True)
        close(turned[i], one, scale=3)
        close(Z[i], z, scale=3)
        close(slopes[i], slope, scale=10)


@native
@pytest.mark.parametrize(("n", "expected"), [(20, [1]), (50, [])])  # beyond 24 R is formed
def test_small_blocks_are_eliminated_for_few_columns(n, expected, monkeypatch):
    calls = []
    solved = elimination.cayley
    monkeypatch.setattr(elimination, "cayley", lambda *a: calls.append(1) or solved(*a))
    layer = rotate(torch.nn.Linear(96, n, bias=False), "cayley", blocks=4)
    rotation = layer.parametrizations.weight[0].map
    with torch.no_grad():
        rotation.U += 0.2 * torch.randn_like(rotation.U)
    calls.clear()
    G, neurons = torch.randn(n, 96), layer.parametrizations.weight.original.detach()
    weight = layer.weight
    (slopes,) = torch.autograd.grad(weight, rotation.U, G)
    assert calls == expected
    columns, gradients = (t.view(n, 4, 24).permute(1, 2, 0).unsqueeze(0) for t in (neurons, G))
    turned, in_W, _ = by_equation(rotation.U.detach(), columns, gradients)
    close(weight, turned[0].permute(2, 0, 1).reshape(n, 96), scale=10)
    close(slopes, in_W, scale=100)


@native
def test_rotated_columns_take_this_way_and_can_go_back_twice(monkeypatch):
    calls = []
    solved = elimination.cayley
    monkeypatch.setattr(elimination, "cayley", lambda *a: calls.append(1) or solved(*a))
    numbers, V, G = problem(70, 4)
    turned = apply_packed(numbers.requires_grad_(), V, "cayley")
    first = torch.autograd.grad(turned, numbers, G, retain_graph=True)[0]
    second = torch.autograd.grad(turned, numbers, G)[0]
    assert calls == [1] and torch.equal(first, second)
    again = apply_packed(numbers, V, "cayley")
    assert torch.equal(again, turned)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        slope = torch.autograd.grad(again, numbers, G.requires_grad_(), create_graph=True)[0]
        slope.sum().backward()


@native
@pytest.mark.parametrize("size", [1e3, 1e9, 1e30, math.nan, math.inf])
def test_large_numbers_are_left_to_exchanges_of_rows(size):
    """Lengths alone would not tell: for a large W of even size, R V is -V whatever Y is."""
    numbers, V, _ = problem(96, 5, size=size)
    assert elimination.cayley(numbers, V) is None
    turned = apply_packed(numbers, V, "cayley")
    if math.isfinite(size):
        close(turned.norm(dim=0), V.norm(dim=0), scale=3)


@native
@pytest.mark.parametrize("size", [0.3, 1.0, 3.0, 10.0, 30.0])
def test_what_is_accepted_is_accurate(size):
    """At sizes where some draws keep their digits without exchanges and others do not."""
    for _ in range(10):
        numbers, V, G = problem(130, 4, size=size)
        found = elimination.cayley(numbers, V)
        if found is None:
            continue
        expected, in_W, _ = by_equation(numbers, V, G)
        slopes = elimination.cayley_gradient(found[1], G, True)[1]
        close(found[0], expected, scale=300)
        assert (slopes - in_W).norm() < 1e-3 * in_W.norm()


@native
def test_zero_columns_and_no_turn():
    numbers, V, _ = problem(70, 3)
    V[:, 1] = 0
    turned, _ = elimination.cayley(numbers, V)
    assert torch.equal(turned[:, 1], V[:, 1])
    turned, _ = elimination.cayley(torch.zeros_like(numbers), V)
    assert torch.equal(turned, V)


@native
@pytest.mark.parametrize("d", [1, 2, 5, 64, 65, 130])
def test_determinants(d):
    Q = torch.linalg.qr(torch.randn(6, d, d, dtype=torch.float64)).Q
    Q[::2, :, 0] *= -1
    expected = torch.linalg.det(Q).round()
    assert torch.equal(elimination.determinant(Q.float()).double(), expected)
    assert torch.equal(elimination.determinant(Q.float().mT).double(), expected)
    signs = torch.tensor([1.0, -1.0]).repeat(d)[:d]
    assert elimination.determinant(signs.diag()) == signs.prod()
    exchange = torch.eye(d).flip(0)  # zeros where an elimination would divide
    assert elimination.determinant(exchange) == torch.linalg.det(exchange.double()).round()


def test_other_types_traces_and_a_user_who_wants_none(monkeypatch):
    numbers, V, _ = problem(8, 2)
    assert elimination.cayley(numbers.double(), V.double()) is None
    assert elimination.determinant(torch.eye(3, dtype=torch.float64)) is None
    assert elimination.cayley(numbers[:0], V[:, :0]) is None
    monkeypatch.setenv("HYPERSPHERE_NATIVE", "0")
    assert elimination.cayley(numbers, V) is None
    expected = apply_packed(numbers.double(), V.double(), "cayley")
    close(apply_packed(numbers, V, "cayley"), expected, scale=3)


@native
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_trial_of_the_library_does_not_depend_on_defaults(dtype):
    found = elimination._library()
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"):
            assert elimination._agrees(found)
    finally:
        torch.set_default_dtype(before)


@native
@pytest.mark.parametrize("size", [1.0, 1e-20, 1e17, 0.0, math.nan, math.inf])
@pytest.mark.parametrize("d", [1, 2, 50, 200])
def test_ends_of_spectra(d, size, monkeypatch):
    """Steps of Lanczos in C++ against the same in torch's operations."""
    A = torch.randn(d, d)
    cases = [(A * size, {"squared": True}), ((A + A.mT) * size, {}), (torch.eye(d) * size, {})]
    cases += [((A - A.mT) * size, {"skew": True}), (torch.eye(d) * size, {"squared": True})]
    found = [spectra.spectrum(matrix, **options) for matrix, options in cases]
    monkeypatch.setattr(spectra, "_native_lanczos", lambda *a: None)
    expected = [spectra.spectrum(matrix, **options) for matrix, options in cases]
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, abs=2e-3 * max(map(abs, other)), nan_ok=True)


@native
@pytest.mark.parametrize(("d", "n"), [(2, 1), (5, 3), (64, 64), (130, 7), (200, 1)])
def test_series_of_the_exponential(d, n, monkeypatch):
    U = torch.randn(d, d) / d**0.5
    W, rows = U - U.mT, torch.randn(d, n).mT
    found = exponential._chebyshev(W, 0.4, rows, 9)
    monkeypatch.setattr(exponential, "_library", lambda: None)
    close(found, exponential._chebyshev(W.double(), 0.4, rows.double(), 9), scale=10)
    close(found, exponential._chebyshev(W, 0.4, rows, 9), scale=10)


@native
@pytest.mark.parametrize(
    ("module", "load", "file", "right", "wrong"),
    [
        (elimination, "_library", "elimination.cpp", "2 * y[i] - v[i]", "2 * y[i] + v[i]"),
        (symmetric, "_library", "symmetric.cpp", "+= shifts[k]", "-= shifts[k]"),
        (symmetric, "_library", "symmetric.cpp", "sign * c", "c"),
        (orthonormal, "_library", "orthonormal.cpp", "-row[k]", "row[k]"),
        (exponential, "_library", "chebyshev.cpp", "2 * scale", "3 * scale"),
        (spectra, "_lanczos_library", "lanczos.cpp", "- alpha * x[i]", "+ alpha * x[i]"),
        (spectra, "_lanczos_library", "lanczos.cpp", "skew ? beta : -beta", "-beta"),
    ],
)
def test_a_library_that_computes_something_else_is_not_used(
    monkeypatch, module, load, file, right, wrong
):
    build = module.library

    def change(text, **options):
        return build(text.replace(right, wrong), **options)

    text = Path(module.__file__).with_name(file).read_text()
    assert right in text
    monkeypatch.setattr(module, "library", change)
    assert getattr(module, load).__wrapped__() is None


@native
@pytest.mark.parametrize("size", [1e20, 1e30])
@pytest.mark.parametrize("d", [4, 130])
@pytest.mark.parametrize("order", ["first", "last"])
def test_angles_beyond_the_range_of_float32(d, size, order):
    """A pivot of 1 + w^2 overflows; the columns that do not see it must not hide that."""
    U = torch.zeros(d, d)
    U[0, 1] = size
    V = torch.eye(d) if order == "first" else torch.eye(d).flip(1)
    found = apply_packed(pack_skew(U), V, "cayley")
    expected = torch.eye(d)
    expected[:2, :2] *= -1
    close(found, expected @ V)


@native
def test_a_gradient_may_see_what_the_columns_do_not():
    U, V, G = 0.1 * torch.randn(6, 6), torch.zeros(6, 1), torch.randn(6, 1)
    U[0, 1], U[:2, 2:], V[3] = 1e20, 0.0, 1.0
    numbers, wide = pack_skew(U).requires_grad_(), pack_skew(U.double()).requires_grad_()
    turned = [apply_packed(numbers, V, "cayley"), apply_packed(wide, V.double(), "cayley")]
    found, expected = (
        torch.autograd.grad((one * G).sum(), x)[0]
        for one, x in zip(turned, (numbers, wide), strict=True)
    )
    close(found, expected, scale=10)


@pytest.mark.parametrize("method", ["cayley", "exponential"])
def test_saved_tensors_may_come_back_in_another_layout(method):
    numbers, V, G = problem(9, 4)
    expected = gradients_of(numbers, V, G, method)

    def pack(saved):
        return torch.empty(saved.shape, dtype=saved.dtype).copy_(saved)

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        found = gradients_of(numbers, V, G, method)
    close(found, expected, scale=10)


def gradients_of(numbers, V, G, method):
    numbers, V = numbers.clone().requires_grad_(), V.clone().requires_grad_()
    turned = apply_packed(numbers, V, method)
    return torch.autograd.grad(turned, (numbers, V), G)


def test_the_exponential_sees_angles_of_the_gradient():
    """Coordinates 11 and 33 are all but missing in the start of Lanczos, and missing in V."""
    torch.manual_seed(0)
    d, pair = 300, [11, 33]
    W = torch.randn(d, d, dtype=torch.float64).triu(1)
    W[pair], W[:, pair] = 0.0, 0.0
    W = W * (10 / torch.linalg.matrix_norm(W - W.mT, 2))
    W[11, 33] = 15.0
    V, G = (torch.randn(d, 2, dtype=torch.float64) for _ in range(2))
    V[pair] = 0.0
    results = []
    for dtype in (torch.float32, torch.float64):
        U, columns = W.to(dtype).requires_grad_(), V.to(dtype).requires_grad_()
        if dtype == torch.float32:
            turned = apply_orthogonal(U, columns, "exponential")
        else:
            turned = torch.matrix_exp(U.triu(1) - U.triu(1).mT) @ columns
        results.append(torch.autograd.grad(turned, (U, columns), G.to(dtype)))
    for found, expected in zip(*results, strict=True):
        close(found / expected.norm(), expected / expected.norm(), scale=10)


@native
@pytest.mark.parametrize(("d", "seen"), [(9, 4), (131, 40)])
@pytest.mark.parametrize("size", [1e3, 1e5])
def test_a_gradient_sees_digits_that_were_lost_elsewhere(d, seen, size):
    """V reaches a small block of W alone, and G the large one, too."""
    torch.manual_seed(0)
    U = torch.randn(d, d).triu(1) / math.sqrt(d)
    U[:seen, seen:] = 0.0
    U[seen:, seen:] *= size
    V, G = torch.zeros(d, 4), torch.randn(d, 4)
    V[:seen] = torch.randn(seen, 4)
    found = gradients_of(pack_skew(U), V, G, "cayley")
    expected = gradients_of(pack_skew(U.double()), V.double(), G.double(), "cayley")
    for own, right in zip(found, expected, strict=True):
        assert (own - right).norm() < 1e-3 * right.norm()  # of a condition of 1e5 in float32
