"""What all networks share: names, options, errors, initialization, shapes, export."""

import functools
import math

import pytest
import torch
from torch import nn

from hypersphere import models
from hypersphere.models import Style
from tolerances import close

# Small versions, so that every family runs in a blink.
SMALL = {
    "cnn9": {"widths": (4, 6, 8), "image_size": 8, "features": 5},
    "cnn6_mnist2d": {"widths": (4, 6, 8), "image_size": 8, "hidden": (7,)},
    "cnn10": {"widths": (4, 6, 8), "image_size": 32, "features": 5},
    "lsoftmax_lfw": {"widths": (4, 6, 8, 8), "image_size": (20, 16), "features": 5},
    "resnet20": {"widths": (4, 6, 8), "depths": (1, 2, 1), "image_size": 8},
    "resnet18": {"widths": (4, 6, 8, 8), "depths": (1, 2, 1, 1), "image_size": 32},
    "resnet50": {"widths": (2, 3, 4, 4), "depths": (1, 2, 1, 1), "image_size": 32},
    "sphereface20": {"widths": (4, 6, 8, 8), "image_size": (20, 18), "features": 5},
    "resnet18_modified": {"widths": (4, 6, 8, 8), "image_size": 32},
    "mlp": {"widths": (6, 6), "image_size": 8},
    "autoencoder": {"widths": (4,), "image_size": 8, "features": 3},
    "gcn": {"in_channels": 9, "widths": (5,)},
    "pointnet": {"widths": (4, 4, 4, 6, 8), "hidden": (7,), "features": 5, "points": 12},
    "pointnet_tnet": {"widths": (4, 4, 4, 6, 8), "hidden": (7,), "features": 5, "points": 12},
    "pointnet2": {
        "widths": ((4, 4), (6, 6), (8, 8)),
        "centers": (6, 3),
        "neighbors": (4, 3),
        "features": 5,
        "points": 12,
    },
    "sngan_generator": {"widths": (8, 6, 4), "features": 5},
    "sngan_discriminator": {"widths": (4, 6, 8), "image_size": 8},
}


def small(name, **options):
    return models.create(name, **{**SMALL[name], **options})


def example(net, batch=2):
    """Random inputs of the right shapes; a graph keeps its adjacency."""
    first, *rest = net.example_inputs(batch)
    return (torch.rand_like(first), *rest)


@pytest.mark.parametrize("name", SMALL)
def test_features_have_the_promised_width_and_gradients_flow(name):
    net = small(name)
    output = net(*example(net, 3))
    if name not in ("autoencoder", "sngan_generator"):
        assert output.shape == (3, net.out_features)
    output.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


@pytest.mark.parametrize("name", SMALL)
def test_every_network_can_be_exported(name):
    net = small(name).eval()
    inputs = example(net, 3)
    exported = torch.export.export(net, inputs).module()
    torch.testing.assert_close(exported(*inputs), net(*inputs))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cnn9", "resnet20", "sphereface20", "mlp", "pointnet"])
def test_export_with_a_free_batch(name):
    net = small(name).eval()
    batch = torch.export.Dim("batch", min=2, max=64)
    exported = torch.export.export(net, example(net, 3), dynamic_shapes=({0: batch},)).module()
    inputs = example(net, 5)
    torch.testing.assert_close(exported(*inputs), net(*inputs))


@pytest.mark.parametrize("name", ["cnn9", "resnet20", "sphereface20", "mlp", "gcn", "pointnet"])
@pytest.mark.parametrize("norm", models.blocks.NORMS)
@pytest.mark.parametrize("activation", models.blocks.ACTIVATIONS)
def test_norm_and_activation_are_the_ones_asked_for(name, norm, activation):
    net = small(name, norm=norm, activation=activation)
    kinds = {type(m).__name__ for m in net.modules()}
    wanted = {"relu": "ReLU", "prelu": "PReLU", "leaky_relu": "LeakyReLU", "none": None}
    assert any(kind.startswith("BatchNorm") for kind in kinds) == (norm == "batch")
    assert {"ReLU", "PReLU", "LeakyReLU"} & kinds == {wanted[activation]} - {None}
    assert net(*example(net)).isfinite().all()


def test_features_are_not_rectified():
    torch.manual_seed(1)
    for name in ("cnn9", "sphereface20", "lsoftmax_lfw"):
        net = small(name, features=40)
        assert (net(*example(net, 8)) < 0).float().mean() > 0.2, name


