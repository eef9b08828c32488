"""The kernels in C++ inside compiled graphs: where they are called, and that they are right."""

import pytest
import torch
from torch import nn

from hypersphere import functional as HF
from hypersphere import layers as hl
from hypersphere.functional._kernels import libraries
from hypersphere.functional._kernels.decoupled.native import for_compiler
from hypersphere.functional._kernels.decoupled.routes import force
from tolerances import close

pytestmark = [
    pytest.mark.skipif(libraries._compiler() is None, reason="no C++ compiler on this machine"),
    pytest.mark.skipif(not for_compiler._CAN_NAME, reason="this compiler takes no formulas"),
]

OPERATORS = {
    "sphere": {},
    "log, bias": {"magnitude": "log", "angular": "linear", "bias": True},
    "tanh, learned k, rescaled": {
        "magnitude": "tanh",
        "angular": hl.SigmoidAngular(learnable=True),
        "rescale": True,
    },
    "ball, fixed radius": {"magnitude": hl.BallMagnitude(radius=2.0, learn_radius=False)},
}


def conv(dtype=torch.float32, groups=1, **options):
    torch.manual_seed(3)
    return hl.DecoupledConv2d(4, 6, 3, padding=1, groups=groups, dtype=dtype, **options)


def names_in_graph(module, *inputs):
    """The operators of this package in the graph that the tracer makes."""
    found = []

    def look(graph, examples):
        targets = [str(node.target) for node in graph.graph.nodes]
        found.extend(name.split(".")[1] for name in targets if name.startswith("hypersphere."))
        return graph

    torch._dynamo.reset()
    torch.compile(module, fullgraph=True, backend=look)(*inputs)
    return sorted(found)


def gradients(module, call, x):
    out = call(x)
    return out, torch.autograd.grad(out.square().sum(), [x, *module.parameters()])


def test_is_called_where_it_can(monkeypatch):
    x = torch.randn(2, 4, 6, 6)
    both = ["decoupled_norms", "decoupled_operator"]
    assert names_in_graph(conv(angular="linear"), x) == both
    assert names_in_graph(conv(magnitude="tanh"), x) == both
    assert names_in_graph(conv(), x) == ["decoupled_norms"]  # a product is the compiler's own
    assert names_in_graph(hl.SphereLinear(4, 3, angular="linear"), torch.randn(5, 4)) == [
        "decoupled_operator"
    ]
    # What no kernel has a form of keeps its formula, and takes the norms.
    assert names_in_graph(conv(angular=hl.CustomAngular(torch.sin)), x) == ["decoupled_norms"]
    assert names_in_graph(conv(torch.float64, angular="linear"), x.double()) == []
    assert names_in_graph(conv(groups=2, angular="linear"), x) == []
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert names_in_graph(conv(angular="linear"), x) == []
    with force("tiled"):
        assert names_in_graph(conv(angular="linear"), x) == []
    monkeypatch.setenv("HYPERSPHERE_NATIVE", "0")
    assert names_in_graph(conv(angular="linear"), x) == []


def test_exported_programs_have_plain_operations():
    for strict in (False, True):
        program = torch.export.export(
            conv(angular="linear"), (torch.randn(2, 4, 6, 6),), strict=strict
        )
        assert not [n for n in program.graph.nodes if "hypersphere" in str(n.target)]


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_is_the_eager_layer(name, form):
    """In training with all gradients, and in evaluation without."""
    own, twin = conv(**OPERATORS[name]), conv(**OPERATORS[name])
    torch._dynamo.reset()
    call = torch.compile(twin, fullgraph=True, backend="aot_eager")
    x = torch.randn(3, 4, 7, 6).contiguous(memory_format=form)
    x[0, :, :4, :4] = 0  # a zero patch
    x.requires_grad_()
    want, expected = gradients(own, own, x)
    got, found = gradients(twin, call, x)
    close(got, want, scale=10)
    for one, other in zip(found, expected, strict=True):
        close(one, other, scale=30 * float(other.abs().max().clamp_min(1)))
    own.eval(), twin.eval()
    with torch.no_grad():
        close(call(x), own(x), scale=10)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # the compiler's own
def test_in_the_layouts_of_the_whole_compiler():
    """Which has convolutions with the channels last, and images in planes around them."""
    options = OPERATORS["tanh, learned k, rescaled"]
    own, twin = conv(**options), conv(**options)
    torch._dynamo.reset()
    call = torch.compile(twin, fullgraph=True)
    x = torch.randn(3, 4, 7, 6, requires_grad=True)
    want, expected = gradients(own, own, x)
    got, found = gradients(twin, call, x)
    close(got, want, scale=10)
    for one, other in zip(found, expected, strict=True):
        close(one, other, scale=30 * float(other.abs().max().clamp_min(1)))


def test_one_graph_for_all_sizes():
    own = conv(magnitude="mixed", angular="sigmoid")
    torch._dynamo.reset()
    with torch._dynamo.config.patch(error_on_recompile=True):
        call = torch.compile(own, fullgraph=True, backend="aot_eager", dynamic=True)
        for batch, height, width in ((3, 7, 6), (5, 9, 8), (2, 4, 11)):
            x = torch.randn(batch, 4, height, width, requires_grad=True)
            close(gradients(own, call, x), gradients(own, own, x), scale=300)


def test_a_first_layer_needs_no_gradient_of_its_images():
    own, x = conv(angular="sigmoid"), torch.randn(2, 4, 6, 6)
    torch._dynamo.reset()
    call = torch.compile(own, fullgraph=True, backend="aot_eager")
    got = torch.autograd.grad(call(x).square().sum(), own.weight)
    close(got, torch.autograd.grad(own(x).square().sum(), own.weight), scale=30)


def test_each_operator_has_a_library_of_its_own():
    """Constants of the formulas are in the name of the library."""
    first, second = (conv(magnitude=hl.LogMagnitude(alpha=a), angular="linear") for a in (1.0, 2.5))
    net, x = nn.Sequential(first, nn.Conv2d(6, 4, 1), second), torch.randn(2, 4, 6, 6)
    torch._dynamo.reset()
    close(torch.compile(net, fullgraph=True, backend="aot_eager")(x), net(x), scale=10)


def test_the_operators_keep_their_word():
    """What the compiler is told of shapes, types and gradients is what the kernels do."""
    from hypersphere.functional._kernels.decoupled.native import opaque

    h, g = HF.magnitude_function("tanh"), HF.angular_function("sigmoid")
    library = opaque.operator_library(h, g, (1.0).hex(), (0.0).hex(), True)
    s, norm = torch.randn(2, 6, 5, 4), torch.rand(2, 1, 5, 4).add(0.5)
    numbers = [torch.rand(6).add(0.5) for _ in range(4)]
    leaves = [t.requires_grad_() for t in (s, norm, *numbers)]
    last = s.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
    gaps = torch.randn(2, 6, 5, 8)[..., ::2].requires_grad_()
    for given in (s, last, gaps):
        torch.library.opcheck(opaque.opaque_operator, (given, *leaves[1:], library))
    x = torch.randn(2, 3, 7, 6, requires_grad=True)
    torch.library.opcheck(opaque.opaque_norms, (x, [3, 2], [2, 1], [1, 0], [1, 2]))
