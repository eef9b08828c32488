"""Probabilities, groups, templates, quality, growing galleries, intervals of TAR; pictures."""

import math

import pytest
import torch
from scipy import stats
from torch.overrides import TorchFunctionMode

from hypersphere.evaluation import (
    calibrate_scores,
    enrollable,
    error_by_gallery_size,
    error_by_group,
    fit_thresholds,
    impostor_searches,
    open_set_identification,
    quality_by_norm,
    reliability,
    roc_curve,
    templates,
    verification,
)
from hypersphere.evaluation.recognition import impostors
from hypersphere.evaluation.recognition.impostors import impostor_pairs
from hypersphere.reports import figures

from reference.thresholds import thresholds_of_resampled_people


def pairs(n=4000):
    same = torch.rand(n) < 0.5
    return torch.where(same, 0.5, 0.1) + 0.15 * torch.randn(n), same


@pytest.mark.parametrize("method", ["logistic", "isotonic"])
def test_probabilities_are_reliable_on_other_pairs(method):
    calibration = calibrate_scores(*pairs(), method)
    scores, same = pairs()
    found = reliability(calibration(scores), same)
    # the truth: p = 1 / (1 + exp(-(s - 0.3) 0.4 / 0.15^2)) for these two normal distributions
    exact = reliability(torch.sigmoid((scores.double() - 0.3) * 0.4 / 0.15**2), same)
    assert found.error < 0.04 and found.brier < exact.brier + 0.005
    assert found.log_loss < exact.log_loss + 0.02
    order = scores.sort().indices
    assert bool((calibration(scores)[order].diff() >= -1e-12).all())
    rare = calibration(0.5, prior=0.01)
    assert float(rare) < float(calibration(0.5))
    assert float(calibration(0.5, prior=calibration.share)) == pytest.approx(
        float(calibration(0.5)), abs=1e-6
    )
    assert figures.reliability_diagram({method: found}).axes[0].lines
    assert figures.reliability_diagram(found).axes[0].lines


def test_reliability_by_hand():
    found = reliability([0.1, 0.3, 0.8, 0.9], torch.tensor([0, 1, 1, 1]), bins=2)
    # bins: (0.1, 0.3) with share 1/2, (0.8, 0.9) with share 1
    assert found.bins == [(pytest.approx(0.2), 0.5, 2), (pytest.approx(0.85), 1.0, 2)]
    assert found.error == pytest.approx((0.3 * 2 + 0.15 * 2) / 4)
    assert found.brier == pytest.approx((0.01 + 0.49 + 0.04 + 0.01) / 4, abs=1e-6)
    with pytest.raises(ValueError, match="in \\[0, 1\\]"):
        reliability([0.1, 1.3], torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="'logistic' or 'isotonic'"):
        calibrate_scores(*pairs(100), "linear")


def test_errors_by_group():
    scores, same = pairs()
    groups = ["a" if i % 4 else "b" for i in range(len(scores))]
    of_b = torch.tensor([g == "b" for g in groups])
    scores = scores + 0.2 * (of_b & ~same)  # one group has more alike strangers
    found = error_by_group(scores, same, groups, 0.3)
    by_name = {group.group: group for group in found.groups}
    for name, mine in (("a", ~of_b), ("b", of_b)):
        wrong = (scores[mine & ~same] >= 0.3).double().mean()
        assert by_name[name].false_accept == pytest.approx(float(wrong))
        low, high = by_name[name].false_accept_interval
        assert low < by_name[name].false_accept < high
        assert by_name[name].positives == int((mine & same).sum())
    assert found.false_accept_ratio > 2 > found.false_reject_ratio
    assert "largest / smallest" in str(found)
    none = error_by_group([0.9, 0.1, 0.8], torch.tensor([1, 0, 1]), ["a", "a", "b"], 0.5)
    assert math.isnan(none.groups[1].false_accept)
    assert math.isnan(none.false_accept_ratio)  # known of one group only
    alone = error_by_group(scores, same, ["a"] * len(scores), 0.3)
    assert math.isnan(alone.false_reject_ratio) and "1.00" not in str(alone).splitlines()[-1]
    with pytest.raises(ValueError, match="one per pair"):
        error_by_group(scores, same, ["a"], 0.3)


