"""What evaluation takes: arrays and lists, features with a graph behind them, mixed precision."""

import dataclasses
import functools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
)

from hypersphere.data import Normalize
from hypersphere.evaluation import (
    Gallery,
    all_pairs,
    angular_fisher_score,
    angular_visual_hardness,
    classification,
    error_by_gallery_size,
    error_by_group,
    extract,
    fewshot,
    fit_threshold,
    fit_thresholds,
    identification,
    imbalance,
    open_set_identification,
    quality_by_norm,
    retrieval,
    templates,
    verification,
)
from hypersphere.evaluation.fingerprints import fingerprint
from hypersphere.evaluation.geometry.geometry import effective_rank
from hypersphere.evaluation.recognition.detection import YuNet
from hypersphere.evaluation.recognition.search import search
from hypersphere.heads import PrototypeHead

IDS = torch.tensor([0, 1, 2, 7, 8])


def people(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    gallery = torch.randn(3, 6, generator=generator, dtype=dtype)
    others = torch.randn(2, 6, generator=generator, dtype=dtype)
    return torch.cat([gallery + 0.1, others]), gallery


class Flat(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x.flatten(1)

    def fingerprint(self):
        return "flat"


@pytest.mark.parametrize(
    "transforms",
    [
        (lambda x: x + 1, lambda x: x + 2),
        (functools.partial(torch.add, other=1), functools.partial(torch.add, other=2)),
        (nn.Sequential(nn.Hardtanh(-1, 1)), nn.Sequential(nn.Hardtanh(-2, 2))),
    ],
    ids=["lambdas", "partials", "modules"],
)
def test_a_transform_without_a_fingerprint_is_not_cached(tmp_path, transforms):
    model, images = Flat(), 3 * torch.ones(2, 4)
    one, two = (extract(model, images, transform=t, cache=tmp_path) for t in transforms)
    assert not torch.equal(one, two)
    assert list(tmp_path.iterdir()) == []


class Adds:
    def __call__(self, x):
        return x + self.k


@dataclasses.dataclass
class AddsLater(Adds):
    """Its setting is no field."""

    def __post_init__(self):
        self.k = 0


@dataclasses.dataclass
class Settings:
    a: int = 1

    def __post_init__(self):
        self.k = 0


def test_a_dataclass_is_known_by_all_its_attributes_or_not_at_all(tmp_path):
    model, images = Flat(), torch.ones(2, 4)
    for k in (1, 5):
        transform, settings = AddsLater(), Settings()
        transform.k = settings.k = k
        assert fingerprint(transform) is None
        assert "k=int:" + str(k) in fingerprint(settings)
        assert (extract(model, images, transform=transform, cache=tmp_path) == 1 + k).all()
    assert list(tmp_path.iterdir()) == []


def test_a_transform_with_values_is_cached_by_them(tmp_path):
    model, images = Flat(), torch.randint(256, (4, 1, 2, 2), dtype=torch.uint8)
    for mean in (0.25, 0.5):
        rule = Normalize(torch.tensor([mean]), torch.tensor([1.0]))
        first = extract(model, images, transform=rule, cache=tmp_path)
        calls = model.calls
        assert torch.equal(extract(model, images, transform=rule, cache=tmp_path), first)
        assert model.calls == calls
    assert len(list(tmp_path.iterdir())) == 2


def test_extract_takes_arrays_lists_datasets_and_loaders():
    images = torch.rand(5, 1, 2, 3)
    expected = images.flatten(1)
    dataset = TensorDataset(images, torch.arange(5))
    for given in (
        images.numpy(),
        list(images),
        [image.numpy() for image in images],
        images.tolist(),
        dataset,
        DataLoader(dataset, batch_size=2),
        DataLoader(images, batch_size=2),
    ):
        assert torch.equal(extract(Flat(), given, batch_size=2), expected)
    with pytest.raises(ValueError, match="shuffle"):
        extract(Flat(), DataLoader(dataset, shuffle=True))
    with pytest.raises(TypeError, match="expected a tensor"):
        extract(Flat(), object())


class Pictures:
    """A data set of what is no number."""

    def __len__(self):
        return 2

    def __getitem__(self, i):
        return object(), i


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        ({"a": torch.eye(2)}, "expected samples in order; got a dictionary with 'a': give one"),
        ([[1.0, 2.0], [1.0]], "samples of one shape; got a list of 2, a list of 1"),
        ([torch.ones(2), torch.ones(3)], r"one shape; got shape \(2,\), shape \(3,\)"),
        ([None, None], "expected numbers, or samples of one shape; got NoneType"),
        ([torch.ones(2), "a"], r"got shape \(2,\), str"),
        (np.array([[0.5, None]]), "got an array of object"),
        (Pictures(), "expected numbers, or samples of one shape; got object"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_samples_that_are_no_tensor_are_told(samples, said):
    labels = torch.arange(2)
    for name, use in {
        "images": lambda: extract(Flat(), samples),
        "features": lambda: retrieval(samples, labels),
        "features_a": lambda: verification(samples, torch.eye(2), labels, "plain"),
    }.items():
        with pytest.raises((TypeError, ValueError), match=f"^{name}: .*{said}"):
            use()


@pytest.mark.parametrize("path", ["foo.png", Path("foo.png")])
def test_a_single_path_is_no_list_of_them(path):
    with pytest.raises(TypeError, match=r"a list of files; got one path: give \['foo.png'\]"):
        extract(Flat(), path)


@pytest.mark.parametrize(("shift", "said"), [(-1, "got video -1"), (10**12, "video 0 has no")])
def test_videos_are_numbered_from_0_on(shift, said):
    with pytest.raises(ValueError, match=f"index: {said}.*; number the videos 0, 1, 2"):
        templates(torch.randn(6, 3), torch.arange(6) % 3 + shift)


def other_orders(dataset):
    """DataLoaders whose rows do not come in the order of the data set."""
    count = len(dataset)
    yield DataLoader(dataset, 2, shuffle=True)
    yield DataLoader(dataset, 2, sampler=SubsetRandomSampler(range(count)))
    yield DataLoader(dataset, batch_sampler=[range(count)[::-1]])
    yield DataLoader(dataset, batch_sampler=BatchSampler(range(count)[::-1], 2, False))
    yield DataLoader(dataset, 2, num_workers=1, in_order=False)


def test_loaders_of_another_order_are_refused_where_labels_come_apart_from_features():
    features, labels = torch.eye(4), torch.arange(4)
    for loader in other_orders(TensorDataset(features, labels)):
        for use in (
            lambda rows: retrieval(rows, labels),
            lambda rows: fit_thresholds(rows, labels),
            lambda rows: Gallery().enroll_many(list("abcd"), rows),
            lambda rows: extract(Flat(), rows),
        ):
            with pytest.raises(ValueError, match="not match their labels: .*shuffle=False"):
                use(loader)


class Stream(IterableDataset):
    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return iter(self.rows)


def test_loaders_in_order_are_taken():
    features = torch.randn(5, 6)
    dataset = TensorDataset(features)
    batches = BatchSampler(SequentialSampler(dataset), 2, drop_last=False)
    for loader in (
        DataLoader(dataset, batch_sampler=batches),
        DataLoader(dataset, sampler=batches, batch_size=None),
        DataLoader(Stream(features), 2),
    ):
        assert torch.equal(extract(Flat(), loader), features)
        known = Gallery(threshold=-1.0)
        known.enroll_many(list("abcde"), loader)
        assert [known.identify(row)[0].name for row in features] == list("abcde")


def test_pairs_of_loaders_lists_and_pictures():
    rows, same = torch.randn(40, 8), torch.arange(40) % 2
    wanted = verification(rows, rows.flip(0), same, "plain", folds=2)
    loaders = [DataLoader(part, batch_size=7) for part in (rows, rows.flip(0))]
    assert verification(*loaders, same, "plain", folds=2).accuracy == wanted.accuracy
    for pictures in (["a.jpg"] * 40, DataLoader(torch.randn(40, 3, 8, 8))):
        with pytest.raises(TypeError, match=r"features_a: .*extract\(model, features_a\)"):
            verification(pictures, pictures, same)


def test_features_with_a_graph_behind_them_are_detached():
    probes, gallery = (x.requires_grad_() for x in people())
    known = Gallery(threshold=-1.0)
    known.enroll_many(["a", "b", "c"], gallery * 1.0)
    assert not known.features.requires_grad and known.features.grad_fn is None
    assert known.identify(probes[0] * 1.0)[0].name == "a"
    assert known.verify("a", probes[0] * 1.0)[0]
    assert open_set_identification(probes, gallery, IDS, IDS[:3], fars=(0.5,)).known == 3
    assert identification(probes[:3], gallery, IDS[:3], IDS[:3], ranks=(1,)).accuracy == [[1.0]]
    both = torch.cat([probes[:3], gallery])
    assert retrieval(both, IDS[:3].repeat(2), ks=(1,)).recall[1] == 1.0
    few = fewshot(both, IDS[:3].repeat(2), "baseline", way=2, shot=1, queries=1, episodes=2)
    assert 0 <= few.accuracy <= 1
    same = torch.tensor([True, False, True, False])
    verification(both[:4], both[[3, 5, 5, 0]], same, protocol="plain", folds=2)
    assert angular_fisher_score(both, IDS[:3].repeat(2)) >= 0


@pytest.mark.parametrize("kind", [list, tuple, np.array, lambda n: np.array(n, object)])
def test_names_say_who_is_who_as_numbers_do(kind):
    torch.manual_seed(0)
    numbers = torch.tensor([5, 5, 0, 0, 9, 9, 2, 2]).repeat(5)
    names = kind([{0: "ada", 2: "bob", 5: "eve", 9: "zoe"}[i] for i in numbers.tolist()])
    x = torch.randn(40, 6)
    half = slice(0, 16)
    for use in (
        lambda who: fit_thresholds(x, who, fars=(0.1,)),
        lambda who: fit_thresholds(x, who, fars=(0.1,), gallery_size=3),
        lambda who: identification(x, x[half], who, who[half], ranks=(1,)),
        lambda who: open_set_identification(x, x[:6], who, who[:6], fars=(0.5,)),
        lambda who: error_by_gallery_size(x, x[:6], who, who[:6], far=0.2, sizes=(3,)),
        lambda who: retrieval(x, who, ks=(1,)),
        lambda who: retrieval(x, who, (1,), gallery=x[half], gallery_labels=who[half]),
        lambda who: all_pairs(x, who, x[half], who[half], fars=(0.1,)),
        lambda who: quality_by_norm(x, who),
        lambda who: fewshot(x, who, "baseline", way=2, shot=1, queries=1, episodes=5),
    ):
        assert str(use(names)) == str(use(numbers))


def test_names_are_refused_where_a_label_is_the_number_of_a_class():
    scores, names = torch.eye(3), ["a", "b", "c"]
    with pytest.raises(ValueError, match=r"labels: expected whole numbers; got names, such as 'a'"):
        classification(scores, names)
    with pytest.raises(ValueError, match=r"predictions: expected whole numbers; got names"):
        classification(names, names)
    with pytest.raises(ValueError, match="names or numbers, not both"):
        identification(scores, scores, names, [0, 1, 2])
    with pytest.raises(ValueError, match=r"probe 1 \(id 'nobody'\)"):
        identification(scores, scores, ["a", "nobody", "c"], names)


def test_probes_and_gallery_of_two_precisions():
    probes, gallery = people()
    wide = gallery.double()
    closed = (probes[:3], wide, IDS[:3], IDS[:3])
    assert identification(*closed, ranks=(1,)).accuracy == [[1.0]]
    assert open_set_identification(probes, wide, IDS, IDS[:3], fars=(0.5,)).known == 3
    found = retrieval(probes[:3], IDS[:3], (1,), gallery=wide, gallery_labels=IDS[:3])
    assert found.recall[1] == 1.0
    same = torch.tensor([True, False, True, False])
    order = torch.tensor([0, 1, 1, 2])
    scores = verification(wide[order], gallery[order.flip(0)], same, "plain", folds=2)
    assert 0 <= scores.accuracy <= 1


@pytest.mark.parametrize("kind", [list, np.asarray, torch.as_tensor])
def test_folds_may_be_a_list_or_an_array(kind):
    x = torch.randn(8, 4)
    same = torch.arange(8) % 2 == 0
    y = torch.where(same[:, None], x, -x)
    result = verification(x, y, same, "plain", folds=kind([0, 0, 1, 1, 0, 0, 1, 1]))
    assert result.accuracy == 1.0 and len(result.fold_accuracies) == 2


def test_accuracy_is_a_mean_in_double_precision():
    generator = torch.Generator().manual_seed(1)
    same = torch.arange(1000) % 2 == 0
    a = torch.randn(1000, 8, generator=generator)
    b = torch.where(same[:, None], a, torch.randn(1000, 8, generator=generator))
    b = b + 0.6 * torch.randn(1000, 8, generator=generator)
    result = verification(a, b, same, "plain")
    assert result.accuracy == sum(result.fold_accuracies) / 10
    mean = sum(result.fold_accuracies) / 10
    spread = sum((f - mean) ** 2 for f in result.fold_accuracies) / 9
    assert result.std_error == pytest.approx(math.sqrt(spread / 10), rel=1e-12)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_separability_refuses_features_that_are_not_finite(bad):
    features = torch.eye(4)
    features[2, 1] = bad
    labels = torch.tensor([0, 0, 1, 1])
    with pytest.raises(ValueError, match="row 2 has NaN or infinite"):
        angular_fisher_score(features, labels)
    with pytest.raises(ValueError, match="row 2 has NaN or infinite"):
        angular_visual_hardness(features, labels, torch.eye(4))


@pytest.mark.parametrize("unknown", [10, 1000])
def test_open_set_thresholds_keep_their_rate(unknown):
    """A score is accepted when it is at least the threshold, here and everywhere."""
    generator = torch.Generator().manual_seed(0)
    gallery = torch.randn(20, 5, generator=generator)
    probes = torch.cat([gallery, torch.randn(unknown, 5, generator=generator)])
    probes[-1] = probes[-2]  # a tie among the unknown
    ids = torch.arange(len(probes))
    fars = (0.5, 0.1, 0.01)
    result = open_set_identification(probes, gallery, ids, ids[:20], fars=fars)
    unit = nn.functional.normalize(probes[20:]) @ nn.functional.normalize(gallery).T
    best = unit.amax(1)
    mates = (nn.functional.normalize(probes[:20]) * nn.functional.normalize(gallery)).sum(1)
    for point in result.dir_at_far:
        if math.isnan(point.dir):
            continue
        assert int((best >= point.threshold + 1e-7).sum()) <= point.far * unknown
        assert point.dir == pytest.approx(float((mates >= point.threshold).double().mean()))
    printed = [float(line.split("threshold ")[1].rstrip(")")) for line in str(result).splitlines()
               if "threshold" in line]  # fmt: skip
    kept = [point.threshold for point in result.dir_at_far if not math.isnan(point.dir)]
    # What is printed is no looser than what was measured.
    assert all(shown >= value for shown, value in zip(printed, kept, strict=True))


def test_an_open_set_threshold_rejects_the_score_it_was_set_by():
    gallery = torch.eye(3)[:2]
    probes = torch.tensor([[1.0, 0, 0], [0, 1.0, 0], [0.6, 0, 0.8], [0.8, 0, 0.6]])
    ids = torch.tensor([0, 1, 7, 8])
    point = open_set_identification(probes, gallery, ids, ids[:2], fars=(0.5,)).dir_at_far[0]
    scores = torch.tensor([0.6, 0.8])
    assert int((scores >= point.threshold).sum()) == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, "0.5", True, [0.5], torch.tensor(True)])
def test_thresholds_that_decide_nothing_are_refused(bad):
    gallery = Gallery()
    gallery.enroll("ada", torch.ones(3))
    scores, same = torch.tensor([0.9, 0.2]), torch.tensor([True, False])
    for use in (
        lambda: Gallery(threshold=bad),
        lambda: setattr(gallery, "threshold", bad),
        lambda: gallery.verify("ada", torch.ones(3), threshold=bad),
        lambda: gallery.identify(torch.ones(3), threshold=bad),
        lambda: error_by_group(scores, same, ["a", "b"], math.nan if bad == math.inf else bad),
        lambda: YuNet(threshold=bad),
    ):
        with pytest.raises(ValueError, match="threshold: expected a finite number"):
            use()
    with pytest.raises(ValueError, match="threshold: expected a share in"):
        imbalance(torch.eye(2), torch.arange(2), train_counts=[1, 9], threshold=bad)


def test_nobody_passes_a_threshold_of_infinity():
    scores, same = torch.tensor([0.9, 0.9]), torch.tensor([True, False])
    point = error_by_group(scores, same, ["a", "a"], math.inf).groups[0]
    assert (point.false_accept, point.false_reject) == (0.0, 1.0)


@pytest.mark.parametrize("value", [1, np.float32(0.5), torch.tensor(0.5)])
def test_thresholds_may_be_numbers_of_any_library(value):
    assert Gallery(threshold=value).threshold == value
    same = torch.tensor([True, False])
    found = error_by_group(torch.tensor([0.9, 0.2]), same, ["a", "b"], value)
    assert found.threshold == float(value)


@pytest.mark.parametrize("bad", [math.nan, 0.0, -0.1, 1.5, True, "0.1", None])
def test_what_is_no_rate_is_refused(bad):
    probes, gallery = people()
    scores = torch.linspace(-1, 1, 100)
    for use in (
        lambda: fit_threshold(scores, bad),
        lambda: fit_thresholds(torch.randn(9, 4), torch.arange(9), fars=(0.1, bad)),
        lambda: error_by_gallery_size(probes, gallery, IDS, IDS[:3], far=bad),
        lambda: open_set_identification(probes, gallery, IDS, IDS[:3], fars=(bad,)),
        lambda: all_pairs(torch.randn(9, 4), torch.arange(9) % 3, fars=(bad,)),
    ):
        with pytest.raises(ValueError, match="rate lies (between|in)"):
            use()


def test_arguments_that_raised_an_error_of_torch():
    eye = torch.eye(3)
    scores, _ = search(eye.requires_grad_(), torch.eye(3).requires_grad_(), k=1)
    assert not scores.requires_grad and (scores == 1).all()
    with pytest.raises(ValueError, match="matrix: row 0, 1, 2 has NaN"):
        effective_rank(torch.full((3, 3), float("nan")))
    net = nn.Linear(4, 2)
    wide = np.ones((3, 4))
    assert torch.equal(extract(net, wide), extract(net, wide.astype(np.float32)))
    for size in (0, -1, 1.5):
        with pytest.raises(ValueError, match="batch_size: expected a whole number >= 1"):
            extract(net, wide, batch_size=size)
    named = DataLoader([{"image": torch.ones(4)} for _ in range(3)])
    with pytest.raises(ValueError, match="got dictionaries with image"):
        extract(net, named)
    gallery = Gallery()
    with pytest.raises(ValueError, match="expected a name per sample; got one text, 'abc'"):
        gallery.enroll_many("abc", torch.eye(3))
    gallery.enroll_many(list("abc"), torch.eye(3))
    with pytest.raises(ValueError, match="top: expected a whole number"):
        gallery.identify(torch.ones(3), top=2.5)
    with pytest.raises(ValueError, match="same: expected 0"):
        verification(torch.rand(9, 3), torch.rand(9, 3), torch.arange(9) % 3, protocol="plain")
    with pytest.raises(ValueError, match="num_classes >= 1, got 5.0"):
        PrototypeHead(in_features=8, num_classes=5.0)
