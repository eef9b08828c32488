"""Heads after ArcFace: against their papers, chunked, sampled, at the edges, compiled, saved."""

import math

import pytest
import torch
import torch.nn.functional as F

import hypersphere.heads as heads
from hypersphere import functional as HF
from hypersphere.heads import LambdaAnnealing, Margin, MarginHead, MarginSchedule
from tolerances import close

from reference import recent_heads as reference

DIM, CLASSES = 6, 9
D = torch.float64

HEADS = {
    "arcface": lambda **o: heads.ArcFaceHead(DIM, CLASSES, scale=12.0, **o),
    "arcface schedule": lambda **o: heads.ArcFaceHead(
        DIM, CLASSES, m=MarginSchedule(0.1, 0.5, steps=4, iteration=2), scale=12.0, **o
    ),
    "arcface per class": lambda **o: heads.ArcFaceHead(
        DIM, CLASSES, m=torch.linspace(0.0, 0.8, CLASSES), scale=12.0, **o
    ),
    "am per class": lambda **o: heads.AMSoftmaxHead(
        DIM, CLASSES, m=torch.linspace(0.0, 0.8, CLASSES), scale=12.0, **o
    ),
    "a_softmax per class": lambda **o: heads.ASoftmaxHead(
        DIM, CLASSES, m=torch.linspace(1.0, 4.0, CLASSES), **o
    ),
    "subcenters": lambda **o: heads.ArcFaceHead(DIM, CLASSES, scale=12.0, subcenters=3, **o),
    "adaface": lambda **o: heads.AdaFaceHead(DIM, CLASSES, scale=12.0, momentum=0.5, **o),
    "adaface subcenters": lambda **o: heads.AdaFaceHead(
        DIM, CLASSES, scale=12.0, momentum=0.5, subcenters=2, **o
    ),
    "magface": lambda **o: heads.MagFaceHead(
        DIM, CLASSES, shortest=1.0, longest=4.0, scale=12.0, **o
    ),
    "curricularface": lambda **o: heads.CurricularFaceHead(
        DIM, CLASSES, scale=12.0, momentum=0.5, **o
    ),
    "sphereface2 C": lambda **o: heads.SphereFace2Head(DIM, CLASSES, **o),
    "sphereface2 C per class": lambda **o: heads.SphereFace2Head(
        DIM, CLASSES, m=torch.linspace(0.0, 0.4, CLASSES), **o
    ),
    "sphereface2 A": lambda **o: heads.SphereFace2Head(
        DIM, CLASSES, m=0.3, margin_type="angle", **o
    ),
    "sphereface2 M": lambda **o: heads.SphereFace2Head(
        DIM, CLASSES, m=1.7, margin_type="multiple", **o
    ),
    "sphereface_r v0": lambda **o: heads.SphereFaceRHead(DIM, CLASSES, version="v0", **o),
    "sphereface_r v1": lambda **o: heads.SphereFaceRHead(DIM, CLASSES, version="v1", **o),
    "sphereface_r v2": lambda **o: heads.SphereFaceRHead(DIM, CLASSES, version="v2", **o),
    "sphereface_r soft": lambda **o: heads.SphereFaceRHead(DIM, CLASSES, scale=5.0, soft=0.1, **o),
}
# The others leave something out of their gradient: the quality of a sample, or the margin.
EXACT = [name for name in HEADS if "sphereface_r" not in name and "adaface" not in name]


def batch(rows=7, dtype=D):
    x = 2 * torch.randn(rows, DIM, dtype=dtype)
    return x.requires_grad_(), torch.randint(CLASSES, (rows,))


def dense_loss(head, x, y, **options):
    """From the (B, C) scores of the head, without its own loss."""
    scores = head(x, y)
    if isinstance(head, heads.SphereFace2Head):
        hot = F.one_hot(y, CLASSES).to(scores)
        weight = head.positive * hot + (1 - head.positive) * (1 - hot)
        entropy = F.binary_cross_entropy_with_logits(scores, hot, weight, reduction="none")
        return head.factor * (entropy.sum(1) / head.scale).mean()
    loss = F.cross_entropy(scores, y, **options)
    penalty = head.penalty(x)
    return loss if penalty is None else loss + penalty.mean()


# --- the papers -------------------------------------------------------------------------------


