"""The graph convolutional network of Eq. E.24, on a sparse adjacency matrix."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .blocks import UNNORMALIZED, Backbone, Style, mark
from .catalog import add_table


def normalized_adjacency(edges: Tensor, nodes: int, dtype: torch.dtype | None = None) -> Tensor:
    """A^ = D~^(-1/2) (A + I) D~^(-1/2) of a graph, with D~ the row sums of A + I.

    The dissertation prints D~ to the power +1/2; the method it takes over, and its code, has -1/2.

    Args:
        edges: (2, E) node indices, from first to second row, both directions of an undirected edge
            present. A pair given twice counts once, and self loops are replaced by those of I.
        nodes: number of nodes n.
        dtype: of the values. Default: torch's default.

    Returns:
        A^ as a sparse COO tensor (n, n), coalesced.

    >>> normalized_adjacency(torch.tensor([[0, 1], [1, 0]]), 3).to_dense()
    tensor([[0.5000, 0.5000, 0.0000],
            [0.5000, 0.5000, 0.0000],
            [0.0000, 0.0000, 1.0000]])
    """
    if edges.dim() != 2 or edges.shape[0] != 2:
        raise ValueError(f"edges must be (2, number of edges); got {tuple(edges.shape)}")
    if edges.numel() and (int(edges.min()) < 0 or int(edges.max()) >= nodes):
        raise ValueError(
            f"edges name nodes {int(edges.min())} to {int(edges.max())}, "
            f"but there are {nodes} nodes"
        )
    dtype = dtype or torch.get_default_dtype()
    loops = torch.arange(nodes, device=edges.device)
    edges = edges[:, edges[0] != edges[1]]
    pairs = torch.cat([edges[1] * nodes + edges[0], loops * nodes + loops]).unique()
    rows, columns = pairs.div(nodes, rounding_mode="floor"), pairs % nodes
    degree = torch.bincount(rows, minlength=nodes).to(dtype)
    values = (degree[rows] * degree[columns]).rsqrt()
    return torch.sparse_coo_tensor(
        torch.stack([rows, columns]), values, (nodes, nodes), check_invariants=False
    ).coalesce()


class GCN(Backbone):
    """A^ ReLU(A^ X W0) W1 without the softmax (Eq. E.24).

    Node features X (n, in_channels) and A^ (n, n) from `normalized_adjacency`, each sparse (COO or
    CSR) or dense -> (n, widths[-1]), or (n, features). Sparse and dense features give the same
    results; sparse ones save work where most are zeros, as in bags of words.

    Since A^ (H W1) = (A^ H) W1, the last layer's weights are those of a head without bias: by
    default the network returns the features A^ ReLU(A^ X W0), and ``SoftmaxHead(16, classes,
    bias=False)`` makes it the two-layer GCN.

    The columns of W0 (the rows of ``hidden[0].weight``) are the neurons. Dropout acts on the input
    of each layer (for sparse features on the stored values, which is the same in distribution:
    zeros stay zero) and weights start by Glorot and Bengio, as in the original code; no bias.

    Args:
        widths: neurons of the hidden layers.
        in_channels: features of each node.
        features: hold W1 as well and return (n, features). Default: leave W1 to the head.
        dropout: probability to drop an input value of a layer.
        style: operator, norm and activation of the layers.
    """

    takes_sparse = True  # the task "graph" hands over dense features where a network lacks this

    def __init__(
        self,
        widths: Sequence[int] = (16,),
        in_channels: int = 1433,
        features: int | None = None,
        dropout: float = 0.5,
        style: Style = UNNORMALIZED,
    ) -> None:
        super().__init__()
        self.input_shape = (in_channels,)
        self.dropout = nn.Dropout(dropout)
        self.hidden, self.after = nn.ModuleList(), nn.ModuleList()
        channels = in_channels
        for width in widths:
            layer = style.linear(channels, width)
            mark(layer, "hidden")
            self.hidden.append(layer)
            self.after.append(nn.Sequential(style.normalization(width, 0), style.activate(width)))
            channels = width
        self.output: nn.Module = nn.Identity()
        if features is not None:
            self.output = style.linear(channels, features)
            mark(self.output, "output")
        self.out_features = channels if features is None else features
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        nodes, given = x.shape[0], self.input_shape[0]
        if x.dim() != 2 or x.shape[1] != given or adjacency.shape != (nodes, nodes):
            raise ValueError(
                f"GCN expects node features (n, {given}) and an adjacency matrix (n, n); got "
                f"{tuple(x.shape)} and {tuple(adjacency.shape)}"
            )
        for layer, after in zip(self.hidden, self.after, strict=True):
            x = after(adjacency @ self._dropped(x, layer))
        return adjacency @ self._dropped(x, self.output)

    def _dropped(self, x: Tensor, layer: nn.Module) -> Tensor:
        """layer(dropout(x)). Bags of words are nearly all zeros, so sparse ones stay sparse."""
        if x.layout == torch.strided:
            return layer(self.dropout(x))
        x = x.to_sparse_coo().coalesce()
        kept = torch.sparse_coo_tensor(
            x.indices(),
            self.dropout(x.values()),
            x.shape,
            is_coalesced=True,
            check_invariants=False,  # those of x
        )
        plain = type(layer).forward is nn.Linear.forward  # also when its weight is rotated
        return layer(kept if plain and not layer._forward_pre_hooks else kept.to_dense())

    def example_inputs(self, batch: int = 2) -> tuple[Tensor, ...]:
        """A small graph in which each node is joined with every other: all entries of A^ are equal.

        Args:
            batch: number of nodes n.

        Returns:
            Node features (n, in_channels) of zeros, and A^ (n, n).
        """
        device = next(self.parameters()).device
        adjacency = torch.full((batch, batch), 1.0 / batch, device=device)
        return torch.zeros(batch, *self.input_shape, device=device), adjacency


add_table(
    "gcn",
    GCN,
    "Eq. E.24",
    "graph convolutional network, 1433-16 for Cora; the head is its second layer (CoMHE, OPT)",
    norm="none",
)
