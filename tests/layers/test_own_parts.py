"""Activations, magnitudes and margins that users register: right on every path, known everywhere.

Each kind is brought in every form that is allowed: a function, a module with its value alone, a
module with its slope, stateless formulas with and without their slope. All are checked against
autograd through the formula written out with unfolded patches.
"""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hypersphere as hs
from hypersphere import functional as HF
from hypersphere import layers as hl
from hypersphere import models, registry
from tolerances import close

PARTS = []


def own(kind, name):
    """Note a part, which the tests of this file find in the register and no others do."""

    def note(target):
        PARTS.append((kind, name, target))
        return target

    return note


@pytest.fixture(scope="module", autouse=True)
def registered():
    before = {kind: dict(table) for kind, table in registry._ENTRIES.items()}
    for kind, name, target in PARTS:
        hs.register(kind, name)(target)
    yield
    for kind, table in before.items():
        registry._ENTRIES[kind].clear()
        registry._ENTRIES[kind].update(table)


def cubic(c):
    """g = cos^3(theta)."""
    return c**3


@own("angular", "test_cubic_module")
class CubicModule(hl.Angular):
    """g = cos^3(theta), a module with its value alone."""

    def value(self, cos):
        return cubic(cos)


@own("angular", "test_cubic_forward")
class CubicForward(hl.Angular):
    """g = cos^3(theta), a module with a forward of its own."""

    def forward(self, cos):
        return cubic(cos)


@own("angular", "test_cubic_slope")
class CubicSlope(CubicModule):
    """g = cos^3(theta), a module with its slope."""

    def slope(self, cos):
        return 3 * cos**2


@own("angular", "test_cubic_formula")
class CubicFormula(HF.AngularFunction):
    """g = cos^3(theta), formulas with the value alone."""

    def value(self, cos, k=None, eps=None):
        return cubic(cos)


@own("angular", "test_cubic_fused")
class CubicFused(CubicFormula):
    """g = cos^3(theta), formulas for the fused kernels."""

    zero_at_right_angle = True

    def slope(self, cos, k=None, eps=None):
        return 3 * cos**2


own("angular", "test_cubic_function")(cubic)

ANGULARS = [name for _, name, _ in PARTS if name.startswith("test_cubic")]


def saturating(n):
    """h = n / (1 + n)."""
    return n / (1 + n)


@own("magnitude", "test_saturating_module")
class SaturatingModule(hl.Magnitude):
    """h = n / (1 + n), a module with its value alone."""

    def value(self, norm):
        return saturating(norm)


@own("magnitude", "test_saturating_slope")
class SaturatingSlope(SaturatingModule):
    """h = n / (1 + n), a module with its slope."""

    def slope(self, norm):
        return (1 + norm) ** -2


@own("magnitude", "test_saturating_formula")
class SaturatingFormula(HF.MagnitudeFunction):
    """h = n / (1 + n), formulas with the value alone."""

    def value(self, norm, alpha=1.0, beta=0.0, radius=1.0):
        return alpha * saturating(norm)


@own("magnitude", "test_saturating_fused")
class SaturatingFused(SaturatingFormula):
    """h = n / (1 + n), formulas for the fused kernels."""

    def slope(self, norm, alpha=1.0, beta=0.0, radius=1.0):
        return alpha * (1 + norm) ** -2


own("magnitude", "test_saturating_function")(saturating)

MAGNITUDES = [name for _, name, _ in PARTS if name.startswith("test_saturating")]


@own("magnitude", "test_soft_ball")
class SoftBall(HF.MagnitudeFunction):
    """h = n / (rho + n), with a radius."""

    has_radius = True

    def value(self, norm, alpha=1.0, beta=0.0, radius=1.0):
        return alpha * norm / (radius + norm)


@own("magnitude", "test_soft_ball_fused")
class SoftBallFused(SoftBall):
    """h = n / (rho + n), with a radius, for the fused kernels."""

    def slope(self, norm, alpha=1.0, beta=0.0, radius=1.0):
        return alpha * radius / (radius + norm) ** 2


