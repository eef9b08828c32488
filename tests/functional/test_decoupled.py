"""Decoupled operators against the patch-by-patch float64 reference, and their properties."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from hypersphere import functional as HF
from hypersphere.functional._kernels.decoupled.plain import plain_operator
from tolerances import close

from edges import EDGE_IDS, EDGES
from kinds import ANGULAR_KINDS, MAGNITUDE_KINDS, RADIUS_KINDS
from reference import decoupled as reference

RHO = torch.tensor([0.5, 1.0, 2.0, 5.0])
K = torch.tensor([0.2, 0.3, 0.5, 1.0])
GEOMETRIES = {
    "plain": {},
    "stride": {"stride": 2, "padding": 1},
    "dilation": {"dilation": 2, "padding": 2},
    "groups": {"groups": 2, "padding": 1},
    "all": {"stride": 2, "padding": 2, "dilation": 2, "groups": 4},
}


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("angular", ANGULAR_KINDS)
@pytest.mark.parametrize("magnitude", MAGNITUDE_KINDS)
def test_against_the_equations(magnitude, angular, geometry):
    geometry = GEOMETRIES[geometry]
    x = torch.randn(2, 4, 6, 5)
    x[0, :, :4, :3] = 0  # zero patches
    weight = torch.randn(4, 4 // geometry.get("groups", 1), 3, 2)
    want = reference.convolution(
        x, weight, **geometry, rho=RHO, k=K,
        magnitude_kind=magnitude, angular_kind=angular, alpha=1.3,
    )  # fmt: skip
    got = HF.decoupled_conv2d(
        x, weight, **geometry, magnitude=magnitude, angular=angular, alpha=1.3, radius=RHO, k=K
    )
    torch.testing.assert_close(got.double(), want, rtol=0, atol=2e-6)


@pytest.mark.parametrize("weighted", ["linear", "nonlinear", "nonlinear_separate"])
@pytest.mark.parametrize("angular", ["cosine", "linear"])
@pytest.mark.parametrize("magnitude", MAGNITUDE_KINDS)
def test_weighted(magnitude, angular, weighted):
    x, weight = torch.randn(2, 3, 5), torch.randn(4, 3, 2)
    settings = {"magnitude": magnitude, "angular": angular, "alpha": 1.3, "weighted": weighted}
    if weighted != "linear" and magnitude not in RADIUS_KINDS:
        with pytest.raises(ValueError, match=rf"radius \(ball, tanh, segmented\); {magnitude}"):
            HF.decoupled_conv1d(x, weight, **settings)
        return
    want = reference.convolution(
        x, weight, rho=RHO, magnitude_kind=magnitude, angular_kind=angular,
        alpha=1.3, weighted=weighted,
    )  # fmt: skip
    got = HF.decoupled_conv1d(x, weight, radius=RHO, **settings)
    torch.testing.assert_close(got.double(), want, rtol=0, atol=3e-6)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("angular", ANGULAR_KINDS)
@pytest.mark.parametrize("magnitude", MAGNITUDE_KINDS)
def test_gradients_of_everything(magnitude, angular, groups):
    """gradcheck of the fused backward, and of the second derivative behind it."""
    x = torch.randn(2, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, 2 // groups, 2, 2, dtype=torch.float64, requires_grad=True)
    bias, scale = (torch.randn(2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    rho = torch.tensor([0.7, 2.5], dtype=torch.float64, requires_grad=True)
    k = torch.tensor([0.4, 0.9], dtype=torch.float64, requires_grad=True)

    def f(x, weight, bias, scale, rho, k):
        return HF.decoupled_conv2d(
            x, weight, bias, padding=1, groups=groups, magnitude=magnitude, angular=angular,
            radius=rho, k=k, scale=scale,
        )  # fmt: skip

    inputs = (x, weight, bias, scale, rho, k)
    assert torch.autograd.gradcheck(f, inputs, fast_mode=True)
    if groups == 1:
        assert torch.autograd.gradgradcheck(f, inputs, fast_mode=True, atol=1e-4)


def test_norms_given_as_constants_stay_constant():
    x = torch.randn(2, 3, 6, 6, requires_grad=True)
    weight = torch.randn(4, 3, 3, 3)
    norm = HF.patch_norm(x.detach(), 3)
    cosines = HF.decoupled_conv2d(x, weight, norm=norm)
    (got,) = torch.autograd.grad(cosines.sum(), x)
    unit = HF.normalize(weight.flatten(1)).view_as(weight)
    (want,) = torch.autograd.grad((F.conv2d(x, unit) / norm).sum(), x)
    torch.testing.assert_close(got, want)


def test_gradient_through_given_norms():
    x = torch.randn(2, 4, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 4, 3, dtype=torch.float64, requires_grad=True)

    def f(x, weight):
        norm = HF.patch_norm(x, 3, padding=1)
        return HF.decoupled_conv1d(
            x, weight, padding=1, magnitude="tanh", mean_norm=norm.mean(), norm=norm
        )

    assert torch.autograd.gradcheck(f, (x, weight), fast_mode=True)
    assert torch.autograd.gradgradcheck(f, (x, weight), fast_mode=True)
    linear = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    rows = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x, w: HF.decoupled_linear(x, w, magnitude="log", angular="linear"), (rows, linear)
    )


@pytest.mark.parametrize("angular", ["cosine", "sigmoid"])
def test_a_retained_graph_gives_the_same_gradient_twice(angular):
    x = torch.randn(3, 4, 6, 6, requires_grad=True)
    weight = torch.randn(5, 4, 3, 3, requires_grad=True)
    out = HF.decoupled_conv2d(x, weight, angular=angular)
    grad = torch.randn_like(out)
    first = torch.autograd.grad(out, (x, weight), grad, retain_graph=True)
    second = torch.autograd.grad(out, (x, weight), grad)
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_an_inplace_activation_may_follow():
    x = torch.randn(2, 3, 6, 6, requires_grad=True)
    weight = torch.randn(4, 3, 3, 3, requires_grad=True)
    want = torch.autograd.grad(F.relu(HF.decoupled_conv2d(x, weight)).sum(), x)
    got = torch.autograd.grad(F.relu_(HF.decoupled_conv2d(x, weight)).sum(), x)
    torch.testing.assert_close(got, want)


@given(st.sampled_from(ANGULAR_KINDS), st.floats(1e-12, 1e12), st.integers(0, 1000))
def test_sphere_is_free_of_scale_and_bounded(angular, scale, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 3, 5, 5, generator=generator)
    weight = torch.randn(4, 3, 3, 3, generator=generator)
    f = HF.decoupled_conv2d(x, weight, padding=1, angular=angular)
    assert f.abs().max() <= 1
    scaled = HF.decoupled_conv2d(scale * x, 7 * weight, padding=1, angular=angular)
    torch.testing.assert_close(scaled, f, rtol=0, atol=1e-5)


@pytest.mark.parametrize("angular", ANGULAR_KINDS)
def test_parallel_patches(angular):
    """Every filter meets itself and its opposite, however short: g = 1 and -1 to rounding."""
    weight = torch.randn(6, 4, 3, 3)
    x = torch.cat([weight, -0.001 * weight]).requires_grad_()
    f = HF.decoupled_conv2d(x, weight, angular=angular).flatten(1)
    assert f.abs().max() <= 1
    # An error of 1e-7 in cos(theta) is one of 3e-4 in an angle near 0.
    atol = 1e-6 if angular in ("cosine", "square_cosine") else 1e-3
    torch.testing.assert_close(f.diag(), torch.ones(6), rtol=0, atol=atol)
    torch.testing.assert_close(f[6:].diag(), -torch.ones(6), rtol=0, atol=atol)
    f.sum().backward()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("angular", [*ANGULAR_KINDS, torch.cos], ids=[*ANGULAR_KINDS, "callable"])
@pytest.mark.parametrize("magnitude", MAGNITUDE_KINDS)
def test_zero_patches_and_zero_filters(magnitude, angular):
    x = torch.randn(2, 3, 6, 6)
    x[0] = 0
    weight = torch.randn(4, 3, 3, 3)
    weight[1] = 0
    x.requires_grad_(), weight.requires_grad_()
    bias = torch.full((4,), 0.25)
    f = HF.decoupled_conv2d(x, weight, bias, magnitude=magnitude, angular=angular)
    assert (f[0] == 0.25).all() and (f[:, 1] == 0.25).all()
    f.square().sum().backward()
    assert x.grad.isfinite().all() and weight.grad.isfinite().all()
    if magnitude == "sphere":
        assert (x.grad[0] == 0).all()


@pytest.mark.parametrize("angular", [*ANGULAR_KINDS, "callable"])
@pytest.mark.parametrize("magnitude", MAGNITUDE_KINDS)
def test_gradients_of_zero_patches_are_the_same_on_every_path(magnitude, angular):
    """df/ds = r(0) g'(0), where r(0) is the slope of h and counts as 0 for the sphere."""
    x = torch.randn(2, 2, 5, 5, dtype=torch.float64)
    x[0] = 0
    weight = torch.randn(3, 2, 2, 2, dtype=torch.float64)
    x.requires_grad_(), weight.requires_grad_()
    g = (lambda c: c.clone()) if angular == "callable" else angular
    radius = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64, requires_grad=True)

    def f(x, weight, radius, g=g):
        return HF.decoupled_conv2d(x, weight, magnitude=magnitude, angular=g, radius=radius)

    out = f(x, weight, radius)
    eager = torch.autograd.grad(
        out.sum(), (x, weight, radius), retain_graph=True, allow_unused=True
    )
    again = torch.autograd.grad(
        out.sum(), (x, weight, radius), create_graph=True, allow_unused=True
    )
    traced = torch.func.grad(lambda *a: f(*a).sum(), (0, 1, 2))(x, weight, radius)
    if angular == "callable":
        named = f(x, weight, radius, "cosine").sum()
        again = torch.autograd.grad(named, (x, weight, radius), allow_unused=True)
    for a, b, c in zip(eager, again, traced, strict=True):
        a, b = (torch.zeros_like(c) if t is None else t for t in (a, b))
        torch.testing.assert_close(a, b)
        torch.testing.assert_close(a, c)
    slope = HF.magnitude_ratio(torch.zeros(()).double(), magnitude, radius=radius.detach())
    of_g = 1.0 if angular == "callable" else HF.angular_derivative(slope.new_zeros(()), angular)
    unit = HF.normalize(weight.detach().flatten(1)).view_as(weight)
    s = F.conv2d(x, unit * (slope * of_g).expand(3).reshape(3, 1, 1, 1))
    torch.testing.assert_close(eager[0][0], torch.autograd.grad(s[0].sum(), x)[0][0])


