"""Every preset: against the equations, at the edges, in low precision, compiled, saved."""

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import hypersphere.heads as heads
from hypersphere import registry
from hypersphere.functional import angular
from hypersphere.heads import LambdaAnnealing, Margin, MarginHead
from tolerances import close

from reference import margins as reference

DIM, CLASSES = 6, 9

# name -> (constructor, settings of the reference)
PRESETS = {
    "softmax": (lambda: heads.SoftmaxHead(DIM, CLASSES), {"unit": False}),
    "softmax no bias": (lambda: heads.SoftmaxHead(DIM, CLASSES, bias=False), {"unit": False}),
    "l_softmax 2": (lambda: heads.LSoftmaxHead(DIM, CLASSES, m=2), {"unit": False, "m": 2}),
    "l_softmax 3.5": (lambda: heads.LSoftmaxHead(DIM, CLASSES, m=3.5), {"unit": False, "m": 3.5}),
    "w_softmax": (lambda: heads.WSoftmaxHead(DIM, CLASSES), {}),
    "w_softmax linear": (lambda: heads.WSoftmaxHead(DIM, CLASSES, "linear"), {"kind": "linear"}),
    "w_softmax sigmoid": (
        lambda: heads.WSoftmaxHead(DIM, CLASSES, "sigmoid", k=0.25, learn_k=True),
        {"kind": "sigmoid", "k": 0.25},
    ),
    "w_softmax bias": (lambda: heads.WSoftmaxHead(DIM, CLASSES, bias=True), {}),
    "s_softmax": (lambda: heads.SSoftmaxHead(DIM, CLASSES, scale=10.0), {"scale": 10.0}),
    "s_softmax learned": (
        lambda: heads.SSoftmaxHead(DIM, CLASSES, scale=10.0, angular="linear", learn_scale=True),
        {"scale": 10.0, "kind": "linear"},
    ),
    "a_softmax": (lambda: heads.ASoftmaxHead(DIM, CLASSES, m=4), {"m": 4}),
    "a_softmax s": (
        lambda: heads.ASoftmaxHead(DIM, CLASSES, m=1.6, scale=20.0),
        {"m": 1.6, "scale": 20.0},
    ),
    "ga cosine": (lambda: heads.GASoftmaxHead(DIM, CLASSES, 3, "cosine"), {"m": 3}),
    "ga linear": (lambda: heads.GASoftmaxHead(DIM, CLASSES, 4), {"m": 4, "kind": "linear"}),
    "ga sigmoid": (
        lambda: heads.GASoftmaxHead(DIM, CLASSES, 2, "sigmoid", k=0.5),
        {"m": 2, "kind": "sigmoid", "k": 0.5},
    ),
    "am_softmax": (
        lambda: heads.AMSoftmaxHead(DIM, CLASSES, m=0.3, scale=12.0),
        {"subtract": 0.3, "scale": 12.0},
    ),
    "arcface": (
        lambda: heads.ArcFaceHead(DIM, CLASSES, m=0.5, scale=12.0),
        {"shift": 0.5, "scale": 12.0},
    ),
}


@pytest.mark.parametrize("name", ["softmax", "w_softmax sigmoid", "a_softmax s", "arcface"])
def test_scores_are_exported_for_any_number_of_rows(name):
    head, rows = PRESETS[name][0]().eval(), torch.export.Dim("rows", min=1)
    x = torch.randn(5, DIM)
    program = torch.export.export(head, (x[:2],), dynamic_shapes=({0: rows},))
    for count in (1, 5):
        close(program.module()(x[:count]), head(x[:count]))


