"""rotate: which layers, which start, which blocks, for every method."""

import importlib

import pytest
import torch
from torch import nn

import hypersphere as hs
from hypersphere import functional as HF
from hypersphere.orthogonal.matrices import METHODS
from hypersphere.orthogonal.rotation import rotations
from tolerances import close

LAYERS = {
    "conv1d": (lambda: nn.Conv1d(4, 6, 3), (2, 4, 9)),
    "conv2d": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1), (2, 4, 8, 8)),
    "conv3d": (lambda: nn.Conv3d(2, 6, 3), (2, 2, 5, 5, 5)),
    "grouped": (lambda: nn.Conv2d(8, 6, 3, groups=2), (2, 8, 6, 6)),
    "depthwise": (lambda: nn.Conv2d(6, 6, 4, groups=6), (2, 6, 6, 6)),
    "transposed": (lambda: nn.ConvTranspose2d(4, 6, 3), (2, 4, 5, 5)),
    "transposed grouped": (lambda: nn.ConvTranspose2d(8, 6, 3, groups=2), (2, 8, 5, 5)),
    "linear": (lambda: nn.Linear(10, 7), (3, 10)),
    "more neurons than dimensions": (lambda: nn.Linear(4, 30), (3, 4)),
    "one neuron": (lambda: nn.Linear(6, 1), (3, 6)),
    "decoupled": (lambda: hs.layers.DecoupledConv2d(4, 6, 3), (2, 4, 8, 8)),
    "decoupled linear": (lambda: hs.layers.DecoupledLinear(8, 5), (2, 8)),
}


def rows_of(layer: nn.Module) -> torch.Tensor:
    """The neurons of a layer, written out per kind rather than through the library's layout."""
    weight = layer.weight.detach()
    if isinstance(layer, nn.ConvTranspose2d):
        inputs, outputs = layer.in_channels // layer.groups, layer.out_channels // layer.groups
        return torch.stack(
            [
                weight[g * inputs : (g + 1) * inputs, o].flatten()
                for g in range(layer.groups)
                for o in range(outputs)
            ]
        )
    return weight.flatten(1)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("method", ["cayley", "gram_schmidt", "loewdin"])
