"""Verification against direct loops, scikit-learn's ROC, and hand-made cases."""

import json
import math

import numpy as np
import pytest
import torch
from sklearn.metrics import auc, roc_auc_score
from sklearn.metrics import roc_curve as sklearn_roc

from hypersphere.evaluation import (
    PROTOCOLS,
    Protocol,
    all_pairs,
    concatenate_patches,
    crop_patch,
    roc_curve,
    templates,
    verification,
)
from hypersphere.evaluation.recognition.protocols import exact_threshold
from tolerances import close

from reference import evaluation as reference


def make_pairs(n=200, dim=16, noise=1.0, flips=True):
    a = torch.randn(n, 2, dim)
    same = torch.arange(n) % 2 == 0
    b = torch.where(same.view(-1, 1, 1), a + noise * torch.randn_like(a), torch.randn_like(a)) + 0.5
    return (a + 0.5, b, same) if flips else (a[:, 0] + 0.5, b[:, 0], same)


@pytest.mark.parametrize("kind", ["random", "ties", "perfect", "inverted"])
def test_roc_agrees_with_scikit_learn(kind):
    same = torch.rand(300) < 0.4
    scores = {
        "random": torch.rand(300),
        "ties": (torch.rand(300) + 0.3 * same).mul(5).round(),
        "perfect": torch.rand(300) + 2 * same,
        "inverted": torch.rand(300) - 2 * same,
    }[kind]
    roc = roc_curve(scores, same)
    far, tar, _ = sklearn_roc(same.numpy(), scores.numpy(), drop_intermediate=False)
    close(roc.far, torch.from_numpy(far))
    close(roc.tar, torch.from_numpy(tar))
    assert roc.area() == pytest.approx(roc_auc_score(same.numpy(), scores.numpy()))
    assert roc.area() == pytest.approx(auc(far, tar))
    for rate in (0.3, 0.1, 0.02):
        found = roc.tar_at(rate)
        assert found is not None
        expected = reference.tar_at_far(scores.tolist(), same.tolist(), rate)
        assert found[0] == pytest.approx(expected)
        assert float((scores[~same] >= found[1]).double().mean()) <= rate + 1e-9
    expected = {"perfect": (1.0, 0.0), "inverted": (0.0, 1.0)}.get(kind)
    if expected:
        assert (roc.area(), roc.equal_error_rate()) == expected


def test_equal_error_rate_of_known_cases():
    same = torch.tensor([True] * 4 + [False] * 4)
    # One positive below one negative: a quarter of each is wrong at the crossing.
    scores = torch.tensor([9.0, 8, 7, 3, 4, 2, 1, 0])
    assert roc_curve(scores, same).equal_error_rate() == pytest.approx(0.25)
    assert roc_curve(torch.zeros(8), same).equal_error_rate() == pytest.approx(0.5)  # all tied
    assert roc_curve(torch.zeros(8), same).area() == pytest.approx(0.5)


def test_rates_without_enough_negatives_are_refused():
    same = torch.arange(2000) < 1000
    roc = roc_curve(torch.rand(2000), same)
    assert roc.tar_at(1e-3) is not None  # 1000 negatives: one false accept is exactly 1e-3
    assert roc.tar_at(9e-4) is None
    result = verification(*make_pairs(flips=False), protocol="plain")
    assert [point.refused for point in result.tar_at_far] == [False, False, True, True, True, True]
    assert result.tar_at_far[2].negatives_needed == 1000
    assert "refused: 100 negatives, needs 1,000" in str(result)
    assert result.to_dict()["tar_at_far"][2]["tar"] is None  # NaN has no place in JSON


def test_thinned_roc_keeps_the_small_rates():
    same = torch.arange(40_000) < 20_000
    roc = roc_curve(torch.randn(40_000) + 2 * same, same)
    thin = roc.thin(300)
    assert len(thin.thresholds) <= 302
    assert thin.area() == pytest.approx(roc.area(), abs=2e-3)
    assert thin.tar_at(1e-3)[0] == pytest.approx(roc.tar_at(1e-3)[0], abs=0.02)


def test_sphereface_protocol_against_direct_loops():
    a, b, same = make_pairs(n=100)
    result = verification(a, b, same, "sphereface")
    expected = reference.sphereface_accuracies(a, b, same.tolist())
    assert result.fold_accuracies == pytest.approx(expected)
    assert result.accuracy == pytest.approx(sum(expected) / 10)


