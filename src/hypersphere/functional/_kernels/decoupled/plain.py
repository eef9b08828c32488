"""A decoupled operator as data, and in plain differentiable operations.

Note [Zero patches]: a zero patch has no direction. Its cosine is 0, so its output is 0 (before the
bias, and whatever g(0) is), and nothing flows through its norm. What flows through s = w^T x is
df/ds = r(0) g'(0), as in any other patch with c = 0: r(0), with r(n) = h(n) / n, is the slope of h
at 0, and 0 for the sphere, whose slope there is infinite.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...angular import DEFAULT_K, Angular, wide_angular
from ...magnitude import BETA, MagnitudeKind, magnitude, magnitude_ratio
from .patches import Geometry, project

__all__ = ["Inputs", "Layout", "Operator", "plain_operator"]


class Operator(NamedTuple):
    """What is fixed about an operator; its tensors are in Inputs."""

    magnitude: MagnitudeKind
    angular: Angular
    alpha: float
    beta: float | None
    geometry: Geometry | None
    k: float = DEFAULT_K

    @property
    def settings(self) -> tuple[MagnitudeKind, float, float | None]:
        beta = BETA.get(self.magnitude) if self.beta is None else self.beta
        return self.magnitude, self.alpha, beta

    @property
    def bounded(self) -> bool:
        return self.magnitude in ("sphere", "ball", "tanh")


class Inputs(NamedTuple):
    """x: (B, C_in, ...); norm: |x| of its patches; kernel: unit filters (C, C_in / groups, ...).

    radius, k, scale, shift: one number, or one a filter (C,). k=None: the operator's own.
    """

    x: Tensor
    norm: Tensor
    kernel: Tensor
    radius: Tensor
    k: Tensor | None = None
    scale: Tensor | None = None
    shift: Tensor | None = None


class Layout(NamedTuple):
    """Shapes in which filters (C,), patch norms (B, G, ...) and outputs (B, C, ...) broadcast."""

    groups: int
    spatial: int

    @property
    def channel(self) -> int:
        return 1 if self.groups == 1 else 2

    def split(self, output: Tensor) -> Tensor:
        return output if self.groups == 1 else output.unflatten(1, (self.groups, -1))

    def join(self, output: Tensor) -> Tensor:
        return output if self.groups == 1 else output.flatten(1, 2)

    def over_channels(self, norm: Tensor) -> Tensor:
        return norm if self.groups == 1 else norm.unsqueeze(2)

    def over_patches(self, value: Tensor) -> Tensor:
        if value.ndim == 0:
            return value
        group = () if self.groups == 1 else (self.groups,)
        return value.reshape(*group, -1, *[1] * self.spatial)

    def sum_patches(self, value: Tensor, like: Tensor) -> Tensor:
        """Sum over all patches, shaped like the filters' parameter."""
        if like.ndim == 0:
            return value.sum()
        kept = {self.channel} | ({1} if self.groups > 1 else set())
        return (
            value.sum([d for d in range(value.ndim) if d not in kept])
            .reshape(like.shape)
            .to(like.dtype)
        )


def plain_operator(inputs: Inputs, op: Operator) -> Tensor:
    """f(w, x) in differentiable operations: for compilers, exporters, second derivatives, any g."""
    x, kernel = inputs.x, inputs.kernel
    lay = layout(x, op)
    s = lay.split(project(x, kernel, op.geometry))
    n, shaped = lay.over_channels(inputs.norm), shaped_inputs(inputs, op)
    if op.angular == "cosine":
        out = s * magnitude_ratio(n, *op.settings, shaped.radius)
        out = out.clamp(-op.alpha, op.alpha) if op.bounded else out
    else:
        # In a zero patch n counts as 1 and h as r(0), see Note [Zero patches].
        there = n > 0
        c = (s * torch.where(there, n, 1).reciprocal()).clamp(-1, 1)
        if callable(op.angular):  # the named activations are 0 at c = 0 by themselves
            there_too = lay.over_patches(kernel.detach().flatten(1).ne(0).any(1))
            at_zero = op.angular(c.new_zeros(1, *c.shape[1:]))
            g = op.angular(c) - torch.where(there & there_too, 0, at_zero)
        else:
            k = op.k if shaped.k is None else shaped.k
            g = wide_angular(c, op.angular, k, torch.finfo(s.dtype).eps)
        slope = magnitude_ratio(n.new_zeros(()), *op.settings, shaped.radius)
        out = g * torch.where(there, magnitude(n, *op.settings, shaped.radius), slope)
    if shaped.scale is not None:
        out = out * shaped.scale
    if shaped.shift is not None:
        out = out + shaped.shift
    return lay.join(out).to(s.dtype)


def layout(x: Tensor, op: Operator) -> Layout:
    if op.geometry is None:
        return Layout(1, 0)
    return Layout(op.geometry.groups, x.ndim - 2)


def shaped_inputs(inputs: Inputs, op: Operator) -> Inputs:
    """The inputs with one value a filter, ready to broadcast over outputs."""
    lay = layout(inputs.x, op)

    def shape(value: Tensor | None) -> Tensor | None:
        return None if value is None else lay.over_patches(value)

    return inputs._replace(
        radius=lay.over_patches(inputs.radius),
        k=shape(inputs.k),
        scale=shape(inputs.scale),
        shift=shape(inputs.shift),
    )
