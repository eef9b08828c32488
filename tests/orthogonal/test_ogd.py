"""OGD against Eq. 7.5, and over a long training."""

import copy

import pytest
import torch
from torch import nn

import hypersphere as hs
from hypersphere.orthogonal import OGD, Matrix, parameter_groups, rotate
from tolerances import close

from reference.orthogonalize import ogd_step


def matrix_of(layer: nn.Module) -> torch.Tensor:
    return next(p for n, p in layer.named_parameters() if n.endswith(".U"))


@pytest.mark.parametrize("iterations,tolerance", [(1, 1e-4), (2, 3e-6), (12, 1e-12)])
def test_one_step_approaches_the_cayley_transform(iterations, tolerance):
    layer = hs.orthogonal.rotate(nn.Linear(6, 5).double(), "ogd")
    U = matrix_of(layer)
    start = U.detach()[0, 0].clone()
    U.grad = torch.randn_like(U)
    optimizer = hs.orthogonal.OGD(
        hs.orthogonal.parameter_groups(layer), lr=0.02, iterations=iterations
    )
    optimizer.step()
    expected = ogd_step(start, U.grad[0, 0], 0.02)
    assert (U.detach()[0, 0] - expected).abs().max() < tolerance
    assert hs.orthogonal.orthogonality_error(layer) < 1e-5


def test_the_rest_is_torch_sgd():
    torch.manual_seed(0)
    ours, theirs = nn.Linear(4, 3), nn.Linear(4, 3)
    theirs.load_state_dict(ours.state_dict())
    a = hs.orthogonal.OGD(ours.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True)
    b = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True)
    for _ in range(5):
        x = torch.randn(8, 4)
        for layer, optimizer in ((ours, a), (theirs, b)):
            optimizer.zero_grad()
            layer(x).square().mean().backward()
            optimizer.step()
    close(ours.weight, theirs.weight)


def test_marked_matrices_stay_orthogonal_in_any_group():
    """OGD(model.parameters()), also for copies, further tasks and assigned checkpoints."""
    layer = hs.orthogonal.rotate(nn.Linear(8, 5), "ogd")
    task = copy.deepcopy(layer)
    hs.orthogonal.use_task(hs.orthogonal.add_task(task, "birds"), "birds")
    assigned = copy.deepcopy(layer)
    assigned.load_state_dict(layer.state_dict(), assign=True)
    for net in (layer, task, assigned):
        optimizer = hs.orthogonal.OGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
        U = net.parametrizations.weight[0].map.U
        start = U.detach().clone()
        for _ in range(10):
            optimizer.zero_grad()
            (net(torch.randn(4, 8)) - 1).square().mean().backward()
            optimizer.step()
        assert hs.orthogonal.orthogonality_error(net) < 1e-5
        assert not torch.equal(U, start)
    plain = hs.orthogonal.rotate(nn.Linear(8, 5), "none")
    assert not any(hasattr(p, "orthogonal") for p in plain.parameters())


def test_nesterov_looks_ahead_on_matrices():
    layer = hs.orthogonal.rotate(nn.Linear(6, 5).double(), "ogd")
    U = matrix_of(layer)
    expected, past = U.detach()[0, 0].clone(), torch.zeros(6, 6, dtype=torch.float64)
    optimizer = hs.orthogonal.OGD(
        layer.parameters(), lr=0.02, momentum=0.9, iterations=14, nesterov=True
    )
    eye = torch.eye(6, dtype=torch.float64)
    for _ in range(3):
        U.grad = torch.randn_like(U)
        newest = -(U.grad[0, 0] @ expected.T - expected @ U.grad[0, 0].T) / 2
        past = 0.9 * past + newest
        W = 0.02 / 2 * (newest + 0.9 * past)
        expected = torch.linalg.solve(eye - W, (eye + W) @ expected)
        optimizer.step()
        torch.testing.assert_close(U.detach()[0, 0], expected, atol=1e-9, rtol=0)
    with pytest.raises(ValueError, match="nesterov needs a momentum"):
        hs.orthogonal.OGD(layer.parameters(), nesterov=True)


@pytest.mark.slow
@pytest.mark.parametrize("lr,steps", [(0.05, 10_000), (20.0, 2_000)])
def test_stays_orthogonal_over_ten_thousand_steps(lr, steps):
    """Also with a learning rate far too large, where every step is cut short."""
    layer = hs.orthogonal.rotate(nn.Linear(12, 8, bias=False), "ogd")
    U, target = matrix_of(layer), torch.randn(8, 12)
    optimizer = hs.orthogonal.OGD(hs.orthogonal.parameter_groups(layer), lr=lr, momentum=0.9)
    gram = (layer.weight @ layer.weight.T).detach()
    neurons = layer.parametrizations.weight.original
    for step in range(10_000):
        noise = torch.randn(8, 12)
        with (
            torch.no_grad()
        ):  # gradient of |R v - target|^2 / 2 with noise, without autograd's time
            U.grad = ((neurons @ U[0, 0].T - target + noise).T @ neurons)[None, None]
        optimizer.step()
        if step % 1000 == 999:
            assert hs.orthogonal.orthogonality_error(layer) < 1e-5
    close(layer.weight @ layer.weight.T, gram, scale=3)


def test_finds_a_known_rotation():
    torch.manual_seed(4)
    layer = hs.orthogonal.rotate(nn.Linear(6, 6, bias=False), "ogd", start="identity")
    turn = hs.functional.random_rotation(6)
    target = layer.weight.detach() @ turn.T
    optimizer = hs.orthogonal.OGD(hs.orthogonal.parameter_groups(layer), lr=0.1, momentum=0.9)
    for _ in range(600):
        optimizer.zero_grad()
        (layer.weight - target).square().sum().backward()
        optimizer.step()
    assert (layer.weight - target).abs().max() < 1e-2


