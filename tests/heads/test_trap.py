"""ArcFace learns with its defaults where the scale of the paper ends opposite to all classes."""

import pytest
import torch
from torch import nn

import hypersphere as hs
from hypersphere.heads import Diagnosis, Margin, MarginHead, diagnose

CLASSES, DIM = 20, 24


def data(count=600):
    """Clusters far from the origin: all inputs have much in common."""
    draw = torch.Generator().manual_seed(0)
    centers = 3 + torch.randn(CLASSES, DIM, generator=draw)
    y = torch.randint(CLASSES, (count,), generator=draw)
    return centers[y] + 0.3 * torch.randn(count, DIM, generator=draw), y


def train(make, lr=0.05, steps=150, last=None) -> Diagnosis:
    """A network without BatchNorm, unless it is the last layer."""
    torch.manual_seed(0)
    x, y = data()
    net = nn.Sequential(nn.Linear(DIM, 64), nn.PReLU(), nn.Linear(64, 32), last or nn.Identity())
    head = make(32, CLASSES)
    parameters = [*net.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=lr, momentum=0.9, weight_decay=5e-4)
    for _ in range(steps):
        drawn = torch.randint(len(x), (64,))
        optimizer.zero_grad()
        head.loss(net(x[drawn]), y[drawn]).backward()
        optimizer.step()
    return diagnose(head, net(x), y)


@pytest.mark.parametrize(
    ("head", "lr"),
    [
        (hs.heads.ArcFaceHead, 0.02),
        (hs.heads.ArcFaceHead, 0.05),
        (hs.heads.ArcFaceHead, 0.1),
        (hs.heads.AdaFaceHead, 0.1),
        (hs.heads.CurricularFaceHead, 0.1),
        (hs.heads.MagFaceHead, 0.05),  # its margin goes up to 0.8
        (hs.heads.AMSoftmaxHead, 0.1),
        (hs.heads.SSoftmaxHead, 0.1),
        (hs.heads.SphereFaceRHead, 0.1),
        (hs.heads.SphereFace2Head, 0.05),
    ],
)
def test_defaults_learn_at_ordinary_rates(head, lr):
    found = train(head, lr)
    assert found.accuracy > 0.95 and abs(found.class_cosine) < 0.3, found
    assert found.healthy, found


@pytest.mark.parametrize(
    ("head", "options"),
    [
        (hs.heads.AMSoftmaxHead, {"scale": 30.0}),
        (hs.heads.SSoftmaxHead, {"scale": 30.0}),
        (hs.heads.SphereFaceRHead, {"scale": 30.0}),
        (hs.heads.SphereFace2Head, {"scale": 40.0, "factor": 50.0}),
    ],
)
def test_the_scales_of_the_papers_need_a_batchnorm(head, options):
    """They were the defaults, or are those of the released code."""
    found = train(lambda d, c: head(d, c, **options), lr=0.1)
    assert found.accuracy < 0.5 and "BatchNorm" in str(found), found
    assert "the scale" in str(found) and "annealing" not in str(found)
    assert train(lambda d, c: head(d, c, **options), 0.1, last=nn.BatchNorm1d(32)).accuracy > 0.9


def test_features_that_stay_away_from_all_classes_are_told():
    """The advice was a higher learning rate."""
    found = train(hs.heads.SphereFace2Head, lr=0.1)
    assert -0.5 < found.class_cosine < -0.3 and found.accuracy < 0.2
    assert len(found.advice) == 1 and "lower the learning rate" in found.advice[0]
    assert "gradient='detached'" in found.advice[0]
    learned = train(lambda d, c: hs.heads.SphereFace2Head(d, c, gradient="detached"), lr=0.1)
    assert learned.accuracy > 0.95 and learned.healthy, learned


def test_the_trap_is_there_and_told():
    found = train(lambda d, c: MarginHead(d, c, Margin(shift=0.5), scale=16.0))
    assert found.accuracy < 0.5 and found.class_cosine < -0.8 and found.target_angle > 145
    assert "opposite to all classes at once" in str(found)
    assert "MarginSchedule" in str(found) and "gradient='detached'" in str(found)


@pytest.mark.parametrize("remedy", ["detached", "rate", "BatchNorm"])
def test_what_the_advice_says_helps(remedy):
    options = {"gradient": "detached"} if remedy == "detached" else {}
    found = train(
        lambda d, c: MarginHead(d, c, Margin(shift=0.5), scale=16.0, **options),
        lr=0.005 if remedy == "rate" else 0.05,
        steps=250,
        last=nn.BatchNorm1d(32) if remedy == "BatchNorm" else nn.Identity(),
    )
    assert found.accuracy > 0.9 and found.class_cosine > -0.5, found


@pytest.mark.slow
def test_arcface_learns_lfw_from_scratch(data_root):
    options = {"protocol": "open_set", "size": (28, 24), "min_images": 30, "test_fraction": 0.25}
    split = hs.data.load("lfw", data_root, **options)
    torch.manual_seed(0)
    backbone = hs.models.create(
        "sphereface64",
        in_channels=split.train.images.shape[1],
        image_size=(28, 24),
        widths=[16, 32, 48, 64],
        units=[0, 1, 1, 0],
        features=64,
    )
    net = hs.models.Classifier(backbone, hs.heads.ArcFaceHead(64, split.num_classes))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    x, y = (split.train.images.float() - 127.5) / 128, split.train.labels
    for _ in range(200):
        drawn = torch.randint(len(x), (64,))
        optimizer.zero_grad()
        net.loss(x[drawn], y[drawn]).backward()
        optimizer.step()
    with torch.no_grad():
        test = (split.test.images.float() - 127.5) / 128
        accuracy = (net(test).argmax(1) == split.test.labels).float().mean()
        commonest = split.test.labels.bincount().max() / len(split.test)
        found = diagnose(net.head, net.features(test), split.test.labels)
    assert accuracy > commonest + 0.2 and found.class_cosine > -0.3, found
