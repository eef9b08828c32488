"""The decoupled operator as one step with its own backward.

f = scale h(n) g(c) + shift, with s = w^T x for a unit filter w, n = |x| and c = cos(theta) = s / n.
Autograd through these operations would save half a dozen tensors of the size of the output; this
saves one (s for the cosine activation, c for the others) and the patch norms, which have one
channel a group, and works out the rest again in the backward, a few images at a time:

    df/ds = scale r(n) g'(c)                        r(n) = h(n) / n
    df/dn = scale (h'(n) g(c) - r(n) g'(c) c)       n reaches x through the box filter
    df/drho = scale g(c) dh/drho,   df/dk = scale h(n) dg/dk,   df/dscale = h(n) g(c)

See Note [Zero patches] in operator.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .activation import Activation
from .magnitude import FLOOR, RADIUS_KINDS, magnitude, magnitude_ratio, magnitude_slope
from .operator import Inputs, Operator, inverse_norm, layout, plain_operator, shaped_inputs
from .patches import (
    add_norm_gradient,
    convolution_gradients,
    is_traced,
    patch_norms,
    project,
    tiles,
)

__all__ = ["Inputs", "Operator", "apply_operator", "plain_operator"]


def apply_operator(inputs: Inputs, op: Operator) -> Tensor:
    """f(w, x): fused where autograd runs eagerly, in plain operations where something traces it."""
    if is_traced() or callable(op.angular):
        return plain_operator(inputs, op)
    return _Fused.apply(op, *inputs)


class _Need(NamedTuple):
    """Which of the inputs need a gradient, in the order of Inputs."""

    x: bool
    kernel: bool
    radius: bool
    k: bool
    scale: bool
    shift: bool
    norm: bool


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, op: Operator, *tensors: Tensor | None) -> Tensor:  # type: ignore[override]
        inputs = Inputs(*tensors)  # type: ignore[arg-type]
        lay, shaped = layout(inputs.x, op), shaped_inputs(inputs, op)
        s = project(inputs.x, inputs.kernel, op.geometry)
        size = tuple(inputs.kernel.shape[2:])
        norm = patch_norms(inputs.x, size, op.geometry) if inputs.norm is None else inputs.norm
        out, maps = torch.empty_like(s), _Maps(lay.over_channels(norm), shaped.radius, op)
        act = Activation(op.angular, shaped.k, norm, s.dtype)
        for rows in tiles(s):
            part, value = lay.split(s[rows]), lay.split(out[rows])
            if op.angular == "cosine":
                torch.mul(part, maps.ratio(rows), out=value)
                if op.bounded:
                    value.clamp_(-op.alpha, op.alpha)
            else:
                part.mul_(maps.inverse[rows]).clamp_(-1, 1)  # s is not needed again, only c
                h = magnitude(maps.norm[rows], *op.settings, shaped.radius)
                torch.mul(act.value(part.to(norm.dtype)), h * act.factor, out=value)
            if shaped.scale is not None:
                value *= shaped.scale
            if shaped.shift is not None:
                value += shaped.shift
        ctx.op, ctx.spent = op, False
        ctx.save_for_backward(*tensors, s, norm)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        *tensors, saved, norm = ctx.saved_tensors
        op, inputs, needed = ctx.op, Inputs(*tensors), ctx.needs_input_grad[1:]
        if torch.is_grad_enabled():  # a second derivative will be asked of the result
            return None, *_differentiable_gradients(grad, inputs, needed, op)
        # The gradient in s takes the place of what was saved, which spares an output-sized tensor.
        # Should a retained graph come here again, its s is worked out anew.
        if ctx.spent:
            saved = _saved(inputs, norm, op)
        ctx.spent = True
        with torch.autograd._unsafe_preserve_version_counter(saved):
            return None, *_Backward(grad, inputs, saved, norm, needed, op).run()


def _differentiable_gradients(
    grad: Tensor, inputs: Inputs, needed: Sequence[bool], op: Operator
) -> Iterator[Tensor | None]:
    wanted = [t for t, need in zip(inputs, needed, strict=True) if need and t is not None]
    out = plain_operator(inputs, op)
    found = iter(torch.autograd.grad(out, wanted, grad, create_graph=True, allow_unused=True))
    return (next(found) if need else None for need in needed)


class _Backward:
    """The gradients of one call, tile by tile; the one in s takes the place of `saved`."""

    def __init__(
        self,
        grad: Tensor,
        inputs: Inputs,
        saved: Tensor,
        norm: Tensor,
        need: Sequence[bool],
        op: Operator,
    ) -> None:
        self.grad, self.inputs, self.saved, self.norm, self.op = grad, inputs, saved, norm, op
        self.need = _Need(*need)
        self.lay, self.shaped = layout(inputs.x, op), shaped_inputs(inputs, op)
        self.maps = _Maps(self.lay.over_channels(norm), self.shaped.radius, op)
        self.act = Activation(op.angular, self.shaped.k, norm, saved.dtype)
        self.grad_n = torch.empty_like(norm)
        self.sums = {
            name: torch.zeros_like(getattr(inputs, name))
            for name in ("radius", "k", "scale", "shift")
            if getattr(self.need, name)
        }

    def run(self) -> tuple[Tensor | None, ...]:
        inputs, need, op = self.inputs, self.need, self.op
        own_norm = need.x and inputs.norm is None
        through_norm = own_norm or need.norm or need.radius
        for rows in tiles(self.saved):
            go, part = self.lay.split(self.grad[rows]), self.lay.split(self.saved[rows])
            if need.shift:
                self.add("shift", go)
            if need.scale:
                value, n = part, self.maps.norm[rows]
                if op.angular != "cosine":
                    value = self.act.value(part.to(n.dtype)) * (n * self.act.factor)
                self.add("scale", value * self.maps.ratio(rows) * go)
            if self.shaped.scale is not None:
                go = go * self.shaped.scale
            step = self.cosine_tile if op.angular == "cosine" else self.angular_tile
            gn = step(go, part, rows, through_norm)
            if gn is not None:
                self.lay.over_channels(self.grad_n[rows]).copy_(gn)
        grad_x, grad_kernel = convolution_gradients(
            self.saved, inputs.x, inputs.kernel, op.geometry, need.x, need.kernel
        )
        if grad_x is not None and own_norm:
            size = tuple(inputs.kernel.shape[2:])
            add_norm_gradient(grad_x, self.grad_n, self.norm, inputs.x, size, op.geometry)
        sums = [self.sums.get(name) for name in ("radius", "k", "scale", "shift")]
        return grad_x, grad_kernel, *sums, self.grad_n if need.norm else None

    def cosine_tile(
        self, go: Tensor, part: Tensor, rows: slice, through_norm: bool
    ) -> Tensor | None:
        """g = c = s / n: df/ds = r, df/dn = (h' - r) s / n, all times the incoming gradient."""
        if not self.maps.shared and through_norm:
            return self.radius_tile(go, part, rows)
        gn, ratio = None, self.maps.ratio(rows)
        if through_norm:
            t = (go * part).sum(self.lay.channel, keepdim=True)
            d = t * self.maps.slope(rows, ratio)
            if self.need.radius:
                self.add_radius(t, d, rows, over_n=False)
            gn = (d - t * ratio) * self.maps.inverse[rows]
        torch.mul(go, ratio, out=part)
        return gn

    def radius_tile(self, go: Tensor, part: Tensor, rows: slice) -> Tensor:
        """cosine_tile for a radius of each filter, with t = go s and what is simple in each h:

        ball:       n df/dn = -r t [n > rho],  df/drho = -alpha / rho^2 t [n <= rho]
        segmented:  n df/dn = -(alpha - beta) rho t / n [n > rho],  df/drho = -n df/dn / rho
        tanh:       n df/dn = h' t - r t,  df/drho = -h' t / rho,  h' = alpha (1 - tanh^2) / rho
        """
        alpha, radius, channel = self.op.alpha, self.maps.radius, self.lay.channel
        n, inverse = self.maps.norm[rows], self.maps.inverse[rows]
        t = (go * part).to(n.dtype)
        if self.op.magnitude == "tanh":
            n = n.clamp_min(FLOOR)  # tanh(n / rho) / n then has its limit at a zero patch
            inverse, tanh = n.reciprocal(), (n / radius).tanh_()
            product = t * tanh
            slope = torch.addcmul(t, product, tanh, value=-1)
            self.add("radius", slope, -alpha / self.inputs.radius**2)
            through_slope = slope.div_(radius).sum(channel, keepdim=True)
            gn = through_slope - product.sum(channel, keepdim=True).mul_(inverse)
            torch.mul(tanh.mul_(go), inverse * alpha, out=part)
            return gn * (alpha * inverse)
        beyond = torch.where(n > radius, t, 0)
        if self.op.magnitude == "ball":
            self.add("radius", t.sub_(beyond), -alpha / self.inputs.radius**2)
            torch.mul(go, self.maps.ratio(rows), out=part)
            return beyond.sum(channel, keepdim=True) * (-alpha * inverse * inverse)
        difference = alpha - (self.op.settings[2] or 0.0)
        beyond.mul_(inverse)
        self.add("radius", beyond, difference)
        torch.mul(go, self.maps.ratio(rows), out=part)
        return beyond.mul_(radius).sum(channel, keepdim=True) * (-difference * inverse)

    def angular_tile(
        self, go: Tensor, part: Tensor, rows: slice, through_norm: bool
    ) -> Tensor | None:
        """df/ds = r g'(c), df/dn = h' g - r g' c, all times the incoming gradient."""
        n, act, channel = self.maps.norm[rows], self.act, self.lay.channel
        ratio = self.maps.ratio(rows)
        c = part.to(n.dtype)
        value = act.value(c) if through_norm and not self.maps.flat else None
        if self.need.k:
            a, slope_k = act.slopes(c)
            self.add("k", slope_k.mul_(go).mul_(ratio * n))
        else:
            a = act.slope(c, value)
        a.mul_(go)
        # A factor that all filters share waits until their sum is taken.
        factor = ratio * act.slope_factor
        waits = self.maps.shared and act.slope_factor.ndim == 0
        a = a if waits else a.mul_(factor)
        gn = None
        if through_norm:
            gn = (a * c).sum(channel, keepdim=True).neg_()
            gn = gn.mul_(factor) if waits else gn
            if value is not None:
                t = value.mul_(go)
                t = t.mul_(act.factor) if act.factor.ndim or not self.maps.shared else t
                if self.maps.shared:
                    t = t.sum(channel, keepdim=True)
                    t = t if act.factor.ndim else t.mul_(act.factor)
                d = t * self.maps.slope(rows, ratio)
                gn += d.sum(channel, keepdim=True)
                if self.need.radius:
                    self.add_radius(t, d, rows, over_n=True)
        if waits:
            torch.mul(a, factor, out=part)
        else:
            part.copy_(a)
        return gn

    def add(self, name: str, value: Tensor, factor: Tensor | float = 1.0) -> None:
        if name in self.sums:
            self.sums[name] += self.lay.sum_patches(value, self.sums[name]) * factor

    def add_radius(self, t: Tensor, d: Tensor, rows: slice, over_n: bool) -> None:
        """Add g dh/drho, from t = g and d = g h'; over_n=False says that both are still times n.

        dh/drho is alpha - h' for the segmented magnitude and -n h' / rho for ball and tanh.
        """
        if self.op.magnitude == "segmented":
            value = self.op.alpha * t - d
            self.add("radius", value if over_n else value * self.maps.inverse[rows])
        else:
            value = d * self.maps.norm[rows] if over_n else d
            self.sums["radius"] -= (
                self.lay.sum_patches(value, self.inputs.radius) / self.inputs.radius
            )


class _Maps:
    """h and its relatives over the patches: once for all filters that share a radius, else by tile.

    norm: shaped to broadcast over the filters. flat: h does not change with n at all (sphere).
    """

    def __init__(self, norm: Tensor, radius: Tensor, op: Operator) -> None:
        self.norm, self.radius, self.op = norm, radius, op
        self.inverse = inverse_norm(norm)
        self.flat = op.magnitude == "sphere"
        self.shared = radius.ndim == 0 or op.magnitude not in RADIUS_KINDS
        self.ratios = magnitude_ratio(norm, *op.settings, radius) if self.shared else None

    def ratio(self, rows: slice) -> Tensor:
        if self.ratios is not None:
            return self.ratios[rows]
        return magnitude_ratio(self.norm[rows], *self.op.settings, self.radius)

    def slope(self, rows: slice, ratio: Tensor) -> Tensor:
        n = self.norm[rows]
        if self.op.magnitude == "tanh":  # h' = (alpha - h^2 / alpha) / rho spares another tanh
            alpha = self.op.alpha
            h = ratio * n
            return torch.addcmul(n.new_full((), alpha), h, h, value=-1 / alpha).div_(self.radius)
        return magnitude_slope(n, *self.op.settings, self.radius)


def _saved(inputs: Inputs, norm: Tensor, op: Operator) -> Tensor:
    """What the forward saves: s for the cosine activation, c = s / n for the others."""
    s = project(inputs.x, inputs.kernel, op.geometry)
    if op.angular != "cosine":
        lay = layout(inputs.x, op)
        lay.split(s).mul_(inverse_norm(lay.over_channels(norm))).clamp_(-1, 1)
    return s
