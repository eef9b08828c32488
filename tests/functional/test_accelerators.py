"""All routes of the decoupled operators, those of accelerators taken on a processor."""

import importlib.util
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hypersphere as hs
from hypersphere import functional as HF
from hypersphere.functional._kernels.decoupled.routes import force, route
from hypersphere.functional.angular_functions import AngularFunction
from hypersphere.functional.magnitude_base import MagnitudeFunction
from tolerances import close

from counting import counted
from kinds import ANGULAR_KINDS, MAGNITUDE_KINDS
from reference import decoupled as reference

# numpy, which interprets the kernels, tells of infinities that the kernels mean.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")

HAS_TRITON = importlib.util.find_spec("triton") is not None
ROUTES = ["native", "tiled", "whole", *(["triton"] if HAS_TRITON else [])]
TYPES = [torch.float32, torch.float16, torch.bfloat16]
# Odd sizes: nothing is a multiple of a block.
GEOMETRIES = [
    {},
    {"stride": 2, "padding": 1},
    {"dilation": 2, "padding": 2},
    {"groups": 2, "padding": 1},
    {"stride": 2, "padding": 2, "dilation": 2, "groups": 4},
]
RHO = torch.tensor([0.5, 1.0, 2.0, 5.0])
K = torch.tensor([0.2, 0.3, 0.5, 1.0])
PAIRS = list(itertools.product(MAGNITUDE_KINDS, ANGULAR_KINDS))


