"""The one search for layers: torch's own kinds, shared, computed, sharded and quantized weights."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import hypersphere as hs
from hypersphere.finding import FilterMatrix, find_layers
from hypersphere.regularizers import MHE, find_neurons
from tolerances import close


def kinds(model, **options):
    found = find_layers(model, **options)
    return {
        s.label: (s.kind, s.role, s.layout.sets * s.layout.neurons, s.layout.dim) for s in found
    }


class Conv1D(nn.Module):
    """As in Hugging Face: weight (in, out)."""

    def __init__(self, nf, nx):
        super().__init__()
        self.nf = nf
        self.weight = nn.Parameter(torch.randn(nx, nf))

    def forward(self, x):
        return x @ self.weight


def test_every_kind():
    net = nn.ModuleDict(
        {
            "conv": nn.Conv2d(8, 6, 3, groups=2),
            "up": nn.ConvTranspose1d(4, 6, 3),
            "c1d": Conv1D(5, 7),
            "bilinear": nn.Bilinear(3, 4, 5),
            "attention": nn.MultiheadAttention(8, 2),
            "lstm": nn.LSTM(3, 4, bidirectional=True),
            "cell": nn.GRUCell(3, 4),
            "embedding": nn.Embedding(10, 4),
            "norm": nn.LayerNorm(4),
            "out": nn.Linear(4, 3),
        }
    )
    assert kinds(net) == {
        "conv": ("convolution", "hidden", 6, 36),
        "up": ("transposed convolution", "hidden", 6, 12),
        "c1d": ("Conv1D", "hidden", 5, 7),
        "bilinear": ("bilinear", "hidden", 5, 12),
        "attention.in_proj_weight": ("attention", "hidden", 24, 8),
        "attention.out_proj": ("linear", "hidden", 8, 8),
        "lstm.weight_ih_l0": ("recurrent", "hidden", 16, 3),
        "lstm.weight_hh_l0": ("recurrent", "hidden", 16, 4),
        "lstm.weight_ih_l0_reverse": ("recurrent", "hidden", 16, 3),
        "lstm.weight_hh_l0_reverse": ("recurrent", "hidden", 16, 4),
        "cell.weight_ih": ("recurrent", "hidden", 12, 3),
        "cell.weight_hh": ("recurrent", "hidden", 12, 4),
        "out": ("linear", "output", 3, 4),
    }
    findings = find_layers(net)
    assert [(x.name, x.reason) for x in findings.left_out] == [("embedding", "embeddings=False")]
    assert kinds(net, embeddings=True)["embedding"] == ("embedding", "hidden", 10, 4)
    for site in findings:
        rows = site.layout.rows(site.read())
        assert rows.shape == (site.layout.sets * site.layout.neurons, site.layout.dim)
        assert torch.equal(site.layout.weight(rows), getattr(site.module, site.parameter))
    assert "embedding" in str(findings) and "left out" in str(findings)
    names = [n.name for n in find_neurons(net)]  # the regularizers see them too
    assert {"c1d", "lstm.weight_hh_l0", "cell.weight_ih"} <= set(names)


def test_rows_of_inputs_first_weights():
    weight = torch.arange(6.0).view(2, 3)  # (in, out)
    layout = FilterMatrix((2, 3), 2, transposed=True)
    assert torch.equal(layout.rows(weight), weight.T)
    assert torch.equal(layout.weight(weight.T), weight)


@pytest.mark.parametrize("method", ["cayley", "ogd"])
def test_recurrent_cells_rotate_and_recurrent_layers_are_named(method):
    net = nn.ModuleDict({"cell": nn.LSTMCell(6, 4), "lstm": nn.LSTM(6, 4), "out": nn.Linear(4, 2)})
    keys = list(net.state_dict())
    x = torch.randn(3, 6)
    before = net["cell"](x)[0]
    plan = hs.orthogonal.describe(net, method, start="identity")
    assert [layer.site.label for layer in plan] == ["cell.weight_ih", "cell.weight_hh"]
    assert "LSTM reads it past parametrizations" in str(plan)
    hs.orthogonal.rotate(net, method, start="identity")
    close(net["cell"](x)[0], before)
    net["cell"](x)[0].square().sum().backward()
    hs.orthogonal.fold(net)
    assert list(net.state_dict()) == keys
    close(net["cell"](x)[0], before)


def test_a_module_used_twice_is_not_tied():
    shared = nn.Linear(4, 4)
    net = nn.ModuleDict({"a": shared, "b": shared, "out": nn.Linear(4, 2)})
    assert list(kinds(net)) == ["a", "out"]
    hs.orthogonal.rotate(net)
    assert parametrize.is_parametrized(net["b"])
    assert len(find_neurons(net)) == 2


def test_tied_weights_turn_on_the_input_side():
    net = nn.ModuleDict({"words": nn.Embedding(5, 8), "other": nn.Linear(8, 5, bias=False)})
    net["last"] = nn.Linear(5, 2)
    net["other"].weight = net["words"].weight
    (site,) = [s for s in find_layers(net) if s.label == "other"]
    assert site.state == "tied" and "words.weight and other.weight" in site.note
    with pytest.raises(ValueError, match="one tied weight.*side='input'"):
        hs.orthogonal.rotate(net)
    hs.orthogonal.rotate(net, start="identity")
    assert net["other"].weight is net["words"].weight
    x = torch.randn(3, 8)
    with torch.no_grad():
        net["other"].input_rotation.map.U += 0.3
    expected = net["other"](x)
    hs.orthogonal.fold(net)  # a weight of its own: the words stay
    close(net["other"](x), expected)
    assert net["other"].weight is not net["words"].weight


class Doubled(nn.Module):
    """A linear layer whose weight is a property."""

    def __init__(self, d, n):
        super().__init__()
        self.in_features, self.out_features = d, n
        self.root = nn.Parameter(0.2 * torch.randn(n, d))

    @property
    def weight(self):
        return 2 * self.root

    def forward(self, x):
        return nn.functional.linear(x, self.weight)


def test_weights_that_are_properties():
    torch.manual_seed(0)
    net = nn.Sequential(*(Doubled(6, 6) for _ in range(20)), nn.Linear(6, 2))
    assert len(find_neurons(net)) == 21
    MHE()(net).backward()
    assert all(layer.root.grad.abs().sum() > 0 for layer in net[:20])
    x = torch.randn(3, 6)
    before = net(x)
    with pytest.raises(ValueError, match="cannot be turned .a property.*side='input'"):
        hs.orthogonal.rotate(net)
    hs.orthogonal.rotate(net, start="identity")
    close(net(x), before)
    with pytest.raises(ValueError, match="cannot fold into 0 .a property"):
        hs.orthogonal.fold(net)


@pytest.mark.parametrize("name", ["weight_norm", "spectral_norm"])
def test_legacy_norms(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # weight_norm is deprecated, and in many models
        layer = getattr(nn.utils, name)(nn.Linear(8, 5))
        net = nn.Sequential(layer, nn.ReLU(), nn.Linear(5, 2))
    net.eval()
    x = torch.randn(4, 8)
    before = net(x)
    reg = MHE()
    for _ in range(2):  # the graph of the last forward pass is not used again
        reg(net).backward()
    grad = layer.weight_v.grad if name == "weight_norm" else layer.weight_orig.grad
    assert grad.abs().sum() > 0
    with pytest.raises(ValueError, match=f"0 cannot be turned .legacy {name}.*remove {name} first"):
        hs.orthogonal.rotate(net, skip=())
    assert not any(hasattr(m, "parametrizations") for m in net)
    hs.orthogonal.rotate(net, start="identity")
    close(net(x), before)
    hs.layers.convert(net, linear=True, verbose=False)
    assert type(net[0]) is nn.Linear  # its weight is computed


def test_convert_names_what_stays_and_leaves_the_output_alone(capsys):
    net = nn.ModuleDict(
        {
            "conv": nn.Conv2d(3, 4, 3),
            "c1d": Conv1D(5, 7),
            "up": nn.ConvTranspose2d(4, 4, 3),
            "bilinear": nn.Bilinear(3, 4, 5),
            "hidden": nn.Linear(4, 4),
            "fc": nn.Linear(4, 10),
        }
    )
    hs.layers.convert(net, linear=True)
    told = capsys.readouterr().out
    assert type(net["fc"]) is nn.Linear and isinstance(net["hidden"], hs.layers.DecoupledLinear)
    for text in (
        "stays: output layer: output=True converts it",
        "stays: Conv1D has no decoupled form",
        "stays: transposed convolution has no decoupled form",
        "stays: bilinear has no decoupled form",
    ):
        assert text in told, told
    hs.layers.convert(net, linear=True, output=True, verbose=False)
    assert isinstance(net["fc"], hs.layers.DecoupledLinear)
    assert isinstance(hs.layers.convert(nn.Linear(4, 3), linear=True), hs.layers.DecoupledLinear)


def test_convert_swaps_all_or_none(monkeypatch):
    module = __import__("hypersphere.layers.convert", fromlist=["x"])
    real, calls = module._decoupled_twin, []

    def twin(*args):
        calls.append(args)
        if len(calls) == 2:
            raise RuntimeError("no twin")
        return real(*args)

    monkeypatch.setattr(module, "_decoupled_twin", twin)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3))
    with pytest.raises(RuntimeError, match="no twin"):
        hs.layers.convert(net)
    assert [type(m) for m in net] == [nn.Conv2d, nn.Conv2d]


def test_rotate_attaches_all_or_none(monkeypatch):
    module = __import__("hypersphere.orthogonal.rotate", fromlist=["x"])
    real = parametrize.register_parametrization
    calls = []

    def register(*args, **kwargs):
        calls.append(args)
        if len(calls) == 2:
            raise RuntimeError("no room")
        return real(*args, **kwargs)

    monkeypatch.setattr(module.parametrize, "register_parametrization", register)
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(8, 2), nn.Linear(4, 4), nn.Linear(4, 2))
    before = {k: v.clone() for k, v in net.state_dict().items()}
    with pytest.raises(RuntimeError, match="no room"):
        hs.orthogonal.rotate(net, "cayley", start="random")
    after = net.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[k], before[k]) for k in before)
    assert all(p.requires_grad for p in net.parameters())


def test_meta():
    with torch.device("meta"):
        net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    assert "on the meta device" in str(find_layers(net))
    hs.orthogonal.rotate(net, start="identity", blocks=16)
    U = net[0].input_rotation.map.U
    assert U.is_meta and U.shape == (1, 16, 6)
    with torch.device("meta"):
        conv = nn.Sequential(nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(8, 2))
    hs.orthogonal.rotate(conv, start="identity")
    assert conv[0].parametrizations.weight.original.is_meta


def test_lazy_layers_are_named():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 2))
    assert "not initialized yet" in str(find_layers(net))


def test_blocks_of_a_backbone_hold_no_output():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    assert {s.role for s in find_layers(encoder)} == {"hidden"}
    assert {s.role for s in find_layers(layer)} == {"hidden"}
    net = nn.ModuleDict({"encoder": encoder, "head": nn.Linear(8, 3)})
    assert [s.label for s in find_layers(net) if s.role == "output"] == ["head"]


@pytest.fixture
def one_rank():
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_fsdp2(one_rank):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    plain = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    expected = MHE()(plain)
    expected.backward()
    sharded = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    sharded.load_state_dict(plain.state_dict())
    fully_shard(sharded, mesh=torch.distributed.device_mesh.init_device_mesh("cpu", (1,)))
    value = MHE()(sharded)
    close(value, expected)
    value.backward()
    assert isinstance(sharded[0].weight.grad, DTensor)
    close(sharded[0].weight.grad.full_tensor(), plain[0].weight.grad)
    with pytest.raises(ValueError, match="cannot be turned .DTensor.*rotate before fully_shard"):
        hs.orthogonal.rotate(sharded)
    x = torch.randn(4, 8)
    before = plain(x)
    hs.orthogonal.rotate(sharded, start="identity", structure="reflections", rank=2)
    close(sharded(x), before)
    sharded(x).square().sum().backward()
    assert sharded[0].input_rotation.map.U.grad.abs().sum() > 0
    with pytest.raises(ValueError, match="cannot fold into 0 .DTensor"):
        hs.orthogonal.fold(sharded)


def test_arguments():
    with pytest.raises(TypeError, match="expects a module; got Tensor"):
        find_layers(torch.ones(2))
    with pytest.raises(ValueError, match="lora must be"):
        find_layers(nn.Linear(2, 2), lora="sum")