def test_protocols_differ_in_flips_center_and_threshold():
    a, b, same = make_pairs(n=300, noise=1.6)
    results = {name: verification(a, b, same, name) for name in PROTOCOLS}
    # summed and averaged flips have one direction, so only the choice of threshold differs
    assert results["insightface"].auc == pytest.approx(results["opensphere"].auc)
    assert results["opensphere"].accuracy >= results["insightface"].accuracy  # optimistic
    assert results["plain"].auc == pytest.approx(verification(a[:, 0], b[:, 0], same, "plain").auc)
    assert results["sphereface"].auc > results["plain"].auc  # twice the evidence, offset removed
    # squared distances of 0, 0.01, ...: every insightface threshold is on that grid of cosines
    steps = [(1 - t) / 0.005 for t in results["insightface"].thresholds]
    assert steps == pytest.approx([round(s) for s in steps], abs=1e-4)
    assert len(results["opensphere"].thresholds) == 1


def test_best_single_threshold_is_best():
    a, b, same = make_pairs(n=120, noise=2.0, flips=False)
    result = verification(a, b, same, "opensphere")
    scores = [reference.cosine(x, y) for x, y in zip(a, b, strict=True)]
    best = max(reference.accuracy(scores, same.tolist(), t) for t in [*scores, 2.0])
    assert result.accuracy == pytest.approx(best)
    low, high = result.interval
    assert low < result.accuracy < high


def test_perfect_folds_still_have_an_interval():
    same = torch.arange(60) % 2 == 0
    x = torch.randn(60, 8)
    result = verification(x, torch.where(same.unsqueeze(1), x, -x), same, "plain")
    assert (result.accuracy, result.eer, result.auc) == pytest.approx((1.0, 0.0, 1.0))
    assert result.interval[1] == 1.0 and 0.9 < result.interval[0] < 0.97
    inverted = verification(x, torch.where(same.unsqueeze(1), -x, x), same, "plain")
    assert (inverted.auc, inverted.eer) == pytest.approx((0.0, 1.0))
    assert inverted.accuracy <= 0.5


def test_threshold_takes_the_middle_of_all_best_intervals():
    same = torch.tensor([True, True, False, False])
    assert exact_threshold(roc_curve(torch.tensor([0.9, 0.7, 0.3, 0.1]), same)) == pytest.approx(
        0.5
    )
    # everything accepted is best when all scores of positives lie below: still a number
    assert math.isfinite(exact_threshold(roc_curve(torch.tensor([0.1, 0.2, 0.8, 0.9]), same)))


def test_pairs_by_index_equal_gathered_pairs():
    table = torch.randn(50, 2, 8)
    index = torch.randint(50, (80, 2))
    same = torch.arange(80) % 2 == 0
    fold = torch.arange(80) % 5
    whole = verification(table[index[:, 0]], table[index[:, 1]], same, folds=fold)
    by_index = verification(table, table, same, index=index, folds=fold)
    assert by_index.to_dict() == whole.to_dict()
    assert len(by_index.fold_accuracies) == 5


def test_pca_keeps_the_informative_directions():
    same = torch.arange(200) % 2 == 0
    signal = torch.randn(200, 4)
    other = torch.where(same.unsqueeze(1), signal + 0.2 * torch.randn(200, 4), torch.randn(200, 4))
    a = torch.cat([5 * signal, torch.randn(200, 60)], 1)
    b = torch.cat([5 * other, torch.randn(200, 60)], 1)
    full, reduced = (verification(a, b, same, "plain", pca=k) for k in (64, 4))
    assert reduced.auc > full.auc
    assert full.auc == pytest.approx(
        verification(a, b, same, Protocol("c", center=True)).auc, abs=1e-6
    )
    with pytest.raises(ValueError, match="pca: expected 1 to 64"):
        verification(a, b, same, "plain", pca=65)
    with pytest.raises(ValueError, match="has none"):
        verification(a, b, same, "opensphere", pca=4)


def test_result_prints_and_saves(tmp_path):
    result = verification(*make_pairs(), protocol="sphereface")
    text = str(result)
    assert "sphereface" in text and "EER" in text and "accuracy" in text
    record = json.loads(result.to_json(tmp_path / "deep" / "result.json").read_text())
    assert record["kind"] == "VerificationResult"
    assert record["accuracy"] == result.accuracy
    assert sum(record["angles"]["same"]) == 100
    assert record["roc"]["thresholds"][0] is None  # infinity


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a, b, s: (a, b, torch.ones(200, dtype=torch.bool)), r"all 200 pairs are positive"),
        (lambda a, b, s: (a, b, torch.zeros(200)), r"all 200 pairs are negative"),
        (lambda a, b, s: (a, b[:5], s), "200 features_a but 5 features_b"),
        (lambda a, b, s: (a, b[..., :3], s), "the same dimension"),
        (lambda a, b, s: (a, b, s[:7]), r"one per pair, \(200,\)"),
        (lambda a, b, s: (a.index_fill(0, torch.tensor([3]), math.nan), b, s), "features_a: row 3"),
        (lambda a, b, s: (a.unsqueeze(0), b, s), r"expected features \(n, d\)"),
    ],
)
def test_bad_pairs_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        verification(*change(*make_pairs()))