def test_own_activation_that_is_not_zero_at_a_right_angle():
    """Its parameters learn nothing from zero patches, whose output is 0 whatever they are."""
    p = torch.tensor(2.0, requires_grad=True)
    x = torch.zeros(1, 2, 4, 4, requires_grad=True)
    out = HF.decoupled_conv2d(x, torch.randn(3, 2, 3, 3), magnitude="tanh", angular=lambda c: p + c)
    assert (out == 0).all()
    assert torch.autograd.grad(out.sum(), p)[0] == 0


@pytest.mark.parametrize(("name", "x", "y", "theta"), EDGES, ids=EDGE_IDS)
def test_edge_table(name, x, y, theta):
    got = HF.decoupled_linear(x[None], y[None], angular="linear")
    want = 0.0 if not x.any() or not y.any() else 1 - 2 / torch.pi * theta
    assert got.item() == pytest.approx(want, abs=1e-6)


def test_linear_operator_with_linear_weighting_is_the_convolution():
    conv = nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2)
    x = torch.randn(2, 4, 9, 9)
    settings = {"magnitude": "linear", "weighted": "linear"}
    got = HF.decoupled_conv2d(x, conv.weight, conv.bias, 2, 1, 1, 2, **settings)
    assert torch.equal(got, conv(x))
    linear = nn.Linear(5, 3)
    rows = torch.randn(2, 7, 5)
    got = HF.decoupled_linear(rows, linear.weight, linear.bias, **settings)
    assert torch.equal(got, linear(rows))


