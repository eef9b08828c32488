"""Lightning: the adapter beside its checkpoints."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torch import nn

from .._optional import require
from ..orthogonal import save_adapter

__all__ = ["AdapterCheckpoint"]

_Base: Any = require("lightning.pytorch", extra="lightning").Callback


class AdapterCheckpoint(_Base):  # type: ignore[misc]
    """Writes the adapter of a rotated model after every training epoch and at the end.

    Lightning's own checkpoints hold the whole model, and resume exactly without this. The adapter
    is what one keeps: ``Trainer(callbacks=[AdapterCheckpoint("adapter", "net")])``.

    Args:
        folder: where to write; the latest adapter is kept.
        attribute: name of the rotated model in the LightningModule. Default: the module itself.
    """

    def __init__(self, folder: str | os.PathLike[str], attribute: str | None = None) -> None:
        super().__init__()
        self.folder = Path(folder)
        self.attribute = attribute

    def on_train_epoch_end(self, trainer: Any, pl_module: nn.Module) -> None:
        """Write the adapter.

        Args:
            trainer: of Lightning.
            pl_module: the module in training.
        """
        save_adapter(self._model(pl_module), self.folder)

    def _model(self, module: nn.Module) -> nn.Module:
        if self.attribute is None:
            return module
        found = getattr(module, self.attribute, None)
        if not isinstance(found, nn.Module):
            raise ValueError(
                f"AdapterCheckpoint expects a module in {type(module).__name__}.{self.attribute}; "
                f"got {type(found).__name__}"
            )
        return found
