"""The few numbers per layer and per filter, with no more launches than they take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...plain_sizes import plain_sizes
from ..shared import made_once
from .backward import wants_plain_gradients
from .convolution import is_traced

__all__ = ["check_numbers", "one", "placed", "product", "quotient", "scaled", "shared_number"]


def one(like: Tensor, dtype: torch.dtype) -> Tensor:
    """The number 1 where `like` lies, for formulas that take a radius and do not use it."""
    if is_traced() or like.device.type == "meta":
        return torch.ones((), dtype=dtype, device=like.device)
    return shared_number(1.0, like.device, dtype)


@made_once(maxsize=256)
def shared_number(
    value: float, device: torch.device, dtype: torch.dtype, shape: tuple[int, ...] = ()
) -> Tensor:
    """A number on a device, made once: do not write into it."""
    return torch.full(shape, value, dtype=dtype, device=device)


def product(value: Tensor, other: Tensor, factor: float) -> Tensor:
    """factor value other in one launch."""
    if factor == 1:
        return value * other
    return torch.addcmul(shared_number(0.0, value.device, value.dtype), value, other, value=factor)


def quotient(value: Tensor, other: Tensor, factor: float) -> Tensor:
    """factor value / other in one launch."""
    if factor == 1:
        return value / other
    return torch.addcdiv(shared_number(0.0, value.device, value.dtype), value, other, value=factor)


def placed(value: float | Tensor, like: Tensor, dtype: torch.dtype) -> Tensor:
    """A number as a tensor where `like` lies; a tensor is taken there."""
    if isinstance(value, Tensor):
        same = value.dtype == dtype and value.device == like.device
        return value if same else value.to(device=like.device, dtype=dtype)
    return torch.full((), value, device=like.device, dtype=dtype)


def scaled(values: Tensor, factor: Tensor | float) -> Tensor:
    """values * factor, for a number per filter and one per layer."""
    if is_traced() or values.ndim != 1 or not isinstance(factor, Tensor) or factor.ndim:
        return values * factor
    product: Tensor = _Scaled.apply(values, factor)  # type: ignore[no-untyped-call]
    return product


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(values, factor)
        return values * factor

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        values, factor = ctx.saved_tensors
        need_values, need_factor = ctx.needs_input_grad
        of_values = grad * factor if need_values else None
        if wants_plain_gradients(grad):
            return of_values, (grad * values).sum() if need_factor else None
        # A product and a sum in one launch, where autograd would take two.
        return of_values, torch.dot(grad, values).to(factor.dtype) if need_factor else None


def check_numbers(
    weight: Tensor, vectors: Mapping[str, Tensor | None], numbers: Mapping[str, object]
) -> None:
    """Refuse what is not a number per filter (C,), or for `numbers` a single one."""
    filters = plain_sizes(weight)[:1]
    for name, vector in vectors.items():
        if vector is not None and plain_sizes(vector) != filters:
            raise ValueError(
                f"expected {name} ({filters[0]},), a number per filter; got {tuple(vector.shape)}"
            )
    for name, number in numbers.items():
        if isinstance(number, Tensor) and number.ndim and plain_sizes(number) != filters:
            raise ValueError(
                f"expected {name} as a number or ({filters[0]},), one per filter; got "
                f"{tuple(number.shape)}"
            )
