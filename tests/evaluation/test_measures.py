"""Classification, imbalance, few-shot, geometry and generative scores against direct formulas."""

import math

import pytest
import torch
from scipy import linalg, stats
from sklearn.metrics import confusion_matrix, top_k_accuracy_score
from torch import nn

from hypersphere.evaluation import (
    class_mean_cosines,
    classification,
    confidence_and_hardness,
    effective_rank,
    fewshot,
    frechet_distance,
    geometry,
    imbalance,
    inception_score,
    neuron_weights,
    pair_angles,
)
from hypersphere.evaluation.fewshot import sample_episodes, train_classifiers
from hypersphere.evaluation.geometry.class_geometry import rank_correlation
from hypersphere.evaluation.results import mean_interval, student_quantile, wilson_interval
from tolerances import close


def test_intervals_agree_with_scipy():
    for degrees in (1, 2, 9, 30, 599):
        for p in (0.6, 0.975, 0.995):
            expected = stats.t.ppf(p, degrees)
            assert student_quantile(degrees, p) == pytest.approx(expected, rel=1e-4)
    values = torch.rand(10)
    low, high = stats.t.interval(
        0.95, 9, values.double().mean(), stats.sem(values.double().numpy())
    )
    mean, half = mean_interval(values)
    assert (mean - half, mean + half) == pytest.approx((low, high))
    exact = stats.binomtest(93, 100).proportion_ci(method="wilson")
    assert wilson_interval(93, 100) == pytest.approx((exact.low, exact.high), rel=1e-5)


def test_classification_agrees_with_scikit_learn():
    logits, labels = torch.randn(300, 7), torch.randint(6, (300,))  # class 6 never occurs
    result = classification(logits, labels, top=(2, 5))
    predicted = logits.argmax(1)
    expected = confusion_matrix(labels, predicted, labels=list(range(7)))
    assert result.confusion == expected.tolist()
    assert result.error == pytest.approx(float((predicted != labels).double().mean()))
    for k in (2, 5):
        right = top_k_accuracy_score(labels, logits.numpy(), k=k, labels=list(range(7)))
        assert result.errors_at[k] == pytest.approx(1 - right)
    assert math.isnan(result.class_error[6])
    assert classification(predicted, labels).error == result.error
    assert "top-5 error" in str(result) and result.to_dict()["class_error"][6] is None
    with pytest.raises(ValueError, match=r"labels: expected 0 \.\.\. 6; got 9"):
        classification(logits, labels + 4)


