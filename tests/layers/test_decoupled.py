"""Decoupled layers as modules: signatures, state, learned k and radius, rescaling."""

import copy
import re

import pytest
import torch
from torch import nn

import hypersphere as hs
from hypersphere import functional as HF
from hypersphere import layers as hl
from tolerances import close

from reference import decoupled as reference

TWINS = [
    (hl.DecoupledConv1d, nn.Conv1d, (2, 4, 9)),
    (hl.DecoupledConv2d, nn.Conv2d, (2, 4, 9, 8)),
    (hl.DecoupledConv3d, nn.Conv3d, (2, 4, 5, 6, 5)),
]
PLAIN = {"magnitude": "linear", "weighted": "linear"}  # the operator that is torch's


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("padding", [1, "same"])
@pytest.mark.parametrize(("layer_type", "twin_type", "shape"), TWINS)
def test_whole_signature_of_the_twin(layer_type, twin_type, shape, padding, mode):
    arguments = (4, 6, 3, 1, padding, 2, 2, True, mode)  # by position, as torch takes them
    twin = twin_type(*arguments, device="cpu", dtype=torch.float32)
    layer = layer_type(*arguments, device="cpu", dtype=torch.float32, **PLAIN)
    layer.load_state_dict(twin.state_dict())
    x = torch.randn(shape)
    torch.testing.assert_close(layer(x), twin(x))
    assert isinstance(layer, twin_type)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize("magnitude", ["sphere", "tanh", "log"])
def test_padding_modes_pad_first_then_measure(mode, magnitude):
    layer = hl.DecoupledConv2d(
        2, 3, 3, padding=1, padding_mode=mode, magnitude=magnitude, angular="sigmoid"
    ).eval()
    x = torch.randn(1, 2, 5, 4)
    want = reference.convolution(
        x, layer.weight.detach(), padding=1, padding_mode=mode,
        magnitude_kind=magnitude, angular_kind="sigmoid",
    )  # fmt: skip
    torch.testing.assert_close(layer(x).double(), want, rtol=0, atol=1e-6)


def test_every_preset():
    for name in hl.named.__all__:
        kind = getattr(hl, name).preset
        if name.endswith("Linear") and name != "LinearConv2d":
            layer, x = getattr(hl, name)(4, 3), torch.randn(2, 4)
        else:
            layer = getattr(hl, name)(4, 3, 3, padding=1, angular="linear")
            x = torch.randn(2, 4, *[5] * int(name[-2]))
        out = layer(x)
        assert out.shape[1] == 3 and out.isfinite().all()
        assert layer.operator.magnitude.kind == kind
        assert repr(layer).startswith(name)
    with pytest.raises(ValueError, match=r"BallConv2d stands for the ball.*DecoupledConv2d"):
        hl.BallConv2d(4, 3, 3, magnitude="tanh")


def test_properties():
    table = {  # bounded, smooth, radius
        "sphere": (True, True, 0.0),
        "ball": (True, False, 1.0),
        "tanh": (True, True, 1.0),
        "linear": (False, True, 0.0),
        "segmented": (False, False, 1.0),
        "log": (False, True, 0.0),
        "mixed": (False, True, 0.0),
    }
    for kind, (bounded, smooth, radius) in table.items():
        layer = hl.DecoupledLinear(4, 3, magnitude=kind)
        assert (layer.bounded, layer.smooth) == (bounded, smooth)
        torch.testing.assert_close(
            torch.as_tensor(layer.radius).detach().expand(3), torch.full((3,), radius)
        )
    assert not hl.DecoupledLinear(4, 3, weighted="linear").bounded
    assert hl.DecoupledLinear(4, 3, magnitude="ball", weighted="nonlinear").bounded
    assert hl.SegmentedMagnitude(beta=0.0).bounded and hl.SegmentedMagnitude(beta=1.0).smooth


def test_bounded_operators_are_bounded():
    x = torch.randn(4, 8) * torch.logspace(-6, 6, 4)[:, None]
    for kind in ("sphere", "ball", "tanh"):
        layer = hl.DecoupledLinear(8, 16, magnitude=kind).eval()
        assert layer(x).abs().max() <= 1


