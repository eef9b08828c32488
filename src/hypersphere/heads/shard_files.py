"""A sharded head as a folder: every process writes its own rows, any number of them reads back.

Note [Nothing lost in between]: the files of a save have names of their own, `classes-START-STOP-
SAVE.pt`, so they lie beside those of the save before. When all are complete, `common.pt`, which
names them, takes the place of the old one in one step; only then are the old files removed. A
process that is killed anywhere leaves a folder that loads: the new state or the old one.
"""

from __future__ import annotations

import itertools
import os
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .._reading import file_checksum
from . import collectives
from .annealing import LambdaAnnealing
from .margin import MarginHead
from .shard_in_ddp import ROWWISE

__all__ = ["load_shards", "save_shards"]

_NAME = re.compile(r"classes-(\d+)-(\d+)(?:-(\d+))?\.pt")  # without SAVE: of earlier versions


def save_shards(head: MarginHead, folder: str | Path, optimizer: Optimizer | None = None) -> None:
    """Write the rows of each process and one file of everything else; call it on all processes.

    No process ever holds more than its rows. A plain head writes one file with all classes. What
    the folder held before stays valid until the new files are complete.

    Args:
        head: a head, sharded or not.
        folder: where `common.pt` and `classes-*.pt` are written; made if it does not exist.
        optimizer: save what it keeps for the rows (momentum and the like) too.
    """
    _check_head(head)
    folder = Path(folder)
    start, _ = _range(head)
    with _together(head):
        _make(folder)
    save = _next_save(head, folder)
    bounds = _bounds(head)
    names = [f"classes-{a:09d}-{b:09d}-{save}.pt" for a, b in itertools.pairwise(bounds)]
    with _together(head):
        rows: dict[str, Tensor] = {}
        memory: dict[str, dict[str, Any]] = {}
        for name, parameter in _rowwise(head).items():
            rows[name] = parameter.detach()
            if optimizer is not None:
                memory[name] = dict(optimizer.state.get(parameter, {}))
        content = {"num_classes": head.num_classes, "rows": rows, "optimizer": memory}
        own = folder / names[bounds.index(start)]
        torch.save(content, own)
        written = int(file_checksum(own), 16)
    # From here on the rows of all processes are complete; see Note [Nothing lost in between].
    checksums = [written]
    if head.shard is not None:
        checksums = collectives.row_counts(written, head.shard.group, head.weight.device)
    with _together(head):
        if start == 0:
            rest = {n: p.detach() for n, p in head.named_parameters() if n not in ROWWISE}
            annealing = None if head.annealing is None else head.annealing.state_dict()
            common: dict[str, Any] = {"parameters": rest, "annealing": annealing, "shards": names}
            common["memory"] = _memory(head)
            common["checksums"] = dict(zip(names, checksums, strict=True))
            common["head"] = _kind(head)
            torch.save(common, folder / "common.pt.new")
            os.replace(folder / "common.pt.new", folder / "common.pt")
            for old in folder.glob("classes-*.pt"):
                if old.name not in names and _NAME.fullmatch(old.name):
                    old.unlink()


def load_shards(head: MarginHead, folder: str | Path, optimizer: Optimizer | None = None) -> None:
    """Read what `save_shards` wrote, with the same or another number of processes, or with none.

    Each process maps the files and copies only its own rows. Everything is checked before the head
    or the optimizer changes. Call it on all processes.

    Args:
        head: a head of the same size, sharded or not.
        folder: the folder that `save_shards` wrote.
        optimizer: restore what was saved of it for the rows.

    Raises:
        FileNotFoundError: if the folder holds no sharded head, or lacks one of its files.
        ValueError: if its files overlap, leave out classes, are damaged or changed, or belong to
            another head.
    """
    _check_head(head)
    folder = Path(folder)
    with _together(head):
        common, parts = _checked(head, folder)
    start, _ = _range(head)
    with torch.no_grad():
        for part in parts:
            here = slice(part.first - start, part.last - start)
            there = slice(part.first - part.start, part.last - part.start)
            for name, parameter in _rowwise(head).items():
                parameter[here] = part.content["rows"][name][there].to(parameter)
                for key, value in part.content["optimizer"].get(name, {}).items():
                    if optimizer is not None:
                        _restore(optimizer.state[parameter], key, value, parameter, here, there)
        for name, parameter in _common(head).items():
            parameter.copy_(common["parameters"][name])
    memory = common.get("memory", {})  # folders of earlier versions have none
    for name, child in head.named_children():
        own = {k[len(name) + 1 :]: v for k, v in memory.items() if k.startswith(f"{name}.")}
        if own:
            child.load_state_dict(own, strict=False)
    for name in _own_buffers(head):
        if name in memory:
            getattr(head, name).copy_(memory[name])
    if common["annealing"] is not None:
        if head.annealing is None:
            head.annealing = LambdaAnnealing().to(head.weight.device)
        head.annealing.load_state_dict(common["annealing"])


