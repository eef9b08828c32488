"""A sharded head as a folder: every process writes its own rows, any number of them reads back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from .annealing import LambdaAnnealing
from .margin import MarginHead
from .sharded import ROWWISE

__all__ = ["load_shards", "save_shards"]


def save_shards(head: MarginHead, folder: str | Path, optimizer: Optimizer | None = None) -> None:
    """Write `classes-START-STOP.pt` per process and `common.pt` into `folder`; call it on all.

    No process ever holds more than its rows. With `optimizer`, what it keeps for them (momentum and
    the like) is saved too. A plain head writes one file with all classes.
    """
    folder = Path(folder)
    start, stop = _range(head)
    if start == 0:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("classes-*.pt"):  # of another number of processes
            old.unlink()
        rest = {n: p.detach() for n, p in head.named_parameters() if n not in ROWWISE}
        annealing = None if head.annealing is None else head.annealing.state_dict()
        torch.save({"parameters": rest, "annealing": annealing}, folder / "common.pt")
    _wait(head)
    rows: dict[str, Tensor] = {}
    memory: dict[str, dict[str, Any]] = {}
    for name, parameter in _rowwise(head).items():
        rows[name] = parameter.detach()
        if optimizer is not None:
            memory[name] = dict(optimizer.state.get(parameter, {}))
    content = {"num_classes": head.num_classes, "rows": rows, "optimizer": memory}
    torch.save(content, folder / f"classes-{start:09d}-{stop:09d}.pt")
    _wait(head)


def load_shards(head: MarginHead, folder: str | Path, optimizer: Optimizer | None = None) -> None:
    """Read what `save_shards` wrote, with the same or another number of processes, or with none.

    Each process maps the files and copies only its own rows.
    """
    folder = Path(folder)
    files = sorted(folder.glob("classes-*.pt"))
    if not files or not (folder / "common.pt").exists():
        raise FileNotFoundError(f"{folder} holds no sharded head: expected common.pt, classes-*.pt")
    start, stop = _range(head)
    filled = 0
    for file in files:
        first, last = (int(number) for number in file.stem.split("-")[1:])
        a, b = max(start, first), min(stop, last)
        if a >= b:
            continue
        saved = torch.load(file, map_location="cpu", mmap=True, weights_only=True)
        if saved["num_classes"] != head.num_classes:
            raise ValueError(
                f"{folder} is a head of {saved['num_classes']} classes, this one has "
                f"{head.num_classes}: make it with num_classes={saved['num_classes']}"
            )
        here, there = slice(a - start, b - start), slice(a - first, b - first)
        for name, parameter in _rowwise(head).items():
            with torch.no_grad():
                parameter[here] = saved["rows"][name][there].to(parameter)
            for key, value in saved["optimizer"].get(name, {}).items():
                if optimizer is not None:
                    _restore(optimizer.state[parameter], key, value, parameter, here, there)
        filled += b - a
    if filled != stop - start:
        raise ValueError(f"{folder} lacks classes: found {filled} of {start}..{stop - 1}")
    common = torch.load(folder / "common.pt", map_location="cpu", weights_only=True)
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            if name not in ROWWISE:
                parameter.copy_(common["parameters"][name])
    if common["annealing"] is not None:
        if head.annealing is None:
            head.annealing = LambdaAnnealing().to(head.weight.device)
        head.annealing.load_state_dict(common["annealing"])


def _restore(
    state: dict[str, Any], key: str, value: Any, parameter: Tensor, here: slice, there: slice
) -> None:
    if isinstance(value, Tensor) and value.ndim == parameter.ndim:  # one row per class
        if key not in state:
            state[key] = torch.zeros_like(parameter)
        state[key][here] = value[there].to(state[key])
    else:  # a step count
        state[key] = value


def _rowwise(head: MarginHead) -> dict[str, torch.nn.Parameter]:
    return {name: p for name in ROWWISE if (p := getattr(head, name)) is not None}


def _range(head: MarginHead) -> tuple[int, int]:
    return (0, head.num_classes) if head.shard is None else (head.shard.start, head.shard.stop)


def _wait(head: MarginHead) -> None:
    if head.shard is not None:
        dist.barrier(group=head.shard.group)