@pytest.mark.parametrize("share", ["filter", "layer", "network"])
def test_learned_k(share):
    angular = hl.SigmoidAngular(learnable=True, share=share)
    net = nn.Sequential(
        hl.SphereConv2d(3, 4, 3, angular=angular), hl.SphereConv2d(4, 5, 3, angular=angular)
    )
    ks = [layer.operator.angular.k() for layer in net]
    assert all(torch.allclose(k, torch.tensor(0.5)) for k in ks)
    sizes = {"filter": [4, 5], "layer": [1, 1], "network": [1, 1]}[share]
    assert [k.numel() for k in ks] == sizes
    unique = {id(p) for name, p in net.named_parameters() if "curvature" in name}
    assert len(unique) == (1 if share == "network" else 2)
    x = torch.randn(2, 3, 8, 8)
    want = net(x)
    optimizer = torch.optim.SGD(net.parameters(), lr=100.0)
    net(x).square().sum().backward()
    optimizer.step()
    for layer, k in zip(net, ks, strict=True):
        learned = layer.operator.angular.k()
        assert (learned > 0).all() and not torch.equal(learned, k)
    assert not torch.allclose(net(x), want)
    copied = copy.deepcopy(net)
    torch.testing.assert_close(copied(x), net(x))


def test_own_activation_with_parameters():
    class Power(nn.Module):
        def __init__(self):
            super().__init__()
            self.p = nn.Parameter(torch.tensor(3.0))

        def forward(self, c):
            return c.sign() * c.abs().clamp_min(1e-6) ** self.p

    layer = hl.SphereConv2d(3, 4, 3, angular=Power())
    layer(torch.randn(2, 3, 6, 6)).sum().backward()
    assert any("p" in name.split(".") for name, _ in layer.named_parameters())
    assert all(p.grad is not None for p in layer.parameters())


@pytest.mark.parametrize("magnitude", [hl.BallMagnitude, hl.TanhMagnitude, hl.SegmentedMagnitude])
@pytest.mark.parametrize("weighted", [None, "linear", "nonlinear", "nonlinear_separate"])
def test_learned_radius(magnitude, weighted):
    """Training uses the batch's mean patch norm (C.1-C.3), evaluation the running mean."""
    layer = hl.DecoupledConv2d(
        3, 4, 3, padding=1, magnitude=magnitude(radius=0.8, momentum=0.25), weighted=weighted
    )
    kind = layer.operator.magnitude.kind
    rho = layer.operator.magnitude.rho()
    torch.testing.assert_close(rho.detach(), torch.full((4,), 0.8))
    batches = [torch.randn(2, 3, 5, 5) * s for s in (1.0, 2.0, 5.0)]
    running = None
    for count, x in enumerate(batches, 1):
        mean = HF.patch_norm(x, 3, padding=1).mean()
        want = HF.decoupled_conv2d(
            x,
            layer.weight,
            padding=1,
            magnitude=kind,
            radius=0.8,
            mean_norm=mean,
            weighted=weighted,
        )
        torch.testing.assert_close(layer(x), want)
        share = max(0.25, 1 / count)
        running = mean if running is None else running + share * (mean - running)
    torch.testing.assert_close(layer.operator.magnitude.running.mean, running)
    layer.eval()
    want = HF.decoupled_conv2d(
        x, layer.weight, padding=1, magnitude=kind, radius=0.8, mean_norm=running, weighted=weighted
    )
    torch.testing.assert_close(layer(x), want)
    torch.testing.assert_close(layer.radius.detach(), (0.8 * running).expand(4))
    layer.train()(x).square().sum().backward()
    assert layer.operator.magnitude.rho.raw.grad.abs().max() > 0


@pytest.mark.parametrize("kind", ["ball", "tanh", "segmented"])
@pytest.mark.parametrize("angular", ["cosine", "linear"])
def test_gradients_flow_through_the_batch_mean(kind, angular):
    """C.1-C.3 in float64: every patch moves the radius of all, by way of the mean norm."""
    layer = hl.DecoupledConv2d(2, 3, 3, magnitude=kind, angular=angular, dtype=torch.float64)
    x = torch.randn(2, 2, 5, 5, dtype=torch.float64, requires_grad=True)
    wanted = [x, layer.weight, layer.operator.magnitude.rho.raw]
    grad = torch.randn(2, 3, 3, 3, dtype=torch.float64)
    got = torch.autograd.grad(layer(x), wanted, grad)

    def reference_gradients(mean):
        patches, rows = nn.functional.unfold(x, 3), layer.weight.flatten(1)
        n = patches.norm(dim=1, keepdim=True)
        rho = layer.operator.magnitude.rho()[:, None] * mean(n)
        h = {
            "ball": torch.minimum(n, rho) / rho,
            "tanh": torch.tanh(n / rho),
            "segmented": torch.where(n <= rho, n, 0.5 * n + 0.5 * rho),
        }[kind]
        cos = rows @ patches / (rows.norm(dim=1)[:, None] * n)
        g = cos if angular == "cosine" else 1 - 2 / torch.pi * torch.arccos(cos)
        return torch.autograd.grad(h * g, wanted, grad.flatten(2))

    for a, b in zip(got, reference_gradients(torch.mean), strict=True):
        torch.testing.assert_close(a, b)
    constant = reference_gradients(lambda n: n.mean().detach())
    assert not torch.allclose(got[0], constant[0], rtol=1e-3)


