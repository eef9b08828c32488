"""Butterflies, reflections, both sides, the input side: each against its own float64 reference."""

import copy

import pytest
import torch
from torch import nn

import hypersphere as hs
from hypersphere.orthogonal import Butterfly, Matrix, Reflections, TwoSided, rotate
from hypersphere.orthogonal.rotation import rotations
from tolerances import close

from reference import structures as reference

FORMS = {
    "blocks": {"blocks": 4},
    "shared": {"blocks": 4, "share_blocks": True},
    "exponential": {"method": "exponential", "blocks": 2},
    "ogd": {"method": "ogd", "blocks": 4},
    "butterfly": {"structure": "butterfly", "blocks": 4},
    "reflections": {"structure": "reflections", "rank": 4},
}


def moved(layer: nn.Module, std: float = 0.3) -> nn.Module:
    """The layer with another R."""
    with torch.no_grad():
        for *_, rotation in rotations(layer):
            for U in rotation.map.parameters():
                if rotation.method == "ogd":
                    noise = torch.randn(U.shape, dtype=U.dtype)
                    U.copy_(hs.functional.orthogonalize(U + std * noise, "gram_schmidt"))
                else:
                    U.add_(std * torch.randn(U.shape, dtype=U.dtype))
    return layer


def map_of(layer: nn.Module) -> nn.Module:
    return next(iter(rotations(layer)))[3].map


def test_butterfly_against_its_definition():
    for blocks, factors in ((1, 1), (2, 2), (4, 1), (4, 2), (4, 3), (8, 4)):
        d = 16
        layer = rotate(
            nn.Linear(d, 5).double(), structure="butterfly", blocks=blocks, factors=factors
        )
        R = map_of(moved(layer))
        assert isinstance(R, Butterfly) and R.factors == factors
        b = d // blocks
        W = [[reference.skew_of(u, b) for u in R.U[0, i * blocks : (i + 1) * blocks].detach()]
             for i in range(factors)]  # fmt: skip
        expected = reference.butterfly([[reference.cayley(w) for w in f] for f in W], d)
        close(R.dense()[0].detach(), expected)
        neurons = layer.parametrizations.weight.original.detach()
        close(layer.weight.detach(), neurons @ expected.T)
        assert (expected.abs() > 1e-12).all() == (b * 2 ** (factors - 1) == d)  # who reaches whom


def test_reflections_against_their_definition():
    layer = rotate(nn.Conv2d(4, 5, 3).double(), structure="reflections", rank=6)
    R = map_of(moved(layer))
    assert isinstance(R, Reflections)
    expected = reference.reflections(R.U[0].detach())
    close(R.dense()[0].detach(), expected)
    neurons = layer.parametrizations.weight.original.detach().flatten(1)
    close(layer.weight.detach().flatten(1), neurons @ expected.T)
    assert R.determinant() == 1.0 and R.orthogonality_error() < 1e-12


def test_both_sides_against_the_product():
    layer = rotate(nn.Linear(6, 5).double(), blocks=2, both_sides=True, start="identity")
    R = map_of(moved(layer))
    assert isinstance(R, TwoSided)
    inputs = [reference.cayley(reference.skew_of(u, 3)) for u in R.inputs.U[0].detach()]
    (output,) = [reference.cayley(reference.skew_of(u, 5)) for u in R.outputs.U[0].detach()]
    neurons = layer.parametrizations.weight.original.detach()
    expected = reference.both_sides(output, neurons, torch.block_diag(*inputs))
    close(layer.weight.detach(), expected)
    before = torch.linalg.svdvals(neurons)
    close(torch.linalg.svdvals(layer.weight.detach()), before)