def numbers(head):
    return head.weight.detach()


def test_adaface_is_its_equation():
    head = heads.AdaFaceHead(DIM, CLASSES, scale=16.0, momentum=0.3).double()
    x, y = batch()
    x = x.detach()
    first = head(x, y).detach()
    expected = torch.tensor(reference.adaface(x, head.weight, y, 20.0, 100.0, scale=16.0))
    close(first, expected.to(D), scale=100)  # the buffers were made in float32
    got = head.loss(x, y)  # takes the batch into the statistics, then uses them
    norms = x.norm(dim=1)
    mean = 0.3 * norms.mean() + 0.7 * 20
    std = 0.3 * norms.std() + 0.7 * 100
    close(head.margin.mean, mean, scale=1e3)
    close(head.margin.std, std, scale=1e3)
    rows = reference.adaface(x, head.weight, y, mean.item(), std.item(), scale=16.0)
    expected = sum(map(reference.cross_entropy, rows, y.tolist())) / len(y)
    assert got.item() == pytest.approx(expected, rel=1e-6)
    head.eval()
    close(head.loss(x, y), got.detach())  # and leaves them alone in evaluation mode


def test_adaface_spares_low_and_stresses_high_quality():
    margin = heads.AdaptiveMargin(m=0.4)
    margin.mean.fill_(10.0)
    margin.std.fill_(1.0)
    x = torch.eye(3, 4) * torch.tensor([[1.0], [10.0], [100.0]])
    close(margin.quality(x), torch.tensor([-1.0, 0.0, 1.0]))
    psi = margin.bind(x, torch.zeros(3, dtype=torch.long))
    cos = torch.tensor([0.5, 0.5, 0.5])
    theta = math.acos(0.5)
    expected = [math.cos(theta + 0.4), 0.5 - 0.4, math.cos(theta - 0.4) - 0.8]
    close(psi(cos), torch.tensor(expected))
    assert heads.check_margin(lambda c: psi(c[:, None].expand(-1, 3))[:, 2]).decreasing


def test_magface_is_its_equation_gradient_of_the_lengths_too():
    head = heads.MagFaceHead(DIM, CLASSES, shortest=1.0, longest=9.0, scale=16.0).double()
    x, y = batch()
    expected = reference.magface(x.detach(), head.weight, y, shortest=1.0, longest=9.0, scale=16.0)
    assert head.loss(x, y).item() == pytest.approx(expected, rel=1e-9)
    (grad,) = torch.autograd.grad(head.loss(x, y), x)
    radial = (grad * x).sum(1)
    assert (radial.abs() > 0).all()  # the length moves
    step = 1e-6
    longer = reference.magface(
        (1 + step) * x.detach(), head.weight, y, shortest=1.0, longest=9.0, scale=16.0
    )
    assert radial.sum().item() == pytest.approx((longer - expected) / step, rel=1e-3)


def test_curricularface_is_its_equation():
    head = heads.CurricularFaceHead(DIM, CLASSES, scale=16.0, momentum=0.2).double()
    with torch.no_grad():
        head.t.fill_(0.3)
    x, y = batch()
    x = x.detach()
    expected = torch.tensor(reference.curricularface(x, head.weight, y, 0.3, scale=16.0))
    close(head(x, y).detach(), expected.to(D), scale=100)
    cos = HF.cosine(x, head.weight[y])
    t = 0.2 * cos.mean().item() + 0.8 * 0.3
    got = head.loss(x, y)
    assert head.t.item() == pytest.approx(t, rel=1e-6)
    rows = reference.curricularface(x, head.weight, y, head.t.item(), scale=16.0)
    expected = sum(map(reference.cross_entropy, rows, y.tolist())) / len(y)
    assert got.item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_sphereface_r_is_its_equation(version):
    head = heads.SphereFaceRHead(DIM, CLASSES, m=1.8, scale=30.0, version=version).double()
    x, y = batch()
    rows = reference.sphereface_r(x.detach(), head.weight, y, m=1.8, version=version)
    close(head(x, y).detach(), torch.tensor(rows, dtype=D))
    expected = sum(map(reference.cross_entropy, rows, y.tolist())) / len(y)
    assert head.loss(x, y).item() == pytest.approx(expected, rel=1e-9)
    # detached: the margin is a constant, and the gradient that of the plain scores
    plain = head.scale * HF.pairwise_cosine(x, head.weight)
    constant = (torch.tensor(rows, dtype=D) - plain).detach()
    parts = [x, head.weight]
    expected = torch.autograd.grad(F.cross_entropy(plain + constant, y), parts)
    close(torch.autograd.grad(head.loss(x, y), parts), expected)
    exact = heads.SphereFaceRHead(
        DIM, CLASSES, m=1.8, scale=30.0, version=version, gradient="exact"
    ).double()
    exact.load_state_dict(head.state_dict())
    close(exact.loss(x, y), head.loss(x, y))
    assert not torch.allclose(torch.autograd.grad(exact.loss(x, y), x)[0], expected[0])