def test_every_kind_of_layer_keeps_its_gram_matrix_in_training(kind, method):
    make, shape = LAYERS[kind]
    layer = make()
    gram = rows_of(layer) @ rows_of(layer).T
    hs.orthogonal.rotate(layer, method, start="random", normalize=False)
    before = rows_of(layer)
    close(before @ before.T, gram, scale=3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5, momentum=0.9, weight_decay=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        (layer(torch.randn(shape)) - 1).square().mean().backward()
        optimizer.step()
    after = rows_of(layer)
    close(after @ after.T, gram, scale=3)
    assert (after - before).abs().max() > 1e-3


@pytest.mark.parametrize("method", METHODS)
def test_identity_start_leaves_the_weights(method):
    layers = [nn.Conv2d(4, 8, 3, groups=2), nn.Linear(12, 6)]
    for layer in layers:
        weight = layer.weight.detach().clone()
        hs.orthogonal.rotate(layer, method, start="identity")
        assert torch.allclose(layer.weight, weight, atol=3e-7, rtol=0), method
        loss = layer.weight.square().sum() + layer.weight.sum()
        loss.backward()
        (U,) = (p for p in layer.parameters() if p.grad is not None)
        assert U.grad.isfinite().all() and U.grad.abs().max() > 0


@pytest.mark.parametrize("method", METHODS)
def test_random_start_is_a_drawn_rotation(method):
    layer = nn.Linear(12, 6)
    neurons = HF.normalize(layer.weight.detach())
    hs.orthogonal.rotate(layer, method, generator=torch.Generator().manual_seed(5))
    turn = HF.random_rotation(12, (1, 1), torch.Generator().manual_seed(5))[0, 0]
    close(layer.weight, neurons @ turn.T)


def test_random_start_of_blocks_differs_from_block_to_block():
    layer = nn.Conv2d(4, 6, 3, bias=False)
    rows = layer.weight.detach().flatten(1).clone()
    hs.orthogonal.rotate(layer, "cayley", blocks=2, normalize=False)
    new = layer.weight.detach().flatten(1)
    for block in (slice(0, 18), slice(18, 36)):  # each half of the channels keeps its own lengths
        close(new[:, block].norm(dim=1), rows[:, block].norm(dim=1))
        assert not torch.allclose(new[:, block], rows[:, block], atol=1e-2)


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("method", ["gram_schmidt", "cayley", "loewdin", "ogd"])
def test_blocks_are_the_block_diagonal_matrix_along_input_channels(method, share):
    """F.33, F.34: k sub-neurons of (c_in / k, kh, kw), never slices of the kernel."""
    layer = nn.Conv2d(8, 5, 3)
    hs.orthogonal.rotate(layer, method, blocks=4, share_blocks=share, normalize=False)
    (_, _, _, rotation) = next(iter(rotations(layer)))
    neurons = layer.parametrizations.weight.original.detach()
    R = rotation.map.matrix().detach()[0]
    assert R.shape == (1 if share else 4, 18, 18)
    for k in range(4):
        part = neurons[:, 2 * k : 2 * k + 2].flatten(1)
        expected = part @ R[0 if share else k].T
        torch.testing.assert_close(layer.weight[:, 2 * k : 2 * k + 2].flatten(1), expected)
    dense = rotation.map.dense()[0]
    torch.testing.assert_close(layer.weight.flatten(1), neurons.flatten(1) @ dense.T)


def test_blocks_that_do_not_divide_the_channels_take_the_common_divisor():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Linear(8, 2))
    hs.orthogonal.rotate(model, blocks=4)
    assert [layer.blocks for layer in hs.orthogonal.report(model).layers] == [1, 4]


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("method", ["cayley", "householder", "ogd"])
def test_attention(method, same):
    sizes = {} if same else {"kdim": 6, "vdim": 10}
    attention = nn.MultiheadAttention(8, 2, batch_first=True, **sizes)
    keys = list(attention.state_dict())
    x = torch.randn(2, 5, 8)
    inputs = (x, x, x) if same else (x, torch.randn(2, 5, 6), torch.randn(2, 5, 10))
    expected = attention(*inputs)[0]
    hs.orthogonal.rotate(attention, method, start="identity", skip=())
    close(attention(*inputs)[0], expected)
    attention(*inputs)[0].square().sum().backward()
    moved = [n for n, p in attention.named_parameters() if p.requires_grad and "tasks" in n]
    assert len(moved) == (2 if same else 4)  # in_proj (or q, k, v) and out_proj
    assert all(attention.get_parameter(n).grad.isfinite().all() for n in moved)
    if same:  # q, k and v turn apart
        assert attention.get_parameter(next(n for n in moved if "in_proj" in n)).shape[0] == 3
    hs.orthogonal.fold(attention)
    assert list(attention.state_dict()) == keys
    with torch.no_grad():
        attention.eval()
        close(attention(*inputs)[0], expected)


def test_normalize_and_learn_neurons():
    layer = hs.orthogonal.rotate(nn.Linear(6, 4))
    close(layer.weight.norm(dim=1), torch.ones(4))
    assert not layer.parametrizations.weight.original.requires_grad
    layer = nn.Linear(6, 4)
    lengths = layer.weight.norm(dim=1)
    hs.orthogonal.rotate(layer, start="identity", learn_neurons=True)
    close(layer.weight.norm(dim=1), lengths)
    layer(torch.randn(3, 6)).sum().backward()
    assert layer.parametrizations.weight.original.grad is not None
    layer = hs.orthogonal.rotate(nn.Linear(6, 4), start="identity", normalize=True)
    close(layer.weight.norm(dim=1), torch.ones(4))


