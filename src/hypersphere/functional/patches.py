"""The norms of the patches that a convolution sees."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ._kernels.decoupled.convolution import autocast_type, expand, resolve_geometry
from ._kernels.decoupled.norms import with_norms

__all__ = ["patch_norm"]


def patch_norm(
    x: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    """|x| of every patch that a convolution of this geometry sees; gradient 0 at zero patches.

    The released code adds 1e-4 under the root, which turns a patch of norm 0.01 that is parallel
    to its filter into a cosine of 0.71; here nothing is added.

    Args:
        x: (B, C, ...) with one to three spatial dimensions, or (C, ...) unbatched if kernel_size
            has a number for each of them.
        kernel_size: a number for all spatial dimensions, or one for each.
        stride: as kernel_size.
        padding: as kernel_size, or "same" or "valid". Zero padding adds nothing to a norm.
        dilation: as kernel_size.
        groups: groups of channels; a filter of group g sees the channels of group g alone.

    Returns:
        The norms (B, groups, ...), in float32 or wider.

    Raises:
        ValueError: if x and kernel_size do not fit.

    >>> patch_norm(torch.ones(1, 4, 2, 2), kernel_size=2)
    tensor([[[[4.]]]])
    """
    if autocast_type(x) is not None:  # which would run the box filter in 16 bits
        with torch.autocast(x.device.type, enabled=False):
            return patch_norm(x, kernel_size, stride, padding, dilation, groups)
    spatial = x.ndim - 2 if isinstance(kernel_size, int) else len(kernel_size)
    if not 1 <= spatial <= 3 or x.ndim not in (spatial + 1, spatial + 2):
        raise ValueError(
            f"patch_norm expects x (B, C, ...) with one to three spatial dimensions, or (C, ...) "
            f"and one kernel size for each of them; got {tuple(x.shape)} and {kernel_size}"
        )
    size = expand(kernel_size, spatial, "kernel_size")
    batched = x.ndim == spatial + 2
    x, geometry = resolve_geometry(x, size, stride, padding, dilation, groups)
    norm = with_norms(x if batched else x[None], size, geometry)[1]
    return norm if batched else norm[0]