@pytest.mark.parametrize("name", PRESETS)
def test_preset_is_its_equation(name):
    make, settings = PRESETS[name]
    head = make().double()
    if head.bias is not None:
        torch.nn.init.normal_(head.bias)
    x, y = torch.randn(7, DIM, dtype=torch.float64), torch.randint(CLASSES, (7,))
    bias = None if head.bias is None else head.bias.detach()
    w = head.weight.detach()
    tolerance = {"rtol": 1e-6, "atol": 1e-6}  # k and s are float32 until .double()
    torch.testing.assert_close(
        head(x).detach(),
        reference.logits(x, w, None, bias=bias, **_without_margin(settings)),
        **tolerance,
    )
    scores = reference.logits(x, w, y, bias=bias, **settings)
    torch.testing.assert_close(head(x, y).detach(), scores, **tolerance)
    assert head.loss(x, y).item() == pytest.approx(reference.cross_entropy(scores, y), rel=1e-6)

    head.annealing = LambdaAnnealing(base=4.0, gamma=0.0)
    head.annealing.minimum = 0.0
    scores = reference.logits(x, w, y, bias=bias, lam=4.0, **settings)
    torch.testing.assert_close(head(x, y).detach(), scores, **tolerance)
    assert head.loss(x, y).item() == pytest.approx(reference.cross_entropy(scores, y), rel=1e-6)


@pytest.mark.parametrize("name", PRESETS)
def test_loss_is_the_cross_entropy_of_the_logits_gradients_too(name):
    head = PRESETS[name][0]()
    head.chunk = 4
    x, y = torch.randn(7, DIM, requires_grad=True), torch.randint(CLASSES, (7,))
    parts = [x, *head.parameters()]
    fused, dense = head.loss(x, y), F.cross_entropy(head(x, y), y)
    torch.testing.assert_close(fused, dense)
    for got, expected in zip(
        torch.autograd.grad(fused, parts), torch.autograd.grad(dense, parts), strict=True
    ):
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("child", "parent"),
    [
        (heads.LSoftmaxHead(DIM, CLASSES, m=1), heads.SoftmaxHead(DIM, CLASSES, bias=False)),
        (heads.ASoftmaxHead(DIM, CLASSES, m=1), heads.WSoftmaxHead(DIM, CLASSES)),
        (
            heads.GASoftmaxHead(DIM, CLASSES, 1, "linear"),
            heads.WSoftmaxHead(DIM, CLASSES, "linear"),
        ),
        (heads.AMSoftmaxHead(DIM, CLASSES, m=0), heads.SSoftmaxHead(DIM, CLASSES)),
        (heads.ArcFaceHead(DIM, CLASSES, m=0), heads.SSoftmaxHead(DIM, CLASSES)),
    ],
    ids=["l_softmax", "a_softmax", "ga_softmax", "am_softmax", "arcface"],
)
def test_without_margin_a_head_is_its_parent(child, parent):
    child.load_state_dict(parent.state_dict())
    x, y = torch.randn(5, DIM), torch.randint(CLASSES, (5,))
    close(child(x, y), parent(x, y))
    close(child.loss(x, y), parent.loss(x, y))


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("gradient", ["exact", "detached"])
@pytest.mark.parametrize("name", PRESETS)
def test_finite_at_the_edges(name, gradient, autocast):
    head = PRESETS[name][0]()
    head.gradient = gradient
    with torch.no_grad():
        head.weight[4] = 0.0  # a class without direction
    w = head.weight.detach()
    x = torch.stack([torch.zeros(DIM), 5 * w[1], -3 * w[2], w[3] * 1e-20, torch.randn(DIM), w[0]])
    x, y = x.requires_grad_(), torch.tensor([0, 1, 2, 3, 4, 5])
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        given = x @ torch.eye(DIM)  # what a layer under autocast hands over
        results = head.loss(given, y), F.cross_entropy(head(given, y), y)
    assert (given.dtype == torch.bfloat16) == autocast
    for loss in results:
        assert loss.dtype == torch.float32 and loss.isfinite()
        for gradient_ in torch.autograd.grad(loss, [x, *head.parameters()], retain_graph=True):
            assert gradient_.dtype == torch.float32 and gradient_.isfinite().all()
    # at theta = 0 an angle is known to the root of the precision, by either way of computing it
    torch.testing.assert_close(*results, rtol=2e-4, atol=1e-4)


