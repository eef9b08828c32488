"""What is found out about this machine once, and the folder where it is kept."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor

__all__ = ["channels_last_pays", "kept_folder", "processor"]

logger = logging.getLogger(__name__)

LAST, PLANES = b"last", b"planes"
ROUNDS = 6
GAIN = 0.92  # a smaller one may be noise, and is lost again in what lies around the convolution


@cache
def kept_folder() -> Path:
    """Where kernels and measurements stay; of this process alone if that cannot be used."""
    try:
        cache_home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        kept = Path(cache_home, "hypersphere", "kernels")
        kept.mkdir(parents=True, exist_ok=True, mode=0o700)
        reason = _unusable(kept)
        if reason is None:
            return kept
    except (OSError, RuntimeError) as error:  # the latter if there is no home
        reason = str(error)
    logger.warning(
        "compiled kernels cannot be kept, so that every process builds its own: %s; set "
        "XDG_CACHE_HOME to a folder of yours that can be written",
        reason,
    )
    scratch = Path(tempfile.mkdtemp(prefix="hypersphere-kernels-"))
    atexit.register(_remove, scratch, os.getpid())
    return scratch


def _unusable(folder: Path) -> str | None:
    """What keeps libraries from being written to and loaded from a folder."""
    about, user = folder.stat(), getattr(os, "getuid", lambda: None)()
    if user is not None and about.st_uid != user:
        return f"{folder} belongs to another user"
    if user is not None and about.st_mode & 0o022:
        return f"{folder} can be written by other users (chmod go-w)"
    return None if os.access(folder, os.W_OK) else f"{folder} cannot be written"


def _remove(folder: Path, process: int) -> None:
    if process == os.getpid():  # and not in a child of it
        shutil.rmtree(folder, ignore_errors=True)


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
    name = f"layout-{sha256(repr(about).encode()).hexdigest()[:24]}"
    try:
        path = kept_folder() / name
        if not path.exists():
            mine = path.with_name(f"{name}-{os.getpid()}")
            mine.write_bytes(LAST if _measure_channels_last() else PLANES)
            with contextlib.suppress(FileExistsError):  # the first of several decides for all
                os.link(mine, path)
            mine.unlink()
        return path.read_bytes() == LAST
    except OSError:
        return _measure_channels_last()


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
