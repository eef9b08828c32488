"""Thresholds at a false-accept rate: pairs, search among N, intervals, refusals, galleries."""

import json
import math
import warnings

import numpy as np
import pytest
import torch

from hypersphere.cli import main
from hypersphere.evaluation import (
    Gallery,
    NoThreshold,
    Threshold,
    fit_threshold,
    open_set_identification,
)
from hypersphere.evaluation.recognition.roc import roc_curve

from reference.thresholds import least_threshold, rate_of_search


@pytest.mark.parametrize(("columns", "size"), [(1, 1), (5, 5), (5, 2), (5, 1), (3, 8), (1, 4)])
@pytest.mark.parametrize("far", [0.05, 0.2, 0.35])
def test_is_the_least_threshold_by_enumeration(columns, size, far):
    # few distinct scores: many ties
    table = (torch.randn(40, columns, dtype=torch.float64) * 4).round() / 4
    if far == 0.05 and size > columns:
        far = 0.12  # 40 impostors are too few for less
    found = fit_threshold(table, far, size)
    expected = least_threshold(table.tolist(), size, far)
    assert found.value == math.nextafter(expected, math.inf)
    own_rate = far if size <= columns else 1 - (1 - far) ** (columns / size)
    share = rate_of_search(table.tolist(), min(size, columns), found.value)
    assert float(share) <= own_rate + 1e-9
    assert found.low <= found.value <= found.high or math.isclose(found.low, found.high)


