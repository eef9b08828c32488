"""From raw pixels to the network's input: (u - mean) / std on pixels u in 0..1."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .dataset import Dataset


@dataclass(frozen=True)
class Normalize:
    """(u - mean) / std, where u is a uint8 pixel / 255, or a floating-point pixel as it is.

    - "unit": u itself.
    - "symmetric": (255 u - 127.5) / 128, the face preprocessing of section 2.3.6.
    - fitted on training data, "mean": u minus the mean picture (section 2.2.7: "only the mean
      subtraction"); "channel": u minus the mean of its channel, over that channel's deviation.

    Pictures (B, C, H, W) -> the same shape, floating point.

    Args:
        mean: a number, or a tensor that broadcasts against (C, H, W).
        std: a number, or a tensor that broadcasts against (C, H, W).

    >>> Normalize.named("symmetric")(torch.tensor([0, 255], dtype=torch.uint8))
    tensor([-0.9961,  0.9961])
    """

    mean: float | Tensor = 0.0
    std: float | Tensor = 1.0

    @classmethod
    def named(cls, name: str) -> Normalize:
        """One of the settings that need no data.

        Args:
            name: "unit" or "symmetric".

        Returns:
            The normalization.
        """
        known = {"unit": cls(), "symmetric": cls(0.5, 128 / 255)}
        if name not in known:
            raise ValueError(
                f"normalize is 'unit' or 'symmetric' by name; got {name!r}. "
                f"'mean' and 'channel' are fitted: Normalize.fit(train, {name!r})"
            )
        return known[name]

    @classmethod
    def fit(cls, dataset: Dataset, kind: str = "channel") -> Normalize:
        """Take the mean (and deviation) from data.

        Args:
            dataset: the training part.
            kind: "channel" or "mean"; "unit" and "symmetric" need no data.

        Returns:
            The normalization.

        >>> from hypersphere.data import ArrayDataset
        >>> data = ArrayDataset(torch.rand(100, 3, 4, 4), torch.zeros(100).long(), ["a"])
        >>> x = Normalize.fit(data, "channel")(data.images)
        >>> bool(x.mean().abs() < 1e-6), round(float(x.std()), 2)
        (True, 1.0)
        """
        if kind in ("unit", "symmetric"):
            return cls.named(kind)
        if kind not in ("mean", "channel"):
            raise ValueError(f"kind is 'unit', 'symmetric', 'mean' or 'channel'; got {kind!r}")
        # In slices: a float64 copy of all pictures at once would be eight times their size.
        shape = dataset.shape
        total, square = torch.zeros(shape).double(), torch.zeros(shape).double()
        for index in torch.arange(len(dataset)).split(4096):
            pixels = _unit_pixels(dataset.take(index)).cpu().double()
            total += pixels.sum(0)
            square += pixels.square().sum(0)
        mean, square = total / len(dataset), square / len(dataset)
        if kind == "mean":
            return cls(mean.float())
        spatial = tuple(range(1, len(shape)))
        center = mean.mean(spatial, keepdim=True)
        deviation = (square.mean(spatial, keepdim=True) - center**2).clamp_min(0).sqrt()
        # A channel that never changes has nothing to scale.
        return cls(center.float(), torch.where(deviation > 1e-6, deviation, 1.0).float())

    def __call__(self, images: Tensor) -> Tensor:
        pixels = _unit_pixels(images)
        mean, std = self.mean, self.std
        if isinstance(mean, Tensor):
            if mean.dim() == 3 and mean.shape[1] > 1 and mean.shape != images.shape[1:]:
                raise ValueError(
                    f"the mean picture is {tuple(mean.shape)} but the batch is "
                    f"{tuple(images.shape)}: fit on pictures of the batch's size, or use the "
                    f"'channel' mean"
                )
            mean = mean.to(pixels)
        if isinstance(std, Tensor):
            std = std.to(pixels)
        if isinstance(mean, float) and isinstance(std, float) and (mean, std) == (0.0, 1.0):
            return pixels
        if pixels is images:  # floating-point input is the caller's: leave it alone
            return (pixels - mean) / std
        return pixels.sub_(mean).div_(std)


def _unit_pixels(images: Tensor) -> Tensor:
    return images.float().mul_(1 / 255) if images.dtype == torch.uint8 else images
