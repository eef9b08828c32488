import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from hypersphere.regularizers import MHE, find_neurons


def found(module, **options):
    return {n.name: (n.role, tuple(n.read().shape)) for n in find_neurons(module, **options)}


def test_every_kind_of_layer_is_found_with_a_neuron_a_row():
    net = nn.ModuleDict(
        {
            "conv1": nn.Conv1d(3, 8, 5),
            "conv2": nn.Conv2d(8, 6, 3),
            "grouped": nn.Conv2d(8, 6, 3, groups=2),
            "conv3": nn.Conv3d(2, 4, 2),
            "up": nn.ConvTranspose2d(6, 4, 3),
            "grouped_up": nn.ConvTranspose1d(6, 4, 3, groups=2),
            "norm": nn.BatchNorm2d(6),
            "bilinear": nn.Bilinear(3, 4, 5),
            "attention": nn.MultiheadAttention(8, 2),
            "cross": nn.MultiheadAttention(8, 2, kdim=5, vdim=6),
            "embedding": nn.Embedding(10, 4),
            "classifier": nn.Linear(8, 3),
        }
    )
    assert found(net) == {
        "conv1": ("hidden", (1, 8, 15)),
        "conv2": ("hidden", (1, 6, 72)),
        "grouped": ("hidden", (2, 3, 36)),
        "conv3": ("hidden", (1, 4, 16)),
        "up": ("hidden", (1, 4, 54)),
        "grouped_up": ("hidden", (2, 2, 9)),
        "bilinear": ("hidden", (1, 5, 12)),
        "attention.in_proj": ("hidden", (3, 8, 8)),
        "attention.out_proj": ("hidden", (1, 8, 8)),
        "cross.q_proj": ("hidden", (1, 8, 8)),
        "cross.k_proj": ("hidden", (1, 8, 5)),
        "cross.v_proj": ("hidden", (1, 8, 6)),
        "cross.out_proj": ("hidden", (1, 8, 8)),
        "classifier": ("output", (1, 3, 8)),
    }


def test_transposed_filters_belong_to_output_channels():
    layer = nn.ConvTranspose2d(4, 6, 3, groups=2)
    (neurons,) = find_neurons(layer)
    rows = neurons.read()
    for group in range(2):
        for channel in range(3):
            filter_ = layer.weight[2 * group : 2 * group + 2, channel]
            torch.testing.assert_close(rows[group, channel], filter_.flatten())


def test_groups_are_sets_of_their_own_unless_told():
    layer = nn.Conv2d(8, 6, 3, groups=2)
    assert found(layer, together=True) == {"Conv2d": ("hidden", (1, 6, 36))}
    depthwise = nn.Sequential(nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 4, 1))
    assert list(found(depthwise)) == ["1"]
    assert list(found(depthwise, together=True)) == ["0", "1"]


def test_a_head_is_the_output_and_then_no_linear_layer_is():
    class Head(nn.Module):
        neuron_role = "output"

        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(7, 4))

    net = nn.ModuleList([nn.Sequential(nn.Linear(3, 4)), Head()])
    assert found(net) == {"0.0": ("hidden", (1, 4, 3)), "1": ("output", (1, 7, 4))}
    marked = nn.Linear(3, 4)
    marked.neuron_role = "hidden"
    assert found(nn.Sequential(marked)) == {"0": ("hidden", (1, 4, 3))}


def test_roles_and_layers_can_be_told():
    net = nn.Sequential(
        nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 6)), nn.Linear(6, 2)
    )
    assert list(found(net, only=["1"])) == ["1.0", "1.1"]
    assert list(found(net, skip=["1.*"])) == ["0", "2"]
    roles = {name: role for name, (role, _) in found(net, output=["0"]).items()}
    assert roles == {"0": "output", "1.0": "hidden", "1.1": "hidden", "2": "hidden"}
    # what is left out changes nothing about the rest
    part = find_neurons(net, only=["1"])
    assert {n.role for n in part} == {"hidden"} and not any(n.first for n in part)
    assert found(net, skip=["0", "1"]) == {"2": ("output", (1, 2, 6))}
    assert [n.name for n in find_neurons(net) if n.first] == ["0"]
    weights = {"a": torch.randn(4, 2, 3), "b": torch.randn(5, 2)}
    assert not any(n.first for n in find_neurons(weights))
    assert found(weights) == {"a": ("hidden", (1, 4, 6)), "b": ("hidden", (1, 5, 2))}


