"""Augmentation against slow loops over single pictures, and its statistics."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import Image

from hypersphere.data import (
    ArrayDataset,
    CenterCrop,
    Flip,
    JitterPoints,
    Normalize,
    PadCrop,
    RandomCrop,
    Resize,
    RotateUp,
    SamplePoints,
    ScalePoints,
    ShiftPoints,
    Tilt,
    augmentation,
)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(count: int = 64, size: int = 6) -> torch.Tensor:
    return torch.randint(1, 256, (count, 3, size, size), generator=seeded(), dtype=torch.uint8)


def test_flip_mirrors_whole_pictures_about_half_of_the_time():
    x = pictures(400)
    y = Flip()(x, seeded())
    flipped = torch.tensor([torch.equal(b, a.flip(-1)) for a, b in zip(x, y, strict=True)])
    kept = torch.tensor([torch.equal(b, a) for a, b in zip(x, y, strict=True)])
    assert (flipped ^ kept).all()
    assert 150 < flipped.sum() < 250
    y = Flip(horizontal=0.0, vertical=1.0)(x, seeded())
    assert torch.equal(y, x.flip(-2))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_pad_crop_is_a_window_of_the_padded_picture_at_every_place(dtype):
    x = pictures(500, 5).to(dtype)
    y = PadCrop(2)(x, seeded())
    assert y.dtype == dtype and y.shape == x.shape
    places = set()
    padded = torch.nn.functional.pad(x, [2] * 4)
    for a, b in zip(padded, y, strict=True):
        found = [
            (i, j) for i in range(5) for j in range(5) if torch.equal(a[:, i : i + 5, j : j + 5], b)
        ]
        assert len(found) == 1
        places.update(found)
    assert len(places) == 25
    assert PadCrop(2, fill=9)(torch.zeros(50, 1, 3, 3), seeded()).max() == 9


def test_random_and_center_crop():
    x = torch.arange(36.0).view(1, 1, 6, 6).repeat(8, 1, 1, 1)
    y = RandomCrop((2, 4))(x, seeded())
    assert y.shape == (8, 1, 2, 4)
    # Inside a window, neighbours stay neighbours.
    assert (y[..., 1:] - y[..., :-1] == 1).all() and (y[..., 1, :] - y[..., 0, :] == 6).all()
    assert CenterCrop(2)(x, seeded())[0, 0].tolist() == [[14, 15], [20, 21]]
    with pytest.raises(ValueError, match="a 7x7 crop needs pictures"):
        RandomCrop(7)(x, seeded())


@pytest.mark.parametrize("size", [(20, 30), (5, 4)])
def test_resize_agrees_with_pillow(size):
    x = pictures(2, 12)
    ours = Resize(size)(x, seeded())
    assert ours.dtype == torch.uint8 and ours.shape == (2, 3, *size)
    for a, b in zip(x, ours, strict=True):
        image = Image.fromarray(a.permute(1, 2, 0).numpy())
        theirs = np.asarray(image.resize(size[::-1], Image.Resampling.BILINEAR)).transpose(2, 0, 1)
        assert np.abs(theirs.astype(int) - b.numpy().astype(int)).max() <= 1


def test_the_settings_of_the_text_by_name():
    train, test = augmentation("imagenet"), augmentation("imagenet", train=False)
    x = pictures(2, 32)
    assert train(x, seeded()).shape == test(x, seeded()).shape == (2, 3, 224, 224)
    assert torch.equal(augmentation("cifar", train=False)(x, seeded()), x)
    assert torch.equal(augmentation("cifar")(x, seeded(3)), augmentation("cifar")(x, seeded(3)))
    assert not torch.equal(augmentation("cifar")(x, seeded(3)), augmentation("cifar")(x, seeded(4)))
    assert augmentation("cifar_full").steps[1].vertical == 0.5
    with pytest.raises(ValueError, match="none, flip, cifar"):
        augmentation("cutout")


def test_normalization_formulas():
    x = pictures(40)
    data = ArrayDataset(x, torch.zeros(40).long(), ["a"])
    u = x.double() / 255
    expected = {
        "unit": u,
        "symmetric": (x.double() - 127.5) / 128,
        "mean": u - u.mean(0),
        "channel": (u - u.mean((0, 2, 3), keepdim=True))
        / u.std((0, 2, 3), keepdim=True, correction=0),
    }
    for kind, value in expected.items():
        torch.testing.assert_close(Normalize.fit(data, kind)(x).double(), value, rtol=0, atol=2e-6)
    black = ArrayDataset(torch.zeros(3, 1, 2, 2), torch.zeros(3).long(), ["a"])
    assert Normalize.fit(black, "channel")(black.images).abs().max() == 0
    with pytest.raises(ValueError, match="mean picture"):
        Normalize.fit(data, "mean")(pictures(2, 8))
    with pytest.raises(ValueError, match="got 'whiten'"):
        Normalize.fit(data, "whiten")


def test_normalization_leaves_float_input_alone():
    x = torch.rand(4, 1, 3, 3)
    before = x.clone()
    Normalize.named("symmetric")(x)
    assert torch.equal(x, before)


CLOUD = torch.randn(16, 50, 3, generator=torch.Generator().manual_seed(1))


def test_sampled_points_are_different_points_of_their_cloud():
    chosen = SamplePoints(20)(CLOUD, seeded())
    assert chosen.shape == (16, 20, 3)
    for cloud, part in zip(CLOUD, chosen, strict=True):
        rows = {tuple(p) for p in cloud.tolist()}
        drawn = {tuple(p) for p in part.tolist()}
        assert len(drawn) == 20 and drawn <= rows
    with pytest.raises(ValueError, match="51 points are wanted"):
        SamplePoints(51)(CLOUD, seeded())


def test_rotations_keep_lengths_and_the_vertical():
    turned = RotateUp()(CLOUD, seeded())
    torch.testing.assert_close(turned.norm(dim=2), CLOUD.norm(dim=2))
    torch.testing.assert_close(turned[..., 1], CLOUD[..., 1])
    angle = torch.atan2(turned[..., 2], turned[..., 0]) - torch.atan2(CLOUD[..., 2], CLOUD[..., 0])
    angle = angle.remainder(2 * math.pi)
    # One angle a cloud, another one for each.
    spread = torch.stack([angle.cos(), angle.sin()]).std(dim=2)
    assert spread.max() < 1e-4 and angle[:, 0].std() > 0.5
    tilted = Tilt()(CLOUD, seeded())
    torch.testing.assert_close(tilted.norm(dim=2), CLOUD.norm(dim=2))
    cosine = torch.cosine_similarity(tilted, CLOUD, dim=2)
    assert cosine.min() > math.cos(0.18 * math.sqrt(3)) - 1e-4 and cosine.min() < 0.9999


def test_scale_shift_and_jitter_stay_in_their_ranges():
    factor = ScalePoints()(CLOUD, seeded()) / CLOUD
    assert factor.std(dim=(1, 2)).max() < 1e-4
    assert factor.min() >= 0.8 and factor.max() <= 1.2501
    shift = ShiftPoints()(CLOUD, seeded()) - CLOUD
    assert shift.std(dim=1).max() < 1e-5 and 0.05 < shift.abs().max() <= 0.1 + 1e-5
    noise = JitterPoints()(CLOUD, seeded()) - CLOUD
    assert noise.abs().max() <= 0.05 + 1e-5 and abs(noise.std() - 0.01) < 1e-3
    assert augmentation("pointnet2")(CLOUD.repeat(1, 21, 1), seeded()).shape == (16, 1024, 3)