@pytest.mark.parametrize("far", [0.01, 0.05, 0.1, 0.3])
def test_the_rate_to_expect_is_at_most_the_one_asked_for(far):
    """Uniform scores: the true rate of a threshold t is 1 - t; with n = 1/far it was 2 far."""
    few = round(1 / far - 1)
    for n in (math.ceil(1 / far - 1 - 1e-9), 3 * few + few // 2):
        g = torch.Generator().manual_seed(n)
        draws = torch.rand(800, n, dtype=torch.float64, generator=g)
        true = torch.tensor([1 - fit_threshold(row, far).value for row in draws])
        wanted = math.floor((n + 1) * far + 1e-9) / (n + 1)
        error = float(true.std()) / math.sqrt(len(true))
        assert float(true.mean()) == pytest.approx(wanted, abs=4 * error)
        assert float(true.mean()) <= far + 4 * error


@pytest.mark.parametrize(("n", "far"), [(100, 0.01), (101, 0.02), (350, 0.01), (199, 0.05)])
def test_measured_rates_and_fitted_thresholds_differ_as_documented(n, far):
    """Note [Measured rates]: floor(n f) impostors pass one, floor((n + 1) f) - 1 the other."""
    angles = torch.linspace(0.2, 1.4, n)
    unknown = torch.stack([angles.cos(), angles.sin(), torch.zeros(n)], 1)
    scores = torch.nn.functional.normalize(unknown)[:, 0]
    known, ids = torch.eye(3)[:1], [0, *range(1, n + 1)]
    result = open_set_identification(torch.cat([known, unknown]), known, ids, [0], fars=[far])
    found = result.dir_at_far[0]
    same = torch.arange(n + 1) == 0
    paired = roc_curve(torch.cat([torch.ones(1), scores]), same).tar_at(far)
    fitted = fit_threshold(scores, far).value
    measured = math.floor(n * far + 1e-9)
    passing = [
        int((scores > bar + 1e-6).sum()) for bar in (found.threshold, paired[1] - 1e-5, fitted)
    ]
    assert passing == [measured, measured, math.floor((n + 1) * far + 1e-9) - 1]
    to_expect = (measured + 1) / (n + 1)
    if (n, far) == (199, 0.05):
        assert passing[2] == measured and to_expect == far
    else:
        assert passing[2] == measured - 1 and to_expect > far


@pytest.mark.parametrize(("width", "size"), [(6, 6), (6, 2), (3, 6), (1, 6)])
def test_the_rate_to_expect_of_a_search_is_at_most_the_one_asked_for(width, size):
    far, rates = 0.2, []
    rows = math.ceil(1 / (1 - (1 - far) ** min(1, width / size)) - 1)
    for seed in range(400):
        g = torch.Generator().manual_seed(seed)
        table = torch.rand(rows, width, dtype=torch.float64, generator=g)
        rates.append(1 - fit_threshold(table, far, size).value ** size)
    found = torch.tensor(rates)
    assert float(found.mean()) <= far * 1.02 + 2 * float(found.std()) / 20


@pytest.mark.parametrize("n", [9, 99, 299, 2999, 999_999])
def test_rounding_does_not_cost_an_impostor(n):
    """(n + 1) far is a whole number that floating point may miss from below."""
    scores = torch.rand(n, dtype=torch.float64)
    for k in (1, 3, 7):
        far = k / (n + 1)
        assert int((scores >= fit_threshold(scores, far).value).sum()) == k - 1


def test_scores_in_any_form_and_what_is_kept():
    scores = torch.randn(500, requires_grad=True)
    same = {
        fit_threshold(form, 0.02).value
        for form in (scores, scores.detach().numpy(), scores.tolist(), scores.detach()[:, None])
    }
    assert len(same) == 1
    found = fit_threshold(scores, 0.02)
    assert (found.far, found.negatives, found.gallery_size, found.people) == (0.02, 500, 1, None)
    assert float(found) == found.value
    assert Threshold.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    assert "2 %" in str(found) and "500 impostors" in str(found)
    # at most the allowed number passes, with score >= threshold
    assert int((scores >= found.value).sum()) == 9  # of 501 * 0.02, one is for the next person


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_threshold_keeps_its_rate_in_the_type_of_the_scores(dtype, sign):
    scores = (sign * torch.linspace(0.1, 0.9, 1000)).to(dtype)
    for columns in (1, 4):
        table = scores.view(-1, columns).squeeze(1)
        found = fit_threshold(table, far=0.02)
        assert int((table >= found.value).sum()) <= 0.02 * 1000


def test_a_search_among_n_keeps_its_rate_on_fresh_people():
    """FPIR at N from single scores, from whole searches, and from searches among more people."""
    single, more = torch.randn(60_000), torch.randn(4_000, 60)
    fresh = torch.randn(20_000, 20).amax(1)
    for found in (
        fit_threshold(single, 0.02, 20),
        fit_threshold(more[:, :20], 0.02, 20),
        fit_threshold(more, 0.02, 20),
        fit_threshold(more[:, :20].amax(1), 0.02, 20, searched=20),
        fit_threshold(more[:, :10].amax(1), 0.02, 20, searched=10),
    ):
        assert 0.012 < float((fresh >= found.value).double().mean()) < 0.028
        assert found.gallery_size == 20
    alone = fit_threshold(single, 0.02)
    assert float((fresh >= alone.value).double().mean()) > 0.25  # the rate grows with N
    assert alone.far_at(20) == pytest.approx(1 - 0.98**20)


@pytest.mark.parametrize("times", [1, 2, 4, 10])
def test_the_interval_covers_the_true_quantile(times):
    """95 % intervals of a normal quantile with 1/far, 2/far ... impostors: at least 90 % of them.

    A bootstrap covers the truth in 63 % with 1/far: it knows no score above the highest.
    """
    truth, far = 1.644854, 0.05
    inside = 0
    for seed in range(300):
        scores = torch.randn(20 * times, generator=torch.Generator().manual_seed(seed))
        found = fit_threshold(scores, far, seed=seed)
        inside += found.low <= truth <= found.high
        assert math.isinf(found.high) == (times < 4)  # (1 - far)^n > 2.5 %
    assert 0.93 * 300 <= inside <= 300


@pytest.mark.parametrize("times", [2, 10])
def test_the_interval_covers_with_several_pictures_of_each_person(times):
    truth, far, inside = 1.644854, 0.05, 0
    for seed in range(40):
        g = torch.Generator().manual_seed(seed)
        people = torch.arange(4 * times).repeat_interleave(5)
        scores = torch.randn(4 * times, generator=g)[people] + torch.randn(20 * times, generator=g)
        found = fit_threshold(scores / math.sqrt(2), far, groups=people)
        inside += found.low <= truth <= found.high
    assert inside >= 0.9 * 40


def test_an_interval_without_an_end_is_said_and_kept(tmp_path):
    found = fit_threshold(torch.randn(100), 0.01)
    assert math.isinf(found.high) and "or more)" in str(found)
    assert Threshold.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    gallery, _ = enrolled()
    gallery.calibrate(torch.randn(120, 64), range(120), far=0.01)
    assert Gallery.load(gallery.save(tmp_path)).threshold == gallery.threshold
    few = fit_threshold(torch.randn(20), 0.1, groups=torch.arange(20) // 2)
    assert math.isinf(few.high) and few.people == 10
    assert Threshold(0.5, 0.4, -math.inf, 0.7, 3).interval() == "at most 0.700000"
    assert Threshold(0.5, 0.4, -math.inf, math.inf, 3).interval() == "any"
    with pytest.raises(ValueError, match=r"groups: expected \(P,\), or \(P, 2\)"):
        fit_threshold(torch.randn(100), 0.1, groups=torch.zeros(100, 3))


def test_pictures_of_one_person_do_not_count_as_many_people():
    people = torch.randn(60)
    scores = people.repeat_interleave(20) + 0.01 * torch.randn(1200)
    each = fit_threshold(scores, 0.05)
    grouped = fit_threshold(scores, 0.05, groups=torch.arange(60).repeat_interleave(20))
    assert grouped.value == each.value and grouped.people == 60
    assert grouped.high - grouped.low > 2 * (each.high - each.low)
    by_resampling = fit_threshold(scores, 0.05, groups=range(1200))  # every row is a person
    assert by_resampling.low == pytest.approx(each.low, abs=0.1)
    assert by_resampling.high == pytest.approx(each.high, abs=0.1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.randn(98), 0.01), "rate of 0.01 needs at least 99 impostor scores; got 98"),
        ((torch.randn(2000), 0.01, 30), r"search among 30 people needs at least 2,98\d impostor"),
        ((torch.randn(50, 30), 0.01, 30), "needs at least 99 searches by unknown people; got 50"),
        ((torch.randn(5), 0.0), "between 0 and 1"),
        ((torch.randn(5), 1.0), "between 0 and 1"),
        ((torch.tensor([1.0, math.nan]), 0.5), "1 of 2 are NaN"),
        ((torch.randn(2, 2, 2), 0.5), "expected scores"),
        ((torch.empty(0), 0.5), "expected scores"),
        ((torch.arange(5), 0.5), "floating point"),
        ((torch.randn(5), 0.5, 0), "gallery_size: expected a number of people"),
    ],
)
def test_what_cannot_be_said_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        fit_threshold(*arguments)
    with pytest.raises(ValueError, match="the impostors are 2 people"):
        fit_threshold(torch.randn(100), 0.1, groups=torch.arange(100) % 2)