def test_tied_weights_count_once():
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    net[2].weight = net[0].weight
    assert list(found(net)) == ["0"]


def test_parametrized_layers_give_their_effective_weight():
    layer = nn.Linear(4, 3, bias=False)
    parametrize.register_parametrization(layer, "weight", nn.Sequential(nn.Tanh()))
    (neurons,) = find_neurons(layer)
    torch.testing.assert_close(neurons.read()[0], layer.weight)
    MHE()(layer).backward()
    assert layer.parametrizations.weight.original.grad.abs().sum() > 0


def test_other_libraries_linear_layers_are_found_by_their_shape():
    geometric = pytest.importorskip("torch_geometric.nn")
    net = geometric.GCNConv(6, 5)
    assert list(found(net).values()) == [("output", (1, 5, 6))]


def test_family_layers_and_heads_are_found():
    layers, heads = (
        pytest.importorskip("hypersphere.layers"),
        pytest.importorskip("hypersphere.heads"),
    )
    net = nn.ModuleList(
        [layers.SphereConv2d(3, 8, 3), layers.DecoupledLinear(8, 6), heads.ASoftmaxHead(6, 10, m=2)]
    )
    assert found(net) == {
        "0": ("hidden", (1, 8, 27)), "1": ("hidden", (1, 6, 8)), "2": ("output", (1, 10, 6)),
    }  # fmt: skip
    MHE()(net).backward()
    assert all(m.weight.grad.abs().sum() > 0 for m in net)


def test_rotated_layers_keep_their_energy_and_get_gradients():
    orthogonal = pytest.importorskip("hypersphere.orthogonal")
    net = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    orthogonal.rotate(net, method="cayley", skip=("2",))
    reg = MHE(output=0.0)
    before = reg(net).detach()
    with torch.no_grad():
        for p in net[0].parameters():
            if p.requires_grad:
                p.add_(0.3 * torch.randn_like(p))
    torch.testing.assert_close(reg(net).detach(), before, rtol=1e-4, atol=0)


@pytest.mark.parametrize("argument", ["only", "skip", "output_layers"])
def test_a_name_that_fits_no_layer_is_told(argument):
    net = nn.ModuleDict({"stem": nn.Linear(3, 4), "fc": nn.Linear(4, 2)})
    MHE(**{argument: ["fc"]})(net)
    with pytest.raises(ValueError, match=rf"{argument}=\['fz'\].*stem, fc"):
        MHE(**{argument: ["fc", "fz"]})(net)


def test_nothing_to_regularize_lists_what_was_seen():
    net = nn.Sequential(nn.ReLU(), nn.BatchNorm1d(4), nn.Conv2d(4, 4, 3, groups=4))
    with pytest.raises(ValueError) as error:
        MHE()(net)
    message = str(error.value)
    assert "0: ReLU" in message and "1: BatchNorm1d, weight (4,)" in message
    assert "2: Conv2d, weight (4, 1, 3, 3)" in message and "neuron_role" in message
    with pytest.raises(ValueError, match=r"only=\['nowhere'\]"):
        MHE(only=["nowhere"])(nn.Linear(3, 3))
    with pytest.raises(ValueError, match=r"a: \(1, 3\)"):
        MHE()({"a": torch.ones(1, 3)})
    with pytest.raises(ValueError, match="no layers|itself"):
        MHE()(nn.Sequential())
    with pytest.raises(TypeError, match="Tensor"):
        MHE()(torch.ones(3, 3))
    with pytest.raises(ValueError, match="one neuron per row"):
        MHE()({"a": torch.ones(3)})


class Squared(nn.Module):
    """A layer whose weight is made anew each time it is read."""

    neuron_role = "hidden"

    def __init__(self) -> None:
        super().__init__()
        self.root = nn.Parameter(torch.randn(4, 6))

    @property
    def weight(self) -> torch.Tensor:
        return self.root.square()


def test_a_weight_that_is_a_property_is_never_taken_for_a_tied_one():
    net = nn.Sequential(*(Squared() for _ in range(30)))
    assert len(find_neurons(net)) == 30
