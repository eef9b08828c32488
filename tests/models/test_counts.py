"""Parameter counts worked out from the dissertation's tables, row by row."""

import pytest
import torch

from hypersphere import models


def stack(widths, depths, first=3, k=9):
    """Weights of stages of convolutions: the first of a stage takes what the stage before gives."""
    total = 0
    for width, depth in zip(widths, depths, strict=True):
        total += first * width * k + (depth - 1) * width * width * k
        first = width
    return total


def norms(widths, depths):
    """Batch normalization: a scale and a shift per filter."""
    return sum(2 * width * depth for width, depth in zip(widths, depths, strict=True))


# Table B.1: r = n / 3 convolutions per stage; 32 -> 16 -> 8 -> 4, then 128 * 4 * 4 -> 256.
B1 = {
    f"cnn{3 * r}": 3 * 64 * 9
    + (r - 1) * 64 * 64 * 9
    + 64 * 96 * 9
    + (r - 1) * 96 * 96 * 9
    + 96 * 128 * 9
    + (r - 1) * 128 * 128 * 9
    + 2 * r * (64 + 96 + 128)
    + 128 * 4 * 4 * 256
    + 2 * 256
    for r in (1, 3, 6, 15, 20, 23)
}
# Tables 5.2 and 6.4: three convolutions per stage of 16 t, 32 t, 64 t filters.
WIDTHS = {
    f"cnn9_t{t}": 9 * 3 * 16 * t
    + 9 * t * t * (2 * 16 * 16 + 16 * 32 + 2 * 32 * 32 + 32 * 64 + 2 * 64 * 64)
    + 2 * 3 * t * (16 + 32 + 64)
    + 64 * t * 4 * 4 * 256
    for t in (1, 2, 4, 8, 16, 20)
}
PLAIN = {
    "cnn9_c1": stack((64, 128, 256), (3, 3, 3))
    + norms((64, 128, 256), (3, 3, 3))
    + 256 * 4 * 4 * 512
    + 2 * 512,
    "cnn9_adversarial": stack((32, 64, 128), (3, 3, 3)) + 128 * 4 * 4 * 256,
    "cnn6": stack((64, 128, 256), (2, 2, 2)) + norms((64, 128, 256), (2, 2, 2)) + 4096 * 256,
    "cnn9_d1": stack((64, 128, 256), (3, 3, 3)) + norms((64, 128, 256), (3, 3, 3)) + 4096 * 256,
    "cnn15": stack((64, 128, 256), (5, 5, 5)) + norms((64, 128, 256), (5, 5, 5)) + 4096 * 256,
    "cnn3_e3": 9 * (3 * 32 + 32 * 64 + 64 * 64) + 2 * (32 + 64 + 64) + 64 * 16 * 64,
    "cnn9_e3": 9 * (3 * 32 + 2 * 32 * 32 + 32 * 64 + 5 * 64 * 64)
    + 2 * 3 * (32 + 64 + 64)
    + 64 * 16 * 64,
    "cnn6_f1": 9 * (3 * 64 + 5 * 64 * 64) + 2 * 6 * 64 + 64 * 16 * 64,
    "cnn9_f1": 9 * (3 * 64 + 8 * 64 * 64) + 2 * 9 * 64 + 64 * 16 * 64,
    # 224 -> 112 (7x7, stride 2) -> 56 (pool) -> 28 -> 14 -> 7
    "cnn10": 3 * 64 * 49
    + stack((64, 128, 256), (3, 3, 3), first=64)
    + norms((64, 64, 128, 256), (1, 3, 3, 3))
    + 256 * 7 * 7 * 256,
    "cnn4": 9 * (3 * 64 + 3 * 64 * 64) + 4 * 2 * 64,
    # 28 -> 14 -> 7 -> 4, then 256, with its norm, then 2
    "cnn6_mnist2d": stack((32, 64, 128), (2, 2, 2), first=1)
    + norms((32, 64, 128), (2, 2, 2))
    + 128 * 4 * 4 * 256
    + 2 * 256
    + 256 * 2,
    # PReLU adds one slope per filter: 3 = scale, shift, slope
    "lsoftmax_mnist2d": stack((32, 64, 128), (2, 2, 2), first=1, k=25)
    + 3 * 2 * (32 + 64 + 128)
    + 128 * 4 * 4 * 2,
    "lsoftmax_mnist": 9 * (1 * 64 + 9 * 64 * 64) + 3 * 10 * 64 + 64 * 4 * 4 * 256,
    "lsoftmax_cifar10": 9 * (3 * 64 + 4 * 64 * 64)
    + 9 * (64 * 96 + 3 * 96 * 96 + 96 * 128 + 3 * 128 * 128)
    + 3 * (5 * 64 + 4 * 96 + 4 * 128)
    + 128 * 4 * 4 * 256,
    "lsoftmax_cifar100": 9 * (3 * 96 + 4 * 96 * 96)
    + 9 * (96 * 192 + 3 * 192 * 192 + 192 * 384 + 3 * 384 * 384)
    + 3 * (5 * 96 + 4 * 192 + 4 * 384)
    + 384 * 4 * 4 * 512,
    # 112 x 96 -> 56 x 48 (stride 2) -> 28 x 24 -> 14 x 12 -> 7 x 6
    "lsoftmax_lfw": 9 * (3 * 64 + 4 * 64 * 64 + 64 * 256 + 11 * 256 * 256)
    + 3 * (5 * 64 + 12 * 256)
    + 256 * 7 * 6 * 512,
}


