"""Rotations where models are not simple: tied, shared, wrapped, sharded, quantized, on meta."""

import pickle

import pytest
import torch
from torch import nn

import hypersphere as hs
from hypersphere.orthogonal import steps
from hypersphere.orthogonal.rotation import rotations
from tolerances import close

X = torch.randn(5, 8, generator=torch.Generator().manual_seed(7))


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3))
    return net.requires_grad_(False)


def turned(model: nn.Module, seed: int = 3) -> nn.Module:
    """The rotated model, away from its start."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for *_, rotation in rotations(model):
            for p in rotation.map.parameters():
                p.add_(0.1 * torch.randn(p.shape, generator=generator))
    return model


def test_restart_leaves_the_other_end_of_a_tied_weight_alone():
    net = nn.ModuleDict({"words": nn.Embedding(10, 8), "head": nn.Linear(8, 10, bias=False)})
    net["head"].weight = net["words"].weight
    turned(hs.orthogonal.rotate(net, start="identity", targets=("head",)))
    words, outputs = net["words"].weight.clone(), net["head"](X)
    with pytest.raises(ValueError, match=r"words.weight and head.weight are one tied weight"):
        hs.orthogonal.restart(net)
    assert torch.equal(net["words"].weight, words) and torch.equal(net["head"](X), outputs)


@pytest.mark.parametrize("side", ["weight", "input"])
def test_the_folded_state_of_a_module_that_is_used_twice(side):
    layer = nn.Linear(8, 8)
    net = nn.Sequential(layer, nn.ReLU(), layer, nn.Linear(8, 2))
    keys = list(net.state_dict())
    turned(hs.orthogonal.rotate(net, start="identity", side=side))
    state = hs.orthogonal.folded_state(net)
    assert list(state) == keys
    plain = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 2))
    plain.load_state_dict(state)
    close(plain(X), net(X))


@pytest.mark.parametrize(
    "options",
    [
        {"learn_lengths": True},
        {"normalize": True},
        {"learn_neurons": True},
        {"method": "householder", "structure": "reflections", "rank": 2},
        {"method": "banded", "bandwidth": 2, "blocks": 4},
    ],
)
def test_describe_takes_the_arguments_of_rotate_and_tells_the_truth(options, capsys):
    options = {"start": "identity", "blocks": 4, **options}
    if "structure" in options:
        del options["blocks"]
    plan = hs.orthogonal.describe(network(), **options)
    hs.orthogonal.rotate(network(), **options, verbose=True)
    assert capsys.readouterr().out == f"{plan}\n"


def test_reflections_on_both_sides_take_no_other_method():
    with pytest.raises(ValueError, match="needs no method; got 'householder'"):
        hs.orthogonal.rotate(network(), "householder", structure="reflections", both_sides=True)
    net = hs.orthogonal.rotate(
        network(), structure="reflections", rank=2, both_sides=True, start="identity"
    )
    before = turned(net)(X)
    close(hs.orthogonal.restart(net)(X), before, scale=10)


def test_lengths_stay_in_float32():
    net = hs.orthogonal.rotate(network(), start="identity", learn_lengths=True)
    lengths = [p.clone() for name, p in net.named_parameters() if name.endswith("lengths")]
    net.bfloat16()
    after = [p for name, p in net.named_parameters() if name.endswith("lengths")]
    assert after and all(map(torch.equal, lengths, after))
    assert net(X.bfloat16()).dtype == torch.bfloat16


class Packed(nn.Module):
    """A quantized layer as GPTQ keeps it: nothing but buffers."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        scales = layer.weight.detach().abs().amax(1, keepdim=True) / 127
        self.register_buffer("scales", scales)
        self.register_buffer("qweight", (layer.weight.detach() / scales).round().to(torch.int8))

    def forward(self, x):
        return x @ (self.qweight * self.scales).T