def test_sphereface_r_is_a_softmax_with_a_scale_in_version_0():
    head = heads.SphereFaceRHead(DIM, CLASSES, m=4, scale=30.0, version="v0", gradient="exact")
    other = heads.ASoftmaxHead(DIM, CLASSES, m=4, scale=30.0)
    other.load_state_dict(head.state_dict())
    x, y = batch(dtype=torch.float32)
    close(head.loss(x, y), other.loss(x, y))


def test_sphereface_r_draws_lengths_to_the_scale():
    head = heads.SphereFaceRHead(DIM, CLASSES, scale=5.0, soft=0.1).double()
    free = heads.SphereFaceRHead(DIM, CLASSES, scale=None).double()
    free.load_state_dict(head.state_dict())
    x, y = batch()
    penalty = 0.1 * (x.norm(dim=1) - 5).square()
    close(head.loss(x, y), free.loss(x, y) + penalty.mean())
    close(head.loss(x, y, reduction="none"), free.loss(x, y, reduction="none") + penalty)


@pytest.mark.parametrize(("margin_type", "m"), [("cosine", 0.4), ("angle", 0.2), ("multiple", 1.2)])
def test_sphereface2_is_its_equation(margin_type, m):
    head = heads.SphereFace2Head(
        DIM, CLASSES, m=m, margin_type=margin_type, scale=40.0, factor=1.0
    ).double()
    x, y = batch()
    x = (x.detach() + 2 * HF.normalize(head.weight.detach())[y]).requires_grad_()  # small angles
    bias = head.shared_bias.item()
    expected = reference.sphereface2(x.detach(), head.weight, y, bias, m=m, margin_type=margin_type)
    assert head.loss(x, y).item() == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("classes", [2, 3, 1000, 100_000])
@pytest.mark.parametrize(("margin_type", "m"), [("cosine", 0.4), ("angle", 0.2), ("multiple", 1.2)])
def test_the_closed_form_bias_is_where_the_loss_of_orthogonal_features_is_smallest(
    margin_type, m, classes
):
    head = heads.SphereFace2Head(DIM, classes, m=m, margin_type=margin_type, scale=40.0)
    b = torch.tensor(head.shared_bias.item(), dtype=D, requires_grad=True)
    psi = head.margin(torch.zeros(1, dtype=D), HF.WidenedCosine(3.0)).item()
    own = 40 * psi + b
    others = 40 * (HF.WidenedCosine(3.0)(torch.zeros(1, dtype=D)).item() + head.raised()) + b
    loss = 0.7 * F.softplus(-own, threshold=99) + 0.3 * (classes - 1) * F.softplus(
        others, threshold=99
    )
    slope, scale = torch.autograd.grad(loss, b)[0], 0.7 * torch.sigmoid(-own)
    assert abs(slope.item()) < 1e-5 * scale.item()


def test_sphereface2_learns_its_bias_and_leaves_it_out_of_weight_decay():
    head = heads.SphereFace2Head(DIM, CLASSES)
    x, y = batch(dtype=torch.float32)
    head.loss(x, y).backward()
    assert head.shared_bias.grad.abs() > 0 and head.no_weight_decay == ("shared_bias",)
    with pytest.raises(ValueError, match="no label smoothing"):
        head.loss(x, y, label_smoothing=0.1)
    with pytest.raises(ValueError, match=r"integer labels \(B, M\) with shares"):
        head.loss(x, torch.rand(len(x), CLASSES))


