import io
from itertools import pairwise

import pytest
import torch
from torch import nn

from hypersphere import functional as HF
from hypersphere.regularizers import MHE, SRIP, CoMHE, Orthogonal, Orthonormal
from tolerances import close

from reference import energy as reference

KINDS = [
    {"projection": "random"},
    {"projection": "random", "aggregate": "max", "sketch": "hadamard", "share": False},
    {"projection": "random", "sketch": "count", "redraw_every": 3},
    {"projection": "angle_preserving", "mode": "unrolled", "redraw_every": 2},
    {
        "projection": "angle_preserving",
        "mode": "alternating",
        "measure": "cosine",
        "update_every": 2,
    },
    {"projection": "adversarial", "redraw_every": 4},
    {"projection": "group", "group_channels": 4},
    {"projection": "group", "group_channels": 4, "stochastic": True, "redraw_every": 2},
    {"projection": "bilateral", "count": 2},
]
IDS = ["-".join(str(v) for v in kind.values()) for kind in KINDS]


def network():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.Conv2d(8, 10, 3), nn.Conv2d(10, 10, 3, groups=2), nn.Flatten(),
        nn.Linear(72, 9), nn.Linear(9, 4),
    )  # fmt: skip


def mean_energy(neurons, s=2.0, half=True):
    return reference.energy(neurons, s, half, reduction="mean")


@pytest.mark.parametrize("aggregate", ["mean", "max"])
def test_random_projections_are_equations_6_4_and_6_5(aggregate):
    net = network().double()
    reg = CoMHE("random", dim=6, count=3, aggregate=aggregate, s=1.0, output=0.0)
    value = reg(net)
    assert sorted(reg.projections) == ["45", "72"]  # shared by dimension; the first is left out
    expected = mean_energy(net[0].weight, 1.0)
    for layer in (net[1].weight, net[4].weight, *net[2].weight.chunk(2)):
        w = layer.flatten(1)
        p = reg.projections[str(w.shape[1])].double()
        energies = torch.stack([mean_energy(w @ one.T, 1.0) for one in p])
        share = 0.5 if w.shape[1] == 45 else 1.0  # two groups
        expected = expected + share * (energies.mean() if aggregate == "mean" else energies.max())
    torch.testing.assert_close(value, expected)


def test_unrolled_is_the_energy_after_one_step_with_its_gradient():
    net = nn.Sequential(nn.Linear(12, 7, bias=False)).double()
    reg = CoMHE("angle_preserving", dim=4, lr=0.2, output=0.0, project_first=True, output_layers=[])
    p0 = HF.gaussian_projection(12, 4, 1, torch.Generator().manual_seed(0)).double()

    def by_hand(w):
        p = p0.clone().requires_grad_()
        loss = reference.angle_distortion(w, p[0], "angle")
        (g,) = torch.autograd.grad(loss, p, create_graph=True)
        return mean_energy(w @ (p0 - 0.2 * p0.square().sum() * g)[0].T)

    w = net[0].weight
    value, expected = reg(net), by_hand(w)
    torch.testing.assert_close(value, expected)
    slopes = [torch.autograd.grad(e, w)[0] for e in (value, expected)]
    torch.testing.assert_close(*slopes)
    assert not torch.equal(reg.projections["12"], p0.float())  # the step is kept


def test_alternating_holds_p_between_updates():
    net = network()
    reg = CoMHE("angle_preserving", dim=6, mode="alternating", update_every=3, steps=2)
    seen = []
    for _ in range(7):
        reg(net).backward()
        seen.append(reg.projections["72"].clone())
    changes = [not torch.equal(a, b) for a, b in pairwise(seen)]
    assert changes == [False, False, True, False, False, True]
    assert not seen[0].requires_grad


def test_learning_p_does_what_it_says():
    layer = nn.Linear(60, 20)
    w = layer.weight.detach()
    options = {"dim": 8, "project_first": True, "output_layers": [], "redraw_every": 0}
    keeper = CoMHE("angle_preserving", mode="alternating", update_every=1, **options)
    rival = CoMHE("adversarial", **options)
    distortion, energy = [], []
    for _ in range(20):
        keeper(layer)
        rival(layer)
        distortion.append(float(HF.angle_preserving_loss(w, keeper.projections["60"])))
        images = HF.project(w[None], rival.projections["60"])
        energy.append(float(HF.set_energies(images, 2.0, True)))
    assert distortion[-1] < 0.6 * distortion[0]
    assert energy[-1] > 1.2 * energy[0]


