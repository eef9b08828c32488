"""A split by person: nobody who is trained on appears where thresholds are fitted or judged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from .._reading import read_json
from ._random import generator

__all__ = ["People", "divide_people"]


@dataclass(frozen=True)
class People:
    """Who is used for what; the three lists have nobody in common.

    Args:
        train: who is trained on.
        calibration: who thresholds are fitted on, and verification pairs are drawn from.
        test: who is used for nothing else than the final judgment.
    """

    train: list[str]
    calibration: list[str]
    test: list[str]

    def __post_init__(self) -> None:
        seen: dict[str, str] = {}
        for part, names in asdict(self).items():
            for name in names:
                if name in seen:
                    raise ValueError(f"{name!r} is in {seen[name]} and in {part}; one is allowed")
                seen[name] = part

    def save(self, path: Path | str) -> Path:
        """Write the lists as JSON.

        Args:
            path: the file.

        Returns:
            The path.
        """
        Path(path).write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        return Path(path)

    @classmethod
    def load(cls, path: Path | str) -> People:
        """Read lists that were saved, or written by hand.

        Args:
            path: a JSON file {"train": [...], "calibration": [...], "test": [...]}, or split.json
                of a run.

        Returns:
            The lists.
        """
        found = read_json(path)
        parts = ("train", "calibration", "test")
        found = found.get("people", found) if isinstance(found, dict) else found
        if not (
            isinstance(found, dict)
            and all(isinstance(found.get(part), list) for part in parts)
            and all(isinstance(name, str) for part in parts for name in found[part])
        ):
            raise ValueError(f"{path}: expected lists of names under {', '.join(parts)}")
        return cls(**{part: found[part] for part in parts})


def divide_people(
    pictures: Mapping[str, int], unseen: float = 0.4, min_images: int = 2, seed: int = 0
) -> People:
    """Draw who is trained on and who is not.

    People with fewer than `min_images` pictures are never trained on: one picture cannot be both
    learned and tested, but makes a good unknown person. Of those who are not trained on, half are
    for calibration and half for the test, drawn among people with equally many pictures, so that
    both halves have people with several.

    Args:
        pictures: name -> number of pictures.
        unseen: share of the people with enough pictures that is not trained on, in (0, 1).
        min_images: pictures that a person needs to be trained on.
        seed: seed of the choice.

    Returns:
        The lists, each in alphabetical order.

    >>> people = divide_people({"ada": 5, "bob": 1, "cy": 6, "dot": 7, "eve": 5, "fay": 1})
    >>> "bob" in people.train, len(people.train), len(people.calibration) + len(people.test)
    (False, 2, 4)
    """
    if not 0 < unseen < 1:
        raise ValueError(f"unseen is a share of the people between 0 and 1; got {unseen}")
    enough = sorted(name for name, count in pictures.items() if count >= min_images)
    order = torch.randperm(len(enough), generator=generator(seed, "people")).tolist()
    drawn = {enough[i] for i in order[: max(round(unseen * len(enough)), 2)]}
    train = [name for name in enough if name not in drawn]
    if len(train) < 2:
        raise ValueError(
            f"{len(enough)} of {len(pictures)} people have at least {min_images} pictures, which "
            f"leaves {len(train)} to train on: lower min_images, or give more people"
        )
    rest = [name for name in sorted(pictures) if name not in set(train)]
    shuffle = torch.randperm(len(rest), generator=generator(seed, "halves")).tolist()
    # Dealt out from most pictures to fewest; `sorted` keeps the random order among equals.
    dealt = sorted((rest[i] for i in shuffle), key=lambda name: -pictures[name])
    return People(train, sorted(dealt[0::2]), sorted(dealt[1::2]))
