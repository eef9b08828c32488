"""Omniglot: handwritten characters, ALPHABET/characterNN/NNNN_DD.png, 20 drawers each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from ..registry import register
from .dataset import ArrayDataset, Split
from .errors import missing
from .files import find_folder
from .image_files import Size, list_pictures, read_images
from .sources import SOURCES


@register("data", "omniglot")
def load_omniglot(root: Path, size: Size = None, invert: bool = False) -> Split:
    """Background characters as `train`, evaluation characters as `test`: no class is in both.

    A class is "ALPHABET/CHARACTER". In copies that number the alphabets of each part from the
    start, where the same name means two characters, it is "images_evaluation/ALPHABET/CHARACTER"
    in the test part.

    Args:
        root: the data folder.
        size: (height, width) of the pictures, or the side of a square; 28 is usual for few-shot
            work. Default: 105 x 105, as in the files.
        invert: ink bright on black instead of the files' black on white.

    Returns:
        Pictures (1, H, W) uint8.
    """
    source = SOURCES["omniglot"]
    folders = find_folder(root, source, ["images_background", "images_evaluation"])
    parts = [_read_characters(folder, size, source.how(root)) for folder in folders]
    if invert:
        parts = [replace(part, images=255 - part.images) for part in parts]
    train, test = parts
    if not set(train.classes).isdisjoint(test.classes):
        test = replace(test, classes=[f"{folders[1].name}/{name}" for name in test.classes])
    return Split(train=train, test=test)


def _read_characters(folder: Path, size: Size, where: str) -> ArrayDataset:
    paths = list_pictures(folder)
    # A picture lies two folders below: alphabet, character.
    names = [f"{Path(p).parent.parent.name}/{Path(p).parent.name}" for p in paths]
    if not paths or any(Path(p).parent.parent.parent != folder for p in (paths[0], paths[-1])):
        raise missing("Omniglot characters", folder / "ALPHABET/CHARACTER/*.png", where)
    classes = sorted(set(names))
    number = {name: i for i, name in enumerate(classes)}
    labels = torch.tensor([number[name] for name in names])
    return ArrayDataset(read_images(paths, size, "L"), labels, classes)