def test_groups_are_equation_6_9():
    net = network().double()
    reg = CoMHE("group", group_channels=4, group_features=24, output=0.0)
    conv = net[1].weight
    expected = mean_energy(net[0].weight)
    expected = expected + torch.stack([mean_energy(part) for part in conv.split(4, 1)]).mean()
    halves = [part for group in net[2].weight.chunk(2) for part in (group[:, :3], group[:, 3:])]
    expected = (
        expected + torch.stack([mean_energy(part) for part in halves]).mean()
    )  # 3 + 2 channels
    expected = expected + torch.stack([mean_energy(x) for x in net[4].weight.split(24, 1)]).mean()
    torch.testing.assert_close(reg(net), expected)


def test_groups_of_a_mapping_are_those_of_the_layer():
    net = network()
    options = {"group_channels": 4, "output": 0.0, "project_first": True}
    expected = CoMHE("group", only=["1"], **options)(net)
    torch.testing.assert_close(CoMHE("group", **options)({"a": net[1].weight}), expected)


def test_filters_change_no_role_and_a_mapping_has_no_first_layer():
    net = network()
    reg = CoMHE(dim=6, only=["1", "4"])
    reg(net)
    assert set(reg.projections) == {"72"}  # neither is the first layer, nor the output
    reg = CoMHE(dim=6)
    reg({"a": net[1].weight})
    assert set(reg.projections) == {"72"}


@pytest.mark.parametrize("kind", ["angle_preserving", "adversarial"])
def test_more_steps_go_further(kind):
    layer = nn.Linear(40, 12)
    options = {"dim": 8, "project_first": True, "output_layers": [], "redraw_every": 0}
    once, twice = CoMHE(kind, **options), CoMHE(kind, steps=2, **options)
    first = once(layer)
    assert not torch.equal(first, twice(layer))
    once(layer)  # two calls of one step end where one call of two steps does
    torch.testing.assert_close(once.projections["40"], twice.projections["40"])


def test_neuron_weights_are_for_unprojected_layers():
    net, reg = network(), CoMHE(dim=6)
    reg.neuron_weights["1"] = torch.ones(10)
    with pytest.raises(ValueError, match="projected layers, such as '1'"):
        reg(net)


def test_stochastic_groups_are_redrawn():
    net = network()
    fixed, drawn = (
        CoMHE("group", group_channels=4),
        CoMHE("group", group_channels=4, stochastic=True),
    )
    assert torch.equal(fixed(net), fixed(net))
    assert not torch.equal(drawn(net), drawn(net))
    order = drawn.projections["order/72"]
    assert sorted(order.tolist()) == list(range(len(order)))


def test_bilateral_is_equation_e_21():
    net = network().double()
    reg = CoMHE("bilateral", dim=6, count=1, output=0.0, only=["1"], project_first=True)
    value = reg(net)
    w = net[1].weight.flatten(1).T  # columns, as in the text
    p1, p2 = reg.projections["72"][0].double(), reg.projections["mixture/10"][0].double().T
    expected = mean_energy((p1 @ w).T) + mean_energy((w @ p2).T)
    torch.testing.assert_close(value, expected)


def test_first_and_output_layer_by_argument():
    net = network()
    assert set(_drawn(net)) == {"72", "45"}
    assert set(_drawn(net, project_first=True)) == {"27", "72", "45"}
    assert set(_drawn(net, project_output=True)) == {"72", "45", "9"}
    assert set(_drawn(net, share=False)) == {"1:72", "2:45", "4:72"}


def _drawn(net, **options):
    reg = CoMHE(dim=6, **options)
    reg(net)
    return reg.projections


def test_redraw_period():
    net = network()
    for every, expected in ((1, [True] * 4), (2, [False, True, False, True]), (0, [False] * 4)):
        reg = CoMHE(dim=6, redraw_every=every)
        seen = []
        for _ in range(5):
            reg(net)
            seen.append(reg.projections["72"])
        assert [not torch.equal(a, b) for a, b in pairwise(seen)] == expected


