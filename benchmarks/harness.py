"""Measure pieces of work against one another: interleaved, best of several, as ratios.

A time alone says as much about the machine as about the code, so every table names a baseline
that runs in the same process between the others. Use:

    rows = measure({"conv": conv, "sphere": sphere}, baseline="conv", limits={"sphere": 1.10})
    write("layers", {"CNN-9 shapes, forward + backward": rows})

`write` prints the tables and keeps them in results/benchmarks/NAME.MAKER.json with versions, commit
and hardware, from where the docs take their numbers: the latest run of each maker's processor, side
by side. What is counted and not measured is the same on all of them: NAME.json.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import math
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import torch

from hypersphere.commands._memory import keep_memory

ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Row:
    """One line of a table: seconds is the best repeat, ratio is against the baseline.

    `value` carries a figure that is not a time (a share, a count); `limit` is the bar that the
    ratio, or else the value, must not pass, or must reach where `at_least`.
    """

    name: str
    seconds: float | None = None
    ratio: float | None = None
    peak_mb: float | None = None
    value: float | None = None
    unit: str = ""
    limit: float | None = None
    at_least: bool = False

    @property
    def met(self) -> bool | None:
        figure = self.value if self.value is not None else self.ratio
        if self.limit is None or figure is None:
            return None
        return figure >= self.limit if self.at_least else figure <= self.limit


def measure(
    work: Mapping[str, Callable[[], object]],
    baseline: str,
    limits: Mapping[str, float] | None = None,
    repeats: int = 15,
    warmup: int = 2,
    seconds: float = 60.0,
    memory: bool = True,
) -> list[Row]:
    """Time each piece of work, in turns, until `repeats` rounds or `seconds` are over.

    The ratio is that of the best times: what disturbs a machine only ever makes work slower, and
    the rounds are interleaved so that all get their share of quiet moments. Peak memory is what
    one more call adds to the process.
    """
    if baseline not in work:
        raise ValueError(f"baseline {baseline!r} is not among {', '.join(work)}")
    # As in the processes that train: else what is compared is how often each happens to get new
    # pages from the system, which depends on what ran before.
    keep_memory()
    for function in work.values():
        for _ in range(warmup):
            function()
    times: dict[str, list[float]] = {name: [] for name in work}
    deadline = time.perf_counter() + seconds
    for round_number in range(repeats):
        for name, function in work.items():
            times[name].append(_time(function))
        if time.perf_counter() > deadline and round_number >= 2:
            break
    rows = []
    for name, function in work.items():
        rows.append(
            Row(
                name=name,
                seconds=min(times[name]),
                ratio=min(times[name]) / min(times[baseline]),
                peak_mb=peak_memory(function) if memory else None,
                limit=(limits or {}).get(name),
            )
        )
    return rows


def tensor_memory(function: Callable[[], object]) -> float:
    """MiB of tensors that one call holds at its highest point, beyond those that were there.

    Counted by the allocator, so that memory which the process already has is counted, too.
    """
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        function()
    events = profile.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    held = highest = 0
    for _, size in changes:
        held += size
        highest = max(highest, held)
    return highest / 2**20


def peak_memory(function: Callable[[], object]) -> float:
    """MiB that one call adds to this process at its highest point (Linux; NaN elsewhere).

    The kernel's own high-water mark is used where it can be reset, else a sampling thread.
    """
    gc.collect()
    _give_back()
    try:
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
        function()
        return max(0.0, (_status("VmHWM") - before) / 1024)
    except OSError:
        pass
    try:
        before = _status("VmRSS")
    except OSError:
        return math.nan
    highest, stop = before, threading.Event()

    def watch() -> None:
        nonlocal highest
        while not stop.wait(0.001):
            highest = max(highest, _status("VmRSS"))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        function()
    finally:
        stop.set()
        thread.join()
    return max(0.0, (highest - before) / 1024)


def write(
    name: str,
    tables: Mapping[str, Sequence[Row]],
    directory: Path | None = None,
    measured: bool = True,
    command: str | None = None,
    details: object = None,
) -> bool:
    """Print the tables, save them with what made them, and tell whether every limit is met.

    `measured` figures are kept for each maker of processors; counted ones once for all. `details`
    are kept beside the tables, for who reads the file.
    """
    for title, rows in tables.items():
        print(f"\n{title}\n{format_rows(rows)}")
    record = {
        "benchmark": name,
        "command": command or f"python benchmarks/{name}.py",
        "environment": environment(),
        "tables": {
            title: [asdict(row) | {"met": row.met} for row in rows]
            for title, rows in tables.items()
        },
    }
    if details is not None:
        record["details"] = details
    kept = f"{name}.{maker(_cpu_name())}" if measured else name
    path = (directory or ROOT / "results" / "benchmarks") / f"{kept}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(record, indent=1) + "\n")
    partial.replace(path)
    missed = [row.name for rows in tables.values() for row in rows if row.met is False]
    print(f"\n{path.name}: " + (f"missed: {', '.join(missed)}" if missed else "every limit met"))
    return not missed


def format_rows(rows: Sequence[Row]) -> str:
    header = ["", "ms", "ratio", "peak MiB", "value", "limit", ""]
    lines = [_line(header)]
    for row in rows:
        cells = [
            row.name,
            f"{row.seconds * 1e3:.3f}" if row.seconds is not None else "",
            f"{row.ratio:.3f}" if row.ratio is not None else "",
            f"{row.peak_mb:.1f}" if row.peak_mb is not None else "",
            f"{row.value:.4g} {row.unit}".strip() if row.value is not None else "",
            f"{'>=' if row.at_least else '<='} {row.limit:g}" if row.limit is not None else "",
        ]
        lines.append(_line([*cells, {True: "ok", False: "MISSED", None: ""}[row.met]]))
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    name, *figures, verdict = cells
    widths = (10, 8, 9, 14, 9)
    return " ".join(
        [f"{name:44}", *(f"{c:>{w}}" for c, w in zip(figures, widths, strict=True)), verdict]
    )


def environment() -> dict[str, object]:
    """Versions, commit and hardware, without names of machines or people."""
    packages = {}
    for package in (
        "torch-hypersphere",
        "torch",
        "numpy",
        "geotorch",
        "pytorch-metric-learning",
        "faiss-cpu",
        "peft",
        "transformers",
    ):
        try:
            packages[package] = metadata.version(package).split("+")[0]
        except metadata.PackageNotFoundError:
            continue
    return {
        "python": platform.python_version(),
        "packages": packages,
        "commit": _git("rev-parse", "--short", "HEAD"),
        "uncommitted_changes": bool(_git("status", "--porcelain", "--", "src", "benchmarks")),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def _time(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def _give_back() -> None:
    """Hand to the system what the process has kept, so that the call asks for all that it holds."""
    with contextlib.suppress(OSError, AttributeError):  # glibc has it
        ctypes.CDLL(None).malloc_trim(0)


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1])
    raise OSError(f"no {key} in /proc/self/status")


def _git(*arguments: str) -> str:
    try:
        return subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def maker(cpu: str) -> str:
    """Who makes a processor, in one word: the column of its figures."""
    known = {"Intel": "intel", "AMD": "amd", "Apple": "apple", "ARM": "arm", "Neoverse": "arm"}
    return next((word for name, word in known.items() if name in cpu), "other")


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    sys.exit("harness.py is imported by the benchmarks beside it; run one of those")
