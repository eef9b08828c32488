"""Checkpoints that are either whole or not there.

    checkpoints/step-00001200/model.safetensors    weights and buffers
                              state.safetensors    optimizer, generators, sampler, ...: tensors
                              state.json           the rest of it, and the checksum of each file

A checkpoint is written to a hidden folder, flushed to disk, and renamed: a process killed at any
moment leaves the earlier ones untouched. Loading verifies the checksums and goes back one
checkpoint if they fail. Weights outside of a checkpoint (those of the best test, folded ones) have
their checksum beside them, in a file NAME.crc32; `load_weights` looks at either.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from hypersphere._optional import require
from hypersphere._reading import (
    STATE,
    Unreadable,
    check_replaceable,
    checksum_file,
    file_checksum,
    read_state,
    read_tensors,
    read_text,
)
from hypersphere.training.run.packing import pack, unpack

__all__ = [
    "RunError",
    "list_checkpoints",
    "load_checkpoint",
    "newest_checkpoint",
    "save_checkpoint",
]
__all__ += [
    "explain_os_error",
    "load_weights",
    "prune_checkpoints",
    "save_weights",
    "write_atomically",
]

FORMAT = 1
_UMASK = os.umask(0)  # only setting it tells what it is
os.umask(_UMASK)
MODEL, TENSORS = "model.safetensors", "state.safetensors"


class RunError(RuntimeError):
    """A run cannot go on, for a reason the user can act on; the message says which."""


def explain_os_error(error: Exception, path: Path) -> RunError:
    """Disk full, read-only or forbidden folder: one sentence, and what is still safe.

    >>> print(explain_os_error(OSError(errno.ENOSPC, "full"), Path("runs/a")))
    no space left on the device while writing runs/a: free some space and continue with --resume
    """
    code = error.errno if isinstance(error, OSError) else None
    text = str(error).lower()
    if code in (errno.ENOSPC, errno.EDQUOT) or "no space left" in text or "quota" in text:
        what = "no space left on the device"
    elif code == errno.EFBIG or "file too large" in text:
        what = "the file-size limit was reached"
    elif code in (errno.EACCES, errno.EPERM, errno.EROFS) or "denied" in text:
        return RunError(f"cannot write to {path}: permission denied or read-only file system")
    elif code == errno.ENOENT:
        return RunError(f"cannot write {path}: its folder is gone, removed during the run")
    else:
        return RunError(f"cannot write to {path}: {error}")
    return RunError(f"{what} while writing {path}: free some space and continue with --resume")


def write_atomically(path: Path, text: str) -> None:
    """Replace a small text file so that a reader sees the old or the new one, never half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        check_replaceable(path)
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise explain_os_error(error, path) from error


def save_weights(path: Path, tensors: dict[str, Tensor], checksum: bool = True) -> None:
    """Weights to one safetensors file, whole or not at all; shared tensors each for itself.

    Args:
        path: the file.
        tensors: weights by name.
        checksum: write NAME.crc32 beside it, which `load_weights` compares. Default: True.
    """
    safetensors = require("safetensors.torch", extra="train")
    seen: set[tuple[int, int]] = set()
    plain: dict[str, Tensor] = {}
    for name, value in tensors.items():
        value = value.detach().cpu().contiguous()
        where = (value.untyped_storage().data_ptr(), value.numel())
        shared = where in seen or value.untyped_storage().nbytes() != value.nbytes
        seen.add(where)
        plain[name] = value.clone() if shared else value
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        check_replaceable(path)
        safetensors.save_file(plain, str(temporary))
        os.chmod(temporary, 0o666 & ~_UMASK)  # safetensors writes for the owner only
        found = file_checksum(temporary) if checksum else ""
        # In this order: a process killed in between leaves weights without a checksum, never with
        # the checksum of others.
        checksum_file(path).unlink(missing_ok=True)
        os.replace(temporary, path)
    except (OSError, safetensors_error()) as error:
        temporary.unlink(missing_ok=True)
        raise explain_os_error(error, path) from error
    if checksum:
        write_atomically(checksum_file(path), found + "\n")


def safetensors_error() -> type[Exception]:
    """The error of the safetensors library."""
    return require("safetensors", extra="train").SafetensorError


def load_weights(path: Path | str) -> dict[str, Tensor]:
    """Read a safetensors file onto the CPU.

    Args:
        path: the file.

    Returns:
        Weights by name.

    Raises:
        RunError: if it cannot be read, or a checksum was recorded for it and it has another.
    """
    path = Path(path)
    tensors = _read(path)  # first: what is too long is not summed up
    expected = _recorded_checksum(path)
    if expected is not None and file_checksum(path) != expected:
        raise RunError(
            f"{path} is damaged or was changed after it was written: its checksum differs from the "
            f"recorded one"
        )
    return tensors


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return read_tensors(path)
    except Unreadable as error:
        raise RunError(str(error)) from None


