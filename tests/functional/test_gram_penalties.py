import pytest
import torch

from hypersphere import functional as HF

SHAPES = [(4, 7), (7, 4), (5, 5), (6, 2, 3)]


@pytest.mark.parametrize("shape", SHAPES)
def test_orthonormal_and_orthogonal_are_their_norms_on_either_side(shape):
    w = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    columns = w.flatten(1).T  # as in the text
    gram = columns.T @ columns
    expected = (gram - torch.eye(len(gram))).square().sum()
    torch.testing.assert_close(HF.orthonormal_penalty(w), expected)
    torch.testing.assert_close(
        HF.orthogonal_penalty(w), (gram - torch.diag(gram.diagonal())).square().sum()
    )
    assert torch.autograd.gradcheck(HF.orthonormal_penalty, w)
    assert torch.autograd.gradcheck(HF.orthogonal_penalty, w)


@pytest.mark.parametrize("shape", SHAPES)
def test_srip_is_the_spectral_norm_of_the_small_side(shape):
    w = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    rows = w.flatten(1)
    small = rows @ rows.T if rows.shape[0] <= rows.shape[1] else rows.T @ rows
    expected = torch.linalg.matrix_norm(small - torch.eye(len(small)), 2)
    value, vector = HF.spectral_penalty(w, iterations=60)
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=0)
    slopes = [torch.autograd.grad(v, w)[0] for v in (value, expected)]
    torch.testing.assert_close(*slopes, rtol=1e-3, atol=1e-4)
    again, _ = HF.spectral_penalty(w, vector, iterations=1)
    torch.testing.assert_close(again, expected, rtol=1e-6, atol=0)


def test_sets_add_up():
    w = torch.randn(3, 4, 6)
    for penalty in (HF.orthonormal_penalty, HF.orthogonal_penalty):
        torch.testing.assert_close(penalty(w, sets=True), sum(penalty(part) for part in w))


def test_orthonormal_rows_cost_nothing_and_half_precision_works():
    w = torch.linalg.qr(torch.randn(8, 8)).Q[:5]
    assert float(HF.orthonormal_penalty(w)) < 1e-10
    assert float(HF.spectral_penalty(w)[0]) < 1e-5
    assert HF.orthonormal_penalty(w.bfloat16()).isfinite()


def test_srip_goes_on_after_an_exactly_orthonormal_layer():
    w = torch.eye(4)
    value, vector = HF.spectral_penalty(w)
    assert float(value) == 0 and float(vector.norm()) > 0
    w[0, 0] = 2.0  # the norm is now 4 - 1
    for _ in range(3):
        value, vector = HF.spectral_penalty(w, vector)
    assert float(value) == pytest.approx(3.0)


def test_orthogonal_penalty_is_never_negative():
    # as many orthogonal neurons as dimensions, and zeros: the two sums are equal but for rounding
    for seed in range(20):
        q = torch.linalg.qr(torch.randn(8, 8, generator=torch.Generator().manual_seed(seed))).Q
        w = torch.cat([q, torch.zeros(2, 8)])
        assert float(HF.orthogonal_penalty(w)) >= 0
        assert float(HF.orthogonal_penalty(torch.stack([w, w]), sets=True)) >= 0


def test_wrong_arguments_are_told():
    with pytest.raises(ValueError, match=r"\(N, ...\)"):
        HF.orthonormal_penalty(torch.ones(3))
    with pytest.raises(ValueError, match=r"\(sets, N, d\)"):
        HF.orthogonal_penalty(torch.ones(3, 3), sets=True)
    with pytest.raises(ValueError, match="start must be"):
        HF.spectral_penalty(torch.eye(3), torch.ones(1, 2))


@pytest.mark.parametrize("shape", [(4, 9), (9, 4)], ids=["wide", "tall"])
@pytest.mark.parametrize("scale", [1e5, 1e8, 1e15, 1e30])
def test_large_weights_do_not_become_nan(shape, scale):
    w = torch.randn(shape)
    exact = (scale * w.double()).requires_grad_()
    single = exact.detach().float().requires_grad_()
    for penalty in (HF.orthonormal_penalty, HF.orthogonal_penalty):
        value, expected = penalty(single), penalty(exact)
        (slope,), (expected_slope,) = (
            torch.autograd.grad(v, x) for v, x in ((value, single), (expected, exact))
        )
        if expected < 1e37:
            torch.testing.assert_close(value.double(), expected, rtol=1e-4, atol=0)
        assert value > 1e15 and not slope.isnan().any()
        toward = torch.nn.functional.cosine_similarity(
            (slope / slope.abs().amax()).double().flatten(), expected_slope.flatten(), dim=0
        )
        assert toward > 0.999
    value, vector = HF.spectral_penalty(single, iterations=20)
    assert vector.isfinite().all() and not value.isnan()
    (slope,) = torch.autograd.grad(value, single)
    assert slope.isfinite().all()
    if scale < 1e16:
        expected, _ = HF.spectral_penalty(exact, vector.double(), iterations=1)
        torch.testing.assert_close(value.double(), expected, rtol=1e-3, atol=0)


def test_large_orthogonal_neurons_have_no_penalty():
    assert HF.orthogonal_penalty(1e30 * torch.eye(3)) == 0
