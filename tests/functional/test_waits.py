"""Nothing in a training step waits for the device: no value travels to the host."""

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import hypersphere as hs
from hypersphere import functional as HF
from hypersphere.functional._kernels.decoupled.routes import force
from hypersphere.functional._kernels.spreading import row_blocks
from hypersphere.functional._kernels.spreading.nearest import nearest_distances
from hypersphere.functional.host import can_look, demand, known, without_looking
from hypersphere.functional.labels import check_labels, sample_classes
from tolerances import close

from kinds import ANGULAR_KINDS, MAGNITUDE_KINDS

WAITS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero", "aten::equal")


def waits(step) -> list[str]:
    """What a profile of a second step shows of values that an accelerator would be waited for."""
    step()
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        step()
    return [event.name for event in seen.events() if event.name in WAITS]


def trained(make, step_of, steps: int = 2) -> list[torch.Tensor]:
    """Weights after some steps from the same start."""
    torch.manual_seed(0)
    net = make()
    step = step_of(net)
    for _ in range(steps):
        step()
    return [p.detach().clone() for p in net.parameters()]


def sgd_step(net, loss, optimizer=None):
    optimizer = optimizer or torch.optim.SGD(net.parameters(), lr=0.05)

    def step():
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step


@pytest.mark.parametrize("route", [None, "whole"])
@pytest.mark.parametrize("angular", ANGULAR_KINDS)
@pytest.mark.parametrize("magnitude", MAGNITUDE_KINDS)
def test_layers(magnitude, angular, route):
    layer = hs.layers.DecoupledConv2d(3, 4, 3, magnitude=magnitude, angular=angular, rescale=True)
    x = torch.randn(2, 3, 6, 6)
    with force(route):
        assert not waits(sgd_step(layer, lambda: layer(x).square().mean()))


HEADS = {
    "softmax": lambda: hs.heads.SoftmaxHead(8, 12),
    "a_softmax": lambda: hs.heads.ASoftmaxHead(8, 12, m=3),
    "l_softmax": lambda: hs.heads.LSoftmaxHead(8, 12, m=2),
    "am_softmax": lambda: hs.heads.AMSoftmaxHead(8, 12),
    "arcface": lambda: hs.heads.ArcFaceHead(8, 12, m=0.3),
    "ga_softmax": lambda: hs.heads.GASoftmaxHead(8, 12, m=2, angular="sigmoid"),
    "hinge": lambda: hs.heads.HingeHead(8, 12),
    "sphereface2": lambda: hs.heads.SphereFace2Head(8, 12),
    "sphereface_r": lambda: hs.heads.SphereFaceRHead(8, 12),
    "adaface": lambda: hs.heads.AdaFaceHead(8, 12),
    "magface": lambda: hs.heads.MagFaceHead(8, 12),
    "curricularface": lambda: hs.heads.CurricularFaceHead(8, 12),
    "von_mises_fisher": lambda: hs.heads.VonMisesFisherHead(8, 12),
    "sub-centers": lambda: hs.heads.ArcFaceHead(8, 12, m=0.3, subcenters=2),
}


@pytest.mark.parametrize("name", HEADS)
def test_heads(name):
    x, y = torch.randn(6, 8), torch.randint(12, (6,))

    def step_of(head):
        return sgd_step(head, lambda: head.loss(x, y))

    assert not waits(step_of(HEADS[name]()))
    with without_looking():
        assert not waits(step_of(HEADS[name]()))
        blind = trained(HEADS[name], step_of)
    close(blind, trained(HEADS[name], step_of), scale=3)


def test_sampled_classes():
    head = hs.heads.AMSoftmaxHead(8, 40)
    x, y = torch.randn(6, 8), torch.randint(40, (6,))

    assert not waits(sgd_step(head, lambda: HF.margin_cross_entropy(x, head.weight, y, sample=0.5)))
    with without_looking():
        index, stands_for = sample_classes(torch.tensor([7, 7, 2]), 10, 0.5)
    assert {2, 7} <= set(index.tolist()) and len(index) == len(stands_for)
    # As many as if all labels were different.
    assert len(index) == 3 + 4


REGULARIZERS = {
    "mhe": lambda: hs.regularizers.MHE(half_space=True),
    "mhe, s=0": lambda: hs.regularizers.MHE(s=0.0, half_space=True),
    "mhe, s=1": lambda: hs.regularizers.MHE(s=1.0),
    "mhe, geodesic": lambda: hs.regularizers.MHE(distance="geodesic"),
    "random": lambda: hs.regularizers.CoMHE(projection="random", dim=4),
    "hadamard": lambda: hs.regularizers.CoMHE(projection="random", sketch="hadamard", dim=4),
    "unrolled": lambda: hs.regularizers.CoMHE(
        projection="angle_preserving", mode="unrolled", dim=4
    ),
    "alternating": lambda: hs.regularizers.CoMHE(
        projection="angle_preserving", mode="alternating", dim=4
    ),
    "adversarial": lambda: hs.regularizers.CoMHE(projection="adversarial", dim=4),
    "group": lambda: hs.regularizers.CoMHE(projection="group", dim=4),
    "bilateral": lambda: hs.regularizers.CoMHE(projection="bilateral", dim=4),
    "orthonormal": lambda: hs.regularizers.Orthonormal(0.1),
    "orthogonal": lambda: hs.regularizers.Orthogonal(0.1),
    "srip": lambda: hs.regularizers.SRIP(0.1),
    "separation": lambda: hs.regularizers.Separation(),
    "separation, half space": lambda: hs.regularizers.Separation(half_space=True),
    "koleo": lambda: hs.regularizers.KoLeo(),
    "polarization": lambda: hs.regularizers.Polarization(),
    "covering": lambda: hs.regularizers.Covering(),
    "gram_determinant": lambda: hs.regularizers.GramDeterminant(),
}