def test_learned_radius_makes_the_layer_free_of_scale():
    layer = hl.TanhConv2d(3, 4, 3)
    x = torch.randn(2, 3, 6, 6)
    close(layer(x), layer(1000 * x), scale=10)


def test_fixed_radius_is_the_equation_as_written():
    layer = hl.TanhConv2d(3, 4, 3, magnitude=hl.TanhMagnitude(2.0, 0.7, learn_radius=False))
    assert len(list(layer.parameters())) == 1 and len(layer.state_dict()) == 1
    x = torch.randn(2, 3, 5, 5)
    want = HF.decoupled_conv2d(x, layer.weight, magnitude="tanh", alpha=2.0, radius=0.7)
    torch.testing.assert_close(layer(x), want)


def test_training_on_an_all_zero_batch_changes_nothing():
    layer = hl.BallConv2d(3, 4, 3)
    x = torch.zeros(2, 3, 6, 6, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad.isfinite().all() and layer.weight.grad.isfinite().all()
    assert layer.operator.magnitude.running.mean == 1


@pytest.mark.parametrize("bias", [False, True])
def test_rescale(bias):
    x = torch.randn(2, 3, 6, 6)
    layer = hl.SphereConv2d(3, 4, 3, bias=bias, rescale=True)
    plain = hl.SphereConv2d(3, 4, 3, bias=bias)
    plain.load_state_dict({k: v for k, v in layer.state_dict().items() if "operator" not in k})
    torch.testing.assert_close(layer(x), plain(x))
    with torch.no_grad():
        layer.operator.rescale.beta.fill_(3.0), layer.operator.rescale.gamma.fill_(0.5)
    torch.testing.assert_close(layer(x), 3 * plain(x) + 0.5)
    layer(x).sum().backward()
    assert layer.operator.rescale.beta.grad.shape == (4,)
    fixed = hl.SphereConv2d(3, 4, 3, bias=bias, rescale=(3.0, 0.5))
    fixed.load_state_dict(plain.state_dict())
    torch.testing.assert_close(fixed(x), layer(x))
    assert {n for n, _ in fixed.named_parameters()} == {n for n, _ in plain.named_parameters()}
    listed = hl.SphereConv2d(3, 4, 3, bias=bias, rescale=[3, 0.5])  # as YAML has it
    listed.load_state_dict(plain.state_dict())
    torch.testing.assert_close(listed(x), layer(x))


@pytest.mark.parametrize("rescale", [2.0, 1, "ab", (1.0,), [1.0, 2.0, 3.0], None])
def test_wrong_rescale(rescale):
    with pytest.raises(TypeError, match=r"rescale must be True, False, two numbers"):
        hl.SphereConv2d(3, 4, 3, rescale=rescale)


@pytest.mark.parametrize(
    "operator",
    [
        {"magnitude": "log", "angular": "linear", "rescale": (2.0, 0.5)},
        {"magnitude": "mixed", "weighted": "linear"},
        {"magnitude": hl.TanhMagnitude(learn_radius=False), "angular": hl.SigmoidAngular(k=0.3)},
    ],
)
def test_state_dicts_without_learned_operators_load_strictly_both_ways(operator):
    layer, twin = hl.DecoupledConv2d(3, 4, 3, bias=True, **operator), nn.Conv2d(3, 4, 3)
    assert layer.state_dict().keys() == twin.state_dict().keys()
    twin.load_state_dict(layer.state_dict(), strict=True)
    assert torch.equal(layer.weight, twin.weight) and torch.equal(layer.bias, twin.bias)


def test_state_dicts_interchange_with_the_twin():
    twin = nn.Conv2d(3, 4, 3)
    for operator in ({}, {"magnitude": "tanh"}, {"angular": hl.SigmoidAngular(learnable=True)}):
        net = nn.Sequential(hl.DecoupledConv2d(3, 4, 3, bias=True, **operator))
        net.load_state_dict(nn.Sequential(twin).state_dict())
        assert torch.equal(net[0].weight, twin.weight)
        again = nn.Sequential(hl.DecoupledConv2d(3, 4, 3, bias=True, **operator))
        again.load_state_dict(net.state_dict())
        nn.Sequential(nn.Conv2d(3, 4, 3)).load_state_dict(net.state_dict(), strict=not operator)
    with pytest.raises(RuntimeError, match="weight"):
        net.load_state_dict({"0.bias": twin.bias})


def test_device_and_dtype():
    layer = hl.TanhConv2d(3, 4, 3, bias=True, dtype=torch.float64, rescale=True)
    assert {p.dtype for p in layer.parameters()} == {torch.float64}
    assert layer(torch.randn(1, 3, 5, 5, dtype=torch.float64)).dtype == torch.float64
    meta = hl.TanhLinear(3, 4, device="meta")
    assert {p.device.type for p in meta.parameters()} == {"meta"}


@pytest.mark.parametrize("magnitude", ["sphere", "linear", "tanh", "segmented"])
def test_modules_in_bfloat16_and_under_autocast(magnitude):
    layer = hl.DecoupledConv2d(
        8, 4, 3, bias=True, magnitude=magnitude, angular="cosine", rescale=True
    )
    x = torch.randn(2, 8, 6, 6)
    want = layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        got = layer(x)
    assert got.dtype == torch.bfloat16
    close(got, want, scale=3)
    got.sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())
    low = layer.to(torch.bfloat16)(x.bfloat16())
    close(low, want, scale=3)
    low.sum().backward()


