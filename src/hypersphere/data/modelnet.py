"""ModelNet40: point clouds in HDF5 files, `ply_data_train0.h5`, ..., `ply_data_test0.h5`, ..."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch

from .._optional import require
from .._reading import check_regular, read_lines
from ..registry import register
from ._random import generator
from .dataset import ArrayDataset, Split
from .errors import damaged, missing
from .limits import check_claim
from .sources import SOURCES


@register("data", "modelnet40")
def load_modelnet(root: Path, points: int | None = None, seed: int = 0) -> Split:
    """Point clouds of ModelNet40, with the y axis up.

    Args:
        root: the data folder.
        points: draw this many points of each cloud, once; `SamplePoints` draws others for every
            batch. Never the first ones: files may hold the points in a spatial order. Default: all.
        seed: seed of the choice.

    Returns:
        Training and test clouds (P, 3) float32.
    """
    source = SOURCES["modelnet40"]
    folder = next((root / f for f in source.folders if any((root / f).glob("ply_data_*.h5"))), None)
    if folder is None:
        raise missing(
            "ModelNet40 (ply_data_train0.h5, ...)",
            [root / f for f in source.folders],
            source.how(root),
        )
    parts = []
    for part in ("train", "test"):
        files = sorted(folder.glob(f"ply_data_{part}*.h5"), key=_number)
        if not files:
            raise missing(
                f"the ModelNet40 file ply_data_{part}0.h5",
                folder / f"ply_data_{part}0.h5",
                source.how(root),
            )
        absent = set(range(len(files))) - {_number(file) for file in files}
        if absent:
            name = f"ply_data_{part}{min(absent)}.h5"
            raise missing(f"the ModelNet40 file {name}", folder / name, source.how(root))
        clouds, labels = zip(*(_read_clouds(f, source.where) for f in files), strict=True)
        if len({c.shape[1] for c in clouds}) > 1:
            raise damaged(files[-1], "as many points as the other files", "another number", "")
        parts.append((torch.from_numpy(np.concatenate(clouds)), np.concatenate(labels)))
    most = int(max(labels.max() for _, labels in parts)) + 1
    names = folder / "shape_names.txt"
    classes = (
        " ".join(read_lines(names)).split() if names.exists() else [str(c) for c in range(most)]
    )
    if most > len(classes):
        raise damaged(names, f"{most} names", f"{len(classes)}", source.where)
    sets = []
    for clouds, labels in parts:
        if points is not None:
            clouds = _draw(clouds, points, seed)
        sets.append(ArrayDataset(clouds, torch.from_numpy(labels), classes))
    return Split(train=sets[0], test=sets[1])


def _read_clouds(path: Path, where: str) -> tuple[np.ndarray, np.ndarray]:
    h5py = require("h5py", extra="data")
    check_regular(path)
    try:
        with h5py.File(path, "r") as file:
            present = [key for key in ("data", "label") if hasattr(file.get(key), "nbytes")]
            check_claim(path, sum(file[key].nbytes for key in present), where)
            content = {key: np.asarray(file[key]) for key in present}
    except (OSError, RuntimeError, KeyError) as error:
        raise damaged(path, "an HDF5 file", str(error), where) from None
    if len(content) < 2:
        raise damaged(path, "the arrays 'data' and 'label'", f"{sorted(content)}", where)
    data, label = content["data"], content["label"].reshape(-1)
    if data.ndim != 3 or data.shape[2] != 3 or len(data) != len(label):
        raise damaged(
            path, "data (n, points, 3) and n labels", f"{data.shape} and {len(label)} labels", where
        )
    if data.dtype.kind not in "fiu" or label.dtype.kind not in "fiu":
        raise damaged(path, "numbers", f"{data.dtype} and {label.dtype}", where)
    if not np.isfinite(data).all() or not ((label >= 0) & (label % 1 == 0)).all():
        raise damaged(path, "finite coordinates and labels 0, 1, ...", "others", where)
    return data.astype(np.float32, copy=False), label.astype(np.int64)


def _draw(clouds: torch.Tensor, points: int, seed: int) -> torch.Tensor:
    if points > clouds.shape[1]:
        raise ValueError(f"{points} points are wanted; the files have {clouds.shape[1]}")
    random = generator(seed, "points")
    order = torch.rand(clouds.shape[:2], generator=random).argsort(dim=1)[:, :points]
    return clouds.gather(1, order.unsqueeze(2).expand(-1, -1, 3))


def _number(path: Path) -> int:
    found = re.search(r"(\d+)$", path.stem)
    return int(found.group(1)) if found else 0