def basic(widths, depths, inputs):
    """Blocks of two 3x3 convolutions with norms, a 1x1 shortcut where channels change."""
    total = 0
    for width, depth in zip(widths, depths, strict=True):
        total += 9 * inputs * width + 9 * (2 * depth - 1) * width * width + 2 * depth * 2 * width
        if inputs != width:
            total += inputs * width + 2 * width
        inputs = width
    return total


RESNET = {
    # Identity shortcuts: convolutions and norms only; the original gives 0.27M and 0.46M.
    "resnet20": 9 * (3 * 16 + 6 * 16 * 16 + 16 * 32 + 5 * 32 * 32 + 32 * 64 + 5 * 64 * 64)
    + 2 * (7 * 16 + 6 * 32 + 6 * 64),
    "resnet32": 9 * (3 * 16 + 10 * 16 * 16 + 16 * 32 + 9 * 32 * 32 + 32 * 64 + 9 * 64 * 64)
    + 2 * (11 * 16 + 10 * 32 + 10 * 64),
    "resnet32_b2": 9 * 3 * 64 + 2 * 64 + basic((64, 96, 128), (5, 5, 5), 64),
    "resnet32_c1": 9 * 3 * 96 + 2 * 96 + basic((96, 192, 384), (5, 5, 5), 96),
    "resnet32_d2": 9 * 3 * 64 + 2 * 64 + basic((64, 128, 256), (5, 5, 5), 64),
    "resnet18": 49 * 3 * 64 + 2 * 64 + basic((64, 128, 256, 512), (2, 2, 2, 2), 64),
    "resnet34": 49 * 3 * 64 + 2 * 64 + basic((64, 128, 256, 512), (3, 4, 6, 3), 64),
    "resnet18_wide": 49 * 3 * 256 + 2 * 256 + basic((256, 512, 768, 1024), (2, 2, 2, 2), 256),
    # Three convolutions per block, w -> w -> 4 w; the first block of a stage also has a shortcut.
    "resnet50": 49 * 3 * 64
    + 2 * 64
    + sum(
        (before * w + 9 * w * w + w * 4 * w + before * 4 * w)
        + (depth - 1) * (4 * w * w + 9 * w * w + w * 4 * w)
        + 2 * (depth * (w + w + 4 * w) + 4 * w)
        for w, depth, before in ((64, 3, 64), (128, 4, 256), (256, 6, 512), (512, 3, 1024))
    ),
}
RESNET["sphere_resnet18_v1"] = RESNET["sphere_resnet18_v2"] = RESNET["resnet18_wide"]


def sphereface(units):
    """Table 2.7: strided convolutions with bias, units without, PReLU after each; 7 x 6 maps."""
    total, inputs = 512 * 7 * 6 * 512 + 512, 3
    for width, count in zip((64, 128, 256, 512), units, strict=True):
        total += 9 * inputs * width + width + width
        total += count * 2 * (9 * width * width + width)
        inputs = width
    return total


FACES = {
    "sphereface4": sphereface((0, 0, 0, 0)),
    "sphereface10": sphereface((0, 1, 2, 0)),
    "sphereface20": sphereface((1, 2, 4, 1)),
    "sphereface36": sphereface((2, 4, 8, 2)),
    "sphereface64": sphereface((3, 8, 16, 3)),
    # 17 convolutions (and the classifier: 18), each with scale, shift and slope
    "resnet18_modified": 49 * 3 * 128
    + 9 * (3 * 128 * 128 + 128 * 256 + 4 * 256 * 256 + 256 * 512 + 6 * 512 * 512 + 512 * 1024)
    + 3 * (4 * 128 + 5 * 256 + 7 * 512 + 1024),
}

