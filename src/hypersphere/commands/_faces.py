"""Faces of whole pictures: found, aligned, and brought to the size and color of a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

NO_FACE = "no face found"  # what the detector's message begins with
SHOWN = 10  # failures that are listed


def listed(failures: Mapping[str, str]) -> list[str]:
    """Lines that say which pictures cannot be used, and why.

    Args:
        failures: picture -> reason.

    Returns:
        The first of them, and how many more there are.
    """
    lines = []
    for path, reason in list(failures.items())[:SHOWN]:
        lines.append(f"  {reason}" if path in reason else f"  {path}: {reason}")
    if len(failures) > SHOWN:
        lines.append(f"  ... and {len(failures) - SHOWN} more")
    return lines


@cache
def _detector() -> Any:
    from ..evaluation import YuNet

    return YuNet()


def read_faces(
    shape: Sequence[int], paths: Sequence[str]
) -> tuple[Tensor, list[int], dict[str, str]]:
    """The largest face of each picture.

    Args:
        shape: (C, H, W) of the network's pictures.
        paths: picture files.

    Returns:
        (n, C, H, W) uint8, the places in `paths` they come from, and why others have no face.

    Raises:
        ValueError: if no picture has a face.
    """
    import torch
    from torch.nn.functional import interpolate

    from ..data.image_files import read_image
    from ..evaluation import detect_and_align

    detector = _detector()
    faces: list[Tensor] = []
    kept: list[int] = []
    failures: dict[str, str] = {}
    for place, path in enumerate(paths):
        try:
            picture = torch.from_numpy(read_image(path, mode="RGB").copy())
            face = detect_and_align(picture, detector).float()
        except ValueError as error:  # damaged, or without a face
            failures[path] = str(error)
            continue
        faces.append(face)
        kept.append(place)
    if not faces:
        path, reason = next(iter(failures.items()))
        raise ValueError(f"none of {len(paths)} pictures can be used; {path}: {reason}")
    batch = torch.stack(faces)
    channels, height, width = shape
    if channels == 1:  # the luminance of ITU-R 601, as Pillow's "L"
        batch = (batch * torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(1, keepdim=True)
    if batch.shape[-2:] != (height, width):
        batch = interpolate(batch, (height, width), mode="bilinear", antialias=True)
    return batch.round().clamp(0, 255).to(torch.uint8), kept, failures