@pytest.mark.parametrize("form", FORMS)
def test_the_input_side_is_the_weight_side(form):
    linear = nn.Linear(16, 8).double()
    sides = []
    for side in ("weight", "input"):
        torch.manual_seed(1)
        layer = rotate(copy.deepcopy(linear), side=side, start="identity", **FORMS[form])
        torch.manual_seed(2)
        sides.append(moved(layer))
    x = torch.randn(2, 3, 16, dtype=torch.float64)
    weight, inputs = sides
    close(inputs(x), weight(x))
    assert torch.equal(inputs.weight, linear.weight) and not inputs.weight.requires_grad
    grads = []
    for layer in sides:
        layer(x).square().sum().backward()
        grads.append(map_of(layer).U.grad)
    close(*grads, scale=10)
    close(inputs(input=x), weight(x))  # by keyword, too
    expected = inputs(x)
    twin = copy.deepcopy(inputs)
    hs.orthogonal.fold(inputs)
    close(inputs(x), expected)
    assert list(inputs.state_dict()) == ["weight", "bias"] and inputs.weight.requires_grad
    close(twin(x), expected)  # a copy stays rotated
    twin.load_state_dict(twin.state_dict())
    assert hs.orthogonal.orthogonality_error(twin) < 1e-9
    report = hs.orthogonal.report(twin).layers[0]
    assert report.energy_now == pytest.approx(report.energy_start)


def test_pointwise_convolutions_and_conv1d_on_the_input_side():
    for conv, shape in (
        (nn.Conv2d(8, 6, 1, stride=2, padding=1), (2, 8, 5, 5)),
        (nn.Conv1d(8, 6, 1), (8, 7)),  # without a batch
        (nn.ConvTranspose2d(8, 6, 1), (2, 8, 4, 4)),
    ):
        x = torch.randn(shape)
        layer = moved(rotate(copy.deepcopy(conv), side="input", start="identity", blocks=2))
        y = layer(x)
        assert (y - conv(x)).abs().max() > 1e-3
        close(hs.orthogonal.fold(layer)(x), y, scale=3)
    for layer, why in (
        (nn.Conv2d(4, 4, 3), "linear layers and 1x1 convolutions, not for convolution"),
        (nn.Conv2d(4, 4, 1, groups=2), "come in groups"),
        (nn.MultiheadAttention(4, 2), "not for attention"),
        (hs.layers.DecoupledLinear(4, 4), "no plain linear layer"),
    ):
        with pytest.raises(ValueError, match=why):
            rotate(layer, side="input", start="identity", skip=())
    changes = ({"learn_lengths": True}, {"both_sides": True}, {"method": "householder"})
    for options in ({}, *({"start": "identity", **more} for more in changes)):
        with pytest.raises(ValueError, match="changes the weight"):
            rotate(nn.Linear(4, 4), side="input", **options)


def test_auto_takes_the_cheaper_side():
    def side(layer, **options):
        plan = hs.orthogonal.describe(layer, **options)
        return next(iter(plan)).side

    assert side(nn.Linear(64, 64), blocks=4, start="identity") == "input"
    assert side(nn.Linear(64, 64), blocks=2, start="identity") == "weight"
    assert side(nn.Linear(64, 64), blocks=4) == "weight"  # a random start changes the weight
    assert side(nn.Linear(64, 64), start="identity") == "weight"
    assert side(nn.Conv2d(64, 64, 3), blocks=64, start="identity") == "weight"


@pytest.mark.parametrize("form", FORMS)
def test_identity_start_training_and_fold(form):
    options = FORMS[form]
    net = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 16), nn.Tanh())
    net.append(nn.Linear(16, 3))
    x = torch.randn(2, 4, 5, 5)
    before = net(x)
    rotate(net, start="identity", **options)
    close(net(x), before, scale=3)
    groups = hs.orthogonal.parameter_groups(net, lr=0.1)
    assert {"rotations", "decayed"} <= {g["name"] for g in groups} or form == "ogd"
    optimizer = hs.orthogonal.OGD(groups, lr=0.1)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        losses.append((net(x) - 1).square().mean())
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < losses[0]
    assert hs.orthogonal.orthogonality_error(net) < 1e-5
    state = net.state_dict()
    expected = net(x)
    again = nn.Sequential(*(copy.deepcopy(m) for m in hs.orthogonal.fold(copy.deepcopy(net))))
    rotate(again, start="identity", **options)
    again.load_state_dict(state)
    close(again(x), expected, scale=3)
    close(hs.orthogonal.fold(net)(x), expected, scale=3)


