"""Hugging Face's Trainer: checkpoints that `from_pretrained` reads, and that resume exactly.

The Trainer saves by `save_pretrained`, which writes the folded weights of a rotated model. They are
what one deploys, but R and its optimizer state cannot go on from them. So the adapter is written
beside them, in CHECKPOINT/hypersphere, and read when a run is resumed or goes back to its best
checkpoint.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torch import nn

from .._optional import require
from ..orthogonal import load_adapter, save_adapter
from ..orthogonal.adapters import read
from ..orthogonal.adapters.attach import other_maps
from ..orthogonal.rotation import required_rotations, rotations

__all__ = ["RotationCallback"]

_Base: Any = require("transformers", extra="transformers").TrainerCallback
FOLDER = "hypersphere"


class RotationCallback(_Base):  # type: ignore[misc]
    """Writes and reads the rotations of a model beside the Trainer's checkpoints.

    Give it to the Trainer of a rotated model: ``Trainer(model, callbacks=[RotationCallback()])``.

    Args:
        resume_from: the checkpoint that `train(resume_from_checkpoint=...)` is given, if it is not
            one of `args.output_dir`.
    """

    def __init__(self, resume_from: str | os.PathLike[str] | None = None) -> None:
        self.resume_from = resume_from

    def on_init_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """Keep the neurons of the base when the Trainer loads folded weights into them.

        Args:
            args: of the Trainer.
            state: of the Trainer.
            control: of the Trainer.
            objects: of the Trainer; the model is used.
        """
        for *_, rotation in required_rotations(_model(objects)):
            rotation.keeps_neurons = True  # type: ignore[assignment]

    def on_save(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """Write the adapter into the checkpoint that was just saved.

        Args:
            args: of the Trainer.
            state: of the Trainer.
            control: of the Trainer.
            objects: of the Trainer; the model is used.
        """
        save_adapter(_model(objects), _own_checkpoint(args, state) / FOLDER)

    def on_train_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """Read the adapter of the checkpoint that the Trainer has resumed from, if it has.

        Args:
            args: of the Trainer.
            state: of the Trainer.
            control: of the Trainer.
            objects: of the Trainer; the model is used.
        """
        if not state.global_step:
            return
        if not all(getattr(r, "keeps_neurons", False) for *_, r in rotations(_model(objects))):
            raise ValueError(
                "RotationCallback joined after the Trainer was made, too late to keep the neurons "
                "when a run resumes: give it to Trainer(model, callbacks=[RotationCallback()])"
            )
        given = self.resume_from or getattr(args, "resume_from_checkpoint", None)
        known = isinstance(given, (str, os.PathLike)) and str(given) not in ("True", "true")
        folder = Path(str(given)) if known else _own_checkpoint(args, state)
        if not (folder / FOLDER).is_dir():
            raise FileNotFoundError(
                f"the run resumes at step {state.global_step}, and {folder / FOLDER} is not there: "
                f"name the checkpoint by RotationCallback(resume_from=...); one that was saved "
                f"without this callback has no rotations"
            )
        adapter = read(folder / FOLDER)
        difference = other_maps(_model(objects), adapter)
        if difference:
            raise ValueError(
                f"the run cannot resume from {folder}: {difference}. Its optimizer would train "
                f"other rotations than the model uses: rotate(...) as for the checkpoint"
            )
        load_adapter(_model(objects), adapter)

    def on_train_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """Read the adapter of the best checkpoint, if the Trainer has gone back to that.

        Args:
            args: of the Trainer.
            state: of the Trainer.
            control: of the Trainer.
            objects: of the Trainer; the model is used.
        """
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            load_adapter(_model(objects), Path(state.best_model_checkpoint) / FOLDER)


def _own_checkpoint(args: Any, state: Any) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def _model(objects: dict[str, Any]) -> nn.Module:
    model = objects.get("model")
    if not isinstance(model, nn.Module):
        raise ValueError("the Trainer gave no model to RotationCallback")
    return model