def enrolled(people=30, dim=64, each=1):
    gallery = Gallery()
    rows = torch.randn(people, dim).repeat_interleave(each, 0)
    rows = rows + 0.3 * torch.randn_like(rows)
    gallery.enroll_many([f"p{i // each}" for i in range(len(rows))], rows)
    return gallery, rows


def test_a_gallery_without_threshold_says_how_to_get_one():
    gallery, rows = enrolled()
    with pytest.warns(NoThreshold, match=r"calibrate\(samples, labels, far=0.01\)"):
        assert gallery.identify(torch.randn(64))  # candidates, not a decision
    with pytest.warns(NoThreshold):
        assert gallery.verify("p0", rows[0])[0] is False
    assert gallery.threshold is None


@pytest.mark.parametrize("each", [1, 3])
def test_a_calibrated_gallery_names_no_unknown_people(tmp_path, each):
    gallery, rows = enrolled(each=each)
    found = gallery.calibrate(torch.randn(1500, 64), np.arange(1500), far=0.01)
    assert (found.gallery_size, found.negatives, found.people) == (30, 1500, 1500)
    for again in (gallery, Gallery.load(gallery.save(tmp_path))):
        assert again.threshold == found
        named = sum(bool(m) for m in again.identify_many(torch.randn(3000, 64)))
        assert named / 3000 <= 0.02
        assert all(m and m[0].score >= found.value for m in again.identify_many(rows))
        assert again.decision.pair.gallery_size == 1 and again.decision.pair.value < found.value
        assert again.verify("p1", rows[each])[0]
        stricter = again.decision.at(0.002, 30, 30 * each)
        assert stricter.value > found.value
        assert again.decision.at(0.01, 30, 30 * each) == found
        with pytest.raises(ValueError, match="needs at least 9,999"):
            again.decision.at(1e-4, 30, 30 * each)