def test_groups_closure_and_messages():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(4, 2))
    hs.orthogonal.rotate(model, "ogd", skip=("1", "3"))
    hs.orthogonal.rotate(model[1], "cayley")
    groups = hs.orthogonal.parameter_groups(model, weight_decay=0.01)
    summary = {g["name"]: (len(g["params"]), g["weight_decay"]) for g in groups}
    assert summary == {"orthogonal": (1, 0.0), "rotations": (1, 0.0), "decayed": (4, 0.01)}
    optimizer = hs.orthogonal.OGD(groups, lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.randn(2, 3, 5, 5)).square().mean()
        loss.backward()
        return loss

    assert optimizer.step(closure) > 0
    decayed = hs.orthogonal.parameter_groups(model, 0.01, decay_rotations=True)
    assert [len(g["params"]) for g in decayed] == [1, 1, 4]  # orthogonal maps have no use for it
    with pytest.raises(ValueError, match="iterations must be at least 1"):
        hs.orthogonal.OGD(groups, iterations=0)
    with pytest.raises(ValueError, match="must not be negative"):
        hs.orthogonal.OGD(groups, lr=-1.0)


@pytest.mark.parametrize("method", ["none", "regularized"])
def test_unconstrained_matrices_decay_on_demand(method):
    layer = hs.orthogonal.rotate(nn.Linear(6, 5), method)
    free, _ = hs.orthogonal.parameter_groups(layer)
    assert free["weight_decay"] == 0 and free["params"] == [matrix_of(layer)]
    (both,) = hs.orthogonal.parameter_groups(layer, decay_rotations=True)
    assert both["weight_decay"] == 5e-4 and len(both["params"]) == 2


def test_marked_parameters_do_not_decay():
    model = nn.ModuleDict(
        {
            "body": hs.layers.DecoupledLinear(6, 5, rescale=True),
            "fc": nn.Linear(5, 4),
            "timm": nn.Linear(4, 4),
            "head": hs.heads.MarginHead(4, 3, scale=30.0, learn_scale=True),
        }
    )
    model["fc"].no_weight_decay = ("weight",)
    model["timm"].no_weight_decay = lambda: {"bias"}
    hs.orthogonal.rotate(model, skip=("timm", "head"), learn_neurons=True)
    names = {id(p): n for n, p in model.named_parameters()}
    groups = hs.orthogonal.parameter_groups(model)
    undecayed = {names[id(p)] for g in groups if g["weight_decay"] == 0 for p in g["params"]}
    assert "fc.parametrizations.weight.original" in undecayed and "fc.bias" not in undecayed
    assert "timm.bias" in undecayed and "timm.weight" not in undecayed
    assert {"head.log_scale", "body.operator.rescale.beta"} <= undecayed
    assert not {"head.weight", "body.parametrizations.weight.original"} & undecayed


def small(seed=0):
    torch.manual_seed(seed)
    return rotate(nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)), "ogd")


def train(model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(5, 8)).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD])
def test_another_optimizer_is_stopped_at_its_first_step(optimizer):
    model = small()
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(RuntimeError, match=f"{optimizer.__name__} would not keep R .*'cayley'"):
        train(model, optimizer(model.parameters(), lr=1e-6), 1)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    twin = copy.deepcopy(model)
    with pytest.raises(RuntimeError, match="would not keep R"):
        train(twin, optimizer(twin.parameters(), lr=1e-6), 1)
    # The rest of the model may have any optimizer.
    rest = [p for p in model.parameters() if not getattr(p, "orthogonal", False)]
    train(model, optimizer(rest, lr=0.1), 1)


def test_a_matrix_that_was_written_to_is_looked_at():
    model = small()
    with torch.no_grad():
        matrix_of(model).mul_(1.1)
    model.eval()(torch.randn(2, 8))  # evaluation shows what there is
    with pytest.raises(RuntimeError, match="is not orthogonal any more"):
        model.train()(torch.randn(2, 8))


def test_ogd_checkpoints_and_low_precision_raise_no_alarm(monkeypatch):
    model = small()
    train(model, OGD(parameter_groups(model), lr=0.5, momentum=0.9), 50)
    other = small(1)
    other.load_state_dict(model.state_dict())
    train(other, OGD(parameter_groups(other), lr=0.5), 5)
    train(copy.deepcopy(other), OGD(other.parameters(), lr=0.1), 2)
    half = small().bfloat16()
    half(torch.randn(2, 8, dtype=torch.bfloat16))
    # What OGD wrote is not looked at again.
    matrix = next(m for m in other.modules() if isinstance(m, Matrix))
    matrix(torch.randn(6, 8))
    monkeypatch.setattr(torch, "no_grad", lambda: pytest.fail("looked again"))
    matrix(torch.randn(6, 8))


def test_momentum_goes_on_after_loading_in_sixteen_bits():
    """Loading casts the buffers of an optimizer to the type of their parameters."""
    losses = []
    for reload in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 4)).bfloat16()
        rotate(model, method="ogd", skip=())
        optimizer = OGD(parameter_groups(model), lr=0.1, momentum=0.9)
        x = torch.randn(5, 8, dtype=torch.bfloat16)
        for step in range(3):
            if reload and step:
                optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            loss = model(x).float().square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=2e-2)