@pytest.mark.parametrize("refine", ["mhe", "half_space_mhe"])
def test_refine_lowers_the_energy_and_keeps_the_lengths(refine):
    half = refine == "half_space_mhe"
    layer = nn.Conv2d(2, 12, 3)
    lengths = layer.weight.detach().flatten(1).norm(dim=1)
    before = HF.hyperspherical_energy(layer.weight, s=1.0, half_space=half)
    hs.orthogonal.rotate(layer, start="identity", refine=refine, refine_steps=200)
    after = HF.hyperspherical_energy(layer.weight, s=1.0, half_space=half)
    # 12 neurons in 18 dimensions: a simplex is the optimum of the plain energy, orthogonal
    # neurons that of the half-space energy.
    cosine = torch.tensor(0.0) if half else torch.tensor(-1 / 11)
    best = 1 / (2 - 2 * cosine).sqrt()
    if half:
        best = (22 * best + 0.5) / 23
    assert best - 1e-5 < after < best + 2e-3 < before
    close(layer.weight.flatten(1).norm(dim=1), lengths, scale=3)


def test_output_layer_is_left_alone():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4, 6), nn.Linear(6, 2))
    hs.orthogonal.rotate(model)
    assert [label for label, *_ in rotations(model)] == ["0", "2"]
    net = nn.ModuleDict(
        {"body": nn.Linear(4, 4), "head": nn.Linear(4, 3), "other": nn.Linear(4, 2)}
    )
    net["head"].neuron_role = "output"
    hs.orthogonal.rotate(net)
    assert [label for label, *_ in rotations(net)] == ["body", "other"]


def test_an_embedding_is_no_output_layer():
    def rotated(role):
        model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))
        model[2].neuron_role = role
        hs.orthogonal.rotate(model)
        return [nn.utils.parametrize.is_parametrized(model[i]) for i in (0, 2)]

    assert rotated("hidden") == [True, True]  # the head of a bare backbone stands elsewhere
    assert rotated("output") == [True, False]
    assert rotated(None) == [True, False]


def test_skip_by_name_prefix_and_last_name():
    def build() -> nn.Module:
        return nn.ModuleDict({"a": nn.ModuleDict({"fc": nn.Linear(3, 3)}), "b": nn.Linear(3, 3)})

    for skip, rest in ((("fc",), ["b"]), (("a",), ["b"]), (("a.fc",), ["b"]), ((), ["a.fc", "b"])):
        model = hs.orthogonal.rotate(build(), skip=skip)
        assert [label for label, *_ in rotations(model)] == rest


def test_callable_and_module_transforms():
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(6, 4))
    hs.orthogonal.rotate(model, lambda rows: rows.flip(-1), start="identity", skip=())
    neurons = model[0].parametrizations.weight.original
    assert torch.equal(model[0].weight, neurons.flip(-1))

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 6)

        def forward(self, v):
            return v + torch.tanh(self.inner(v))

    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    hs.orthogonal.rotate(model, Residual(), start="identity", skip=())
    model(torch.randn(2, 6)).sum().backward()
    inner = [p for n, p in model.named_parameters() if n.endswith("inner.weight")]
    assert len(inner) == 2 and all(p.grad is not None for p in inner)
    groups = {g["name"]: g for g in hs.orthogonal.parameter_groups(model)}
    assert len(groups["rotations"]["params"]) == 4
    with pytest.raises(ValueError, match="must keep the shape of the neurons"):
        hs.orthogonal.rotate(nn.Linear(4, 3), lambda rows: rows[:, :2])


def test_structured_matrices():
    d = 6
    expected = {
        "spd": lambda R: torch.linalg.eigvalsh(R).min() > 0,
        "lower_triangular": lambda R: torch.equal(R, R.tril()),
        "upper_triangular": lambda R: torch.equal(R, R.triu()),
        "banded": lambda R: torch.equal(R, R.triu(-2).tril(2)) and R[0, 2] != 0,
        "symmetric": lambda R: torch.equal(R, R.T),
        "skew": lambda R: torch.equal(R, -R.T),
        "hessenberg": lambda R: torch.equal(R, R.triu(-1)) and R[1, 0] != 0 != R[0, 5],
        "lower_hessenberg": lambda R: torch.equal(R, R.tril(1)) and R[0, 1] != 0 != R[5, 0],
    }
    for method, holds in expected.items():
        layer = hs.orthogonal.rotate(nn.Linear(d, 4), method, bandwidth=2)
        (_, _, _, rotation) = next(iter(rotations(layer)))
        with torch.no_grad():
            rotation.map.U += 0.1 * torch.randn_like(rotation.map.U)
        R = rotation.map.matrix().detach()[0, 0]
        assert holds(R), method
        neurons = layer.parametrizations.weight.original
        close(layer.weight, neurons @ R.T)
    with pytest.raises(ValueError, match="skew matrix of odd size"):
        hs.orthogonal.rotate(nn.Linear(5, 4), "skew")


