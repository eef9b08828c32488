"""Ranks, open-set rates, retrieval and the searches behind them, against loops and known cases."""

import math
import sys

import pytest
import torch
from torch.nn.functional import normalize

from hypersphere.evaluation import (
    SearchIndex,
    divide,
    faiss_search,
    identification,
    open_set_identification,
    retrieval,
    search,
)
from tolerances import close

from reference import evaluation as reference


def people(count=8, each=3, dim=12, noise=0.5):
    centers = torch.randn(count, dim)
    ids = torch.arange(count).repeat_interleave(each)
    return centers[ids] + noise * torch.randn(count * each, dim), ids


@pytest.mark.parametrize(
    ("n", "rows", "k"),
    [(1, 1, 1), (3, 1000, 5), (1, 70_001, 10), (300, 5003, 7), (2, 65, 65), (1100, 2000, 1)],
)
def test_search_equals_sorting_all_scores(n, rows, k):
    q, g = torch.randn(n, 16), torch.randn(rows, 16)
    scores, places = search(q, g, k)
    expected = (q @ g.T).topk(k)
    close(scores, expected.values, scale=3)
    close((q @ g.T).gather(1, places), expected.values, scale=3)


@pytest.mark.parametrize("count", [1, 3, 8])
@pytest.mark.parametrize("form", sys.modules[search.__module__].FORMS)
def test_forms_of_the_product_of_few_queries(monkeypatch, form, count):
    """Whichever is fastest on this machine, the answer is the same."""
    module, calls = sys.modules[search.__module__], []
    monkeypatch.setattr(module, "FORMS", [lambda *tensors: (calls.append(1), form(*tensors))])
    monkeypatch.setattr(module, "_found", {})
    for dtype in (torch.float32, torch.float64):
        q, g = torch.randn(count, 12, dtype=dtype), torch.randn(90_000, 12, dtype=dtype)
        scores, places = search(q, g, 5)
        expected = (q @ g.T).topk(5)
        close(scores, expected.values, scale=3)
        assert [set(row) for row in places.tolist()] == [set(r) for r in expected.indices.tolist()]
    assert len(calls) > 8  # measured and used


def test_search_of_rising_scores_keeps_replacing():
    # Each block beats the last one: the case that the pruning cannot skip.
    g = torch.linspace(-1, 1, 200_000).unsqueeze(1)
    rows = search(torch.ones(1, 1), g, 3)[1]
    assert rows.tolist() == [[199_999, 199_998, 199_997]]
    assert search(torch.ones(1, 1), g.double().float().neg(), 1)[1].item() == 0
    assert search(torch.ones(2, 1).double(), g.double(), 1)[1].tolist() == [[199_999]] * 2


def test_screened_search_is_exact():
    g = normalize(torch.randn(140_000, 24), dim=1)
    g[77_777] = g[5]  # a double
    g[9] = 0
    index = SearchIndex(g)
    q = normalize(torch.randn(6, 24), dim=1)
    q[0] = g[5]
    for k in (1, 10):
        scores, rows = index.search(q, k)
        expected = search(q, g, k)
        close(scores, expected[0])
        close((q @ g.T).gather(1, rows), scores)
    assert set(index.search(q, 2)[1][0].tolist()) == {5, 77_777}
    # nothing stands out when all rows are one: still right, without a list of all rows
    same = SearchIndex(torch.ones(140_000, 4))
    close(same.search(torch.ones(1, 4), 2)[0], torch.full((1, 2), 4.0))


def test_faiss_gives_the_same_answer():
    pytest.importorskip("faiss", reason="needs the extra search")
    q, g = torch.randn(5, 8), torch.randn(500, 8)
    assert torch.equal(faiss_search(q, g, 4)[1], search(q, g, 4)[1])


def test_search_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match="one dimension"):
        search(torch.ones(1, 2), torch.ones(3, 4))
    with pytest.raises(ValueError, match="k: expected 1 to 3"):
        search(torch.ones(1, 2), torch.ones(3, 2), 4)
    with pytest.raises(ValueError, match="use one type"):
        search(torch.ones(1, 2).double(), torch.ones(3, 2))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("n", "place"), [(1, 17_000), (1, 0), (300, 19_999)])
def test_search_refuses_rows_that_are_not_finite(n, place, value):
    """As everything else that takes features does; such a row hid its whole block before."""
    q, g = torch.randn(n, 16), torch.randn(20_000, 16)
    expected = search(q, g, 3)
    bad = g.clone()
    bad[place] = value
    with pytest.raises(ValueError, match=rf"gallery: row {place} has NaN or infinite values"):
        search(q, bad, 3)
    query = q.clone()
    query[-1, 3] = value
    with pytest.raises(ValueError, match=rf"queries: row {n - 1} has NaN or infinite values"):
        search(query, g, 3)
    assert torch.equal(search(q, g, 3)[1], expected[1])