def test_autocast_trains_float32_master_weights():
    head, backbone = heads.ASoftmaxHead(DIM, CLASSES), torch.nn.Linear(DIM, DIM)
    optimizer = torch.optim.SGD([*head.parameters(), *backbone.parameters()], lr=0.1)
    x, y = torch.randn(32, DIM), torch.randint(CLASSES, (32,))
    before = head.weight.detach().clone()
    for _ in range(3):
        with torch.autocast("cpu", torch.bfloat16):
            loss = head.loss(backbone(x), y)
        loss.backward()
        optimizer.step()
    assert head.weight.dtype == torch.float32 and head.weight.grad.dtype == torch.float32
    change = (head.weight - before).detach()
    assert change.abs().max() > 0
    assert not torch.equal(change.bfloat16().float(), change)  # finer than bfloat16 steps


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_heads_in_16_bits(dtype):
    head = heads.ArcFaceHead(DIM, CLASSES, scale=10.0).to(dtype)
    x, y = torch.randn(4, DIM, dtype=dtype), torch.randint(CLASSES, (4,))
    assert head(x).dtype == dtype
    loss = head.loss(x, y)
    wide = heads.ArcFaceHead(DIM, CLASSES, scale=10.0)
    wide.load_state_dict(head.state_dict())
    assert loss.item() == pytest.approx(wide.loss(x.float(), y).item(), rel=1e-5)
    loss.backward()
    assert head.weight.grad.dtype == dtype


def test_one_class_and_one_sample():
    head = heads.ArcFaceHead(DIM, 1)
    x = torch.randn(1, DIM, requires_grad=True)
    loss = head.loss(x, torch.tensor([0]))
    loss.backward()
    assert loss.item() == 0 and (x.grad == 0).all() and (head.weight.grad == 0).all()
    assert heads.SoftmaxHead(DIM, CLASSES).loss(x.detach(), torch.tensor([3])).isfinite()


def test_caffe_keeps_unit_rows():
    head = heads.ASoftmaxHead(DIM, CLASSES, gradient="caffe")
    same = heads.ASoftmaxHead(DIM, CLASSES)
    same.load_state_dict(head.state_dict())
    x, y = torch.randn(5, DIM), torch.randint(CLASSES, (5,))
    first = head.loss(x, y)
    torch.testing.assert_close(first, same.loss(x, y))
    (first + head.loss(x, y)).backward()  # two forwards before the backward
    with torch.no_grad():
        head.weight -= 0.5 * head.weight.grad
    head.loss(x, y)
    torch.testing.assert_close(head.weight.norm(dim=1), torch.ones(CLASSES))


def test_own_psi_and_own_g():
    psi = lambda cos: cos - 0.3 * (1 - cos)  # noqa: E731
    assert heads.check_margin(psi)
    head = MarginHead(DIM, CLASSES, psi, scale=16.0, angular=torch.tanh)
    x, y = torch.randn(5, DIM), torch.randint(CLASSES, (5,))
    torch.testing.assert_close(head.loss(x, y), F.cross_entropy(head(x, y), y))


