"""The layer that is named where calls and layers are not one to one: modules called twice or never,
parametrized and shared weights, parameters of containers; and buffers, which no loss shows.
"""

import math

import pytest
import torch
from small_run import small_config
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

import hypersphere as hs
from hypersphere import heads, models
from hypersphere.layers.running_norm import RunningNorm
from hypersphere.training import Config, NotFinite, RunFolder, Settings, fit, make_fabric
from hypersphere.training.config import DataConfig, GanConfig
from hypersphere.training.diagnose import bad_buffers, explain, finite_buffers
from hypersphere.training.prepare import prepare

BAD = [math.nan, math.inf]


def gan(**changes):
    return Config(
        task="gan",
        data=DataConfig(batch_size=16, share=0.1, test_share=0.2, normalize="symmetric"),
        model={"name": "sngan_discriminator", "widths": [4, 8], "spectral": True},
        gan=GanConfig(
            {"name": "sngan_generator", "widths": [8, 4], "features": 6}, samples=20, **changes
        ),
    )


def reconstruction():
    return Config(
        task="reconstruction",
        data=DataConfig(batch_size=16, share=0.1, test_share=0.2),
        model={"name": "autoencoder", "widths": [4], "features": 4},
    )


def check_each_parameter(net, run):
    """NaN and inf in each parameter in turn: it is the one that is named."""
    start = {name: value.clone() for name, value in net.state_dict().items()}
    for name, parameter in net.named_parameters():
        for value in BAD:
            with torch.no_grad():
                parameter.view(-1)[0] = value
            assert f": '{name}' went bad" in explain(1, net, True, run, []), (name, value)
            net.load_state_dict(start)


class SharedReLU(nn.Module):
    def __init__(self):
        super().__init__()
        self.relu, self.a, self.b = nn.ReLU(), nn.Linear(3, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.relu(self.b(self.relu(self.a(x))))


class Positions(nn.Module):
    """Parameters of its own, one in a list, that are used before its layers are called."""

    def __init__(self):
        super().__init__()
        self.body, self.last = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), nn.Linear(3, 2)
        self.position = nn.Parameter(torch.ones(5, 3))
        self.prompts = nn.ParameterList([torch.ones(3)])

    def forward(self, x):
        return self.last(self.body(x + self.position + self.prompts[0]))


class Functional(nn.Module):
    """A layer that is never called, only its weight is used."""

    def __init__(self):
        super().__init__()
        self.body, self.table = nn.Linear(3, 3), nn.Embedding(5, 3)

    def forward(self, x):
        return self.body(x + self.table.weight)


class ByFeatures(nn.Module):
    """A network whose own forward is not called."""

    def __init__(self):
        super().__init__()
        self.body, self.shift = nn.Linear(3, 3), nn.Parameter(torch.ones(3))

    def features(self, x):
        return self.body(x + self.shift)


def rotated(method):
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4))
    hs.orthogonal.rotate(net, method)
    return net


NETWORKS = {
    "a shared ReLU": SharedReLU,
    "parameters of a container": Positions,
    "a layer used as a table": Functional,
    "cayley": lambda: rotated("cayley"),
    "ogd": lambda: rotated("ogd"),
    "spectral norm": lambda: nn.Sequential(spectral_norm(nn.Linear(3, 4)), nn.Linear(4, 4)),
    "weight norm": lambda: nn.Sequential(weight_norm(nn.Linear(3, 4)), nn.Linear(4, 4)),
    "attention": lambda: nn.TransformerEncoderLayer(3, 1, 4, dropout=0.0),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_parameter_that_is_spoiled_is_named(name):
    torch.manual_seed(0)
    net, x = NETWORKS[name](), torch.rand(5, 3)
    check_each_parameter(net, lambda: net(x))


def test_a_network_whose_own_forward_is_not_called_is_entered_with_its_first_layer():
    net = ByFeatures()
    check_each_parameter(net, lambda: net.features(torch.rand(2, 3)))


def test_the_call_that_went_bad_counts_not_the_first_of_its_module():
    net, calls = SharedReLU(), []

    def second(module, inputs, output):
        calls.append(1)
        return output * math.nan if len(calls) == 2 else output

    handle = net.relu.register_forward_hook(second)
    said = explain(1, net, True, lambda: net(torch.rand(2, 3)), [])
    assert "the output of layer 'relu' (ReLU) went bad first" in said
    handle.remove()
    net.b.register_forward_hook(lambda m, i, o: o * math.nan)
    said = explain(1, net, True, lambda: net(torch.rand(2, 3)), [])
    assert "the output of layer 'b' (Linear) went bad first" in said


def test_the_first_of_several_spoiled_layers_is_named():
    """Entered earlier counts, not finished earlier; the head of a loss comes last."""
    net = models.Classifier(SharedReLU(), heads.SoftmaxHead(4, 3))
    for layer in (net.head, net.backbone.b):
        layer.weight.data.fill_(math.nan)
    x, labels = torch.rand(2, 3), torch.tensor([0, 1])
    said = explain(1, net, True, lambda: net.head.loss(net.features(x), labels), [])
    assert ": 'backbone.b.weight' went bad in the update before (and 1 more, the last of" in said


def test_a_shared_weight_is_named_where_it_is_used_first():
    net = nn.Module()
    net.decoder, net.embed = nn.Linear(3, 5, bias=False), nn.Embedding(5, 3)
    net.decoder.weight = net.embed.weight
    net.embed.weight.data[0] = math.nan
    said = explain(1, net, True, lambda: net.decoder(net.embed(torch.arange(5))), [])
    assert ": 'embed.weight' went bad in the update before;" in said


def test_compiled_parts_are_passed_over():
    parts = nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3), nn.ReLU()), nn.Linear(3, 3)
    net = nn.Sequential(parts[0], torch.jit.script(parts[1]), parts[2])
    with torch.no_grad():
        parts[2].weight[0] = math.nan
    said = explain(1, net, True, lambda: net(torch.rand(2, 3)), [])
    assert "'2.weight' went bad" in said
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in (net, *parts))