def test_evaluation_mode_and_report_change_nothing():
    net, reg = network(), CoMHE("angle_preserving", dim=6)
    reg(net)
    before = {key: value.clone() for key, value in reg.state_dict().items()}
    reg.report(net)
    reg.eval()
    assert torch.equal(reg(net), reg(net))
    after = reg.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize("options", [*KINDS, None], ids=[*IDS, "srip"])
def test_a_resumed_run_goes_on_as_if_never_stopped(options):
    def make():
        return SRIP() if options is None else CoMHE(dim=6, seed=1, **options)

    def step(reg, net):
        loss = reg(net)
        grads = torch.autograd.grad(loss, list(net.parameters()), allow_unused=True)
        with torch.no_grad():
            for p, g in zip(net.parameters(), grads, strict=True):
                if g is not None:
                    p -= 0.05 * g
        return float(loss.detach())

    net, reg = network(), make()
    for _ in range(3):
        step(reg, net)
    saved = io.BytesIO()
    state = reg.state_dict()
    assert all(isinstance(value, torch.Tensor) for value in state.values())
    torch.save({"reg": state, "net": net.state_dict()}, saved)
    expected = [step(reg, net) for _ in range(5)]
    saved.seek(0)
    loaded = torch.load(saved, weights_only=True)
    net2, reg2 = network(), make()
    net2.load_state_dict(loaded["net"])
    reg2.load_state_dict(loaded["reg"])
    assert [step(reg2, net2) for _ in range(5)] == expected


def test_state_works_inside_another_module():
    outer = nn.ModuleList([CoMHE(dim=6)])
    outer[0](network())
    fresh = nn.ModuleList([CoMHE(dim=6)])
    fresh.load_state_dict(outer.state_dict())
    assert torch.equal(fresh[0].projections["72"], outer[0].projections["72"])
    with pytest.raises(RuntimeError, match=r"0\.generator"):
        fresh.load_state_dict({})


FAMILY = [lambda kind=kind: CoMHE(dim=6, **kind) for kind in KINDS]
FAMILY += [lambda: Orthonormal(1.0), lambda: Orthogonal(1.0), lambda: SRIP(1.0)]
FAMILY += [lambda: Orthogonal(1.0, normalize=True), lambda: MHE(s=1.0)]


@pytest.mark.parametrize("make", FAMILY)
def test_autocast_changes_nothing(make):
    net, results = network(), []
    for enabled in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            value = make()(net)
        slopes = torch.autograd.grad(value, list(net.parameters()), allow_unused=True)
        results.append([value.detach(), *(g for g in slopes if g is not None)])
    close(*results)


@pytest.mark.parametrize("options", KINDS, ids=IDS)
def test_gradients_are_finite_for_degenerate_neurons(options):
    net = network()
    with torch.no_grad():
        net[1].weight[1], net[1].weight[2], net[1].weight[3] = (
            net[1].weight[0],
            -net[1].weight[0],
            0,
        )
    value = CoMHE(dim=6, **options)(net)
    value.backward()
    assert value.isfinite()
    assert all(p.grad is None or p.grad.isfinite().all() for p in net.parameters())


@pytest.mark.parametrize(
    "options, message",
    [
        ({"projection": "randon"}, "random, angle_preserving"),
        ({"aggregate": "median"}, "mean, max"),
        ({"sketch": "fft"}, "gaussian"),
        ({"projection": "group", "sketch": "count"}, "random and bilateral projections"),
        ({"projection": "adversarial", "sketch": "count"}, "random and bilateral projections"),
        ({"mode": "both"}, "unrolled"),
        ({"measure": "sine"}, "angle"),
        ({"dim": 1}, "dim must be a finite number >= 2"),
        ({"count": 0}, "count must be"),
        ({"update_every": 0}, "update_every must be"),
        ({"mode": "unrol"}, "did you mean 'unrolled'"),
    ],
)
def test_wrong_arguments_are_told(options, message):
    with pytest.raises(ValueError, match=message):
        CoMHE(**options)
