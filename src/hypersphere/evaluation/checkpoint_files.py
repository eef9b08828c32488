"""The tensors of a checkpoint, whatever wrote it: nothing in the file is run."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._reading import (
    STATE,
    Unreadable,
    check_regular,
    checksum_file,
    file_checksum,
    read_json,
    read_state,
    read_tensors,
    read_text,
)

__all__ = ["read_checkpoint"]

# What trainers put the weights under
NESTED = ("state_dict", "model", "model_state_dict", "module", "net", "weights")
# Their linear layers keep weights (in, out)
WITH_CONV1D = ("gpt2", "openai-gpt", "imagegpt", "decision_transformer")
PICKLES = (".pt", ".pth", ".bin", ".ckpt")
# In a folder the first of these that is there: shards of Hugging Face, one file, a pickle
INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
FILES = ("model.safetensors", "adapter_model.safetensors", "pytorch_model.bin", "adapter_model.bin")


def read_checkpoint(path: str | Path) -> dict[str, Tensor]:
    """Names and tensors of a file or of a folder with one.

    Args:
        path: a .safetensors file; a state dict of `torch.save` (.pt, .pth, .bin, .ckpt), read with
            ``weights_only=True``, also if it lies under a key such as "state_dict"; or a folder as
            Hugging Face writes it, in one file or in shards.

    Returns:
        The tensors, in the order of the file.

    Raises:
        ValueError: if there is no such file, or nothing in it that can be read safely.
    """
    path = Path(path)
    if path.is_dir():
        return _rows_first(_read_folder(path), path)
    if not path.exists():
        raise ValueError(f"there is no file or folder {path}")
    if path.suffix == ".safetensors":
        tensors = read_tensors(path)
        _check_sum(path)
        return tensors
    if path.suffix not in PICKLES:
        raise ValueError(
            f"{path} is no checkpoint: expected .safetensors, {', '.join(PICKLES)}, a folder of "
            "Hugging Face, or a run"
        )
    check_regular(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # bytes that are no pickle fail in any way
        first = (str(error).splitlines() or [""])[0].partition(". ")[0]
        plain = re.sub(r"\x1b\[[0-9;]*m", "", first)
        # A KeyError says no more than the byte that it met.
        named = isinstance(error, (pickle.UnpicklingError, RuntimeError, ValueError))
        reason = plain if plain and named else "it is no file of torch.save"
        raise Unreadable(
            f"{path} cannot be read with weights_only=True: {reason}. Save the state dict alone: "
            "torch.save(model.state_dict(), path)"
        ) from error
    return _tensors(content, path)


def _check_sum(path: Path) -> None:
    """Refuse a file whose checksum differs from that beside it, or of its checkpoint of a run."""
    beside, state = checksum_file(path), path.with_name(STATE)
    if beside.exists():
        place, expected = beside, read_text(beside).strip()
    elif state.is_file() and _is_sealed(state):
        place, expected = state, read_state(path.parent)["checksums"].get(path.name)
    else:
        return
    if expected is not None and expected != file_checksum(path):
        raise Unreadable(
            f"{path} is damaged or was changed after it was written: its checksum differs from "
            f"that in {place.name}"
        )


def _is_sealed(state: Path) -> bool:
    """Whether it begins with a checksum; other programs write files of this name, too."""
    with open(state, "rb") as file:
        return re.fullmatch(rb"[0-9a-f]{8}[\r\n]", file.read(9)) is not None


def _tensors(content: Any, path: Path) -> dict[str, Tensor]:
    if not isinstance(content, Mapping):
        raise Unreadable(f"{path} holds a {type(content).__name__}, not names and tensors")
    found = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    if found:
        return found
    for key in NESTED:
        if isinstance(content.get(key), Mapping):
            return _tensors(content[key], path)
    keys = ", ".join(map(str, list(content)[:6]))
    raise Unreadable(f"{path} has no tensors, nor a state dict under {', '.join(NESTED)}: {keys}")


def _rows_first(tensors: dict[str, Tensor], folder: Path) -> dict[str, Tensor]:
    """Weights of Hugging Face's Conv1D, (in, out), as (out, in): a neuron per row as elsewhere."""
    config = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    if not isinstance(config, dict) or config.get("model_type") not in WITH_CONV1D:
        return tensors
    turned = re.compile(r"\.(c_attn|c_proj|c_fc|q_attn)\.weight$")
    return {k: v.mT if turned.search(k) and v.ndim == 2 else v for k, v in tensors.items()}


def _read_folder(folder: Path) -> dict[str, Tensor]:
    for name in INDEXES:
        if (folder / name).exists():
            shards = read_json(folder / name).get("weight_map", {})
            tensors: dict[str, Tensor] = {}
            for shard in dict.fromkeys(map(str, shards.values())):
                if Path(shard).name != shard:  # a stranger's index names files of this folder only
                    raise Unreadable(f"{folder / name} names {shard!r}, which is not a plain name")
                tensors.update(read_checkpoint(folder / shard))
            return {key: tensors[key] for key in shards if key in tensors}
    for name in FILES:
        if (folder / name).exists():
            return read_checkpoint(folder / name)
    raise ValueError(
        f"{folder} holds no weights: expected a run, or one of {', '.join((*INDEXES, *FILES))}"
    )
