"""MegaFace-style identification sets: lists of gallery, probe and distractor pictures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .._reading import Unreadable, read_json, read_lines
from ..registry import register
from .dataset import Dataset
from .errors import damaged, missing
from .image_files import Size, make_dataset
from .sources import SOURCES


@dataclass(frozen=True)
class Identification:
    """Who is it? Each probe is searched in the gallery plus the distractors.

    The labels of gallery and probes number the same people; distractors are nobody (label -1).

    Args:
        gallery: the known pictures.
        probes: the pictures to search for.
        distractors: pictures of other people.
    """

    gallery: Dataset
    probes: Dataset
    distractors: Dataset | None = None


@register("data", "megaface")
def load_megaface(
    root: Path,
    probes: str = "probes.json",
    gallery: str | None = None,
    distractors: str | None = "distractors.json",
    probe_images: str = ".",
    distractor_images: str = ".",
    limit: int | None = None,
    size: Size = None,
    mode: str | None = None,
    lazy: bool = False,
) -> Identification:
    """Gallery, probes and distractors from lists of pictures.

    A list is JSON as the challenge's development kit writes it, {"path": [...], "id": [...]}
    (distractors need no "id"), or text with "path id" on each line. The files are in `root` or its
    folder "megaface".

    Args:
        root: the data folder.
        probes: the list of probes.
        gallery: the list of the gallery. Default: the first picture of each person in the probe
            list is that person's gallery entry and the others are the probes, so somebody with a
            single picture is only in the gallery.
        distractors: the list of distractors; None for none.
        probe_images: folder from which the paths of probes and gallery count.
        distractor_images: folder from which the paths of distractors count.
        limit: only the first so many distractors (the challenge has 10 to 1,000,000).
        size: bring the pictures to (height, width), or a square of this side, bilinear. Default: as
            in the files.
        mode: "L" (gray) or "RGB". Default: gray pictures stay gray, all others become RGB.
        lazy: leave the pictures in their files (`ImageFiles`).

    Returns:
        The three parts.
    """
    source = SOURCES["megaface"]
    folder = next(
        (root / f for f in source.folders if (root / f / probes).exists()), root / source.folders[0]
    )
    probe_paths, probe_ids = read_list(folder / probes, need_ids=True)
    if gallery is not None:
        gallery_paths, gallery_ids = read_list(folder / gallery, need_ids=True)
    else:
        first: dict[str, int] = {}
        for i, person in enumerate(probe_ids):
            first.setdefault(person, i)
        entries = set(first.values())
        gallery_paths, gallery_ids = [probe_paths[i] for i in first.values()], list(first)
        rest = [i for i in range(len(probe_ids)) if i not in entries]
        probe_paths, probe_ids = [probe_paths[i] for i in rest], [probe_ids[i] for i in rest]
    people = sorted(set(gallery_ids))
    number = {person: i for i, person in enumerate(people)}
    without_mate = sorted(set(probe_ids) - set(number))
    if without_mate:
        raise ValueError(
            f"{len(without_mate)} people of {folder / probes} are not in the gallery, e.g. "
            f"{without_mate[0]!r}: a probe needs its mate there"
        )
    if not probe_ids:
        raise ValueError(
            f"{folder / probes} has one picture per person: no probe is left to search"
        )

    def pictures(paths: list[str], base: str, labels: list[int]) -> Dataset:
        return make_dataset(
            [str(folder / base / p) for p in paths], labels, people, size, mode, lazy
        )

    crowd = None
    if distractors is not None:
        paths, _ = read_list(folder / distractors, need_ids=False)
        if limit is not None and limit > len(paths):
            raise ValueError(f"{limit} distractors are wanted; the list has {len(paths)}")
        paths = paths[:limit]
        crowd = pictures(paths, distractor_images, [-1] * len(paths))
    return Identification(
        pictures(gallery_paths, probe_images, [number[p] for p in gallery_ids]),
        pictures(probe_paths, probe_images, [number[p] for p in probe_ids]),
        crowd,
    )


def read_list(path: Path, need_ids: bool) -> tuple[list[str], list[str]]:
    """Paths and identities of a list; identities are empty where there are none."""
    where = SOURCES["megaface"].where
    if not path.exists():
        raise missing(f"the list {path.name}", path, where)
    lines = read_lines(path)
    if lines and lines[0].lstrip().startswith("{"):
        try:
            content = read_json(path)
        except Unreadable as error:
            raise damaged(path, 'JSON {"path": [...], "id": [...]}', str(error), where) from None
        lists = [content.get("path", []), content.get("id", [])]
        if not all(
            isinstance(values, list) and all(isinstance(v, (str, int)) for v in values)
            for values in lists
        ):
            raise damaged(path, 'JSON {"path": [...], "id": [...]}', "other values", where)
        paths, people = ([str(value) for value in values] for values in lists)
    else:
        # The identity is the last field, so paths may hold spaces; without one, tabs decide.
        rows = [line.rsplit(None if need_ids else "\t", 1) for line in lines if line.strip()]
        paths = [row[0] for row in rows]
        people = [row[1] for row in rows if len(row) > 1]
    if not paths or (need_ids and len(people) != len(paths)):
        raise damaged(
            path,
            "a path and an identity for each picture",
            f"{len(paths)} paths, {len(people)} ids",
            where,
        )
    return paths, people