@own("angular", "test_power")
class Power(hl.Angular):
    """g = sign(c) |c|^p with a learned p."""

    def __init__(self, p=2.0):
        super().__init__()
        self.p = nn.Parameter(torch.tensor(p))

    def value(self, cos):
        return cos.sign() * cos.abs().clamp_min(1e-6) ** self.p


@own("angular", "test_bent")
class Bent(HF.AngularFunction):
    """g = c + k c (1 - c^2), with a parameter k."""

    default_k = 0.25
    zero_at_right_angle = True

    def value(self, cos, k=None, eps=None):
        k = self.default_k if k is None else k
        return cos + k * cos * (1 - cos * cos)

    def slope(self, cos, k=None, eps=None):
        k = self.default_k if k is None else k
        return 1 + k * (1 - 3 * cos * cos)


def reference(x, weight, g, h):
    """h(|x|) g(theta) of a 3x3 convolution without padding, from unfolded patches."""
    patches, rows = F.unfold(x, 3), weight.flatten(1)
    n = patches.norm(dim=1, keepdim=True)
    cos = (rows @ patches) / (rows.norm(dim=1)[:, None] * n)
    return (h(n) * g(cos)).unflatten(2, (x.shape[2] - 2, x.shape[3] - 2))


def gradients(f, *leaves):
    leaves = [leaf.detach().clone().requires_grad_() for leaf in leaves]
    out = f(*leaves)
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    return out.detach(), *torch.autograd.grad((out * weights).sum(), leaves)


def linear(c):
    """g of Eq. 4.11."""
    return 2 / torch.pi * torch.asin(c)


SOFT_BALLS = ["test_soft_ball", "test_soft_ball_fused"]
CASES = [(name, "tanh", cubic, torch.tanh) for name in ANGULARS]
CASES += [("linear", name, linear, saturating) for name in MAGNITUDES]
CASES += [("cosine", name, torch.clone, saturating) for name in [*MAGNITUDES, *SOFT_BALLS]]
CASES += [("test_cubic_fused", "test_saturating_fused", cubic, saturating)]
CASES += [("test_cubic_module", "test_saturating_module", cubic, saturating)]


@pytest.fixture
def data():
    x = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    return x, torch.randn(4, 3, 3, 3, dtype=torch.float64)


@pytest.mark.parametrize(
    ("angular", "magnitude", "g", "h"), CASES, ids=lambda v: v if isinstance(v, str) else ""
)
def test_functional_and_layers_on_every_path(angular, magnitude, g, h, data):
    x, weight = data
    want = gradients(lambda x, w: reference(x, w, g, h), x, weight)

    def functional(x, w):
        return HF.decoupled_conv2d(x, w, magnitude=magnitude, angular=angular)

    close(gradients(functional, x, weight), want)
    settings = {}
    if HF.magnitude_function(magnitude).has_radius:  # as the equation has it, without E|x|
        settings = {"radius": 1.0, "learn_radius": False}
    h_module = hl.make_magnitude(magnitude, **settings)
    layer = hl.DecoupledConv2d(3, 4, 3, angular=angular, magnitude=h_module, dtype=x.dtype)

    def apply(x, w):
        return torch.func.functional_call(layer, {"weight": w}, (x,))

    close(gradients(apply, x, weight), want)
    with torch.no_grad():
        torch.testing.assert_close(apply(x, weight), want[0])
    with torch.inference_mode():
        torch.testing.assert_close(apply(x, weight), want[0])
    tangents = (torch.randn_like(x), torch.randn_like(weight))
    got = torch.func.jvp(apply, (x, weight), tangents)
    expected = torch.func.jvp(lambda x, w: reference(x, w, g, h), (x, weight), tangents)
    close(got, expected)
    per_sample = torch.func.vmap(torch.func.grad(lambda x, w: apply(x, w).sum()), (0, None))
    alone = torch.func.vmap(
        torch.func.grad(lambda x, w: reference(x[None], w, g, h).sum()), (0, None)
    )
    torch.testing.assert_close(per_sample(x, weight), alone(x, weight))
    small = (x[:1, :, :3, :4].clone().requires_grad_(), weight[:2].clone().requires_grad_())
    layer.weight = nn.Parameter(layer.weight[:2])
    assert torch.autograd.gradgradcheck(functional, small, fast_mode=True, atol=1e-4)
    again = copy.deepcopy(layer)
    again.load_state_dict(layer.state_dict())


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["test_cubic_slope", "test_cubic_function", "test_cubic_fused", "test_power"]
)
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_compiled(name, data):
    x = data[0].float()
    magnitudes = {"test_power": "test_saturating_module", "test_cubic_slope": "tanh"}
    layer = hl.DecoupledConv2d(
        3, 4, 3, magnitude=magnitudes.get(name, "test_saturating_fused"), angular=name
    )
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    wanted = list(layer.parameters())
    eager, traced = layer(x).square().sum(), compiled(x).square().sum()
    torch.testing.assert_close(eager, traced)
    for a, b in zip(
        torch.autograd.grad(eager, wanted), torch.autograd.grad(traced, wanted), strict=True
    ):
        close(a, b, scale=10)


