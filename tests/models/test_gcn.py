"""The graph network against torch_geometric and against dense matrices."""

import pytest
import torch
from torch import nn

import hypersphere as hs
from hypersphere import models


def ring_with_chords(nodes=12):
    ring = torch.arange(nodes)
    one = torch.stack([ring, (ring + 1) % nodes])
    chords = torch.stack([ring[::3], (ring[::3] + 5) % nodes])
    edges = torch.cat([one, chords], dim=1)
    return torch.cat([edges, edges.flip(0)], dim=1)


def test_adjacency_is_the_formula():
    edges = ring_with_chords()
    dense = torch.zeros(12, 12, dtype=torch.float64)
    dense[edges[0], edges[1]] = 1
    tilde = dense + torch.eye(12)
    root = torch.diag(tilde.sum(1) ** -0.5)
    made = models.normalized_adjacency(edges, 12, dtype=torch.float64)
    torch.testing.assert_close(made.to_dense(), root @ tilde @ root)
    # Pairs given twice and self loops change nothing.
    again = torch.cat([edges, edges[:, :4], torch.tensor([[3], [3]])], dim=1)
    same = models.normalized_adjacency(again, 12, dtype=torch.float64)
    torch.testing.assert_close(same.to_dense(), made.to_dense())


def test_an_isolated_node_keeps_its_own_features():
    adjacency = models.normalized_adjacency(torch.tensor([[0, 1], [1, 0]]), 3)
    assert adjacency.to_dense()[2].tolist() == [0, 0, 1]
    assert models.normalized_adjacency(torch.zeros(2, 0, dtype=torch.long), 2).to_dense().sum() == 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_against_torch_geometric():
    geometric = pytest.importorskip("torch_geometric.nn")
    edges, x = ring_with_chords(), torch.randn(12, 9)
    first = geometric.GCNConv(9, 5, bias=False)
    second = geometric.GCNConv(5, 3, bias=False)
    net = models.create("gcn", in_channels=9, widths=(5,), features=3).eval()
    with torch.no_grad():
        net.hidden[0].weight.copy_(first.lin.weight)
        net.output.weight.copy_(second.lin.weight)
    theirs = second(first(x, edges).relu(), edges)
    adjacency = models.normalized_adjacency(edges, 12)
    torch.testing.assert_close(net(x, adjacency), theirs)
    # The head as second layer, and every layout of the inputs, are the same network.
    split = models.create("gcn", in_channels=9, widths=(5,)).eval()
    split.hidden[0].load_state_dict(net.hidden[0].state_dict())
    head = nn.Linear(5, 3, bias=False)
    head.load_state_dict(net.output.state_dict())
    whole = models.Classifier(split, head)
    for inputs in ((x, adjacency), (x.to_sparse(), adjacency), (x, adjacency.to_dense())):
        torch.testing.assert_close(whole(inputs), theirs)


def test_masked_loss_trains_the_weights():
    edges, x = ring_with_chords(), torch.randn(12, 9)
    adjacency = models.normalized_adjacency(edges, 12)
    net = models.Classifier(models.create("gcn", in_channels=9), nn.Linear(16, 3, bias=False))
    labels = torch.arange(12) % 3
    mask = torch.zeros(12, dtype=torch.bool)
    mask[:6] = True
    net.eval()
    loss = net.loss((x, adjacency), labels, mask=mask)
    by_hand = nn.functional.cross_entropy(net((x, adjacency))[:6], labels[:6])
    torch.testing.assert_close(loss, by_hand)
    loss.backward()
    assert net.backbone.hidden[0].weight.grad.abs().sum() > 0


def test_wrong_graphs_are_told_apart():
    with pytest.raises(ValueError, match=r"\(2, number of edges\); got \(3, 2\)"):
        models.normalized_adjacency(torch.zeros(3, 2, dtype=torch.long), 4)
    with pytest.raises(ValueError, match="nodes 0 to 7, but there are 4 nodes"):
        models.normalized_adjacency(torch.tensor([[0], [7]]), 4)
    with pytest.raises(ValueError, match=r"\(n, 9\) and an adjacency matrix \(n, n\)"):
        models.create("gcn", in_channels=9)(torch.zeros(4, 8), torch.eye(4))


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
@pytest.mark.parametrize(
    "change", ["plain", "sphere", "rotated", "turned input", "one layer", "no layer"]
)
def test_sparse_features_train_the_same_network(layout, change):
    torch.manual_seed(0)
    edges = ring_with_chords()
    x = torch.rand(12, 9, dtype=torch.float64) * (torch.rand(12, 9) < 0.3)
    adjacency = models.normalized_adjacency(edges, 12, dtype=torch.float64)
    operator = "sphere" if change == "sphere" else None
    shape = {"one layer": {"widths": (), "features": 3}, "no layer": {"widths": ()}}
    shape = shape.get(change, {"widths": (5,)})
    net = models.create("gcn", in_channels=9, operator=operator, **shape).double()
    if change == "rotated":
        hs.orthogonal.rotate(net)
    if change == "turned input":
        hs.orthogonal.rotate(net, side="input", start="identity")
    for dropout in (0.0, 1.0):  # at both ends dropout is the same for both layouts
        net.dropout.p = dropout
        given, results = {"dense": x, "sparse": x.to_sparse(layout=layout)}, {}
        for name, features in given.items():
            net.zero_grad()
            out = net(features, adjacency)
            if change != "no layer":
                out.square().sum().backward()
            results[name] = [
                out.detach(),
                *(p.grad.clone() for p in net.parameters() if p.requires_grad),
            ]
        for dense, sparse in zip(results["dense"], results["sparse"], strict=True):
            torch.testing.assert_close(sparse, dense)


def test_dropout_of_sparse_features_keeps_their_mean():
    torch.manual_seed(0)
    net = models.create("gcn", in_channels=4, widths=(3,), activation="none")
    x, adjacency = torch.tensor([[1.0, 0, 2, 0]]).expand(2, 4), torch.eye(2)
    with torch.no_grad():
        expected = net.eval()(x, adjacency)
        net.train().dropout.p = 0.5
        net.dropout.register_forward_hook(
            lambda _, given, out: given[0] if given[0].dim() == 2 else out
        )  # only the sparse values are dropped, not the hidden layer
        mean = torch.stack([net(x.to_sparse(), adjacency) for _ in range(4000)]).mean(0)
    torch.testing.assert_close(mean, expected, rtol=0.1, atol=0.05)