@pytest.mark.parametrize("angular", ANGULAR_KINDS)
def test_segmented_reduces_to_ball_and_linear(angular):
    x, weight = torch.randn(2, 3, 6, 6), torch.randn(4, 3, 3, 3)
    radius = 4.0

    def f(magnitude, **settings):
        return HF.decoupled_conv2d(x, weight, magnitude=magnitude, angular=angular, **settings)

    ball = f("segmented", alpha=1 / radius, beta=0.0, radius=radius)
    close(ball, f("ball", radius=radius))
    linear = f("segmented", alpha=1.5, beta=1.5, radius=radius)
    torch.testing.assert_close(linear, f("linear", alpha=1.5), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("padding", ["same", "valid", 1])
def test_shapes_and_padding_like_torch(dims, padding):
    x, weight = torch.randn(2, 4, *[7] * dims), torch.randn(6, 2, *[2, 3, 4][:dims])
    torch_conv = (F.conv1d, F.conv2d, F.conv3d)[dims - 1]
    settings = {"magnitude": "linear", "angular": torch.clone}  # |w| |x| cos(theta), the long way
    got = HF.decoupled_conv(
        x, weight, padding=padding, dilation=2, groups=2, weighted="linear", **settings
    )
    want = torch_conv(x, weight, padding=padding, dilation=2, groups=2)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    single = HF.decoupled_conv(
        x[0], weight, padding=padding, dilation=2, groups=2, weighted="linear", **settings
    )
    torch.testing.assert_close(single, want[0], rtol=1e-4, atol=1e-4)


def test_memory_formats_batches_of_one_and_none():
    weight = torch.randn(4, 3, 3, 3)
    x = torch.randn(5, 3, 8, 8)
    f = HF.decoupled_conv2d(x, weight, magnitude="log", angular="linear")
    last = HF.decoupled_conv2d(
        x.contiguous(memory_format=torch.channels_last), weight, magnitude="log", angular="linear"
    )
    torch.testing.assert_close(last, f)
    torch.testing.assert_close(
        HF.decoupled_conv2d(x[:1], weight, magnitude="log", angular="linear"), f[:1]
    )
    assert HF.decoupled_conv2d(x[:0], weight).shape == (0, 4, 6, 6)


@pytest.mark.parametrize("angular", ANGULAR_KINDS)
@pytest.mark.parametrize("magnitude", ["sphere", "tanh"])
def test_low_precision(magnitude, angular):
    """Autocast is finite and within rounding of float32, with x far from the range of float16."""
    x = 300 * torch.randn(2, 16, 8, 8)
    weight = torch.randn(8, 16, 3, 3)

    def f(x, weight):
        return HF.decoupled_conv2d(
            x, weight, padding=1, magnitude=magnitude, angular=angular, radius=1000.0
        )

    want = f(x, weight)
    for dtype in (torch.bfloat16, torch.float16):
        inputs = x.clone().requires_grad_(dtype == torch.bfloat16), weight.clone().requires_grad_()
        with torch.autocast("cpu", dtype):
            got = f(*inputs)
        assert got.dtype == dtype
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(got.float(), want, rtol=0, atol=6 * eps)
        if dtype == torch.bfloat16:
            exact = x.clone().requires_grad_(), weight.clone().requires_grad_()
            grad = torch.randn_like(want)
            got.backward(grad.to(dtype))
            f(*exact).backward(grad)
            for a, b in zip(inputs, exact, strict=True):
                error = (a.grad - b.grad).norm() / b.grad.norm()
                assert error < 8 * eps


@pytest.mark.parametrize("magnitude", ["sphere", "tanh"])
@pytest.mark.parametrize("angular", ["linear", "sigmoid"])
def test_low_precision_gradients_at_small_angles(magnitude, angular):
    """Three channels and a 1x1 kernel meet small angles, where 16 bits round cos(theta) to 1."""
    x, weight = torch.randn(8, 3, 16, 16), torch.randn(64, 3, 1, 1)

    def gradients(x, weight):
        x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
        out = HF.decoupled_conv2d(x, weight, magnitude=magnitude, angular=angular)
        grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(0)).to(out.dtype)
        plain = torch.autograd.grad(out, (x, weight), grad, create_graph=True)
        return *torch.autograd.grad(out, (x, weight), grad), *plain

    want = gradients(x, weight)
    with torch.autocast("cpu", torch.bfloat16):
        got = gradients(x, weight)
    for a, b in zip(got, want, strict=True):
        assert (a - b).norm() < 0.1 * b.norm()
        assert a.abs().max() < 1.5 * b.abs().max()