def test_every_form_of_the_search_refuses_rows_that_are_not_finite():
    g = normalize(torch.randn(140_000, 8), dim=1)
    index, bad = SearchIndex(g), g[:2].clone()
    bad[1, 0] = math.nan
    with pytest.raises(ValueError, match="queries: row 1 has NaN"):
        index.search(bad, 3)
    pytest.importorskip("faiss", reason="needs the extra search")
    for q, rows in ((bad, g[:9]), (g[:2], bad)):
        with pytest.raises(ValueError, match="row 1 has NaN"):
            faiss_search(q, rows, 2)


def test_products_that_overflow_are_no_matches_and_hide_none():
    # 1e38 (1e38 - 1e38) and -1e38 1e38: NaN and -inf, though every number is finite
    g = torch.zeros(20_000, 2)
    g[:, 0] = torch.linspace(-1e-38, 1e-38, 20_000)
    g[17_000] = torch.tensor([1e38, -1e38])
    g[5] = torch.tensor([-1e38, -1e38])
    q = torch.full((1, 2), 1e38)
    assert search(q, g, 2)[1].tolist() == [[19_999, 19_998]]
    scores, rows = search(q, g[[17_000, 5, 19_999]], 3)
    assert rows.tolist() == [[2, -1, -1]] and scores[0, 1:].tolist() == [-math.inf] * 2
    # 1e76 is inf, and which products overflow depends on the order of the sums.
    g[9] = torch.tensor([1e38, 0.0])
    assert search(q, g, 2)[1].tolist() == [[19_999, 19_998]]


def test_an_index_finds_what_the_search_finds_when_products_overflow(monkeypatch):
    import hypersphere.evaluation.recognition.search_index as module

    monkeypatch.setattr(module, "_products_are_exact", lambda: True)
    g = normalize(torch.randn(140_000, 8), dim=1)
    q = g[[7, 90_000]].clone()
    g[17_000], g[5], q[1] = 1e38, -1e38, 1e38
    scores, rows = module.SearchIndex(g).search(q, 3)
    expected = search(q, g, 3)
    assert rows.tolist() == expected[1].tolist()
    torch.testing.assert_close(scores, expected[0])


def test_ranks_against_loops_as_distractors_grow(monkeypatch):
    monkeypatch.setattr(
        sys.modules["hypersphere.evaluation.recognition.identification"], "BLOCK", 13
    )
    gallery, gallery_ids = people(each=2)
    probes, probe_ids = gallery + 0.8 * torch.randn_like(gallery), gallery_ids
    strangers = torch.randn(40, 12)
    sizes = [0, 5, 40]
    result = identification(
        probes, gallery, probe_ids, gallery_ids, strangers, ranks=(1, 2, 5), sizes=sizes
    )
    for i, size in enumerate(sizes):
        places = []
        for p, person in zip(probes, probe_ids, strict=True):
            mates = [g for g, other in zip(gallery, gallery_ids, strict=True) if other == person]
            others = [g for g, other in zip(gallery, gallery_ids, strict=True) if other != person]
            places.append(reference.rank(p, mates, others + list(strangers[:size])))
        expected = [sum(r <= k for r in places) / len(places) for k in (1, 2, 5)]
        assert result.accuracy[i] == pytest.approx(expected)
    assert all(a[0] >= b[0] for a, b in zip(result.accuracy, result.accuracy[1:], strict=False))
    assert result.cmc[2] == sorted(result.cmc[2])
    assert "distractors" in str(result)


def test_megaface_counts_each_mate_alone():
    gallery, ids = people(count=4, each=3)
    probes = gallery + 0.6 * torch.randn_like(gallery)
    strangers = torch.randn(30, 12)
    result = identification(
        probes, gallery, ids, ids, strangers, ranks=(1, 3), sizes=[7, 30], protocol="megaface"
    )
    for i, size in enumerate((7, 30)):
        places = [
            reference.rank(p, [g], list(strangers[:size]))
            for p, person in zip(probes, ids, strict=True)
            for g, other in zip(gallery, ids, strict=True)
            if other == person
        ]
        expected = [sum(r <= k for r in places) / len(places) for k in (1, 3)]
        assert result.accuracy[i] == pytest.approx(expected)
    assert result.probes == 4 * 3 * 3


def test_faiss_identification_agrees():
    pytest.importorskip("faiss", reason="needs the extra search")
    gallery, ids = people(each=2)
    probes, strangers = gallery + 0.8 * torch.randn_like(gallery), torch.randn(50, 12)
    ours, theirs = (
        identification(probes, gallery, ids, ids, strangers, backend=b) for b in ("torch", "faiss")
    )
    assert ours.distractors == [10, 50]
    for a, b in zip(ours.cmc, theirs.cmc, strict=True):
        assert a == pytest.approx(b)