def test_bad_folds_and_names():
    a, b, same = make_pairs(n=20)
    with pytest.raises(ValueError, match="20 pairs cannot be cut into 21 folds"):
        verification(a, b, same, folds=21)
    with pytest.raises(ValueError, match="fold 1 is empty"):
        verification(a, b, same, folds=torch.tensor([0, 2] * 10))
    with pytest.raises(ValueError, match="fold 1 is empty"):  # without a table up to the largest
        verification(a, b, same, folds=torch.tensor([0, 10**17] * 10))
    with pytest.raises(ValueError, match=r"folds: expected numbers below 2\*\*63"):
        verification(a, b, same, folds=np.array([0, 2**63] * 10, dtype=np.uint64))
    with pytest.raises(ValueError, match="without fold 0 only positive"):
        verification(a, b, same, folds=(~same).long().logical_not().long())
    with pytest.raises(ValueError, match="did you mean 'sphereface'"):
        verification(a, b, same, "spherface")
    with pytest.raises(ValueError, match=r"pair 1 is \[0, 99\]"):
        verification(a, b, same, index=torch.tensor([[0, 0], [0, 99]]))


def test_all_pairs_equal_the_listed_pairs():
    x, y = torch.randn(60, 6), torch.arange(60) // 6
    i, j = torch.triu_indices(60, 60, 1)
    listed = roc_curve(torch.nn.functional.cosine_similarity(x[i], x[j]), y[i] == y[j])
    streamed = all_pairs(x, y)
    assert (streamed.positives, streamed.negatives) == (listed.positives, listed.negatives)
    assert streamed.auc == pytest.approx(listed.area(), abs=1e-5)
    assert streamed.eer == pytest.approx(listed.equal_error_rate(), abs=1e-4)
    assert streamed.tar_at_far[0].tar == pytest.approx(listed.tar_at(0.1)[0], abs=1e-9)


def test_all_pairs_with_distractors_and_across_blocks(monkeypatch):
    import sys

    people, strangers = torch.randn(30, 5), torch.randn(40, 5)
    labels, nobody = torch.arange(30) // 3, torch.full((40,), -1)
    whole = all_pairs(torch.cat([people, strangers]), torch.cat([labels, nobody]), bins=4096)
    assert whole.positives == 30
    assert whole.negatives == 30 * 29 // 2 - 30 + 30 * 40  # two strangers make no pair
    monkeypatch.setattr(sys.modules["hypersphere.evaluation.recognition.all_pairs"], "BLOCK", 7)
    blocked = all_pairs(torch.cat([people, strangers]), torch.cat([labels, nobody]), bins=4096)
    assert (blocked.auc, blocked.eer) == (whole.auc, whole.eer)
    assert blocked.negatives == whole.negatives
    across = all_pairs(people, labels, people.flip(0), labels.flip(0))
    assert across.positives == 30 * 3 and across.negatives == 30 * 27
    with pytest.raises(ValueError, match="all 30 labels are 0"):
        all_pairs(people, torch.zeros(30).long())


def test_templates_and_patches():
    frames = torch.randn(10, 4)
    index = torch.tensor([0, 1, 1, 2, 2, 2, 0, 1, 2, 2])
    means = templates(frames, index)
    for video in range(3):
        close(means[video], frames[index == video].mean(0))
    unit = templates(10 * frames, index, normalize_frames=True)
    close(unit, templates(frames, index, normalize_frames=True))
    with pytest.raises(ValueError, match="video 1 has no frame"):
        templates(frames[:2], torch.tensor([0, 2]))
    joined = concatenate_patches([frames, 100 * frames], normalize_patches=True)
    assert joined.shape == (10, 8)
    close(joined[:, :4], joined[:, 4:])
    with pytest.raises(ValueError, match=r"got \[3, 10\] rows"):
        concatenate_patches([frames, frames[:3]])
    picture = torch.arange(16.0).view(1, 1, 4, 4)
    assert crop_patch(picture, (1, 1, 2, 2), (2, 2)).flatten().tolist() == [5, 6, 9, 10]
    with pytest.raises(ValueError, match="leaves the picture 4x4"):
        crop_patch(picture, (3, 0, 2, 2), (2, 2))