def test_people_who_are_enrolled_are_left_out():
    gallery, rows = enrolled(people=40, each=3)
    labels = [f"p{i // 3}" for i in range(120)]
    with pytest.raises(ValueError, match=r"40 of 40 people .* enrolled \(p0, p1, p2, ...\)"):
        gallery.calibrate(rows, labels, far=0.05)
    samples = torch.cat([rows, torch.randn(60, 64)])
    with pytest.warns(UserWarning, match="40 of 100 people .* are left out"):
        found = gallery.calibrate(samples, labels + list(range(60)), far=0.05)
    assert found == gallery.calibrate(samples[120:], range(60), far=0.05)
    assert found.gallery_size == 40 and found.people == found.negatives == 60


def test_what_is_enrolled_already_is_left_out(tmp_path):
    gallery, rows = enrolled(people=5, each=2)
    names = gallery.names
    assert gallery.enroll_many(names, rows) == 0 and len(gallery) == 10
    assert gallery.enroll_many(["p0", "p9", "p9"], rows[:1].expand(3, -1)) == 1  # of p9, once
    assert len(gallery) == 11 and gallery.people[-1] == "p9"
    modes = {path.stat().st_mode for path in gallery.save(tmp_path).glob("[!.]*")}
    assert len(modes) == 1  # as the umask says, all files


