"""Second derivatives of functions with a backward of their own, in graphs that run eagerly."""

import pytest
import torch
from torch.nn.functional import cross_entropy

import hypersphere as hs
from hypersphere import functional as HF
from hypersphere.functional.orthogonalize import apply_orthogonal, apply_packed
from tolerances import close

LABELS = torch.tensor([0, 2, 1])


def head_of(name):
    torch.manual_seed(1)
    head = getattr(hs.heads, name)(4, 6).double()
    return lambda w: cross_entropy(head(w[:3], LABELS), LABELS)


FUNCTIONS = {
    "arccos": lambda w: HF.arccos(torch.tanh(w)).square().sum(),
    "energy": HF.hyperspherical_energy,
    "energy in half space": lambda w: HF.hyperspherical_energy(w, half_space=True),
    "geodesic energy": lambda w: HF.hyperspherical_energy(w, distance="geodesic"),
    "weighted energy": lambda w: HF.hyperspherical_energy(w, weights=torch.arange(1.0, 6.0).to(w)),
    "class energy": lambda w: HF.class_energy(w, torch.tensor([0, 1, 1])),
    "separation": HF.separation,
    "polarization": HF.polarization,
    "covering": HF.covering,
    "Gram determinant": HF.gram_determinant,
    "KoLeo": HF.koleo,
    "uniformity": lambda w: HF.uniformity(torch.nn.functional.normalize(w)),
    "distortion of angles": lambda w: HF.angle_preserving_loss(w, torch.eye(4)[:3].to(w) + 0.1),
    "mean length": lambda w: HF.vmf_mean_length(w.exp(), 5).sum(),
    "normalizer": lambda w: HF.vmf_log_normalizer(w.exp(), 5).sum(),
    "concentration": lambda w: HF.vmf_concentration(w.sigmoid(), 5).sum(),
    "A-Softmax": head_of("ASoftmaxHead"),
    "L-Softmax": head_of("LSoftmaxHead"),
    "ArcFace": head_of("ArcFaceHead"),
}


def derivatives(function, w):
    w = w.clone().requires_grad_()
    value = function(w)
    (first,) = torch.autograd.grad(value, w, create_graph=True)
    direction = torch.arange(w.numel()).view_as(w).to(w).sin()
    return value, first, torch.autograd.grad((first * direction).sum(), w)[0]


# The compiler itself looks at gradients of tensors between two graphs.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_second_derivatives(name):
    torch.manual_seed(0)
    w = torch.randn(5, 4, dtype=torch.float64)
    torch._dynamo.reset()
    found = derivatives(torch.compile(FUNCTIONS[name], backend="eager"), w)
    for own, expected in zip(found, derivatives(FUNCTIONS[name], w), strict=True):
        close(own, expected, scale=1e3 * max(1.0, float(expected.detach().abs().max())))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_arccos_at_its_ends(dtype):
    cos = torch.tensor([-1.1, -1.0, -1 + 1e-9, 0.3, 1 - 1e-9, 1.0, 1.1], dtype=dtype)
    torch._dynamo.reset()
    for own, expected in zip(
        slopes(torch.compile(HF.arccos, backend="eager"), cos),
        slopes(HF.arccos, cos),
        strict=True,
    ):
        close(own, expected, scale=10)


def slopes(function, cos):
    cos = cos.clone().requires_grad_()
    theta = function(cos)
    return theta, *torch.autograd.grad(theta.sum(), cos)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("method", ["cayley", "gram_schmidt", "householder", "loewdin"])
@pytest.mark.parametrize("outer", [torch.sin, lambda x: 2 * x], ids=["sine", "linear"])
@pytest.mark.parametrize("lead", [(), (2,)], ids=["one", "batch"])
def test_rotations_refuse_second_derivatives(method, lead, outer):
    torch.manual_seed(0)
    V = torch.randn(*lead, 5, 3, dtype=torch.float64)
    U = (torch.eye(5) + 0.1 * torch.randn(*lead, 5, 5)).double()

    def loss(U):
        return outer(apply_orthogonal(U, V, method)).sum() + U.pow(3).sum()

    torch._dynamo.reset()
    with pytest.raises(RuntimeError, match="rotations have no second derivatives"):
        derivatives(torch.compile(loss, backend="eager"), U)  # not those of U^3 alone


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("outer", [torch.sin, lambda x: 2 * x], ids=["sine", "linear"])
@pytest.mark.parametrize("method", ["cayley", "exponential"])
def test_packed_rotations_refuse_second_derivatives(method, outer):
    V, numbers = torch.randn(5, 3, dtype=torch.float64), torch.randn(1, 10, dtype=torch.float64)

    def loss(numbers):
        return outer(apply_packed(numbers[0], V, method)).sum() + numbers.pow(3).sum()

    torch._dynamo.reset()
    with pytest.raises(RuntimeError, match="rotations have no second derivatives"):
        derivatives(torch.compile(loss, backend="eager"), numbers)
