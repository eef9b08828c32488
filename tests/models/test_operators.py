"""Networks with the operators and heads the dissertation combines them with; depth; conversion."""

import pytest
import torch
from torch import nn

import hypersphere as hs
from hypersphere import models
from hypersphere.commands import _config as config_commands
from hypersphere.training import build
from tolerances import close

CNN = {"widths": (4, 6, 8), "image_size": 8, "features": 6}
RESNET = {"widths": (4, 6, 8), "depths": (1, 1, 1), "image_size": 8}
FOUR = {"widths": (4, 6, 8, 8), "image_size": 16}
SHALLOW = {**FOUR, "depths": (1, 1, 1, 1)}
BOUNDED = ("sphere", "ball", "tanh")
OPERATORS = (*BOUNDED, "linear", "segmented", "log", "mixed")
ANGULARS = ("linear", "cosine", "square_cosine")


def softmax(width):
    return hs.heads.SoftmaxHead(width, 3)


def margin(kind, **options):
    return lambda width: getattr(hs.heads, f"{kind}SoftmaxHead")(width, 3, **options)


W, A = margin("W", angular="cosine"), margin("A", m=4)
COMBINATIONS = [
    # Tables 2.2-2.5: L-Softmax
    *[
        (name, size, {}, margin("L", m=m))
        for name, size in (
            ("lsoftmax_mnist", CNN),
            ("lsoftmax_cifar100", CNN),
            ("lsoftmax_lfw", {**FOUR, "features": 6}),
        )
        for m in (2, 4)
    ],
    # Tables 2.8-2.10, A.2: SphereFace; W-Softmax is its m = 1
    ("sphereface20", {**FOUR, "features": 6}, {}, A),
    ("sphereface20", {**FOUR, "features": 6}, {"norm": "batch"}, A),
    ("sphereface4", {**FOUR, "features": 6}, {}, W),
    # Table 3.1, 3.2: sphere operators under every loss
    *[
        ("cnn9", CNN, {"operator": "sphere", **angular}, head)
        for angular in (
            {"angular": "sigmoid", "k": 0.3},
            {"angular": "linear"},
            {"angular": "cosine"},
        )
        for head in (
            softmax,
            margin("W", angular="sigmoid"),
            margin("W", angular="linear"),
            W,
            A,
            margin("GA", m=4, angular="linear"),
            margin("S", scale=30.0),
        )
    ],
    ("cnn9", CNN, {"operator": "sphere", "angular": "sigmoid", "learn_k": "filter"}, W),
    ("cnn9", CNN, {"operator": "sphere", "rescale": True, "norm": "none"}, softmax),
    ("cnn18", CNN, {"operator": "sphere", "activation": "none"}, W),  # Table 3.3
    ("resnet32_b2", RESNET, {"operator": "sphere", "angular": "linear"}, W),
    ("sphere_resnet18_v1", SHALLOW, {}, W),
    ("sphere_resnet18_v2", SHALLOW, {}, softmax),
    # Tables 4.2-4.4
    *[
        (
            "cnn9_c1",
            CNN,
            {"operator": operator, "angular": angular, "activation": activation},
            softmax,
        )
        for operator in OPERATORS
        for angular in ("cosine", "square_cosine")
        for activation in ("relu", "none")
    ],
    *[
        ("cnn9_c1", CNN, {"operator": operator, "angular": angular, "norm": "none"}, softmax)
        for operator in ("linear", "tanh", "segmented")
        for angular in ANGULARS
    ],
    *[
        ("resnet32_c1", RESNET, {"operator": operator, "angular": angular}, W)
        for operator in OPERATORS
        for angular in ANGULARS
    ],
    ("resnet32_c1", RESNET, {"operator": "tanh", "weighted": "linear"}, softmax),  # Table 4.1
    ("resnet32_c1", RESNET, {"operator": "tanh", "weighted": "nonlinear"}, softmax),
    # Tables 4.6-4.8
    *[("resnet18", SHALLOW, {"operator": op}, softmax) for op in ("sphere", "linear", "tanh")],
    *[
        ("resnet18_modified", FOUR, {"operator": op, "norm": norm}, softmax)
        for op in ("sphere", "linear", "tanh")
        for norm in ("batch", "none")
    ],
    *[("cnn9_adversarial", CNN, {"operator": op}, softmax) for op in BOUNDED],
    # Decoupled forms of the others
    ("mlp", {"widths": (6, 6), "image_size": 8}, {"operator": "sphere"}, softmax),
    ("pointnet", {"hidden": (8,), "features": 6, "points": 9}, {"operator": "tanh"}, softmax),
    ("cnn6_mnist2d", {**CNN, "features": 2}, {"operator": "ball"}, softmax),
]


