"""Count what an accelerator would have to launch, move and wait for, on a machine that has none.

The profiler names every ATen operation of a step. Those that only look at memory in another way,
allocate it or ask for a type start no kernel; wrappers start what they call; every other operation
counts as one launch, whatever a processor does inside it. Kernels of Triton are counted where they
are launched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

# Views, allocations, and questions about types and devices.
FREE = {
    *("alias as_strided as_strided_ broadcast_to detach detach_ diagonal expand expand_as flatten").split(),
    *("mT t transpose permute movedim narrow select slice split squeeze unbind unflatten").split(),
    *("unsafe_split unsqueeze view view_as _unsafe_view _reshape_alias unfold numpy_T").split(),
    *("empty empty_like empty_strided new_empty new_empty_strided resize_ set_ lift_fresh").split(),
    *("result_type promote_types can_cast is_nonzero item resolve_conj resolve_neg").split(),
    *("_local_scalar_dense size stride is_same_size requires_grad_ _nested_tensor_size").split(),
    # A number beside a tensor lies on the host.
    "scalar_tensor",
}
# Operations that only call others.
WRAPPERS = {
    *("to _to_copy contiguous reshape clone type_as float double conv1d conv2d conv3d").split(),
    *("convolution _convolution linear matmul pad constant_pad_nd zeros zeros_like ones").split(),
    *("ones_like full full_like new_zeros new_ones new_full stack cross_entropy_loss").split(),
    *("instance_norm batch_norm einsum nll_loss nll_loss_nd one_hot linalg_norm").split(),
    *("silu dropout layer_norm max_pool2d adaptive_avg_pool2d repeat_interleave").split(),
}
WAITS = "aten::_local_scalar_dense"


def profiled(step: Callable[[], object]) -> Any:
    """The events of one step."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        step()
    return seen.events()


def launches(events: Any) -> Counter[str]:
    """How often each operation that starts a kernel was called."""
    found: Counter[str] = Counter()
    for event in events:
        if event.cpu_parent is None or not event.cpu_parent.name.startswith("aten::"):
            _count(event, found)
    return found


def _count(event: Any, found: Counter[str]) -> None:
    name = event.name.removeprefix("aten::")
    if event.name.startswith("triton::"):
        found[event.name] += 1  # what its interpreter does on a processor is not counted
    elif event.name.startswith("aten::") and name not in FREE:
        if name in WRAPPERS:
            for child in event.cpu_children:
                _count(child, found)
        else:
            found[name] += 1


def waits(events: Any) -> int:
    """How often the host waited for a number of the device."""
    return sum(event.name == WAITS for event in events)


def count(step: Callable[[], object], warmup: int = 1) -> tuple[Counter[str], int]:
    """Launches by name, and waits, of one step after `warmup` others."""
    for _ in range(warmup):
        step()
    events = profiled(step)
    return launches(events), waits(events)


def output_sized(step: Callable[[], object], numel: int) -> int:
    """Reads and writes of tensors of `numel` numbers: inputs and results of all launches."""
    from torch.utils._python_dispatch import TorchDispatchMode

    raise NotImplementedError(TorchDispatchMode)
