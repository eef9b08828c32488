"""log sum exp over the classes a sample does not belong to, without the (B, C) matrix of scores.

Classes are taken a chunk at a time, forwards and again backwards: nothing of size B x C is kept,
and the weight gradient is written chunk by chunk into its one buffer. The score of the target is
left to the caller, who computes it from `rows` with ordinary autograd, so that margins, annealing
and gradient semantics touch B numbers only.
"""

import functools
from typing import Any

import torch
from torch import Tensor

from ...angular import Angular, check_angular, is_cosine
from .chunks import backward_pass, forward_pass

__all__ = ["class_logsumexp"]

CHUNK_ENTRIES = 1 << 19  # scores a chunk holds: 2 MB, small enough for the cache
MIN_CHUNK = 256


def class_logsumexp(
    z: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    unit: bool = True,
    bias: Tensor | None = None,
    kind: Angular = "cosine",
    k: float | Tensor | None = None,
    mass: Tensor | None = None,
    index: Tensor | None = None,
    offset: Tensor | None = None,
    jacobian: bool = True,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """log sum exp f_j and sum mass_j f_j over j != y, and the rows w_y, for f = |z| n g(theta) + b.

    z: (B, d) features, scaled so that |z| is the scale of the scores. weight: (C, d), a class per
    row. labels: (B,) integers; -1 excludes nothing and gives row 0, whose use is the caller's.
    unit: n = 1, else n = |w|. bias: (C,). kind, k: the angular activation g and its curvature.
    mass: (C,) or (B, C), constant; the second result is zero without it.
    index: (S,) ascending classes to sum over instead of all; offset: (S,) constants added to
    their scores. jacobian: False drops the gradient of w/|w|, as if the rows were unit already.
    chunk: classes at a time; by default such that the scores of a chunk take 2 MB.

    Returns (B,), (B,), (B, d) in float32 or wider. Memory beyond the inputs and their gradients is
    O(B chunk), plus one number per class. The gradient cannot be differentiated again.

    >>> z, w = torch.eye(3)[:2], torch.eye(3)
    >>> class_logsumexp(z, w, torch.tensor([0, 1]))[0]  # log(e^0 + e^0)
    tensor([0.6931, 0.6931])
    """
    if chunk is None:
        chunk = max(MIN_CHUNK, CHUNK_ENTRIES // max(1, z.shape[0]))
    wide = torch.promote_types(torch.promote_types(z.dtype, weight.dtype), torch.float32)
    g = check_angular(kind, k)
    if isinstance(k, (int, float)):
        k = torch.tensor(k, dtype=wide, device=z.device)
    args = (z.to(wide), weight, labels, bias, k, mass, index, offset, unit, jacobian, chunk)
    if isinstance(kind, str):
        others, moment, rows, _ = _operator(*args, kind)
    else:
        parameters: tuple[Tensor, ...] = ()
        parameters = tuple(kind.parameters()) if isinstance(kind, torch.nn.Module) else ()
        if k is not None and g.default_k is not None:  # autograd sees k as what g is made of
            kind, parameters = functools.partial(g.value, k=k), (k,)
        others, moment, rows, _ = _CallableActivation.apply(kind, *args, *parameters)
    return others, moment, rows


# --- two ways into autograd: operators that torch.compile takes as they are, for the named
# activations, and a Function for any other callable -----------------------------------------------


@torch.library.custom_op("hypersphere::class_logsumexp", mutates_args=())
def _operator(
    z: Tensor,
    weight: Tensor,
    labels: Tensor,
    bias: Tensor | None,
    k: Tensor | None,
    mass: Tensor | None,
    index: Tensor | None,
    offset: Tensor | None,
    unit: bool,
    jacobian: bool,
    chunk: int,
    kind: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    with torch.autocast(z.device.type, enabled=False):
        return forward_pass(
            z, weight, labels, bias, k, mass, index, offset, unit, jacobian, chunk, kind
        )


@_operator.register_fake
def _(z, weight, labels, bias, k, mass, index, offset, unit, jacobian, chunk, kind):  # type: ignore[no-untyped-def]
    count = weight.shape[0] if index is None else index.shape[0]
    inverse = z.new_empty(count if unit or not is_cosine(kind) else 0)
    return z.new_empty(z.shape[0]), z.new_empty(z.shape[0]), torch.empty_like(z), inverse


@torch.library.custom_op("hypersphere::class_logsumexp_backward", mutates_args=())
def _operator_backward(
    grad_others: Tensor,
    grad_moment: Tensor,
    grad_rows: Tensor,
    z: Tensor,
    weight: Tensor,
    labels: Tensor,
    bias: Tensor | None,
    k: Tensor | None,
    mass: Tensor | None,
    index: Tensor | None,
    offset: Tensor | None,
    others: Tensor,
    inverse: Tensor,
    unit: bool,
    jacobian: bool,
    chunk: int,
    kind: str,
    learn_k: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    saved = (z, weight, labels, bias, k, mass, index, offset, others, inverse)
    with torch.autocast(z.device.type, enabled=False):
        return backward_pass(  # type: ignore[return-value]
            grad_others, grad_moment, grad_rows, *saved, unit, jacobian, chunk, kind, learn_k
        )


@_operator_backward.register_fake
def _(go, gm, gr, z, weight, labels, bias, k, *rest):  # type: ignore[no-untyped-def]
    return (
        torch.empty_like(z),
        torch.empty_like(weight),
        z.new_empty(0) if bias is None else torch.empty_like(bias),
        torch.empty_like(k) if k is not None and rest[-1] else z.new_empty(0),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, unit, jacobian, chunk, kind = inputs
    ctx.save_for_backward(*tensors, output[0], output[3])
    ctx.options = (unit, jacobian, chunk, kind)


def _differentiate(ctx: Any, go: Tensor, gm: Tensor, gr: Tensor, _: Tensor) -> tuple[Any, ...]:
    need_b, need_k = ctx.needs_input_grad[3:5]
    gz, gw, gb, gk = _operator_backward(go, gm, gr, *ctx.saved_tensors, *ctx.options, need_k)
    return gz, gw, None, gb if need_b else None, gk if need_k else None, *[None] * 7


_operator.register_autograd(_differentiate, setup_context=_save)


class _CallableActivation(torch.autograd.Function):
    """The same for an activation that is any callable; its parameters, if any, come last."""

    @staticmethod
    def forward(ctx, kind, *args):  # type: ignore[no-untyped-def]
        tensors, options, parameters = args[:8], args[8:11], args[11:]
        with torch.autocast(tensors[0].device.type, enabled=False):
            output = forward_pass(*tensors, *options, kind)
        ctx.save_for_backward(*tensors, output[0], output[3], *parameters)
        ctx.options = (*options, kind)
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, go, gm, gr, _):  # type: ignore[no-untyped-def]
        saved, parameters = ctx.saved_tensors[:10], ctx.saved_tensors[10:]
        with torch.autocast(saved[0].device.type, enabled=False):
            gz, gw, gb, _, *gp = backward_pass(go, gm, gr, *saved, *ctx.options, False, parameters)
        return None, gz, gw, None, None if saved[3] is None else gb, *[None] * 7, *gp
