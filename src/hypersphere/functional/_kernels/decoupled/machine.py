"""What is measured once per machine, and kept."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import cache
from hashlib import sha256

import torch
from torch import Tensor

from ..kept import kept_folder, processor, write_first

__all__ = ["channels_last_pays"]

LAST, PLANES = b"last", b"planes"
ROUNDS = 6
GAIN = 0.92  # a smaller one may be noise, and is lost again in what lies around the convolution


def channels_last_pays() -> bool:
    """Whether convolutions are differentiated faster in channels-last order, conversions included.

    True on some makers' processors, false on others. Measured once per machine, on a convolution of
    usual size, and kept in a file: so a run that is resumed computes as it did before.
    """
    return _channels_last_pays(torch.get_num_threads())


@cache
def _channels_last_pays(threads: int) -> bool:
    about = (processor(), torch.__version__, str(threads), os.environ.get("ONEDNN_MAX_CPU_ISA", ""))
    name = f"layout-{sha256(repr(about).encode()).hexdigest()[:24]}"
    found = b""
    try:
        path = kept_folder() / name
        if not path.exists():
            found = LAST if _measure_channels_last() else PLANES
            write_first(path, found)
        return path.read_bytes() == LAST
    except OSError:
        return found == LAST if found else _measure_channels_last()


def _measure_channels_last() -> bool:
    kind = {"dtype": torch.float32, "device": "cpu"}
    x, grad = (torch.ones(16, 64, 32, 32, **kind) for _ in range(2))  # type: ignore[call-overload]
    kernel = torch.ones(64, 64, 3, 3, **kind)  # type: ignore[call-overload]

    def differentiate(*tensors: Tensor) -> None:
        torch.ops.aten.convolution_backward(
            *tensors, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False]
        )

    def in_planes() -> None:
        differentiate(grad, x, kernel)

    def with_channels_last() -> None:
        differentiate(*(t.contiguous(memory_format=torch.channels_last) for t in (grad, x, kernel)))

    with torch.no_grad():
        times = [(_seconds(in_planes), _seconds(with_channels_last)) for _ in range(ROUNDS)]
    planes, last = (min(column) for column in zip(*times[1:], strict=True))
    return bool(last < GAIN * planes)


def _seconds(function: Callable[[], None]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
