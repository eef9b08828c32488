"""Attacks against foolbox, against closed forms, and under the model's own normalization."""

import warnings

import pytest
import torch
from torch import nn

from hypersphere.data import Normalize
from hypersphere.evaluation import AdversarialTraining, attack, deepfool, robustness, training_loss
from hypersphere.evaluation.robustness.attacks import frozen
from hypersphere.evaluation.robustness.pixels import PixelRange
from tolerances import close

EPS = 8 / 255


@pytest.fixture(scope="module")
def task():
    """A small convolutional net trained on blobs, and its test batch."""
    torch.manual_seed(0)
    centers = 0.5 + 0.25 * (torch.rand(5, 1, 8, 8) - 0.5)

    def draw(n):
        y = torch.arange(n) % 5
        return (centers[y] + 0.15 * torch.randn(n, 1, 8, 8)).clamp(0, 1), y

    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 5)
    )
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(120):
        x, y = draw(100)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.eval(), *draw(200)


def fooled(model, x, y):
    with torch.no_grad():
        return float((model(x).argmax(1) != y).double().mean())


@pytest.fixture(scope="module")
def foolbox():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return pytest.importorskip("foolbox", reason="needs foolbox, a development extra")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("LinfFastGradientAttack", {"random_start": False}),
        ("LinfBasicIterativeAttack", {"abs_stepsize": 2 / 255, "steps": 20, "random_start": False}),
    ],
)
def test_boxed_attacks_equal_foolbox(foolbox, task, name, options):
    model, x, y = task
    theirs = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    _, clipped, _ = getattr(foolbox.attacks, name)(**options)(theirs, x, y, epsilons=EPS)
    ours = attack(model, x, y, "fgsm" if "Fast" in name else "bim", EPS)
    assert (ours - clipped).abs().max() < 1e-5
    assert fooled(model, ours, y) > fooled(model, x, y)


def test_pgd_fools_as_many_as_foolbox(foolbox, task):
    model, x, y = task
    theirs = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    pgd = foolbox.attacks.LinfPGD(abs_stepsize=2 / 255, steps=20)
    _, clipped, _ = pgd(theirs, x, y, epsilons=EPS)
    ours = attack(model, x, y, "pgd", EPS)
    assert abs(fooled(model, ours, y) - fooled(model, clipped, y)) <= 0.03
    assert (ours - x).abs().max() <= EPS + 1e-6


@pytest.mark.parametrize(
    ("norm", "name"), [("l2", "L2DeepFoolAttack"), ("linf", "LinfDeepFoolAttack")]
)
def test_deepfool_equals_foolbox(foolbox, task, norm, name):
    model, x, y = task
    with torch.no_grad():
        right = model(x).argmax(1) == y
    x, y = x[right], y[right]
    theirs = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    raw, _, _ = getattr(foolbox.attacks, name)()(theirs, x, y, epsilons=None)
    ours = deepfool(model, x, y, norm=norm)
    assert fooled(model, ours, y) == 1.0
    order = {"l2": 2, "linf": float("inf")}[norm]
    mine, other = ((p - x).flatten(1).norm(order, dim=1) for p in (ours, raw))
    assert mine.mean() == pytest.approx(float(other.mean()), rel=0.02)


def test_deepfool_finds_the_distance_to_a_plane():
    model = nn.Linear(6, 3)
    x = 0.5 + 0.02 * torch.randn(40, 6)
    with torch.no_grad():
        scores = model(x)
    y = scores.argmax(1)
    w, gap = model.weight.detach(), scores - scores.gather(1, y.unsqueeze(1))
    for norm, dual in (("l2", 2), ("linf", 1)):
        lengths = (w - w[y].unsqueeze(1)).norm(dual, dim=2)
        distance = torch.where(lengths > 0, gap.abs() / lengths, torch.inf).amin(1)
        near = distance < 0.1  # the others would leave the valid pixels
        moved = deepfool(model, x, y, norm=norm, overshoot=0.0) - x
        size = moved.norm(2 if norm == "l2" else float("inf"), dim=1)
        assert near.sum() > 5
        assert torch.allclose(size[near], distance[near], atol=3e-4)


