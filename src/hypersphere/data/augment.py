"""Augmentation of whole batches in torch: flips, padded crops, resizing, fixed-size crops.

Each is a callable (images (B, C, H, W), generator) -> images, with every sample drawn for itself.
Random numbers come from the CPU generator that is handed in, so a batch is the same on any device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from .point_clouds import JitterPoints, RotateUp, SamplePoints, ScalePoints, ShiftPoints, Tilt


@dataclass(frozen=True)
class Compose:
    """Several augmentations, one after the other.

    Args:
        steps: callables (images, generator) -> images.
    """

    steps: tuple

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        for step in self.steps:
            images = step(images, generator)
        return images


@dataclass(frozen=True)
class Flip:
    """Mirror each picture of a batch (B, C, H, W) at random.

    Args:
        horizontal: probability of a left-right flip.
        vertical: probability of a top-bottom flip.
    """

    horizontal: float = 0.5
    vertical: float = 0.0

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        for probability, dim in ((self.horizontal, -1), (self.vertical, -2)):
            if probability:
                count = len(images)
                chosen = torch.rand(count, generator=generator) < probability
                # Whole pictures from both versions: four times faster than a mask over pixels.
                index = (torch.arange(count) + count * chosen).to(images.device)
                images = torch.cat([images, images.flip(dim)]).index_select(0, index)
        return images


@dataclass(frozen=True)
class PadCrop:
    """Pad each side of the pictures (B, C, H, W), then crop the old size at random.

    Args:
        padding: pixels per side.
        fill: their value.

    >>> x = torch.arange(16.0).view(1, 1, 4, 4)
    >>> PadCrop(1)(x, torch.Generator().manual_seed(0)).shape
    torch.Size([1, 1, 4, 4])
    """

    padding: int = 4
    fill: float = 0.0

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        size = (images.shape[-2], images.shape[-1])
        padded = F.pad(images, [self.padding] * 4, value=self.fill)
        return RandomCrop(size)(padded, generator)


@dataclass(frozen=True)
class RandomCrop:
    """A window at a random place of each picture of a batch (B, C, H, W).

    Args:
        size: (height, width) of the window, or the side of a square.
    """

    size: int | tuple[int, int]

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        height, width = _window(self.size, images)
        count, channels, rows, columns = images.shape
        top = torch.randint(rows - height + 1, (count, 1, 1), generator=generator)
        left = torch.randint(columns - width + 1, (count, 1, 1), generator=generator)
        # Where each row of each window starts in the flattened batch, (B, C, height); the rows are
        # then copied whole from a view that has a row of `width` pixels starting at every pixel.
        plane = torch.arange(count * channels).view(count, channels, 1)
        start = (plane * rows + torch.arange(height) + top) * columns + left
        view = images.contiguous().view(-1).unfold(0, width, 1)
        picked = view.index_select(0, start.view(-1).to(images.device))
        return picked.view(count, channels, height, width)


@dataclass(frozen=True)
class CenterCrop:
    """The middle window of pictures (B, C, H, W): the single test view of a random crop.

    Args:
        size: (height, width) of the window, or the side of a square.
    """

    size: int | tuple[int, int]

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        height, width = _window(self.size, images)
        top, left = (images.shape[-2] - height) // 2, (images.shape[-1] - width) // 2
        return images[..., top : top + height, left : left + width]


@dataclass(frozen=True)
class Resize:
    """Pictures (B, C, H, W) in another size, bilinear with antialiasing; uint8 stays uint8.

    Args:
        size: (height, width), or the side of a square.
    """

    size: int | tuple[int, int]

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        size = (self.size, self.size) if isinstance(self.size, int) else self.size
        if tuple(images.shape[-2:]) == tuple(size):
            return images
        resized = F.interpolate(images.float(), size, mode="bilinear", antialias=True)
        if images.dtype == torch.uint8:
            return resized.round_().clamp_(0, 255).to(torch.uint8)
        return resized.to(images.dtype)


def augmentation(name: str, train: bool = True) -> Compose:
    """An augmentation of the dissertation by name.

    - "none";
    - "flip": left-right flips (faces, section 2.3.6; CIFAR-10, section 3.4.1);
    - "cifar": pad 4, random crop, left-right flip (section 2.2.7); tested on the picture itself;
    - "cifar_full": the same with top-bottom flips as well (section 3.4.5, CIFAR-10+);
    - "imagenet": resize to 256 x 256, random 224 x 224 crop, left-right flip (section B.2); tested
      on the center crop;
    - "pointnet": 1024 random points, a turn about the vertical, jitter (sections E.1, F.3);
    - "pointnet2": the same with a small tilt, scaling and shift as well (PointNet++).

    Args:
        name: one of these.
        train: False gives its test view.

    Returns:
        A callable (images, generator) -> images.

    >>> augmentation("imagenet", train=False).steps
    (Resize(size=256), CenterCrop(size=224))
    """
    known: dict[str, tuple[tuple, tuple]] = {
        "none": ((), ()),
        "flip": ((Flip(),), ()),
        "cifar": ((PadCrop(4), Flip()), ()),
        "cifar_full": ((PadCrop(4), Flip(vertical=0.5)), ()),
        "pointnet": ((SamplePoints(), RotateUp(), JitterPoints()), ()),
        "pointnet2": (
            (SamplePoints(), RotateUp(), Tilt(), ScalePoints(), ShiftPoints(), JitterPoints()),
            (),
        ),
        "imagenet": ((Resize(256), RandomCrop(224), Flip()), (Resize(256), CenterCrop(224))),
    }
    if name not in known:
        raise ValueError(f"augmentation is one of {', '.join(known)}; got {name!r}")
    return Compose(known[name][0 if train else 1])


def _window(size: int | tuple[int, int], images: Tensor) -> tuple[int, int]:
    height, width = (size, size) if isinstance(size, int) else size
    if images.dim() != 4 or height > images.shape[-2] or width > images.shape[-1]:
        raise ValueError(
            f"a {height}x{width} crop needs pictures (B, C, H, W) of at least that size; "
            f"got {tuple(images.shape)}"
        )
    return height, width
