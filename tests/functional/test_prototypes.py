"""Fixed class directions."""

import math

import pytest
import torch

from hypersphere import functional as HF


@pytest.mark.parametrize("count", [2, 3, 4, 10, 101, 1000])
@pytest.mark.parametrize("extra", [0, 1, 5])
def test_simplex_has_equal_cosines_to_rounding(count, extra):
    x = HF.simplex_prototypes(count, count - 1 + extra)
    assert x.shape == (count, count - 1 + extra) and x.dtype == torch.float64
    cos = x @ x.T
    expected = torch.full_like(cos, -1 / (count - 1)).fill_diagonal_(1)
    torch.testing.assert_close(cos, expected, rtol=0, atol=1e-12)
    assert float(x.sum(0).abs().max()) < 1e-12


@pytest.mark.parametrize("count, dim", [(3, 3), (10, 32), (10, 100)])
def test_features_after_a_relu_come_near(count, dim):
    x = HF.simplex_prototypes(count, dim)
    nearest = HF.cosine(x.relu(), x)
    torch.testing.assert_close(nearest, torch.full_like(nearest, math.sqrt(1 - 1 / count)))


def test_default_dimension_and_a_single_class():
    assert HF.simplex_prototypes(5).shape == (5, 4)
    assert HF.simplex_prototypes(1).tolist() == [[1.0]]
    assert HF.prototypes(1, 3).tolist() == [[1.0, 0.0, 0.0]]
    assert HF.prototypes(2, 1).flatten().tolist() == pytest.approx([1.0, -1.0], abs=1e-15)


def largest_cosine(x):
    assert float((x.norm(dim=1) - 1).abs().max()) < 1e-12
    return float((x @ x.T).fill_diagonal_(-2).max())


@pytest.mark.parametrize("dim", [2, 3, 5, 8])
def test_up_to_twice_the_dimension_they_are_optimal(dim):
    for count in range(2, 2 * dim + 1):
        x = HF.prototypes(count, dim)
        assert x.shape == (count, dim)
        best = -1 / (count - 1) if count <= dim + 1 else 0.0  # Rankin 1955
        assert largest_cosine(x) == pytest.approx(best, abs=1e-12)
        assert float(x.sum(0).abs().max()) < 1e-12


@pytest.mark.parametrize(
    "count, dim, degrees",
    [(5, 2, 72.0), (7, 3, 77.86954), (8, 3, 74.85849), (9, 3, 70.52878), (12, 3, 63.43495)],
)
def test_more_classes_are_packed_as_published(count, dim, degrees):
    x = HF.prototypes(count, dim)
    assert math.degrees(math.acos(largest_cosine(x))) == pytest.approx(degrees, abs=1e-4)


def test_the_same_seed_gives_the_same_points_and_nobody_can_spoil_them():
    first = HF.prototypes(7, 3)
    copy = first.clone()
    first.zero_()
    assert torch.equal(HF.prototypes(7, 3), copy)
    assert not torch.equal(HF.prototypes(7, 3, seed=1), copy)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: HF.simplex_prototypes(5, 3), r"needs dim >= 4, got 3; prototypes\(5, 3\)"),
        (lambda: HF.simplex_prototypes(0), "C >= 1"),
        (lambda: HF.prototypes(3, 0), "dim >= 1"),
        (lambda: HF.prototypes(3, 1), "only two directions"),
        (lambda: HF.prototypes(2.5, 3), "whole numbers"),
    ],
)
def test_wrong_arguments_are_told(call, message):
    with pytest.raises(ValueError, match=message):
        call()
