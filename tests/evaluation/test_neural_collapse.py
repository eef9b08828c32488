"""Neural collapse, and features beside uniform directions."""

import math

import pytest
import torch

from hypersphere import functional as HF
from hypersphere.evaluation import feature_uniformity, neural_collapse

from reference import neural_collapse as reference
from reference import spreading

FIGURES = (
    "within_class", "mean_norms", "mean_angles", "weight_norms", "weight_angles", "duality",
    "disagreement",
)  # fmt: skip


@pytest.mark.parametrize("count, dim", [(2, 3), (4, 3), (10, 32)])
def test_exact_simplex_has_collapsed(count, dim):
    means = HF.simplex_prototypes(count, dim)
    y = torch.arange(count).repeat(6)
    y = torch.cat([y, torch.zeros(5, dtype=torch.long)])  # class 0 has more samples
    shift = torch.randn(dim, dtype=torch.float64)
    result = neural_collapse(3 * means[y] + shift, y, 0.5 * means, -0.5 * means @ shift)
    for name in FIGURES:
        assert getattr(result, name) == pytest.approx(0, abs=1e-12), name
    assert (result.classes, result.samples) == (count, len(y))


@pytest.mark.parametrize("dim", [4, 30])
def test_random_features_are_those_of_the_definition(dim):
    x, y = torch.randn(60, dim), torch.randint(0, 7, (60,))
    y[y == 3] = 5  # class 3 does not occur
    weight, bias = torch.randn(7, dim), torch.randn(7)
    result = neural_collapse(x, y, weight, bias)
    expected = reference.measures(x, y, weight, bias)
    for name in FIGURES:
        assert getattr(result, name) == pytest.approx(expected[name], rel=1e-8), name
    assert result.classes == 6
    assert result.disagreement > 0.2 and result.duality > 0.5


def test_collapse_is_monotone_in_the_noise():
    means, y = HF.simplex_prototypes(5, 8), torch.arange(5).repeat(40)
    noise = torch.randn(200, 8, dtype=torch.float64)
    found = [
        neural_collapse(means[y] + size * noise, y, means).within_class for size in (0.01, 0.1, 0.5)
    ]
    assert found == sorted(found) and found[0] < 1e-3
    # Scaling and rotating everything changes nothing.
    rotation = torch.linalg.qr(torch.randn(8, 8, dtype=torch.float64)).Q
    moved = neural_collapse(7 * (means[y] + 0.1 * noise) @ rotation, y, means @ rotation)
    assert moved.within_class == pytest.approx(found[1])


@pytest.mark.parametrize("size", [1e300, 1e-300])
def test_collapse_is_the_same_at_any_scale(size):
    """Squares of huge features were infinite, and the measures NaN."""
    x, y = torch.randn(40, 6, dtype=torch.float64), torch.arange(40) % 4
    w, b = torch.randn(4, 6, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    plain = vars(neural_collapse(x, y, w, b))
    for other in (
        neural_collapse(size * x, y, w, size * b),
        neural_collapse(x, y, size * w, size * b),
    ):
        assert vars(other) == pytest.approx(plain, rel=1e-9)


def test_features_without_a_classifier():
    means, y = HF.simplex_prototypes(3), torch.arange(3).repeat(2)
    result = neural_collapse(means[y].float(), y)
    assert result.within_class < 1e-10 and math.isnan(result.duality)
    text = str(result)
    assert "NC1" in text and "NC4" in text
    assert result.to_dict()["duality"] is None


def test_equal_class_means_are_infinitely_far():
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    assert neural_collapse(x, torch.tensor([0, 0, 1, 1])).within_class == math.inf


@pytest.mark.parametrize(
    "change, message",
    [
        ({"labels": torch.zeros(4).long()}, "at least two classes"),
        ({"labels": torch.zeros(3).long()}, "one label for each of the 4 rows"),
        ({"features": torch.full((4, 3), math.nan)}, "NaN"),
        ({"weight": torch.eye(2)}, "expected dimension 3"),
        ({"weight": torch.ones(1, 3)}, "label 1"),
        ({"bias": torch.zeros(3)}, "one per class"),
    ],
)
def test_wrong_input_is_told(change, message):
    given = {
        "features": torch.randn(4, 3),
        "labels": torch.tensor([0, 1, 0, 1]),
        "weight": torch.randn(2, 3),
    }
    with pytest.raises(ValueError, match=message):
        neural_collapse(**(given | change))


# --- uniformity -----------------------------------------------------------------------------------


def test_uniform_features_have_no_excess():
    x = HF.uniform_on_sphere(4000, 16, torch.Generator().manual_seed(0))
    y = torch.randint(0, 10, (4000,))
    result = feature_uniformity(7 * x, y)
    assert result.excess == pytest.approx(0, abs=2e-3)
    assert result.uniform == HF.uniformity_of_uniform(16)
    assert result.alignment == pytest.approx(2, abs=0.01)
    assert "uniformity (t = 2, d = 16)" in str(result)


def test_figures_are_those_of_the_definition():
    x, y = torch.randn(30, 4, dtype=torch.float64), torch.randint(0, 3, (30,))
    result = feature_uniformity(x, y, t=3.0)
    assert result.uniformity == pytest.approx(float(spreading.uniformity(x, 3.0)))
    first, second = zip(
        *((i, j) for i in range(30) for j in range(30) if i != j and y[i] == y[j]), strict=True
    )
    expected = spreading.alignment(x[list(first)], x[list(second)])
    assert result.alignment == pytest.approx(float(expected))
    means = torch.stack([HF.normalize(x[y == c]).mean(0) for c in range(3)])
    assert result.class_uniformity == pytest.approx(float(spreading.uniformity(means, 3.0)))
    alone = feature_uniformity(x)
    assert math.isnan(alone.alignment) and math.isnan(alone.class_uniformity)
    assert alone.to_dict()["alignment"] is None


def test_collapsed_features_are_aligned_and_not_uniform():
    means, y = HF.simplex_prototypes(4, 8), torch.arange(4).repeat(25)
    result = feature_uniformity(means[y], y)
    assert result.alignment == pytest.approx(0, abs=1e-12)
    assert result.class_uniformity == pytest.approx(-2 * (2 + 2 / 3))
    assert result.excess > 1
    single = feature_uniformity(means, torch.arange(4))
    assert math.isnan(single.alignment)


def test_a_single_feature_is_refused():
    with pytest.raises(ValueError, match="n >= 2"):
        feature_uniformity(torch.ones(1, 3))