def test_half_precision_filters_of_any_length():
    x, weight = torch.randn(2, 8, 5, 5), torch.randn(4, 8, 3, 3)
    for factor, magnitude in ((3e-4, "ball"), (3e-4, "segmented"), (30.0, "tanh")):
        settings = {"magnitude": magnitude, "weighted": "nonlinear", "radius": 3.0}
        low = HF.decoupled_conv2d(x.half(), (factor * weight).half(), **settings)
        want = HF.decoupled_conv2d(x, (factor * weight).half().float(), **settings)
        assert low.dtype == torch.float16
        assert (low - want).norm() < 2e-3 * want.norm()


def test_autocast_leaves_float64_alone():
    x, weight = torch.randn(1, 2, 5, 5).double(), torch.randn(3, 2, 3, 3).double()
    for magnitude in ("tanh", "linear"):
        want = HF.decoupled_conv2d(x, weight, magnitude=magnitude)
        with torch.autocast("cpu", torch.bfloat16):
            got = HF.decoupled_conv2d(x, weight, magnitude=magnitude)
        assert got.dtype == F.conv2d(x, weight).dtype
        assert torch.equal(got, want)


def test_traced_and_eager_agree_and_forward_mode_works():
    x, weight = torch.randn(2, 3, 5, 5), torch.randn(4, 3, 3, 3)
    for angular in ANGULAR_KINDS:
        per_sample = torch.func.vmap(lambda x: HF.decoupled_conv2d(x, weight, angular=angular))(x)  # noqa: B023
        torch.testing.assert_close(per_sample, HF.decoupled_conv2d(x, weight, angular=angular))
    _, tangent = torch.func.jvp(lambda x: HF.decoupled_conv2d(x, weight), (x,), (x,))
    torch.testing.assert_close(tangent, torch.zeros_like(tangent), rtol=0, atol=1e-5)