def test_identity_shortcut_pads_channels_and_skips_pixels():
    shortcut = models.resnet.IdentityShortcut(new_channels=2, stride=2)
    x = torch.rand(1, 3, 5, 5)
    y = shortcut(x)
    assert y.shape == (1, 5, 3, 3)
    torch.testing.assert_close(y[:, :3], x[:, :, ::2, ::2])
    assert y[:, 3:].abs().max() == 0


def test_a_residual_block_is_its_formula():
    block = models.resnet.ResidualBlock(3, 4, 2, "basic", "plain", Style()).double()
    x = torch.rand(2, 3, 6, 6, dtype=torch.float64)
    residual = block.residual[1](block.residual[0](x))
    by_hand = (residual + block.shortcut(x)).clamp_min(0)
    torch.testing.assert_close(block(x), by_hand)
    assert block.shortcut.conv.kernel_size == (1, 1) and block.shortcut.conv.stride == (2, 2)


def test_he_initialization():
    net = models.create("cnn9", widths=(64, 64, 64))
    for name in ("conv1_2", "conv3_3"):
        std = net.body.get_submodule(name).conv.weight.std().item()
        assert std == pytest.approx(math.sqrt(2 / (64 * 9)), rel=0.03)


def test_sphereface_initialization():
    net = models.create("sphereface10", image_size=32)
    down, unit = net.stages[2][0], net.stages[2][1]
    assert down.conv.weight.std().item() == pytest.approx(math.sqrt(1 / (128 * 9)), rel=0.03)
    assert down.conv.bias is not None and down.conv.bias.abs().max() == 0
    for half in unit.residual:
        assert half.conv.weight.std().item() == pytest.approx(0.01, rel=0.03)
        assert half.conv.bias is None
    assert isinstance(down.act, nn.PReLU) and not any(
        isinstance(m, nn.PReLU) for m in net.embedding.modules()
    )
    normed = models.create("sphereface10", image_size=32, norm="batch")
    assert normed.stages[2][0].conv.bias is None


def test_spectral_norm_of_the_discriminator():
    net = models.create("sngan_discriminator").train()
    for _ in range(20):  # power iterations
        _ = net.body[0].conv.weight
    weight = net.body[0].conv.weight.detach().flatten(1)
    assert torch.linalg.matrix_norm(weight, 2).item() == pytest.approx(1, abs=0.02)
    free = models.create("sngan_discriminator", spectral=False, features=None)
    assert free.out_features == 512 * 4 * 4
    assert free.body[0].conv.weight.std().item() == pytest.approx(0.02, rel=0.1)


def test_gan_losses_reach_both_networks():
    generator, critic = (
        small("sngan_generator", in_channels=3),
        small("sngan_discriminator", image_size=16),
    )
    images = generator(torch.randn(4, 5))
    assert images.shape == (4, 3, 16, 16) and images.abs().max() <= 1
    nn.functional.softplus(-critic(images)).mean().backward()  # -log D(G(z))
    for net in (generator, critic):
        assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


def test_a_class_a_partial_and_a_function_as_operator():
    class Marked(nn.Conv2d):
        pass

    for operator in (Marked, functools.partial(Marked)):
        net = small("cnn9", operator=operator)
        convolutions = [m for m in net.modules() if isinstance(m, nn.Conv2d)]
        assert len(convolutions) == 9 and all(isinstance(m, Marked) for m in convolutions)
        assert type(net.embedding.linear) is nn.Linear  # the class is no linear layer

    def make(layer, *arguments, **options):
        made = layer(*arguments, **options)
        made.seen = True
        return made

    net = small("pointnet", operator=make)
    layers = [m for m in net.modules() if isinstance(m, (nn.Conv1d, nn.Linear))]
    assert len(layers) == 7 and all(m.seen for m in layers)


def test_embeddings_say_they_are_hidden_layers():
    assert small("cnn9").embedding.linear.neuron_role == "hidden"
    assert small("mlp").layers[-1].linear.neuron_role == "hidden"
    assert small("gcn", features=3).output.neuron_role == "output"