def test_assigning_a_weight_keeps_it():
    for method in ("gram_schmidt", "householder", "cayley", "none"):
        layer = hs.orthogonal.rotate(nn.Linear(6, 4), method)
        weight = torch.randn(4, 6)
        layer.weight = weight
        close(layer.weight, weight, scale=3)


def test_bfloat16_model_and_autocast():
    layer = hs.orthogonal.rotate(nn.Linear(16, 8), "cayley")
    weight = layer.weight
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(layer.weight, weight)
        layer(torch.randn(2, 16)).float().sum().backward()
    low = hs.orthogonal.rotate(nn.Linear(16, 8).bfloat16(), "gram_schmidt")
    assert low.weight.dtype == torch.bfloat16
    low(torch.randn(2, 16, dtype=torch.bfloat16)).float().sum().backward()


def test_memory_warning_names_blocks(monkeypatch):
    module = importlib.import_module("hypersphere.orthogonal.rotate")
    monkeypatch.setattr(module, "MEMORY_WARNING", 22 * 10**5)
    with pytest.warns(UserWarning, match=r"rotating Conv2d .*d = 576.*blocks=4 would take"):
        hs.orthogonal.rotate(nn.Conv2d(64, 2, 3))


def test_messages():
    conv = nn.Conv2d(4, 4, 3)
    for arguments, message in (
        ({"method": "svd"}, "unknown method 'svd'; expected a callable"),
        ({"method": 3}, "must be a name or a callable"),
        ({"blocks": 0}, "blocks must be at least 1"),
        ({"start": "zero"}, "start must be 'random', 'identity' or 'normal'"),
        ({"refine": "energy"}, "refine must be None, 'mhe' or 'half_space_mhe'"),
        ({"skip": ("fc",)}, "skip names 'fc', which is not a module; the layers are: Conv2d"),
        ({"skip": "fc"}, "tuple of module names"),
        ({"skip": ("",)}, "every layer is skipped"),
    ):
        with pytest.raises(ValueError, match=message):
            hs.orthogonal.rotate(conv, **arguments)
    with pytest.raises(ValueError, match="no convolution, linear layer or attention"):
        hs.orthogonal.rotate(nn.ReLU())
    hs.orthogonal.rotate(conv)
    with pytest.raises(ValueError, match="parametrized weight already: fold"):
        hs.orthogonal.rotate(conv)
    tied = nn.ModuleList([nn.Embedding(5, 3), nn.Linear(3, 5), nn.Linear(3, 3)])
    tied[1].weight = tied[0].weight
    with pytest.raises(ValueError, match="one tied weight"):
        hs.orthogonal.rotate(tied)


def test_a_layer_that_cannot_be_rotated_leaves_all_as_they_were():
    net = nn.Sequential(nn.Conv2d(4, 8, 3), nn.Conv2d(8, 8, 3, groups=8), nn.Linear(8, 3))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with pytest.raises(ValueError, match=r"1 has neurons of length 9.*skip"):
        hs.orthogonal.rotate(net, "skew")
    with pytest.raises(ValueError, match="bandwidth counts diagonals.*got -1"):
        hs.orthogonal.rotate(net, "banded", bandwidth=-1)
    after = net.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    with pytest.raises(ValueError, match="unknown method 'zzz'"):
        hs.orthogonal.memory_estimate(576, method="zzz")
