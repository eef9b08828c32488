"""What is found out about this machine once, and the folder where it is kept."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor

__all__ = ["channels_last_pays", "kept_folder", "processor"]

ROUNDS = 6
GAIN = 0.92  # a smaller one may be noise, and is lost again in what lies around the convolution


@cache
def kept_folder() -> Path:
    """Where kernels and measurements stay; of this process alone if that cannot be written."""
    cache_home = os.environ.get("XDG_CACHE_HOME")
    try:
        kept = Path(cache_home or Path.home() / ".cache", "hypersphere", "kernels")
        kept.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Libraries are loaded from here: nobody else may own or write it.
        if os.access(kept, os.W_OK) and kept.stat().st_uid == os.getuid():
            return kept
    except (OSError, RuntimeError, AttributeError):
        pass
    return Path(tempfile.mkdtemp(prefix="hypersphere-kernels-"))


@cache
def processor() -> str:
    """What decides which instructions a compiler or a library takes."""
    try:
        text = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        return ""
    kept = re.compile(r"(vendor|cpu family|model|flags|Features|CPU part)")
    return "\n".join(line for line in text.splitlines() if kept.match(line))


def channels_last_pays() -> bool:
    """Whether convolutions are differentiated faster in channels-last order, conversions included.

    True on some makers' processors, false on others. Measured once per machine, on a convolution of
    usual size, and kept in a file: so a run that is resumed computes as it did before.
    """
    return _channels_last_pays(torch.get_num_threads())


@cache
def _channels_last_pays(threads: int) -> bool:
    about = (processor(), torch.__version__, str(threads), os.environ.get("ONEDNN_MAX_CPU_ISA", ""))
    path = kept_folder() / f"layout-{sha256(repr(about).encode()).hexdigest()[:24]}"
    try:
        return path.read_text() == "last"
    except OSError:
        pass
    found = "last" if _measure_channels_last() else "planes"
    try:
        with path.open("x") as file:  # of several processes the first decides for all
            file.write(found)
    except FileExistsError:
        return path.read_text() == "last"
    except OSError:
        pass
    return found == "last"


def _measure_channels_last() -> bool:
    shape = (16, 64, 32, 32)
    x, kernel, grad = torch.ones(shape), torch.ones(64, 64, 3, 3), torch.ones(shape)

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
    return last < GAIN * planes


def _seconds(function: Callable[[], None]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