def test_patch_norm():
    x = torch.randn(2, 4, 7, 6)
    want = F.unfold(x, (3, 2), dilation=2, padding=1, stride=2).norm(dim=1)
    got = HF.patch_norm(x, (3, 2), stride=2, padding=1, dilation=2)
    torch.testing.assert_close(got.flatten(1), want)
    grouped = HF.patch_norm(x, 3, padding="same", groups=2)
    assert grouped.shape == (2, 2, 7, 6)
    torch.testing.assert_close(grouped[:, :1], HF.patch_norm(x[:, :2], 3, padding="same"))
    torch.testing.assert_close(HF.patch_norm(x[0], (2, 2)), HF.patch_norm(x, 2)[0])
    torch.testing.assert_close(HF.patch_norm(x[0, 0], (2,)), HF.patch_norm(x[:1, 0], 2)[0])
    with pytest.raises(ValueError, match=r"one kernel size for each.*\(4, 7, 6\) and \(2, 2, 2\)"):
        HF.patch_norm(x[0], (2, 2, 2))
    zero = torch.zeros(1, 2, 4, 4, requires_grad=True)
    HF.patch_norm(zero, 3).sum().backward()
    assert (zero.grad == 0).all()


def test_messages():
    x, weight = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)
    with pytest.raises(ValueError, match=r"input \(B, 3, H, W\).*\(4, 3, 3, 3\).*\(2, 5, 8, 8\)"):
        HF.decoupled_conv2d(torch.randn(2, 5, 8, 8), weight)
    with pytest.raises(ValueError, match="one to three spatial"):
        HF.decoupled_conv(x, torch.randn(4, 3))
    with pytest.raises(
        ValueError, match=r"conv2d expects .* 2 spatial dimensions, got \(4, 3, 3\)"
    ):
        HF.decoupled_conv2d(torch.randn(2, 3, 8), torch.randn(4, 3, 3))
    with pytest.raises(ValueError, match=r"conv1d expects .* 1 spatial dimension"):
        HF.decoupled_conv1d(x, weight=weight)
    for bias in (torch.randn(1), torch.randn(4, 1, 1)):
        with pytest.raises(ValueError, match=r"expected bias \(4,\)"):
            HF.decoupled_conv2d(x, weight, bias)
    with pytest.raises(ValueError, match=r"weight \(C, C_in\)"):
        HF.decoupled_linear(torch.randn(2, 5), torch.randn(3, 4))
    with pytest.raises(ValueError, match=r"unknown weighting 'quadratic'.*linear, nonlinear"):
        HF.decoupled_conv2d(x, weight, weighted="quadratic")
    with pytest.raises(ValueError, match="'same' expects stride 1"):
        HF.decoupled_conv2d(x, weight, stride=2, padding="same")
    with pytest.raises(ValueError, match=r"stride expects 1 or 2 numbers, got \(1, 2, 3\)"):
        HF.decoupled_conv2d(x, weight, stride=(1, 2, 3))


