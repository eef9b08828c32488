"""One learning rate for all maps: decrease of the loss in a small step, turns of Adam, decay."""

import pytest
import torch
from torch import nn

import hypersphere as hs
from hypersphere.orthogonal import parameter_groups, rotate
from rates import MAPS, decrease, optimizer_of, problem, step

SIZES = ((64, 1), (64, 4), (64, 16), (256, 1), (256, 16), (1024, 4), (1024, 16))


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_one_rate_for_all_maps_blocks_and_widths(name):
    lr = 1e-4 if name == "sgd" else 1e-7
    ratios = {}
    for d, blocks in SIZES:
        plain = step(d, 1, None, name, lr)
        for method in MAPS:
            if name == "adam" and method == "ogd":
                continue  # it is an optimizer itself
            if d == 1024 and method in ("householder", "exponential"):
                continue  # slow; their constants are those of Gram-Schmidt
            ratios[d, blocks, method] = step(d, blocks, method, name, lr) / plain
    low, high = min(ratios.values()), max(ratios.values())
    assert high / low < 1.25, ratios
    assert 0.5 < low <= high < 2.0, ratios


def moved(d, blocks, share, name, seed):
    """How far a step moves the weight with Cayley's map, over plain training."""
    found = []
    for method in (None, "cayley"):
        net, loss = problem(d, seed=seed)
        if method is not None:
            rotate(net, method, blocks=blocks, share_blocks=share, start="identity", side="weight")
        before = net[0].weight.detach().clone()
        decrease(net, loss, name, 1e-2 if name == "sgd" else 1e-5)
        found.append((net[0].weight.detach() - before).norm().item())
    return found[1] / found[0]


@pytest.mark.parametrize(("name", "least", "most"), [("sgd", 1, 5), ("adam", 0.5, 3)])
def test_fewer_directions_move_further_for_the_same_decrease(name, least, most):
    """docs/orthogonal.md says so."""
    for d, blocks in ((64, 1), (64, 4), (256, 1), (256, 16)):
        assert all(least < moved(d, blocks, False, name, seed) < most for seed in range(3))
    assert all(moved(64, 16, True, name, seed) > 10 for seed in range(3))


def test_raw_rates_differ_by_the_constants_of_the_maps():
    found = [
        step(64, 1, method, "sgd", 1e-5, scale_rotations=False)
        for method in ("cayley", "exponential", "gram_schmidt", "householder", "loewdin", "ogd")
    ]
    ratios = [value / found[-1] for value in found]
    assert ratios == pytest.approx([8, 2, 2, 2, 1, 1], rel=0.02)


@pytest.mark.parametrize("length", [0.1, 10.0])
def test_the_length_of_the_neurons_enters_squared(length):
    layer = nn.Linear(32, 16)
    with torch.no_grad():
        layer.weight.copy_(length * hs.functional.normalize(layer.weight))
    (rate,) = [
        g["lr"]
        for g in parameter_groups(rotate(layer, "cayley", start="identity", skip=()), lr=1.0)
        if g["name"] == "rotations"
    ]
    assert rate == pytest.approx(1 / (4 * (1 - 1 / 32) * length**2), rel=0.1)


@pytest.mark.parametrize("start", ["identity", "random", "normal"])
@pytest.mark.parametrize("method", ["cayley", "loewdin", "gram_schmidt"])
def test_any_start_moves_as_fast(method, start):
    net, _ = problem(64)
    rotate(net, method, start=start, normalize=False)
    torch.manual_seed(1)
    G = torch.randn(96, 64)
    (group,) = [g for g in parameter_groups(net, lr=1.0) if g["name"] == "rotations"]
    (grad,) = torch.autograd.grad(net[0].weight, group["params"], G)
    ratio = float(group["lr"] * grad.square().sum() / G.square().sum())
    # From N(0, 1) a few directions of U carry the gradient, so that one draw says less.
    assert ratio == pytest.approx(1, rel=0.7 if start == "normal" else 0.15)


@pytest.mark.parametrize("blocks", [1, 4])
@pytest.mark.parametrize("method", ["cayley", "gram_schmidt", "loewdin", "exponential"])
@pytest.mark.parametrize("d", [64, 512])
def test_the_first_step_of_adam_turns_neurons_by_few_degrees(method, d, blocks):
    net, loss = problem(d, 32)
    rotate(net, method, blocks=blocks, start="identity")
    before = net[0].weight.detach().clone()
    optimizer = optimizer_of(net, "adam", 1e-3)
    loss().backward()
    optimizer.step()
    turned = torch.rad2deg(hs.functional.angle(before, net[0].weight.detach()))
    assert turned.max() < 6
    assert turned.max() > 0.1