@pytest.mark.parametrize(("name", "size", "style", "head"), COMBINATIONS)
def test_forward_and_backward(name, size, style, head):
    backbone = models.create(name, **size, **style)
    net = models.Classifier(backbone, head(backbone.out_features))
    (x,) = backbone.example_inputs(4)
    x, labels = torch.randn_like(x), torch.tensor([0, 1, 2, 0])
    loss = net.loss(x, labels)
    loss.backward()
    assert loss.isfinite()
    assert net(x).shape == (4, 3)
    for key, parameter in net.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), key
    decoupled = [m for m in net.modules() if type(m).__name__.startswith("Decoupled")]
    operator = style.get("operator", "sphere" if name.startswith("sphere_") else None)
    assert bool(decoupled) == (operator is not None)


def test_a_graph_network_can_be_decoupled():
    net = models.create("gcn", in_channels=9, operator="sphere", features=3)
    x, adjacency = net.example_inputs(4)
    assert net(torch.randn_like(x), adjacency).shape == (4, 3)


@pytest.mark.parametrize("name", ["cnn45", "cnn60", "cnn69"])
@pytest.mark.parametrize("norm", ["batch", "none"])
def test_ultra_deep_plain_networks_start_with_finite_gradients(name, norm):
    net = models.create(name, operator="sphere", norm=norm, image_size=8)
    head = hs.heads.WSoftmaxHead(256, 10, angular="cosine")
    loss = head.loss(net(torch.randn(3, 3, 8, 8)), torch.tensor([0, 3, 9]))
    loss.backward()
    first = net.body.conv1_1.conv.weight.grad
    assert loss.isfinite() and first.isfinite().all() and first.norm() > 0


def test_v1_and_v2_differ_in_their_shortcuts_only():
    decoupled = hs.layers.DecoupledConv2d
    for version in (1, 2):
        net = models.create(f"sphere_resnet18_v{version}", **SHALLOW)
        for key, module in net.named_modules():
            if isinstance(module, nn.Conv2d):
                plain = version == 2 and "shortcut" in key
                assert isinstance(module, decoupled) != plain, key


def test_a_curvature_shared_by_the_network_is_one_parameter():
    counts = {}
    for share in ("network", "layer", "filter"):
        net = models.create("cnn9", **CNN, operator="sphere", angular="sigmoid", learn_k=share)
        counts[share] = models.count_parameters(net)
    plain = models.count_parameters(models.create("cnn9", **CNN))
    assert counts["network"] - plain == 1
    assert counts["layer"] - plain == 9 + 1
    assert counts["filter"] - plain == 3 * (4 + 6 + 8) + 6


def test_an_operator_instance_is_not_shared():
    magnitude = hs.layers.TanhMagnitude(radius=2.0)
    net = models.create("cnn9", **CNN, operator=magnitude)
    held = [m.operator.magnitude for m in net.modules() if isinstance(m, hs.layers.DecoupledConv2d)]
    assert len({id(m) for m in held}) == 9 and all(m.start == 2.0 for m in held)