def test_any_module_as_g_learns():
    class Bent(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Parameter(torch.tensor(0.5))

        def forward(self, cos):
            return self.a * cos + (1 - self.a) * cos**3

    head = MarginHead(DIM, CLASSES, scale=16.0, angular=Bent())
    head.loss(torch.randn(5, DIM), torch.randint(CLASSES, (5,))).backward()
    assert "angular.a" in head.state_dict() and head.angular.a.grad.abs() > 0


def test_nothing_but_the_class_weights_is_decayed():
    from hypersphere.layers import SigmoidAngular
    from hypersphere.training.optimizers import optimizer_groups as parameter_groups

    head = heads.WSoftmaxHead(DIM, CLASSES, SigmoidAngular(learnable=True), bias=True)
    net = torch.nn.Sequential(torch.nn.Identity(), head)
    decay = {
        id(p): group["weight_decay"]
        for group in parameter_groups(net, weight_decay=0.1)
        for p in group["params"]
    }
    assert decay.pop(id(head.weight)) == decay.pop(id(head.bias)) == 0.1
    assert list(decay.values()) == [0.0]  # k


def test_learned_numbers_stay_positive_and_out_of_weight_decay():
    head = heads.SSoftmaxHead(DIM, CLASSES, 5.0, "sigmoid", k=0.3, learn_scale=True, learn_k=True)
    assert head.scale.item() == pytest.approx(5.0) and head.k.item() == pytest.approx(0.3)
    assert (
        set(head.no_weight_decay) == {"log_scale", "log_k"} <= dict(head.named_parameters()).keys()
    )
    with torch.no_grad():
        head.log_scale -= 10
    assert head.scale > 0


# the compiler itself uses what it deprecates
@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("a_softmax", "aot_eager"),
        pytest.param("w_softmax sigmoid", "aot_eager", marks=pytest.mark.slow),
        pytest.param("arcface sampled", "aot_eager", marks=pytest.mark.slow),
        pytest.param("a_softmax", "inductor", marks=pytest.mark.slow),
    ],
)
def test_compiles_without_graph_breaks_or_recompiles(name, backend):
    torch._dynamo.reset()
    if name == "arcface sampled":
        head = heads.ArcFaceHead(DIM, 40, sample=1.0)
    else:
        head = PRESETS[name][0]()
    head.annealing = LambdaAnnealing(base=10.0)
    compiled = torch.compile(lambda x, y: head.loss(x, y), fullgraph=True, backend=backend)
    logits = torch.compile(lambda x, y: head(x, y), fullgraph=True, backend=backend)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(3):
            x, y = torch.randn(5, DIM, requires_grad=True), torch.randint(CLASSES, (5,))
            parts = [x, *head.parameters()]
            loss, expected = compiled(x, y), head.loss(x, y)
            torch.testing.assert_close(loss, expected)
            for a, b in zip(
                torch.autograd.grad(loss, parts), torch.autograd.grad(expected, parts), strict=True
            ):
                close(a, b, scale=10)
            head.annealing.step()
    torch.testing.assert_close(logits(x, y), head(x, y))


@pytest.mark.slow
@pytest.mark.parametrize("gradient", ["detached", "caffe"])
def test_other_gradients_compile(gradient):
    torch._dynamo.reset()
    head = heads.ASoftmaxHead(DIM, CLASSES, gradient=gradient)
    x, y = torch.randn(5, DIM, requires_grad=True), torch.randint(CLASSES, (5,))
    compiled = torch.compile(lambda x, y: head.loss(x, y), fullgraph=True, backend="aot_eager")
    got, expected = compiled(x, y), head.loss(x, y)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(*(torch.autograd.grad(v, x)[0] for v in (got, expected)))


@pytest.mark.slow
def test_own_callables_compile():
    torch._dynamo.reset()
    head = MarginHead(DIM, CLASSES, lambda c: c - 0.2, angular=lambda c: c**3)
    x, y = torch.randn(5, DIM, requires_grad=True), torch.randint(CLASSES, (5,))
    compiled = torch.compile(lambda x, y: head.loss(x, y), fullgraph=True, backend="aot_eager")
    got, expected = compiled(x, y), head.loss(x, y)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(*(torch.autograd.grad(v, x)[0] for v in (got, expected)))


def test_scores_can_be_exported_and_heads_copied():
    head = heads.ArcFaceHead(DIM, CLASSES).eval()
    x = torch.randn(4, DIM)
    program = torch.export.export(head, (x,))
    torch.testing.assert_close(program.module()(x), head(x))
    assert torch.equal(copy.deepcopy(head)(x), head(x))


def test_sampling_is_for_training_only():
    head = heads.ArcFaceHead(DIM, 50, sample=0.2)
    x, y = torch.randn(4, DIM), torch.randint(50, (4,))
    assert head.loss(x, y) != head.loss(x, y)  # other classes each time
    head.eval()
    assert head.loss(x, y) == head.loss(x, y)
    close(head.loss(x, y), F.cross_entropy(head(x, y), y))