class Float8(nn.Linear):
    """A layer of 8-bit floats with a scale."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer.in_features, layer.out_features)
        self.scale = nn.Parameter(layer.weight.detach().abs().max() / 400)
        codes = (layer.weight.detach() / self.scale.detach()).to(torch.float8_e4m3fn)
        self.weight = nn.Parameter(codes, requires_grad=False)

    def forward(self, x):
        return nn.functional.linear(x, self.weight.float() * self.scale, self.bias)


def quantized(kind: str, seed: int = 0) -> nn.Module:
    net = network(seed)
    if kind == "dynamic":
        return torch.ao.quantization.quantize_dynamic(net, {nn.Linear}, dtype=torch.qint8)
    net[0] = Packed(net[0]) if kind == "buffers" else Float8(net[0])
    return net.requires_grad_(False)


@pytest.mark.parametrize("kind", ["dynamic", "buffers", "float8"])
@pytest.mark.filterwarnings("ignore")  # of torch's quantization
def test_quantized_layers_without_parameters_and_of_8_bit_floats(kind, tmp_path):
    net = hs.orthogonal.rotate(quantized(kind), start="identity", blocks=2, targets=("0",))
    group = hs.orthogonal.parameter_groups(net, lr=0.1)[0]
    plain = hs.orthogonal.rotate(network(), start="identity", blocks=2, targets=("0",))
    expected = hs.orthogonal.parameter_groups(plain, lr=0.1)[0]
    assert group["lr"] == pytest.approx(expected["lr"], rel=0.1)
    turned(net)
    hs.orthogonal.save_adapter(net, tmp_path)
    adapter = hs.orthogonal.adapters.read(tmp_path)
    assert not adapter.values and any(name.startswith("0.") for name in adapter.base)
    again = hs.orthogonal.load_adapter(quantized(kind), tmp_path)
    assert torch.equal(again(X), net(X))
    with pytest.raises(ValueError, match=r"(\d+) of \1 weights differ"):
        hs.orthogonal.load_adapter(quantized(kind, seed=1), tmp_path)


def test_meta(tmp_path):
    with torch.device("meta"):
        net = nn.Sequential(nn.Linear(8, 64), nn.Linear(64, 3))
    hs.orthogonal.rotate(net, start="identity", blocks=4)
    with pytest.raises(ValueError, match="on the meta device: load them first"):
        hs.orthogonal.parameter_groups(net, lr=0.1)
    real = nn.Sequential(nn.Linear(8, 64), nn.Linear(64, 3))
    turned(hs.orthogonal.rotate(real, start="identity", blocks=4))
    with pytest.warns(UserWarning, match="no-op"):
        net.load_state_dict(real.state_dict())
    net.load_state_dict(real.state_dict(), assign=True)
    assert torch.equal(net(X), real(X))


def test_tasks_are_added_and_used_in_all_layers_or_none():
    net = hs.orthogonal.rotate(network())
    hs.orthogonal.add_task(net[2], "birds")
    with pytest.raises(ValueError, match="'birds' exists"):
        hs.orthogonal.add_task(net, "birds")
    hs.orthogonal.add_task(net[0], "cars")
    with pytest.raises(KeyError, match="no task 'cars'"):
        hs.orthogonal.use_task(net, "cars")
    assert {rotation.task for *_, rotation in rotations(net)} == {"default"}
    assert [list(r.tasks) for *_, r in rotations(net)] == [
        ["default", "cars"],
        ["default", "birds"],
    ]


def test_an_unpickled_ogd_model_refuses_other_optimizers():
    layer = hs.orthogonal.rotate(nn.Linear(8, 4), "ogd", start="identity", side="input")
    data = pickle.dumps(layer)
    steps._WATCHED.pop().remove()  # as in a new process
    net = pickle.loads(data)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(X).sum().backward()
    with pytest.raises(RuntimeError, match="SGD would not keep R"):
        optimizer.step()


@pytest.fixture
def one_rank():
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_ogd_under_fsdp2(one_rank):
    from torch.distributed.fsdp import fully_shard

    net = hs.orthogonal.rotate(network(), "ogd", start="identity")
    fully_shard(net, mesh=torch.distributed.device_mesh.init_device_mesh("cpu", (1,)))
    trained = [p for p in net.parameters() if p.requires_grad]
    net(X).square().sum().backward()
    with pytest.raises(RuntimeError, match="AdamW would not keep R"):
        torch.optim.AdamW(trained).step()
    optimizer = hs.orthogonal.OGD(trained, lr=0.1)  # plain parameters, not our groups
    for _ in range(3):
        optimizer.zero_grad()
        net(X).square().sum().backward()
        optimizer.step()
    assert hs.orthogonal.orthogonality_error(net) < 1e-5


def test_rotate_comes_before_ddp(one_rank):
    net = nn.parallel.DistributedDataParallel(network().requires_grad_(True))
    with pytest.raises(ValueError, match="rotate the model before DistributedDataParallel"):
        hs.orthogonal.rotate(net)
