"""The kernels as operators that torch.compile does not look into.

Note [Compiled layers]
The loops that a compiler makes of an arcsine or a tanh take up to twice the time of the passes in
C++, so a compiled layer calls these. The convolution itself stays the compiler's, which chooses
its layout: the passes work on either, and follow that of w^T x. An operator is named in the graph
by the library that has its passes, whose name is made from what is in it: graphs are kept on disk,
where a number of this process would mean something else in the next.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..convolution import Geometry
from ..plain import OperatorSettings
from .filters import SUMS, Filters, bits, totals
from .libraries import switched_off
from .norms import measured, spread_over_pixels
from .operator import kernels_of
from .passes import dense, run_backward, run_forward
from .tensors import is_dense, norms_library

__all__ = ["has_norms", "opaque_norms", "opaque_operator", "operator_library"]

_FLEXIBLE = (torch.Tag.flexible_layout,)
_libraries: dict[str, Any] = {}


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def has_norms() -> bool:
    """Whether there are kernels for patch norms."""
    return not switched_off() and norms_library() is not None


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def operator_library(magnitude: Any, angular: Any, alpha: str, beta: str, each: bool) -> str:
    """The name of the library with the passes of an operator; "" if there is none.

    `each` says whether every filter has a radius of its own. The constants are written as by
    float.hex: a compiler for all shapes does not know the value of a number that is no text.
    """
    if switched_off():
        return ""
    constants = (float.fromhex(alpha), float.fromhex(beta))
    kernels = kernels_of(OperatorSettings(magnitude, angular, *constants, None), each)
    if kernels is None:
        return ""
    name = Path(kernels._name).stem
    _libraries[name] = kernels
    return name


@torch.library.custom_op("hypersphere::decoupled_norms", mutates_args=(), tags=_FLEXIBLE)
def opaque_norms(
    x: Tensor, size: list[int], stride: list[int], padding: list[int], dilation: list[int]
) -> Tensor:
    """|x| of every patch."""
    geometry = Geometry(tuple(stride), tuple(padding), tuple(dilation), 1)
    return measured(dense(x), tuple(size), geometry)


@opaque_norms.register_fake
def _(
    x: Tensor, size: list[int], stride: list[int], padding: list[int], dilation: list[int]
) -> Tensor:
    outputs = [
        (length + 2 * pad - gap * (count - 1) - 1) // step + 1
        for length, count, step, pad, gap in zip(
            x.shape[2:], size, stride, padding, dilation, strict=True
        )
    ]
    return x.new_empty(x.shape[0], 1, *outputs)


@torch.library.custom_op("hypersphere::decoupled_spread", mutates_args=(), tags=_FLEXIBLE)
def opaque_spread(
    grad: Tensor,
    norm: Tensor,
    x: Tensor,
    size: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> Tensor:
    """What a pixel of x is multiplied with in the gradient that comes through the norms."""
    geometry = Geometry(tuple(stride), tuple(padding), tuple(dilation), 1)
    return spread_over_pixels(grad, norm.contiguous(), x, tuple(size), geometry)


@opaque_spread.register_fake
def _(
    grad: Tensor,
    norm: Tensor,
    x: Tensor,
    size: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> Tensor:
    return x.new_empty(x.shape[0], 1, *x.shape[2:])


def _keep_norms(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, *ctx.geometry = inputs
    ctx.save_for_backward(x, output)


def _norm_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, norm = ctx.saved_tensors
    return x * opaque_spread(grad, norm, x, *ctx.geometry), None, None, None, None


opaque_norms.register_autograd(_norm_gradient, setup_context=_keep_norms)


@torch.library.custom_op("hypersphere::decoupled_operator", mutates_args=(), tags=_FLEXIBLE)
def opaque_operator(
    s: Tensor,
    norm: Tensor,
    radius: Tensor,
    k: Tensor | None,
    scale: Tensor | None,
    shift: Tensor | None,
    library: str,
) -> Tensor:
    """f from s = w^T x and the norms."""
    filters = Filters.of(s.shape[1], k, radius, scale, shift)
    out = run_forward(_libraries[library], dense(s), norm.contiguous(), filters)
    return out if is_dense(s) else torch.empty_like(s).copy_(out)


@opaque_operator.register_fake
def _(
    s: Tensor,
    norm: Tensor,
    radius: Tensor,
    k: Tensor | None,
    scale: Tensor | None,
    shift: Tensor | None,
    library: str,
) -> Tensor:
    return torch.empty_like(s)


@torch.library.custom_op("hypersphere::decoupled_backward", mutates_args=(), tags=_FLEXIBLE)
def opaque_backward(
    grad: Tensor,
    s: Tensor,
    norm: Tensor,
    radius: Tensor,
    k: Tensor | None,
    scale: Tensor | None,
    library: str,
    asked: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients in s and in the norms, and the sums over the pixels, in the order of SUMS."""
    filters = Filters.of(s.shape[1], k, radius, scale)
    own, norm = dense(s), norm.contiguous()
    grad_s = torch.empty_like(own)
    of_norm, sums = run_backward(_libraries[library], grad, own, norm, filters, asked, grad_s)
    return grad_s if is_dense(s) else torch.empty_like(s).copy_(grad_s), of_norm, sums.float()


@opaque_backward.register_fake
def _(
    grad: Tensor,
    s: Tensor,
    norm: Tensor,
    radius: Tensor,
    k: Tensor | None,
    scale: Tensor | None,
    library: str,
    asked: int,
) -> tuple[Tensor, Tensor, Tensor]:
    sums = s.new_empty(len(SUMS), s.shape[1])
    return torch.empty_like(s), norm.new_empty(norm.shape), sums


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.library = inputs
    ctx.save_for_backward(*tensors)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    s, norm, radius, k, scale, shift = ctx.saved_tensors
    need = dict(zip(("radius", "k", "scale", "shift"), ctx.needs_input_grad[2:6], strict=True))
    grad_s, grad_norm, sums = opaque_backward(
        grad, s, norm, radius, k, scale, ctx.library, bits(need)
    )
    return grad_s, grad_norm, *totals(sums, need, (radius, k, scale, shift)), None


opaque_operator.register_autograd(_gradients, setup_context=_keep)