def test_known_ranks_perfect_inverted_ties():
    eye = torch.eye(4)
    ids = torch.arange(4)
    assert identification(eye, eye, ids, ids, ranks=(1,)).accuracy == [[1.0]]
    worst = identification(eye, -eye, ids, ids, ranks=(1, 3, 4))
    assert worst.accuracy == [[0.0, 0.0, 1.0]]
    # the mate ties with a distractor: the tie counts against the probe
    tie = identification(eye[:1], eye[:1], ids[:1], ids[:1], distractors=2 * eye[:1], ranks=(1, 2))
    assert tie.accuracy == [[0.0, 1.0]]
    far = identification(eye, -eye, ids, ids, ranks=(2, 10**12))
    assert far.accuracy[0][1] == 1.0 and len(far.cmc[0]) == len(eye)


def test_identification_names_the_culprit():
    x, ids = torch.eye(3), torch.arange(3)
    with pytest.raises(ValueError, match=r"probe 2 \(id 9\) has nobody"):
        identification(x, x, torch.tensor([0, 1, 9]), ids)
    with pytest.raises(ValueError, match="gallery: expected dimension 3; got 2"):
        identification(x, x[:, :2], ids, ids)
    with pytest.raises(ValueError, match="distractors: row 0 has NaN"):
        identification(x, x, ids, ids, torch.full((1, 3), math.nan))
    with pytest.raises(ValueError, match="there are 2 distractors"):
        identification(x, x, ids, ids, x[:2], sizes=[3])
    with pytest.raises(ValueError, match="one label for each"):
        identification(x, x, ids[:2], ids)


def test_open_set_rates_against_loops():
    gallery, gallery_ids = people(count=6, each=1)
    known = gallery.repeat(4, 1) + 0.7 * torch.randn(24, 12)
    probes = torch.cat([known, torch.randn(40, 12)])
    probe_ids = torch.cat([gallery_ids.repeat(4), torch.arange(100, 140)])
    result = open_set_identification(
        probes, gallery, probe_ids, gallery_ids, fars=(0.25, 0.1, 0.01)
    )
    for point in result.dir_at_far[:2]:
        expected = reference.detection_identification_rate(
            probes, gallery, probe_ids.tolist(), gallery_ids.tolist(), point.far
        )
        assert point.dir == pytest.approx(expected)
    assert math.isnan(result.dir_at_far[2].dir) and "refused: 40 unknown, needs 100" in str(result)
    assert result.rank_accuracy >= result.dir_at_far[0].dir
    rates = [rate for _, rate in result.curve]
    assert rates == sorted(rates)
    with pytest.raises(ValueError, match="all 24 probes are known"):
        open_set_identification(known, gallery, gallery_ids.repeat(4), gallery_ids)


def test_retrieval_against_loops():
    features, labels = people(count=6, each=5, noise=1.5)
    labels[-1] = 77  # alone: nothing to find
    result = retrieval(features, labels, ks=(1, 2, 4))
    assert result.map_at_r == pytest.approx(reference.map_at_r(features, labels.tolist()))
    assert result.skipped == 1 and result.queries == 29
    assert list(result.recall) == [1, 2, 4]
    assert result.recall[1] <= result.recall[2] <= result.recall[4]
    assert result.r_precision >= result.map_at_r


def test_retrieval_known_cases():
    x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    perfect = retrieval(x, torch.tensor([0, 0, 1, 1]), ks=(1,))
    assert (perfect.recall[1], perfect.map_at_r) == (1.0, 1.0)
    inverted = retrieval(x, torch.tensor([0, 1, 0, 1]), ks=(1,))
    assert (inverted.recall[1], inverted.map_at_r) == (0.0, 0.0)
    across = retrieval(
        x[:2], torch.tensor([0, 1]), (1,), gallery=x[2:], gallery_labels=torch.tensor([0, 1])
    )
    assert across.queries == 2
    with pytest.raises(ValueError, match="all 4 labels are 3"):
        retrieval(x, torch.full((4,), 3))
    with pytest.raises(ValueError, match="no query has another"):
        retrieval(x, torch.arange(4))


def test_people_with_one_picture_are_unknown():
    """They came into the gallery, and people with probes stayed out: there was nobody to find."""
    labels = torch.tensor([0, 1, 2, 3, 4, 5, 5, 6, 6, 7, 7, 7])
    features = torch.eye(12)
    probes, gallery, probe_ids, gallery_ids = divide(features, labels, unknown=0.5)
    assert gallery_ids.tolist() == [5, 6, 7] and len(gallery) == 3 and len(probes) == 9
    assert sorted(probe_ids.tolist()) == [0, 1, 2, 3, 4, 5, 6, 7, 7]
    galleries = [divide(features, labels, 0.75, seed)[3].tolist() for seed in range(9)]
    assert len({tuple(g) for g in galleries}) > 1 and all(len(g) == 2 for g in galleries)
    assert galleries[0] == divide(features, labels, 0.75, 0)[3].tolist()
    for few in (torch.arange(12), torch.zeros(12, dtype=torch.long)):
        with pytest.raises(ValueError, match="have two samples or more: .*another part"):
            divide(features, few, 0.5)
