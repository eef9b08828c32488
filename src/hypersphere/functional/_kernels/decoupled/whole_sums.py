"""Sums of products over all patches, in a single launch."""

from __future__ import annotations

import torch
from torch import Tensor

from .numbers import shared_number
from .plain import FilterShapes

__all__ = ["sum_products"]

# Devices whose kernel of a batch normalization sums as the formula says, whatever the mask.
_BATCH_NORM = ("cpu", "cuda", "xpu")


def sum_products(a: Tensor, b: Tensor, factor: float, shapes: FilterShapes, like: Tensor) -> Tensor:
    """factor times the sum of a b over all patches, shaped like a parameter of the filters.

    Args:
        a: shaped like the outputs, split by groups.
        b: shaped to broadcast against a.
        factor: a number.
        shapes: how filters and patches lie in the outputs.
        like: (C,), the parameter.
    """
    if shapes.groups > 1 or not a.numel() or a.device.type not in _BATCH_NORM:
        sums = shapes.sum_patches(a * b, like)
        return sums if factor == 1 else sums * factor
    # The gradient in the weight of a batch normalization: the sum of a (b - mean) / deviation for
    # every channel, without a product in memory.
    options, count = (a.device, a.dtype), (a.shape[1],)
    mean, inverse = shared_number(0.0, *options, count), shared_number(factor, *options, count)
    # Kernels of cards make the gradient like the weight, so there has to be one.
    weight = shared_number(1.0, *options, count)
    found: Tensor = torch.ops.aten.native_batch_norm_backward(
        a, b.expand_as(a), weight, None, None, mean, inverse, True, 0.0, [False, True, False]
    )[1]
    return found if found.dtype == like.dtype else found.to(like.dtype)
