"""log sum exp over classes and its gradient as one operation of autograd.

    others = log sum_{j != y} exp f_j,   moment = sum_{j != y} mass_j f_j

or, with link "softplus", others = sum_{j != y} log(1 + exp f_j).

Classes are taken a chunk at a time, forwards and again backwards: nothing of size B x C is kept,
and the weight gradient is written chunk by chunk into its one buffer. There are two ways into
autograd: operators that torch.compile takes as they are, for the named activations, and a Function
for any other callable.
"""

import functools
from typing import Any

import torch
from torch import Tensor

from ...angular import angular_function
from ...derivatives import refuses_second_derivatives
from ..autograd import Function
from .chunks import ClassScores, backward_pass, forward_pass

__all__ = ["others_and_moment"]

TENSORS = ClassScores._fields.index("unit")  # the fields before are tensors or None
OPTIONS = len(ClassScores._fields) - TENSORS - 1  # and after them come these, then `kind`


def others_and_moment(scores: ClassScores) -> tuple[Tensor, Tensor, Tensor]:
    """log sum exp f_j (B,), sum mass_j f_j (B,) over j != y, and the rows w_y (B, d)."""
    *args, kind = scores
    if isinstance(kind, str):
        others, moment, rows, _ = _operator(*args, kind)
    else:
        parameters: tuple[Tensor, ...] = ()
        if isinstance(kind, torch.nn.Module):
            parameters = tuple(kind.parameters())
        elif scores.k is not None and angular_function(kind).default_k is not None:
            # autograd sees k as what g is made of
            kind = functools.partial(angular_function(kind).value, k=scores.k)
            parameters = (scores.k,)
        others, moment, rows, _ = _CallableActivation.apply(kind, *args, *parameters)
    return others, moment, rows


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
    level: Tensor | None,
    t: Tensor | None,
    unit: bool,
    jacobian: bool,
    chunk: int,
    subcenters: int,
    link: str,
    kind: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    tensors = (z, weight, labels, bias, k, mass, index, offset, level, t)
    with torch.autocast(z.device.type, enabled=False):
        return forward_pass(ClassScores(*tensors, unit, jacobian, chunk, subcenters, link, kind))


@_operator.register_fake
def _(*args: Any) -> tuple[Tensor, ...]:
    scores = ClassScores(*args)
    per_sample = scores.z.new_empty(scores.z.shape[0])
    return per_sample, per_sample.clone(), torch.empty_like(scores.z), scores.empty_inverse()


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
    level: Tensor | None,
    t: Tensor | None,
    others: Tensor,
    inverse: Tensor,
    unit: bool,
    jacobian: bool,
    chunk: int,
    subcenters: int,
    link: str,
    kind: str,
    learn_k: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    tensors = (z, weight, labels, bias, k, mass, index, offset, level, t)
    scores = ClassScores(*tensors, unit, jacobian, chunk, subcenters, link, kind)
    with torch.autocast(z.device.type, enabled=False):
        grad_z, grad_weight, grad_bias, grad_k = backward_pass(
            scores, grad_others, grad_moment, grad_rows, others, inverse, learn_k
        )
    return grad_z, grad_weight, grad_bias, grad_k


@_operator_backward.register_fake
def _(
    grad_others: Tensor,
    grad_moment: Tensor,
    grad_rows: Tensor,
    z: Tensor,
    weight: Tensor,
    labels: Tensor,
    bias: Tensor | None,
    k: Tensor | None,
    *rest: Any,
) -> tuple[Tensor, ...]:
    return (
        torch.empty_like(z),
        torch.empty_like(weight),
        z.new_empty(0) if bias is None else torch.empty_like(bias),
        torch.empty_like(k) if k is not None and rest[-1] else z.new_empty(0),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:TENSORS], output[0], output[3])
    ctx.options = inputs[TENSORS:]


NO_SECOND = (
    "the loss of this head has no second derivatives, which create_graph=True asks for; the "
    "scores `head(features, labels)` have them"
)


@refuses_second_derivatives(NO_SECOND)
def _differentiate(ctx: Any, go: Tensor, gm: Tensor, gr: Tensor, _: Tensor) -> tuple[Any, ...]:
    need_b, need_k = ctx.needs_input_grad[3:5]
    gz, gw, gb, gk = _operator_backward(go, gm, gr, *ctx.saved_tensors, *ctx.options, need_k)
    return gz, gw, None, gb if need_b else None, gk if need_k else None, *[None] * 11


_operator.register_autograd(_differentiate, setup_context=_save)


class _CallableActivation(Function):
    """The same for an activation that is any callable; its parameters, if any, come last."""

    @staticmethod
    def forward(ctx: Any, kind: Any, *args: Any) -> tuple[Tensor, ...]:
        tensors, options = args[:TENSORS], args[TENSORS : TENSORS + OPTIONS]
        parameters = args[TENSORS + OPTIONS :]
        with torch.autocast(tensors[0].device.type, enabled=False):
            output = forward_pass(ClassScores._make((*tensors, *options, kind)))
        ctx.save_for_backward(*tensors, output[0], output[3], *parameters)
        ctx.options = (*options, kind)
        return output

    @staticmethod
    @refuses_second_derivatives(NO_SECOND)
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        tensors = ctx.saved_tensors[:TENSORS]
        others, inverse, *parameters = ctx.saved_tensors[TENSORS:]
        scores, (go, gm, gr, _) = ClassScores(*tensors, *ctx.options), grads
        with torch.autocast(scores.z.device.type, enabled=False):
            gz, gw, gb, _, *gp = backward_pass(
                scores, go, gm, gr, others, inverse, False, tuple(parameters)
            )
        return None, gz, gw, None, None if scores.bias is None else gb, *[None] * 11, *gp
