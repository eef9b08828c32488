"""Letters of five alphabets in twelve faces, rendered on the spot: an open-set task, no download.

The DejaVu faces that come with matplotlib all have Latin, Greek, Cyrillic, Armenian and Georgian.
A network learns the letters of the first three alphabets and is tested on whether two pictures
show the same letter of the other two, which it has never seen: what a face recognizer does with
people.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .._optional import require
from ..registry import register
from ._random import generator
from .dataset import ArrayDataset, Split
from .errors import MissingData
from .verification_pairs import draw_pairs

__all__ = ["ALPHABETS", "letters", "load_letters"]

# First and last code point of each range; what is not a letter in between is left out.
ALPHABETS: dict[str, tuple[tuple[int, int], ...]] = {
    "latin": ((0x41, 0x5A), (0x61, 0x7A)),
    "greek": ((0x391, 0x3C9),),
    "cyrillic": ((0x410, 0x44F),),
    "armenian": ((0x531, 0x556), (0x561, 0x587)),
    "georgian": ((0x10D0, 0x10F0),),
}
SEEN = ("latin", "greek", "cyrillic")
UNSEEN = ("armenian", "georgian")
FACES = ("DejaVuSans", "DejaVuSansMono", "DejaVuSerif")
STYLES = {"DejaVuSerif": ("", "-Bold", "-Italic", "-BoldItalic")}
SLANTED = ("", "-Bold", "-Oblique", "-BoldOblique")


def letters(alphabets: Sequence[str] = SEEN) -> list[str]:
    """The letters of some alphabets, in the order of their code points.

    Args:
        alphabets: names from :data:`ALPHABETS`.

    Returns:
        One string per letter.

    >>> len(letters()), len(letters(("armenian", "georgian")))
    (172, 110)
    """
    for name in alphabets:
        if name not in ALPHABETS:
            raise ValueError(f"unknown alphabet {name!r}; known: {', '.join(ALPHABETS)}")
    codes = [c for name in alphabets for low, high in ALPHABETS[name] for c in range(low, high + 1)]
    return [chr(c) for c in codes if chr(c).isalpha()]


@register("data", "letters")
def load_letters(
    size: int = 28,
    copies: int = 4,
    test_copies: int = 1,
    rotation: float = 10.0,
    scaling: float = 0.15,
    shift: float = 2.0,
    share_lookalikes: bool = True,
    folds: int = 10,
    per_fold: int = 300,
    seed: int = 0,
) -> Split:
    """Letters to learn (Latin, Greek, Cyrillic) and pairs of letters never seen (the others).

    Args:
        size: side of a picture in pixels.
        copies: training pictures per letter and face, each rotated, scaled and shifted at random.
        test_copies: the same for the test part and for the unseen letters.
        rotation: largest rotation in degrees, up to 180.
        scaling: largest relative change of the size of a letter, up to 0.9.
        shift: largest shift in pixels, up to size / 2.
        share_lookalikes: letters of the same shape (the A of three alphabets) are one class; if
            False, each is a class of its own, which no network can tell apart.
        folds: number of parts that the verification pairs are divided into.
        per_fold: pairs of one letter per fold, and as many of two letters.
        seed: fixes the pictures and the pairs.

    Returns:
        A :class:`Split` of (1, size, size) uint8 pictures. ``pairs`` point into pictures of
        Armenian and Georgian letters.
    """
    for name, value, most in (
        ("rotation", rotation, 180),
        ("scaling", scaling, 0.9),
        ("shift", shift, size / 2),  # further out, nothing is left of a letter
    ):
        if not 0 <= value <= most:
            raise ValueError(f"{name} must be a number in [0, {most:g}]; got {value:g}")
    change = (rotation, scaling, shift)
    train, test, unseen = _drawn(size, copies, test_copies, change, share_lookalikes, seed)
    return Split(train, test, pairs=draw_pairs(unseen, folds, per_fold, seed))


@functools.lru_cache(maxsize=1)  # a run, its baseline and its report see the same pictures
def _drawn(
    size: int,
    copies: int,
    test_copies: int,
    change: tuple[float, float, float],
    share_lookalikes: bool,
    seed: int,
) -> tuple[ArrayDataset, ArrayDataset, ArrayDataset]:
    """Pictures to learn, to test, and of letters never seen."""
    faces = _faces(size)
    seen = letters(SEEN)
    groups = _groups(seen, faces) if share_lookalikes else [[letter] for letter in seen]
    others = [[letter] for letter in letters(UNSEEN)]

    def draw(part: str, drawn: Sequence[Sequence[str]], count: int) -> ArrayDataset:
        names = [_class_name(group, always=not share_lookalikes) for group in drawn]
        random = generator(seed, "letters", part)
        return _render(drawn, names, faces, size, count, change, random)

    return (
        draw("train", groups, copies),
        draw("test", groups, test_copies),
        draw("unseen", others, test_copies),
    )


def _faces(size: int) -> list[Any]:
    """The twelve faces, at a size that leaves a margin around the tallest letters."""
    image_font = require("PIL.ImageFont", extra="data")
    spec = importlib.util.find_spec("matplotlib")  # its fonts, without importing it
    if spec is None or not spec.submodule_search_locations:
        raise MissingData(
            "the letters are drawn with the fonts that come with matplotlib: "
            "pip install 'torch-hypersphere[report]'"
        )
    folder = Path(spec.submodule_search_locations[0]) / "mpl-data" / "fonts" / "ttf"
    files = [folder / f"{f}{style}.ttf" for f in FACES for style in STYLES.get(f, SLANTED)]
    lacking = [file.name for file in files if not file.is_file()]
    if lacking:
        raise MissingData(f"matplotlib's folder of fonts lacks {', '.join(lacking)}: {folder}")
    return [image_font.truetype(str(file), round(0.72 * size)) for file in files]


def _groups(seen: Sequence[str], faces: Sequence[Any]) -> list[list[str]]:
    """Letters that are drawn alike in at least half of the faces, together."""
    shapes = {letter: [bytes(face.getmask(letter)) for face in faces] for letter in seen}
    groups: list[list[str]] = []
    for letter in seen:
        for group in groups:
            alike = sum(map(bytes.__eq__, shapes[group[0]], shapes[letter]))
            if 2 * alike >= len(faces):
                group.append(letter)
                break
        else:
            groups.append([letter])
    return groups


def _render(
    groups: Sequence[Sequence[str]],
    names: list[str],
    faces: Sequence[Any],
    size: int,
    copies: int,
    change: tuple[float, float, float],
    random: torch.Generator,
) -> ArrayDataset:
    rotation, scaling, shift = change
    pictures, labels = [], []
    for label, group in enumerate(groups):
        for face in faces:
            glyph = _glyph(group[0], face, size)
            for _ in range(copies):
                turn, scale, dx, dy = (2 * torch.rand(4, generator=random) - 1).tolist()
                pictures.append(
                    _transform(
                        glyph, size, rotation * turn, 1 + scaling * scale, shift * dx, shift * dy
                    )
                )
                labels.append(label)
    images = torch.from_numpy(np.stack(pictures)).unsqueeze(1)
    return ArrayDataset(images, torch.tensor(labels), names)


def _class_name(group: Sequence[str], always: bool = False) -> str:
    """A letter; with its alphabets, if several have it (or always).

    >>> _class_name(["\u0041", "\u0391", "\u0410"])
    'A (Latin, Greek, Cyrillic)'
    """
    if len(group) == 1 and not always:
        return group[0]
    found = [
        name.capitalize()
        for name, ranges in ALPHABETS.items()
        if any(low <= ord(letter) <= high for letter in group for low, high in ranges)
    ]
    return f"{group[0]} ({', '.join(found)})"


def _glyph(letter: str, face: Any, size: int) -> Any:
    """One letter in the middle of a picture, white on black."""
    image = require("PIL.Image", extra="data").new("L", (size, size), 0)
    draw = require("PIL.ImageDraw", extra="data").Draw(image)
    left, top, right, bottom = face.getbbox(letter)
    draw.text(((size - left - right) / 2, (size - top - bottom) / 2), letter, fill=255, font=face)
    return image


def _transform(
    image: Any, size: int, degrees: float, scale: float, dx: float, dy: float
) -> np.ndarray:
    """Rotate and scale about the center, then shift; bilinear."""
    pil = require("PIL.Image", extra="data")
    a = np.cos(np.radians(degrees)) / scale
    b = np.sin(np.radians(degrees)) / scale
    c = (size - 1) / 2
    # Pillow asks for the inverse map: where each pixel of the result comes from.
    x0 = c - a * (c + dx) - b * (c + dy)
    y0 = c + b * (c + dx) - a * (c + dy)
    turned = image.transform(
        (size, size), pil.Transform.AFFINE, (a, b, x0, -b, a, y0), pil.Resampling.BILINEAR
    )
    return np.asarray(turned)
