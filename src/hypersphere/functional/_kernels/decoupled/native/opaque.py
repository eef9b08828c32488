"""The kernels as operators that torch.compile does not look into.

Note [Compiled layers]
The loops that a compiler makes of an arcsine or a tanh take up to twice the time of the passes in
C++, so a compiled layer calls these. The convolution itself stays the compiler's, which chooses
its layout: the passes work on either, and follow that of w^T x. An operator is named in the graph
by the library that has its passes, whose name is made from what is in it: graphs are kept on disk,
where a number of this process would mean something else in the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor

from ...libraries import switched_off
from ..backward import plain_gradients
from ..convolution import Geometry
from ..patch_norms import plain_patch_norms
from ..plain import OperatorSettings, plain_of_products
from .filters import SUMS, Filters, bits, totals
from .norms import measured, spread_over_pixels
from .operator import kernels_of
from .passes import dense, run_backward, run_forward
from .tensors import is_dense, norms_library

__all__ = ["has_norms", "opaque_norms", "opaque_operator", "operator_library"]

_FLEXIBLE = (torch.Tag.flexible_layout,)


class _Library(NamedTuple):
    """The passes of an operator, and its formulas."""

    kernels: Any
    op: OperatorSettings


_libraries: dict[str, _Library] = {}


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
    op = OperatorSettings(magnitude, angular, *constants, None)
    kernels = kernels_of(op, each)
    if kernels is None:
        return ""
    name = Path(kernels._name).stem
    _libraries[name] = _Library(kernels, op)
    return name


def _is_seen(grad: Tensor) -> bool:
    """Whether something sees the operations of a backward: a second derivative, or a batch.

    Then it does not run in a compiled graph, as with backend="eager". What records the operations
    for one should see the kernels.
    """
    return (
        torch.is_grad_enabled()
        or torch._C._are_functorch_transforms_active()
        or is_legacy_batchedtensor(grad)
    )


def _geometry(steps: Sequence[Sequence[int]]) -> Geometry:
    stride, padding, dilation = (tuple(part) for part in steps)
    return Geometry(stride, padding, dilation, 1)


@torch.library.custom_op("hypersphere::decoupled_norms", mutates_args=(), tags=_FLEXIBLE)
def opaque_norms(
    x: Tensor, size: list[int], stride: list[int], padding: list[int], dilation: list[int]
) -> Tensor:
    """|x| of every patch."""
    return measured(dense(x), tuple(size), _geometry((stride, padding, dilation)))


@opaque_norms.register_fake
def _(x: Tensor, *windows: list[int]) -> Tensor:
    outputs = [
        (length + 2 * pad - gap * (count - 1) - 1) // step + 1
        for length, count, step, pad, gap in zip(x.shape[2:], *windows, strict=True)
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
    geometry = _geometry((stride, padding, dilation))
    return spread_over_pixels(grad, norm.contiguous(), x, tuple(size), geometry)


@opaque_spread.register_fake
def _(grad: Tensor, norm: Tensor, x: Tensor, *windows: list[int]) -> Tensor:
    return x.new_empty(x.shape[0], 1, *x.shape[2:])


def _keep_norms(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, *ctx.windows = inputs
    ctx.save_for_backward(x, output)


def _norm_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, norm = ctx.saved_tensors
    if _is_seen(grad):
        size, *steps = ctx.windows
        (grad_x,) = plain_gradients(
            lambda x: plain_patch_norms(x, tuple(size), _geometry(steps)), [x], [True], grad
        )
    else:
        grad_x = x * opaque_spread(grad, norm, x, *ctx.windows)
    return grad_x, None, None, None, None


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
    out = run_forward(_libraries[library].kernels, dense(s), norm.contiguous(), filters)
    return _like(s, out)


@opaque_operator.register_fake
def _(s: Tensor, *others: Any) -> Tensor:
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
    own, norm, kernels = dense(s), norm.contiguous(), _libraries[library].kernels
    grad_s = torch.empty_like(own)
    of_norm, sums = run_backward(kernels, grad, own, norm, filters, asked, grad_s)
    return _like(s, grad_s), of_norm, sums.float()


@opaque_backward.register_fake
def _(grad: Tensor, s: Tensor, norm: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    sums = s.new_empty(len(SUMS), s.shape[1])
    return torch.empty_like(s), norm.new_empty(norm.shape), sums


def _like(s: Tensor, values: Tensor) -> Tensor:
    """Values in the layout of s, which the graph was promised."""
    return values if is_dense(s) else torch.empty_like(s).copy_(values)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.library = inputs
    ctx.save_for_backward(*tensors)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    s, norm, radius, k, scale, shift = ctx.saved_tensors
    if _is_seen(grad):
        op = _libraries[ctx.library].op

        def out(s: Tensor, norm: Tensor, radius: Tensor, *others: Tensor | None) -> Tensor:
            return plain_of_products(op, s, norm, None, radius, *others)

        return *plain_gradients(out, ctx.saved_tensors, ctx.needs_input_grad[:6], grad), None
    need = dict(zip(("radius", "k", "scale", "shift"), ctx.needs_input_grad[2:6], strict=True))
    grad_s, grad_norm, sums = opaque_backward(
        grad, s, norm, radius, k, scale, ctx.library, bits(need)
    )
    return grad_s, grad_norm, *totals(sums, need, (radius, k, scale, shift)), None


opaque_operator.register_autograd(_gradients, setup_context=_keep)
