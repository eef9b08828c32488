"""Adapters: only what was trained, many over one base, files of our own and PEFT's.

>>> import tempfile, torch, hypersphere as hs
>>> base = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3))
>>> plain = {name: value.clone() for name, value in base.state_dict().items()}
>>> _ = base.requires_grad_(False)
>>> model = hs.orthogonal.rotate(base, start="identity")       # then train
>>> with tempfile.TemporaryDirectory() as folder:
...     hs.orthogonal.save_adapter(model, folder)
...     other = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3))
...     _ = other.load_state_dict(plain)
...     _ = hs.orthogonal.load_adapter(other, folder)
>>> x = torch.randn(2, 8)
>>> torch.equal(other(x), model(x))
True
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from ...registry import unknown_name
from .adapter import Adapter, AdapterLayer, capture, unwrapped
from .adapter_files import RECORD, read_adapter, write_adapter
from .attach import attach
from .merging import merge_adapters
from .peft_files import PEFT_RECORD, read_peft, write_peft

__all__ = ["Adapter", "AdapterLayer", "load_adapter", "merge", "read", "save_adapter"]

Format = Literal["hypersphere", "peft"]
_WRITERS = {"hypersphere": write_adapter, "peft": write_peft}


def save_adapter(
    model: nn.Module | Adapter, folder: str | os.PathLike[str], format: Format = "hypersphere"
) -> None:
    """Write what was trained, and nothing of the base.

    That is the map of the current task of every rotated layer, every other parameter that requires
    a gradient, and the buffers. Freeze the rest before: ``model.requires_grad_(False)``, then
    `rotate`, then ``model.classifier.requires_grad_(True)``. An adapter that is already there is
    replaced in one operation. A model sharded by FSDP2 is gathered, so all processes have to call
    this; the first one writes.

    Args:
        model: a rotated model, or what :func:`merge` returns.
        folder: where to write; made if it is not there.
        format: "hypersphere", or "peft" for files that PEFT's OFT reads (linear layers, Cayley,
            blocks of one size or one number; whole modules besides).

    Raises:
        ValueError: if nothing is rotated, or the format cannot hold what was trained.

    Returns:
        None.
    """
    if format not in _WRITERS:
        raise unknown_name("format", format, tuple(_WRITERS))
    if Path(folder).exists() and not Path(folder).is_dir():
        raise ValueError(f"save_adapter expects a folder; {folder} is a file")
    adapter = model if isinstance(model, Adapter) else capture(model)
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        writes = True
    else:
        writes = torch.distributed.get_rank() == 0
    if format == "peft":
        write_peft(
            adapter, Path(folder), None if isinstance(model, Adapter) else unwrapped(model), writes
        )
    elif writes:
        write_adapter(adapter, Path(folder))


def load_adapter(
    model: nn.Module,
    folder: str | os.PathLike[str] | Adapter,
    task: str | None = None,
    check_base: bool = True,
) -> nn.Module:
    """Give a model an adapter, as a task that is then the current one.

    Layers that are not rotated yet become so. Load several under different names and switch between
    them by :func:`use_task`: rotations, classifier and everything else that an adapter brings are
    exchanged. On a plain model, the task "default" is then the base itself, unless the adapter took
    that name.

    Args:
        model: the base, plain or rotated; in place.
        folder: what :func:`save_adapter` has written, PEFT's files of an OFT adapter, or an
            :class:`Adapter`, as :func:`merge` returns it.
        task: its name in the model. Default: the one it was saved under, "default" from PEFT.
        check_base: refuse an adapter of another base, by hashes of all weights that it does not
            bring. PEFT's files have none.

    Returns:
        The model.

    Raises:
        FileNotFoundError: if there is no adapter.
        ValueError: if it is damaged, or does not fit; the model is then as it was.
    """
    adapter = folder if isinstance(folder, Adapter) else read(folder, model)
    name = adapter.task if task is None else task
    if not name or "." in name:
        raise ValueError(f"a task name is not empty and has no dot; got {name!r}")
    attach(unwrapped(model), adapter, name, check_base)
    return model


def merge(
    adapters: Sequence[str | os.PathLike[str] | Adapter],
    weights: Sequence[float] | None = None,
) -> Adapter:
    """One adapter out of several over one base: the mean of their rotations on the group.

    Every block of R becomes the Karcher mean of the adapters' blocks
    (:func:`hypersphere.functional.rotation_mean`), a rotation again, where the mean of the
    parameters would depend on how R is made from them. A layer that one of them does not turn
    counts as turned by the identity. Lengths of neurons are averaged as logarithms, other values as
    they are.

    Args:
        adapters: folders of :func:`save_adapter`, or adapters.
        weights: how much each counts; only the ratios matter. Default: equally.

    Returns:
        The adapter, for :func:`load_adapter` or :func:`save_adapter`.

    Raises:
        ValueError: if their bases differ, or there is no mean: other shapes, maps that are no
            rotations, half turns.
    """
    if isinstance(adapters, (str, os.PathLike, Adapter)):
        raise ValueError(f"merge expects a list of folders; got {adapters!r}")
    return merge_adapters([a if isinstance(a, Adapter) else read(a) for a in adapters], weights)


def read(folder: str | os.PathLike[str], model: nn.Module | None = None) -> Adapter:
    """The adapter of a folder, in either format.

    Args:
        folder: where it is.
        model: the model it is for; says how wide its layers are where PEFT's files do not.

    Returns:
        The adapter.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if it is damaged.
    """
    folder = Path(folder)
    if os.path.lexists(folder / RECORD):
        return read_adapter(folder)
    if os.path.lexists(folder / PEFT_RECORD):
        return read_peft(folder, None if model is None else unwrapped(model))
    raise FileNotFoundError(f"no adapter in {folder}: expected {RECORD}, or {PEFT_RECORD} of PEFT")
