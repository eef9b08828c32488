"""A folder of people divided by person: to train on, to fit thresholds on, to judge by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from .dataset import Dataset, Split
from .people import People, divide_people
from .splits import choose_test
from .verification_pairs import Pairs, draw_pairs

__all__ = ["Read", "open_set_folder"]

# (paths, labels, classes) -> a data set of these pictures
Read = Callable[[Sequence[str], Sequence[int], Sequence[str]], Dataset]
FOLDS, PER_FOLD = 10, 300  # of LFW


def open_set_folder(
    listed: tuple[list[str], list[int], list[str]],
    read: Read,
    people_file: str | None = None,
    unseen: float = 0.4,
    min_images: int = 2,
    test_fraction: float = 0.25,
    seed: int = 0,
) -> Split:
    """Divide the people of a folder.

    Args:
        listed: paths, labels and names, as `list_classes` gives them.
        read: makes a data set.
        people_file: who is used for what; made and written if it is missing.
        unseen: share of the people who are not trained on.
        min_images: pictures that a person needs to be trained on.
        test_fraction: share of every trained person's pictures for testing.
        seed: seed of the choice.

    Returns:
        `train` and `test` of the trained people, `pairs` of those for calibration, `reserved` of
        the others.
    """
    paths, labels, names = listed
    people = _who(people_file, names, labels, unseen, min_images, seed)
    number = {name: i for i, name in enumerate(names)}

    def part(chosen: Sequence[str]) -> tuple[list[str], list[int]]:
        new = {number[name]: i for i, name in enumerate(chosen)}
        index = [i for i, label in enumerate(labels) if label in new]
        return [paths[i] for i in index], [new[labels[i]] for i in index]

    shown, known = part(people.train)
    is_test = choose_test(torch.tensor(known), test_fraction, seed).tolist()
    halves = []
    for wanted in (False, True):
        index = [i for i, test in enumerate(is_test) if test == wanted]
        halves.append(read([shown[i] for i in index], [known[i] for i in index], people.train))
    calibration = read(*part(people.calibration), people.calibration)
    reserved = read(*part(people.test), people.test) if people.test else None
    pairs = _pairs(calibration, seed)
    notes = {"people": asdict(people)}
    return Split(halves[0], halves[1], pairs=pairs, reserved=reserved, notes=notes)


def _who(
    file: str | None, names: list[str], labels: list[int], unseen: float, least: int, seed: int
) -> People:
    if file is not None and Path(file).expanduser().exists():
        people = People.load(Path(file).expanduser())
        absent = sorted(set(people.train + people.calibration + people.test) - set(names))
        if absent:
            raise ValueError(
                f"{file} names {len(absent)} people who have no pictures, such as {absent[0]!r}"
            )
        for part in ("train", "calibration"):
            if not getattr(people, part):
                raise ValueError(
                    f"{file}: {part} names nobody; people are needed to train on and others to fit "
                    "thresholds on (calibration): move some of them there"
                )
        return people
    count = Counter(labels)
    people = divide_people({n: count[i] for i, n in enumerate(names)}, unseen, least, seed)
    if file is not None:
        people.save(Path(file).expanduser())
    return people


def _pairs(dataset: Dataset, seed: int) -> Pairs:
    """As many pairs as there can be, up to LFW's 10 folds of 300 and 300."""
    labels = dataset.labels
    counts = torch.bincount(labels)
    positives, negatives = _possible(counts)
    # A third of what there is: drawing every last pair would leave nothing to chance.
    per_fold = min(PER_FOLD, max(1, min(positives, negatives) // (3 * FOLDS)))
    folds = min(FOLDS, positives, negatives)
    if folds < 2:
        raise ValueError(
            f"the {int((counts > 0).sum())} people for calibration have {positives} pairs of "
            "pictures of one person; at least two are needed: give people with several pictures"
        )
    return draw_pairs(dataset, folds, per_fold, seed)


def _possible(counts: Tensor) -> tuple[int, int]:
    """Pairs of one person, and of two."""
    total = int(counts.sum())
    same = int((counts * (counts - 1) // 2).sum())
    return same, total * (total - 1) // 2 - same
