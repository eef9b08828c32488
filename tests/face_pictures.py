"""Drawn faces: people that a detector finds and a small network can tell apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter


def draw_face(person: int, picture: int, size: int = 128) -> Image.Image:
    """A face whose colors and proportions are those of `person`; light, place and noise differ."""
    who, how = np.random.default_rng([7, person]), np.random.default_rng([person, picture])
    light, shift = how.uniform(0.85, 1.1), how.uniform(-4, 4, 2)

    def color(values) -> tuple[int, ...]:
        return tuple(int(v) for v in np.clip(np.asarray(values) * light, 0, 255))

    skin = np.clip(np.array([205, 160, 130]) + who.normal(0, 28, 3), 50, 250)
    hair, lips = who.integers(10, 140, 3), who.integers(60, 190, 3)
    width, height = size * 0.27 * who.uniform(0.88, 1.12), size * 0.36 * who.uniform(0.9, 1.1)
    eye, mouth = who.uniform(0.36, 0.48), who.uniform(0.28, 0.46)
    image = Image.new("RGB", (size, size), color(how.integers(60, 200, 3)))
    draw = ImageDraw.Draw(image)
    x, y = size / 2 + shift[0], size / 2 + 4 + shift[1]

    def oval(left, top, right, bottom, fill) -> None:
        box = [x + left * width, y + top * height, x + right * width, y + bottom * height]
        draw.ellipse(box, fill=color(fill))

    oval(-1.12, -1.2, 1.12, 0.8, hair)
    oval(-1, -1, 1, 1, skin)
    for side in (-eye, eye):
        oval(side - 0.24, -0.26, side + 0.24, -0.06, 0.8 * skin)
        oval(side - 0.19, -0.21, side + 0.19, -0.09, (240, 240, 240))
        oval(side - 0.09, -0.21, side + 0.09, -0.09, (40, 25, 20))
        brow = [x + (side - 0.24) * width, y - 0.32 * height]
        draw.line([*brow, brow[0] + 0.48 * width, brow[1]], fill=color(hair), width=3)
    nose = [(x, y - 0.1 * height)]
    nose += [(x + side * 0.16 * width, y + 0.26 * height) for side in (-1, 1)]
    draw.polygon(nose, fill=color(0.8 * skin))
    for side in (-0.14, 0.02):
        oval(side, 0.2, side + 0.12, 0.27, 0.55 * skin)
    oval(-mouth, 0.45, mouth, 0.6, lips)
    lip = y + 0.52 * height
    draw.line([x - mouth * width, lip, x + mouth * width, lip], fill=color(0.5 * lips), width=2)
    image = image.filter(ImageFilter.GaussianBlur(1.2))
    noisy = np.asarray(image) + how.normal(0, 5, (size, size, 3))
    return Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))


def write_people(folder: Path, people: range, pictures: int, size: int = 128) -> Path:
    """NAME/NAME_0001.jpg as in LFW."""
    for person in people:
        name = f"Person_{person:03d}"
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(1, pictures + 1):
            draw_face(person, i, size).save(folder / name / f"{name}_{i:04d}.jpg", quality=92)
    return folder
