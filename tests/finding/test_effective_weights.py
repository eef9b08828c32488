"""The weight that a site reads is the one its layer computes with, whatever stands in between."""

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import hypersphere as hs
from hypersphere.finding import find_layers
from hypersphere.orthogonal.rotation import rotations
from tiny_models import make
from tolerances import close


def turned(model: nn.Module) -> nn.Module:
    """The rotated model, away from its start."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for *_, rotation in rotations(model):
            for p in rotation.map.parameters():
                p.add_(0.1 * torch.randn(p.shape, generator=generator))
    return model


def computed(module: nn.Module, site) -> torch.Tensor:
    """The weight of a layer, read off its outputs."""
    if site.kind == "embedding":
        return module(torch.arange(site.layout.neurons))
    eye = torch.eye(site.layout.dim)
    outputs = module(eye) - module(torch.zeros_like(eye))
    return outputs if site.kind == "Conv1D" else outputs.T


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize(
    ("name", "targets"), [("gpt2", ["c_attn", "c_fc", "wte"]), ("bert", ["word_embeddings"])]
)
@pytest.mark.filterwarnings("ignore")  # of the libraries
def test_lora_of_conv1d_and_embeddings(name, targets, dora):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(
        r=2, use_dora=dora, target_modules=targets, init_lora_weights=False,
        fan_in_fan_out=name == "gpt2",
    )  # fmt: skip
    model = peft.get_peft_model(make(name), config)
    with torch.no_grad():
        for key, p in model.named_parameters():
            if "magnitude" in key:
                p.mul_(1.5)
    modules = dict(model.named_modules())
    sites = [s for s in find_layers(model, embeddings=True) if "LoRA" in s.note]
    assert sites
    for site in sites:
        close(site.read(), computed(modules[site.name], site), scale=10)


@pytest.mark.filterwarnings("ignore")  # of the libraries
def test_lora_over_a_base_whose_inputs_are_rotated():
    peft = pytest.importorskip("peft")
    net = nn.ModuleDict({"a": nn.Linear(8, 64), "head": nn.Linear(64, 2)})
    turned(hs.orthogonal.rotate(net, start="identity", blocks=4))
    model = peft.get_peft_model(
        net, peft.LoraConfig(r=2, target_modules=["a"], init_lora_weights=False)
    )
    site = next(s for s in find_layers(model) if "LoRA" in s.note)
    close(site.read(), computed(dict(model.named_modules())[site.name], site), scale=10)


def test_a_tied_weight_whose_inputs_are_rotated():
    net = nn.ModuleDict({"words": nn.Embedding(10, 8), "head": nn.Linear(8, 10, bias=False)})
    net["head"].weight = net["words"].weight
    turned(hs.orthogonal.rotate(net, start="identity", targets=("head",)))
    site = next(s for s in find_layers(net) if s.name == "head")
    assert site.state == "tied" and "rotated on the input side" in site.note
    close(site.read(), computed(net["head"], site), scale=10)


def test_a_pruned_weight_is_made_anew():
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    prune.l1_unstructured(net[0], "weight", amount=0.3)
    prune.l1_unstructured(net[0], "weight", amount=0.3)
    site = next(iter(find_layers(net)))
    assert (site.state, site.note) == ("computed", "pruned")
    regularizer = hs.regularizers.MHE()
    for _ in range(2):  # the weight of the last forward pass has a graph that is used up
        (regularizer(net) + net(torch.randn(2, 8)).sum()).backward()
    with torch.no_grad():
        net[0].weight_orig.mul_(2)
    assert torch.equal(site.read(), net[0].weight_orig * net[0].weight_mask)


def test_a_module_used_twice_is_known_by_both_names():
    layer = nn.Linear(8, 8)
    net = nn.ModuleDict({"a": layer, "b": layer, "other": nn.Linear(8, 8), "head": nn.Linear(8, 2)})

    def labels(**options):
        return [x.site.label for x in hs.orthogonal.describe(net, start="identity", **options)]

    assert labels(skip=("b",)) == ["other", "head"]
    assert labels(targets=("b",)) == ["a"]


@pytest.mark.filterwarnings("ignore")  # of the libraries
def test_convert_leaves_what_a_twin_would_lose(capsys):
    torchao = pytest.importorskip("torchao.quantization")
    net = nn.Sequential(
        nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 2)
    )
    torchao.quantize_(nn.Sequential(net[2]), torchao.Int8WeightOnlyConfig())
    turned(hs.orthogonal.rotate(net, start="identity", blocks=8, targets=("0",)))
    x = torch.randn(3, 32)
    before = net(x)
    hs.layers.convert(net, linear=True)
    assert torch.equal(net(x), before)
    printed = capsys.readouterr().out
    assert "stays: has modules of its own: input_rotation" in printed
    assert "stays: quantized: torchao" in printed


def test_convert_keeps_a_declared_role():
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1))
    net[1].neuron_role = "output"
    hs.layers.convert(net, output=True, verbose=False)
    assert [site.role for site in find_layers(net)] == ["hidden", "output"]