@pytest.mark.parametrize(
    ("layer", "shape", "message"),
    [
        (
            hl.SphereConv2d(16, 4, 3),
            (8, 3, 32, 32),
            r"SphereConv2d expects input \(B, 16, H, W\); got \(8, 3, 32, 32\): in_ch",
        ),
        (hl.BallConv1d(2, 4, 3), (8, 2), r"BallConv1d expects input \(B, 2, L\); got \(8, 2\)"),
        (hl.LogConv3d(2, 4, 3), (2, 2, 8), r"LogConv3d expects input \(B, 2, D, H, W\)"),
        (hl.TanhConv2d(3, 4, 5), (1, 3, 3, 3), r"kernel size \(5, 5\).*input size \(3, 3\)"),
        (hl.TanhConv2d(3, 4, 5).eval(), (1, 3, 3, 3), r"kernel size \(5, 5\).*input size \(3, 3\)"),
        (hl.TanhLinear(5, 4), (8, 4), r"TanhLinear expects input \(..., 5\); got \(8, 4\)"),
    ],
)
def test_wrong_shapes(layer, shape, message):
    with pytest.raises(ValueError, match=message):
        layer(torch.zeros(shape))


def test_wrong_names():
    with pytest.raises(ValueError, match=r"unknown magnitude 'spher'.*sphere, ball"):
        hl.DecoupledConv2d(3, 4, 3, magnitude="spher")
    with pytest.raises(ValueError, match=r"unknown angular activation 'cos'.*SigmoidAngular"):
        hl.DecoupledConv2d(3, 4, 3, angular="cos")
    with pytest.raises(ValueError, match="needs a magnitude with a radius"):
        hl.DecoupledConv2d(3, 4, 3, weighted="nonlinear")
    with pytest.raises(ValueError, match="share must be"):
        hl.SigmoidAngular(share="model")
    with pytest.raises(ValueError, match="momentum"):
        hl.TanhMagnitude(momentum=0.0)
    with pytest.raises(TypeError, match="magnitude must be a name"):
        hl.DecoupledConv2d(3, 4, 3, magnitude=3)


def test_contract_of_the_design():
    layer = hs.layers.DecoupledConv2d(
        16, 32, 3, stride=1, padding=1, dilation=1, groups=1, bias=False, padding_mode="zeros",
        magnitude="sphere", angular="cosine", weighted=None, rescale=False,
    )  # fmt: skip
    assert layer(torch.randn(2, 16, 8, 8)).shape == (2, 32, 8, 8)
    hs.layers.TanhMagnitude(alpha=1.0, radius=1.0, learn_radius=True)
    hs.layers.SigmoidAngular(k=0.3, learnable=False, share="filter")
    hs.layers.SphereConv2d(16, 32, 3, padding=1, angular="linear")


def test_shapes_on_the_meta_device():
    x = torch.empty(2, 3, 8, 8, device="meta")
    for name in ("SphereConv2d", "TanhConv2d", "LinearConv2d"):
        for angular in ("cosine", "linear", "sigmoid", torch.relu):
            layer = getattr(hl, name)(3, 4, 3, angular=angular, device="meta")
            assert layer(x).shape == (2, 4, 6, 6)
            assert layer.eval()(x).shape == (2, 4, 6, 6)
    assert hl.SphereLinear(3, 4, device="meta")(x.movedim(1, 3)).shape == (2, 8, 8, 4)


