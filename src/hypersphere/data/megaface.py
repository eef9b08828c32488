"""MegaFace-style identification sets: lists of gallery, probe and distractor pictures."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from ..registry import register
from .dataset import Dataset
from .errors import damaged, missing
from .image_files import Size, make_dataset
from .sources import SOURCES


@dataclass(frozen=True)
class Identification:
    """Who is it? Each of `probes` is searched in `gallery` plus `distractors`.

    The labels of gallery and probes number the same people; distractors are nobody (label -1).
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
    """Read the lists and their pictures.

    A list is JSON as the challenge's development kit writes it, {"path": [...], "id": [...]}
    (distractors need no "id"), or text with "path id" on each line. The files are in `root` or its
    folder "megaface"; paths count from `probe_images` (gallery too) and `distractor_images` there.

    Without a `gallery` list the first picture of each person in the probe list is that person's
    gallery entry and the others are the probes, so somebody with a single picture is only in the
    gallery. `limit`: the first so many distractors (the challenge has 10 to 1,000,000). `lazy`
    leaves the pictures in their files.
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
    strangers = sorted(set(probe_ids) - set(number))
    if strangers:
        raise ValueError(
            f"{len(strangers)} people of {folder / probes} are not in the gallery, e.g. "
            f"{strangers[0]!r}: a probe needs its mate there"
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
    text = path.read_text(encoding="utf-8")
    if text.lstrip().startswith("{"):
        try:
            content = json.loads(text)
        except json.JSONDecodeError as error:
            raise damaged(path, 'JSON {"path": [...], "id": [...]}', str(error), where) from None
        paths = [str(p) for p in content.get("path", [])]
        people = [str(p) for p in content.get("id", [])]
    else:
        # The identity is the last field, so paths may hold spaces; without one, tabs decide.
        rows = [
            line.rsplit(None if need_ids else "\t", 1) for line in text.splitlines() if line.strip()
        ]
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
