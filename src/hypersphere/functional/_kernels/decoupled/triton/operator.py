"""The decoupled operator by Triton: the kernels' arguments, forward and backward."""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..backward import wants_plain_gradients
from ..convolution import convolution_gradients, correlate
from ..formulas import Untranslatable
from ..plain import Inputs, OperatorSettings, differentiable_gradients
from . import arithmetic
from .kernels import backward_kernel, forward_kernel
from .launch import block, launch
from .translate import angular_source, compile_function, magnitude_source

__all__ = ["Layout", "constants", "formulas", "triton_operator"]

# Numbers of a tile: enough to hide the way to memory, few enough for the registers of a program.
PATCHES, FILTERS = 64, 16
# The backward keeps more of them at a time; twice the threads have twice the registers. NVIDIA's
# compiler would rather spill two of them than let fewer programs run at a time; told how many it
# may use, it spills none. Compilers of other makers do not know this word.
BACKWARD_WARPS, MOST_REGISTERS = 8, 128
BACKWARD = {"num_warps": BACKWARD_WARPS}
if torch.version.cuda is not None:
    BACKWARD["maxnreg"] = MOST_REGISTERS


def triton_operator(inputs: Inputs, op: OperatorSettings) -> Tensor | None:
    """f(w, x), or None where g or h cannot be written down for a kernel."""
    if formulas(op, inputs.k is not None, inputs.x.dtype) is None:
        return None
    out: Tensor = _Operator.apply(op, *inputs)  # type: ignore[no-untyped-call]
    return out


