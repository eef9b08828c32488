"""The run folder: everything needed to repeat, continue, compare and report a run.

config.yaml     the resolved config            run.json      seeds, versions, commit, hardware,
command metrics.jsonl   one JSON object per line       summary.json  {"last": {...}, "best": {...}}
checkpoints/    see `checkpoint.py`            features.npz  a few test features for the report
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hypersphere._reading import Unreadable, check_regular, sealed_text
from hypersphere.training.run.checkpoint import RunError, explain_os_error, write_atomically
from hypersphere.training.run.records import file_entry, partial_checksum

__all__ = ["RunFolder", "describe_run", "new_folder"]

RECORD = ("run.json", "config.yaml")  # without them a run is not resumed
PACKAGES = ("torch", "numpy", "lightning-fabric", "jsonargparse", "safetensors", "scikit-learn")


class RunFolder:
    """Writes the record of one run.

    Args:
        path: the folder; made if it is not there.
        write: False (processes other than the first) turns every call that writes into a no-op.
            Default: True.
    """

    def __init__(self, path: str | Path, write: bool = True) -> None:
        self.path = Path(path)
        self.write = write
        self._metrics: Any = None
        self._kept: list[str] = []
        if write:
            try:
                self.checkpoints.mkdir(parents=True, exist_ok=True)
                probe = self.path / f".probe.{os.getpid()}"
                probe.write_text("")
                probe.unlink()
            except OSError as error:
                raise explain_os_error(error, self.path) from error

    @property
    def checkpoints(self) -> Path:
        """Where the checkpoints are."""
        return self.path / "checkpoints"

    @property
    def best(self) -> Path:
        """The checkpoint of the best test; made when it is asked for."""
        folder = self.checkpoints / "best"
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise explain_os_error(error, folder) from error
        return folder

    @property
    def metrics(self) -> Path:
        """metrics.jsonl, one JSON object per line."""
        return self.path / "metrics.jsonl"

    def text(self, name: str, content: str) -> None:
        """Write a text file of the folder, whole or not at all.

        Args:
            name: of the file.
            content: of the file.
        """
        if self.write:
            write_atomically(self.path / name, content)

    def json(self, name: str, content: dict[str, Any]) -> None:
        """Write a JSON file of the folder, whole or not at all.

        Args:
            name: of the file.
            content: plain values; others are written as text. A checksum is added.
        """
        self.text(name, sealed_text(content))

    def remove(self, name: str) -> None:
        """Delete a file of the folder, if it is there.

        Args:
            name: of the file.
        """
        if self.write:
            (self.path / name).unlink(missing_ok=True)

    def arrays(self, name: str, content: Mapping[str, Any]) -> None:
        """Write arrays to a compressed .npz file of the folder, whole or not at all.

        Args:
            name: of the file.
            content: arrays by name.
        """
        self._replace(name, lambda file: np.savez_compressed(file, **content))

    def array(self, name: str, content: np.ndarray) -> None:
        """Write one array to a .npy file of the folder, whole or not at all.

        Args:
            name: of the file.
            content: the array.
        """
        self._replace(name, lambda file: np.save(file, content))

    def _replace(self, name: str, write: Callable[[Any], object]) -> None:
        if not self.write:
            return
        path, temporary = self.path / name, self.path / f".{name}.{os.getpid()}"
        try:
            with open(temporary, "wb") as file:
                write(file)
            os.replace(temporary, path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise explain_os_error(error, path) from error

    def log(self, **values: Any) -> None:
        """Append one line to metrics.jsonl; it is on its way to disk when this returns.

        Args:
            values: what the line holds.

        Raises:
            RunError: if the file cannot be written, or was removed.
        """
        if not self.write:
            return
        try:
            if self._metrics is None:
                self._metrics = open(self.metrics, "a", encoding="utf-8")  # noqa: SIM115
                self._kept = [name for name in RECORD if (self.path / name).exists()]
            self.check()
            self._metrics.write(json.dumps(values) + "\n")
            self._metrics.flush()
        except OSError as error:
            raise explain_os_error(error, self.metrics) from error

    def check(self) -> None:
        """`RunError` if the open metrics.jsonl is no longer the one in the folder, or if what the
        run cannot be resumed without is gone.

        An open file can be written after it was removed: the lines would be lost without a word.
        """
        if self._metrics is None:
            return
        try:
            same = os.path.samestat(os.fstat(self._metrics.fileno()), self.metrics.stat())
        except FileNotFoundError:
            same = False
        gone = None if same else f"{self.metrics} was removed or replaced"
        for name in self._kept:
            if not (self.path / name).exists():
                gone = f"{self.path / name} was removed"
        if gone:
            raise RunError(f"{gone} during training: the run stops, since its record would be lost")

    def position(self) -> list[Any]:
        """Length and checksum of metrics.jsonl; saved with a checkpoint, for `rewind`.

        Returns:
            [bytes, checksum].
        """
        if not (self.write and self.metrics.exists()):
            return [0, partial_checksum(os.devnull, 0)]
        return file_entry(self.metrics)

    def rewind(self, position: list[Any]) -> str:
        """Forget the lines written after the checkpoint that is being resumed.

        Args:
            position: from `position`, when the checkpoint was written.

        Returns:
            What is wrong with the lines before it; empty if nothing is.

        Raises:
            RunError: if metrics.jsonl is no file.
        """
        length, checksum = position
        if not self.write or (length == 0 and not os.path.lexists(self.metrics)):
            return ""
        self.close()
        try:
            size = check_regular(self.metrics)
        except FileNotFoundError:
            return f"{self.metrics} is gone: the curves of this run begin anew"
        except Unreadable as error:
            raise RunError(str(error)) from None
        if size >= length and checksum in (None, partial_checksum(self.metrics, length)):
            os.truncate(self.metrics, length)
            return ""
        with open(self.metrics, "rb") as file:  # whole lines only: the next one is appended
            kept = file.read(length).rpartition(b"\n")
        os.truncate(self.metrics, len(kept[0]) + len(kept[1]))
        return (
            f"{self.metrics} was changed or cut off after the checkpoint: the weights are right, "
            f"the curves may have gaps"
        )

    def restart(self) -> None:
        """Forget all lines of metrics.jsonl."""
        if self.write and os.path.lexists(self.metrics):
            self.close()
            try:
                check_regular(self.metrics)
            except FileNotFoundError:  # a link to nowhere
                self.metrics.unlink()
                return
            except Unreadable as error:
                raise RunError(str(error)) from None
            os.truncate(self.metrics, 0)

    def read(self) -> list[dict[str, Any]]:
        """All lines of metrics.jsonl.

        Returns:
            One dictionary per line.
        """
        if not self.metrics.exists():
            return []
        return [json.loads(line) for line in self.metrics.read_text("utf-8").splitlines() if line]

    def discard(self) -> None:
        """Take the folder away again if nothing has been written to it."""
        if self.write and not any(p.is_file() for p in self.path.rglob("*")):
            shutil.rmtree(self.path, ignore_errors=True)

    def close(self) -> None:
        """Close metrics.jsonl; the next `log` opens it again."""
        if self._metrics is not None:
            try:
                self._metrics.close()
            finally:
                self._metrics = None


def new_folder(base: Path) -> Path:
    """`base` if there is no run in it, else base-2, base-3, ...: a run never overwrites another.

    >>> new_folder(Path("surely/not/there"))
    PosixPath('surely/not/there')
    """
    number, path = 1, base
    while (path / "run.json").exists():
        number += 1
        path = base.with_name(f"{base.name}-{number}")
    return path


def newest_folder(base: Path) -> Path:
    """The latest of base, base-2, base-3, ... that holds a run."""
    number, path, found = 1, base, None
    while (path / "run.json").exists():
        number, found = number + 1, path
        path = base.with_name(f"{base.name}-{number}")
    if found is None:
        raise RunError(f"nothing to resume: there is no run in {base}")
    return found


def describe_run(seed: int, **extra: Any) -> dict[str, Any]:
    """Seeds, versions, commit, hardware and command, for run.json."""
    from hypersphere import __version__

    versions: dict[str, str] = {"hypersphere": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "seed": seed,
        "versions": versions,
        "commit": _commit(),
        "hardware": {
            "machine": platform.machine(),
            "system": platform.system(),
            "processor": _processor(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        },
        **extra,
    }


def _commit() -> str | None:
    """Commit of the code that runs, with '+changes' if the tree differs; None outside a
    checkout.
    """
    try:
        here = Path(__file__).resolve().parent
        git = ["git", "-C", str(here)]
        run = subprocess.run(
            [*git, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=True
        )
        dirty = subprocess.run(
            [*git, "status", "--porcelain", "--untracked-files=no", "."],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
        return run.stdout.strip() + ("+changes" if dirty.stdout.strip() else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()