def test_templates_by_norm_and_weights():
    frames, video = 3 * torch.randn(10, 6), torch.tensor([0] * 4 + [1] * 6)
    unit = frames / frames.norm(dim=1, keepdim=True)
    for weights, share in (("norm", frames.norm(dim=1)), (torch.rand(10), None)):
        share = weights if share is None else share
        found = templates(frames, video, weights=weights)
        for v in (0, 1):
            mine = video == v
            expected = (unit[mine] * share[mine, None]).sum(0) / share[mine].sum()
            torch.testing.assert_close(found[v], expected)
    torch.testing.assert_close(
        templates(frames, video, weights=torch.ones(10)), templates(frames, video, True)
    )
    names = ["bob" if v else "ada" for v in video.tolist()]
    torch.testing.assert_close(templates(frames, names), templates(frames, video))
    for wrong, message in [
        ("length", "'norm', or a weight"),
        (torch.ones(9), r"\(10,\)"),
        (-torch.ones(10), "at least 0"),
        (torch.zeros(10), "video 0 are all 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            templates(frames, video, weights=wrong)


def test_quality_by_norm_finds_the_bad_pictures():
    labels = torch.arange(40).repeat_interleave(10)
    strength = torch.rand(400, 1)
    features = strength * 4 * torch.nn.functional.normalize(torch.randn(40, 32))[labels]
    features = features + 0.25 * torch.randn(400, 32)
    found = quality_by_norm(features, labels)
    assert found.correlation > 0.5
    assert found.correlation == pytest.approx(
        stats.spearmanr(found.norms, found.agreement).statistic, abs=1e-6
    )
    assert found.errors[0] > found.errors[3] > found.errors[-1] == 0
    assert len(figures.quality_against_norm(found).axes[0].lines) == 1
    good = enrollable(features, float(found.norms.median()))
    assert int(good.sum()) in (200, 201)
    random = quality_by_norm(features, labels, quality=torch.rand(400))
    assert abs(random.correlation) < 0.2
    with pytest.raises(ValueError, match="two people with two"):
        quality_by_norm(features[:5], torch.arange(5))


def test_fewer_known_people_are_found_in_a_larger_gallery():
    people = torch.randn(60, 24)
    probes = torch.cat([people + 1.3 * torch.randn(60, 24), torch.randn(500, 24)])
    ids = torch.arange(560)
    found = error_by_gallery_size(
        probes, people, ids, torch.arange(60), far=0.02, sizes=(5, 20, 60)
    )
    small, _, large = found.points
    assert small.threshold < large.threshold and small.found > large.found
    whole = open_set_identification(
        probes, people, ids, torch.arange(60), fars=(0.018,)
    )  # 9 of 500
    assert large.found == pytest.approx(whole.dir_at_far[0].dir)
    assert large.threshold == pytest.approx(whole.dir_at_far[0].threshold)
    assert large.rank_1 == pytest.approx(whole.rank_accuracy)
    assert len(figures.error_by_size({"x": found}).axes[0].lines) == 2
    with pytest.raises(ValueError, match=r"1\.\.60"):
        error_by_gallery_size(probes, people, ids, torch.arange(60), sizes=(61,))


def test_galleries_without_known_people_do_not_count():
    """One of ten made the whole point NaN."""
    people = torch.eye(100)
    probes = torch.cat([people[:2], torch.randn(200, 100)])
    ids = torch.cat([torch.arange(2), torch.arange(1000, 1200)])
    found = error_by_gallery_size(probes, people, ids, torch.arange(100), sizes=(10, 50, 100))
    for point, draws in zip(found.points, (10, 10, 1), strict=True):
        assert point.found == point.rank_1 == 1.0
        assert 0 < point.galleries <= draws
    assert found.points[0].galleries < 10 and found.points[2].galleries == 1
    assert "galleries" in str(found).splitlines()[0]
    lonely = error_by_gallery_size(probes, people, ids, torch.arange(100), sizes=(1,), seed=0)
    assert lonely.points[0].galleries == 0 and math.isnan(lonely.points[0].found)


def test_the_interval_of_tar_is_that_of_resampling():
    scores, same = pairs(1200)
    roc = roc_curve(scores, same)
    tar, _ = roc.tar_at(0.02)
    low, high = roc.tar_interval(0.02)
    assert low < tar < high
    positives, negatives = scores[same], scores[~same]
    drawn = []
    for seed in range(400):
        g = torch.Generator().manual_seed(seed)
        p = positives[torch.randint(len(positives), (len(positives),), generator=g)]
        n = negatives[torch.randint(len(negatives), (len(negatives),), generator=g)]
        drawn.append(roc_curve(torch.cat([p, n]), torch.arange(1200) < len(p)).tar_at(0.02)[0])
    expected = torch.tensor(drawn).quantile(torch.tensor([0.025, 0.975])).tolist()
    assert (low, high) == (
        pytest.approx(expected[0], abs=0.03),
        pytest.approx(expected[1], abs=0.03),
    )
    assert roc.tar_interval(1e-4) is None
    a = torch.randn(400, 8)
    b = torch.where(torch.arange(400)[:, None] % 2 == 0, a + 0.5 * torch.randn(400, 8), -a)
    result = verification(a, b, torch.arange(400) % 2 == 0, protocol="plain", fars=(0.1, 1e-3))
    point, refused = result.tar_at_far
    assert point.low <= point.tar <= point.high and math.isnan(refused.low)
    assert "95 %" in str(result).splitlines()[-2]


@pytest.mark.parametrize(("positives", "passed"), [(60, 0), (150, 150)])
def test_the_interval_of_tar_has_a_width_at_its_ends(positives, passed):
    """None of 60 and all of 150 gave "0.00 to 0.00" and "100.00 to 100.00"."""
    same = torch.arange(positives + 200) < positives
    scores = torch.where(same, 5.0 if passed else -5.0, 0.0) + 0.1 * torch.randn(len(same))
    roc = roc_curve(scores, same)
    assert roc.tar_at(0.02)[0] == passed / positives
    # Wilson: at none, from 0 to z^2 / (n + z^2)
    width = 3.8415 / (positives + 3.8415)
    expected = (1 - width, 1.0) if passed else (0.0, width)
    assert roc.tar_interval(0.02) == pytest.approx(expected, abs=1e-4)


def test_searches_of_unseen_people():
    labels = torch.arange(20).repeat_interleave(5)
    features = torch.nn.functional.normalize(torch.randn(20, 16))[labels] + 0.2 * torch.randn(
        100, 16
    )
    table = impostor_searches(features, labels)
    assert table.shape == (100, 19)
    unit = torch.nn.functional.normalize(features)
    means = torch.stack([torch.nn.functional.normalize(unit[labels == i].mean(0), dim=0)
                         for i in range(20)])  # fmt: skip
    torch.testing.assert_close(table[7], (unit[7] @ means.T)[labels[7] != torch.arange(20)])
    found = fit_thresholds(features, labels, fars=(0.1, 0.02, 1e-5))
    assert [t.far for t in found.thresholds] == [0.1, 0.02] and list(found.refused) == ["1e-05"]
    assert found.thresholds[0].people == 20 and found.thresholds[0].negatives == 4750
    search = fit_thresholds(features, labels, fars=(0.1,), gallery_size=10).thresholds[0]
    assert search.negatives == 100 and search.value > found.thresholds[0].value
    assert "refused at 0.001 %" in str(found)


def test_searches_of_very_many_people_take_the_memory_of_their_scores(monkeypatch):
    labels = torch.arange(300).repeat(2)
    features = torch.randn(600, 8)
    whole = impostor_searches(features, labels)
    assert whole.shape == (600, 299)
    monkeypatch.setattr(impostors, "MOST_PEOPLE", 40)
    monkeypatch.setattr(impostors, "ROWS_AT_ONCE", 64)
    sizes = []

    class Watch(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            sizes.append(out.numel() if isinstance(out, torch.Tensor) else 0)
            return out

    with Watch():
        table = impostor_searches(features, labels)
    assert table.shape == (600, 39) and max(sizes) <= table.numel()
    for row in range(600):  # some of the scores of the whole table, none of the own person
        nearest = (table[row, :, None] - whole[row]).abs().amin(1)
        assert float(nearest.max()) < 1e-6


def test_the_interval_of_a_pair_is_over_all_pairs_of_resampled_people():
    """Only one of the two people of a pair was drawn, and pictures were compared with means."""
    labels = torch.arange(15).repeat_interleave(4)
    means = torch.nn.functional.normalize(torch.randn(15, 6))
    unit = torch.nn.functional.normalize(means[labels] + 0.3 * torch.randn(60, 6))
    found = fit_thresholds(unit, labels, fars=(0.1,)).thresholds[0]
    assert found.negatives == 15 * 14 // 2 * 16 and found.people == 15
    drawn = thresholds_of_resampled_people((unit @ unit.T).tolist(), labels.tolist(), 0.1, 300, 0)
    low, high = drawn[7], drawn[-8]
    assert found.low < low + 0.03 and found.high > high - 0.03
    assert found.high - found.low < 1.6 * (high - low)
    # The threshold is that of the pairs themselves.
    scores, people = impostor_pairs(unit, labels)
    assert int((scores >= found.value).sum()) == 167  # floor(1681 far) - 1
    assert bool((people[:, 0] != people[:, 1]).all())


def test_very_many_pairs_are_drawn_evenly(monkeypatch):
    monkeypatch.setattr(impostors, "MOST_PAIRS", 2000)
    labels = torch.arange(40).repeat_interleave(3)
    features = torch.randn(120, 8)
    scores, people = impostor_pairs(features, labels)
    assert 1300 < len(scores) <= 2000 and len(people.unique()) == 40
    monkeypatch.undo()
    assert abs(float(scores.mean() - impostor_pairs(features, labels)[0].mean())) < 0.05
    with pytest.raises(ValueError, match="impostors need several"):
        impostor_pairs(features, torch.zeros(120, dtype=torch.long))