def test_subcenter_arcface_is_its_equation():
    head = heads.ArcFaceHead(DIM, CLASSES, scale=16.0, subcenters=3).double()
    x, y = batch()
    rows = reference.subcenter_arcface(x.detach(), head.weight, y, scale=16.0)
    close(head(x, y).detach(), torch.tensor(rows, dtype=D))
    expected = sum(map(reference.cross_entropy, rows, y.tolist())) / len(y)
    assert head.loss(x, y).item() == pytest.approx(expected, rel=1e-9)


# --- pytorch-metric-learning ------------------------------------------------------------------


def near_classes(weight, rows=40):
    """Features within 60 degrees of their class: there all ArcFaces agree."""
    y = torch.randint(len(weight), (rows,))
    noise = F.normalize(torch.randn(rows, weight.shape[-1], dtype=weight.dtype))
    return F.normalize(weight[y]) + 0.5 * noise, y


@pytest.mark.parametrize("subcenters", [1, 3])
def test_arcface_is_that_of_pytorch_metric_learning(subcenters):
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    options = {"margin": math.degrees(0.4), "scale": 20}
    head = heads.ArcFaceHead(DIM, CLASSES, m=0.4, scale=20.0, subcenters=subcenters).double()
    if subcenters == 1:
        peer = losses.ArcFaceLoss(num_classes=CLASSES, embedding_size=DIM, **options).double()
        peer.W.data = head.weight.detach().T.clone()
    else:
        peer = losses.SubCenterArcFaceLoss(
            num_classes=CLASSES, embedding_size=DIM, sub_centers=subcenters, **options
        ).double()
        peer.W.data = head.weight.detach().flatten(0, 1).T.clone()
    x, y = near_classes(head.weight.detach().view(CLASSES, -1, DIM)[:, 0])
    x.requires_grad_()
    got, expected = head.loss(x, y), peer(x, y)
    close(got, expected, scale=10)
    (grad,), (other,) = torch.autograd.grad(got, x), torch.autograd.grad(expected, x)
    close(grad, other, scale=1e3)


def test_outliers_are_those_of_pytorch_metric_learning():
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    head = heads.ArcFaceHead(DIM, 3, subcenters=2).double()
    peer = losses.SubCenterArcFaceLoss(num_classes=3, embedding_size=DIM, sub_centers=2).double()
    peer.W.data = head.weight.detach().flatten(0, 1).T.clone()
    x, y = torch.randn(60, DIM, dtype=D), torch.randint(3, (60,))
    outliers, dominant = peer.get_outliers(x, y, threshold=75)
    found = heads.find_outliers(head, x, y)
    assert 0 < found.sum() < 60
    assert set(found.nonzero().flatten().tolist()) == set(outliers.tolist())
    kept = heads.keep_dominant(head, x, y)
    assert kept.subcenters == 1 and tuple(kept.weight.shape) == (3, DIM)
    close(F.normalize(kept.weight.detach()), F.normalize(dominant.T))


# --- what every head can do -------------------------------------------------------------------


@pytest.mark.parametrize("name", HEADS)
def test_chunked_loss_is_that_of_the_scores_gradients_too(name):
    head = HEADS[name]().double().eval()
    head.chunk = 4
    x, y = batch()
    parts = [x, *head.parameters()]
    fused, dense = head.loss(x, y), dense_loss(head, x, y)
    close(fused, dense)
    got = torch.autograd.grad(fused, parts)
    close(got, torch.autograd.grad(dense, parts), scale=10)
    head.annealing = LambdaAnnealing(base=4.0, gamma=0.0, minimum=0.0)
    close(head.loss(x, y), dense_loss(head, x, y))


@pytest.mark.parametrize("call", ["loss", "scores"])
@pytest.mark.parametrize("name", HEADS)
def test_two_batches_before_one_backward(name, call):
    """Running values, such as t of CurricularFace, move on under the graph of the first batch."""
    grads = []
    for together in (True, False):
        torch.manual_seed(0)
        head = HEADS[name]().double().train()
        compute = head.loss if call == "loss" else lambda x, y, head=head: dense_loss(head, x, y)
        batches = [batch(), batch()]
        if together:
            sum(compute(x, y) for x, y in batches).backward()
        else:
            for x, y in batches:
                compute(x, y).backward()
        grads.append([head.weight.grad, *(x.grad for x, _ in batches)])
    close(*grads)