@pytest.mark.parametrize("method", ["fgsm", "bim", "pgd", "deepfool_l2"])
def test_attacks_in_normalized_space_are_those_of_the_pixels(task, method):
    model, x, y = task
    x, y = x[:40], y[:40]
    rule = Normalize(torch.tensor([0.3]).view(1, 1, 1), torch.tensor([0.25]).view(1, 1, 1))

    class Shifted(nn.Module):  # takes normalized input, computes the same
        def forward(self, v):
            return model(v * 0.25 + 0.3)

    def generator():
        return torch.Generator().manual_seed(1)

    plain = attack(model, x, y, method, EPS, generator=generator())
    found = attack(Shifted(), rule(x), y, method, EPS, normalize=rule, generator=generator())
    assert (found * 0.25 + 0.3 - plain).abs().max() < 1e-4
    pair = attack(
        Shifted(), rule(x), y, method, EPS, normalize=([0.3], [0.25]), generator=generator()
    )
    assert torch.equal(pair, found)


def test_examples_stay_in_the_box_and_in_valid_pixels(task):
    model, x, y = task
    for method in ("fgsm", "bim", "pgd"):
        found = attack(model, x, y, method, 0.3, step=0.1)
        assert (found - x).abs().max() <= 0.3 + 1e-6
        assert float(found.min()) >= 0 and float(found.max()) <= 1


def test_crafting_leaves_no_trace(task):
    model = nn.Sequential(
        nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 5), nn.Dropout(0.5)
    ).train()
    model[2].weight.requires_grad_(False)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    _, x, y = task
    attack(model, x, y, "bim", EPS, steps=2)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(m.training for m in model.modules())
    assert not model[2].weight.requires_grad and model[2].bias.requires_grad
    assert model[2].bias.grad is None
    with pytest.raises(RuntimeError), frozen(model):
        raise RuntimeError
    assert model.training


def test_results_white_box_and_transfer(task, tmp_path):
    model, x, y = task
    other = nn.Sequential(nn.Flatten(), nn.Linear(64, 5))
    batches = [(x[:100], y[:100]), (x[100:], y[100:])]
    methods = ("none", "fgsm", "bim", "deepfool_l2")
    seen = []
    white = robustness(model, batches, methods, EPS, progress=seen.append)
    black = robustness(model, batches, methods[:3], EPS, source=other)
    assert seen == [100, 200] and white.samples == 200
    assert white.accuracy("none") == 1 - fooled(model, x, y) == black.accuracy("none")
    assert white.accuracy("bim") <= white.accuracy("fgsm") <= white.accuracy("none")
    assert black.accuracy("fgsm") > white.accuracy("fgsm")
    curve = white.attacks[3].l2
    assert curve == sorted(curve) and len(curve) == round(200 * white.accuracy("none"))
    assert white.attacks[1].mean_linf == pytest.approx(EPS, rel=1e-3)
    assert "white box, eps 8" in str(white) and "black box" in str(black)
    assert white.to_json(tmp_path / "r.json").is_file()


def test_adversarial_training_makes_it_harder(task):
    _, x, y = task
    hook = AdversarialTraining(eps=0.04)
    models = []
    for adversarial in (False, True):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 5))
        optimizer = torch.optim.Adam(model.parameters(), 3e-3)
        for _ in range(80):
            batch = hook(model, x, y) if adversarial else x
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch), y).backward()
            optimizer.step()
        models.append(model)
    plain, hardened = (fooled(m, attack(m, x, y, "bim", 0.04, step=0.01), y) for m in models)
    assert hardened < plain
    half = AdversarialTraining(share=0.5)(models[0], x, y)
    assert torch.equal(half[100:], x[100:]) and not torch.equal(half[:100], x[:100])


def test_the_models_own_loss_can_be_raised(task):
    from hypersphere.models import Classifier

    _, x, y = task
    net = Classifier(nn.Flatten(), nn.Linear(64, 5))
    close(attack(net, x, y, "fgsm", EPS, loss=training_loss), attack(net, x, y, "fgsm", EPS))


def test_bad_attacks_are_named(task):
    model, x, y = task
    with pytest.raises(ValueError, match="8 of 255 write eps=8/255"):
        attack(model, x, y, "fgsm", eps=8)
    with pytest.raises(ValueError, match="unknown attack 'fgms'"):
        attack(model, x, y, "fgms")
    with pytest.raises(ValueError, match="give the model's normalization"):
        attack(model, x * 255, y)
    with pytest.raises(ValueError, match=r"y \(B,\)"):
        attack(model, x, y[:3])
    with pytest.raises(ValueError, match="at least one"):
        robustness(model, [])
    with pytest.raises(ValueError, match=r"share: expected a part of the batch in \(0, 1\]"):
        AdversarialTraining(share=0)
    with pytest.raises(ValueError, match=r"one per channel \(1\); got 3"):
        PixelRange.of(([0.1, 0.2, 0.3], [1, 1, 1]), x)