@pytest.mark.parametrize("kind", MAGNITUDE_KINDS)
@pytest.mark.parametrize("angular", ANGULAR_KINDS)
@pytest.mark.parametrize("each", [False, True])
def test_the_compiled_form_is_the_plain_one(kind, angular, each):
    from hypersphere.functional._kernels.decoupled.compiled import compiled_operator
    from hypersphere.functional._kernels.decoupled.convolution import Geometry
    from hypersphere.functional._kernels.decoupled.plain import Inputs, OperatorSettings

    x = torch.randn(2, 4, 5, 6, dtype=torch.float64, requires_grad=True)
    x.data[0, :, :3, :3] = 0  # a zero patch
    kernel = HF.normalize(torch.randn(6, 18, dtype=torch.float64)).view(6, 2, 3, 3)
    shape = (6,) if each else ()
    inputs = Inputs(
        x,
        HF.patch_norm(x, 3, groups=2),
        kernel.requires_grad_(),
        torch.rand(shape, dtype=torch.float64).add(2).requires_grad_(),
        torch.rand(shape, dtype=torch.float64).add(0.3).requires_grad_(),
        torch.rand(6, dtype=torch.float64).requires_grad_(),
        torch.rand(6, dtype=torch.float64).requires_grad_(),
    )
    g, h = HF.angular_function(angular), HF.magnitude_function(kind)
    geometry = Geometry((1, 1), (0, 0), (1, 1), 2)
    op = OperatorSettings(h, g, 1.3, h.default_beta or 0.0, geometry)
    outs = [form(inputs, op) for form in (compiled_operator, plain_operator)]
    torch.testing.assert_close(*outs)
    grad = torch.randn_like(outs[0])
    wanted = [x, *inputs[2:]]
    found, expected = (
        torch.autograd.grad(out, wanted, grad, allow_unused=True, retain_graph=True) for out in outs
    )
    for a, b, leaf in zip(found, expected, wanted, strict=True):
        zero = torch.zeros_like(leaf)
        torch.testing.assert_close(zero if a is None else a, zero if b is None else b)