@pytest.mark.parametrize("name", HEADS)
def test_all_classes_sampled_is_the_loss(name):
    whole, sampled = HEADS[name]().double(), HEADS[name](sample=1.0).double()
    sampled.load_state_dict(whole.state_dict())
    whole.chunk = sampled.chunk = 4
    x, y = batch()
    losses = [head.loss(x, y) for head in (whole, sampled)]
    close(*losses)
    grads = [
        torch.autograd.grad(loss, [x, *head.parameters()])
        for loss, head in zip(losses, (whole, sampled), strict=True)
    ]
    close(*grads)


@pytest.mark.parametrize("name", HEADS)
def test_a_share_of_the_classes_moves_no_others(name):
    head = HEADS[name](sample=0.01)
    x, y = batch(2, torch.float32)
    head.loss(x, y).backward()
    moved = head.weight.grad.flatten(1).abs().sum(1) > 0
    assert set(y.tolist()) <= set(moved.nonzero().flatten().tolist())
    assert int(moved.sum()) <= len(y.unique()) + 1


@pytest.mark.parametrize("name", EXACT)
def test_gradcheck(name):
    head = HEADS[name]().double().eval()
    head.chunk = 5
    torch.manual_seed(2)
    x, y = batch(3)
    torch.autograd.gradcheck(
        lambda x, w: torch.func.functional_call(_Loss(head), {"head.weight": w}, (x, y)),
        (x, head.weight.detach().clone().requires_grad_()),
        fast_mode=True,
    )


class _Loss(torch.nn.Module):
    def __init__(self, head):
        super().__init__()
        self.head = head

    def forward(self, x, y):
        return self.head.loss(x, y)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("name", HEADS)