@pytest.mark.parametrize("form", ["butterfly", "reflections", "blocks", "exponential"])
def test_gradients(form):
    layer = moved(rotate(nn.Linear(8, 5).double(), start="identity", **FORMS[form]))
    R = map_of(layer)
    rows = torch.randn(3, 8, dtype=torch.float64, requires_grad=True)

    U = R.U.detach().clone().requires_grad_()

    def by_parameter(U, rows):
        twin = copy.copy(R)
        twin._parameters = {"U": U}
        return twin(rows), twin.turn_inputs(rows)

    assert torch.autograd.gradcheck(by_parameter, (U, rows))


def test_gradients_of_both_sides():
    R = map_of(moved(rotate(nn.Linear(4, 6).double(), blocks=2, both_sides=True)))
    rows = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    A = R.inputs.U.detach().clone().requires_grad_()
    B = R.outputs.U.detach().clone().requires_grad_()

    def turned(A, B, rows):
        inputs, outputs = copy.copy(R.inputs), copy.copy(R.outputs)
        inputs._parameters, outputs._parameters = {"U": A}, {"U": B}
        return TwoSided(inputs, outputs)(rows)

    assert torch.autograd.gradcheck(turned, (A, B, rows))


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "ogd"])
def test_both_sides_keep_the_spectrum_through_training_and_restarts(optimizer):
    torch.manual_seed(0)
    method = "ogd" if optimizer == "ogd" else "cayley"
    net = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 4))
    rotate(net, method, both_sides=True, start="identity", blocks=4)
    spectrum = torch.linalg.svdvals(net[0].weight.detach().double())
    angles = (net[0].weight @ net[0].weight.mT).detach()
    groups = hs.orthogonal.parameter_groups(net, lr=0.01, optimizer=optimizer)
    kinds = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD, "ogd": hs.orthogonal.OGD}
    steps = kinds[optimizer](groups, lr=0.01, **({} if optimizer == "adam" else {"momentum": 0.9}))
    x, y = torch.randn(64, 24), torch.randint(4, (64,))
    losses = []
    for step in range(60):
        if step % 20 == 10:
            before = net(x)
            hs.orthogonal.restart(net)
            close(net(x), before, scale=10)
        steps.zero_grad()
        losses.append(nn.functional.cross_entropy(net(x), y))
        losses[-1].backward()
        steps.step()
    now = torch.linalg.svdvals(net[0].weight.detach().double())
    assert (now - spectrum).abs().max() < 1e-6 * max(1.0, float(spectrum[0]))
    assert losses[-1] < losses[0]
    assert ((net[0].weight @ net[0].weight.mT) - angles).abs().max() > 1e-3  # it has moved


def test_restart_forgets_what_optimizers_remember():
    for given in (False, True):
        net = rotate(nn.Linear(8, 6), start="identity")
        optimizer = torch.optim.Adam(net.parameters(), lr=0.1)

        def step(net=net, optimizer=optimizer):
            optimizer.zero_grad()
            net(torch.ones(2, 8)).sum().backward()
            optimizer.step()

        for _ in range(3):
            step()
        U = map_of(net).U
        assert optimizer.state[U]["step"] == 3 and U.abs().max() > 0
        hs.orthogonal.restart(net, optimizer if given else None)
        assert U is map_of(net).U and not U.any()
        assert (U in optimizer.state) is not given
        step()
        assert optimizer.state[U]["step"] == 1 and optimizer.state[net.bias]["step"] == 4
    rotated = rotate(nn.Linear(6, 4), "ogd")
    ogd = hs.orthogonal.OGD(rotated.parameters(), lr=0.1, momentum=0.9)
    rotated(torch.randn(3, 6)).square().sum().backward()
    ogd.step()
    U = map_of(rotated).U
    hs.orthogonal.restart(rotated)
    close(U.detach()[0, 0], torch.eye(6))
    assert ogd.state[U]["momentum_buffer"].any()


@pytest.mark.parametrize("form", [*FORMS, "householder", "lengths", "skew"])
@pytest.mark.parametrize("side", ["weight", "input"])
def test_restart_keeps_outputs(form, side):
    options = FORMS.get(form, {})
    if form in ("householder", "skew"):
        options = {"method": form}
    if form == "lengths":
        options = {"learn_lengths": True}
    if side == "input" and form not in FORMS:
        return
    layer = rotate(nn.Linear(16, 8), start="identity", side=side, **options)
    moved(layer)
    x = torch.randn(3, 16)
    before = layer(x)
    weight = layer.weight.detach().clone()
    hs.orthogonal.restart(layer)
    close(layer(x), before, scale=10)
    assert (side == "input") == (not torch.allclose(layer.weight, weight, atol=1e-4))


