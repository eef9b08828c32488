"""torch.compile in one graph, torch.export, ONNX, checkpointing, several processes, memory."""

import copy
import warnings

import pytest
import torch
from torch import nn

from hypersphere import layers as hl
from processes import run_ranks
from tolerances import close

OPERATORS = {
    "sphere cosine": {},
    "sphere linear": {"angular": "linear"},
    "tanh sigmoid, learned": {"magnitude": "tanh", "angular": hl.SigmoidAngular(learnable=True)},
    "segmented square cosine": {"magnitude": "segmented", "angular": "square_cosine"},
    "log, rescaled": {"magnitude": "log", "rescale": True},
    "ball, weighted": {"magnitude": "ball", "weighted": "nonlinear"},
}


def network():
    """All of them in one net, so that one compilation meets them all."""
    layers = [
        hl.DecoupledConv2d(4, 4, 3, padding=1, groups=1 + i % 2, bias=True, **operator)
        for i, operator in enumerate(OPERATORS.values())
    ]
    return nn.Sequential(*layers, nn.Flatten(), hl.MixLinear(4 * 36, 3, angular="linear"))


def gradients(net, call, x):
    x = x.clone().requires_grad_()
    out = call(x)
    wanted = [x, *net.parameters()]
    return out, torch.autograd.grad(out.square().sum(), wanted)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # the compiler's own
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_in_one_graph(backend):
    """Every operator through the tracer; through the C++ compiler, which takes its time, one."""
    net = network()
    x = torch.randn(3, 4, 6, 6)
    if backend == "inductor":
        net = net[0]
    twin = copy.deepcopy(net)
    want, want_gradients = gradients(net, net, x)
    call = torch.compile(twin, fullgraph=True, backend=backend)
    got, got_gradients = gradients(twin, call, x)
    close(got, want, scale=10)
    for a, b in zip(got_gradients, want_gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    for (name, a), b in zip(twin.named_buffers(), net.buffers(), strict=True):
        torch.testing.assert_close(a, b, msg=name)  # the running means moved, too


@pytest.mark.slow
def test_torch_export_and_onnx(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    net = network().eval()
    x = torch.randn(3, 4, 6, 6)
    with torch.no_grad():
        want = net(x)
    program = torch.export.export(net, (x,))
    close(program.module()(x), want)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own
        onnx_program = torch.onnx.export(net, (x,), dynamo=True, verbose=False)
        onnx_program.save(tmp_path / "net.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    (got,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    close(torch.from_numpy(got), want, scale=10)


def test_activation_checkpointing():
    net = nn.Sequential(hl.SphereConv2d(3, 4, 3, padding=1), nn.ReLU(inplace=True))
    x = torch.randn(2, 3, 6, 6)
    want = gradients(net, net, x)[1]
    got = gradients(
        net, lambda x: torch.utils.checkpoint.checkpoint(net, x, use_reentrant=False), x
    )[1]
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", OPERATORS)
def test_saves_one_output_beyond_the_convolution(name):
    filters = 16
    layer = hl.DecoupledConv2d(16, filters, 3, padding=1, **OPERATORS[name])
    x = torch.randn(8, 16, 24, 24, requires_grad=True)
    kept = {}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = layer(x)
    for own in (x, *layer.parameters()):
        kept.pop(own.untyped_storage().data_ptr(), None)
    output = out.untyped_storage().nbytes()
    # One output, and norms of one channel (twice where the batch mean is needed), and the filters.
    assert sum(kept.values()) <= output * (1 + 3 / filters)


SYNCHRONIZED = """
import sys, torch
from pathlib import Path
from torch import distributed
import hypersphere.layers as hl
from processes import leave
rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
place = f"file://{folder}/rendezvous"
distributed.init_process_group("gloo", init_method=place, rank=rank, world_size=world)
x, state = torch.load(folder / "start.pt")
layer = hl.TanhConv2d(3, 4, 3, magnitude=hl.TanhMagnitude(sync=True))
layer.load_state_dict(state)
mine = x[[0]] if rank == 0 else x[1:]  # unequal shares: 1 and 2 images
mine.requires_grad_()
out = layer(mine)
(out * torch.arange(1.0, 5.0)[:, None, None]).sum().backward()
gradient = layer.weight.grad
distributed.all_reduce(gradient)
found = (out.detach(), mine.grad, gradient, layer.operator.magnitude.running.mean)
torch.save(found, folder / f"{rank}.pt")
leave()
"""


@pytest.mark.slow
def test_synchronized_over_processes(tmp_path):
    """A batch split over two processes gives the outputs and gradients of the whole batch."""
    layer = hl.TanhConv2d(3, 4, 3)
    x = torch.randn(3, 3, 6, 6)
    torch.save((x, layer.state_dict()), tmp_path / "start.pt")
    (tmp_path / "run.py").write_text(SYNCHRONIZED)
    run_ranks(tmp_path / "run.py", 2, tmp_path)
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)]
    (out0, grad0, weight0, mean0), (out1, grad1, _, mean1) = found
    x.requires_grad_()
    out = layer(x)
    (out * torch.arange(1.0, 5.0)[:, None, None]).sum().backward()
    torch.testing.assert_close(torch.cat([out0, out1]), out)
    torch.testing.assert_close(torch.cat([grad0, grad1]), x.grad)
    torch.testing.assert_close(weight0, layer.weight.grad)
    torch.testing.assert_close(mean0, layer.operator.magnitude.running.mean)
    assert mean0 == mean1


@pytest.mark.parametrize("magnitude", ["sphere", "tanh"])
def test_activation_checkpointing_counts_a_batch_once(magnitude):
    for reentrant in (False, True):
        torch.manual_seed(0)
        plain = nn.Sequential(hl.DecoupledConv2d(3, 4, 3, magnitude=magnitude), nn.ReLU())
        held = copy.deepcopy(plain)
        x = torch.randn(2, 3, 6, 6, requires_grad=True)
        for _ in range(3):
            plain(x).sum().backward()
            torch.utils.checkpoint.checkpoint(held, x, use_reentrant=reentrant).sum().backward()
        for (name, one), other in zip(
            plain.state_dict().items(), held.state_dict().values(), strict=True
        ):
            assert torch.equal(one, other), name


@pytest.mark.parametrize("angular", ["cosine", "sigmoid"])
def test_threads_share_a_retained_graph(angular):
    from concurrent.futures import ThreadPoolExecutor

    layer = hl.TanhConv2d(3, 8, 3, angular=angular)
    x = torch.randn(16, 3, 24, 24, requires_grad=True)
    out = layer(x).square().sum()
    wanted = [x, layer.weight]

    def gradients(_):
        return torch.autograd.grad(out, wanted, retain_graph=True)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(gradients, range(12)))
    for one in found[1:]:
        close(one, found[0], scale=10)


