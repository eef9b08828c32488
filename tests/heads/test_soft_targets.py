"""Class probabilities as labels: each class with its margin in turn, or a refusal; never less."""

import pytest
import torch
import torch.nn.functional as F

from hypersphere import heads, registry
from tolerances import close

DIM, CLASSES = 6, 9
D = torch.float64

MARGIN_HEADS = [e.name for e in registry.entries("head") if issubclass(e.target, heads.MarginHead)]
VARIANTS = [(name, {}) for name in MARGIN_HEADS] + [
    ("margin", {"margin": {"shift": 0.5}, "scale": 12.0}),
    ("margin", {"margin": {"subtract": 0.3}, "scale": 12.0, "subcenters": 3}),
    ("curricularface", {"m": 0.0}),
    ("a_softmax", {"gradient": "caffe"}),
    ("magface", {"shortest": 1.0, "longest": 4.0}),
    *(("sphereface_r", {"version": v}) for v in ("v0", "v2")),
    ("sphereface_r", {"version": "v2", "gradient": "exact"}),
    ("sphereface_r", {"soft": 0.1, "scale": 5.0}),
]
REFUSE = {"curricularface", "sphereface2"}


def refuses(name, options):
    return name in REFUSE or options.get("gradient") == "caffe"


def build(name, options):
    target = registry.entry("head", name).target
    head = target(in_features=DIM, num_classes=CLASSES, **options).double().eval()
    for parameter in head.parameters():  # away from zero, where biases begin
        parameter.data += 0.1 * torch.randn_like(parameter)
    return head


def batch():
    x = 2 * torch.randn(12, DIM, dtype=D)
    return x.requires_grad_(), torch.randint(CLASSES, (12,))


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=str)
def test_one_hot_targets_have_the_loss_and_the_gradient_of_labels(name, options):
    torch.manual_seed(0)
    head = build(name, options)
    x, y = batch()
    hot = F.one_hot(y, CLASSES).to(D)
    if refuses(name, options):
        with pytest.raises(ValueError, match="soft targets .*integer labels"):
            head.loss(x, hot)
        return
    weight = torch.rand(CLASSES, dtype=D) + 0.5
    for extra in ({}, {"class_weight": weight}):
        close(head.loss(x, hot, "none", **extra), head.loss(x, y, "none", **extra))
    parts = [x, *(p for p in head.parameters() if p.requires_grad)]
    got = torch.autograd.grad(head.loss(x, hot), parts, allow_unused=True)
    expected = torch.autograd.grad(head.loss(x, y), parts, allow_unused=True)
    for one, other in zip(got, expected, strict=True):
        close(one, other, scale=10)


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=str)
def test_scores_with_a_margin_have_no_soft_targets(name, options):
    head = build(name, options)
    x, y = batch()
    if torch.equal(head(x, y), head(x)):
        return  # without a margin labels change nothing
    with pytest.raises(ValueError, match=r"soft targets .*integer labels"):
        head(x, F.one_hot(y, CLASSES).to(D))


@pytest.mark.parametrize("version", ["v0", "v1", "v2"])
def test_probabilities_of_sphereface_r_are_mixed_labels(version):
    head = build("sphereface_r", {"version": version})
    x, y = batch()
    other, share = (y + 1) % CLASSES, torch.rand(len(y), dtype=D)
    p = share[:, None] * F.one_hot(y, CLASSES) + (1 - share)[:, None] * F.one_hot(other, CLASSES)
    labels, shares = torch.stack([y, other], 1), torch.stack([share, 1 - share], 1)
    close(head.loss(x, p), head.loss(x, labels, shares=shares))
    close(
        head.loss(x, p, label_smoothing=0.1),
        0.9 * head.loss(x, p) + 0.1 * head.loss(x, torch.full_like(p, 1 / CLASSES)),
    )
