"""Count what an accelerator would have to launch, move and wait for, on a machine that has none.

Every operation that reaches a backend counts as one launch, unless it only looks at memory in
another way or allocates it. It moves its distinct inputs and its results once. Kernels of Triton
are counted, not run. Waits are values that travel to the host, as the profiler sees them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hypersphere.functional._kernels.decoupled.triton import launch as triton_launch

FREE = {"detach", "empty", "empty_like", "empty_strided", "new_empty", "lift_fresh", "alias"}
FREE |= {"_unsafe_view", "_reshape_alias", "scalar_tensor", "set_", "resize_", "promote_types"}
WAITS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::equal")
# An accelerator of today: memory at 1.5 TB/s, 5 microseconds for a launch.
BANDWIDTH, LAUNCH = 1.5e12, 5e-6


class Meter(TorchDispatchMode):
    """Launches by name, bytes, and passes over tensors of a given size.

    Args:
        size: numbers of the tensors whose reads and writes are counted, by name of the launch.
    """

    def __init__(self, size: int = -1) -> None:
        super().__init__()
        self.size = size
        self.launches: Counter[str] = Counter()
        self.passes: Counter[str] = Counter()
        self.bytes = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        name = function._schema.name.removeprefix("aten::")
        if not function.is_view and name not in FREE:
            self.add(name, [*tree_leaves((args, kwargs or {})), *tree_leaves(result)])
        return result

    def add(self, name: str, values: list[Any]) -> None:
        """Note a launch, and the tensors that it reads and writes."""
        tensors = {
            (v.data_ptr(), v.numel()): v for v in values if isinstance(v, Tensor) and v.dim()
        }
        self.launches[name] += 1
        self.bytes += sum(v.numel() * v.element_size() for v in tensors.values())
        if "convolution" not in name:
            self.passes[name] += sum(v.numel() == self.size for v in tensors.values())

    @property
    def total(self) -> int:
        """All launches."""
        return sum(self.launches.values())

    @property
    def seconds(self) -> float:
        """The roofline: the time that bytes and launches take, if nothing else does."""
        return self.bytes / BANDWIDTH + self.total * LAUNCH


@contextmanager
def counted(size: int = -1) -> Iterator[Meter]:
    """Count what runs inside; the fused operators do not take the meter for a tracer."""
    meter = Meter(size)
    with (
        mock.patch.object(torch._C, "_len_torch_dispatch_stack", lambda: 0),
        mock.patch.object(triton_launch, "watcher", lambda name, args: meter.add(name, args)),
        meter,
    ):
        yield meter


def waits(step: Callable[[], object]) -> int:
    """How often the host would wait for a value of the device in one step."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        step()
    return sum(event.name in WAITS for event in seen.events())
