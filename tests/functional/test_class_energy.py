import pytest
import torch

from hypersphere import functional as HF
from hypersphere.functional._kernels.energy import class_blocks as module

from reference import energy as reference


@pytest.mark.parametrize("s", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("distance", ["euclidean", "geodesic"])
@pytest.mark.parametrize("entries", [2**20, 7])
def test_equation_5_8(s, distance, entries, monkeypatch):
    monkeypatch.setattr(module, "BLOCK_ENTRIES", entries)
    weight = torch.randn(8, 3, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 5, 5, 7, 2])
    expected = reference.class_energy(weight, labels, s, distance)
    value = HF.class_energy(weight, labels, s, distance)
    torch.testing.assert_close(value, expected)
    slopes = [torch.autograd.grad(e, weight)[0] for e in (value, expected)]
    torch.testing.assert_close(*slopes)
    function = lambda w: HF.class_energy(w, labels, s, distance)  # noqa: E731
    assert torch.autograd.gradcheck(function, weight)
    assert torch.autograd.gradgradcheck(function, weight)


def test_all_classes_once_is_the_energy_of_the_layer():
    weight = torch.randn(9, 4)
    value = HF.class_energy(weight, torch.arange(9))
    torch.testing.assert_close(value, HF.hyperspherical_energy(weight))


@pytest.mark.parametrize("entries", [2**20, 7])
def test_sub_centers_are_pushed_from_those_of_other_classes(entries, monkeypatch):
    """They were refused. Sub-centers of one class may lie as near to each other as they like."""
    monkeypatch.setattr(module, "BLOCK_ENTRIES", entries)
    weight = torch.randn(5, 3, 4, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 4, 4, 2])
    u = torch.nn.functional.normalize(weight, dim=-1)
    pairs = [
        (u[y, a] - u[j, b]).square().sum().reciprocal()
        for y in labels.tolist()
        for j in range(5)
        for a in range(3)
        for b in range(3)
        if j != y
    ]
    value, expected = HF.class_energy(weight, labels), torch.stack(pairs).mean()
    torch.testing.assert_close(value, expected)
    slopes = [torch.autograd.grad(e, weight)[0] for e in (value, expected)]
    torch.testing.assert_close(*slopes)
    function = lambda w: HF.class_energy(w, labels)  # noqa: E731
    assert torch.autograd.gradcheck(function, weight)
    assert torch.autograd.gradgradcheck(function, weight)
    one = weight.detach()[:, :1]
    copies = HF.class_energy(one.expand(5, 3, 4), labels)  # distance 0 within each class
    torch.testing.assert_close(copies, HF.class_energy(one[:, 0], labels))


def test_edges_stay_finite():
    weight = torch.randn(6, 4)
    weight[1], weight[2], weight[3] = weight[0], -weight[0], 0
    weight.requires_grad_()
    value = HF.class_energy(weight, torch.tensor([0, 3, 3]))
    value.backward()
    assert value.isfinite() and weight.grad.isfinite().all()
    half = HF.class_energy(weight.detach().bfloat16(), torch.tensor([4]))
    assert half.dtype == torch.float32


@pytest.mark.parametrize(
    "weight, labels, message",
    [
        (torch.eye(3), torch.tensor([3]), r"\[0, 3\)"),
        (torch.eye(3), torch.tensor([-1]), r"\[0, 3\)"),
        (torch.eye(3), torch.tensor([0.5]), "integers"),
        (torch.eye(3), torch.tensor([[0]]), "m >= 1"),
        (torch.eye(3), torch.tensor([], dtype=torch.long), "m >= 1"),
        (torch.ones(1, 3), torch.tensor([0]), "N >= 2"),
        (torch.ones(1, 2, 3), torch.tensor([0]), "N >= 2"),
        (torch.ones(3, 2, 3, 3), torch.tensor([0]), r"or \(N, K, d\)"),
        (torch.ones(3, 2, 3), torch.tensor([3]), r"\[0, 3\)"),
    ],
)
def test_wrong_arguments_are_told(weight, labels, message):
    with pytest.raises(ValueError, match=message):
        HF.class_energy(weight, labels)
