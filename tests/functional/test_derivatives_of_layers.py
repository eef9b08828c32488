"""Derivatives that need plain operations: of derivatives, in batches, and of eager graphs."""

import pytest
import torch

import hypersphere as hs
from hypersphere.functional._kernels import autograd
from hypersphere.functional._kernels.decoupled.routes import force
from tolerances import close

OPERATORS = [("sphere", "cosine"), ("ball", "sigmoid"), ("tanh", "cosine"), ("log", "linear")]
CASES = {
    "image": ("DecoupledConv2d", (1, 2, 4, 4), {}),
    "groups": ("DecoupledConv2d", (1, 2, 4, 4), {"groups": 2}),
    "sequence": ("DecoupledConv1d", (1, 2, 6), {}),
    "rows": ("DecoupledLinear", (3, 4), {}),
}


def twins(case, magnitude, angular):
    """A layer in float32, the same in float64, and an input."""
    kind, shape, options = CASES[case]
    size = (3,) if "Conv" in kind else ()
    options = {"bias": True, "rescale": True, **options}

    def make(dtype):
        return getattr(hs.layers, kind)(
            shape[1], 4, *size, magnitude=magnitude, angular=angular, dtype=dtype, **options
        )

    own, wide = make(torch.float32), make(torch.float64)
    wide.load_state_dict(own.state_dict())
    return own, wide, torch.randn(shape)


def each(case, magnitude, angular):
    own, wide, x = twins(case, magnitude, angular)
    for training in (True, False):
        yield own.train(training), wide.train(training), x


def second(function, x):
    x = x.clone().requires_grad_()
    (grad,) = torch.autograd.grad(function(x).square().sum(), x, create_graph=True)
    return torch.autograd.grad(grad.square().sum(), x)[0]


def same(found, wide):
    close(found, wide.float(), scale=100 * max(1.0, float(wide.abs().max())))


jacobian, hessian = torch.autograd.functional.jacobian, torch.autograd.functional.hessian


@pytest.mark.parametrize("route", [None, "tiled", "whole"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("magnitude, angular", OPERATORS)
def test_batches_of_gradients(case, magnitude, angular, route):
    for own, wide, x in each(case, magnitude, angular):
        with force(route):
            found = jacobian(own, x, vectorize=True)
            of_loss = hessian(lambda x, own=own: own(x).square().sum(), x, vectorize=True)
        same(found, jacobian(wide, x.double()))
        same(of_loss, hessian(lambda x, wide=wide: wide(x).square().sum(), x.double()))


def test_batches_of_gradients_in_the_parameters():
    """By the older vmap of autograd, and by that of torch.func, over a graph that is there."""
    own, wide, x = twins("image", "tanh", "sigmoid")
    wanted = [x.requires_grad_(), *own.parameters()]
    out = own(x)
    each_output = torch.eye(out.numel()).view(-1, *out.shape)

    def gradients(grad):
        return torch.autograd.grad(out, wanted, grad, retain_graph=True)

    found = torch.func.vmap(gradients)(each_output)
    batch = torch.autograd.grad(out, wanted, each_output, is_grads_batched=True, retain_graph=True)
    given = x.detach().double().requires_grad_()
    wide_out, wide_wanted = wide(given), [given, *wide.parameters()]
    rows = [torch.autograd.grad(y, wide_wanted, retain_graph=True) for y in wide_out.flatten()]
    for one, other, exact in zip(found, batch, zip(*rows, strict=True), strict=True):
        same(one, torch.stack(exact))
        same(other, torch.stack(exact))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("magnitude, angular", OPERATORS)
def test_graphs_that_run_eagerly(case, magnitude, angular):
    for own, wide, x in each(case, magnitude, angular):
        torch._dynamo.reset()
        compiled = torch.compile(own, backend="eager")
        same(second(compiled, x), second(wide, x.double()))
        same(jacobian(compiled, x, vectorize=True), jacobian(wide, x.double()))
    compiled = torch.compile(wide, backend="eager")
    close(second(compiled, x.double()), second(wide, x.double()), scale=100)


@pytest.mark.parametrize("magnitude, angular", OPERATORS)
def test_zero_patches_have_second_derivatives(magnitude, angular):
    own, wide, x = twins("image", magnitude, angular)
    x[..., :3, :3] = 0
    torch._dynamo.reset()
    want = second(wide, x.double())
    assert want.isfinite().all()
    same(second(own, x), want)
    same(second(torch.compile(own, backend="eager"), x), want)


def test_a_backend_of_the_user_is_told_by_what_it_does():
    """Functions keep their own backward where AOTAutograd traces it."""
    from functorch.compile import nop
    from torch._dynamo.backends.common import aot_autograd

    graphs = []

    def keeps(graph, inputs):
        graphs.append(graph)
        return graph.forward

    def asks(x):
        return x + 1 if autograd.runs_eagerly() else x - 1

    for backend, eager in [
        (keeps, True),
        ("eager", True),
        ("aot_eager", False),
        (aot_autograd(fw_compiler=nop), False),
    ]:
        torch._dynamo.reset()
        assert float(torch.compile(asks, backend=backend)(torch.zeros(()))) == (1 if eager else -1)
    assert not autograd.runs_eagerly()
    torch._dynamo.reset()
    own, wide, x = twins("sequence", "log", "linear")
    same(second(torch.compile(own, backend=keeps), x), second(wide, x.double()))
    assert graphs