@pytest.mark.parametrize("name", ROUTES)
@pytest.mark.parametrize("number", range(len(PAIRS)))
def test_against_the_equations(number, name):
    magnitude, angular = PAIRS[number]
    geometry, dtype = GEOMETRIES[number % len(GEOMETRIES)], TYPES[number % len(TYPES)]
    x = torch.randn(2, 4, 7, 5).to(dtype)
    x[0, :, :4, :3] = 0  # zero patches
    weight = torch.randn(4, 4 // geometry.get("groups", 1), 3, 2).to(dtype)
    want = reference.convolution(
        x, weight, **geometry, rho=RHO, k=K,
        magnitude_kind=magnitude, angular_kind=angular, alpha=1.3,
    )  # fmt: skip
    with force(name):
        got = HF.decoupled_conv2d(
            x, weight, **geometry, magnitude=magnitude, angular=angular, alpha=1.3, radius=RHO, k=K
        )
    assert got.dtype == dtype
    # The arcsine of a cosine near 1 is the root of its rounding.
    close(got, want, scale={torch.float32: 3, torch.float16: 10, torch.bfloat16: 10}[dtype])


def gradients(x, weight, tensors, shared, out_grad, **settings):
    radius, k, scale, bias = tensors
    radius, k = (radius[0], k[0]) if shared else (radius, k)
    out = HF.decoupled_conv2d(x, weight, bias, radius=radius, k=k, scale=scale, **settings)
    found = torch.autograd.grad(out, (x, weight, *tensors), out_grad, allow_unused=True)
    return out.detach(), [torch.zeros(()) if g is None else g for g in found]


@pytest.mark.parametrize("shared", [False, True], ids=["per filter", "shared"])
@pytest.mark.parametrize("name", ROUTES)
@pytest.mark.parametrize("number", range(len(PAIRS)))
def test_gradients(number, name, shared):
    """All gradients against those of autograd through plain operations in float64."""
    magnitude, angular = PAIRS[number]
    geometry = GEOMETRIES[number % len(GEOMETRIES)]
    x = torch.randn(2, 4, 7, 5, requires_grad=True)
    with torch.no_grad():
        x[0, :, :4, :3] = 0
    weight = torch.randn(4, 4 // geometry.get("groups", 1), 3, 2, requires_grad=True)
    tensors = [RHO.clone(), K.clone(), torch.randn(4), torch.randn(4)]
    tensors = [t.requires_grad_() for t in tensors]
    settings = {**geometry, "magnitude": magnitude, "angular": angular, "alpha": 1.3}
    wide = [t.detach().double().requires_grad_() for t in (x, weight, *tensors)]
    with torch.no_grad():
        shape = HF.decoupled_conv2d(x, weight, **geometry).shape
    grad = torch.randn(shape)
    want = gradients(wide[0], wide[1], wide[2:], shared, grad.double(), **settings)
    with force(name):
        got = gradients(x, weight, tensors, shared, grad, **settings)
    close(got[0], want[0], scale=10)
    close(got[1], want[1], scale=30)


@pytest.mark.parametrize("name", ROUTES)
@pytest.mark.parametrize("dtype", TYPES)
def test_layers_train_in_any_type(name, dtype):
    """Every pair as a layer, with its running mean: the same outputs and gradients."""
    for number, (magnitude, angular) in enumerate(PAIRS):
        torch.manual_seed(number)
        layer = hs.layers.DecoupledConv2d(
            3, 5, 3, padding=1, magnitude=magnitude, angular=angular, rescale=True, dtype=dtype
        )
        x = torch.randn(3, 3, 5, 6, dtype=dtype, requires_grad=True)
        state = {key: value.clone() for key, value in layer.state_dict().items()}
        want = layer(x)
        wanted = [x, *layer.parameters()]
        grad = torch.randn_like(want)
        reached = layer.state_dict()
        expected = torch.autograd.grad(want, wanted, grad)
        reached = {key: value.clone() for key, value in reached.items()}
        layer.load_state_dict(state)
        with force(name):
            out = layer(x)
            found = torch.autograd.grad(out, wanted, grad)
        close(out, want, scale=3)
        for one, other in zip(found, expected, strict=True):
            close(one, other, scale=30)
        for key, value in layer.state_dict().items():
            if value.is_floating_point():
                close(value, reached[key])
            else:
                assert torch.equal(value, reached[key]), key


@pytest.mark.parametrize("name", ROUTES)
def test_shapes_and_layouts(name):
    """One and three dimensions, linear maps, channels last, slices, one image, none."""
    cases = [
        (HF.decoupled_conv1d, torch.randn(2, 3, 9), torch.randn(4, 3, 4), {"padding": 2}),
        (
            HF.decoupled_conv3d,
            torch.randn(1, 2, 4, 5, 3),
            torch.randn(3, 2, 2, 3, 2),
            {"stride": 2},
        ),
        (HF.decoupled_conv2d, torch.randn(1, 70, 9, 9), torch.randn(37, 70, 1, 1), {"stride": 3}),
        (HF.decoupled_conv2d, torch.randn(2, 3, 6, 6), torch.randn(4, 3, 3, 3), {"padding": 2}),
        (HF.decoupled_linear, torch.randn(2, 5, 7), torch.randn(6, 7), {}),
        (HF.decoupled_linear, torch.randn(0, 7), torch.randn(6, 7), {}),
        (HF.decoupled_conv2d, torch.randn(0, 3, 5, 5), torch.randn(4, 3, 3, 3), {}),
    ]
    last = torch.randn(2, 5, 6, 7).contiguous(memory_format=torch.channels_last)
    cases.append((HF.decoupled_conv2d, last, torch.randn(4, 5, 3, 3), {"padding": 1}))
    sliced = torch.randn(2, 10, 8, 16)[:, ::2, 1:-1, ::2]
    cases.append((HF.decoupled_conv2d, sliced, torch.randn(4, 5, 3, 3), {"padding": 1}))
    for function, x, weight, options in cases:
        options = {**options, "magnitude": "tanh", "angular": "sigmoid"}
        x, weight = x.requires_grad_(), weight.requires_grad_()
        want = function(x, weight, **options)
        grad = torch.randn_like(want)
        expected = torch.autograd.grad(want, (x, weight), grad)
        with force(name):
            got = function(x, weight, **options)
            found = torch.autograd.grad(got, (x, weight), grad)
        close(got, want, scale=3)
        close(found, expected, scale=30)


@pytest.mark.parametrize("name", ROUTES)
def test_second_derivatives_and_given_norms(name):
    x = torch.randn(2, 3, 5, 5, requires_grad=True)
    weight = torch.randn(4, 3, 3, 3, requires_grad=True)

    def penalty():
        out = HF.decoupled_conv2d(x, weight, magnitude="tanh", angular="linear")
        (inner,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
        return torch.autograd.grad(inner.square().sum(), (x, weight))

    want = penalty()
    norm = HF.patch_norm(x.detach(), 3)
    fixed = torch.autograd.grad(HF.decoupled_conv2d(x, weight, norm=norm).sum(), x)
    with force(name):
        close(penalty(), want, scale=100)
        again = torch.autograd.grad(HF.decoupled_conv2d(x, weight, norm=norm).sum(), x)
    close(again, fixed, scale=10)


@pytest.mark.parametrize("name", ROUTES)
@pytest.mark.parametrize("angular", ["cosine", "linear", "sigmoid"])
def test_nan_is_not_hidden(name, angular):
    x, weight = torch.randn(2, 3, 5, 5), torch.randn(4, 3, 3, 3)
    x[1, 0, 2, 2] = torch.nan
    with force(name):
        out = HF.decoupled_conv2d(x, weight, angular=angular)
    assert out[0].isfinite().all() and out[1].isnan().all()


class Cubic(AngularFunction):
    zero_at_right_angle = True

    def value(self, cos, k=None, eps=None):
        return cos**3

    def slope(self, cos, k=None, eps=None):
        return 3 * cos**2


class Stateful(Cubic):
    def __init__(self):
        self.factor = 2.0

    def value(self, cos, k=None, eps=None):
        return self.factor * cos**3

    def slope(self, cos, k=None, eps=None):
        return 3 * self.factor * cos**2


class Unusual(MagnitudeFunction):
    def value(self, norm, alpha=1, beta=0, radius=1):
        return alpha * torch.special.i0e(norm) * norm

    def slope(self, norm, alpha=1, beta=0, radius=1):
        return alpha * ((torch.special.i1e(norm) - torch.special.i0e(norm)) * norm
                        + torch.special.i0e(norm))  # fmt: skip


@pytest.mark.parametrize("name", ROUTES)
def test_own_parts(name):
    """A formula of table operations gets a kernel; state and other operations do without."""
    x = torch.randn(2, 3, 6, 6, requires_grad=True)
    weight = torch.randn(4, 3, 3, 3, requires_grad=True)
    for options, kernels in (
        ({"angular": Cubic()}, True),
        ({"angular": Stateful()}, False),
        ({"magnitude": Unusual(), "angular": "linear"}, False),
        ({"angular": lambda c: c.sin()}, False),
    ):
        want = HF.decoupled_conv2d(x, weight, **options)
        grad = torch.randn_like(want)
        expected = torch.autograd.grad(want, (x, weight), grad)
        with force(name):
            got = HF.decoupled_conv2d(x, weight, **options)
            found = torch.autograd.grad(got, (x, weight), grad)
            with counted() as seen:
                HF.decoupled_conv2d(x, weight, **options)
        close(got, want, scale=3)
        close(found, expected, scale=30)
        assert ("forward_kernel" in seen.launches) == (kernels and name == "triton")


def radius_layers():
    torch.manual_seed(1)
    layers = hs.layers
    for magnitude in ("ball", "tanh", "segmented"):
        kinds = {"magnitude": magnitude, "angular": "sigmoid", "rescale": True}
        half = torch.randn(4, 4, 7, 5)
        half[0, :, :5, :3] = 0  # zero patches
        yield layers.DecoupledConv2d(4, 6, 3, padding=1, **kinds), half
        yield layers.DecoupledConv2d(4, 6, 3, padding=1, stride=2, groups=2, **kinds), half
        yield layers.DecoupledConv2d(4, 6, 3, padding=2, dilation=2, bias=True, **kinds), half
        yield layers.DecoupledConv1d(3, 5, 4, stride=2, **kinds), torch.randn(2, 3, 9)
        yield layers.DecoupledConv3d(2, 3, 2, padding=1, **kinds), torch.randn(2, 2, 3, 4, 3)
        yield layers.DecoupledLinear(7, 5, **kinds), torch.randn(3, 7)
        yield layers.DecoupledConv2d(4, 6, 3, padding=1, **kinds), half[:0]
        yield layers.DecoupledConv2d(4, 6, 3, padding=1, **kinds), torch.zeros(2, 4, 5, 5)


def layer_gradients(layer, x):
    x = x.clone().requires_grad_()
    out = layer(x)
    grad = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    return [out, *torch.autograd.grad(out, [x, *layer.parameters()], grad)]


@pytest.mark.parametrize("name", ROUTES)
def test_learned_radii(name):
    """Norms, running mean and radii of whole layers: zero patches, groups, no images, no length."""
    for layer, x in radius_layers():
        state = {key: value.clone() for key, value in layer.state_dict().items()}
        wide = layer.double()
        want = layer_gradients(wide, x.double())
        reached = {key: value.clone() for key, value in wide.state_dict().items()}
        layer.float().load_state_dict(state)
        with force(name):
            got = layer_gradients(layer, x)
        for one, other in zip(got, want, strict=True):
            close(one, other, scale=30)
        for key, value in layer.state_dict().items():
            close(value.float(), reached[key].float())


def test_zero_patches_in_narrow_types():
    """What a mean sends into the norm of a zero patch stays finite in float16."""
    layer = hs.layers.DecoupledConv2d(3, 4, 3, padding=1, magnitude="tanh", dtype=torch.float16)
    x = torch.randn(2, 3, 8, 8, dtype=torch.float16)
    x[0] = 0
    with force("whole"):
        assert all(tensor.isfinite().all() for tensor in layer_gradients(layer, x))


@pytest.mark.parametrize("name", ROUTES)
@pytest.mark.parametrize("magnitude", ["ball", "tanh", "segmented"])
@pytest.mark.parametrize("weighted", [None, "nonlinear_separate"])  # a scale that depends on rho
def test_second_derivatives_through_the_mean(name, magnitude, weighted):
    """What flows through the mean norm counts once, with a graph of the gradients as without."""
    settings = {"magnitude": magnitude, "angular": "linear", "weighted": weighted}
    layer = hs.layers.DecoupledConv2d(3, 4, 3, **settings).double()
    x = torch.randn(2, 3, 5, 5, dtype=torch.float64, requires_grad=True)
    wanted = [x, *layer.parameters()]
    with force(name):
        once = torch.autograd.grad(layer(x).square().sum(), wanted)
        again = torch.autograd.grad(layer(x).square().sum(), wanted, create_graph=True)
        close(again, once, scale=10)
        assert torch.autograd.gradgradcheck(layer, x, fast_mode=True)
        layer, x = layer.float(), x.detach().float().requires_grad_()  # as kernels in C++ take it
        wanted = [x, *layer.parameters()]
        again = torch.autograd.grad(layer(x).square().sum(), wanted, create_graph=True)
        close([g.detach() for g in again], once, scale=30)


@pytest.mark.parametrize("name", ["tiled", "whole"])
def test_slope_of_the_ball_at_its_radius(name):
    """Up to n = rho inclusive, h has the slope of the inside."""
    x = torch.tensor([[3.0, 4.0], [3.0, 4.000001], [1.0, 2.0]], requires_grad=True)
    radius = torch.tensor([5.0, 5.0], requires_grad=True)
    with force(name):
        out = HF.decoupled_linear(x, torch.eye(2), magnitude="ball", radius=radius)
        grad_x, grad_radius = torch.autograd.grad(out.sum(), (x, radius))
    # Inside the ball f = w^T x / rho.
    close(grad_x[[0, 2]], torch.full((2, 2), 0.2))
    assert grad_x[1, 0] != grad_x[1, 1]
    close(grad_radius, torch.tensor([-4.0, -6.0]) / 25)


def layer_meter(name, batch, channels=48, size=-1, **operator):
    layer = hs.layers.DecoupledConv2d(channels, 64, 3, padding=1, **operator)
    x = torch.randn(batch, channels, 8, 8, requires_grad=True)
    grad = torch.randn(batch, 64, 8, 8)
    for _ in range(2):  # the first time formulas are read and constants made
        with force(name), counted(grad.numel()) as seen:
            torch.autograd.grad(layer(x), [x, *layer.parameters()], grad)
    return seen


@pytest.mark.parametrize(("magnitude", "angular"), PAIRS)
def test_launches(magnitude, angular):
    operator = {"magnitude": magnitude, "angular": angular}
    fused = layer_meter("triton", 3, **operator)
    assert sum(fused.launches.values()) <= 20, fused.launches
    # forward: read s, write f; backward: read the gradient and s, write the gradient in s
    assert sum(fused.passes.values()) <= 5, fused.passes
    whole = layer_meter("whole", 3, **operator)
    assert sum(whole.launches.values()) <= 45, whole.launches
    assert layer_meter("whole", 40, **operator).launches == whole.launches
    assert layer_meter("triton", 40, **operator).launches == fused.launches


def test_routes_are_chosen_by_device():
    assert route(torch.zeros(1)) == "tiled" == route(torch.zeros(1, device="meta"))
    with force("triton"):
        assert route(torch.zeros(1)) == "triton"
        # The kernels compute in float32: float64 takes the other route.
        x, weight = torch.randn(2, 3, 5, 5).double(), torch.randn(4, 3, 3, 3).double()
        got = HF.decoupled_conv2d(x, weight, magnitude="tanh", angular="sigmoid")
    close(got, HF.decoupled_conv2d(x, weight, magnitude="tanh", angular="sigmoid"))
    assert "route" not in str(hs.layers.DecoupledConv2d.__doc__)


def test_triton_is_there_where_it_can_be():
    assert HAS_TRITON or sys.platform != "linux", "pip install triton: tests need its interpreter"


@pytest.mark.skipif(not HAS_TRITON, reason="Triton has no build for this system")
def test_functions_that_triton_lacks():
    import triton
    import triton.language as tl

    from hypersphere.functional._kernels.decoupled.triton import arithmetic

    @triton.jit
    def kernel(x, out, count, F: tl.constexpr, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        tl.store(out + i, F(tl.load(x + i, mask=i < count)), mask=i < count)

    def values(function, x):
        out = torch.empty_like(x)
        kernel[(1,)](x, out, len(x), F=function, BLOCK=4096)
        return out.double()

    unit = torch.linspace(-1, 1, 4001)
    assert (values(arithmetic.asin, unit) - unit.double().asin()).abs().max() < 3e-7
    wide = torch.cat([torch.linspace(-20, 20, 4001), torch.tensor([1e-20, -1e-6, 100.0])])
    want = wide.double().tanh()
    assert ((values(arithmetic.tanh, wide) - want).abs() <= 3e-7 * want.abs()).all()
    positive = torch.cat([torch.logspace(-30, 30, 4001), torch.zeros(1)])
    got, want = values(arithmetic.log1p, positive), positive.double().log1p()
    assert ((got - want).abs() <= 3e-7 * want).all()
    assert values(arithmetic.asin, torch.tensor([torch.nan])).isnan().all()


def test_conv_is_plain_where_h_and_g_are():
    x = torch.randn(2, 3, 5, 5)
    layer = hs.layers.LinearConv2d(3, 4, 3, weighted="linear")
    twin = nn.Conv2d(3, 4, 3, bias=False)
    twin.load_state_dict({"weight": layer.weight})
    for name in ROUTES:
        with force(name):
            close(layer(x), F.conv2d(x, twin.weight))


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRITON, reason="Triton has no build for this system")
def test_kernels_compile_without_spills():
    """Ahead of time for sm_80, in a process that does not interpret them."""
    code = (
        "import card_kernels; rows = card_kernels.rows(card_kernels.details('sm_80', quick=True))\n"
        "assert len(rows) >= 9 and all(r.met for r in rows), card_kernels.format_rows(rows)"
    )
    root = Path(__file__).parents[2]
    paths = [str(root / "benchmarks"), str(root / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