def test_finite_at_the_edges(name, autocast):
    head = HEADS[name]()
    with torch.no_grad():
        head.weight[4] = 0.0  # a class without direction
    w = head.weight.detach().view(CLASSES, -1, DIM)[:, 0]
    x = torch.stack([torch.zeros(DIM), 5 * w[1], -3 * w[2], w[3] * 1e-20, torch.randn(DIM), w[0]])
    x, y = x.requires_grad_(), torch.tensor([0, 1, 2, 3, 4, 5])
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        given = x @ torch.eye(DIM)
        loss = head.loss(given, y)
    assert (given.dtype == torch.bfloat16) == autocast
    assert loss.dtype == torch.float32 and loss.isfinite()
    for grad in torch.autograd.grad(loss, [x, *head.parameters()]):
        assert grad.dtype == torch.float32 and grad.isfinite().all()
    head.eval()
    loss, expected = head.loss(given, y), dense_loss(head, given, y)
    torch.testing.assert_close(loss, expected, rtol=2e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", HEADS)
def test_heads_in_16_bits(name, dtype):
    head = HEADS[name]().to(dtype).eval()
    x, y = batch(dtype=dtype)
    wide = HEADS[name]().eval()
    wide.load_state_dict(head.state_dict())
    loss = head.loss(x, y)
    assert loss.item() == pytest.approx(wide.loss(x.float(), y).item(), rel=5e-3)
    loss.backward()
    assert head.weight.grad.dtype == dtype


@pytest.mark.parametrize(
    "kind",
    [
        heads.ArcFaceHead,
        heads.AdaFaceHead,
        heads.MagFaceHead,
        heads.CurricularFaceHead,
        heads.SphereFaceRHead,
        heads.SphereFace2Head,
    ],
)
def test_one_class_and_one_sample(kind):
    head = kind(DIM, 1)
    x = torch.randn(1, DIM, requires_grad=True)
    loss = head.loss(x, torch.tensor([0]))
    loss.backward()
    assert loss.isfinite() and x.grad.isfinite().all() and head.weight.grad.isfinite().all()
    if kind not in (heads.MagFaceHead, heads.SphereFace2Head):  # nothing to tell apart
        assert loss.item() == 0 and (x.grad == 0).all()
    empty = head.loss(x[:0], torch.zeros(0, dtype=torch.long), reduction="sum")
    assert empty.item() == 0
    ignored = kind(DIM, 5)
    before = {k: v.clone() for k, v in ignored.state_dict().items()}
    assert ignored.loss(x, torch.tensor([-100]), reduction="sum").item() == 0
    assert all(torch.equal(v, before[k]) for k, v in ignored.state_dict().items())


@pytest.mark.parametrize("name", HEADS)
def test_state_dict_round_trip(name):
    head, other = HEADS[name](), HEADS[name]()
    x, y = batch(dtype=torch.float32)
    for _ in range(3):
        head.loss(x, y)
        for part in head.modules():
            if isinstance(part, MarginSchedule):
                part.step()
    other.load_state_dict(head.state_dict())
    assert head.state_dict().keys() == other.state_dict().keys()
    head.eval(), other.eval()
    assert torch.equal(head.loss(x, y), other.loss(x, y))
    assert torch.equal(head(x), other(x))


def test_old_state_dicts_load():
    weight = torch.randn(CLASSES, DIM)
    for kind in (heads.ArcFaceHead, heads.AMSoftmaxHead, heads.ASoftmaxHead):
        for m in (1.5, torch.full((CLASSES,), 1.5), MarginSchedule(1.0, 1.5)):
            head = kind(DIM, CLASSES, m=m)
            head.load_state_dict({"weight": weight})
            assert torch.equal(head.weight, weight)
    with pytest.raises(RuntimeError, match="margin.mean"):
        heads.AdaFaceHead(DIM, CLASSES).load_state_dict({"weight": weight})


# the compiler itself uses what it deprecates
@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")
@pytest.mark.slow
@pytest.mark.parametrize("name", HEADS)
def test_compiles_without_graph_breaks_or_recompiles(name):
    torch._dynamo.reset()
    head, eager = HEADS[name](), HEADS[name]()
    eager.load_state_dict(head.state_dict())
    compiled = torch.compile(lambda x, y: head.loss(x, y), fullgraph=True, backend="aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(3):
            x, y = batch(5, torch.float32)
            loss, expected = compiled(x, y), eager.loss(x, y)
            close(loss, expected, scale=10)
            a = torch.autograd.grad(loss, [x, *head.parameters()])
            b = torch.autograd.grad(expected, [x, *eager.parameters()])
            close(a, b, scale=30)
            for part in (*head.modules(), *eager.modules()):
                if isinstance(part, MarginSchedule):
                    part.step()


def test_scores_can_be_exported():
    x = torch.randn(4, DIM)
    for name in ("subcenters", "adaface", "sphereface2 C", "sphereface_r v2"):
        head = HEADS[name]().eval()
        program = torch.export.export(head, (x,))
        close(program.module()(x), head(x))


def test_sub_centers_are_neurons_of_their_own():
    from hypersphere.regularizers import MHE, find_neurons

    head = heads.ArcFaceHead(DIM, CLASSES, subcenters=3)
    (found,) = find_neurons(head)
    assert found.count == 3 * CLASSES and tuple(found.read().shape) == (1, 3 * CLASSES, DIM)
    MHE(hidden=0.0, output=1.0)(head).backward()
    assert head.weight.grad.isfinite().all() and (head.weight.grad != 0).any()


# --- several labels per sample ----------------------------------------------------------------


@pytest.mark.parametrize("name", HEADS)
def test_mixup_is_the_mean_of_two_losses(name):
    head = HEADS[name]().double().eval()
    x, y = batch()
    other, share = torch.randint(CLASSES, (len(y),)), torch.rand(len(y), dtype=D)
    labels, shares = torch.stack([y, other], 1), torch.stack([share, 1 - share], 1)
    each = share * head.loss(x, y, "none") + (1 - share) * head.loss(x, other, "none")
    close(head.loss(x, labels, "none", shares=shares), each)
    close(head.loss(x, labels, "sum", shares=shares), each.sum())
    close(head.loss(x, labels, shares=shares), each.mean())
    one = torch.zeros_like(shares)
    one[:, 0] = 1
    close(head.loss(x, labels, shares=one), head.loss(x, y))


def test_soft_targets_with_a_margin():
    head = heads.ArcFaceHead(DIM, CLASSES, scale=16.0).double()
    x, y = batch()
    p = torch.softmax(torch.randn(len(x), CLASSES, dtype=D), 1)
    expected = reference.soft(x.detach(), head.weight, p, scale=16.0)
    assert head.loss(x, p).item() == pytest.approx(expected, rel=1e-9)
    hot = F.one_hot(y, CLASSES).to(D)
    close(head.loss(x, hot), head.loss(x, y))
    parts = [x, head.weight]
    got = torch.autograd.grad(head.loss(x, hot), parts)
    close(got, torch.autograd.grad(head.loss(x, y), parts), scale=10)
    plain = MarginHead(DIM, CLASSES, Margin(shift=1e-12), scale=16.0).double()
    plain.load_state_dict(head.state_dict())
    close(plain.loss(x, p), F.cross_entropy(16 * HF.pairwise_cosine(x, head.weight), p))


@pytest.mark.parametrize("name", ["arcface per class", "arcface schedule", "adaface", "subcenters"])
def test_soft_targets_are_mixed_labels(name):
    head = HEADS[name]().double().eval()
    x, y = batch()
    other, share = (y + 1) % CLASSES, torch.rand(len(y), dtype=D)
    p = torch.zeros(len(y), CLASSES, dtype=D)
    p[torch.arange(len(y)), y], p[torch.arange(len(y)), other] = share, 1 - share
    labels, shares = torch.stack([y, other], 1), torch.stack([share, 1 - share], 1)
    close(head.loss(x, p), head.loss(x, labels, shares=shares))


def test_soft_targets_keep_their_digits_where_one_class_is_nearly_all():
    x = torch.eye(DIM)[:1].requires_grad_()
    w = torch.eye(DIM)
    head = heads.ArcFaceHead(DIM, DIM, m=1.0, scale=60.0)
    wide = heads.ArcFaceHead(DIM, DIM, m=1.0, scale=60.0).double()
    with torch.no_grad():
        head.weight.copy_(w)
        wide.weight.copy_(w)
    p = torch.eye(DIM)[:1]
    got, expected = head.loss(x, p), wide.loss(x.double(), p.double())
    assert got.item() == pytest.approx(expected.item(), rel=1e-4)
    torch.autograd.grad(got, x)[0].isfinite().all()


@pytest.mark.parametrize(
    ("labels", "shares", "message"),
    [
        (torch.zeros(3, 2, dtype=torch.long), None, "no shares"),
        (torch.zeros(3, 2, dtype=torch.long), torch.ones(3), r"expected shares \(3, 2\)"),
        (torch.zeros(3, dtype=torch.long), torch.ones(3), r"integers \(B, M\)"),
        (torch.full((3, 2), 9), torch.ones(3, 2), "label 9"),
    ],
)
def test_wrong_mixtures_are_named(labels, shares, message):
    with pytest.raises(ValueError, match=message):
        heads.ArcFaceHead(DIM, 4).loss(torch.randn(3, DIM), labels, shares=shares)


# --- margins that are not one number ----------------------------------------------------------


def test_a_margin_per_class_is_the_margin_of_the_label():
    m = torch.linspace(0.0, 0.8, CLASSES)
    head = heads.ArcFaceHead(DIM, CLASSES, m=m, scale=12.0)
    x, y = batch(dtype=torch.float32)
    losses = head.loss(x, y, "none")
    for i, label in enumerate(y.tolist()):
        alone = heads.ArcFaceHead(DIM, CLASSES, m=float(m[label]), scale=12.0)
        alone.load_state_dict({"weight": head.weight})
        close(losses[i], alone.loss(x[i : i + 1], y[i : i + 1]))
    assert torch.equal(head.state_dict()["margin.per_class"], m)


def test_rare_classes_get_large_margins():
    margins = heads.long_tail_margins(torch.tensor([1, 16, 81, 1]), largest=0.6)
    close(margins, torch.tensor([0.6, 0.3, 0.2, 0.6]))
    assert heads.AMSoftmaxHead(DIM, 4, m=margins).margin.per_class.max() == margins.max()
    with pytest.raises(ValueError, match="1 classes without samples"):
        heads.long_tail_margins(torch.tensor([3, 0]))


def test_a_schedule_goes_on_where_it_was():
    schedule = MarginSchedule(0.0, 0.4, steps=4, begin=2)
    assert [schedule.at(t) for t in (0, 2, 3, 6, 99)] == pytest.approx([0, 0, 0.1, 0.4, 0.4])
    head = heads.ArcFaceHead(DIM, CLASSES, m=schedule)
    for _ in range(5):
        schedule.step()
        assert float(schedule()) == pytest.approx(schedule.value)
    other = heads.ArcFaceHead(DIM, CLASSES, m=MarginSchedule(0.3, 0.9, steps=7))
    other.load_state_dict(head.state_dict())
    assert other.margin.schedule.value == pytest.approx(0.3)
    assert repr(other.margin.schedule) == repr(schedule)
    at_once = MarginSchedule(0.1, 0.4, steps=0, begin=1)
    assert [at_once.at(t) for t in (0, 1)] == [0.1, 0.4]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: heads.ArcFaceHead(3, 4, m=torch.ones(3)), r"margins of shape \(4,\)"),
        (lambda: heads.ArcFaceHead(3, 2, m=[0.5, 30.0]), r"in \[0, 3.142\), got 0.5 to 30"),
        (lambda: heads.ASoftmaxHead(3, 2, m=MarginSchedule(0.0, 4.0)), r"margins in \[1, 1000\)"),
        (lambda: MarginSchedule(0.0, 0.5, steps=-1), "steps, begin, iteration >= 0"),
        (lambda: MarginHead(3, 4, subcenters=0), "subcenters >= 1"),
        (lambda: MarginHead(3, 4, subcenters=2, keep_weight_norm=True), "subcenters >= 1"),
        (lambda: MarginHead(3, 4, start_std=0.0), "start_std"),
        (lambda: heads.SphereFaceRHead(3, 4, version="v3"), "'v0', 'v1' or 'v2'"),
        (lambda: heads.SphereFaceRHead(3, 4, scale=None, soft=1.0), "needs a scale"),
        (lambda: heads.SphereFaceRHead(3, 4, scale="large"), "a number, None or 'automatic'"),
        (lambda: heads.SphereFaceRHead(3, 2, m=[2.0, 1.0], version="v2"), "one m for all"),
        (lambda: heads.SphereFace2Head(3, 4, t=0.5), "number >= 1"),
        (lambda: heads.SphereFace2Head(3, 4, positive=1.0), r"weight in \(0, 1\)"),
        (lambda: heads.SphereFace2Head(3, 4, margin_type="x"), "cosine, angle, multiple"),
        (lambda: heads.AdaFaceHead(3, 4, h=0.0), "h > 0"),
        (lambda: heads.AdaFaceHead(3, 4, m=torch.ones(4)), "one number m .* numbers per class"),
        (lambda: heads.AdaFaceHead(3, 4, m=MarginSchedule(0.0, 0.5)), "got a MarginSchedule"),
        (lambda: heads.MagFaceHead(3, 4, shortest=9.0, longest=3.0), "shortest < longest"),
        (lambda: heads.CurricularFaceHead(3, 4, momentum=0.0), "momentum"),
        (lambda: heads.ArcFaceHead(3, 4, subcenters=2)(torch.randn(2, 5)), r"shape \(B, 3\)"),
    ],
)
def test_wrong_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_factor_of_sphereface2_is_that_of_its_loss():
    torch.manual_seed(0)
    plain = heads.SphereFace2Head(DIM, CLASSES, factor=1.0)
    scaled = heads.SphereFace2Head(DIM, CLASSES)  # by s: a plain sum of cross entropies
    assert scaled.scale == scaled.factor == heads.automatic_scale(CLASSES)
    scaled.load_state_dict(plain.state_dict())
    x, y = torch.randn(7, DIM), torch.arange(7) % CLASSES
    close(scaled.loss(x, y), scaled.scale * plain.loss(x, y))
    close(scaled(x), plain(x))
    with pytest.raises(ValueError, match="factor"):
        heads.SphereFace2Head(DIM, CLASSES, factor=0.0)


@pytest.mark.parametrize(
    "head",
    [
        heads.SphereFace2Head(DIM, CLASSES),
        heads.ArcFaceHead(DIM, CLASSES),
        MarginHead(DIM, CLASSES, angular=lambda c: c**3),
    ],
)
def test_second_derivatives_are_refused_before_a_term_is_lost(head):
    x, labels = torch.randn(4, DIM, requires_grad=True), torch.arange(4)
    loss = head.loss(x, labels) + x.pow(3).sum()
    (slope,) = torch.autograd.grad(loss, x, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(slope.sum(), x)
