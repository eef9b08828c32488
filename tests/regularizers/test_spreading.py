"""Separation, KoLeo, Gram determinant, polarization and covering on the layers of a network."""

import math

import pytest
import torch
from torch import nn

from hypersphere import functional as HF
from hypersphere.registry import entry
from hypersphere.regularizers import Covering, GramDeterminant, KoLeo, Polarization, Separation

from reference import spreading as reference

KINDS = {
    "separation": Separation,
    "koleo": KoLeo,
    "gram_determinant": GramDeterminant,
    "polarization": Polarization,
    "covering": Covering,
}
FUNCTIONS = {
    "separation": HF.separation,
    "koleo": HF.koleo,
    "gram_determinant": lambda w, half: HF.gram_determinant(w, half_space=half),
    "polarization": lambda w, half: HF.polarization(
        w, half_space=half, points=HF.polarization_points(w, half_space=half, steps=200)
    ),
    "covering": lambda w, half: HF.covering(
        w, half_space=half, points=HF.covering_points(w, half_space=half, steps=200)
    ),
}


def network():
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))


def make(name, **options):
    if name in ("polarization", "covering"):
        options |= {"points": 32, "steps": 200}
    return KINDS[name](**options)


@pytest.mark.parametrize("name", KINDS)
def test_it_is_the_sum_over_layers_with_their_factors(name):
    net = network().double()
    reg = make(name, hidden=2.0, output=0.5)
    value = reg(net)
    function = FUNCTIONS[name]
    expected = 2 * function(net[0].weight, True) + 2 * function(net[2].weight, True)
    expected = expected + 0.5 * function(net[4].weight, False)
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-6)
    value.backward()
    slopes = [net[i].weight.grad.clone() for i in (0, 2, 4)]
    net.zero_grad()
    expected.backward()
    torch.testing.assert_close(
        slopes, [net[i].weight.grad for i in (0, 2, 4)], rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize("name", KINDS)
def test_registered_reported_and_explained(name):
    assert entry("regularizer", name).target is KINDS[name]
    net, reg = network(), make(name, average=True)
    report = reg.report(net)
    assert report.total == pytest.approx(float(reg(net).detach()), rel=1e-4, abs=1e-5)
    assert [layer.factor for layer in report] == [0.5, 0.5, 1.0]
    assert "hidden=1.0" in repr(reg)


@pytest.mark.parametrize("name", KINDS)
def test_groups_are_sets_of_their_own(name):
    layer = nn.Conv2d(8, 6, 3, groups=2)
    function = FUNCTIONS[name]
    halves = [function(part.flatten(1), True) for part in layer.weight.chunk(2)]
    value = make(name, output=0.0)(layer)
    torch.testing.assert_close(value, (halves[0] + halves[1]) / 2, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", KINDS)
def test_a_batch_moves_as_many_neurons(name):
    layer = nn.Linear(6, 40, bias=False)
    reg = make(name, batch=10, output_layers=())
    reg(layer).backward()
    moved = int((layer.weight.grad.norm(dim=1) > 0).sum())
    assert moved == 2 if name == "separation" else 2 <= moved <= 10
    again = float(reg(layer).detach())
    assert again != float(reg(layer).detach())  # another batch


# A learning rate for each, and how many steps it takes from a random start.
RATES = {
    "separation": 0.05, "koleo": 0.05, "gram_determinant": 1.0, "polarization": 0.3,
    "covering": 0.1,
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_minimizing_it_alone_gives_the_regular_tetrahedron(name):
    layer = nn.Linear(3, 4, bias=False).double()
    options = {"steps": 10} if name in ("polarization", "covering") else {}
    reg = KINDS[name](half_space=False, **options)
    for step in range(800):
        layer.zero_grad()
        reg(layer).backward()
        rate = RATES[name] * (1 - step / 800) ** 2  # those with ties step over their optimum
        with torch.no_grad():
            layer.weight -= rate * layer.weight.grad
            layer.weight.copy_(HF.normalize(layer.weight))
    cos = HF.pairwise_cosine(layer.weight.detach())[~torch.eye(4, dtype=torch.bool)]
    torch.testing.assert_close(cos, torch.full_like(cos, -1 / 3), rtol=0, atol=5e-3)


@pytest.mark.parametrize("kind", [Polarization, Covering])
def test_points_are_kept_saved_and_resumed(kind):
    net = network()
    reg = kind()
    for _ in range(3):
        reg(net)
    assert reg.found["0"].shape == (1, 8, 4)
    resumed = kind()
    resumed.load_state_dict(reg.state_dict())
    assert torch.equal(resumed.found["2"], reg.found["2"])
    assert torch.equal(resumed(net), reg(net))
    before = {name: value.clone() for name, value in reg.tensors().items()}
    reg.report(net)
    assert all(torch.equal(value, before[name]) for name, value in reg.tensors().items())
    reg.eval()
    reg(net)
    assert torch.equal(reg.found["0"], before["points/0"])
    with pytest.raises(ValueError, match="use one .* per network"):
        reg(nn.Sequential(nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 6)))


@pytest.mark.parametrize("kind", [Polarization, Covering])
def test_a_few_warm_steps_follow_slowly_moving_neurons(kind):
    layer = nn.Linear(3, 20, bias=False).double()
    reg = kind(half_space=False, output_layers=())
    exact = FUNCTIONS[kind.__name__.lower()]
    for _ in range(30):
        with torch.no_grad():
            layer.weight += 0.01 * torch.randn(20, 3, dtype=torch.float64)
        value = float(reg(layer).detach())
    assert value == pytest.approx(float(exact(layer.weight, False).detach()), rel=1e-4)


@pytest.mark.parametrize("name", KINDS)
def test_it_runs_in_bfloat16_and_under_autocast(name):
    net, reg = network(), make(name)
    expected = float(reg(net).detach())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert float(reg(net).detach()) == pytest.approx(expected, rel=1e-4, abs=1e-4)
    assert math.isfinite(float(make(name)(network().bfloat16()).detach()))


@pytest.mark.parametrize(
    "build, error, message",
    [
        (lambda: Separation(hidden=-1), ValueError, "hidden"),
        (lambda: Separation(reduction="max"), ValueError, "reduction must be one of min, mean"),
        (lambda: KoLeo(batch=1), ValueError, "at least 2"),
        (lambda: GramDeterminant(epsilon=0), ValueError, "epsilon"),
        (lambda: GramDeterminant(ridge=-1e-6), ValueError, "ridge"),
        (lambda: Polarization(s=-1), ValueError, "s must be"),
        (lambda: Polarization(distance="geo"), ValueError, "did you mean 'geodesic'"),
        (lambda: Polarization(points=0), ValueError, "points >= 1"),
        (lambda: Covering(sharpness=0.0), ValueError, "sharpness"),
        (lambda: Covering(steps=0), ValueError, "steps >= 1"),
        (lambda: KoLeo(skip="fc"), TypeError, "sequence of names"),
    ],
)
def test_wrong_options_are_told_at_construction(build, error, message):
    with pytest.raises(error, match=message):
        build()


def test_features_take_the_functions_as_losses():
    features = reference.simplex(5).float().requires_grad_()
    noise = 0.1 * torch.randn(6, 5)
    for function in FUNCTIONS.values():
        loss = function(features + noise, False)
        loss.backward()
        assert features.grad.isfinite().all()
