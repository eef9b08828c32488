"""Uniformity, alignment, and the supervised contrastive loss."""

import math

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hypersphere import functional as HF
from hypersphere.functional._kernels.spreading import row_blocks as blocks

from edges import LOW_PRECISION
from reference import spreading as reference


def features(seed=0, count=9, dim=5):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, dim, dtype=torch.float64, generator=generator)


LABELS = torch.tensor([0, 2, 1, 2, 0, 2, 3, 1, 2])  # class 3 has a single sample

LOSSES = {
    "uniformity": (HF.uniformity, reference.uniformity),
    "uniformity t=30": (lambda x: HF.uniformity(x, 30.0), lambda x: reference.uniformity(x, 30.0)),
    "alignment": (
        lambda x: HF.alignment(x, features(1)),
        lambda x: reference.alignment(x, features(1)),
    ),
    "alignment 1": (
        lambda x: HF.alignment(x, features(1), 1.0),
        lambda x: reference.alignment(x, features(1), 1.0),
    ),
    "alignment 0.5": (
        lambda x: HF.alignment(features(1), x, 0.5),
        lambda x: reference.alignment(features(1), x, 0.5),
    ),
    "contrastive": (
        lambda x: HF.supervised_contrastive(x, LABELS, features(2, 4)),
        lambda x: reference.supervised_contrastive(x, LABELS, features(2, 4)),
    ),
    "contrastive without prototypes": (
        lambda x: HF.supervised_contrastive(x, LABELS, temperature=0.3),
        lambda x: reference.supervised_contrastive(x, LABELS, temperature=0.3),
    ),
    "contrastive in its prototypes": (
        lambda p: HF.supervised_contrastive(features(3), LABELS, p),
        lambda p: reference.supervised_contrastive(features(3), LABELS, p),
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_value_and_gradient_are_those_of_the_double_loop(name, monkeypatch):
    fast, slow = LOSSES[name]
    x = features().requires_grad_()
    expected = slow(x)
    (gradient,) = torch.autograd.grad(expected, x)
    for entries in (blocks.BLOCK_ENTRIES, 28, 1):  # whole, in blocks of a few rows, row by row
        monkeypatch.setattr(blocks, "BLOCK_ENTRIES", entries)
        value = fast(x)
        torch.testing.assert_close(value, expected, rtol=1e-11, atol=1e-13)
        torch.testing.assert_close(
            torch.autograd.grad(value, x)[0], gradient, rtol=1e-9, atol=1e-12
        )
    torch.testing.assert_close(
        fast(x.detach().float()).double(), expected.detach(), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("entries", [blocks.BLOCK_ENTRIES, 20])
@pytest.mark.parametrize("name", LOSSES)
def test_gradients_of_first_and_second_order(name, entries, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_ENTRIES", entries)
    x = features(4).requires_grad_()
    assert torch.autograd.gradcheck(LOSSES[name][0], x)
    assert torch.autograd.gradgradcheck(LOSSES[name][0], x)


@given(st.integers(0, 10_000), st.floats(0.05, 50.0))
def test_rotation_and_positive_scaling_change_nothing(seed, t):
    x, y = features(seed), features(seed + 1)
    generator = torch.Generator().manual_seed(seed)
    rotation = torch.linalg.qr(torch.randn(5, 5, dtype=torch.float64, generator=generator)).Q
    lengths = torch.rand(9, 1, dtype=torch.float64, generator=generator) * 1e6 + 1e-6
    a, b = lengths * x @ rotation, y @ rotation / lengths
    torch.testing.assert_close(HF.uniformity(a, t), HF.uniformity(x, t))
    assert -4 * t - 1e-9 <= float(HF.uniformity(x, t)) <= 0
    torch.testing.assert_close(HF.alignment(a, b), HF.alignment(x, y))
    torch.testing.assert_close(
        HF.supervised_contrastive(a, LABELS, b[:4]), HF.supervised_contrastive(x, LABELS, y[:4])
    )


# --- the closed form for uniform directions -------------------------------------------------------

DIMENSIONS = [2, 3, 4, 5, 7, 10, 16, 33, 64, 100, 128, 255, 512, 1000, 2048, 4096, 9999, 10_000]


@pytest.mark.parametrize("t", [0.01, 0.1, 0.5, 1.0, 2.0, 7.3, 20.0, 50.0, 99.9, 100.0])
def test_closed_form_is_that_of_mpmath(t):
    for d in DIMENSIONS:
        with mpmath.workdps(40):
            series = mpmath.hyp0f1(mpmath.mpf(d) / 2, mpmath.mpf(t) ** 2)
            expected = mpmath.log(series) - 2 * mpmath.mpf(t)
            assert abs(HF.uniformity_of_uniform(d, t) - expected) < 1e-12, d


def test_closed_form_in_elementary_cases():
    for t in (1e-170, 1e-9, 0.3, 5.0, 400.0, 5000.0):
        # d = 1: two points; d = 3: the cosine is uniform on [-1, 1]
        assert HF.uniformity_of_uniform(1, t) == pytest.approx(
            math.log1p(math.exp(-4 * t)) - math.log(2), rel=1e-9, abs=1e-300 if t > 1e-6 else 1e-12
        )
        mean = -math.expm1(-4 * t) / (4 * t)
        assert HF.uniformity_of_uniform(3, t) == pytest.approx(math.log(mean), rel=1e-9, abs=1e-11)


@pytest.mark.parametrize("d, t", [(2, 2.0), (3, 1.0), (10, 2.0), (64, 5.0)])
def test_uniform_directions_reach_the_closed_form(d, t):
    x = HF.uniform_on_sphere(3000, d, torch.Generator().manual_seed(d), torch.float64)
    assert float(HF.uniformity(x, t)) == pytest.approx(HF.uniformity_of_uniform(d, t), abs=0.02)
    other = HF.uniform_on_sphere(3000, d, torch.Generator().manual_seed(d + 1), torch.float64)
    assert float(HF.alignment(x, other)) == pytest.approx(2.0, abs=0.1)


# --- what the losses do ---------------------------------------------------------------------------


def test_simplex_is_the_optimum_of_uniformity():
    w = reference.simplex(4).requires_grad_()
    (gradient,) = torch.autograd.grad(HF.uniformity(w), w)
    assert float(gradient.norm()) < 1e-12
    for seed in range(5):
        assert float(HF.uniformity(w.detach() + 0.05 * features(seed, 5, 4))) > float(
            HF.uniformity(w.detach())
        )


def test_fixed_prototypes_gather_their_classes():
    prototypes = HF.simplex_prototypes(4, 5)
    x = features(0).requires_grad_()
    optimizer = torch.optim.SGD([x], lr=1.0)
    for _ in range(500):
        optimizer.zero_grad()
        HF.supervised_contrastive(x, LABELS, prototypes, temperature=0.5).backward()
        optimizer.step()
    assert float(HF.cosine(x.detach(), prototypes[LABELS]).min()) > 0.98


# --- edges ----------------------------------------------------------------------------------------


def test_equal_and_opposite_pairs_stay_finite():
    x = torch.ones(3, 4)
    x[1] = -x[0]
    for alpha in (0.5, 1.0, 1.5, 2.0, 3.0):
        a = x.clone().requires_grad_()
        value = HF.alignment(a, x[0].expand(3, 4), alpha)
        value.backward()
        assert float(value.detach()) == pytest.approx(2**alpha / 3, rel=1e-5)
        assert a.grad.isfinite().all()
    same = torch.ones(5, 3, requires_grad=True)
    value = HF.uniformity(same, 100.0)
    value.backward()
    assert float(value.detach()) == pytest.approx(0, abs=1e-4) and same.grad.isfinite().all()


def test_far_pairs_do_not_underflow():
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    assert float(HF.uniformity(x, 100.0)) == pytest.approx(-400.0)
    assert float(HF.uniformity(x.double(), 1000.0)) == pytest.approx(-4000.0)


def test_zero_features_are_orthogonal_to_everything():
    x = torch.zeros(3, 4, requires_grad=True)
    value = HF.uniformity(x)
    value.backward()
    assert float(value.detach()) == pytest.approx(-4.0) and (x.grad == 0).all()
    loss = HF.supervised_contrastive(x, torch.zeros(3, dtype=torch.long), torch.eye(4))
    assert loss.isfinite()


@pytest.mark.parametrize("dtype", LOW_PRECISION)
def test_low_precision_is_computed_in_float32(dtype):
    x = torch.randn(6, 8).to(dtype)
    y = torch.tensor([0, 1, 0, 1, 2, 2])
    assert HF.uniformity(x).dtype == torch.float32
    torch.testing.assert_close(HF.uniformity(x), HF.uniformity(x.float()))
    torch.testing.assert_close(
        HF.alignment(x, x.flip(0)), HF.alignment(x.float(), x.float().flip(0))
    )
    torch.testing.assert_close(
        HF.supervised_contrastive(x, y, x[:3]),
        HF.supervised_contrastive(x.float(), y, x[:3].float()),
    )


def test_autocast_does_not_touch_them():
    x, y = torch.randn(6, 8), torch.tensor([0, 1, 0, 1, 2, 2])
    expected = HF.uniformity(x), HF.supervised_contrastive(x, y, x[:3])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = HF.uniformity(x), HF.supervised_contrastive(x, y, x[:3])
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_a_batch_without_positives_is_zero():
    x = torch.randn(3, 4, requires_grad=True)
    for rows in (3, 1):
        loss = HF.supervised_contrastive(x[:rows], torch.arange(rows))
        loss.backward()
        assert float(loss.detach()) == 0 and x.grad.isfinite().all()
    assert float(HF.supervised_contrastive(x[:1].detach(), torch.tensor([1]), torch.eye(4))) > 0


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: HF.uniformity(torch.zeros(5)), "uniformity expects"),
        (lambda: HF.uniformity(torch.zeros(1, 5)), "N >= 2"),
        (lambda: HF.uniformity(torch.eye(3), 0.0), "t must be a finite number > 0"),
        (lambda: HF.uniformity_of_uniform(0), "d >= 1"),
        (lambda: HF.uniformity_of_uniform(3, -1.0), "t must be"),
        (lambda: HF.alignment(torch.eye(3), torch.eye(2)), r"got \(3, 3\) and \(2, 2\)"),
        (lambda: HF.alignment(torch.eye(3), torch.eye(3), math.inf), "alpha"),
        (lambda: HF.alignment(torch.zeros(0, 3), torch.zeros(0, 3)), "N >= 1"),
        (
            lambda: HF.supervised_contrastive(torch.eye(3), torch.zeros(2).long()),
            r"features \(B, d\) and labels \(B,\)",
        ),
        (lambda: HF.supervised_contrastive(torch.eye(3), torch.zeros(3)), "labels are integers"),
        (
            lambda: HF.supervised_contrastive(torch.eye(3), torch.arange(3), torch.eye(2)),
            r"prototypes \(C, 3\)",
        ),
        (
            lambda: HF.supervised_contrastive(torch.eye(3), torch.arange(3), torch.eye(3)[:2]),
            r"label 2 \(sample 2\) is outside 0..1",
        ),
        (
            lambda: HF.supervised_contrastive(torch.eye(3), torch.arange(3), temperature=0.0),
            "temperature",
        ),
    ],
)
def test_wrong_arguments_are_told(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_integers_are_refused():
    with pytest.raises(TypeError, match="int64"):
        HF.uniformity(torch.ones(3, 3, dtype=torch.int64))