def test_a_batchnorm_is_not_folded_into_directions():
    layer, norm = hl.SphereConv2d(3, 4, 3).eval(), nn.BatchNorm2d(4).eval()
    with pytest.raises(TypeError, match="SphereConv2d cannot absorb a BatchNorm"):
        torch.nn.utils.fusion.fuse_conv_bn_eval(layer, norm)
    with pytest.raises(TypeError, match="DecoupledLinear cannot absorb a BatchNorm"):
        torch.nn.utils.fusion.fuse_linear_bn_eval(
            hl.DecoupledLinear(3, 4, bias=True).eval(), nn.BatchNorm1d(4).eval()
        )
    layer.weight = nn.Parameter(torch.randn(4, 3, 3, 3))  # a new weight is welcome
    copy.deepcopy(layer)


def test_a_symbolic_trace_has_a_layer_as_one_node():
    net = nn.Sequential(
        hl.TanhConv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), hl.DecoupledLinear(64, 5)
    ).eval()
    traced = torch.fx.symbolic_trace(net)
    assert [n.target for n in traced.graph.nodes if n.op == "call_module"] == ["0", "1", "2", "3"]
    x = torch.randn(2, 3, 6, 6)
    close(traced(x), net(x))
    traced.graph.lint()
    alone = torch.fx.symbolic_trace(net[0])
    assert [n.target for n in alone.graph.nodes if n.op == "call_module"] == ["_layer"]
    close(alone(x), net[0](x))
    alone.graph.lint()


