"""A whole layer as one step of autograd, by the kernels in C++."""

import pytest
import torch

from hypersphere import functional as HF
from hypersphere import layers as hl
from hypersphere.functional._kernels import libraries
from tolerances import close

pytestmark = pytest.mark.skipif(
    libraries._compiler() is None, reason="no C++ compiler on this machine"
)

OPERATORS = {
    "sphere": {},
    "sigmoid, learned k": {"angular": hl.SigmoidAngular(learnable=True)},
    "log, rescaled": {"magnitude": "log", "angular": "linear", "rescale": True},
    "ball, fixed radius": {"magnitude": hl.BallMagnitude(radius=2.0, learn_radius=False)},
    "weighted": {"magnitude": "mixed", "weighted": "linear", "bias": True},
}


def steps(out):
    """The names of all steps of a graph."""
    found, waiting = set(), [out.grad_fn]
    while waiting:
        step = waiting.pop()
        if step is not None and step not in found:
            found.add(step)
            waiting += [before for before, _ in step.next_functions]
    return {step.name() for step in found}


def test_a_layer_is_one_step():
    x = torch.randn(2, 3, 6, 6, requires_grad=True)
    out = hl.SphereConv2d(3, 5, 3)(x)
    assert steps(out) == {"_NativeLayerBackward", "torch::autograd::AccumulateGrad"}
    # The mean of the norms needs them in the graph.
    assert "_NativeLayerBackward" not in steps(hl.TanhConv2d(3, 5, 3)(x))


def both(options, x, **geometry):
    """A layer and its twin in float64, with the gradients of everything."""
    layers = [
        hl.DecoupledConv2d(4, 6, 3, dtype=dtype, **geometry, **options)
        for dtype in (torch.float32, torch.float64)
    ]
    layers[1].load_state_dict(layers[0].state_dict())
    results = []
    for layer, own in zip(layers, (x, x.detach().double().requires_grad_()), strict=True):
        out = layer(own)
        grad = torch.linspace(-1, 1, out.numel(), dtype=own.dtype).view(out.shape)
        results.append([out.detach(), *torch.autograd.grad(out, [own, *layer.parameters()], grad)])
    return results


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    "geometry", [{"padding": 1}, {"stride": 2}, {"padding": (2, 0), "dilation": (2, 1)}], ids=str
)
def test_gradients(name, form, geometry):
    torch.manual_seed(0)
    x = torch.randn(3, 4, 9, 8).contiguous(memory_format=form)
    x[0, :, :6, :6] = 0  # zero patches
    found, expected = both(OPERATORS[name], x.requires_grad_(), **geometry)
    for one, exact in zip(found, expected, strict=True):
        close(one, exact.float(), scale=30 * float(exact.abs().max().clamp_min(1)))


def test_filters_with_channels_last_and_zero_filters():
    """A weight that lies otherwise has a gradient that lies so; that of a zero filter is 0."""
    x, weight = torch.randn(2, 4, 6, 6), torch.randn(5, 4, 3, 3)
    weight[1] = 0
    want = weight.clone().requires_grad_()
    last = weight.contiguous(memory_format=torch.channels_last).requires_grad_()
    grads = []
    for leaf in (want, last):
        out = HF.decoupled_conv2d(x, leaf, angular="linear")
        assert "_NativeLayerBackward" in steps(out)
        assert bool((out[:, 1] == 0).all())
        grads.append(torch.autograd.grad(out.square().sum(), leaf)[0])
        assert grads[-1].stride() == leaf.stride()
        assert not grads[-1][1].any()
    close(grads[0], grads[1], scale=30)


def test_a_transposed_view_goes_the_longer_way():
    x = torch.randn(2, 4, 6, 6).transpose(2, 3)
    weight = torch.randn(5, 4, 3, 3, requires_grad=True)
    out = HF.decoupled_conv2d(x, weight)
    close(out, HF.decoupled_conv2d(x.contiguous(), weight), scale=3)


def test_second_derivatives_of_the_filters():
    """Through directions and norms at once, against float64."""

    def penalty(x, weight, k):
        out = HF.decoupled_conv2d(x, weight, magnitude="log", angular="sigmoid", k=k, scale=2 * k)
        grads = torch.autograd.grad(out.square().sum(), (x, weight, k), create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in grads), (x, weight, k))

    torch.manual_seed(2)
    leaves = [torch.randn(1, 2, 4, 4), torch.randn(3, 2, 3, 3), torch.rand(3).add(0.5)]
    found = penalty(*(t.clone().requires_grad_() for t in leaves))
    wide = penalty(*(t.double().requires_grad_() for t in leaves))
    for one, exact in zip(found, wide, strict=True):
        close(one, exact.float(), scale=100 * float(exact.abs().max().clamp_min(1)))


def test_nothing_is_asked_twice():
    """A gradient of the filters alone, of the images alone, and of neither."""
    x, layer = torch.randn(2, 4, 6, 6), hl.SphereConv2d(4, 5, 3, angular="linear")
    (of_weight,) = torch.autograd.grad(layer(x).square().sum(), layer.weight)
    leaf = x.clone().requires_grad_()
    of_x, again = torch.autograd.grad(layer(leaf).square().sum(), (leaf, layer.weight))
    close(again, of_weight, scale=30)
    layer.requires_grad_(False)
    close(torch.autograd.grad(layer(leaf).square().sum(), leaf)[0], of_x, scale=30)
    assert not layer(x).requires_grad


@pytest.mark.parametrize("angular", ["linear", "sigmoid"])
def test_a_retained_graph_under_autocast(angular):
    """What is computed again there stays float32, as the kernels take it."""
    x, w = torch.randn(64, 33, requires_grad=True), torch.randn(129, 33, requires_grad=True)
    loss = HF.decoupled_linear(x, w, angular=angular).sum()
    plain = torch.autograd.grad(loss, (x,), retain_graph=True)
    with torch.autocast("cpu"):
        again = torch.autograd.grad(loss, (x,), retain_graph=True)
    close(again[0], plain[0], scale=10)
