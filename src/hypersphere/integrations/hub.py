"""A classifier that goes to and comes from a folder or the Hugging Face Hub, with its card."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from hypersphere._optional import require
from hypersphere.models import Classifier, create

__all__ = ["HubClassifier"]

_hub = require("huggingface_hub", extra="transformers")


class HubClassifier(  # type: ignore[call-arg]
    Classifier,
    _hub.PyTorchModelHubMixin,  # type: ignore[misc, name-defined]
    library_name="hypersphere",
    tags=["hypersphere", "open-set-recognition"],
    license="mit",
):
    """A :class:`hypersphere.models.Classifier` made by names, so that a folder can bring it back.

    ``save_pretrained(folder)`` writes config.json, model.safetensors and README.md (the card);
    ``HubClassifier.from_pretrained(folder)`` reads them. ``push_to_hub`` sends them.

    Args:
        model: name and options of the network, as in a config: ``{"name": "cnn3", ...}``.
        head: name and options of the head, with ``in_features`` and ``num_classes``.

    >>> net = HubClassifier({"name": "mlp", "widths": [8]}, {"name": "softmax", "num_classes": 3})
    >>> net.head.num_classes
    3
    """

    def __init__(self, model: Mapping[str, Any], head: Mapping[str, Any]) -> None:
        from hypersphere.training.parts import construct

        options = {k: v for k, v in model.items() if k != "name"}
        backbone: nn.Module = create(model["name"], **options)
        settings = {k: v for k, v in head.items() if k not in ("name", "annealing", "sharded")}
        width = settings.pop("in_features", getattr(backbone, "out_features", None))
        classes = settings.pop("num_classes")
        made = construct("head", head["name"], settings, in_features=width, num_classes=classes)
        super().__init__(backbone, made)

    @classmethod
    def from_run(cls, folder: str | Path, weights: str = "last") -> HubClassifier:
        """The classifier of a run folder.

        Args:
            folder: written by `hypersphere train`.
            weights: "last" or "best".

        Returns:
            The classifier, in evaluation mode; rotations are folded.
        """
        from hypersphere.orthogonal import Rotation, fold
        from hypersphere.training import load_net
        from hypersphere.training.run.records import read_record

        net: Any = load_net(folder, weights=weights)
        if any(isinstance(module, Rotation) for module in net.modules()):
            fold(net)
        record = read_record(Path(folder) / "run.json")
        config, data = record["config"], record.get("data") or {}
        model = dict(config["model"])
        if data.get("shape"):
            model.setdefault("in_channels", data["shape"][0])
            if len(data["shape"]) == 3:
                model.setdefault("image_size", data["shape"][-1])
        head = {"num_classes": len(data["classes"]), **config["head"]}
        made = cls(model, head)
        made.load_state_dict(net.state_dict())
        return made.eval()