@pytest.mark.parametrize(
    ("name", "size", "shortcut"),
    [
        ("cnn9", CNN, None),
        ("sphereface20", {**FOUR, "features": 6, "norm": "batch"}, None),
        ("resnet32_c1", RESNET, "decoupled"),
        ("resnet32_c1", RESNET, "plain"),
    ],
)
def test_converting_a_network_equals_making_it(name, size, shortcut):
    choice = {} if shortcut is None else {"shortcut": shortcut}
    plain = models.create(name, **size)
    made = models.create(name, **size, **choice, operator=_convolutions_only)
    # A network with an operator has no biases; those of the plain one start at 0.
    assert not made.load_state_dict(plain.state_dict(), strict=False).missing_keys
    kept = shortcut != "plain"
    converted = hs.layers.convert(plain, "sphere", shortcuts=kept, verbose=False)
    x = torch.randn(3, *plain.input_shape)
    torch.testing.assert_close(converted.eval()(x), made.eval()(x))


def _convolutions_only(layer, *arguments, **options):
    if layer is nn.Linear:
        return layer(*arguments, **options)
    return hs.layers.DecoupledConv2d(*arguments, **options, magnitude="sphere")


@pytest.mark.slow
@pytest.mark.parametrize("operator", ["sphere", "tanh"])
@pytest.mark.parametrize(
    ("name", "size"), [("cnn9", CNN), ("resnet20", {**RESNET, "shortcut": "identity"})]
)
def test_decoupled_networks_can_be_exported(name, size, operator):
    net = models.create(name, **size, operator=operator).eval()
    x = torch.randn(3, *net.input_shape)
    exported = torch.export.export(net, (x,)).module()
    torch.testing.assert_close(exported(x), net(x))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("cnn6_f1", CNN),
        ("resnet20", RESNET),
        ("sphereface10", {**FOUR, "features": 6}),
        ("mlp", {"widths": (6, 6), "image_size": 8}),
        ("gcn", {"in_channels": 9, "widths": (5,)}),
        ("pointnet", {"widths": (4, 4, 4, 6, 8), "hidden": (8,), "features": 6, "points": 9}),
        ("pointnet_tnet", {"widths": (4, 4, 4, 6, 8), "hidden": (8,), "features": 6, "points": 9}),
        ("cnn9", {**CNN, "operator": "sphere"}),
    ],
)
def test_rotated_networks_train_and_fold_back(name, options):
    backbone = models.create(name, **options)
    keys = list(backbone.state_dict())
    net = models.Classifier(backbone, softmax(backbone.out_features))
    hs.orthogonal.rotate(net, method="cayley")
    first, *rest = backbone.example_inputs(4)
    x = (torch.randn_like(first), *rest)
    net.loss(x, torch.tensor([0, 1, 2, 0])).backward()
    turned = [p for n, p in net.named_parameters() if "parametrizations" in n and p.requires_grad]
    assert turned and any(p.grad is not None and p.grad.abs().sum() > 0 for p in turned)
    net.eval()
    before = net(x)
    hs.orthogonal.fold(net)
    close(net(x), before, scale=10)
    assert list(backbone.state_dict()) == keys


def test_fixed_rescaling_gives_features_of_a_bounded_operator_the_size_of_plain_ones():
    # Cosines of d numbers deviate by 1 / sqrt(d): unscaled, the logits of the head start near 0.
    x = torch.randn(16, 3, 8, 8)
    sizes = {}
    for rescale in (False, (30.0, 0.0)):
        torch.manual_seed(0)
        net = models.create("cnn9", **CNN, operator="tanh", norm="none", rescale=rescale)
        sizes[rescale] = net(x)
    close(sizes[(30.0, 0.0)], 30 * sizes[False], scale=10)


def test_recipes_can_fix_the_rescaling():
    config = config_commands.read(
        "recipes/ch3/fig-3.5.yaml:sphere_norm", ["--model.rescale", "[30.0, 0.0]"]
    )
    net = build.make_net(config, (3, 32, 32), 10)
    betas = [m.beta for m in net.modules() if isinstance(m, hs.layers.operator.Rescale)]
    assert betas
    assert all((beta == 30).all() for beta in betas)