def test_restart_refuses_what_it_cannot_do():
    layer = hs.orthogonal.add_task(rotate(nn.Linear(6, 4)), "birds")
    with pytest.raises(ValueError, match="several tasks"):
        hs.orthogonal.restart(layer)
    with pytest.raises(ValueError, match="function T"):
        hs.orthogonal.restart(rotate(nn.Linear(6, 4), lambda rows: -rows))


def test_messages():
    for options, message in (
        ({"structure": "tree"}, "unknown structure 'tree'"),
        ({"side": "output"}, "unknown side 'output'"),
        ({"structure": "butterfly", "method": "ogd"}, "made of orthogonal blocks"),
        ({"structure": "butterfly", "share_blocks": True}, "no shared blocks"),
        ({"factors": 2}, "factors counts the factors of structure='butterfly'"),
        ({"structure": "reflections", "rank": 3}, "an even number; got 3"),
        ({"structure": "reflections", "blocks": 2}, "has no blocks"),
        ({"structure": "reflections", "method": "ogd"}, "needs no method"),
        ({"both_sides": True, "method": "none"}, "both matrices are orthogonal"),
        ({"both_sides": True, "start": "normal"}, "cannot start from"),
    ):
        layer = nn.Linear(8, 8)
        with pytest.raises(ValueError, match=message):
            rotate(layer, **options)
        assert list(layer.state_dict()) == ["weight", "bias"]
    rotated = rotate(nn.Linear(8, 8), start="identity", side="input")
    for side in ("auto", "input", "weight"):
        with pytest.raises(ValueError, match="rotated already"):
            rotate(rotated, start="identity", side=side)
    with pytest.raises(ValueError, match="expected inputs of 8 features; got .3, 7"):
        rotated(torch.ones(3, 7))
    with pytest.raises(ValueError, match="2 butterfly factors need"):
        Butterfly(torch.zeros(1, 6, 3), "cayley", 3, 2)
    assert isinstance(map_of(rotated), Matrix)


def test_verbose_prints_the_plan(capsys):
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    rotate(net, start="identity", blocks=4, verbose=True)
    told = capsys.readouterr().out
    assert "cayley, 4 blocks" in told and "output layer" in told


def test_compiled_and_autocast_on_the_input_side():
    layer = moved(rotate(nn.Linear(16, 8), side="input", start="identity", blocks=4))
    x = torch.randn(4, 16)
    expected = layer(x)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    close(compiled(x), expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = layer(x)
    assert low.dtype == torch.bfloat16
    close(low, expected.bfloat16(), scale=3)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("form", ["butterfly", "reflections", "input", "both"])
def test_one_rate_for_new_forms(form, optimizer):
    """A first step decreases the loss about as much as plain training at the same rate does."""
    options = {
        "butterfly": {"structure": "butterfly", "blocks": 16},
        "reflections": {"structure": "reflections", "rank": 8},
        "input": {"blocks": 16, "side": "input"},
        "both": {"both_sides": True, "blocks": 16},
    }[form]
    torch.manual_seed(0)
    plain = nn.Linear(64, 64, bias=False)
    layer = rotate(copy.deepcopy(plain), start="identity", **options)
    G = torch.randn(64, 64)
    lr = 1e-4
    groups = hs.orthogonal.parameter_groups(layer, lr=lr, optimizer=optimizer)
    weight = plain.weight.detach()
    (_, _, _, rotation) = next(iter(rotations(layer)))
    effective = layer.weight if rotation.side == "weight" else rotation(weight)
    (effective * G).sum().backward()
    decrease = 0.0
    for group in groups:
        for p in group["params"]:
            size = p.grad.square().sum() if optimizer == "sgd" else p.grad.abs().sum()
            decrease += group["lr"] * float(size)
    expected = float(G.square().sum()) if optimizer == "sgd" else 0.6 * float(G.abs().sum())
    assert decrease == pytest.approx(lr * expected, rel=0.35)