def test_layers_of_a_gcn():
    net = models.create("gcn", widths=(4, 3), in_channels=6, features=3)
    inputs = torch.rand(5, 6), torch.full((5, 5), 0.2)
    check_each_parameter(net, lambda: net(*inputs))


@pytest.mark.parametrize("options", [{}, {"loss": "wasserstein", "gradient_penalty": 10.0}])
def test_layers_of_a_gan_with_spectral_norm(options):
    task = prepare(gan(**options), make_fabric(accelerator="cpu", devices=1)).task
    batch = next(task.batches())
    for player in task.players:  # each passes through the generator, then the discriminator
        check_each_parameter(task.model, lambda player=player: player.module(*batch))


def test_layers_of_a_classifier_with_a_head_that_has_parts():
    task = prepare(small_config(), make_fabric(accelerator="cpu", devices=1)).task
    batch = next(task.batches())
    check_each_parameter(task.model, lambda: task.players[0].module(*batch))


def test_the_update_of_the_player_before_is_blamed_in_the_first_step(tmp_path):
    fabric = make_fabric(accelerator="cpu", devices=1)
    task = prepare(gan(), fabric).task

    class Spoil:
        def after_update(self, run):
            next(run.player.module.parameters()).data.fill_(math.nan)

    with pytest.raises(NotFinite, match="at step 0: '.*' went bad in the update before"):
        fit(task, RunFolder(tmp_path), fabric, Settings(1, quiet=True), [Spoil()])


class SpoilStatistics:
    """After the second update the last running variance is infinite: no loss depends on it."""

    def after_update(self, run):
        if run.step == 1:
            net = run.task.model
            name = [name for name, _ in net.named_buffers() if name.endswith("running_var")][-1]
            net.get_buffer(name).fill_(math.inf)


@pytest.mark.parametrize("make", [small_config, reconstruction, gan])
def test_running_statistics_that_go_bad_end_the_run(tmp_path, make):
    fabric = make_fabric(accelerator="cpu", devices=1)
    task = prepare(make(), fabric).task
    settings = Settings(3, test_every=3, quiet=True)
    with pytest.raises(NotFinite, match=r"not finite after step 3: '.*\.running_var' was finite"):
        fit(task, RunFolder(tmp_path), fabric, settings, [SpoilStatistics()])
    assert not list((tmp_path / "checkpoints").glob("step-*"))


def test_masks_and_values_not_yet_measured_are_no_bad_buffers():
    net = nn.BatchNorm1d(2)
    net.register_buffer("mask", torch.full((3, 3), -math.inf).triu(1))
    net.register_buffer("smallest", torch.tensor(math.inf))
    net.register_buffer("grows", torch.empty(0))
    net.register_buffer("filled", torch.zeros(3, 3))
    start = finite_buffers(net)
    net.filled.copy_(torch.full((3, 3), -math.inf).triu(1))  # in the first pass
    net.grows = torch.full((4, 4), -math.inf).triu(1)  # made for the first batch
    net.register_buffer("late", torch.tensor(-math.inf))
    assert bad_buffers(net, start) == []
    net.running_mean[1] = math.nan
    net.running_var[0] = math.inf
    assert bad_buffers(net, start) == ["running_mean", "running_var"]
    net.filled[0, 0] = math.nan
    assert bad_buffers(net, start) == ["running_mean", "running_var", "filled"]
    assert bad_buffers(nn.Linear(2, 2), finite_buffers(nn.Linear(2, 2))) == []


@pytest.mark.parametrize(
    ("net", "name"),
    [
        (heads.AdaFaceHead(4, 3), "margin.std"),
        (nn.Sequential(RunningNorm()), "0.mean"),
    ],
)
def test_running_statistics_of_heads_and_layers_are_looked_at(net, name):
    start = finite_buffers(net)
    net.get_buffer(name).fill_(math.inf)
    assert bad_buffers(net, start) == [name]


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_buffers_that_have_no_values_yet_are_left_out():
    net = nn.LazyBatchNorm1d()
    start = finite_buffers(net)
    assert start == {}
    net(torch.randn(4, 3))
    assert bad_buffers(net, start) == []


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_buffers_of_every_layout_and_precision_are_looked_at():
    net, values = nn.Module(), torch.eye(3)
    net.register_buffer("coo", values.to_sparse())
    net.register_buffer("csr", torch.eye(3).to_sparse_csr())
    net.register_buffer("eighth", values.to(torch.float8_e4m3fn))
    net.register_buffer("low", torch.eye(3, dtype=torch.bfloat16))
    net.register_buffer("count", torch.tensor(3))
    start = finite_buffers(net)
    assert list(start) == ["coo", "csr", "eighth", "low"] and bad_buffers(net, start) == []
    for name in ("coo", "csr"):
        net.get_buffer(name).values().fill_(math.nan)
    net.eighth = torch.full((3, 3), math.nan).to(torch.float8_e4m3fn)
    net.low[0, 0] = math.nan
    assert bad_buffers(net, start) == list(start)