def test_rare_classes_have_their_own_error():
    labels = torch.tensor([0] * 4 + [1] * 16)
    predicted = labels.clone()
    predicted[:3] = 1
    predicted[4] = 0
    result = imbalance(predicted, labels, train_counts=torch.tensor([100, 5000]))
    errors = (result.error, result.rare_error, result.common_error)
    assert errors == pytest.approx((0.2, 0.75, 1 / 16))
    assert result.rare == [0] and "rare classes [0]" in str(result)
    for arguments, message in [
        ({}, "say which classes are rare"),
        ({"rare": [5]}, "class 5 is not among"),
        ({"train_counts": torch.tensor([9, 9])}, "no class is rare in training.*--rare"),
        ({"train_counts": [-5, 9]}, "train_counts: expected whole numbers, at least 0; got -5"),
        ({"train_counts": [1.5, 9], "rare": [0]}, "expected whole numbers, at least 0; got 1.5"),
        ({"train_counts": [math.nan, 9]}, "expected whole numbers, at least 0; got nan"),
        ({"train_counts": [9]}, r"a count for each of the 2 classes; got shape \(1,\)"),
        ({"train_counts": [[1, 9]]}, r"a count for each of the 2 classes; got shape \(1, 2\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            imbalance(predicted, labels, **arguments)


def test_class_means_and_confidence():
    features = torch.randn(60, 5)
    labels = torch.arange(60) % 3
    means = torch.stack([features[labels == c].mean(0) for c in range(3)])
    expected = nn.functional.cosine_similarity(means.unsqueeze(1), means, dim=2)
    result = class_mean_cosines(features, labels)
    close(torch.tensor(result.cosine), expected, scale=3)
    with pytest.raises(ValueError, match="at least two classes"):
        class_mean_cosines(features, torch.zeros(60).long())
    weight = means
    found = confidence_and_hardness(features, labels, weight)
    angle = torch.acos(nn.functional.cosine_similarity(features.unsqueeze(1), weight, dim=2))
    hardness = angle[torch.arange(60), labels] / angle.sum(1)
    assert torch.allclose(torch.tensor(found.hardness), hardness, atol=1e-4)
    confidence = torch.tensor(found.confidence)
    assert found.spearman == pytest.approx(stats.spearmanr(confidence, hardness)[0], abs=1e-3)
    assert found.spearman < -0.5 and len(found.bins) == 10
    x, y = torch.randint(5, (50,)).float(), torch.randint(5, (50,)).float()
    assert rank_correlation(x, y) == pytest.approx(stats.spearmanr(x, y)[0])


def test_few_shot_classifiers_train_as_one_by_one():
    """The stacked training of episodes is plain SGD on each of them."""
    x, y = torch.randn(3, 10, 6), torch.arange(5).repeat_interleave(2)
    weight, bias = train_classifiers(x, y, 5, None, 4, 0.1, 4, torch.Generator().manual_seed(5))
    # the same draws, one episode at a time
    g = torch.Generator().manual_seed(5)
    w0 = (torch.rand(3, 5, 6, generator=g) * 2 - 1) * 6**-0.5
    b0 = (torch.rand(3, 5, generator=g) * 2 - 1) * 6**-0.5
    orders = [torch.rand(3, 10, generator=g).argsort(1) for _ in range(4)]
    for e in range(3):
        layer = nn.Linear(6, 5)
        layer.weight.data, layer.bias.data = w0[e].clone(), b0[e].clone()
        sgd = torch.optim.SGD(layer.parameters(), 0.1, 0.9, 0.9, 1e-3)
        for order in orders:
            for batch in order[e].split(4):
                sgd.zero_grad()
                nn.functional.cross_entropy(layer(x[e, batch]), y[batch]).backward()
                sgd.step()
        close(layer.weight, weight[e], scale=3)
        close(layer.bias, bias[e], scale=3)


@pytest.mark.parametrize("method", ["baseline", "baseline++", "nearest_mean"])
def test_few_shot_accuracy(method):
    labels = torch.arange(10).repeat_interleave(25)
    centers = 4 * torch.randn(10, 16)
    features = centers[labels] + torch.randn(250, 16)
    settings = {"queries": 10, "episodes": 30, "way": 5}
    five = fewshot(features, labels, method, shot=5, epochs=20, **settings)
    one = fewshot(features, labels, method, shot=1, epochs=20, **settings)
    assert five.accuracy > 0.95 and five.accuracy >= one.accuracy - 0.01
    again = fewshot(features, labels, method, shot=1, epochs=20, **settings)
    assert one.episodes == again.episodes
    half = 1.96 * torch.tensor(one.episodes).std() / 30**0.5
    assert one.half_width == pytest.approx(float(half))
    noise = fewshot(torch.randn(250, 16), labels, method, shot=1, epochs=5, **settings)
    assert noise.accuracy == pytest.approx(0.2, abs=0.06)


def test_episodes_are_distinct_and_checked():
    labels = torch.arange(6).repeat_interleave(8)
    episodes = sample_episodes(labels, 4, 8, 50, torch.Generator().manual_seed(0))
    for episode in episodes:
        assert len(episode.unique()) == 32
        assert len(labels[episode].unique()) == 4
        assert (labels[episode] == labels[episode[:, :1]]).all()
    with pytest.raises(ValueError, match="0 of 6 classes have them"):
        sample_episodes(labels, 4, 9, 1, torch.Generator())
    with pytest.raises(ValueError, match="unknown method 'maml'"):
        fewshot(torch.randn(48, 3), labels, "maml")


def test_geometry_of_a_known_layer():
    layer = nn.Linear(4, 4, bias=False)
    layer.weight.data = 3 * torch.eye(4)
    result = geometry(nn.Sequential(layer, nn.BatchNorm1d(4), nn.Linear(4, 1)))
    assert len(result.layers) == 1  # a single neuron has no pairs
    (found,) = result.layers
    assert found.energy == pytest.approx(1 / 2)  # all distances sqrt(2), s = 2
    assert found.geodesic_energy == pytest.approx((2 / math.pi) ** 2, rel=1e-5)
    # half space: 8 points, 6 others at sqrt(2) and the antipode at 2
    assert found.half_space_energy == pytest.approx((6 * 0.5 + 0.25) / 7, rel=1e-5)
    assert found.mean_angle == pytest.approx(math.pi / 2)
    assert sum(found.angle_counts) == 6
    assert (found.norms.mean, found.norms.deviation) == (3.0, 0.0)
    assert found.effective_rank == pytest.approx(4)
    assert "half space" in str(result)


def test_geometry_of_features():
    features, labels = torch.randn(50, 6), torch.arange(50) % 5
    model = nn.Linear(6, 5)
    found = geometry(model, features, labels).features
    i, j = torch.triu_indices(50, 50, 1)
    angle = torch.acos(nn.functional.cosine_similarity(features[i], features[j]))
    same = labels[i] == labels[j]
    assert found.mean_positive_angle == pytest.approx(float(angle[same].mean()), abs=1e-4)
    assert found.mean_negative_angle == pytest.approx(float(angle[~same].mean()), abs=1e-4)
    assert sum(found.positive_counts) == int(same.sum())
    assert 0 < found.mean_hardness < 1 and found.fisher_score > 0
    positive, negative, _, _ = pair_angles(features, labels)
    assert positive.sum() + negative.sum() == 50 * 49 / 2
    values = torch.linalg.svdvals(features.double())
    p = values / values.sum()
    assert effective_rank(features) == pytest.approx(float((-(p * p.log()).sum()).exp()))
    assert effective_rank(torch.zeros(3, 3)) == 0
    with pytest.raises(ValueError, match="all 50 labels are 1"):
        geometry(None, features, torch.ones(50).long())
    with pytest.raises(ValueError, match="give a model"):
        geometry()
    assert list(neuron_weights(nn.Sequential(nn.Conv1d(2, 3, 2), nn.Linear(3, 2)))) == ["0", "1"]


def test_inception_score_from_its_definition():
    logits = torch.randn(100, 6) * 2
    p = logits.double().softmax(1)
    scores = []
    for part in p.split(25):
        marginal = part.mean(0)
        scores.append(math.exp(float((part * (part / marginal).log()).sum(1).mean())))
    found = inception_score(logits, splits=4)
    assert found.score == pytest.approx(sum(scores) / 4)
    assert inception_score(torch.zeros(10, 5), splits=2).score == pytest.approx(1.0)
    with pytest.raises(ValueError, match="splits: expected 1 to 10"):
        inception_score(torch.zeros(10, 5), splits=11)


@pytest.mark.parametrize("count", [200, 4])  # 4 < 6: covariances without full rank
def test_frechet_distance_against_scipy(count):
    a, b = torch.randn(count, 6).double(), (torch.randn(count, 6) @ torch.randn(6, 6)).double() + 1
    cov_a, cov_b = torch.cov(a.T).numpy(), torch.cov(b.T).numpy()
    root = linalg.sqrtm(cov_a @ cov_b).real
    mean = float((a.mean(0) - b.mean(0)).square().sum())
    expected = mean + float((cov_a + cov_b - 2 * root).trace())
    found = frechet_distance(a, b)
    assert found.distance == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert frechet_distance(a, a).distance == pytest.approx(0, abs=1e-5)
    with pytest.raises(ValueError, match="at least 2 samples"):
        frechet_distance(a, b[:1])