@pytest.mark.parametrize("layer", [hl.DecoupledConv2d(3, 4, 3), hl.DecoupledLinear(6, 5)])
def test_a_graph_of_a_tracer_fits_the_layer_that_was_traced(layer):
    alone = torch.fx.GraphModule(layer, torch.fx.Tracer().trace(layer))
    x = torch.randn(2, 3, 6, 6)
    for module in (alone, copy.deepcopy(alone), torch.fx.symbolic_trace(alone)):
        close(module(x), layer(x))
    assert dict(alone.named_parameters())["_layer.weight"] is layer.weight
    assert list(layer.state_dict()) == ["weight"]


@pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:DeprecationWarning")
def test_scripts_are_refused_and_traces_work():
    net = nn.Sequential(hl.TanhConv2d(3, 4, 3, angular="linear"), nn.ReLU()).eval()
    with pytest.raises(TypeError, match=r"torch.jit.script cannot read TanhConv2d.*torch.export"):
        torch.jit.script(net)
    x = torch.randn(2, 3, 6, 6)
    traced = torch.jit.trace(net, x)
    close(traced(x + 1), net(x + 1))
    other = torch.randn(3, 3, 9, 8)  # another size of images
    close(traced(other), net(other))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:DeprecationWarning")
def test_traces_are_silent():
    """Whatever the layer, in training and in evaluation; the checks of shapes still speak."""
    layers = {
        "batches": network()[:-2],
        "same": hl.SphereConv2d(4, 6, 4, padding="same", angular="linear"),
        "reflected": hl.BallConv2d(4, 6, 3, padding=1, padding_mode="reflect"),
        "own": hl.DecoupledConv2d(4, 6, 3, angular=lambda c: c + 0.5),
    }
    x = torch.randn(2, 4, 6, 6)
    layers["rows"] = nn.Sequential(nn.Flatten(0, 2), hl.TanhLinear(6, 3, angular="sigmoid"))
    for name, layer in layers.items():
        traced = torch.jit.trace(layer.train(), x, check_trace=False)
        close(traced(x), layer(x), scale=3)
        traced = torch.jit.trace(layer.eval(), x)
        close(traced(x + 1), layer(x + 1), scale=3)
        if name != "rows":
            other = torch.randn(3, 4, 9, 8)
            close(traced(other), layer(other), scale=3)
    with pytest.raises(ValueError, match=r"got \(2, 5, 6, 6\): in_channels is 4"):
        torch.jit.trace(layers["same"], torch.randn(2, 5, 6, 6))


@pytest.mark.parametrize("angular", ["linear", "cosine", "sigmoid", "square_cosine"])
@pytest.mark.parametrize("magnitude", ["sphere", "tanh", "segmented", "log"])
def test_forward_mode_of_layers_in_training(magnitude, angular):
    layer = hl.DecoupledConv2d(2, 3, 2, magnitude=magnitude, angular=angular).double()
    x, v = torch.randn(2, 1, 2, 4, 4, dtype=torch.float64).unbind(0)
    _, tangent = torch.func.jvp(layer, (x,), (v,))
    step = 1e-6
    with torch.no_grad():
        change = (layer(x + step * v) - layer(x - step * v)) / (2 * step)
    torch.testing.assert_close(tangent, change, rtol=1e-5, atol=1e-7)
    hessian = torch.func.hessian(lambda x: layer(x).square().sum())(x)
    assert hessian.shape == (*x.shape, *x.shape) and hessian.isfinite().all()


@pytest.mark.parametrize("angular", ["linear", "sigmoid"])
def test_the_meta_device_gives_shapes(angular):
    layer = hl.TanhConv2d(3, 4, 3, angular=angular, device="meta")
    x = torch.empty(2, 3, 8, 8, device="meta")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x).shape == (2, 4, 6, 6)
    assert hl.SphereLinear(3, 5, device="meta")(torch.empty(2, 3, device="meta")).shape == (2, 5)