def test_a_gallery_that_outgrows_its_threshold_warns(tmp_path):
    gallery, _ = enrolled()
    gallery.calibrate(torch.randn(500, 64), range(500), far=0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gallery.identify(torch.randn(64))
    gallery.enroll_many([f"q{i}" for i in range(30)], torch.randn(30, 64))
    with pytest.warns(
        UserWarning, match="30 features of 30 people and the gallery has 60 of 60.*0.02"
    ):
        gallery.identify(torch.randn(64))


def test_more_features_of_the_same_people_are_told(tmp_path):
    """1 % of the unknown were named; with nine more features per person 8.6 %, and no warning."""
    gallery, rows = enrolled()
    gallery.calibrate(torch.randn(1500, 64), range(1500), far=0.01)
    gallery.enroll_many(gallery.people * 9, rows.repeat(9, 1) + 0.9 * torch.randn(270, 64))
    said = "fitted for 30 features of 30 people and the gallery has 300 of 30: .*0.0[89]"
    for again in (gallery, Gallery.load(gallery.save(tmp_path))):
        with pytest.warns(UserWarning, match=said):
            again.identify(torch.randn(64))
        with pytest.warns(UserWarning, match=said):  # the best of ten features of one person
            again.verify("p0", torch.randn(64))
        stricter = again.decision.at(0.02, 30, 300)  # knows that there are ten times as many
        named = again.identify_many(torch.randn(3000, 64), threshold=stricter.value)
        assert stricter.gallery_size == 30 and sum(map(bool, named)) / 3000 <= 0.03
    # A file that does not say how many features there were warns of people only.
    record = json.loads((tmp_path / "gallery.json").read_text())
    for key in ("rows", "owners", "pairs"):
        del record["calibration"][key]
    del record["decision_hash"]
    (tmp_path / "gallery.json").write_text(json.dumps(record))
    old = Gallery.load(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        old.identify(torch.randn(64))
    assert old.decision.at(0.02, 30, 300).people is None and old.decision.pair_at(0.02) is None


def test_another_rate_rests_on_the_same_people(tmp_path):
    """The interval at another rate was that of independent samples."""
    gallery, _ = enrolled()
    people = torch.arange(40).repeat_interleave(25)
    samples = torch.randn(40, 64)[people] + 0.3 * torch.randn(1000, 64)
    found = gallery.calibrate(samples, people, far=0.05)
    assert found.people == 40
    for again in (gallery, Gallery.load(gallery.save(tmp_path))):
        assert again.decision.at(0.05, 30, 30) == found
        assert again.decision.pair_at(0.05) == gallery.decision.pair
        other = Gallery.load(tmp_path)
        wanted = other.calibrate(samples, people, far=0.1)
        assert again.decision.at(0.1, 30, 30) == wanted
        assert again.decision.pair_at(0.1) == other.decision.pair


def test_scores_that_were_not_kept_are_lower(monkeypatch):
    from hypersphere.evaluation.gallery import kept_scores

    monkeypatch.setattr(kept_scores, "MOST_KEPT", 300)
    gallery, _ = enrolled()
    found = gallery.calibrate(torch.randn(1000, 64), range(1000), far=0.05)
    assert gallery.decision.at(0.05, 30, 30).value == found.value
    with pytest.raises(ValueError, match="only the 300 highest of 1,000 scores were kept"):
        gallery.decision.at(0.4, 30, 30)


def test_another_writer_does_not_undo_a_calibration(tmp_path):
    gallery, _ = enrolled()
    gallery.save(tmp_path)
    other = Gallery.load(tmp_path)
    threshold = gallery.calibrate(torch.randn(500, 64), range(500), far=0.01)
    gallery.save(tmp_path)
    other.enroll("late", torch.randn(64))
    other.save(tmp_path)
    again = Gallery.load(tmp_path)
    assert again.threshold == threshold and "late" in again


@pytest.mark.parametrize(
    "change",
    [
        {"searches": 10**12},
        {"impostors": ["x"]},
        {"impostors": 3},
        {"search": {"value": "high"}},
        {"search": None},
        {"people": -1},
        {"rows": "many"},
        {"owners": [0]},
        {"pairs": {"scores": [0.1], "owners": [999], "total": 1}},
        {"pair": 7},
    ],
    ids=str,
)
def test_a_forged_calibration_is_refused(tmp_path, change):
    gallery, _ = enrolled()
    gallery.calibrate(torch.randn(200, 64), range(200), far=0.05)
    gallery.save(tmp_path)
    record = json.loads((tmp_path / "gallery.json").read_text())
    record["calibration"] |= change
    (tmp_path / "gallery.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match=r"gallery\.json: not a gallery"):
        Gallery.load(tmp_path)


def test_the_command_names_no_unknown_people(tmp_path, capsys):
    """An engineer was told a name for 10 of 10 strangers, with exit code 0."""
    files = {}
    for part, count in (("known", 30), ("fit", 1200), ("strangers", 500)):
        rows = torch.randn(count, 64).numpy()
        names = np.array([f"{part} {i}" for i in range(count)])
        files[part] = str(tmp_path / f"{part}.npz")
        np.savez(files[part], features=rows, names=names)
    place = str(tmp_path / "gallery")

    def gallery(*words):
        code = main(["gallery", words[0], place, *map(str, words[1:])])
        out, err = capsys.readouterr()
        return code, out, err

    assert gallery("enroll", "--features", files["known"])[0] == 0
    code, out, err = gallery("identify", "--features", files["strangers"], "--top", 1)
    assert code == 3 and "nearest: known" in out
    assert "no threshold" in err and "hypersphere gallery calibrate" in err
    code, out, err = gallery("verify", "known 3", "--features", files["known"])
    assert code == 3 and "yes" not in out
    code, _, err = gallery("identify", "--features", files["strangers"], "--far", 0.01)
    assert code == 1 and "a threshold needs unknown people" in err
    code, _, err = gallery("calibrate", "--features", files["known"], "--far", 0.2)
    assert code == 1 and "30 of 30 people to calibrate with are enrolled (known 0, " in err
    code, out, err = gallery("calibrate", "--features", files["fit"], "--far", 0.01)
    assert (code, err) == (0, "") and "search among 30 people" in out and "1,200" in out

    def named(*words):
        answers = json.loads(gallery("identify", "--json", *words)[1])
        assert all(answer["decided"] for answer in answers)
        return sum(bool(answer["matches"]) for answer in answers)

    assert named("--features", files["known"]) == 30
    few, more = (named("--features", files["strangers"], *far) for far in ([], ["--far", 0.2]))
    assert few <= 10 and 50 < more < 150
    code, _, err = gallery("identify", "--features", files["known"], "--far", 1e-5)
    assert code == 1 and "needs at least 99,999" in err
    with pytest.raises(SystemExit):
        gallery("identify", "--features", files["known"], "--far", "1%")
    assert "'1%' is no number: give a share, 0.01" in capsys.readouterr().err
    both = gallery("identify", "--features", files["known"], "--far", 0.1, "--threshold", 0.5)
    assert both[0] == 1 and "give one" in both[2]