@dataclass(frozen=True)
class _Part:
    """A file with the classes start..stop-1, of which first..last-1 are this process's."""

    start: int
    first: int
    last: int
    content: dict[str, Any]


def _checked(head: MarginHead, folder: Path) -> tuple[dict[str, Any], list[_Part]]:
    """The common file, and the files with rows of this process; refused if anything is wrong."""
    if not (folder / "common.pt").is_file() or not any(folder.glob("classes-*.pt")):
        raise FileNotFoundError(f"{folder} holds no sharded head: expected common.pt, classes-*.pt")
    common = _read(folder / "common.pt", ("parameters", "annealing"))
    kind, checksums = common.get("head", _kind(head)), common.get("checksums", {})
    if kind != _kind(head):
        raise ValueError(
            f"{folder} is of another head: it is of a {kind}, this one a {_kind(head)}"
        )
    names = common.get("shards")
    if names is None:  # of earlier versions, which had no numbers of saves
        numbered = re.compile(r"classes-\d+-\d+-\d+\.pt")
        names = sorted(
            p.name for p in folder.glob("classes-*.pt") if not numbered.fullmatch(p.name)
        )
    ranges = {}
    for name in names:
        found = _NAME.fullmatch(str(name))
        if found is None:
            raise ValueError(f"{folder / str(name)} is no file of this folder: remove it")
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder} lacks {name}, which its common.pt names")
        ranges[name] = (int(found[1]), int(found[2]))
    order = sorted(ranges, key=ranges.__getitem__)
    reached = 0
    for name in order:
        first, last = ranges[name]
        if first != reached or last <= first:
            what = "overlap" if first < reached else "leave out classes"
            raise ValueError(
                f"the files of {folder} {what}: expected one from class {reached} on, got {name}"
            )
        reached = last
    start, stop = _range(head)
    parts = []
    for name in order:
        first, last = ranges[name]
        a, b = max(start, first), min(stop, last)
        if a < b:
            content = _read(
                folder / name, ("num_classes", "rows", "optimizer"), checksums.get(name)
            )
            _check_rows(head, folder / name, content, last - first)
            parts.append(_Part(first, a, b, content))
    if reached != head.num_classes:
        raise ValueError(
            f"{folder} is a head of {reached} classes, this one has {head.num_classes}: make it "
            f"with num_classes={reached}"
        )
    own = _common(head)
    _check_shapes(folder / "common.pt", common["parameters"], {n: p.shape for n, p in own.items()})
    if "memory" in common:
        expected = {name: value.shape for name, value in _memory(head).items()}
        _check_shapes(folder / "common.pt", common["memory"], expected)
    return common, parts


def _kind(head: MarginHead) -> str:
    return type(head).__name__


def _check_head(head: Any) -> None:
    if not isinstance(head, MarginHead):
        raise TypeError(
            f"expected a MarginHead or one made from it, such as ArcFaceHead; got a "
            f"{type(head).__name__}: save its state_dict()"
        )


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise NotADirectoryError(
            f"{folder}: expected a folder, or a name for one; it is a file, or would lie in one: "
            "name another"
        ) from None


