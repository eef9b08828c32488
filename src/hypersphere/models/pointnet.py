"""PointNet, with and without T-Nets (Tables 6.8, 7.12; Sec. E.1, F.3)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .blocks import DEFAULT, Backbone, Style, initialize_weights, mark
from .catalog import add_table


def check_points(points: Tensor, coordinates: int) -> None:
    """Raise unless ``points`` is (B, N, coordinates)."""
    if points.dim() != 3 or points.shape[2] != coordinates:
        raise ValueError(
            f"this network expects point clouds (B, N, {coordinates}); got {tuple(points.shape)}"
        )


def point_mlp(style: Style, inputs: int, widths: Sequence[int], dims: int = 1) -> nn.Sequential:
    """1x1 convolutions over the points, (B, C, N), or over groups of them, (B, C, n, m)."""
    layers = nn.Sequential()
    for width in widths:
        layers.append(style.unit(dims, inputs, width, 1))
        inputs = width
    return layers


def dense_mlp(
    style: Style, inputs: int, widths: Sequence[int], dropout: Sequence[float] = ()
) -> nn.Sequential:
    """Fully connected layers on the pooled vector, with dropout after the ones named."""
    layers = nn.Sequential()
    for width, rate in zip(widths, [*dropout, *[0.0] * len(widths)], strict=False):
        unit = style.unit(0, inputs, width)
        mark(unit[0], "hidden")
        layers.append(unit)
        if rate > 0:
            layers.append(nn.Dropout(rate))
        inputs = width
    return layers


class MatrixLayer(nn.Module):
    """(B, inputs) -> matrices (B, K, K), linear in the input; identities at the start.

    It regresses numbers: its weights start at 0 and are no directions to be spread or turned, so it
    is not an ``nn.Linear``, which regularizers and rotations would find.
    """

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.slope = nn.Parameter(torch.zeros(inputs, size * size))
        self.start = nn.Parameter(torch.eye(size).flatten())

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.start, x, self.slope).view(-1, self.size, self.size)


class TNet(nn.Module):
    """(B, K, N) -> a matrix (B, K, K) that starts as the identity.

    1x1 convolutions 64-128-1024, max over the points, 512-256, then K^2 numbers.
    """

    def __init__(self, size: int, style: Style) -> None:
        super().__init__()
        self.points = point_mlp(style, size, (64, 128, 1024))
        self.dense = dense_mlp(style, 1024, (512, 256))
        self.matrix = MatrixLayer(256, size)

    def forward(self, x: Tensor) -> Tensor:
        return self.matrix(self.dense(self.points(x).amax(dim=2)))


class PointNet(Backbone):
    """Points (B, N, 3), any N -> features (B, 256), the same for every order of the points.

    1x1 convolutions 64-64-64-128-1024, max over the points, fully connected 512-256. Convolutions
    have no bias: batch norm follows.

    Args:
        widths: filters of the two convolutions before the second T-Net and the three after it.
        hidden: widths of the fully connected layers but the last.
        features: width of the last fully connected layer; None leaves it out.
        in_channels: coordinates of a point.
        points: points of a cloud that summaries and exports use; any number works.
        tnets: turn the coordinates (3x3) and the first features (64x64) by learned matrices.
        dropout: probabilities after the fully connected layers; the original has 0.3 after the
            last, and with T-Nets after both.
        penalty_weight: factor of the penalty that keeps the 64x64 matrix near orthogonal.
        style: operator, norm and activation of the layers.
    """

    def __init__(
        self,
        widths: Sequence[int] = (64, 64, 64, 128, 1024),
        hidden: Sequence[int] = (512,),
        features: int | None = 256,
        in_channels: int = 3,
        points: int = 1024,
        tnets: bool = False,
        dropout: Sequence[float] = (0.0, 0.3),
        penalty_weight: float = 0.001,
        style: Style = DEFAULT,
    ) -> None:
        super().__init__()
        if len(widths) != 5:
            raise ValueError(f"PointNet has five 1x1 convolutions; got widths={tuple(widths)}")
        self.input_shape = (points, in_channels)
        self.in_channels, self.penalty_weight = in_channels, penalty_weight
        self.input_transform = TNet(in_channels, style) if tnets else None
        self.first = point_mlp(style, in_channels, widths[:2])
        self.feature_transform = TNet(widths[1], style) if tnets else None
        self.second = point_mlp(style, widths[1], widths[2:])
        dense = [*hidden] if features is None else [*hidden, features]
        self.dense = dense_mlp(style, widths[-1], dense, dropout)
        self.out_features = dense[-1] if dense else widths[-1]
        initialize_weights(self)

    def _run(self, points: Tensor) -> tuple[Tensor, Tensor | None]:
        check_points(points, self.in_channels)
        if self.input_transform is not None:
            points = points @ self.input_transform(points.transpose(1, 2))
        x = self.first(points.transpose(1, 2))
        turn = None
        if self.feature_transform is not None:
            turn = self.feature_transform(x)
            x = (x.transpose(1, 2) @ turn).transpose(1, 2)
        return self.dense(self.second(x).amax(dim=2)), turn

    def forward(self, points: Tensor) -> Tensor:
        return self._run(points)[0]

    def features_and_penalty(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Features, and penalty_weight / 2 * sum of |A A^T - I|^2 over the batch.

        Args:
            points: (B, N, in_channels).

        Returns:
            Features (B, out_features), and the penalty, a scalar; 0 without T-Nets.
        """
        features, turn = self._run(points)
        if turn is None:
            return features, features.new_zeros(())
        eye = torch.eye(turn.shape[1], dtype=turn.dtype, device=turn.device)
        return features, (turn @ turn.mT - eye).square().sum() * (self.penalty_weight / 2)


add_table(
    "pointnet",
    PointNet,
    "Sec. E.1, F.3",
    "PointNet without T-Nets, 1024 points, features 256 (CoMHE, OPT on ModelNet40)",
)
add_table(
    "pointnet_tnet",
    PointNet,
    "Sec. E.1",
    "PointNet with both T-Nets, 1024 points, features 256 (CoMHE on ModelNet40)",
    tnets=True,
    dropout=(0.3, 0.3),
)