def _recorded_checksum(path: Path) -> str | None:
    """From the file beside it, or from the state of its checkpoint; None for files without one."""
    if os.path.lexists(checksum_file(path)):
        return _text(checksum_file(path)).strip()
    if not os.path.lexists(path.parent / STATE):
        return None
    return _read_state(path.parent)["checksums"].get(path.name)  # type: ignore[no-any-return]


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except (Unreadable, FileNotFoundError) as error:
        raise RunError(str(error)) from None


def _read_state(path: Path) -> dict[str, Any]:
    """The content of a checkpoint's state.json; `RunError` if it is damaged."""
    try:
        content = read_state(path)
    except (Unreadable, FileNotFoundError) as error:
        raise RunError(str(error)) from None
    if content["format"] != FORMAT:
        raise RunError(f"{path} has format {content['format']}; this version reads {FORMAT}")
    name = path.name[5:]
    if path.name.startswith("step-") and name.isdigit() and int(name) != content["step"]:
        right = f"step-{content['step']:08d}"
        raise RunError(f"{path} holds step {content['step']}: it was renamed, call it {right}")
    return content


def save_checkpoint(
    folder: Path, step: int, model: dict[str, Tensor], state: Any, keep: int = 2
) -> Path:
    """Write a checkpoint, then drop all but the newest ones.

    Args:
        folder: where the checkpoints are.
        step: finished updates.
        model: weights and buffers by name.
        state: everything else, in lists, tuples, dictionaries, tensors and plain values.
        keep: number of checkpoints that stay. Default: 2.

    Returns:
        The folder of the new checkpoint.

    Raises:
        RunError: if the file system refuses; every earlier checkpoint stays.
    """
    tree, tensors = pack(state)
    final = folder / f"step-{step:08d}"
    temporary = folder / f".{final.name}.{os.getpid()}"
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()  # without parents: a folder that was removed is not made again
        save_weights(temporary / MODEL, model, checksum=False)
        save_weights(temporary / TENSORS, tensors, checksum=False)
        sums = {name: file_checksum(temporary / name) for name in (MODEL, TENSORS)}
        body = json.dumps({"format": FORMAT, "step": step, "checksums": sums, "state": tree})
        (temporary / STATE).write_text(f"{zlib.crc32(body.encode()):08x}\n{body}\n", "utf-8")
        for name in (MODEL, TENSORS, STATE):
            _flush(temporary / name)
        shutil.rmtree(final, ignore_errors=True)
        os.rename(temporary, final)
        _flush(folder)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError):
            raise explain_os_error(error, final) from error
        raise
    prune_checkpoints(folder, keep)
    return final


def list_checkpoints(folder: Path) -> list[Path]:
    """Finished checkpoints, oldest first."""
    return sorted(p for p in folder.glob("step-*") if p.name[5:].isdigit())


def prune_checkpoints(folder: Path, keep: int) -> None:
    """Drop all but the newest `keep` checkpoints, and what killed processes left half-written."""
    for path in list_checkpoints(folder)[: -keep or None]:
        shutil.rmtree(path, ignore_errors=True)
    for path in folder.glob(".step-*"):
        shutil.rmtree(path, ignore_errors=True)


def load_checkpoint(path: Path) -> tuple[int, dict[str, Tensor], Any]:
    """Read a checkpoint.

    Args:
        path: the folder of the checkpoint.

    Returns:
        (step, weights, state), as `save_checkpoint` took them.

    Raises:
        RunError: if a single bit of it is wrong.
    """
    try:
        content = _read_state(path)
        model, tensors = _read(path / MODEL), _read(path / TENSORS)
        for name, expected in content["checksums"].items():  # what is too long is refused by now
            if file_checksum(path / name) != expected:
                raise RunError(f"{path / name} is damaged (its checksum differs)")
        return content["step"], model, unpack(content["state"], tensors)
    except RunError:
        raise
    except Exception as error:  # a damaged file can fail in any way
        raise RunError(f"{path} cannot be read: {error}") from error


def newest_checkpoint(
    folder: Path, say: Callable[[str], object] = print
) -> tuple[int, dict[str, Tensor], Any] | None:
    """The newest whole checkpoint, or None; damaged ones are named through `say`."""
    paths = list_checkpoints(folder)
    for path in reversed(paths):
        try:
            return load_checkpoint(path)
        except RunError as error:
            say(f"{error}; going back to the checkpoint before it")
    if paths:
        raise RunError(
            f"every checkpoint in {folder} is damaged: start again in another folder, without "
            f"--resume"
        )
    return None


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