def test_plain_and_fused_gradients_agree():
    from hypersphere.functional._kernels.decoupled.convolution import Geometry
    from hypersphere.functional._kernels.decoupled.plain import Inputs, OperatorSettings
    from hypersphere.functional._kernels.decoupled.tiled import apply_operator

    x = torch.randn(40, 4, 16, 16, dtype=torch.float64, requires_grad=True)  # several tiles
    kernel = HF.normalize(torch.randn(16, 36, dtype=torch.float64)).view(16, 4, 3, 3)
    inputs = Inputs(
        x,
        HF.patch_norm(x, 3, padding=1).detach().requires_grad_(),
        kernel.requires_grad_(),
        torch.rand(16, dtype=torch.float64).add(1).requires_grad_(),
        torch.rand(16, dtype=torch.float64).add(0.2).requires_grad_(),
    )
    g, h = HF.angular_function("sigmoid"), HF.magnitude_function("segmented")
    op = OperatorSettings(h, g, 1.2, 0.3, Geometry((1, 1), (1, 1), (1, 1), 1))
    grad = torch.randn(40, 16, 16, 16, dtype=torch.float64)
    wanted = [t for t in inputs if t is not None]
    for a, b in zip(
        torch.autograd.grad(apply_operator(inputs, op), wanted, grad),
        torch.autograd.grad(plain_operator(inputs, op), wanted, grad),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("kind", ["sphere", "ball", "tanh", "segmented", "log"])
@pytest.mark.parametrize("angular", ["cosine", "sigmoid"])
@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_wide_layers_in_float32(kind, angular, memory):
    """From 16 channels on the convolution is differentiated with the channels last."""
    x = torch.randn(3, 16, 7, 9).to(memory_format=memory).requires_grad_()
    weight = torch.randn(24, 16, 3, 3, requires_grad=True)
    radius = torch.rand(24).add(3).requires_grad_()
    grad = torch.randn(3, 24, 7, 9)

    def gradients(dtype, **more):
        leaves = [t.detach().to(dtype).requires_grad_() for t in (x, weight, radius)]
        options = {"magnitude": kind, "angular": angular, "padding": 1, **more}
        if kind in RADIUS_KINDS:
            options["radius"] = leaves[2]
        out = HF.decoupled_conv2d(leaves[0], leaves[1], **options)
        wanted = leaves if kind in RADIUS_KINDS else leaves[:2]
        first = torch.autograd.grad(out, wanted, grad.to(dtype), retain_graph=True)
        again = torch.autograd.grad(out, wanted, grad.to(dtype))  # the cosines are gone by now
        for a, b in zip(first, again, strict=True):
            torch.testing.assert_close(a, b)
        assert first[0].stride() == leaves[0].stride()
        return out, *first

    for found, expected in zip(gradients(torch.float32), gradients(torch.float64), strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)


def test_threads_do_not_share_their_workspace():
    from concurrent.futures import ThreadPoolExecutor

    def gradient(seed):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(8, 4, 16, 16, generator=generator, requires_grad=True)
        weight = torch.randn(6, 4, 3, 3, generator=generator)
        out = HF.decoupled_conv2d(x, weight, angular="sigmoid", magnitude="log")
        return torch.autograd.grad(out.square().sum(), x)[0]

    alone = [gradient(seed) for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(gradient, range(8)))
    for a, b in zip(alone, together, strict=True):
        torch.testing.assert_close(a, b)


def test_workspace_serves_inference_and_training():
    x, weight = torch.randn(2, 4, 9, 9), torch.randn(6, 4, 3, 3, requires_grad=True)

    def apply(x):
        return HF.decoupled_conv2d(x, weight, magnitude="tanh", angular="linear")

    with torch.inference_mode():
        first = apply(x)
    trained = apply(x)
    (grad,) = torch.autograd.grad(trained.sum(), weight)
    with torch.inference_mode():
        assert torch.equal(apply(x), first)
    close(trained.detach(), first.clone())
    assert grad.isfinite().all()
    assert apply(x[:0]).shape == (0, 6, 7, 7)


def test_images_beyond_a_tile():
    from hypersphere.functional._kernels.decoupled.workspace import TILE

    x = torch.randn(2, 1, 400, 400, requires_grad=True)
    weight = torch.randn(4, 1, 3, 3)
    assert len(weight) * x[0].numel() > TILE

    def total(x):
        return HF.decoupled_conv2d(x, weight, angular="linear", padding=1).square().sum()

    (grad,) = torch.autograd.grad(total(x), x)
    torch.testing.assert_close(grad, torch.func.grad(total)(x.detach()), rtol=1e-3, atol=1e-4)


def test_types_are_those_of_the_twin():
    x, weight = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)
    with pytest.raises(TypeError, match=r"one type, got torch.float64 and torch.float32.*autocast"):
        HF.decoupled_conv2d(x.double(), weight)
    with pytest.raises(
        TypeError, match=r"floating-point input, got torch.uint8.*x.float\(\) / 255"
    ):
        HF.decoupled_conv2d(x.byte(), weight)
    with pytest.raises(TypeError, match="one type"):
        HF.decoupled_linear(torch.randn(2, 3).double(), torch.randn(4, 3))