@pytest.mark.parametrize("magnitude", SOFT_BALLS)
@pytest.mark.parametrize("weighted", [None, "nonlinear", "nonlinear_separate"])
def test_own_radius_per_filter(magnitude, weighted, data):
    x, weight = data
    radius = torch.tensor([0.5, 1.0, 2.0, 3.0], dtype=torch.float64)
    scale = torch.tensor([1.0, -1.0, 0.5, 2.0], dtype=torch.float64)

    def f(x, weight, radius, scale):
        return HF.decoupled_conv2d(
            x, weight, magnitude=magnitude, angular="sigmoid", k=0.4,
            radius=radius, scale=scale, weighted=weighted,
        )  # fmt: skip

    def expected(x, weight, radius, scale):
        patches, rows = F.unfold(x, 3), weight.flatten(1)
        n, length = patches.norm(dim=1, keepdim=True), rows.norm(dim=1)[:, None]
        rho = radius[:, None]
        cos = (rows @ patches) / (length * n)
        h = {
            None: n / (rho + n),
            "nonlinear": length * n / (rho + length * n),
            "nonlinear_separate": length / (rho + length) * n / (rho + n),
        }[weighted]
        out = scale[:, None] * h * HF.angular(cos, "sigmoid", 0.4)
        return out.unflatten(2, (4, 4))

    leaves = (x, weight, radius, scale)
    close(gradients(f, *leaves), gradients(expected, *leaves))
    layer = hl.DecoupledConv2d(3, 4, 3, magnitude=magnitude, weighted=weighted)
    assert isinstance(layer.operator.magnitude, hl.RadiusMagnitude)
    layer(x.float()).sum().backward()
    assert layer.operator.magnitude.rho.raw.grad.abs().max() > 0


def test_own_parameter_k(data):
    x, weight = data
    k = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)

    def f(x, weight, k):
        return HF.decoupled_conv2d(x, weight, magnitude="log", angular="test_bent", k=k)

    def expected(x, weight, k):
        return reference(x, weight, lambda c: c + k[:, None] * c * (1 - c * c), torch.log1p)

    close(gradients(f, x, weight, k), gradients(expected, x, weight, k))
    cos = torch.tensor([0.3, -0.6])
    torch.testing.assert_close(
        HF.angular_derivative_k(cos, 0.3, "test_bent"), cos * (1 - cos * cos)
    )
    layer = hl.SphereConv2d(3, 4, 3, angular=hl.make_angular("test_bent", learnable=True))
    torch.testing.assert_close(layer.operator.angular.k().detach(), torch.full((4,), 0.25))
    layer(x.float()).square().sum().backward()
    assert layer.operator.angular.curvature.raw.grad.abs().max() > 0
    network = models.create("cnn9", widths=(4, 4, 4), operator="sphere", angular="test_bent", k=0.3)
    assert any(getattr(m, "start", None) == 0.3 for m in network.modules())


