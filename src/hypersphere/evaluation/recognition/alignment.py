"""Aligning a face: the similarity transform that takes five landmarks to fixed places."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

# SphereFace's 112 x 96 crop: eye, eye, nose, mouth corner, mouth corner, from the left of the
# picture, as (x, y) in pixels whose centers are whole numbers.
SPHEREFACE_TEMPLATE = torch.tensor(
    [
        [30.2946, 51.6963],
        [65.5318, 51.5014],
        [48.0252, 71.7366],
        [33.5493, 92.3655],
        [62.7299, 92.2041],
    ]
)
SPHEREFACE_SIZE = (112, 96)


def similarity_transform(source: Tensor, target: Tensor) -> Tensor:
    """The rotation, scale and shift that best take source points to target points.

    Least squares over [x', y'] = [[a, -b], [b, a]] [x, y] + [tx, ty]: no reflection and no shear.

    Args:
        source: (n, 2) points (x, y), at least two of them different.
        target: (n, 2), where they should go.

    Returns:
        The transform (2, 3).

    >>> square = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> similarity_transform(square, 2 * square + 3)
    tensor([[2., 0., 3.],
            [0., 2., 3.]])
    """
    source, target = torch.as_tensor(source), torch.as_tensor(target)
    if source.shape != target.shape or source.ndim != 2 or source.shape[1] != 2:
        raise ValueError(
            "expected points (n, 2) and as many targets; "
            f"got {tuple(source.shape)} and {tuple(target.shape)}"
        )
    if not bool(source.isfinite().all() & target.isfinite().all()):
        raise ValueError("a landmark is NaN or infinite")
    s, t = source.double(), target.double()
    center_s, center_t = s.mean(0), t.mean(0)
    p, q = s - center_s, t - center_t
    spread = float(p.square().sum())
    if len(s) < 2 or spread < 1e-12:
        raise ValueError("the landmarks lie on one point: no scale or rotation can be told")
    a = (p * q).sum() / spread
    b = (p[:, 0] * q[:, 1] - p[:, 1] * q[:, 0]).sum() / spread
    linear = torch.stack([torch.stack([a, -b]), torch.stack([b, a])])
    shift = center_t - linear @ center_s
    return (torch.cat([linear, shift.unsqueeze(1)], 1) + 0.0).to(torch.float32)


def warp(image: Tensor, transform: Tensor, size: tuple[int, int]) -> Tensor:
    """A picture under a transform of its pixels; bilinear, black outside the picture.

    Args:
        image: (C, H, W).
        transform: (2, 3) on (x, y) in pixels.
        size: (h, w) of the result.

    Returns:
        (C, h, w); uint8 stays uint8.
    """
    if image.ndim != 3:
        raise ValueError(f"expected a picture (C, H, W); got {tuple(image.shape)}")
    height, width = size
    forward = transform.double()
    linear = forward[:, :2]
    inverse = torch.linalg.inv(linear)
    y, x = torch.meshgrid(
        torch.arange(height, dtype=torch.float64),
        torch.arange(width, dtype=torch.float64),
        indexing="ij",
    )
    places = (torch.stack([x, y], -1) - forward[:, 2]) @ inverse.T
    limits = torch.tensor([image.shape[2], image.shape[1]], dtype=torch.float64)
    grid = ((2 * places + 1) / limits - 1).float()  # pixel centers -> [-1, 1]
    out = F.grid_sample(
        image.unsqueeze(0).float(), grid.unsqueeze(0), mode="bilinear", align_corners=False
    )[0]
    return out.round().clamp(0, 255).to(torch.uint8) if image.dtype == torch.uint8 else out


def align_face(
    image: Tensor,
    landmarks: Tensor,
    template: Tensor = SPHEREFACE_TEMPLATE,
    size: tuple[int, int] = SPHEREFACE_SIZE,
) -> Tensor:
    """The aligned crop of a face from five landmarks.

    MATLAB counts pixels from one; here the center of the first pixel is (0, 0).

    Args:
        image: (C, H, W).
        landmarks: (5, 2), (x, y) in pixels: eyes, nose, mouth corners, from the left of the
            picture.
        template: (5, 2), where the landmarks go in the crop. Default: SphereFace's.
        size: (h, w) of the crop. Default: (112, 96).

    Returns:
        The crop (C, h, w).

    >>> align_face(torch.zeros(3, 250, 250, dtype=torch.uint8), SPHEREFACE_TEMPLATE + 60).shape
    torch.Size([3, 112, 96])
    """
    landmarks = torch.as_tensor(landmarks, dtype=torch.float32)
    if landmarks.shape != template.shape:
        raise ValueError(
            f"expected landmarks {tuple(template.shape)}, (x, y) of eyes, nose and mouth corners; "
            f"got {tuple(landmarks.shape)}"
        )
    return warp(image, similarity_transform(landmarks, template), size)