def test_adam_of_a_wide_sparse_layer_turns_about_as_far_as_plain_adam():
    # The first layer of a GCN: 1433 inputs, sixteen neurons, rate 0.01.
    torch.manual_seed(0)
    turns = {}
    for method in (None, "cayley", "loewdin"):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(1433, 16, bias=False), nn.ReLU(), nn.Linear(16, 7))
        nn.init.xavier_uniform_(net[0].weight)
        x, y = (torch.rand(140, 1433) < 0.0127).float(), torch.randint(7, (140,))
        if method is not None:
            rotate(net, method, start="identity")
        before = net[0].weight.detach().clone()
        optimizer = optimizer_of(net, "adam", 0.01)
        nn.functional.cross_entropy(net(x / x.sum(1, keepdim=True)), y).backward()
        optimizer.step()
        angle = hs.functional.angle(before, net[0].weight.detach())
        turns[method] = torch.rad2deg(angle).max().item()
    assert turns["cayley"] < 1.3 * turns[None]
    assert turns["loewdin"] < 1.3 * turns[None]


def test_decay_of_free_rotations_keeps_its_effect_per_step():
    layer = rotate(nn.Linear(16, 8, bias=False), "none", start="identity", skip=())
    for name in ("sgd", "adamw"):
        (group,) = parameter_groups(layer, 0.01, decay_rotations=True, lr=0.1, optimizer=name)
        assert group["lr"] * group["weight_decay"] == pytest.approx(0.1 * 0.01)


def test_all_rotations_may_decay_as_in_the_text():
    layer = rotate(nn.Linear(16, 8, bias=False), "cayley", start="normal", skip=())
    (group,) = parameter_groups(layer, 0.01, decay_rotations="all")
    assert group["weight_decay"] == 0.01
    assert group["params"][0].std() > 0.5
    with pytest.raises(ValueError, match="start='normal' draws any U"):
        rotate(nn.Linear(16, 8), "ogd", start="normal", skip=())


def test_without_a_rate_nothing_is_scaled():
    net, _ = problem(64)
    rotate(net, "cayley")
    assert all("lr" not in group for group in parameter_groups(net))
    raw = parameter_groups(net, lr=0.3, scale_rotations=False)
    assert {group["lr"] for group in raw} == {0.3}
    with pytest.raises(ValueError, match="unknown optimizer 'adm'; did you mean 'adam'"):
        parameter_groups(net, lr=0.3, optimizer="adm")


def test_learned_lengths():
    torch.manual_seed(0)
    layer = nn.Linear(12, 6)
    weight = layer.weight.detach().clone()
    rotate(layer, "cayley", start="identity", learn_lengths=True, skip=())
    assert torch.allclose(layer.weight, weight, atol=1e-6)
    rotation = layer.parametrizations.weight[0]
    assert torch.allclose(rotation.lengths[:, 0], weight.norm(dim=1))
    names = {g["name"]: g for g in parameter_groups(layer, weight_decay=0.1, lr=0.1)}
    (held,) = [g for g in names.values() if any(p is rotation.lengths for p in g["params"])]
    assert held["weight_decay"] == 0  # one number per neuron, as a bias
    optimizer = torch.optim.SGD(list(names.values()))
    x, y = torch.randn(64, 12), torch.randn(64, 6)
    losses = []
    for _ in range(100):
        optimizer.zero_grad()
        loss = (layer(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert not torch.allclose(layer.weight.norm(dim=1), weight.norm(dim=1), atol=1e-2)
    state, outputs = layer.state_dict(), layer(x)
    again = rotate(nn.Linear(12, 6), "cayley", learn_lengths=True, skip=())
    again.load_state_dict(state)
    assert torch.equal(again(x), outputs)
    assert torch.allclose(hs.orthogonal.fold(layer)(x), outputs, atol=1e-6)


def test_resumed_runs_of_earlier_versions_keep_raw_rates():
    from hypersphere.training import Config

    saved = Config().to_dict()
    assert Config.from_dict(saved).optimizer.scale_rotations
    del saved["optimizer"]["scale_rotations"]
    assert not Config.from_dict(saved).optimizer.scale_rotations


@pytest.mark.parametrize("name", ["lr", "weight_decay"])
@pytest.mark.parametrize("value", [-1, -0.1, float("nan"), float("inf"), "a", True])
def test_rates_and_decays_are_finite_numbers_from_zero_on(name, value):
    layer = rotate(nn.Linear(8, 4), "cayley", skip=())
    with pytest.raises(ValueError, match=f"{name} must be a number >= 0; got {value!r}"):
        parameter_groups(layer, **{name: value})


def test_rates_may_be_zero_or_tensors():
    layer = rotate(nn.Linear(8, 4), "cayley", skip=())
    assert all(g["lr"] == 0 for g in parameter_groups(layer, lr=0, weight_decay=0))
    groups = parameter_groups(layer, lr=torch.tensor(0.1))
    assert all(isinstance(g["lr"], torch.Tensor) for g in groups)
    assert parameter_groups(layer, lr=None)[0].keys() == {"name", "params", "weight_decay"}
