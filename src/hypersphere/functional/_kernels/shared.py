"""Small tensors that are made once and used by every call: indices, nodes, numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

__all__ = ["made_once"]

Arguments = ParamSpec("Arguments")
Made = TypeVar("Made")


def made_once(
    maxsize: int,
) -> Callable[[Callable[Arguments, Made]], Callable[Arguments, Made]]:
    """Keep what a function makes of the same arguments: do not write into it.

    Args:
        maxsize: how many results are kept.
    """

    def decorate(make: Callable[Arguments, Made]) -> Callable[Arguments, Made]:
        kept = functools.lru_cache(maxsize=maxsize)(make)

        @functools.wraps(make)
        def get(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Made:
            # A compiler has constants of its own; tracers and fake tensors end with their mode.
            if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
                return make(*args, **kwargs)
            with torch.inference_mode(False):  # it may be made in the mode and used out of it
                return kept(*args, **kwargs)  # type: ignore[arg-type]

        return get

    return decorate
