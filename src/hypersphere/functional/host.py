"""Values that choose a way: looked at where they lie in the host's memory, never waited for.

A branch on a value makes the host wait until an accelerator has computed it, and the accelerator
idle until the host goes on. So a value is asked for by `known`: on a processor the answer is the
number, and a shortcut can be taken; on an accelerator it is None, and the way is taken that is
right for every value. Checks of what a user gives are made by `demand`: an error on a processor,
an assertion that travels with the work on an accelerator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

__all__ = ["can_look", "demand", "known", "without_looking"]

_looks = True


def known(value: Tensor) -> float | None:
    """The number in a tensor of one element if the host has it, else None.

    Args:
        value: a tensor of one element.

    Returns:
        The number (a truth value counts as 0 or 1), or None if one would have to wait for it, or
        if the operations are being traced.

    >>> known(torch.tensor([2.0]).max())
    2.0
    """
    if not can_look(value):
        return None
    narrow = value.dtype in (torch.bfloat16, torch.float16)
    # The memory itself: an item() would be counted as a wait by every profile.
    return float((value.float() if narrow else value).detach().numpy().item())


def can_look(value: Tensor) -> bool:
    """Whether `known` would answer for a tensor that lies where this one does.

    Args:
        value: any tensor.

    Returns:
        False on accelerators, and where the operations are being traced.
    """
    return (
        _looks
        and value.device.type == "cpu"
        and type(value) in (Tensor, torch.nn.Parameter)
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
        and torch._C._len_torch_dispatch_stack() == 0
    )


def demand(good: Tensor, message: Callable[[], str]) -> None:
    """Raise a ValueError if a truth value is false.

    Args:
        good: a truth value, a tensor of one element.
        message: makes the text of the error; called only then, and only where the host has the
            value. An accelerator stops with an assertion of its own instead.

    Raises:
        ValueError: with the message.

    >>> demand(torch.tensor(2).lt(3), lambda: "expected numbers below 3")
    """
    if torch.compiler.is_compiling():
        return
    found = known(good)
    if found is None:
        traced = torch._C._are_functorch_transforms_active() or torch._C._len_torch_dispatch_stack()
        if good.device.type == "cuda" and type(good) is Tensor and not traced:
            torch._assert_async(good)
    elif not found:
        raise ValueError(message())


@contextmanager
def without_looking() -> Iterator[None]:
    """Take the ways of an accelerator on a processor too, for tests."""
    global _looks
    before, _looks = _looks, False
    try:
        yield
    finally:
        _looks = before
