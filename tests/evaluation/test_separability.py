"""Streaming scores against the direct formulas."""

import math

import pytest
import torch

from hypersphere.evaluation.geometry.separability import (
    AngularFisherScore,
    AngularVisualHardness,
    angular_fisher_score,
    angular_visual_hardness,
)

from reference import separability as reference


def data(n=60, classes=7, dim=5, dtype=torch.float64):
    return torch.randn(n, dim, dtype=dtype) + 1, torch.randint(classes, (n,))


def test_fisher_score_is_a_1():
    x, y = data()
    assert angular_fisher_score(x, y) == pytest.approx(reference.angular_fisher_score(x, y))


@pytest.mark.parametrize("size", [1, 7, 60])
def test_fisher_score_does_not_depend_on_the_batches(size):
    x, y = data()
    y = y.sort(descending=True).values  # the last class comes first, the first one last
    parts = list(zip(x.split(size), y.split(size), strict=True))
    whole = reference.angular_fisher_score(x, y)
    assert angular_fisher_score(parts) == pytest.approx(whole)
    one, other = AngularFisherScore(), AngularFisherScore()
    for i, part in enumerate(parts):
        (one if i % 2 else other).update(*part)
    one.merge(other)
    one.merge(AngularFisherScore())
    assert one.compute() == pytest.approx(whole)


@pytest.mark.parametrize("step", [10**8, 2**60])
def test_fisher_score_does_not_depend_on_the_numbers_of_the_classes(step):
    x, y = data()
    parts = list(zip(x.split(7), (step * y).split(7), strict=True))
    assert angular_fisher_score(parts) == pytest.approx(reference.angular_fisher_score(x, y))


def test_fisher_score_refuses_sums_without_end():
    x, y = torch.full((4, 2), 1e308, dtype=torch.float64), torch.tensor([0, 0, 1, 1])
    with pytest.raises(ValueError, match="features: expected values whose sum over a class"):
        angular_fisher_score(x, y)


def test_fisher_score_ignores_lengths_of_classes_on_one_ray_and_orders_by_separation():
    y = torch.arange(4).repeat_interleave(50)
    centers = torch.eye(4)[y]
    tight, loose = centers + 0.05 * torch.randn(200, 4), centers + 0.5 * torch.randn(200, 4)
    assert angular_fisher_score(tight, y) < 0.1 * angular_fisher_score(loose, y)
    assert angular_fisher_score(centers * torch.rand(200, 1), y) == pytest.approx(0, abs=1e-12)


def test_float32_sums_do_not_drift():
    x, y = data(4000, dtype=torch.float32)
    assert angular_fisher_score(x, y) == pytest.approx(
        reference.angular_fisher_score(x.double(), y), rel=1e-9
    )


def test_hardness_is_1_1():
    x, y = data()
    w = torch.randn(7, 5, dtype=torch.float64)
    expected = reference.angular_visual_hardness(x, y, w)
    assert angular_visual_hardness(x, y, w).tolist() == pytest.approx(expected)
    hardness = AngularVisualHardness(w, chunk=3)
    got = torch.cat([hardness.update(*part) for part in zip(x.split(13), y.split(13), strict=True)])
    assert got.tolist() == pytest.approx(expected)
    assert hardness.compute() == pytest.approx(sum(expected) / len(expected))
    for c in range(7):
        assert hardness.by_class()[c].item() == pytest.approx(got[y == c].mean().item())


def test_hardness_at_the_ends():
    w = torch.eye(3)
    on_class, opposite = w[:1], -w[:1]
    zero = torch.tensor([0])
    assert angular_visual_hardness(on_class, zero, w).item() == pytest.approx(0, abs=1e-6)
    assert angular_visual_hardness(opposite, zero, w).item() == pytest.approx(0.5)
    assert angular_visual_hardness(torch.zeros(1, 3), zero, w).item() == pytest.approx(1 / 3)
    assert angular_visual_hardness(w[:1, :1], zero, w[:1, :1]).item() == 0  # one class, right on it
    bf16 = angular_visual_hardness(w.bfloat16(), torch.tensor([0, 1, 2]), w)
    assert bf16.dtype == torch.float32 and bf16.max() < 1e-6


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (
            lambda: angular_fisher_score(torch.randn(3, 2), torch.zeros(3).long()),
            "2 or more, got 1",
        ),
        (lambda: angular_fisher_score(torch.randn(3, 2), torch.zeros(2).long()), r"labels \(N,\)"),
        (lambda: angular_fisher_score(torch.randn(3, 2)), "labels"),
        (
            lambda: angular_fisher_score(torch.randn(2, 2), torch.tensor([0, -1])),
            "from 0 on, got -1",
        ),
        (lambda: angular_visual_hardness(torch.randn(3, 2), torch.zeros(3).long()), "head.weight"),
        (
            lambda: angular_visual_hardness(torch.randn(1, 2), torch.tensor([5]), torch.eye(2)),
            "label 5 .* C = 2",
        ),
        (
            lambda: angular_visual_hardness(torch.randn(1, 3), torch.tensor([0]), torch.eye(2)),
            r"shape \(B, 2\)",
        ),
        (lambda: AngularVisualHardness(torch.eye(2)).compute(), "update"),
    ],
)
def test_errors_say_what_to_do(action, message):
    with pytest.raises(ValueError, match=message):
        action()


def test_class_means_without_a_direction_have_no_fisher_score():
    labels = torch.tensor([0, 0, 1, 1])
    assert math.isnan(angular_fisher_score(torch.zeros(4, 3), labels))
    one = torch.zeros(4, 3)
    one[0, 0] = 1  # zero features have cosine 0 with everything
    assert math.isfinite(angular_fisher_score(one, labels))