def test_classifier_joins_and_checks():
    net = models.Classifier(small("cnn9"), nn.Linear(5, 3))
    x, y = torch.rand(4, 3, 8, 8), torch.tensor([0, 1, 2, 0])
    net.eval()
    torch.testing.assert_close(net(x), net.head(net.features(x)))
    torch.testing.assert_close(net.loss(x, y), nn.functional.cross_entropy(net(x), y))
    assert net.loss(x, y, reduction="none").shape == (4,)
    with pytest.raises(ValueError, match="gives 5 features, the head takes 6"):
        models.Classifier(small("cnn9"), nn.Linear(6, 3))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: models.create("cnn_9"), "unknown model 'cnn_9'; did you mean 'cnn9'"),
        (
            lambda: models.create("cnn9", feature=3),
            "option of cnn9 'feature'; did you mean 'features'",
        ),
        (
            lambda: models.create("cnn9", operator="spere"),
            "operator 'spere'; did you mean 'sphere'",
        ),
        (lambda: models.create("cnn9", angular="cos"), "did you mean 'cosine'"),
        (lambda: models.create("cnn9", angular="linear", k=0.3), "k and learn_k belong to"),
        (lambda: models.create("cnn9", angular="sigmoid", learn_k="layers"), "mean 'layer'"),
        (lambda: models.create("cnn9", norm="group"), "unknown norm 'group'"),
        (lambda: models.create("cnn9", activation="relux"), "did you mean 'relu'"),
        (lambda: models.create("cnn9", widths=(8, 8)), "has 3 stages, got widths=\\(8, 8\\)"),
        (lambda: models.create("cnn4", image_size=8), "too small for 4 poolings"),
        (lambda: models.create("cnn9", image_size=(8, 8, 8)), "image_size must be"),
        (lambda: models.create("resnet20", shortcut="pad"), "unknown shortcut 'pad'"),
        (lambda: models.create("resnet20", block="base"), "did you mean 'basic'"),
        (lambda: models.create("resnet20", widths=(8, 4, 8)), "from 8 to 4 channels"),
        (lambda: models.create("sngan_generator", operator="sphere"), "no decoupled form"),
        (lambda: small("cnn9")(torch.zeros(2, 1, 8, 8)), r"\(B, 3, 8, 8\); got \(2, 1, 8, 8\)"),
        (lambda: small("cnn9")(torch.zeros(2, 3, 9, 8)), r"\(B, 3, 8, 8\); got \(2, 3, 9, 8\)"),
        (lambda: small("resnet20")(torch.zeros(3, 8, 8)), r"\(B, 3, H, W\); got \(3, 8, 8\)"),
        (lambda: small("mlp")(torch.zeros(2, 63)), r"got \(2, 63\)"),
        (lambda: small("sngan_generator")(torch.zeros(2, 6)), r"z \(B, 5\); got \(2, 6\)"),
    ],
)
def test_errors_say_what_to_do(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("name", ["cnn9", "resnet20", "sphereface20", "pointnet_tnet", "pointnet2"])
def test_bfloat16(name):
    net = small(name).eval()
    inputs = example(net, 2)
    exact = net(*inputs)
    rough = net.bfloat16()(*(x.bfloat16() for x in inputs))
    assert rough.dtype == torch.bfloat16 and rough.isfinite().all()
    if name != "pointnet2":  # there the rounded points may fall into other groups
        assert (rough - exact).abs().max() <= 0.1 * exact.abs().max() + 0.02


def test_any_image_size_where_the_maps_are_averaged():
    for name in ("resnet20", "resnet18_modified"):
        net = small(name).eval()
        for size in ((8, 8), (9, 13), (1, 1)):
            assert net(torch.rand(2, 3, *size)).shape == (2, net.out_features)


def test_state_dict_round_trip():
    first, second = small("sphereface20"), small("sphereface20")
    second.load_state_dict(first.state_dict())
    x = torch.rand(2, 3, 20, 18)
    torch.testing.assert_close(first(x), second(x))


@pytest.mark.parametrize("name", ["cnn9", "sphereface20"])
def test_a_relu_on_the_features_keeps_them_in_one_orthant(name):
    x = example(small(name), 6)[0]
    plain, cut = small(name).eval(), small(name, feature_relu=True).eval()
    cut.load_state_dict(plain.state_dict())  # it has no weights of its own
    close(cut(x), plain(x).clamp_min(0), scale=10)
    assert (cut(x) >= 0).all() and (plain(x) < 0).any()


def test_layer_and_weight_normalization():
    net = small("cnn9", norm="layer")
    norm = net.body.conv1_1.norm
    x = 3 + 2 * torch.rand(4, 4, 8, 8)
    flat = norm(x).flatten(1)
    torch.testing.assert_close(flat.mean(1), torch.zeros(4), atol=1e-5, rtol=0)
    torch.testing.assert_close(flat.std(1, correction=0), torch.ones(4), atol=1e-3, rtol=0)
    critic = small("sngan_discriminator", spectral=False, weight_normalized=True)
    layer = critic.body[0].conv
    with torch.no_grad():
        layer.parametrizations.weight.original1.mul_(5.0)  # the length of v does not count
    length = layer.parametrizations.weight.original0.flatten()
    torch.testing.assert_close(layer.weight.flatten(1).norm(dim=1), length)
    with pytest.raises(ValueError, match="exclude each other"):
        small("sngan_discriminator", weight_normalized=True)
