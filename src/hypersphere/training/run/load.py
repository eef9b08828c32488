"""Weights of a run, read back: which file, into which network, and the trained network itself."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from torch import Tensor, nn

from hypersphere.models import Classifier
from hypersphere.training.build import make_net
from hypersphere.training.config import Config
from hypersphere.training.run.checkpoint import list_checkpoints, load_weights
from hypersphere.training.run.records import data_of_run, read_record, run_config

__all__ = ["find_weights", "initialize_from", "load_net"]


def find_weights(folder: Path | str, weights: str = "last") -> tuple[Path, int | None]:
    """Where the weights of a run are.

    Args:
        folder: the run folder.
        weights: "last" (those that training ended with) or "best" (those of the best test).

    Returns:
        (checkpoint folder, step).
    """
    folder = Path(folder)
    if weights == "best":
        best = folder / "checkpoints" / "best"
        if not (best / "model.safetensors").is_file():
            raise FileNotFoundError(f"{folder} has no best weights: it was not tested yet")
        found = read_record(folder / "summary.json").get("best")
        return best, found.get("step") if isinstance(found, dict) else None
    if weights != "last":
        raise ValueError(f"weights are 'last' or 'best'; got {weights!r}")
    saved = list_checkpoints(folder / "checkpoints")
    if not saved:
        raise FileNotFoundError(
            f"{folder} has no checkpoint step-*, where the last weights are: train it, or take "
            f"the best ones (--weights best)"
        )
    return saved[-1], int(saved[-1].name[5:])


def load_net(
    folder: Path | str, weights: Path | str = "last", net: nn.Module | None = None
) -> nn.Module:
    """The trained `Classifier` of a run, ready to evaluate.

    Args:
        folder: the run folder.
        weights: "last" (those that training ended with, and reported on), "best" (those of the
            best test), or a checkpoint folder or .safetensors file.
        net: for a run that was made with a module instead of a name: that module again, or a whole
            `Classifier`. It is copied.

    Returns:
        The network, in evaluation mode, on the CPU.

    Raises:
        RunError: if the checksum of the weights differs from the recorded one.
    """
    record = Path(folder) / "run.json"
    details = read_record(record)
    shape, classes = data_of_run(details, record)
    config = Config.from_dict(run_config(details, record))
    if isinstance(net, Classifier):
        net = copy.deepcopy(net)
    else:
        config.model = config.model if net is None else {"object": net}
        net = make_net(config, shape, len(classes))
    if weights in ("last", "best"):
        weights, _ = find_weights(folder, str(weights))
    missing = initialize_from(net, weights)
    if missing:
        raise ValueError(f"the weights lack {', '.join(missing[:5])}")
    return net.eval()


def initialize_from(model: nn.Module, path: str | Path) -> list[str]:
    """Take over every weight of the same name and shape, as fine-tuning does.

    Plain weights (`folded.safetensors`, an unrotated run) fit rotated and low-rank layers, too.

    Args:
        model: the network, changed in place.
        path: a run folder (its last weights), a checkpoint folder, or a .safetensors file.

    Returns:
        Names of the weights that were not found.

    Raises:
        ValueError: if no weight matrix fits.
        RunError: if the checksum of the file differs from the recorded one.
    """
    file = _weights_file(Path(path))
    weights = load_weights(file)
    taken = _into_parametrized(model, weights)
    own = model.state_dict()
    fitting = {
        k: v
        for k, v in weights.items()
        if isinstance(own.get(k), Tensor) and own[k].shape == v.shape
    }
    if not taken and not any(v.ndim > 1 for v in fitting.values()):
        other = [
            k for k, v in weights.items() if k in own and own[k].shape != v.shape and v.ndim > 1
        ]
        where = f"; {other[0]} is {tuple(weights[other[0]].shape)} there" if other else ""
        here = f" and {tuple(own[other[0]].shape)} here" if other else ""
        raise ValueError(
            f"no weight matrix of {path} fits the model{where}{here}: another network or width?"
        )
    model.load_state_dict({**own, **fitting})
    return [
        k
        for k, v in own.items()
        if k not in fitting and isinstance(v, Tensor) and not k.startswith(tuple(taken))
    ]


@torch.no_grad()
def _into_parametrized(model: nn.Module, weights: dict[str, Tensor]) -> list[str]:
    """Give rotated and low-rank layers plain weights to stand for; returns where they are.

    So a network that was trained plainly, or folded, goes on under OPT (F.8).
    """
    taken = []
    for name, module in model.named_modules():
        for key in getattr(module, "parametrizations", ()):
            value = weights.get(f"{name}.{key}")
            if value is not None and value.shape == getattr(module, key).shape:
                setattr(module, key, value.to(getattr(module, key)))
                taken.append(f"{name}.parametrizations.{key}.")
    return taken


def _weights_file(path: Path) -> Path:
    if path.is_file():
        return path
    saved = list_checkpoints(path / "checkpoints")
    for candidate in (path, *saved[-1:], path / "checkpoints" / "best"):
        if (candidate / "model.safetensors").is_file():
            return candidate / "model.safetensors"
    raise FileNotFoundError(
        f"no weights in {path}: give a run folder, a checkpoint or a .safetensors"
    )