def test_a_small_problem_is_learned_with_annealing():
    draw = torch.Generator().manual_seed(0)
    y = torch.randint(5, (200,), generator=draw)
    x = torch.randn(5, 4, generator=draw)[y] + 0.2 * torch.randn(200, 4, generator=draw)
    backbone, head = torch.nn.Linear(4, 4), heads.ASoftmaxHead(4, 5, m=4)
    head.annealing = LambdaAnnealing(base=100.0, gamma=0.1, minimum=1.0)
    optimizer = torch.optim.Adam([*backbone.parameters(), *head.parameters()], lr=0.03)
    for _ in range(150):
        optimizer.zero_grad()
        head.loss(backbone(x), y).backward()
        optimizer.step()
        head.annealing.step()
    assert (head(backbone(x)).argmax(1) == y).float().mean() > 0.97


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MarginHead(0, 3), "in_features >= 1"),
        (lambda: MarginHead(3, 3, scale=-1.0), "scale is None for"),
        (lambda: MarginHead(3, 3, learn_scale=True), "needs a scale to start from"),
        (lambda: MarginHead(3, 3, learn_k=True), "angular='sigmoid'.*'cosine' is not"),
        (
            lambda: heads.ASoftmaxHead(3, 3)(torch.randn(1, 3), torch.rand(1, 3)),
            "soft targets",
        ),
        (lambda: MarginHead(3, 3, angular="sine"), "unknown angular activation 'sine'"),
        (lambda: MarginHead(3, 3, gradient="tf"), "gradient must be one of"),
        (lambda: heads.LSoftmaxHead(3, 3, gradient="caffe"), "released A-Softmax layer"),
        (lambda: MarginHead(3, 3, sample=0), "share of the classes"),
        (lambda: heads.ArcFaceHead(3, 3, m=28.6), "radians"),
        (lambda: heads.ASoftmaxHead(3, 3)(torch.randn(2, 4)), r"shape \(B, 3\), got \(2, 4\)"),
        (
            lambda: heads.ASoftmaxHead(3, 3)(torch.randn(1, 3), torch.tensor([3])),
            "label 3 .* C = 3",
        ),
    ],
)
def test_errors_say_what_to_do(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_margin_is_not_a_number():
    with pytest.raises(TypeError, match=r"such as Margin\(m=4\).* got 4"):
        MarginHead(3, 3, margin=4)


@pytest.mark.parametrize("ignored", [-100, 255])
def test_ignored_labels_in_scores_and_loss(ignored):
    head = heads.ASoftmaxHead(DIM, CLASSES)
    x, y = torch.randn(5, DIM), torch.tensor([0, ignored, 2, 3, ignored])
    scores = head(x, y, ignore_index=ignored)
    dense = F.cross_entropy(scores, y, ignore_index=ignored)
    torch.testing.assert_close(head.loss(x, y, ignore_index=ignored), dense)
    torch.testing.assert_close(scores[1], head(x)[1])


def test_soft_targets_without_margin():
    head = heads.WSoftmaxHead(DIM, CLASSES)
    x, q = torch.randn(5, DIM), torch.rand(5, CLASSES).softmax(1)
    torch.testing.assert_close(head.loss(x, q), F.cross_entropy(head(x, q), q))


def test_contract():
    head = heads.ASoftmaxHead(in_features=512, num_classes=20, m=4)
    assert isinstance(head, MarginHead) and head.neuron_role == "output"
    assert head.weight.shape == (20, 512)
    assert "Margin(m=4" in repr(head)
    assert math.isclose(angular(torch.tensor(0.5), "cosine").item(), 0.5)
    x, y = torch.randn(3, 512), torch.tensor([1, 2, 3])
    assert head.loss(x, y, reduction="sum", label_smoothing=0.1).ndim == 0
    assert isinstance(Margin(m=4)(torch.zeros(1)), torch.Tensor)


def _without_margin(settings):
    return {k: v for k, v in settings.items() if k not in ("m", "shift", "subtract")}


@pytest.mark.parametrize("learnable", [False, True])
def test_activations_of_the_layers_serve_heads(learnable):
    from hypersphere.layers import CosineAngular, SigmoidAngular

    x, y = torch.randn(5, DIM), torch.randint(CLASSES, (5,))
    head = heads.GASoftmaxHead(DIM, CLASSES, 3, SigmoidAngular(k=0.3, learnable=learnable))
    same = heads.GASoftmaxHead(DIM, CLASSES, 3, "sigmoid", k=0.3)
    with torch.no_grad():
        same.weight.copy_(head.weight)
    torch.testing.assert_close(head.loss(x, y), same.loss(x, y))
    torch.testing.assert_close(head(x, y), same(x, y))
    head.loss(x, y).backward()
    if learnable:
        (k,) = head.angular.parameters()
        assert k.grad.abs() > 0
    cosine = heads.WSoftmaxHead(DIM, CLASSES, CosineAngular())
    torch.testing.assert_close(cosine.loss(x, y), F.cross_entropy(cosine(x, y), y))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: heads.ArcFaceHead(8, 5.0),
            ValueError,
            "whole number num_classes >= 1, got 5.0",
        ),
        (lambda: heads.ASoftmaxHead(0, 5), ValueError, "whole number in_features >= 1, got 0"),
        (lambda: heads.ASoftmaxHead(8, 5, m="4"), TypeError, "a margin is a number, got '4'"),
        (
            lambda: heads.ASoftmaxHead(8, 5).loss(torch.randn(3, 8), torch.rand(3)),
            ValueError,
            "class labels are integers, got torch.float32",
        ),
    ],
)
def test_wrong_types_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


