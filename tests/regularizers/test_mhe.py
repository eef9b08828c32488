import math

import pytest
import torch
from torch import nn

from hypersphere import functional as HF
from hypersphere.regularizers import (
    MHE,
    SRIP,
    ClassEnergy,
    CoMHE,
    Orthonormal,
    create,
    list_presets,
)

from reference import energy as reference


def network():
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))


def test_equation_5_4_with_settings_of_its_own_for_the_output():
    net = network().double()
    reg = MHE(10.0, 0.5, 2.0, True, output_s=1.0, output_distance="geodesic")
    expected = 10 * sum(
        reference.energy(net[i].weight, 2.0, True, reduction="mean") for i in (0, 2)
    )
    expected += 0.5 * reference.energy(net[4].weight, 1.0, False, "geodesic", reduction="mean")
    torch.testing.assert_close(reg(net), expected)
    reg(net).backward()
    slopes = [net[i].weight.grad.clone() for i in (0, 2, 4)]
    net.zero_grad()
    expected.backward()
    torch.testing.assert_close(slopes, [net[i].weight.grad for i in (0, 2, 4)])


def test_zero_factors_leave_layers_out():
    net = network()
    MHE(hidden=0.0)(net).backward()
    assert net[0].weight.grad is None and net[4].weight.grad is not None
    with pytest.raises(ValueError, match="all layers found are zero"):
        MHE(hidden=0.0, output=0.0)(net)


def test_grouped_convolutions_average_over_their_groups():
    layer = nn.Conv2d(8, 6, 3, groups=2)
    halves = [HF.hyperspherical_energy(part, 2.0, True) for part in layer.weight.chunk(2)]
    torch.testing.assert_close(MHE()(layer), (halves[0] + halves[1]) / 2)


def test_average_over_hidden_layers():
    net = network()
    per_layer = [HF.hyperspherical_energy(net[i].weight, 2.0, True) for i in (0, 2)]
    torch.testing.assert_close(MHE(output=0.0, average=True)(net), sum(per_layer) / 2)


def test_mini_batch_of_neurons_estimates_the_energy():
    layer = nn.Conv1d(6, 40, 1)
    whole = float(MHE()(layer).detach())
    reg = MHE(batch=10, seed=3)
    drawn = torch.stack([reg(layer).detach() for _ in range(400)])
    assert float(drawn.std()) > 0
    # over pairs of different neurons the estimate is unbiased; (w, -w) has a larger share in it
    own, pairs = 0.25, lambda n: (2 * n * (2 * n - 1), 2 * n)
    all_pairs, mirrored = pairs(40)
    mean = (whole * all_pairs - own * mirrored) / (all_pairs - mirrored)
    all_pairs, mirrored = pairs(10)
    expected = (mean * (all_pairs - mirrored) + own * mirrored) / all_pairs
    assert float(drawn.mean()) == pytest.approx(expected, abs=4 * float(drawn.std()) / 20)
    layer.zero_grad()
    reg(layer).backward()
    assert int((layer.weight.grad.flatten(1).norm(dim=1) > 0).sum()) == 10


def test_weighted_neurons_of_a_layer():
    net = network()
    beta = [10, 1, 1, 1, 1]
    reg = MHE(output=0.0, neuron_weights={"0": beta})
    expected = HF.hyperspherical_energy(net[0].weight, 2.0, True, weights=torch.tensor(beta))
    expected = expected + HF.hyperspherical_energy(net[2].weight, 2.0, True)
    torch.testing.assert_close(reg(net), expected)
    with pytest.raises(ValueError, match=r"\['1'\]; the layers are: 0, 2, 4"):
        MHE(neuron_weights={"1": beta})(net)


def test_minimizing_mhe_alone_gives_the_regular_tetrahedron():
    layer = nn.Linear(3, 4, bias=False).double()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.3)
    reg = MHE()
    for _ in range(500):
        optimizer.zero_grad()
        reg(layer).backward()
        optimizer.step()
    cos = HF.pairwise_cosine(layer.weight.detach())[~torch.eye(4, dtype=torch.bool)]
    torch.testing.assert_close(cos, torch.full_like(cos, -1 / 3), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["dissertation_half_space_mhe", "dissertation_rp_comhe"])
def test_training_on_digits_ends_with_less_energy(name):
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    x = torch.tensor(digits.data / 16.0, dtype=torch.float32)
    y = torch.tensor(digits.target)

    def train(reg):
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 10)
        )
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        for step in range(120):
            rows = torch.arange(step * 64, step * 64 + 64) % 1500
            loss = nn.functional.cross_entropy(net(x[rows]), y[rows])
            if reg is not None:
                loss = loss + reg(net)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        accuracy = float((net(x[1500:]).argmax(1) == y[1500:]).float().mean())
        energy = sum(float(layer.value) for layer in MHE().report(net))
        return accuracy, energy

    plain, regularized = train(None), train(create(name, output=1.0))
    assert plain[0] > 0.8 and regularized[0] > 0.8
    assert regularized[1] < plain[1]


