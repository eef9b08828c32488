"""The head with fixed class directions."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from hypersphere import functional as HF
from hypersphere.heads import AMSoftmaxHead, Margin, PrototypeHead
from hypersphere.registry import entry

from reference import margins as reference

DIM, CLASSES = 6, 5

MARGINS = {
    "none": (None, {}),
    "multiplicative": (Margin(m=3), {"m": 3}),
    "angular": (Margin(shift=0.4), {"shift": 0.4}),
    "additive": (Margin(subtract=0.3), {"subtract": 0.3}),
}


def batch(seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(7, DIM, dtype=torch.float64, generator=generator)
    return x, torch.randint(CLASSES, (7,), generator=generator)


@pytest.mark.parametrize("scale", [12.0, None])
@pytest.mark.parametrize("name", MARGINS)
def test_scores_and_loss_are_the_equations(name, scale):
    margin, settings = MARGINS[name]
    prototypes = HF.simplex_prototypes(CLASSES, DIM)
    head = PrototypeHead(prototypes, margin=margin, scale=scale, chunk=2).double()
    head.weight.copy_(prototypes)
    x, y = batch()
    scores = reference.logits(x, prototypes, y, scale=scale, **settings)
    torch.testing.assert_close(head(x, y), scores)
    torch.testing.assert_close(head(x), reference.logits(x, prototypes, None, scale=scale))
    assert float(head.loss(x, y)) == pytest.approx(reference.cross_entropy(scores, y))
    x.requires_grad_()
    assert torch.autograd.gradcheck(lambda z: head.loss(z, y), x)
    smooth = F.cross_entropy(head(x, y), y, label_smoothing=0.1)
    torch.testing.assert_close(head.loss(x, y, label_smoothing=0.1), smooth)


def test_lengths_of_the_prototypes_do_not_matter():
    prototypes = HF.simplex_prototypes(CLASSES, DIM)
    lengths = torch.linspace(0.1, 5, CLASSES, dtype=torch.float64)[:, None]
    x, y = batch()
    a, b = PrototypeHead(prototypes), PrototypeHead(lengths * prototypes)
    torch.testing.assert_close(a(x.float(), y), b(x.float(), y))


def test_no_optimizer_sees_the_prototypes_and_the_state_dict_does():
    head = PrototypeHead(HF.simplex_prototypes(CLASSES, DIM), learn_scale=True, scale=10.0)
    assert [name for name, _ in head.named_parameters()] == ["log_scale"]
    assert [name for name, _ in head.named_buffers()] == ["weight"]
    assert head.no_weight_decay == ("log_scale",)
    before = head.weight.clone()
    other = PrototypeHead(HF.prototypes(CLASSES, DIM).flip(0), learn_scale=True, scale=5.0)
    assert not torch.equal(other.weight, before)
    other.load_state_dict(head.state_dict())
    assert torch.equal(other.weight, before) and float(other.scale.detach()) == pytest.approx(10)
    x, y = batch()
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    head.loss(x.float(), y).backward()
    optimizer.step()
    head.reset_parameters()
    assert torch.equal(head.weight, before)
    assert head.weight.grad is None and head.half().weight.dtype == torch.float16
    with pytest.raises(TypeError, match="cannot be sharded"):
        head.weight = nn.Parameter(torch.zeros(CLASSES, DIM))


def test_prototypes_are_made_from_sizes():
    head = PrototypeHead(in_features=3, num_classes=7, seed=1)
    torch.testing.assert_close(head.weight, HF.prototypes(7, 3, seed=1).float())
    assert (head.in_features, head.num_classes) == (3, 7)
    assert entry("head", "prototype").target is PrototypeHead
    assert "scale=30" in repr(head)


def test_it_does_not_share_memory_with_what_it_was_given():
    given = torch.eye(4)
    head = PrototypeHead(given)
    given.zero_()
    assert torch.equal(head.weight, torch.eye(4))


@pytest.mark.parametrize("last", [nn.Identity, nn.ReLU])
def test_a_network_learns_fixed_directions_as_well_as_free_ones(last):
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    x = torch.tensor(digits.data / 16.0, dtype=torch.float32)
    y = torch.tensor(digits.target)
    accuracies = []
    for make in (
        lambda: PrototypeHead(HF.simplex_prototypes(10, 32), margin=Margin(subtract=0.2)),
        lambda: AMSoftmaxHead(32, 10, m=0.2),
    ):
        torch.manual_seed(0)
        layers = [nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), last()]
        net, head = nn.Sequential(*layers), make()
        parameters = [*net.parameters(), *head.parameters()]
        optimizer = torch.optim.SGD(parameters, lr=0.01, momentum=0.9)
        for step in range(150):
            rows = torch.arange(step * 64, step * 64 + 64) % 1500
            optimizer.zero_grad()
            head.loss(net(x[rows]), y[rows]).backward()
            optimizer.step()
        with torch.no_grad():
            right = head(net(x[1500:])).argmax(1) == y[1500:]
        accuracies.append(float(right.float().mean()))
    assert accuracies[0] > 0.8 and accuracies[0] > accuracies[1] - 0.05


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: PrototypeHead(), "prototypes .C, d., or in_features and num_classes"),
        (lambda: PrototypeHead(torch.zeros(3)), r"prototypes \(C, d\)"),
        (lambda: PrototypeHead(torch.ones(1, 3)), "C >= 2"),
        (lambda: PrototypeHead(torch.ones(3, 3, dtype=torch.long)), "int64"),
        (lambda: PrototypeHead(torch.zeros(3, 2)), "row 0 has length 0.0"),
        (lambda: PrototypeHead(torch.eye(3), in_features=4), "do not fit"),
        (lambda: PrototypeHead(torch.eye(3), scale=-1.0), "scale"),
    ],
)
def test_wrong_prototypes_are_told(make, message):
    with pytest.raises(ValueError, match=message):
        make()
