"""Features in rows, and the person that each row belongs to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from ...functional.angles import normalize
from ..extraction import extract
from ..inputs import check_features, collect_rows, first_of
from .gallery_error import GalleryError

SAME = 1e-6  # coordinates of a picture that is enrolled twice differ by less


def unit_features(
    samples: Any,
    model: nn.Module | None,
    flips: str,
    transform: Callable[[Tensor], Tensor] | None,
    dim: int | None,
) -> Tensor:
    """Unit features of pictures or features.

    Args:
        samples: features (n, d), or pictures as `extract` takes them.
        model: turns pictures into features.
        flips: "unused" or "concatenate".
        transform: from pictures to the model's input.
        dim: the dimension that the features must have. Default: any.

    Returns:
        (n, d) float32.
    """
    if isinstance(samples, DataLoader) and isinstance(samples.dataset, IterableDataset):
        samples = collect_rows(samples)  # a stream has no first sample to look at
    shape = _shape(samples)
    found: Any = samples
    if shape is None or len(shape) != 1:
        if model is None:
            got = "paths of pictures" if shape is None else f"shape {shape}"
            raise GalleryError(f"this gallery has no model, so it takes features (d,); got {got}")
        both = flips == "concatenate"
        found = extract(model, samples, flips=both, transform=transform).flatten(1)
    found = check_features("features", found)
    if dim is not None and found.shape[1] != dim:
        raise GalleryError(f"the gallery holds features of dimension {dim}; got {found.shape[1]}")
    if bool((found == 0).all(1).any()):
        raise ValueError("a feature is zero: it has no direction to compare")
    # Before the conversion: float32 ends at 3e38, and directions have no length.
    return normalize(found).float()


def one_sample(sample: Any) -> Any:
    """A single sample as `unit_features` takes several.

    Args:
        sample: a picture, its path, or a feature.

    Returns:
        A batch of one.
    """
    if isinstance(sample, (str, Path)):
        return [sample]
    if _are_paths(sample):
        raise ValueError(
            f"expected one sample; got a list of {len(sample)} files: give them one at a time, or "
            "all to identify_many"
        )
    return torch.as_tensor(sample).detach().unsqueeze(0)


def samples_of_one(sample: Any) -> Any:
    """A sample of a person, or a list of picture files, as `unit_features` takes them.

    Args:
        sample: a picture, its path, a feature, or a list of paths.

    Returns:
        A batch.
    """
    return list(sample) if _are_paths(sample) else one_sample(sample)


def _are_paths(sample: Any) -> bool:
    return isinstance(sample, (list, tuple)) and isinstance(next(iter(sample), None), (str, Path))


def _shape(samples: Any) -> tuple[int, ...] | None:
    """The shape of one of the samples; None for paths."""
    if isinstance(samples, DataLoader):
        samples = samples.dataset
    if isinstance(samples, (Tensor, np.ndarray)):
        return tuple(samples.shape[1:])
    if hasattr(samples, "take") and hasattr(samples, "shape"):
        return tuple(samples.shape)
    if len(samples) == 0:
        raise ValueError("expected at least one sample; got none")
    first = first_of(samples[0]) if not isinstance(samples, (list, tuple)) else samples[0]
    return None if isinstance(first, (str, Path)) else tuple(torch.as_tensor(first).shape)


class PersonRows:
    """Unit features of people, in the order in which they came.

    Args:
        features: (n, d). Default: none.
        names: the name of each row.
    """

    def __init__(self, features: Tensor | None = None, names: Sequence[str] = ()) -> None:
        self.number: dict[str, int] = {}  # name -> number of the person
        self._owner: list[int] = []  # row -> number of the person
        # Capacity doubles as rows come; only the first len(self) of them count.
        self._rows = torch.empty(0, 0) if features is None else features
        for name in names:
            self._owner.append(self.number.setdefault(name, len(self.number)))

    def __len__(self) -> int:
        return len(self._owner)

    @property
    def features(self) -> Tensor:
        """(n, d) unit features."""
        return self._rows[: len(self)]

    @property
    def owner(self) -> Tensor:
        """(n,) the number of the person of each row."""
        return torch.tensor(self._owner, dtype=torch.long)

    @property
    def names(self) -> list[str]:
        """The name of each row."""
        people = list(self.number)
        return [people[i] for i in self._owner]

    def add(self, names: Sequence[str], rows: Tensor) -> None:
        """Put rows at the end.

        Args:
            names: whose each of them is.
            rows: (m, d).
        """
        used, total = len(self), len(self) + len(rows)
        if used == 0 or total > len(self._rows):
            bigger = torch.empty(max(64, 2 * used, total), rows.shape[1])
            bigger[:used] = self.features if used else rows[:0]
            self._rows = bigger
        self._rows[used:total] = rows
        self._owner += [self.number.setdefault(n, len(self.number)) for n in names]

    def new(self, names: Sequence[str], rows: Tensor) -> list[int]:
        """Which rows are not there yet: of the same person, equal to `SAME`.

        Args:
            names: whose each of them is.
            rows: (m, d).

        Returns:
            Their places.
        """
        mine: dict[str, list[int]] = {}
        for place, name in enumerate(names):
            mine.setdefault(name, []).append(place)
        there: dict[int, list[int]] = {self.number[n]: [] for n in mine if n in self.number}
        for place, number in enumerate(self._owner):
            if number in there:
                there[number].append(place)
        kept = []
        for name, places in mine.items():
            known = self.features[there.get(self.number.get(name, -1), [])].reshape(
                -1, rows.shape[1]
            )
            if len(known) == 0 and len(places) == 1:
                kept += places
                continue
            for place in places:
                row = rows[place : place + 1]
                if not bool(((known - row).abs().amax(1) <= SAME).any()):
                    known = torch.cat([known, row])
                    kept.append(place)
        return sorted(kept)

    def without(self, name: str) -> PersonRows:
        """The rows of everybody else.

        Args:
            name: who is left out.

        Returns:
            New rows.
        """
        names = self.names
        keep = [i for i, other in enumerate(names) if other != name]
        rows = self.features[torch.tensor(keep, dtype=torch.long)]
        return PersonRows(rows, [names[i] for i in keep])
