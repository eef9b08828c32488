import math

import pytest
import torch
from scipy.special import ive

import hypersphere as hs
from hypersphere.distributions import VonMisesFisher
from hypersphere.evaluation import familiarity, out_of_distribution
from hypersphere.evaluation.out_of_distribution import METHODS


def sets(d=6, seed=0):
    torch.manual_seed(seed)
    means = torch.eye(d, dtype=torch.float64)[:3]
    labels = torch.arange(3).repeat_interleave(60)
    narrow, wide = torch.tensor([30.0, 5.0], dtype=torch.float64)

    def draw(n):
        return torch.cat([VonMisesFisher(mean, narrow).sample((n,)) for mean in means])

    other = VonMisesFisher(-means[0], wide).sample((50,))
    return draw(60), labels, draw(20), other


def reference(train, labels, x, method, k):
    """One sample at a time, straight from the definitions."""
    scores = []
    classes = sorted(set(labels.tolist()))
    unit = train / train.norm(dim=1, keepdim=True)
    if method == "mahalanobis":
        residual = torch.cat([train[labels == c] - train[labels == c].mean(0) for c in classes])
        inverse = torch.linalg.inv(residual.T @ residual / len(train))
    for row in x:
        z = row / row.norm()
        if method == "knn":
            scores.append(float(sorted((unit @ z).tolist(), reverse=True)[k - 1]))
            continue
        values = []
        for c in classes:
            mean = (unit[labels == c] if method != "mahalanobis" else train[labels == c]).mean(0)
            if method == "cosine":
                values.append(float(z @ mean / mean.norm()))
            elif method == "mahalanobis":
                values.append(-math.sqrt(float((row - mean) @ inverse @ (row - mean))))
            else:
                d, length = len(z), float(mean.norm())
                low, high = 1e-6, 1e5
                for _ in range(200):  # A_d(kappa) = length by bisection
                    kappa = (low + high) / 2
                    ratio = ive(d / 2, kappa) / ive(d / 2 - 1, kappa)
                    low, high = (kappa, high) if ratio < length else (low, kappa)
                bessel = math.log(ive(d / 2 - 1, kappa)) + kappa
                log_c = (d / 2 - 1) * math.log(kappa) - d / 2 * math.log(2 * math.pi) - bessel
                share = float((labels == c).double().mean())
                values.append(math.exp(math.log(share) + log_c + kappa * float(z @ mean) / length))
        scores.append(math.log(sum(values)) if method == "vmf" else max(values))
    return torch.tensor(scores, dtype=torch.float64)


@pytest.mark.parametrize("method", METHODS)
def test_scores_are_those_of_the_definitions(method):
    train, labels, test, _ = sets()
    expected = reference(train, labels, test, method, k=7)
    found = familiarity(train, test, method, labels, k=7)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_rates_are_those_of_counting(method):
    train, labels, test, other = sets()
    result = out_of_distribution(train, test, other, method, labels, k=7)
    known, strange = (familiarity(train, x, method, labels, k=7).tolist() for x in (test, other))
    wins = sum((a > b) + 0.5 * (a == b) for a in known for b in strange)
    assert result.auroc == pytest.approx(wins / len(known) / len(strange))
    threshold = sorted(known, reverse=True)[math.ceil(0.95 * len(known)) - 1]
    assert sum(a >= threshold for a in known) / len(known) >= 0.95
    assert result.fpr95 == pytest.approx(sum(b >= threshold for b in strange) / len(strange))
    assert result.auroc > 0.9 and "AUROC" in str(result)


def test_the_same_set_cannot_be_told_from_itself():
    train, _, test, _ = sets()
    result = hs.evaluation.out_of_distribution(train, test, test)
    assert result.auroc == pytest.approx(0.5) and result.fpr95 >= 0.95


def test_lengths_matter_to_mahalanobis_alone():
    train, labels, test, _ = sets()
    for method in METHODS:
        same = torch.allclose(
            familiarity(train, 3 * test, method, labels),
            familiarity(train, test, method, labels),
            atol=1e-5,
        )
        assert same == (method != "mahalanobis")


def test_a_constant_coordinate_and_float32_do_no_harm():
    train, labels, test, other = sets()
    train, test, other = (
        torch.cat([x, torch.zeros(len(x), 1)], 1).float() for x in (train, test, other)
    )
    assert out_of_distribution(train, test, other, "mahalanobis", labels).auroc > 0.9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mahalanobis_refuses_classes_without_any_spread(dtype):
    means = torch.randn(3, 6, dtype=dtype)
    labels = torch.arange(3).repeat_interleave(7)
    with pytest.raises(ValueError, match="all the same.*method cosine or knn"):
        familiarity(means[labels], means, "mahalanobis", labels)
    nearly = means[labels] + 1e-5 * torch.randn(21, 6, dtype=dtype)
    assert bool(familiarity(nearly, -means, "mahalanobis", labels).isfinite().all())
    assert bool(familiarity(means[labels], -means, "vmf", labels).isfinite().all())


def test_what_is_wrong_is_told():
    train, _, test, other = sets()
    with pytest.raises(ValueError, match="method is one of knn"):
        out_of_distribution(train, test, other, "odin")
    with pytest.raises(ValueError, match="6"):
        out_of_distribution(train, test[:, :4], other)
    with pytest.raises(ValueError, match="at least 1"):
        out_of_distribution(train, test, other, k=0)
