"""Data sets of the library `datasets` that were saved to disk: Arrow tables, read on demand."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .._optional import require
from ..registry import register
from .dataset import Dataset, Split
from .encoded import EncodedPictures
from .errors import DamagedData, missing
from .image_files import Size
from .splits import choose_test
from .unreadable import UnreadablePictures

__all__ = ["load_arrow"]

WHERE = "your program: datasets.Dataset.save_to_disk(FOLDER)"
PICTURES, LABELS = ("image", "img", "picture"), ("label", "labels", "fine_label", "class")


@register("data", "arrow")
def load_arrow(
    root: Path,
    path: str = ".",
    size: Size = None,
    mode: str = "RGB",
    image: str | None = None,
    label: str | None = None,
    test_fraction: float = 0.25,
    seed: int = 0,
    unreadable: float = 0.05,
) -> Split:
    """A folder that `datasets.save_to_disk` wrote; pictures are decoded batch by batch.

    Args:
        root: the folder, or one above it.
        path: the folder below `root`. Default: `root` itself.
        size: bring the pictures to (height, width), or a square of this side, bilinear. Default: as
            in the table.
        mode: "RGB" or "L" (gray).
        image: column of the pictures. Default: image, img or picture.
        label: column of the labels, a ClassLabel, numbers or texts. Default: label, labels,
            fine_label or class.
        test_fraction: share of every class for testing, where there is no split of that name.
        seed: seed of the choice.
        unreadable: share of the pictures that may be unreadable; each is named in a warning when it
            is met, and another of its class takes its place. More than that is an error.

    Returns:
        Training and test part, and a validation part where the folder has train, validation and
        test.
    """
    library = require("datasets", extra="arrow")
    folder = root / Path(path).expanduser()
    if not folder.is_dir():
        raise missing("the folder of a saved data set", [folder.absolute()], WHERE)
    try:
        found = library.load_from_disk(str(folder))
    except (FileNotFoundError, ValueError, OSError) as error:
        raise DamagedData(f"{folder} is no data set that `datasets` saved: {error}") from None
    skipped = UnreadablePictures(unreadable)
    if not isinstance(found, library.DatasetDict):
        everything = _pictures(library, skipped, found, folder, size, mode, image, label)
        test = choose_test(everything.labels, test_fraction, seed)
        train, rest = (everything.subset(p.nonzero().flatten()) for p in (~test, test))
        return Split(train, rest)
    names = {"train": ("train",), "validation": ("validation", "val"), "test": ("test",)}
    parts: dict[str, Any] = {
        part: next((found[n] for n in known if n in found), None) for part, known in names.items()
    }
    if parts["test"] is None:
        parts["test"], parts["validation"] = parts["validation"], None
    if parts["train"] is None or parts["test"] is None:
        raise DamagedData(f"{folder}: expected train and test (or validation); has {sorted(found)}")
    read = partial(_pictures, library, skipped)
    train = read(parts["train"], folder, size, mode, image, label)
    others: dict[str, Dataset | None] = {}
    for part in ("test", "validation"):
        table = parts[part]
        if table is not None:
            others[part] = read(table, folder, size, mode, image, label, list(train.classes))
    return Split(train, others["test"], others.get("validation"))  # type: ignore[arg-type]


def _pictures(
    library: Any,
    unreadable: UnreadablePictures,
    table: Any,
    folder: Path,
    size: Size,
    mode: str,
    image: str | None,
    label: str | None,
    classes: list[str] | None = None,
) -> EncodedPictures:
    image = _column(table, image, PICTURES, "image", folder)
    label = _column(table, label, LABELS, "label", folder)
    if not isinstance(table.features[image], library.Image):
        raise DamagedData(f"{folder}: column {image!r} holds {table.features[image]}, no pictures")
    # Bytes as they are in the table: Pillow decodes a batch when it is asked for.
    table = table.cast_column(image, library.Image(decode=False))
    values = list(table[label])
    if isinstance(table.features[label], library.ClassLabel):
        classes, numbers = list(table.features[label].names), np.array(values, dtype=np.int64)
    else:
        known = classes if classes is not None else sorted({str(v) for v in values})
        number = {name: i for i, name in enumerate(known)}
        unknown = [v for v in values if str(v) not in number]
        if unknown:
            raise DamagedData(f"{folder}: {unknown[0]!r} is no class of the training part")
        classes, numbers = known, np.array([number[str(v)] for v in values], dtype=np.int64)
    read = partial(_content, table, image)
    unreadable.total += len(table)
    rows, found = torch.arange(len(table)), torch.from_numpy(numbers)
    return EncodedPictures(read, rows, found, classes, size, mode, str(folder), unreadable)


def _content(table: Any, image: str, row: int) -> bytes:
    cell = table[row][image]
    if cell["bytes"] is not None:
        return bytes(cell["bytes"])
    return Path(cell["path"]).read_bytes()


def _column(table: Any, given: str | None, usual: tuple[str, ...], what: str, folder: Path) -> str:
    wanted = (given,) if given is not None else usual
    found = next((name for name in wanted if name in table.column_names), None)
    if found is None:
        raise ValueError(
            f"{folder} has no column {' or '.join(wanted)}; it has "
            f"{', '.join(table.column_names)}: name it with {what}= (--data.options.{what})"
        )
    return found
