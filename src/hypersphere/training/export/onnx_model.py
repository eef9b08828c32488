"""A classifier as an ONNX file with any number of pictures, compared with the network itself."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ..._optional import require
from ...evaluation import extract
from ...orthogonal.fold import unparametrized

__all__ = ["compare_onnx", "write_onnx"]

INPUT, OUTPUTS = "pictures", ("features", "unit_features", "scores")


class FeatureNet(nn.Module):
    """What is exported: features as they are and at length 1, and scores of classes on request.

    Args:
        net: a classifier.
        scores: also give the scores.
        flips: "unused", or "concatenate" the features of the mirror image to those of the picture.
    """

    def __init__(self, net: nn.Module, scores: bool, flips: str = "unused") -> None:
        super().__init__()
        self.net, self.scores, self.flips = net, scores, flips

    def forward(self, pictures: Tensor) -> tuple[Tensor, ...]:
        features = plain = self.net.features(pictures)  # type: ignore[operator]
        if self.flips == "concatenate":
            mirrored = self.net.features(pictures.flip(-1))  # type: ignore[operator]
            features = torch.cat([plain, mirrored], dim=1)
        outputs = (features, nn.functional.normalize(features))
        return (*outputs, self.net.head(plain)) if self.scores else outputs  # type: ignore[operator]


@torch.no_grad()
def plain_copy(net: nn.Module) -> nn.Module:
    """A copy with rotations and factors multiplied out.

    Args:
        net: the network; it stays as it is.

    Returns:
        A network that computes the same with plain weights.
    """
    net = deepcopy(net)
    for module in list(net.modules()):
        if parametrize.is_parametrized(module):
            for name in list(module.parametrizations):  # type: ignore[arg-type]
                unparametrized(module, name, getattr(module, name).clone(), False)
    return net


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter warns of parts of other packages that are not installed."""
    logger = logging.getLogger("torch.onnx")
    level, logger.level = logger.level, logging.ERROR
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logger.setLevel(level)


def write_onnx(
    net: nn.Module, shape: Sequence[int], path: Path, scores: bool = False, flips: str = "unused"
) -> None:
    """Write a network as ONNX.

    Args:
        net: a classifier in evaluation mode; rotations are multiplied out in the file.
        shape: (C, H, W) of a prepared picture.
        path: the file; weights are inside it.
        scores: also the scores of the classes.
        flips: as the thresholds were fitted: "unused", or "concatenate".
    """
    require("onnxscript", extra="export")
    model = FeatureNet(plain_copy(net), scores, flips).eval()
    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            model,
            (torch.zeros(2, *shape),),
            dynamo=True,
            verbose=False,
            input_names=[INPUT],
            output_names=list(OUTPUTS[: 2 + scores]),
            dynamic_shapes={INPUT: {0: torch.export.Dim("batch", min=1)}},
        )
        if program is None:
            raise RuntimeError("torch.onnx.export gave no program")
        program.save(path, external_data=False)


@torch.no_grad()
def compare_onnx(
    net: nn.Module, path: Path, pictures: Tensor, scores: bool = False, flips: str = "unused"
) -> float:
    """Run the file in onnxruntime on single pictures and batches.

    Args:
        net: the network it was made from.
        path: the ONNX file.
        pictures: (n, C, H, W) prepared pictures, n >= 2.
        scores: whether it gives scores, too.
        flips: as for `write_onnx`.

    Returns:
        The largest difference, relative to the largest output where that is above 1.
    """
    runtime: Any = require("onnxruntime", extra="export")
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    largest = 0.0
    for batch in (pictures[:1], pictures):
        found = session.run(None, {INPUT: batch.numpy()})
        features = extract(net, batch, flips=flips == "concatenate").flatten(1)
        wanted = [features, nn.functional.normalize(features)]
        wanted += [extract(net, batch, logits=True)] if scores else []
        for ours, theirs in zip(wanted, found, strict=True):
            expected = ours.numpy()
            gap = float(np.abs(theirs - expected).max()) / max(1.0, float(np.abs(expected).max()))
            largest = max(largest, gap)
    return largest