NUMPY = {
    "softmax": lambda: heads.SoftmaxHead(np.int64(3), np.int32(5)),
    "l_softmax": lambda: heads.LSoftmaxHead(3, np.uint8(5), m=np.int64(2)),
    "a_softmax": lambda: heads.ASoftmaxHead(3, 5, m=np.float32(1.5)),
    "am_softmax": lambda: heads.AMSoftmaxHead(3, 5, m=np.float32(0.5), scale=np.float32(30)),
    "arcface": lambda: heads.ArcFaceHead(3, 5, m=np.float16(0.5), scale=np.int64(30)),
    "learned": lambda: heads.SSoftmaxHead(3, 5, scale=np.float32(8), learn_scale=True),
    "sigmoid": lambda: heads.GASoftmaxHead(3, 5, np.float64(2), "sigmoid", k=np.float32(0.4)),
    "hinge": lambda: heads.HingeHead(np.int64(3), np.int64(5), margin=np.float32(0.5)),
}


@pytest.mark.parametrize("name", NUMPY)
def test_numbers_of_numpy_are_numbers(name):
    head = NUMPY[name]()
    assert type(head.num_classes) is int and type(head.in_features) is int
    x, y = torch.randn(4, 3), torch.tensor([0, 1, 2, 4])
    assert head.loss(x, y).isfinite() and head(x).dtype == torch.float32
    torch.save(head.state_dict(), "/dev/null")
    assert "np." not in repr(head)


@pytest.mark.parametrize("wrong", [0, -1, 2.0, "5", None, np.float32(5), True])
def test_other_sizes_are_refused(wrong):
    for kind in (heads.SoftmaxHead, heads.HingeHead):
        with pytest.raises(ValueError, match="a whole number num_classes >= 1"):
            kind(3, wrong)
        with pytest.raises(ValueError, match="a whole number in_features >= 1"):
            kind(wrong, 3)
    with pytest.raises(ValueError, match="a whole number of subcenters >= 1"):
        heads.ArcFaceHead(3, 4, subcenters=wrong)


def test_every_head_is_in_the_register():
    known = (
        "softmax l_softmax w_softmax s_softmax a_softmax ga_softmax am_softmax arcface margin "
        "hinge sphereface2 sphereface_r adaface magface curricularface prototype"
    )
    assert set(known.split()) <= set(registry.names("head"))
    assert registry.entry("head", "a_softmax").target is heads.ASoftmaxHead
    assert registry.entry("head", "a_softmax").summary.startswith("Angular softmax")
    with pytest.raises(ValueError, match="did you mean 'a_softmax'"):
        registry.entry("head", "asoftmax")
