import pytest
import torch
from torch import nn

from hypersphere import functional as HF
from hypersphere.regularizers import SRIP, Orthogonal, Orthonormal


def network():
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, groups=2), nn.Flatten(), nn.Linear(6, 9), nn.Linear(9, 4)
    )


BOTH = [(Orthonormal, HF.orthonormal_penalty), (Orthogonal, HF.orthogonal_penalty)]


@pytest.mark.parametrize("kind, penalty", BOTH)
@pytest.mark.parametrize("unit", [False, True])
def test_penalties_add_up_over_hidden_layers_and_groups(kind, penalty, unit):
    net = network()
    rows = [*net[0].weight.chunk(2), net[2].weight]
    rows = [HF.normalize(w.flatten(1)) if unit else w for w in rows]
    expected = 0.1 * sum(penalty(w) for w in rows)
    torch.testing.assert_close(kind(0.1, normalize=unit)(net), expected)
    with_output = kind(0.1, output=2.0, normalize=unit)(net)
    out = HF.normalize(net[3].weight) if unit else net[3].weight
    torch.testing.assert_close(with_output, expected + 2 * penalty(out))


def test_srip_follows_the_weights_with_few_iterations():
    net = network().double()
    reg = SRIP(1.0, iterations=2)
    start = float(reg(net).detach())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(40):
        optimizer.zero_grad()
        value = reg(net)
        value.backward()
        optimizer.step()
    exact = 0.0
    for w in [*net[0].weight.chunk(2), net[2].weight]:
        rows = w.detach().flatten(1)
        small = rows @ rows.T if len(rows) <= rows.shape[1] else rows.T @ rows
        exact += float(torch.linalg.matrix_norm(small - torch.eye(len(small)), 2))
    assert float(reg(net).detach()) == pytest.approx(exact, rel=0.05)
    assert exact < start  # and it falls


@pytest.mark.parametrize("kind", [Orthonormal, Orthogonal, SRIP])
def test_minimization_gives_orthogonal_neurons(kind):
    layer = nn.Conv1d(8, 5, 1)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
    reg = kind(1.0)
    for _ in range(300):
        optimizer.zero_grad()
        reg(layer).backward()
        optimizer.step()
    cos = HF.pairwise_cosine(layer.weight.detach().flatten(1)) - torch.eye(5)
    assert float(cos.abs().max()) < 0.1


def test_wrong_arguments_are_told():
    with pytest.raises(ValueError, match="iterations >= 1"):
        SRIP(iterations=0)