def test_workspace_stays_on_the_processor():
    x, weight = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)
    with torch.device("meta"):
        HF.decoupled_conv2d(x, weight, angular="linear")
    assert HF.decoupled_conv2d(x, weight, angular="linear").isfinite().all()


@pytest.mark.parametrize("angular", ANGULAR_KINDS)
def test_forward_mode_and_hessian_of_every_activation(angular):
    x = torch.randn(1, 2, 3, 4, dtype=torch.float64)
    weight = torch.randn(3, 2, 3, 3, dtype=torch.float64)

    def f(x):
        return HF.decoupled_conv2d(x, weight, magnitude="tanh", angular=angular).sum()

    direction = torch.randn_like(x)
    _, tangent = torch.func.jvp(f, (x,), (direction,))
    torch.testing.assert_close(tangent, (torch.func.grad(f)(x) * direction).sum())
    hessian = torch.func.jacrev(torch.func.grad(f))(x)
    torch.testing.assert_close(torch.func.hessian(f)(x), hessian)


@pytest.mark.parametrize("angular", ["cosine", "sigmoid"])
@pytest.mark.parametrize("magnitude", ["sphere", "linear", "segmented"])
def test_meta_tensors(magnitude, angular):
    x = torch.empty(2, 3, 8, 8, device="meta", requires_grad=True)
    weight = torch.empty(4, 3, 3, 3, device="meta", requires_grad=True)
    out = HF.decoupled_conv2d(x, weight, magnitude=magnitude, angular=angular)
    assert out.shape == (2, 4, 6, 6) and out.is_meta
    out.sum().backward()
    assert x.grad.shape == x.shape and weight.grad.shape == weight.shape
    assert HF.patch_norm(x, 3).shape == (2, 1, 6, 6)


@pytest.mark.parametrize("magnitude", ["tanh", "linear", "sphere"])
@pytest.mark.parametrize("name", ["bias", "scale", "radius", "k", "mean_norm"])
@pytest.mark.parametrize("shape", [(1,), (4,), (5, 1)])
def test_numbers_per_filter_of_another_shape_are_refused(name, magnitude, shape):
    x, weight, given = torch.randn(3, 4), torch.randn(5, 4), {name: torch.full(shape, 0.7)}
    with pytest.raises(ValueError, match=rf"expected {name} .*\(5,\).*got"):
        HF.decoupled_linear(x, weight, magnitude=magnitude, angular="sigmoid", **given)
    with pytest.raises(ValueError, match=rf"expected {name} .*\(5,\).*got"):
        HF.decoupled_conv1d(x[..., None], weight[..., None], magnitude=magnitude, **given)


@pytest.mark.parametrize("name", ["scale", "radius", "k", "mean_norm"])
def test_a_number_per_filter_and_a_single_one_have_gradients(name):
    for shape in ((5,),) if name == "scale" else ((5,), ()):
        x, weight = torch.randn(3, 4), torch.randn(5, 4)
        value = torch.full(shape, 0.7, requires_grad=True)
        HF.decoupled_linear(
            x, weight, magnitude="tanh", angular="sigmoid", **{name: value}
        ).sum().backward()
        assert value.grad.shape == shape and bool(value.grad.isfinite().all())