def test_zero_patches_of_own_magnitudes():
    x = torch.randn(2, 3, 6, 6)
    x[0] = 0
    for name in MAGNITUDES:
        leaf = x.clone().requires_grad_()
        for angular in ("cosine", "linear", "test_cubic_module"):
            f = HF.decoupled_conv2d(leaf, torch.randn(4, 3, 3, 3), magnitude=name, angular=angular)
            assert (f[0] == 0).all()
            (grad,) = torch.autograd.grad(f.square().sum() + f.sum(), leaf)
            assert grad.isfinite().all() and grad.abs().max() < 1e3


@pytest.mark.parametrize("name", ANGULARS)
@pytest.mark.parametrize("m", [1.0, 3.0])
def test_margins_and_heads(name, m):
    theta = torch.linspace(0.01, torch.pi - 0.01, 50, dtype=torch.float64)
    cos = theta.cos()
    turns = torch.floor(m * theta / torch.pi)
    want = (m * theta - turns * torch.pi).cos() ** 3 - 2 * turns
    torch.testing.assert_close(HF.margin(cos, m, kind=name), want)
    leaf = cos.clone().requires_grad_()
    (slope,) = torch.autograd.grad(HF.margin(leaf, m, kind=name).sum(), leaf)
    torch.testing.assert_close(HF.margin_derivative(cos, m, kind=name), slope)
    torch.testing.assert_close(HF.angular_derivative(cos, name), 3 * cos**2)
    x, y = torch.randn(5, 8), torch.arange(5)
    for head in (
        hs.heads.GASoftmaxHead(8, 10, m=m, angular=name),
        hs.heads.WSoftmaxHead(8, 10, angular=name),
    ):
        leaf = x.clone().requires_grad_()
        dense = F.cross_entropy(head(leaf, y), y)
        chunked = head.loss(leaf, y)
        torch.testing.assert_close(chunked, dense)
        expected = torch.autograd.grad(dense, [leaf, head.weight])
        for a, b in zip(torch.autograd.grad(chunked, [leaf, head.weight]), expected, strict=True):
            close(a, b, scale=10)
        unit = HF.normalize(head.weight.detach())
        scores = x.norm(dim=1, keepdim=True) * cubic(HF.normalize(x) @ unit.T)
        close(head(x).detach(), scores, scale=10)


def test_parameters_of_registered_modules_are_held_and_trained():
    layer = hl.SphereConv2d(3, 4, 3, angular="test_power")
    head = hs.heads.WSoftmaxHead(8, 10, angular="test_power")
    network = models.create("cnn9", widths=(4, 4, 4), operator="sphere", angular="test_power")
    for module in (layer, head, network):
        assert any(name.endswith(".p") for name, _ in module.named_parameters())
    layer(torch.randn(2, 3, 6, 6)).square().sum().backward()
    head.loss(torch.randn(4, 8), torch.arange(4)).backward()
    for module in (layer, head):
        for name, parameter in module.named_parameters():
            assert parameter.grad is not None, name
    with pytest.raises(TypeError, match=r"'test_power' has parameters of its own.*Power\(\)"):
        HF.angular(torch.zeros(2), "test_power")


def test_models_converted_networks_and_figures():
    pytest.importorskip("matplotlib")
    from hypersphere.reports import figures

    operator = "test_saturating_slope"
    network = models.create("cnn9", widths=(4, 4, 4), operator=operator, angular="test_cubic_slope")
    network(torch.randn(2, 3, 32, 32)).sum().backward()
    kinds = {type(m) for m in network.modules()}
    assert CubicSlope in kinds and SaturatingSlope in kinds
    net = hl.convert(nn.Sequential(nn.Conv2d(3, 4, 3)), operator, CubicSlope(), verbose=False)
    assert net(torch.randn(1, 3, 5, 5)).shape == (1, 4, 3, 3)
    curves = figures.angular_curves(["linear", "test_cubic_function"]).axes[0].lines
    assert [line.get_label() for line in curves] == ["linear", "test_cubic_function"]
    lengths = figures.magnitude_curves(["tanh", "test_saturating_fused"]).axes[0].lines
    assert lengths[1].get_ydata()[-1] == pytest.approx(3 / 4)


