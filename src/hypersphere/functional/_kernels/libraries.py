"""Libraries of the kernels: built at first use by the machine's compiler, and kept.

A library is found by what it is made from: its text, the compiler and the processor. So nothing is
built twice, and a folder that several machines share holds one for each. Where there is no
compiler, or anything goes wrong, there is no library, and the operators run in torch's operations.

What happens is told by the logger of the package, once per process: that something is built, which
takes a second or two (INFO), and that it failed (WARNING).
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache, wraps
from pathlib import Path
from typing import Any

from .kept import kept_folder, processor

__all__ = ["library", "switched_off", "trial"]

logger = logging.getLogger(__name__)

# Sums may be reordered where a loop says so; NaN and infinity stay what they are.
FLAGS = ["-std=c++17", "-O3", "-march=native", "-fopenmp", "-fPIC", "-shared", "-fno-math-errno"]
FLAGS += ["-fno-trapping-math", "-fno-signed-zeros", "-ffp-contract=fast"]
SECONDS = 120


def switched_off() -> bool:
    """Whether the user wants none of this: HYPERSPHERE_NATIVE=0."""
    return os.environ.get("HYPERSPHERE_NATIVE", "1").lower() in ("0", "false", "off", "no")


@cache
def library(text: str, headers: Path | None = None) -> ctypes.CDLL | None:
    """The library made from a text of C++, or None where there can be none.

    Args:
        text: of the library.
        headers: folder of the files (``*.h``) that the text includes.
    """
    compiler = _compiler()
    if compiler is None or not _share_threads():
        return None
    included = [] if headers is None else sorted(headers.glob("*.h"))
    made_from = [text, *(path.read_text() for path in included), *FLAGS, compiler[1], processor()]
    name = hashlib.sha256("\0".join(made_from).encode()).hexdigest()[:24]
    try:
        path = kept_folder() / f"{name}.so"
        if path.exists():
            try:
                return ctypes.CDLL(str(path))
            except OSError:
                path.unlink(missing_ok=True)  # damaged: build it anew
        _tell_building(path.parent)
        _build(compiler[0], text, headers, path)
        return ctypes.CDLL(str(path))
    except (OSError, subprocess.SubprocessError) as error:
        _tell_failed(_reason(error))
        return None


def trial(check: Callable[..., bool]) -> Callable[..., bool]:
    """A check of a library that is not passed either where torch's own routines fail.

    They do if OMP_THREAD_LIMIT allows fewer threads than torch counts on.
    """

    @wraps(check)
    def passes(*arguments: Any) -> bool:
        try:
            return check(*arguments)
        except RuntimeError as error:
            _tell_failed(f"torch could not compute what they are compared with ({error})")
            return False

    return passes


@cache
def _tell_building(folder: Path) -> None:
    logger.info("building C++ kernels for new operators, a second or two each; kept in %s", folder)


_told_failed = False


def _tell_failed(reason: str) -> None:
    global _told_failed
    if not _told_failed:
        _told_failed = True
        logger.warning(
            "no C++ kernels, so that decoupled layers and rotations take more time: %s; CXX names "
            "another compiler, XDG_CACHE_HOME another folder, HYPERSPHERE_NATIVE=0 turns them off",
            reason,
        )


def _reason(error: OSError | subprocess.SubprocessError) -> str:
    """One line: of what a compiler says, the first that names an error."""
    told = getattr(error, "stderr", None)
    lines = [line for line in (told or b"").decode(errors="replace").splitlines() if line.strip()]
    named = [line for line in lines if "error" in line.lower()]
    return (named or lines or [str(error)])[0].strip()


def _build(compiler: str, text: str, headers: Path | None, path: Path) -> None:
    """Beside its place first: another process sees a whole library or none."""
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        source, made = Path(scratch, "kernel.cpp"), Path(scratch, "kernel.so")
        source.write_text(text)
        places = [] if headers is None else [f"-I{headers}"]
        command = [compiler, *FLAGS, *places, str(source), "-o", str(made)]
        subprocess.run(command, check=True, capture_output=True, timeout=SECONDS)
        made.replace(path)


@cache
def _compiler() -> tuple[str, str] | None:
    """The compiler and its version."""
    if sys.platform != "linux":
        return None
    for name in (os.environ.get("CXX", ""), "g++", "clang++", "c++"):
        found = shutil.which(name) if name else None
        if found is None:
            continue
        try:
            told = subprocess.run(
                [found, "--version"], check=True, capture_output=True, timeout=SECONDS
            )
        except (OSError, subprocess.SubprocessError):
            continue
        return found, told.stdout.decode(errors="replace").partition("\n")[0]
    return None


@cache
def _share_threads() -> bool:
    """Offer torch's runtime of OpenMP to the libraries: a second one would fight for the cores."""
    try:
        lines = Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines()
        paths = {line.split(maxsplit=5)[5] for line in lines if "/" in line}  # may have spaces
        runtimes = sorted(path for path in paths if re.match(r"lib[gi]?omp.*\.so", Path(path).name))
        for path in runtimes:
            ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
        if not runtimes:
            _tell_failed("torch's threads were not found")
        return bool(runtimes)
    except OSError as error:
        _tell_failed(str(error))
        return False