POINT_MLP = 3 * 64 + 64 * 64 + 64 * 64 + 64 * 128 + 128 * 1024 + 2 * (64 + 64 + 64 + 128 + 1024)
DENSE = 1024 * 512 + 512 * 256 + 2 * (512 + 256)


def tnet(k):
    convolutions = k * 64 + 64 * 128 + 128 * 1024 + 2 * (64 + 128 + 1024)
    return convolutions + DENSE + 256 * k * k + k * k


OTHERS = {
    "mlp": 784 * 256 + 256 + 256 * 256 + 256,
    # 1-32-64-16 down; 16-64-32-1 up, the last with a bias
    "autoencoder": 9 * (32 + 32 * 64 + 64 * 16)
    + 2 * (32 + 64)
    + 9 * (16 * 64 + 64 * 32 + 32)
    + 2 * (64 + 32)
    + 1,
    "gcn": 1433 * 16,
    "pointnet": POINT_MLP + DENSE,
    "pointnet_tnet": POINT_MLP + DENSE + tnet(3) + tnet(64),
    "pointnet2": (3 * 64 + 64 * 64 + 64 * 128 + 2 * (64 + 64 + 128))
    + ((128 + 3) * 128 + 128 * 128 + 128 * 256 + 2 * (128 + 128 + 256))
    + ((256 + 3) * 256 + 256 * 512 + 512 * 1024 + 2 * (256 + 512 + 1024))
    + DENSE,
    "sngan_generator": (128 + 1) * 4 * 4 * 512
    + 16 * (512 * 256 + 256 * 128 + 128 * 64)
    + 2 * (256 + 128 + 64)
    + 9 * 64 * 3
    + 3,
    "sngan_discriminator": 9 * (3 * 64 + 64 * 128 + 128 * 256 + 256 * 512)
    + 16 * (64 * 64 + 128 * 128 + 256 * 256)
    + (64 + 64 + 128 + 128 + 256 + 256 + 512)
    + 512 * 4 * 4
    + 1,
}
COUNTS = {**B1, **PLAIN, **WIDTHS, **RESNET, **FACES, **OTHERS}


def test_every_network_is_counted():
    assert set(COUNTS) == set(models.list_models())


@pytest.mark.parametrize("name", COUNTS)
def test_parameter_count(name):
    with torch.device("meta"):
        assert models.count_parameters(models.create(name)) == COUNTS[name]


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("resnet18", 11_689_512 - 512 * 1000 - 1000),
        ("resnet34", 21_797_672 - 512 * 1000 - 1000),
        ("resnet50", 25_557_032 - 2048 * 1000 - 1000),
    ],
)
def test_counts_agree_with_the_usual_imagenet_resnets(name, published):
    assert COUNTS[name] == published


@pytest.mark.parametrize(
    ("name", "convolutions"),
    [*((f"sphereface{n}", n) for n in (4, 10, 20, 36, 64)), ("resnet18_modified", 17)],
)
def test_depth_is_the_one_in_the_name(name, convolutions):
    with torch.device("meta"):
        model = models.create(name)
    assert sum(isinstance(m, torch.nn.Conv2d) for m in model.modules()) == convolutions


@pytest.mark.parametrize(
    ("name", "options", "change"),
    [
        ("cnn9", {"in_channels": 1}, -2 * 64 * 9),
        ("cnn9", {"image_size": 28}, 0),  # 28 -> 14 -> 7 -> 4: the same last map as from 32
        ("cnn9", {"image_size": 8}, -15 * 128 * 256),
        ("cnn9", {"norm": "none"}, -2 * (3 * (64 + 96 + 128) + 256)),
        ("cnn9", {"activation": "prelu"}, 3 * (64 + 96 + 128)),
        ("cnn9", {"features": 2}, -254 * (128 * 16 + 2)),
        ("resnet32", {"shortcut": "plain"}, 16 * 32 + 2 * 32 + 32 * 64 + 2 * 64),
        ("resnet18", {"features": 512}, 512 * 512),
        ("sphereface4", {"norm": "batch"}, 960 + 2 * 512),  # the biases become scale and shift
        ("mlp", {"features": 3}, 256 * 3 + 3),
        ("gcn", {"features": 7}, 16 * 7),
        ("sngan_generator", {"dense_norm": True}, 2 * 512),
        ("pointnet", {"features": None}, -(512 * 256 + 2 * 256)),
    ],
)
def test_options_change_the_count_as_they_should(name, options, change):
    with torch.device("meta"):
        model = models.create(name, **options)
    assert models.count_parameters(model) - COUNTS[name] == change