def test_own_margins():
    @hs.register("margin", "test_half")
    def half(cos, by=0.5):
        return cos - by

    @hs.register("margin", "test_scaled")
    class Scaled:
        def __init__(self, by=0.2):
            self.by = by

        def __call__(self, cos):
            return cos - self.by * (1 - cos)

        def derivative(self, cos):
            return torch.full_like(cos, 1 + self.by)

    cos = torch.tensor([0.5, -0.5])
    assert HF.make_margin("test_half")(cos).tolist() == [0.0, -1.0]
    assert HF.make_margin({"name": "test_half", "by": 0.25})(cos).tolist() == [0.25, -0.75]
    assert HF.make_margin({"name": "margin", "m": 4}) == HF.make_margin({"m": 4}) == HF.Margin(m=4)
    x, y = torch.randn(4, 8), torch.arange(4)
    for margin in ("test_half", HF.make_margin({"name": "test_scaled", "by": 0.1})):
        head = hs.heads.MarginHead(8, 10, margin, gradient="caffe")
        head.loss(x, y).backward()
        assert head.weight.grad.isfinite().all()
        assert hs.heads.check_margin(head.margin)
    with pytest.raises(ValueError, match=r"unknown margin 'test_halv'; did you mean 'test_half'"):
        HF.make_margin("test_halv")


def test_unknown_names_raise_everywhere_with_the_nearest():
    x, w, n = torch.randn(1, 3, 5, 5), torch.randn(4, 3, 3, 3), torch.ones(2)
    near = r"'sigmoyd'.*did you mean 'sigmoid'"
    for call in (
        lambda: HF.angular(n, "sigmoyd"),
        lambda: HF.angular_derivative(n, "sigmoyd"),
        lambda: HF.angular_derivative_k(n, 0.3, "sigmoyd"),
        lambda: HF.margin(n, 2, kind="sigmoyd"),
        lambda: HF.margin_derivative(n, 2, kind="sigmoyd"),
        lambda: HF.decoupled_conv2d(x, w, angular="sigmoyd"),
        lambda: HF.class_logsumexp(w[:, 0, 0], w[:, 1, 0], torch.arange(4), kind="sigmoyd"),
        lambda: hl.SphereConv2d(3, 4, 3, angular="sigmoyd"),
        lambda: hl.make_angular("sigmoyd"),
        lambda: hs.heads.WSoftmaxHead(8, 10, angular="sigmoyd"),
        lambda: models.create("cnn9", operator="sphere", angular="sigmoyd"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=near):
            call()
    for call in (
        lambda: HF.magnitude(n, "segmentd"),
        lambda: HF.magnitude_slope(n, "segmentd"),
        lambda: HF.magnitude_ratio(n, "segmentd"),
        lambda: HF.decoupled_conv2d(x, w, magnitude="segmentd"),
        lambda: hl.DecoupledConv2d(3, 4, 3, magnitude="segmentd"),
        lambda: models.create("cnn9", operator="segmentd"),
    ):
        with pytest.raises(ValueError, match=r"'segmentd'.*did you mean 'segmented'"):
            call()
    with pytest.raises(TypeError, match=r"Empty has to define value\(self, cos\)"):
        type("Empty", (hl.Angular,), {})()
    with pytest.raises(TypeError, match=r"Empty has to define value\(self, norm\)"):
        type("Empty", (hl.Magnitude,), {})()
    with pytest.raises(TypeError, match="name, an AngularFunction or a callable"):
        HF.angular(n, 3)
