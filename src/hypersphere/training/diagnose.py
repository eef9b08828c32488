"""Which layer went bad first, in the order of the forward pass, once a loss is not finite."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hypersphere.training.sharding import is_spread, local

__all__ = ["ADVICE", "BAD_BATCH", "WENT_BAD_BEFORE", "NotFinite", "bad_parameters", "explain"]
__all__ += ["bad_buffers", "check_lengths", "events_in_order", "finite_buffers", "is_finite"]
__all__ += ["spoiled_buffer"]

ADVICE = "; a smaller learning rate, clipping (train.clip) or warm-up (schedule.warmup) often helps"
BAD_BATCH = "the batch itself holds NaN or infinity"
WENT_BAD_BEFORE = "went bad in the update before"


# How the names of running statistics end: those of torch, and of heads and patch norms here.
STATISTIC = re.compile("running_.*|mean|std")


class NotFinite(ArithmeticError):
    """A loss, weight or test value is NaN or infinite; the message names what went bad first."""


def is_finite(value: Any) -> bool:
    """Whether no number in tensors, or in lists and dictionaries of them, is NaN or infinite."""
    if isinstance(value, Tensor):
        return not value.is_floating_point() or bool(_all_finite(value))
    if isinstance(value, dict):
        return all(is_finite(v) for v in value.values())
    if isinstance(value, (tuple, list)):
        return all(is_finite(v) for v in value)
    return True


def _all_finite(value: Tensor) -> Tensor:
    return torch.isfinite(_numbers(value)).all()


def _numbers(value: Tensor) -> Tensor:
    """The numbers in a tensor of any layout, in a precision that can tell which are finite."""
    if value.layout != torch.strided:  # a sparse matrix, such as the adjacency of a graph
        value = value._values() if value.layout == torch.sparse_coo else value.values()
    return value.float() if value.element_size() == 1 else value  # 8-bit floats know no isfinite


@torch.no_grad()
def bad_parameters(model: nn.Module) -> list[str]:
    """Names of the parameters that hold NaN or infinity, or are so large that their length
    overflows, in the order of the model.

    One wait for the device. Where weights are spread over processes, call it on all of them: a row
    that is bad on one process is a bad weight on all.
    """
    named = list(model.named_parameters())
    if not named:
        return []
    lengths = [_length(local(value)) for _, value in named]
    bad = (~torch.stack([torch.isfinite(length) for length in lengths])).int()
    if is_spread(model):
        dist.all_reduce(bad, op=dist.ReduceOp.MAX)
    return [name for (name, _), is_bad in zip(named, bad.tolist(), strict=True) if is_bad]


def _length(value: Tensor) -> Tensor:
    kind = torch.float64 if value.dtype == torch.float64 else torch.float32
    return torch.linalg.vector_norm(value, dtype=kind)


def _floating_buffers(model: nn.Module) -> tuple[dict[str, Tensor], list[bool]]:
    """Buffers of floating point by name, and whether each is finite; one wait for the device.

    Those of lazy modules have no values before the first batch, and are left out.
    """
    given = {n: value for n, value in model.named_buffers() if not is_lazy(value)}
    named = {n: local(value) for n, value in given.items() if value.is_floating_point()}
    if not named:
        return {}, []
    finite = [_all_finite(value) for value in named.values()]
    return named, torch.stack([one.to(finite[0].device) for one in finite]).tolist()


@torch.no_grad()
def finite_buffers(model: nn.Module) -> dict[str, torch.Size]:
    """Names and shapes of the buffers without NaN or infinity, for a later `bad_buffers`."""
    named, finite = _floating_buffers(model)
    return {n: value.shape for (n, value), good in zip(named.items(), finite, strict=True) if good}


@torch.no_grad()
def bad_buffers(model: nn.Module, start: dict[str, torch.Size]) -> list[str]:
    """Names of the buffers that went bad since the start of the run: NaN in any that was finite
    and keeps its shape, infinity in running statistics.

    Other buffers hold infinity rightly: a mask -inf, the smallest value measured so far inf.
    """
    named, finite = _floating_buffers(model)
    return [
        name
        for (name, value), good in zip(named.items(), finite, strict=True)
        if not good
        and start.get(name) == value.shape
        and (STATISTIC.fullmatch(name.rpartition(".")[2]) or _numbers(value).isnan().any())
    ]


def spoiled_buffer(model: nn.Module) -> str:
    """ "; its buffer 'norm.running_var' is not finite", of the first such buffer, or an empty text.

    Buffers tell something only where no pass in training mode has written to them since.
    """
    bad = next((name for name, value in model.named_buffers() if not is_finite(value)), None)
    return "" if bad is None else f"; its buffer '{bad}' is not finite"


def check_lengths(features: Tensor, model: nn.Module | None = None) -> None:
    """`NotFinite` if features (N, d) of test samples, or their lengths, are not finite."""
    bad = int((~torch.isfinite(features.float().norm(dim=1))).sum())
    if bad:
        why = spoiled_buffer(model) if model is not None else ""
        raise NotFinite(
            f"the features of {bad} of {len(features)} test samples are not finite: the network's "
            f"output overflows on them, so there is nothing to report{why}" + ADVICE
        )


@dataclass
class Event:
    """A call of a module begins (`finite` is None), or has ended: whether its output is finite."""

    name: str
    kind: str
    finite: bool | None = None


def events_in_order(model: nn.Module, run: Callable[[], Any]) -> list[Event]:
    """Run once more, watching every module: two events per call, in the order of the forward pass.

    A module that is never called as such begins where its parts are used; see `_add_uncalled`.
    """
    events: list[Event] = []
    handles = []

    def watch(name: str, kind: str) -> tuple[Callable[..., None], Callable[..., None]]:
        def begins(module: nn.Module, inputs: Any) -> None:
            events.append(Event(name, kind))

        def ends(module: nn.Module, inputs: Any, output: Any) -> None:
            events.append(Event(name, kind, is_finite(output)))

        return begins, ends

    try:
        for name, module in model.named_modules():
            if isinstance(module, torch.jit.ScriptModule):  # takes no hooks
                continue
            begins, ends = watch(name, type(module).__name__)
            handles.append(module.register_forward_pre_hook(begins))
            handles.append(module.register_forward_hook(ends))
        with torch.no_grad():
            run()
    finally:
        for handle in handles:
            handle.remove()
    _add_uncalled(model, events)
    return events


def _add_uncalled(model: nn.Module, events: list[Event]) -> None:
    """Modules that were never called begin

    - with the first call of one of their parts (a network of which another method is called);
    - without such parts, before the first bad output of the module around them, at the latest
      before its end (attention reads the weight of its last layer without a call);
    - else at the end, in the order of the model (a head, whose ``loss`` is called).
    """
    called = {event.name for event in events}
    for name, module in model.named_modules():
        if name in called:
            continue
        inside = f"{name}." if name else ""
        at = next((i for i, e in enumerate(events) if e.name.startswith(inside)), None)
        if at is None:
            around = _parent(name)
            while around and around not in called:
                around = _parent(around)
            at = len(events)
            if around in called:
                first = next(i for i, e in enumerate(events) if e.name == around)
                ends = (
                    i
                    for i, e in enumerate(events)
                    if i > first and (e.finite is False or (e.name == around and e.finite))
                )
                at = next(ends, at)
        events.insert(at, Event(name, type(module).__name__))


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def _own_parameters(model: nn.Module, spoiled: list[str]) -> dict[str, list[str]]:
    """Name of a module -> which of its own parameters are spoiled, under every name they have: a
    weight that two layers share goes bad where it is used first.
    """
    found: dict[str, list[str]] = {}
    values = dict(model.named_parameters(remove_duplicate=False))
    bad = {id(values[name]) for name in spoiled}
    for name, value in values.items():
        if id(value) in bad:
            owner = _parent(name)
            # Lists of parameters are never called; they belong to the module around them.
            while isinstance(model.get_submodule(owner), (nn.ParameterList, nn.ParameterDict)):
                owner = _parent(owner)
            found.setdefault(owner, []).append(name)
    return found


def explain(
    step: int,
    model: nn.Module,
    good_batch: bool,
    run: Callable[[], Any],
    terms: Iterable[tuple[str, Any]],
    updated: bool = True,
) -> str:
    """One sentence about where the first NaN or infinity is.

    Order of suspicion: the batch; then, in the order of the forward pass, the parameters of each
    module where its call begins, and its output where the call ends; then a regularizer; then the
    loss itself. A module may use its parameters before it calls others (a position embedding, the
    original of a parametrized weight), so they come before the outputs of those. Buffers are no
    evidence: the failed pass has already written to them (the statistics of BatchNorm).

    `updated` says whether a weight has moved before: in step 0 the second player follows the first.
    """
    start = f"the loss is not finite at step {step}: "
    if not good_batch:
        return f"{start}{BAD_BATCH}; check the data"
    events = events_in_order(model, run)
    spoiled = bad_parameters(model)
    owned = _own_parameters(model, spoiled)
    for event in events:
        if event.finite is None and event.name in owned:
            first = owned[event.name][0]
            when = WENT_BAD_BEFORE if updated else "is not finite from the start"
            return start + f"'{first}' {when}{_others(model, first, spoiled)}" + ADVICE
        if event.finite is False:
            name = event.name or "the model"
            return start + f"the output of layer '{name}' ({event.kind}) went bad first" + ADVICE
    for name, value in terms:
        if not is_finite(value):
            return start + f"the term '{name}' went bad, every layer's output is finite" + ADVICE
    return start + "every layer's output is finite, so the head's loss went bad" + ADVICE


def _others(model: nn.Module, first: str, spoiled: list[str]) -> str:
    """In the backward pass NaN travels towards the input: the last one named may be its origin."""
    named = model.get_parameter(first)
    rest = [name for name in spoiled if model.get_parameter(name) is not named]
    return f" (and {len(rest)} more, the last of them '{rest[-1]}')" if rest else ""
