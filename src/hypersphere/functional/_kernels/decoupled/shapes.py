"""Shapes in which the parameters of filters, patch norms and outputs broadcast."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

__all__ = ["FilterShapes"]


class FilterShapes(NamedTuple):
    """Filters (C,), patch norms (B, G, ...) and outputs (B, C, ...), ready to broadcast.

    With groups, outputs are seen as (B, G, C / G, ...), so that each filter meets the norms of its
    own group. With one group nothing is reshaped.

    Args:
        groups: groups of the convolution, 1 for a linear map.
        spatial: number of spatial dimensions, 0 for a linear map.
    """

    groups: int
    spatial: int

    @property
    def channel(self) -> int:
        """The dimension of split outputs that counts filters."""
        return 1 if self.groups == 1 else 2

    def split(self, output: Tensor) -> Tensor:
        """(B, C, ...) as (B, G, C / G, ...)."""
        return output if self.groups == 1 else output.unflatten(1, (self.groups, -1))  # type: ignore[no-untyped-call]

    def join(self, output: Tensor) -> Tensor:
        """(B, G, C / G, ...) as (B, C, ...)."""
        return output if self.groups == 1 else output.flatten(1, 2)

    def over_filters(self, norm: Tensor) -> Tensor:
        """Patch norms (B, G, ...), ready to broadcast over the filters of split outputs."""
        return norm if self.groups == 1 else norm.unsqueeze(2)

    def over_patches(self, value: Tensor) -> Tensor:
        """A number per filter (C,), ready to broadcast over the patches of split outputs."""
        if value.ndim == 0:
            return value
        group = () if self.groups == 1 else (self.groups,)
        return value.reshape(*group, -1, *[1] * self.spatial)

    def sum_patches(self, value: Tensor, like: Tensor) -> Tensor:
        """The sum over all patches, shaped like a parameter of the filters."""
        if like.ndim == 0:
            return value.sum()
        kept = {self.channel} | ({1} if self.groups > 1 else set())
        return (
            value.sum([d for d in range(value.ndim) if d not in kept])
            .reshape(like.shape)
            .to(like.dtype)
        )