def test_report_layer_by_layer():
    net = nn.Sequential(nn.Conv2d(4, 6, 3, groups=2), nn.Flatten(), nn.Linear(6, 3))
    with torch.no_grad():
        net[2].weight.copy_(torch.eye(6)[:3])
    reg = MHE(hidden=10.0)
    report = reg.report(net)
    assert report.total == pytest.approx(float(reg(net).detach()), rel=1e-6)
    first, last = report
    assert (first.name, first.role, first.sets, first.neurons, first.dim) == (
        "0",
        "hidden",
        2,
        3,
        18,
    )
    assert last.smallest_angle == pytest.approx(90, abs=1e-3) and last.value == pytest.approx(0.5)
    text = str(report)
    assert "2x3" in text and "hidden" in text and "90.0°" in text and "total" in text
    assert report.to_dict()["layers"][0]["factor"] == 10.0


def test_it_runs_in_bfloat16_and_under_autocast():
    net = network()
    expected = float(MHE()(net).detach())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert float(MHE()(net).detach()) == pytest.approx(expected)
    assert float(MHE()(network().bfloat16()).detach()) > 0


def test_class_energy_is_equation_5_8():
    weight = torch.randn(6, 4, dtype=torch.float64)
    labels = torch.tensor([1, 1, 4])
    expected = 0.3 * reference.class_energy(weight, labels, 1.0)
    torch.testing.assert_close(ClassEnergy(0.3, 1.0)(weight, labels), expected)


@pytest.mark.parametrize("name", list_presets())
def test_presets_run(name):
    reg = create(name)
    if isinstance(reg, ClassEnergy):
        value = reg(torch.randn(5, 3), torch.tensor([0, 2]))
    else:
        net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 40, 3), nn.Flatten(), nn.Linear(40, 9))
        value = reg(net)
        value.backward()
        assert net[1].weight.grad.isfinite().all() and net[1].weight.grad.abs().sum() > 0
    assert value.isfinite()


def test_preset_values_and_errors():
    assert create("dissertation_mhe").hidden == 10.0
    assert create("dissertation_half_space_mhe").hidden == 1.0
    assert create("dissertation_rp_comhe", dim=20).dim == 20
    with pytest.raises(ValueError, match="did you mean 'dissertation_mhe'"):
        create("disertation_mhe")
    with pytest.raises(ValueError, match="at least 2"):
        MHE(batch=1)
    with pytest.raises(TypeError, match="no option 'halfspace'; did you mean 'half_space'"):
        create("dissertation_mhe", halfspace=True)


@pytest.mark.parametrize(
    "make, error, message",
    [
        (lambda: MHE(s=-1), ValueError, "s must be a finite number >= 0, got -1"),
        (lambda: MHE(s="two"), ValueError, "got 'two'"),
        (lambda: MHE(output_s=math.inf), ValueError, "output_s"),
        (lambda: MHE(hidden=-1), ValueError, "hidden"),
        (lambda: MHE(output=None), TypeError, "output must be a number"),
        (lambda: MHE(distance="geo"), ValueError, "did you mean 'geodesic'"),
        (lambda: MHE(output_distance="euclidian"), ValueError, "did you mean 'euclidean'"),
        (lambda: MHE(skip="fc"), TypeError, "sequence of names"),
        (lambda: MHE(neuron_weights={"0": [1.0, 0.0]}), ValueError, "positive"),
        (
            lambda: MHE(neuron_weights={"0": [1.0, 2.0]}, distance="geodesic"),
            ValueError,
            "leaves angles as they are",
        ),
        (lambda: ClassEnergy(s=-2), ValueError, "s must be"),
        (lambda: ClassEnergy(distance="chord"), ValueError, "euclidean, geodesic"),
        (lambda: Orthonormal(weight=-1e-5), ValueError, "weight"),
        (lambda: SRIP(output=math.nan), ValueError, "output"),
        (lambda: CoMHE(s=-1.0), ValueError, "s must be"),
    ],
)
def test_wrong_options_are_told_at_construction(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_class_energy_takes_a_head_or_its_weight():
    head, labels = nn.Linear(4, 6), torch.tensor([0, 3, 3])
    value = ClassEnergy(weight=0.5)(head, labels)
    torch.testing.assert_close(value, ClassEnergy(weight=0.5)(head.weight, labels))
    torch.testing.assert_close(
        value, 0.5 * reference.class_energy(head.weight, labels, 2.0).float()
    )
    value.backward()
    assert head.weight.grad.abs().sum() > 0
    with pytest.raises(TypeError, match="got ReLU"):
        ClassEnergy()(nn.ReLU(), labels)