def small_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(8 * 4, 5)
    )


@pytest.mark.parametrize("name", REGULARIZERS)
def test_regularizers(name):
    def step_of(net):
        torch.manual_seed(1)
        regularizer = REGULARIZERS[name]()
        return sgd_step(net, lambda: regularizer(net))

    if name != "gram_determinant":  # a factorization of the host looks at its own success
        assert not waits(step_of(small_net()))
    with without_looking():
        assert not waits(step_of(small_net()))
        blind = trained(small_net, step_of)
    close(blind, trained(small_net, step_of), scale=50)


@pytest.mark.parametrize("block", [1 << 40, 60], ids=["at once", "by blocks"])
@pytest.mark.parametrize("half_space", [False, True])
def test_nearest_neighbors_without_looking(monkeypatch, block, half_space):
    """Ties and coinciding rows are found as well where nobody may ask how many there are."""
    monkeypatch.setattr(row_blocks, "BLOCK_ENTRIES", block)
    torch.manual_seed(0)
    w = torch.randn(2, 9, 3, dtype=torch.float64)
    w[0, :4] = torch.eye(4, 3)
    w[0, 3] = torch.tensor([-1.0, 0, 0])
    w[1, 5] = w[1, 4] * 2
    w[1, 7] = w[1, 6] + 1e-10
    w.requires_grad_()

    def found():
        distances = nearest_distances(w, half_space)
        return [distances, *torch.autograd.grad(distances.square().sum(), w)]

    expected = found()
    with without_looking():
        assert not waits(found)
        close(found(), expected)


def test_class_energy():
    weight, y = torch.randn(7, 4, requires_grad=True), torch.tensor([1, 1, 6, 0])

    def step():
        return torch.autograd.grad(HF.class_energy(weight, y), weight)[0]

    assert not waits(step)
    want = step()
    with without_looking():
        assert not waits(step)
        close(step(), want)


ROTATIONS = ["cayley", "gram_schmidt", "householder", "loewdin", "exponential"]


@pytest.mark.parametrize("method", [*ROTATIONS, "ogd"])
def test_rotations(method):
    x = torch.randn(2, 3, 6, 6)

    def make():
        return hs.orthogonal.rotate(small_net(), method=method)

    def step_of(net):
        optimizer = None
        if method == "ogd":
            groups = hs.orthogonal.parameter_groups(net)
            optimizer = hs.orthogonal.OGD(groups, lr=0.05, momentum=0.9)
        return sgd_step(net, lambda: net(x).square().mean(), optimizer)

    if method in ("cayley", "ogd"):  # the others ask LAPACK for eigenvalues of a small matrix,
        assert not waits(step_of(make()))  # whose success torch checks; accelerators do not
    with without_looking():
        assert not waits(step_of(make()))
        blind = trained(make, step_of, steps=4)
    close(blind, trained(make, step_of, steps=4), scale=50)


@pytest.mark.parametrize("method", ["loewdin", "exponential"])
@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("size", [1, 2, 9, 40])
def test_maps_by_products_alone(method, scale, size):
    """What an accelerator does in place of choosing a number of terms: R and its gradient."""
    U = (scale * torch.randn(2, size, size, dtype=torch.float64)).requires_grad_()
    V = torch.randn(2, size, min(size, 4), dtype=torch.float64)
    want = HF.orthogonalize(U, method)
    expected = torch.autograd.grad((want @ V).pow(3).sum(), U)
    with without_looking():
        assert not waits(lambda: HF.orthogonalize(U, method))
        got = HF.orthogonalize(U, method)
        found = torch.autograd.grad((got @ V).pow(3).sum(), U)
    eye = torch.eye(size, dtype=torch.float64).expand_as(got)
    close(got.mT @ got, eye)
    assert (got - want).abs().max() < 1e-6
    assert (found[0] - expected[0]).abs().max() <= 1e-5 * expected[0].abs().max() + 1e-9


def test_ogd_that_does_not_look_stays_orthogonal():
    net = hs.orthogonal.rotate(nn.Sequential(nn.Linear(12, 9), nn.Linear(9, 4)), method="ogd")
    optimizer = hs.orthogonal.OGD(hs.orthogonal.parameter_groups(net), lr=0.2, momentum=0.9)
    with without_looking():
        for _ in range(300):
            optimizer.zero_grad()
            net(torch.randn(8, 12)).square().mean().backward()
            optimizer.step()
    assert hs.orthogonal.orthogonality_error(net) < 1e-5


def test_known_and_demand():
    assert known(torch.tensor(True)) == 1 and known(torch.tensor(2.5, dtype=torch.bfloat16)) == 2.5
    assert known(torch.tensor(3.0, device="meta")) is None
    with without_looking():
        assert known(torch.tensor(1.0)) is None and not can_look(torch.zeros(2))
    with pytest.raises(ValueError, match="expected better"):
        demand(torch.tensor(False), lambda: "expected better")
    with pytest.raises(ValueError, match=r"label 12 \(sample 1\) is outside 0..11"):
        check_labels(torch.tensor([3, 12]), 12)
    with pytest.raises(ValueError, match="labels must lie in"):
        HF.class_energy(torch.randn(4, 3), torch.tensor([4]))
