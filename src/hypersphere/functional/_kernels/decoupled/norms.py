"""|x| of every patch by the route of the device."""

from __future__ import annotations

from torch import Tensor

from .accelerated import accelerated_norms
from .convolution import Geometry, is_compiled, is_traced
from .native.for_compiler import compiled_native_norms
from .native.norms import native_norms
from .patch_norms import PatchNorms, plain_patch_norms
from .routes import route

__all__ = ["with_norms"]


def with_norms(
    x: Tensor, size: tuple[int, ...], geometry: Geometry | None
) -> tuple[Tensor, Tensor]:
    """x, and |x| of every patch, or of every row if geometry is None: (B, groups, ...).

    Use the returned x from here on: its gradient is cheaper than that of the x given.
    """
    if is_compiled() and geometry is not None:
        norm = compiled_native_norms(x, size, geometry)
        if norm is not None:
            return x, norm
    if is_traced():
        return x, plain_patch_norms(x, size, geometry)
    if route(x) != "tiled":
        return accelerated_norms(x, size, geometry)
    native = native_norms(x, size, geometry)
    if native is not None:
        return native
    with_gradient: tuple[Tensor, Tensor] = PatchNorms.apply(x, size, geometry)  # type: ignore[no-untyped-call]
    return with_gradient
