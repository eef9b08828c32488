"""The decoupled operator as one step with its own backward, and the same in plain operations.

f = scale h(n) g(c) + shift, with s = w^T x for a unit filter w, n = |x| and c = cos(theta) = s / n.
Autograd through these operations would save half a dozen tensors of the size of the output; this
saves one (s for the cosine activation, c for the others) and the patch norms, which have one
channel a group, and works out the rest again in the backward:

    df/ds = scale r(n) g'(c)                        r(n) = h(n) / n
    df/dn = scale (h'(n) g(c) - r(n) g'(c) c)       n reaches x through the box filter
    df/drho = scale g(c) dh/drho,   df/dk = scale h(n) dg/dk,   df/dscale = h(n) g(c)

Note [Zero patches]: a zero patch has no direction. Its cosine is 0, so its output is 0 (before the
bias), and nothing flows through its norm. r(0) is the slope of h at 0, and 0 for the sphere,
whose slope there is infinite.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .activation import Activation
from .angular import Angular, angular
from .magnitude import (
    RADIUS_KINDS,
    MagnitudeKind,
    magnitude,
    magnitude_ratio,
    magnitude_slope,
)
from .patches import (
    Geometry,
    add_norm_gradient,
    convolution_gradients,
    is_traced,
    patch_norms,
    plain_patch_norms,
    project,
    tiles,
)

__all__ = ["Inputs", "Operator", "apply_operator", "plain_operator"]


class Operator(NamedTuple):
    """What is fixed about an operator; its tensors are in Inputs."""

    magnitude: MagnitudeKind
    angular: Angular
    alpha: float
    beta: float | None
    geometry: Geometry | None

    @property
    def settings(self) -> tuple[MagnitudeKind, float, float | None]:
        return self.magnitude, self.alpha, self.beta

    @property
    def bounded(self) -> bool:
        return self.magnitude in ("sphere", "ball", "tanh")


class Inputs(NamedTuple):
    """x: (B, C_in, ...); kernel: unit filters (C, C_in / groups, ...); norm: |x| if known already.

    radius, k, scale, shift: one number, or one a filter (C,).
    """

    x: Tensor
    kernel: Tensor
    radius: Tensor
    k: Tensor | None = None
    scale: Tensor | None = None
    shift: Tensor | None = None
    norm: Tensor | None = None


class _Need(NamedTuple):
    """Which of the inputs need a gradient, in the order of Inputs."""

    x: bool
    kernel: bool
    radius: bool
    k: bool
    scale: bool
    shift: bool
    norm: bool


class _Layout(NamedTuple):
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


def apply_operator(inputs: Inputs, op: Operator) -> Tensor:
    """f(w, x): fused where autograd runs eagerly, in plain operations where something traces it."""
    if is_traced() or callable(op.angular):
        return plain_operator(inputs, op)
    return _Fused.apply(op, *inputs)


def plain_operator(inputs: Inputs, op: Operator) -> Tensor:
    """f(w, x) in differentiable operations: for compilers, exporters, second derivatives, any g."""
    x, kernel = inputs.x, inputs.kernel
    lay = _layout(x, op)
    s = lay.split(project(x, kernel, op.geometry))
    norm = inputs.norm
    if norm is None:
        norm = plain_patch_norms(x, tuple(kernel.shape[2:]), op.geometry)
    n, shaped = lay.over_channels(norm), _shaped(inputs, op)
    if op.angular == "cosine":
        out = s * magnitude_ratio(n, *op.settings, shaped.radius)
        out = out.clamp(-op.alpha, op.alpha) if op.bounded else out
    else:
        g = angular((s * _inverse(n)).clamp(-1, 1), op.angular, shaped.k)
        if callable(op.angular):  # the named activations are 0 at c = 0 by themselves
            g = g * ((n > 0) & lay.over_patches(kernel.detach().flatten(1).ne(0).any(1)))
        out = g * magnitude(n, *op.settings, shaped.radius)
    if shaped.scale is not None:
        out = out * shaped.scale
    if shaped.shift is not None:
        out = out + shaped.shift
    return lay.join(out).to(s.dtype)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, op: Operator, *tensors: Tensor | None) -> Tensor:  # type: ignore[override]
        inputs = Inputs(*tensors)  # type: ignore[arg-type]
        lay, shaped = _layout(inputs.x, op), _shaped(inputs, op)
        s = project(inputs.x, inputs.kernel, op.geometry)
        size = tuple(inputs.kernel.shape[2:])
        norm = patch_norms(inputs.x, size, op.geometry) if inputs.norm is None else inputs.norm
        out, maps = torch.empty_like(s), _Maps(lay.over_channels(norm), shaped.radius, op)
        act = Activation(op.angular, shaped.k, norm)
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
        self.lay, self.shaped = _layout(inputs.x, op), _shaped(inputs, op)
        self.maps = _Maps(self.lay.over_channels(norm), self.shaped.radius, op)
        self.act = Activation(op.angular, self.shaped.k, norm)
        self.grad_n = torch.empty_like(norm)
        self.sums = {
            name: torch.zeros_like(getattr(inputs, name))
            for name in ("radius", "k", "scale", "shift")
            if getattr(self.need, name)
        }

    def run(self) -> tuple[Tensor | None, ...]:
        inputs, need, op = self.inputs, self.need, self.op
        through_norm = need.x or need.norm or need.radius
        for rows in tiles(self.saved):
            go, part = self.lay.split(self.grad[rows]), self.lay.split(self.saved[rows])
            ratio, n = self.maps.ratio(rows), self.maps.norm[rows]
            if need.shift:
                self.add("shift", go)
            if need.scale:
                value = part
                if op.angular != "cosine":
                    value = self.act.value(part.to(n.dtype)) * (n * self.act.factor)
                self.add("scale", value * ratio * go)
            if self.shaped.scale is not None:
                go = go * self.shaped.scale
            step = self.cosine_tile if op.angular == "cosine" else self.angular_tile
            gn = step(go, part, ratio, rows, through_norm)
            if gn is not None:
                self.lay.over_channels(self.grad_n[rows]).copy_(gn)
        grad_x, grad_kernel = convolution_gradients(
            self.saved, inputs.x, inputs.kernel, op.geometry, need.x, need.kernel
        )
        if grad_x is not None and not need.norm:
            size = tuple(inputs.kernel.shape[2:])
            add_norm_gradient(grad_x, self.grad_n, self.norm, inputs.x, size, op.geometry)
        sums = [self.sums.get(name) for name in ("radius", "k", "scale", "shift")]
        return grad_x, grad_kernel, *sums, self.grad_n if need.norm else None

    def cosine_tile(
        self, go: Tensor, part: Tensor, ratio: Tensor, rows: slice, through_norm: bool
    ) -> Tensor | None:
        """g = c = s / n: df/ds = r, df/dn = (h' - r) s / n, all times the incoming gradient."""
        gn = None
        if through_norm:
            t = go * part
            if self.maps.shared:
                t = t.sum(self.lay.channel, keepdim=True)
            if self.maps.flat:
                gn = -t * ratio
            else:
                d = t * self.maps.slope(rows, ratio)
                if self.need.radius:
                    self.add_radius(t, d, rows, over_n=False)
                gn = d.sub_(t.mul_(ratio))
            if not self.maps.shared:
                gn = gn.sum(self.lay.channel, keepdim=True)
            gn *= self.maps.inverse[rows]
        torch.mul(go, ratio, out=part)
        return gn

    def angular_tile(
        self, go: Tensor, part: Tensor, ratio: Tensor, rows: slice, through_norm: bool
    ) -> Tensor | None:
        """df/ds = r g'(c), df/dn = h' g - r g' c, all times the incoming gradient."""
        n, act, channel = self.maps.norm[rows], self.act, self.lay.channel
        c = part.to(n.dtype)
        if self.need.k:
            a, slope_k = act.slopes(c)
            self.add("k", slope_k.mul_(go).mul_(ratio * n))
        else:
            a = act.slope(c)
        a.mul_(go)
        # A factor that all filters share waits until their sum is taken.
        factor = ratio * act.slope_factor
        waits = self.maps.shared and act.slope_factor.ndim == 0
        a = a if waits else a.mul_(factor)
        gn = None
        if through_norm:
            gn = (a * c).sum(channel, keepdim=True).neg_()
            gn = gn.mul_(factor) if waits else gn
            if not self.maps.flat:
                t = act.value(c).mul_(go)
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

    def add(self, name: str, value: Tensor) -> None:
        self.sums[name] += self.lay.sum_patches(value, self.sums[name])

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
        self.inverse = _inverse(norm)
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
        lay = _layout(inputs.x, op)
        lay.split(s).mul_(_inverse(lay.over_channels(norm))).clamp_(-1, 1)
    return s


def _layout(x: Tensor, op: Operator) -> _Layout:
    if op.geometry is None:
        return _Layout(1, 0)
    return _Layout(op.geometry.groups, x.ndim - 2)


def _shaped(inputs: Inputs, op: Operator) -> Inputs:
    """The inputs with one value a filter, ready to broadcast over outputs."""
    lay = _layout(inputs.x, op)

    def shape(value: Tensor | None) -> Tensor | None:
        return None if value is None else lay.over_patches(value)

    return inputs._replace(
        radius=lay.over_patches(inputs.radius),
        k=shape(inputs.k),
        scale=shape(inputs.scale),
        shift=shape(inputs.shift),
    )


def _inverse(n: Tensor) -> Tensor:
    """1 / n, and 0 for a zero patch, see Note [Zero patches]."""
    return 1 / torch.where(n > 0, n, torch.inf)