def _read(path: Path, keys: tuple[str, ...], checksum: int | None = None) -> dict[str, Any]:
    if checksum is not None and int(file_checksum(path), 16) != checksum:
        raise ValueError(
            f"{path} is damaged or was changed after it was written: its checksum differs from "
            f"that in common.pt"
        )
    try:
        # torch does not look at the checksums of its own format.
        with zipfile.ZipFile(path) as archive:
            if archive.testzip() is not None:
                raise ValueError("a checksum differs")
        content = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except Exception as error:  # a damaged file can fail anywhere in torch.load
        raise ValueError(f"{path} is damaged: {type(error).__name__}") from error
    if not isinstance(content, dict) or not set(keys) <= set(content):
        raise ValueError(f"{path} was not written by save_shards: expected {', '.join(keys)}")
    return content


def _check_rows(head: MarginHead, path: Path, content: dict[str, Any], count: int) -> None:
    if content["num_classes"] != head.num_classes:
        raise ValueError(
            f"{path} is of a head of {content['num_classes']} classes, this one has "
            f"{head.num_classes}: make it with num_classes={content['num_classes']}"
        )
    expected = {name: (count, *p.shape[1:]) for name, p in _rowwise(head).items()}
    _check_shapes(path, content["rows"], expected)
    for name, rows in content["rows"].items():
        if not bool(torch.isfinite(rows).all()):
            raise ValueError(f"{path} holds NaN or infinity in {name!r}: save the head anew")


def _check_shapes(path: Path, found: Any, expected: dict[str, Any]) -> None:
    shapes = {name: tuple(getattr(value, "shape", ())) for name, value in dict(found).items()}
    wanted = {name: tuple(shape) for name, shape in expected.items()}
    if shapes != wanted:
        raise ValueError(f"{path} is of another head: it holds {shapes}, this head has {wanted}")


def _restore(
    state: dict[str, Any], key: str, value: Any, parameter: Tensor, here: slice, there: slice
) -> None:
    if isinstance(value, Tensor) and value.ndim == parameter.ndim:  # one row per class
        if key not in state:
            state[key] = torch.zeros_like(parameter)
        state[key][here] = value[there].to(state[key])
    else:  # a step count
        state[key] = value


def _rowwise(head: MarginHead) -> dict[str, nn.Parameter]:
    return {name: p for name in ROWWISE if (p := getattr(head, name)) is not None}


def _common(head: MarginHead) -> dict[str, nn.Parameter]:
    return {name: p for name, p in head.named_parameters() if name not in ROWWISE}


def _own_buffers(head: MarginHead) -> list[str]:
    return [name for name, _ in head.named_buffers(recurse=False) if name not in ROWWISE]


def _memory(head: MarginHead) -> dict[str, Tensor]:
    """What the head and its margin remember besides parameters and annealing, by name."""
    found = {name: getattr(head, name) for name in _own_buffers(head)}
    learned = set(_common(head))
    for name, child in head.named_children():
        if name != "annealing":
            state = {f"{name}.{key}": value for key, value in child.state_dict().items()}
            found.update({key: value for key, value in state.items() if key not in learned})
    return found


def _range(head: MarginHead) -> tuple[int, int]:
    return (0, head.num_classes) if head.shard is None else (head.shard.start, head.shard.stop)


def _bounds(head: MarginHead) -> list[int]:
    counts = [head.num_classes] if head.shard is None else head.shard.counts
    return [0, *itertools.accumulate(counts)]


def _next_save(head: MarginHead, folder: Path) -> int:
    """A number that no file in the folder has; that of the first process counts."""
    found = (_NAME.fullmatch(path.name) for path in folder.glob("classes-*.pt"))
    save = 1 + max((int(name[3] or 0) for name in found if name), default=0)
    if head.shard is None:
        return save
    return collectives.row_counts(save, head.shard.group, head.weight.device)[0]


class _together:
    """What fails on one process fails on all, at the end of the block: nobody is left waiting."""

    def __init__(self, head: MarginHead) -> None:
        self.head = head

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self.head.shard is None or not (error is None or isinstance(error, Exception)):
            return
        collectives.agree(error, self.head.shard.group, self.head.weight.device)
