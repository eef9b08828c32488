"""A decoupled operator as data, and in plain differentiable operations.

    f = scale h(n) g(c) + shift,    s = w^T x of a unit filter w,  n = |x|,  c = cos(theta) = s / n

Note [Zero patches]: a zero patch has no direction. Its cosine is 0, so its output is 0 (before the
bias, and whatever g(0) is), and nothing flows through its norm. What flows through s = w^T x is
df/ds = r(0) g'(0), as in any other patch with c = 0: r(0), with r(n) = h(n) / n, is the slope of h
at 0, and 0 for the sphere, whose slope there is infinite.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from .backward import plain_gradients
from .convolution import Geometry, correlate
from .patch_norms import plain_patch_norms

if TYPE_CHECKING:
    from ...angular_functions import AngularFunction
    from ...magnitude_base import MagnitudeFunction

__all__ = [
    "FilterShapes",
    "Inputs",
    "OperatorSettings",
    "differentiable_gradients",
    "filter_shapes",
    "plain_of_products",
    "plain_operator",
    "shaped_inputs",
]


class OperatorSettings(NamedTuple):
    """What is fixed about a decoupled operator; its tensors are in Inputs."""

    magnitude: MagnitudeFunction
    angular: AngularFunction
    alpha: float
    beta: float
    geometry: Geometry | None
    k: float | None = None

    @property
    def constants(self) -> tuple[float, float]:
        """alpha and beta of h."""
        return self.alpha, self.beta

    @property
    def bound(self) -> float | None:
        """The number that |h| cannot exceed, if there is one."""
        return self.magnitude.bound(self.alpha, self.beta)


class Inputs(NamedTuple):
    """The tensors of a decoupled operator.

    Args:
        x: (B, C_in, ...).
        norm: |x| of its patches, (B, groups, ...).
        kernel: unit filters (C, C_in / groups, ...).
        radius: a number, or one per filter (C,).
        k: as radius; None for the number in OperatorSettings.
        scale: as radius, or None.
        shift: as radius, or None.
    """

    x: Tensor
    norm: Tensor
    kernel: Tensor
    radius: Tensor
    k: Tensor | None = None
    scale: Tensor | None = None
    shift: Tensor | None = None


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
        if self.groups == 1:
            return output
        each = (self.groups, output.shape[1] // self.groups)
        return output.view(output.shape[0], *each, *output.shape[2:])  # vmap has no `unflatten`

    def join(self, output: Tensor) -> Tensor:
        """(B, G, C / G, ...) as (B, C, ...)."""
        if self.groups == 1:
            return output
        return output.reshape(output.shape[0], self.groups * output.shape[2], *output.shape[3:])

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
        sums = value.sum([d for d in range(value.ndim) if d not in kept]).reshape(like.shape)
        return sums if sums.dtype == like.dtype else sums.to(like.dtype)


def plain_operator(inputs: Inputs, op: OperatorSettings) -> Tensor:
    """f(w, x) in differentiable operations: for compilers, exporters, second derivatives, any g."""
    s = correlate(inputs.x, inputs.kernel, op.geometry)
    return plain_of_products(op, s, *inputs[1:])


def plain_of_products(
    op: OperatorSettings,
    s: Tensor,
    norm: Tensor,
    kernel: Tensor | None,
    radius: Tensor,
    *numbers: Tensor | None,
) -> Tensor:
    """The same from s = w^T x; the filters count only if g is not 0 at a right angle."""
    g, h = op.angular, op.magnitude
    shapes = filter_shapes(s, op)
    rho = shapes.over_patches(radius)
    own_k, scale, shift = (t if t is None else shapes.over_patches(t) for t in numbers)
    k = op.k if own_k is None else own_k
    s, n = shapes.split(s), shapes.over_filters(norm)
    if g.is_cosine:
        out = s * h.ratio(n, *op.constants, rho)
        out = out if op.bound is None else out.clamp(-op.bound, op.bound)
    else:
        # In a zero patch n counts as 1 and h as r(0), see Note [Zero patches].
        nonzero_patch = n > 0
        c = (s * torch.where(nonzero_patch, n, 1).reciprocal()).clamp(-1, 1)
        value = g.value(c, k, torch.finfo(s.dtype).eps)
        if not g.zero_at_right_angle:
            assert kernel is not None
            nonzero_filter = shapes.over_patches(kernel.detach().flatten(1).ne(0).any(1))
            at_zero = g.value(c.new_zeros(1, *c.shape[1:]), k)
            value = value - torch.where(nonzero_patch & nonzero_filter, 0, at_zero)
        slope = h.ratio(n.new_zeros(()), *op.constants, rho)
        out = value * torch.where(nonzero_patch, h.value(n, *op.constants, rho), slope)
    out = out if scale is None else out * scale
    out = out if shift is None else out + shift
    return shapes.join(out).to(s.dtype)


def differentiable_gradients(
    grad: Tensor,
    inputs: Inputs,
    needed: Sequence[bool],
    op: OperatorSettings,
    own_norm: bool = False,
) -> list[Tensor | None]:
    """The gradients of f in the inputs that need one, as by `plain_gradients`.

    With `own_norm`, that of x includes what flows through its patch norms.
    """

    def out(*tensors: Tensor) -> Tensor:
        given = Inputs(*tensors)
        if own_norm:
            norm = plain_patch_norms(given.x, tuple(given.kernel.shape[2:]), op.geometry)
            given = given._replace(norm=norm)
        return plain_operator(given, op)

    if own_norm:
        needed = (needed[0], False, *needed[2:])
    return plain_gradients(out, inputs, needed, grad)


def filter_shapes(x: Tensor, op: OperatorSettings) -> FilterShapes:
    """How filters and patches lie in the outputs of an operator."""
    return FilterShapes(1 if op.geometry is None else op.geometry.groups, x.ndim - 2)


def shaped_inputs(inputs: Inputs, op: OperatorSettings) -> Inputs:
    """The inputs with their parameters per filter ready to broadcast over outputs."""
    shapes = filter_shapes(inputs.x, op)

    def shape(value: Tensor | None) -> Tensor | None:
        return None if value is None else shapes.over_patches(value)

    return inputs._replace(
        radius=shapes.over_patches(inputs.radius),
        k=shape(inputs.k),
        scale=shape(inputs.scale),
        shift=shape(inputs.shift),
    )
