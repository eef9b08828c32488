"""What torch leaves open about functions with a backward of their own.

`Function` is `torch.autograd.Function` for type checkers: torch leaves ``apply`` without
annotations.

Note [Graphs that run eagerly]
With torch.compile(backend="eager") and the like autograd sees what runs, so second derivatives can
be asked for. But of a function with a backward of its own, torch keeps only numbers there: what the
backward computes from saved tensors counts as constant, and the second derivative would be wrong
without a word. Such graphs should get plain operations, or the function as one step (`one_step`).
Compilers that trace the backward, too, refuse second derivatives by themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from ..derivatives import refuses_second_derivatives

__all__ = [
    "Function",
    "differentiable_once",
    "full_precision",
    "is_exporting",
    "one_step",
    "runs_eagerly",
]

if TYPE_CHECKING:

    class Function(torch.autograd.Function):
        @classmethod
        def apply(cls, *args: Any) -> Any: ...

else:
    Function = torch.autograd.Function

# torch 2.6 cannot tell one from the other: all of it counts as export there.
is_exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)


def runs_eagerly() -> bool:
    """Whether torch.compile records a graph for autograd to run, see Note above."""
    return torch.compiler.is_compiling() and not is_exporting() and not _traces_backward()


def one_step(function: type[Any]) -> Callable[..., Any]:
    """`function.apply`, which graphs that run eagerly call as it is, see Note above.

    Args:
        function: with a backward of its own; its arguments are tensors, numbers and names.
    """

    def applied(*arguments: Any) -> Any:
        return function.apply(*arguments)

    def apply(*arguments: Any) -> Any:
        return applied(*arguments) if runs_eagerly() else function.apply(*arguments)

    _single_steps.append(applied)
    return apply


def full_precision(device: str) -> AbstractContextManager[object]:
    """No autocast; entering nothing costs nothing, and regularizers come here for each layer."""
    if device == "meta":  # which has no autocast to leave
        return nullcontext()
    on = torch.compiler.is_compiling() or torch.is_autocast_enabled(device)
    return torch.autocast(device, enabled=False) if on else nullcontext()


NO_SECOND = (
    "rotations have no second derivatives, which create_graph=True asks for; "
    "`hypersphere.orthogonal.fold(model)` gives plain weights, which have them"
)
differentiable_once = refuses_second_derivatives(NO_SECOND, at_once=True)


_single_steps: list[Callable[..., Any]] = []


def _traces_backward() -> bool:
    """Whether the compiler makes a graph of the backward, too, by torch's AOTAutograd."""
    from torch._dynamo.backends.common import AotAutograd
    from torch._dynamo.symbolic_convert import InstructionTranslator

    for step in _single_steps:  # here, as it imports the compiler, which is at work now anyway
        torch.compiler.allow_in_graph(step)  # type: ignore[no-untyped-call]
    try:
        found: Any = InstructionTranslator.current_tx().output.compiler_fn
    except AttributeError:  # something else than torch.compile records
        return True
    name = str(getattr(found, "__name__", ""))
    while found is not None and not isinstance(found, AotAutograd):  # what stands around it
        found = getattr(found, "_torchdynamo_orig_backend", getattr(found, "compiler_fn", None))
    return found is not None or name.startswith(("inductor", "cudagraphs", "aot_", "openxla"))


# torch.compiler.assume_constant_result, which would import the compiler for it: seconds.
_traces_backward._dynamo_marked_constant = True  # type: ignore[attr-defined]
