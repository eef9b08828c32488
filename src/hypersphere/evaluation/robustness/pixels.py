"""The pixel range behind a model's own normalization, in which attacks are measured and clipped.

A model sees v = (u - mean) / std of pixels u in [0, 1]. A step of eps in pixels is eps / std in v,
and the valid range of v is [(0 - mean) / std, (1 - mean) / std].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class PixelRange:
    """The normalization of a model's inputs; mean 0 and std 1 when inputs are pixels.

    Args:
        mean: broadcasts against one sample (C, H, W).
        std: likewise.
    """

    mean: Tensor
    std: Tensor

    @staticmethod
    def of(normalize: Any, x: Tensor) -> PixelRange:
        """The range behind a normalization.

        Args:
            normalize: None, an object with `mean` and `std` (`hypersphere.data.Normalize`), or a
                pair (mean, std); sequences are taken per channel.
            x: (B, C, H, W), for type, device and number of channels.

        Returns:
            The range.
        """
        mean, std = (0.0, 1.0) if normalize is None else (None, None)
        if normalize is not None:
            mean, std = (
                (normalize.mean, normalize.std) if hasattr(normalize, "mean") else tuple(normalize)
            )
        return PixelRange(_spread("mean", mean, x), _spread("std", std, x))

    def to_pixels(self, v: Tensor) -> Tensor:
        """Pixels in [0, 1] of inputs.

        Args:
            v: (B, C, H, W) inputs of the model.

        Returns:
            Their pixels.
        """
        return v * self.std + self.mean

    def to_model(self, u: Tensor) -> Tensor:
        """Inputs of pixels in [0, 1].

        Args:
            u: (B, C, H, W) pixels.

        Returns:
            The model's inputs.
        """
        return (u - self.mean) / self.std

    def clip(self, v: Tensor) -> Tensor:
        """The nearest valid input.

        Args:
            v: (B, C, H, W) inputs of the model.

        Returns:
            Inputs whose pixels lie in [0, 1].
        """
        return torch.minimum(
            torch.maximum(v, self.to_model(v.new_zeros(()))), self.to_model(v.new_ones(()))
        )

    def check(self, v: Tensor) -> None:
        """Refuse inputs that are no pictures under this normalization.

        Args:
            v: (B, C, H, W) inputs of the model.
        """
        pixels = self.to_pixels(v)
        low, high = float(pixels.min()), float(pixels.max())
        if low < -1e-3 or high > 1 + 1e-3:
            raise ValueError(
                f"inputs go from {low:.3g} to {high:.3g} in pixels where 0 to 1 is valid; "
                "give the model's normalization: normalize=(mean, std) on pixels in [0, 1]"
            )


def _spread(name: str, value: Any, x: Tensor) -> Tensor:
    tensor = torch.as_tensor(value, dtype=x.dtype, device=x.device)
    if tensor.ndim == 1:
        if len(tensor) not in (1, x.shape[1]):
            raise ValueError(f"{name}: expected one per channel ({x.shape[1]}); got {len(tensor)}")
        tensor = tensor.view(-1, *[1] * (x.ndim - 2))
    return tensor