def operators():
    angular = hl.SigmoidAngular(k=0.3, learnable=True)
    return nn.Sequential(
        hl.DecoupledConv2d(3, 4, 3, magnitude="tanh", angular=angular, rescale=True),
        hl.DecoupledConv2d(4, 4, 3, rescale=(3.0, 0.5)),
        hl.SphereConv2d(4, 4, 3, bias=True),
    )


@pytest.mark.parametrize("assign", [False, True])
def test_plain_states_load_into_layers_on_the_meta_device(assign):
    plain = nn.Sequential(
        nn.Conv2d(3, 4, 3, bias=False), nn.Conv2d(4, 4, 3, bias=False), nn.Conv2d(4, 4, 3)
    )
    with torch.device("meta"):
        net = operators()
    if not assign:
        net.to_empty(device="cpu")
        for module in net.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
    net.load_state_dict(plain.state_dict(), assign=assign)
    want = operators()
    want.load_state_dict(plain.state_dict())
    tensors = [*net.named_parameters(), *net.named_buffers()]
    assert not [name for name, t in tensors if t.is_meta]
    assert {n for n, _ in net.named_parameters()} == {n for n, _ in want.named_parameters()}
    x = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(net(x), want(x))
    net(x).sum().backward()
    assert net[0].operator.rescale.beta.grad is not None


def test_running_mean_in_float64():
    layer = hl.TanhConv2d(3, 4, 3, dtype=torch.float64)
    total = 0.0
    for count in range(1, 8):  # up to 1 / momentum batches it is their plain mean
        x = torch.randn(2, 3, 5, 5, dtype=torch.float64)
        layer(x)
        total += HF.patch_norm(x, 3).mean().item()
        mean = layer.operator.magnitude.running.mean
        assert mean.dtype == torch.float64
        assert mean.item() == pytest.approx(total / count, rel=1e-14)
    other = hl.TanhConv2d(3, 4, 3)
    other.load_state_dict(layer.state_dict())
    torch.testing.assert_close(other.operator.magnitude.running.mean, mean.float())


def test_layers_are_pickled_and_documented():
    import inspect
    import pickle

    for layer in (hl.SphereConv1d(2, 3, 3), hl.TanhConv3d(2, 3, 3, angular="sigmoid")):
        again = pickle.loads(pickle.dumps(layer))
        assert type(again) is type(layer) and repr(again) == repr(layer)
        assert isinstance(again, (nn.Conv1d, nn.Conv3d))
    for name in [*hl.named.__all__, "DecoupledConv1d", "DecoupledConv3d"]:
        layer = getattr(hl, name)
        for argument in inspect.signature(layer).parameters:
            assert f"    {argument}: " in layer.__doc__, (name, argument)


@pytest.mark.parametrize(
    "kind, given, told",
    [
        ("TanhConv2d", {"radius": 2.0}, "magnitude=TanhMagnitude(radius=2.0))"),
        ("SegLinear", {"beta": 0.3}, "magnitude; write SegLinear(..., magnitude=SegmentedMag"),
        ("DecoupledConv2d", {"magnitude": "mixed", "beta": 0.3}, "MixedMagnitude(beta=0.3))"),
        ("SphereConv1d", {"radius": 2.0}, "the sphere magnitude has none, those with one are ball"),
        ("BallLinear", {"k": 0.3}, "activation; write BallLinear(..., angular=SigmoidAngular(k"),
        ("BallConv2d", {"learn": True}, "unexpected keyword argument 'learn'"),
    ],
)
def test_arguments_of_a_part_are_told_where_they_belong(kind, given, told):
    sizes = (4, 3) if "Linear" in kind else (4, 3, 3)
    with pytest.raises(TypeError, match=re.escape(told)):
        getattr(hl, kind)(*sizes, **given)


def test_a_subclass_has_arguments_of_its_own():
    class Own(hl.BallConv2d):
        def __init__(self, channels, radius):
            super().__init__(channels, 3, 3, magnitude=hl.BallMagnitude(radius=radius))

    class HandsOn(hl.BallConv2d):
        def __init__(self, *sizes, **others):
            super().__init__(*sizes, magnitude=hl.BallMagnitude(alpha=others.pop("alpha")))

    assert Own(4, radius=2.0).operator.magnitude.start == 2.0
    assert HandsOn(4, 3, 3, alpha=2.0).operator.magnitude.alpha == 2.0
