import pytest
import torch
from torch import nn

from hypersphere.regularizers import CoMHE, LowRankBilateral, fold_low_rank, low_rank
from hypersphere.regularizers.low_rank import factors

from reference import energy as reference


def network():
    return nn.Sequential(nn.Conv2d(4, 12, 3), nn.Flatten(), nn.Linear(12, 20), nn.Linear(20, 3))


def test_the_weight_is_equation_e_23_and_starts_from_the_given_one():
    weight = torch.randn(9, 3).double() @ torch.randn(3, 14).double()  # of rank 3
    form = LowRankBilateral(weight.shape, 3).double()
    torch.testing.assert_close(form(*form.right_inverse(weight)), weight)
    y1, y2 = torch.randn(3, 9).double(), torch.randn(14, 3).double()
    expected = y2 @ torch.linalg.inv(form.projection @ y2) @ y1
    torch.testing.assert_close(form(y1, y2), expected.T)


def test_layers_shrink_train_and_fold_back():
    net = network()
    keys = list(net.state_dict())
    low_rank(net, rank=5)
    assert sum(p.numel() for p in net[0].parameters()) == 5 * (36 + 12) + 12
    assert type(net[3]) is nn.Linear  # the output layer stays
    assert int(torch.linalg.matrix_rank(net[0].weight.flatten(1))) == 5
    x = torch.randn(2, 4, 3, 3)
    before = net(x).detach()
    assert list(fold_low_rank(net).state_dict()) == keys
    torch.testing.assert_close(net(x), before)


@pytest.mark.parametrize("seed", range(3))
def test_it_starts_at_the_best_approximation_well_conditioned(seed):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(64, 100, generator=generator) / 10
    u, s, vh = torch.linalg.svd(weight, full_matrices=False)
    form = LowRankBilateral(weight.shape, 32, generator)
    y1, y2 = form.right_inverse(weight)
    torch.testing.assert_close(form(y1, y2), (u[:, :32] * s[:32]) @ vh[:32], rtol=0, atol=1e-5)
    assert float(torch.linalg.cond(form.projection @ y2)) < 4
    zero = torch.zeros_like(weight)
    torch.testing.assert_close(form(*form.right_inverse(zero)), zero)


@pytest.mark.parametrize("rank", [16, 40])
def test_it_trains_at_a_common_learning_rate(rank):
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    x = torch.tensor(digits.data / 16.0, dtype=torch.float32)
    y = torch.tensor(digits.target)
    torch.manual_seed(0)
    layers = [nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 10)]
    net = low_rank(nn.Sequential(*layers), rank)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    for step in range(120):
        rows = torch.arange(step * 64, step * 64 + 64) % 1500
        loss = nn.functional.cross_entropy(net(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert loss.isfinite()
    assert float((net(x[1500:]).argmax(1) == y[1500:]).float().mean()) > 0.6
    for layer in (net[0], net[2]):
        core = layer.parametrizations.weight[0].projection @ factors(layer)[1]
        assert float(torch.linalg.cond(core.detach())) < 10


def test_bfloat16_and_autocast():
    net = low_rank(network().bfloat16(), 5)
    assert net[0].weight.dtype == torch.bfloat16
    net[0].weight.float().sum().backward()
    wide = low_rank(network(), 5)
    expected = wide[0].weight
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(wide[0].weight, expected)
    torch.testing.assert_close(wide.bfloat16()[0].weight.float(), expected, rtol=0.1, atol=0.01)


def test_saved_factors_load_into_another_seed():
    net, other = low_rank(network(), 5, seed=0), low_rank(network(), 5, seed=1)
    other.load_state_dict(net.state_dict())
    x = torch.randn(2, 4, 3, 3)
    torch.testing.assert_close(other(x), net(x))


def test_bilateral_regularizer_acts_on_the_factors():
    net = low_rank(network(), 5)
    reg = CoMHE("bilateral", dim=5, output=0.0, project_first=True)
    value = reg(net)
    expected = torch.zeros(())
    for layer in (net[0], net[2]):
        y1, y2 = layer.parametrizations.weight.original0, layer.parametrizations.weight.original1
        for neurons in (y1.T, y2.T):
            expected = expected + reference.energy(neurons, 2.0, True, reduction="mean")
    torch.testing.assert_close(value, expected.float(), rtol=1e-4, atol=0)
    value.backward()
    assert net[0].parametrizations.weight.original1.grad.abs().sum() > 0
    assert not reg.projections  # nothing to draw


def test_wrong_rank_is_told():
    with pytest.raises(ValueError, match="1 to 9"):
        LowRankBilateral(torch.Size([9, 14]), 10)
    with pytest.raises(ValueError, match="larger than rank 50"):
        low_rank(network(), 50)
    with pytest.raises(ValueError, match="of rank 1"):
        CoMHE("bilateral", project_first=True)(low_rank(network(), 1))