class Layout(NamedTuple):
    """Outputs as images of patches: sizes, and the steps from one to the next in memory."""

    images: int
    groups: int
    channels: int
    patches: int
    strides: tuple[int, int, int]

    @classmethod
    def of(cls, out: Tensor, groups: int) -> Layout:
        """Of outputs (B, C, ...), with patches or filters next to each other in memory."""
        if out.ndim == 2:  # rows of a linear layer are the patches of one image
            return cls(1, 1, out.shape[1], out.shape[0], (0, out.stride(1), out.stride(0)))
        batch, filters = out.shape[:2]
        flat = out.flatten(2)
        return cls(batch, groups, filters // groups, flat.shape[2], flat.stride())  # type: ignore[arg-type]


def formulas(op: OperatorSettings, has_k: bool, dtype: torch.dtype) -> tuple[Any, Any] | None:
    """g and h as Triton functions, made once; None if they have a state or no such form."""
    g, h = op.angular, op.magnitude
    # An object with attributes of its own may change; named formulas have none but the name.
    if (vars(g).keys() | vars(h).keys()) - {"name"}:
        return None
    known = _made.setdefault(g, {})
    key = (h, None if has_k else op.k, op.alpha, op.beta, torch.finfo(dtype).eps)
    if key not in known:
        try:
            known[key] = (
                _jit(angular_source(g, key[1], key[4]), "g"),
                _jit(magnitude_source(h, *op.constants), "h"),
            )
        except Untranslatable:
            known[key] = None
    return known[key]


_made: WeakKeyDictionary[Any, dict[Any, tuple[Any, Any] | None]] = WeakKeyDictionary()


@cache
def _jit(source: str, name: str) -> Any:
    scope = {"tl": tl, **{name: getattr(arithmetic, name) for name in arithmetic.__all__}}
    return triton.jit(compile_function(source, name, scope))


def constants(inputs: Inputs, op: OperatorSettings) -> dict[str, Any]:
    """What both kernels have fixed when they are compiled."""
    found = formulas(op, inputs.k is not None, inputs.x.dtype)
    assert found is not None  # triton_operator has looked
    scale = inputs.scale
    return {
        "g": found[0],
        "h": found[1],
        "ALPHA": float(op.alpha) if op.magnitude.is_constant else None,
        "BOUND": op.bound,
        "COSINE": op.angular.is_cosine,
        "RADIUS_PER_FILTER": inputs.radius.ndim > 0,
        "K_PER_FILTER": inputs.k is not None and inputs.k.ndim > 0,
        "SCALE": scale is not None,
        "SCALE_PER_FILTER": scale is not None and scale.ndim > 0,
    }


class _Operator(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, op: OperatorSettings, *tensors: Tensor | None) -> Tensor:
        inputs = Inputs(*(t if t is None else t.detach() for t in tensors))  # type: ignore[arg-type]
        s = _dense(correlate(inputs.x, inputs.kernel, op.geometry))
        out = torch.empty_like(s)
        to = Layout.of(s, 1 if op.geometry is None else op.geometry.groups)
        size = {"BLOCK_P": block(to.patches, PATCHES), "BLOCK_C": block(to.channels, FILTERS)}
        programs = to.images * to.groups * math.ceil(to.patches / size["BLOCK_P"])
        norm, shift = inputs.norm.contiguous(), inputs.shift
        launch(
            forward_kernel,
            (programs, math.ceil(to.channels / size["BLOCK_C"])),
            s,
            *(s, norm, inputs.radius, _or(inputs.k, norm), _or(inputs.scale, norm)),
            *(_or(shift, norm), out),
            *(to.groups, to.channels, to.patches, *to.strides),
            **constants(inputs, op),
            SHIFT=shift is not None,
            SHIFT_PER_FILTER=shift is not None and shift.ndim > 0,
            **size,
        )
        ctx.op = op
        ctx.save_for_backward(*tensors, s)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, s = ctx.saved_tensors
        op, inputs, needed = ctx.op, Inputs(*tensors), ctx.needs_input_grad[1:]
        if wants_plain_gradients(grad):
            return None, *differentiable_gradients(grad, inputs, needed, op)
        return None, *_gradients(grad, inputs, s, needed, op)


def _gradients(
    grad: Tensor, inputs: Inputs, s: Tensor, needed: tuple[bool, ...], op: OperatorSettings
) -> tuple[Tensor | None, ...]:
    need = dict(zip(Inputs._fields, needed, strict=True))
    need["radius"] &= op.magnitude.has_radius
    groups = 1 if op.geometry is None else op.geometry.groups
    grad = _dense(grad)
    to, come = Layout.of(s, groups), Layout.of(grad, groups)
    size = {"BLOCK_P": block(to.patches, PATCHES), "BLOCK_C": block(to.channels, FILTERS)}
    blocks = math.ceil(to.patches / size["BLOCK_P"])
    norm = inputs.norm.contiguous()
    grad_s, grad_norm = torch.empty_like(s), torch.empty_like(norm)
    # In the order in which the kernel writes them.
    summed = [name for name in ("shift", "scale", "radius", "k") if need[name]]
    filters = to.groups * to.channels
    shares = norm.new_empty(len(summed), to.images * blocks, filters)
    launch(
        backward_kernel,
        (to.images * to.groups * blocks,),
        s,
        *(grad, s, norm, inputs.radius, _or(inputs.k, norm), _or(inputs.scale, norm)),
        *(grad_s, grad_norm, shares),
        *(to.groups, to.channels, to.patches, *to.strides, *come.strides, shares.stride(0)),
        **constants(inputs, op),
        **BACKWARD,
        **{
            f"NEED_{name.upper()}": need[name] for name in ("norm", "radius", "k", "scale", "shift")
        },
        **size,
    )
    totals: dict[str, Tensor] = {}
    for name, total in zip(summed, shares.sum(1) if summed else (), strict=True):
        like: Tensor = getattr(inputs, name)
        total = total if like.ndim else total.sum()
        totals[name] = total if total.dtype == like.dtype else total.to(like.dtype)
    grad_x, grad_kernel = convolution_gradients(
        grad_s, inputs.x, inputs.kernel, op.geometry, need["x"], need["kernel"]
    )
    return (
        grad_x,
        grad_norm if need["norm"] else None,
        grad_kernel,
        *(totals.get(name) for name in ("radius", "k", "scale", "shift")),
    )


def _or(value: Tensor | None, other: Tensor) -> Tensor:
    """A pointer that the kernel does not follow stands for a tensor that is not there."""
    return other if value is None else value


def _dense(x: Tensor) -> Tensor:
    """x with its patches in one row, whatever a slice has left of it."""
    if x.ndim == 2 or x.is_contiguous() or _is_channels_last(x):
        return x
    return x.contiguous()


def _is_channels_last(x: Tensor) -> bool:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.ndim in formats and x.is_contiguous(memory_format=formats[x.ndim])
