"""convert and its inverse, on a residual network and on transformers."""

from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hypersphere import layers as hl
from tolerances import close


class Block(nn.Module):
    """The basic residual block, with torchvision's names."""

    def __init__(self, c_in, c_out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(c_out)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(c_out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or c_in != c_out:
            self.downsample = nn.Sequential(
                nn.Conv2d(c_in, c_out, 1, stride, bias=False), nn.BatchNorm2d(c_out)
            )

    def forward(self, x):
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(out)) + shortcut)


class ResNet(nn.Module):
    def __init__(self, width=8, classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = nn.Sequential(Block(width, width, 1), Block(width, width, 1))
        self.layer2 = nn.Sequential(Block(width, 2 * width, 2), Block(2 * width, 2 * width, 1))
        self.fc = nn.Linear(2 * width, classes)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        return self.fc(self.layer2(self.layer1(x)).mean((2, 3)))


class Transformer(nn.Module):
    """Pre-norm encoder with its own attention: four linear layers a block."""

    def __init__(self, dim=16, depth=2, classes=5):
        super().__init__()
        self.embed = nn.Conv2d(3, dim, 4, 4)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm1": nn.LayerNorm(dim),
                    "qkv": nn.Linear(dim, 3 * dim),
                    "proj": nn.Linear(dim, dim),
                    "norm2": nn.LayerNorm(dim),
                    "fc1": nn.Linear(dim, 4 * dim),
                    "fc2": nn.Linear(4 * dim, dim),
                }
            )
            for _ in range(depth)
        )
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.embed(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            q, k, v = block["qkv"](block["norm1"](x)).chunk(3, -1)
            x = x + block["proj"](F.scaled_dot_product_attention(q, k, v))
            x = x + block["fc2"](F.gelu(block["fc1"](block["norm2"](x))))
        return self.head(x.mean(1))


def decoupled_names(model):
    return [name for name, m in model.named_modules() if hasattr(m, "operator")]


@pytest.mark.parametrize("shortcuts", [True, False])
def test_residual_network(shortcuts, capsys):
    net = ResNet()
    state = {k: v.clone() for k, v in net.state_dict().items()}
    parameters = dict(net.named_parameters())
    x = torch.randn(2, 3, 32, 32)
    assert hl.convert(net, "tanh", "linear", skip=("fc",), shortcuts=shortcuts) is net
    account = capsys.readouterr().out
    shortcut = "layer2.0.downsample.0"
    names = decoupled_names(net)
    assert (shortcut in names) == shortcuts
    assert len(names) == 9 + shortcuts and "fc" not in names
    assert "layer1.0.conv1" in account and "stays: in skip" in account
    assert ("stays: 1x1 shortcut" in account) != shortcuts
    # The very same parameters: a pretrained start (4.4.3), and optimizers go on working.
    for name, parameter in parameters.items():
        assert dict(net.named_parameters())[name] is parameter
    net(x).sum().backward()
    assert net.layer1[0].conv1.weight.grad.abs().sum() > 0
    hl.revert(net, verbose=False)
    assert not decoupled_names(net)
    assert type(net.layer1[0].conv1) is nn.Conv2d
    for name, value in net.named_parameters():
        assert torch.equal(value, state[name])
    assert net.state_dict().keys() == state.keys()


def test_the_plain_operator_changes_nothing():
    for net, shape in ((ResNet(), (2, 3, 32, 32)), (Transformer(), (2, 3, 16, 16))):
        x = torch.randn(shape)
        net.eval()
        want = net(x)
        hl.convert(net, "linear", "cosine", weighted="linear", linear=True, verbose=False)
        assert decoupled_names(net)
        torch.testing.assert_close(net(x), want)
        torch.testing.assert_close(hl.revert(net, verbose=False)(x), want)


def test_transformer(capsys):
    net = Transformer()
    hl.convert(net, "ball", linear=True, skip=("head", "*.qkv"))
    assert decoupled_names(net) == [
        "embed", "blocks.0.proj", "blocks.0.fc1", "blocks.0.fc2",
        "blocks.1.proj", "blocks.1.fc1", "blocks.1.fc2",
    ]  # fmt: skip
    assert capsys.readouterr().out.count("in skip") == 3
    x, y = torch.randn(8, 3, 16, 16), torch.randint(5, (8,))
    optimizer = torch.optim.Adam(hl.parameter_groups(net, 0.01), lr=0.01)
    losses = []
    for _ in range(15):
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad(), loss.backward(), optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.filterwarnings("ignore:.*nested tensor.*:UserWarning")
def test_torch_transformer_cannot_bypass_the_operator():
    """In evaluation torch's encoder layer would multiply by linear1.weight itself."""
    net = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True), num_layers=2
    )
    x = torch.randn(3, 5, 16)
    plain = net.eval()(x)
    hl.convert(net, "sphere", linear=True, verbose=False)
    assert decoupled_names(net) == [f"layers.{i}.linear{j}" for i in (0, 1) for j in (1, 2)]
    training = net.train()(x)
    with torch.no_grad():
        torch.testing.assert_close(net.eval()(x), training)
    assert not torch.allclose(training, plain, atol=1e-3)
    hl.revert(net, verbose=False)
    with torch.no_grad():
        close(net.eval()(x), plain, scale=10)
    assert net.layers[0].activation_relu_or_gelu == 1


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_torch_transformer_with_padding_in_evaluation():
    """There torch's encoder would pack the batch into a nested tensor."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    net = nn.ModuleDict({"encoder": nn.TransformerEncoder(layer, num_layers=2)})["encoder"]
    assert net.use_nested_tensor
    x, padding = torch.randn(2, 5, 16), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    hl.convert(net, "tanh", linear=True, verbose=False)
    hl.convert(net, "tanh", linear=True, verbose=False)  # nothing left to swap
    with torch.no_grad():
        got = net.eval()(x, src_key_padding_mask=padding)
        torch.testing.assert_close(got[1, :3], net(x[1:, :3])[0])
        hl.revert(net, verbose=False)
        assert net.use_nested_tensor
        net(x, src_key_padding_mask=padding)


def test_parametrized_layers_stay_when_reverted(capsys):
    net = nn.Sequential(hl.TanhConv2d(3, 4, 3), hl.SphereConv2d(4, 4, 3))
    torch.nn.utils.parametrizations.weight_norm(net[0])
    x = torch.randn(1, 3, 6, 6)
    want = net[0](x)
    hl.revert(net)
    assert "stays: its weight or bias is computed" in capsys.readouterr().out
    assert isinstance(net[0], hl.TanhConv2d) and type(net[1]) is nn.Conv2d
    close(net[0](x), want, scale=10)


def test_shared_layers_single_layers_and_special_ones(capsys):
    shared = nn.Conv1d(3, 3, 3, padding=1)
    net = nn.Sequential(shared, nn.ReLU(), shared)
    hl.convert(net, verbose=False)
    assert net[0] is net[2] and isinstance(net[0], hl.DecoupledConv1d)
    single = hl.convert(nn.Conv3d(2, 3, 3, dtype=torch.float64), "log", verbose=False)
    assert isinstance(single, hl.DecoupledConv3d) and single.weight.dtype == torch.float64
    assert type(hl.revert(single, verbose=False)) is nn.Conv3d
    special = nn.Sequential(
        torch.nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3)), nn.LazyConv2d(4, 3)
    )
    hl.convert(special)
    assert capsys.readouterr().out.count("is more than a plain layer") == 2
    assert not decoupled_names(special)
    plain = nn.Sequential(OrderedDict(stem=nn.Conv2d(3, 4, 3), fc=nn.Conv2d(4, 2, 1)))
    with pytest.raises(ValueError, match=r"'sten', .*did you mean 'stem'.*stem, fc"):
        hl.convert(plain, skip=("fc", "sten"))
    assert not decoupled_names(plain)  # refused before anything is swapped
    with pytest.raises(TypeError, match="sequence of names"):
        hl.convert(net, skip="fc")


def test_one_k_for_the_network():
    net = ResNet()
    angular = hl.SigmoidAngular(learnable=True, share="network")
    hl.convert(net, angular=angular, verbose=False)
    own = [p for n, p in net.named_parameters() if "curvature" in n]
    assert len(own) == 1 and own[0] is angular.curvature.raw
    net(torch.randn(2, 3, 32, 32)).sum().backward()
    assert own[0].grad.abs() > 0


def test_hooks_of_every_kind():
    net = nn.Sequential(nn.Conv2d(3, 4, 3))
    seen = []
    conv = net[0]
    handles = [
        conv.register_forward_pre_hook(lambda m, a, k: seen.append("pre"), with_kwargs=True),
        conv.register_forward_hook(lambda m, a, k, o: seen.append("forward"), with_kwargs=True),
        conv.register_forward_hook(lambda *_: seen.append("always"), always_call=True),
        conv.register_full_backward_pre_hook(lambda *_: seen.append("backward pre")),
        conv.register_full_backward_hook(lambda *_: seen.append("backward")),
    ]
    x = torch.randn(1, 3, 4, 4, requires_grad=True)
    for change in (hl.convert, hl.revert):
        change(net, verbose=False)
        net(x).sum().backward()
        assert seen == ["pre", "forward", "always", "backward pre", "backward"]
        seen.clear()
        with pytest.raises((ValueError, RuntimeError)):
            net(x[:, :, :2])  # too small
        assert seen == ["pre", "always"]
        seen.clear()
    for handle in handles:
        handle.remove()
    net(x).sum().backward()
    assert not seen


def test_hooks_mode_and_second_conversion():
    net = nn.Sequential(nn.Conv2d(3, 4, 3)).eval()
    seen = []
    net[0].register_forward_hook(lambda *_: seen.append(1))
    hl.convert(net, "tanh", verbose=False)
    assert not net[0].training and not net[0].operator.training
    net(torch.randn(1, 3, 4, 4))
    assert seen == [1]
    layer = net[0]
    hl.convert(net, "ball", verbose=False)
    assert net[0] is layer  # decoupled already
