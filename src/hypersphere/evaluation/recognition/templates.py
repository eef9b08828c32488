"""From several features of one thing to one: frames of a video, patches of a face."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ...functional.angles import normalize
from ..inputs import check_features, check_row_labels, number_names


def templates(
    features: Tensor,
    index: Any,
    normalize_frames: bool = False,
    weights: str | Tensor | None = None,
) -> Tensor:
    """One feature per video or person: the mean over its frames (the YTF protocol of 2.3.6).

    Args:
        features: (n, d), one per frame.
        index: (n,) the video of each frame, 0 ... T-1, each with a frame or more; or names, which
            are numbered in alphabetical order.
        normalize_frames: count each frame by its direction alone.
        weights: "norm" counts each direction by the length of its feature, which heads with a
            magnitude make a measure of quality: sum |f| (f/|f|) / sum |f|; or (n,), a weight of
            each frame's direction. Default: the plain mean.

    Returns:
        One feature per video, (T, d).

    >>> templates(torch.tensor([[1.0, 0.0], [0.0, 1.0], [4.0, 4.0]]), torch.tensor([0, 0, 1]))
    tensor([[0.5000, 0.5000],
            [4.0000, 4.0000]])
    >>> templates(torch.tensor([[3.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]), weights="norm")
    tensor([[0.7500, 0.2500]])
    """
    features = check_features("features", features)
    index = check_row_labels("index", number_names(index)[0], len(features))
    seen, counts = index.unique(return_counts=True)
    if int(seen[0]) < 0:
        raise ValueError(f"index: got video {int(seen[0])}; number the videos 0, 1, 2, ...")
    empty = (seen != torch.arange(len(seen), device=seen.device)).nonzero().flatten().tolist()
    if empty:
        raise ValueError(f"index: video {empty[0]} has no frame; number the videos 0, 1, 2, ...")
    if weights is None:
        frames = normalize(features) if normalize_frames else features
        return _sums(frames, index, len(counts)) / counts.unsqueeze(1).to(frames.dtype)
    share = _weights(weights, features).to(features.dtype)
    total = _sums(share.unsqueeze(1), index, len(counts))
    lost = (total.squeeze(1) == 0).nonzero().flatten().tolist()
    if lost:
        raise ValueError(f"weights: those of video {lost[0]} are all 0")
    return _sums(normalize(features) * share.unsqueeze(1), index, len(counts)) / total


def _sums(rows: Tensor, index: Tensor, count: int) -> Tensor:
    return rows.new_zeros(count, rows.shape[1]).index_add_(0, index, rows)


def _weights(weights: str | Tensor, features: Tensor) -> Tensor:
    if isinstance(weights, str):
        if weights != "norm":
            raise ValueError(f"weights: 'norm', or a weight per frame; got {weights!r}")
        return features.norm(dim=1)
    found = torch.as_tensor(weights).detach()
    if found.shape != (len(features),) or bool((~found.isfinite() | (found < 0)).any()):
        raise ValueError(
            f"weights: expected a number of at least 0 per frame, ({len(features)},); "
            f"got {tuple(found.shape)}"
        )
    return found


def concatenate_patches(features: Sequence[Tensor], normalize_patches: bool = False) -> Tensor:
    """One feature from several patches of a picture: [f_1, f_2, ...] (A.8).

    The dissertation concatenates three patches and applies no PCA.

    Args:
        features: the features (n, d_i) of each patch.
        normalize_patches: give each patch the same weight whatever the length of its features.

    Returns:
        (n, sum of d_i).

    >>> concatenate_patches([torch.ones(1, 2), torch.zeros(1, 1)])
    tensor([[1., 1., 0.]])
    """
    if not features:
        raise ValueError("expected the features of at least one patch; got none")
    counts = {len(f) for f in features}
    if len(counts) > 1:
        raise ValueError(
            f"patches: expected one row per picture in each; got {sorted(counts)} rows"
        )
    checked = [check_features(f"patch {i}", f) for i, f in enumerate(features)]
    return torch.cat([normalize(f) if normalize_patches else f for f in checked], dim=1)


def crop_patch(images: Tensor, box: tuple[int, int, int, int], size: tuple[int, int]) -> Tensor:
    """A part of each image, resized.

    Args:
        images: (B, C, H, W).
        box: (top, left, height, width) in pixels.
        size: (h, w) of the result.

    Returns:
        (B, C, h, w) in float32.

    >>> crop_patch(torch.rand(2, 3, 112, 96), (0, 0, 60, 96), (112, 96)).shape
    torch.Size([2, 3, 112, 96])
    """
    top, left, height, width = box
    if images.ndim != 4:
        raise ValueError(f"expected images (B, C, H, W); got {tuple(images.shape)}")
    rows, columns = images.shape[-2:]
    if min(box) < 0 or min(height, width) < 1 or top + height > rows or left + width > columns:
        raise ValueError(
            f"box {box} (top, left, height, width) leaves the picture {rows}x{columns}"
        )
    part = images[..., top : top + height, left : left + width]
    shrinks = size[0] < height or size[1] < width
    return F.interpolate(
        part.float(), size, mode="bilinear", align_corners=False, antialias=shrinks
    )
