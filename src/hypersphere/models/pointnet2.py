"""PointNet++ with single-scale grouping (Table 6.8; Sec. E.1), in torch alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .blocks import DEFAULT, Backbone, Style, initialize_weights
from .catalog import add_table
from .pointnet import check_points, dense_mlp, point_mlp


@torch.no_grad()
def farthest_points(points: Tensor, count: int) -> Tensor:
    """Points that are each as far as can be from those before it, from point 0 on.

    O(count N D) time, O(B N) memory beyond the points.

    Args:
        points: (B, N, D).
        count: how many to pick, at most N.

    Returns:
        Indices (B, count) into the points.

    >>> line = torch.tensor([[[0.0], [1.0], [2.0], [10.0]]])
    >>> farthest_points(line, 3)
    tensor([[0, 3, 2]])
    """
    batch, number, _ = points.shape
    if not 1 <= count <= number:
        raise ValueError(f"cannot pick {count} of {number} points")
    rows = torch.arange(batch, device=points.device)
    nearest = torch.full((batch, number), float("inf"), dtype=points.dtype, device=points.device)
    last = torch.zeros(batch, dtype=torch.long, device=points.device)
    picked = [last]
    for _ in range(count - 1):
        distance = (points - points[rows, last].unsqueeze(1)).square().sum(-1)
        nearest = torch.minimum(nearest, distance)
        last = nearest.argmax(dim=1)
        picked.append(last)
    return torch.stack(picked, dim=1)


@torch.no_grad()
def ball_query(points: Tensor, centers: Tensor, radius: float, count: int) -> Tensor:
    """The first points within a radius of each center.

    Args:
        points: (B, N, D).
        centers: (B, M, D).
        radius: points closer than this count.
        count: points per center. A ball with fewer points repeats its first, as released; one with
            none (a center that is no point) takes point 0.

    Returns:
        Indices (B, M, count) into the points.

    >>> line = torch.tensor([[[0.0], [1.0], [2.0], [10.0]]])
    >>> ball_query(line, line[:, 3:], radius=1.5, count=2), ball_query(line, line[:, 1:2], 1.5, 2)
    (tensor([[[3, 3]]]), tensor([[[0, 1]]]))
    """
    number = points.shape[1]
    # Not |a|^2 + |b|^2 - 2 a.b: a point must be found inside its own ball whatever the rounding.
    wide = torch.promote_types(points.dtype, torch.float32)
    distance = torch.cdist(
        centers.to(wide), points.to(wide), compute_mode="donot_use_mm_for_euclid_dist"
    )
    order = torch.arange(number, device=points.device).expand(distance.shape)
    found = order.masked_fill(distance >= radius, number)
    found = found.topk(min(count, number), dim=2, largest=False, sorted=True).values
    first = found[..., :1].clamp_max(number - 1) * (found[..., :1] < number)
    found = torch.where(found == number, first, found)
    missing = count - found.shape[2]
    return torch.cat([found, first.expand(-1, -1, missing)], dim=2) if missing > 0 else found


def take(values: Tensor, index: Tensor) -> Tensor:
    """values (B, N, C) at index (B, ...) -> (B, ..., C)."""
    rows = torch.arange(values.shape[0], device=values.device)
    return values[rows.view(-1, *[1] * (index.dim() - 1)), index]


class SetAbstraction(nn.Module):
    """Centers by farthest points, their neighbors within `radius`, a small PointNet on each group.

    Coordinates (B, N, 3), features (B, N, C) or None -> (B, centers, 3), (B, centers,
    widths[-1]). Neighbors enter with coordinates relative to the center. ``centers=None`` makes
    one group of all points, with coordinates as they are.
    """

    def __init__(
        self,
        inputs: int,
        widths: Sequence[int],
        style: Style,
        centers: int | None = None,
        radius: float = 0.0,
        neighbors: int = 0,
    ) -> None:
        super().__init__()
        self.centers, self.radius, self.neighbors = centers, radius, neighbors
        self.mlp = point_mlp(style, inputs, widths, dims=2)

    def forward(self, points: Tensor, features: Tensor | None) -> tuple[Tensor, Tensor]:
        if self.centers is None:
            centers, groups = points.new_zeros(points.shape[0], 1, 3), points.unsqueeze(1)
            extra = None if features is None else features.unsqueeze(1)
        else:
            count = min(self.centers, points.shape[1])
            centers = take(points, farthest_points(points, count))
            index = ball_query(points, centers, self.radius, self.neighbors)
            groups = take(points, index) - centers.unsqueeze(2)
            extra = None if features is None else take(features, index)
        if extra is not None:
            groups = torch.cat([groups, extra], dim=-1)
        pooled = self.mlp(groups.permute(0, 3, 1, 2)).amax(dim=3)  # (B, C, centers)
        return centers, pooled.transpose(1, 2)

    def extra_repr(self) -> str:
        return f"centers={self.centers}, radius={self.radius}, neighbors={self.neighbors}"


class PointNet2(Backbone):
    """Points (B, N, 3) in the unit ball -> features (B, 256), by two levels of groups.

    512 centers, radius 0.2, 32 neighbors, 64-64-128; 128 centers, radius 0.4, 64 neighbors,
    128-128-256; all, 256-512-1024; fully connected 512-256 with dropout 0.5 after each. The first
    center is point 0: shuffle the points to vary the groups.

    Args:
        widths: filters of the 1x1 convolutions of each level; the last level takes all points.
        centers: groups of each level but the last; smaller numbers suit small clouds.
        radii: radius of a group, per level but the last.
        neighbors: points of a group, per level but the last.
        hidden: widths of the fully connected layers but the last.
        features: width of the last fully connected layer; None leaves it out.
        in_channels: coordinates of a point: 3.
        points: points of a cloud that summaries and exports use; any number works.
        dropout: probabilities after the fully connected layers.
        style: operator, norm and activation of the layers.
    """

    def __init__(
        self,
        widths: Sequence[Sequence[int]] = ((64, 64, 128), (128, 128, 256), (256, 512, 1024)),
        centers: Sequence[int] = (512, 128),
        radii: Sequence[float] = (0.2, 0.4),
        neighbors: Sequence[int] = (32, 64),
        hidden: Sequence[int] = (512,),
        features: int | None = 256,
        in_channels: int = 3,
        points: int = 1024,
        dropout: Sequence[float] = (0.5, 0.5),
        style: Style = DEFAULT,
    ) -> None:
        super().__init__()
        if not len(centers) == len(radii) == len(neighbors) == len(widths) - 1:
            raise ValueError(
                "centers, radii and neighbors have one number per level, widths one more; got "
                f"{len(centers)}, {len(radii)}, {len(neighbors)} and {len(widths)}"
            )
        if in_channels != 3:
            raise ValueError(
                f"PointNet++ groups points in space: in_channels is 3, got {in_channels}"
            )
        self.input_shape = (points, 3)
        self.levels = nn.ModuleList()
        channels = 3
        for width, settings in zip(
            widths[:-1], zip(centers, radii, neighbors, strict=True), strict=True
        ):
            self.levels.append(SetAbstraction(channels, width, style, *settings))
            channels = width[-1] + 3
        self.levels.append(SetAbstraction(channels, widths[-1], style))
        dense = [*hidden] if features is None else [*hidden, features]
        self.dense = dense_mlp(style, widths[-1][-1], dense, dropout)
        self.out_features = dense[-1] if dense else widths[-1][-1]
        initialize_weights(self)

    def forward(self, points: Tensor) -> Tensor:
        check_points(points, 3)
        features: Tensor | None = None
        for level in self.levels:
            points, features = level(points, features)
        return self.dense(features.flatten(1))  # type: ignore[union-attr]


add_table(
    "pointnet2",
    PointNet2,
    "Sec. E.1",
    "PointNet++, single-scale grouping, 1024 points, features 256 (CoMHE on ModelNet40)",
)
