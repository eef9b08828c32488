"""A gallery of known people (or things) that can be asked: who is this, is this really her?"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from ...functional.angles import normalize
from ..inputs import check_features
from ..features import extract, model_hash
from ..recognition.search_index import SearchIndex
from .store import GalleryError, read_gallery, write_gallery

SCORES_AT_ONCE = 1 << 25


@dataclass(frozen=True)
class Match:
    """A person of the gallery and the cosine with the nearest of her or his features."""

    name: str
    score: float


class Gallery:
    """Names with one or more unit features each, searched exactly by the cosine.

    Args:
        model: turns pictures into features (`features(x)` or the module itself); without one the
            gallery takes features only.
        transform: from pictures to the model's input, e.g. `data.Normalize`.
        flips: "unused", or "concatenate" the features of a picture and its mirror image (2.3.6).
        threshold: cosine from which `verify` says yes and `identify` gives a name; choose it from
            the TAR at FAR of `verification`.
        fingerprint: identifies the origin of the features where there is no model.

    >>> gallery = Gallery(threshold=0.5)
    >>> gallery.enroll("ada", torch.tensor([1.0, 0.0]))
    >>> gallery.enroll("bob", torch.tensor([0.0, 1.0]))
    >>> gallery.identify(torch.tensor([0.9, 0.1]))[0].name
    'ada'
    >>> gallery.verify("bob", torch.tensor([0.9, 0.1]))
    (False, 0.110...)
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        *,
        transform: Callable[[Tensor], Tensor] | None = None,
        flips: str = "unused",
        threshold: float = 0.4,
        fingerprint: str | None = None,
    ) -> None:
        if flips not in ("unused", "concatenate"):
            raise ValueError(f"flips: 'unused' or 'concatenate'; got {flips!r}")
        self.model, self.transform, self.flips, self.threshold = model, transform, flips, threshold
        self.fingerprint = fingerprint or (model_hash(model) if model is not None else "")
        self._number: dict[str, int] = {}  # name -> place in `people`
        self._owner: list[int] = []  # row -> place in `people`
        self._rows = torch.empty(0, 0)  # capacity doubles; only the first len(self) rows count
        self._index: SearchIndex | None = None  # made when asked, forgotten when rows change

    def __len__(self) -> int:
        """How many features are enrolled; `people` names whose they are."""
        return len(self._owner)

    def __contains__(self, name: object) -> bool:
        return name in self._number

    @property
    def people(self) -> list[str]:
        return list(self._number)

    @property
    def names(self) -> list[str]:
        """The name of each row of `features`."""
        people = self.people
        return [people[i] for i in self._owner]

    @property
    def dim(self) -> int | None:
        """Dimension of the features; None as long as there are none."""
        return self._rows.shape[1] if self._owner else None

    @property
    def features(self) -> Tensor:
        """(n, d) unit features in the order of enrolment."""
        return self._rows[: len(self)]

    def enroll(self, name: str, sample: Tensor) -> None:
        """Add a picture (C, H, W) or a feature (d,) of `name`; several make one person surer."""
        self.enroll_many([name], torch.as_tensor(sample).unsqueeze(0))

    def enroll_many(self, names: Sequence[str], samples: Tensor) -> None:
        """Add pictures (n, C, H, W) or features (n, d), one per name; all of them or, after an
        error, none."""
        if len(names) != len(samples):
            raise ValueError(f"{len(names)} names for {len(samples)} samples")
        empty = [i for i, name in enumerate(names) if not str(name).strip()]
        if empty:
            raise ValueError(f"name {empty[0]} is empty")
        rows = self._features(samples)
        self._index = None
        used, total = len(self), len(self) + len(rows)
        if used == 0 or total > len(self._rows):
            bigger = torch.empty(max(64, 2 * used, total), rows.shape[1])
            bigger[:used] = self.features if used else rows[:0]
            self._rows = bigger
        self._rows[used:total] = rows
        self._owner += [self._number.setdefault(str(n), len(self._number)) for n in names]

    def remove(self, name: str) -> int:
        """Forget a person; returns how many features went."""
        if name not in self:
            raise self._unknown(name)
        names, self._index = self.names, None
        keep = [i for i, other in enumerate(names) if other != name]
        gone = len(self) - len(keep)
        self._rows = self.features[torch.tensor(keep, dtype=torch.long)]
        del self._number[name]
        self._number = {other: i for i, other in enumerate(self._number)}
        self._owner = [self._number[names[i]] for i in keep]
        return gone

    def verify(
        self, name: str, sample: Tensor, threshold: float | None = None
    ) -> tuple[bool, float]:
        """Is this `name`? The answer, and the cosine with the nearest feature of `name`."""
        if name not in self:
            raise self._unknown(name)
        query = self._features(torch.as_tensor(sample).unsqueeze(0))
        mine = torch.tensor(self._owner) == self._number[name]
        score = float((self.features[mine] @ query[0]).max())
        return score >= (self.threshold if threshold is None else threshold), score

    def identify(self, sample: Tensor, top: int = 5, threshold: float | None = None) -> list[Match]:
        """The `top` nearest people at or above the threshold, best first; empty: unknown."""
        return self.identify_many(torch.as_tensor(sample).unsqueeze(0), top, threshold)[0]

    def identify_many(
        self, samples: Tensor, top: int = 5, threshold: float | None = None
    ) -> list[list[Match]]:
        """`identify` for pictures (n, C, H, W) or features (n, d)."""
        if len(self) == 0:
            raise GalleryError("the gallery is empty: enroll somebody first")
        if top < 1:
            raise ValueError(f"top: expected at least 1; got {top}")
        least = self.threshold if threshold is None else threshold
        queries = self._features(samples)
        people = self.people
        answers = []
        for part in queries.split(max(1, SCORES_AT_ONCE // len(self))):
            scores, places = self._nearest(part, min(top, len(people)))
            for best, who in zip(scores.tolist(), places.tolist(), strict=True):
                pairs = zip(who, best, strict=True)
                answers.append([Match(people[i], s) for i, s in pairs if s >= least])
        return answers

    def _nearest(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Scores and places in `people` of the k nearest people, by the best row of each."""
        if len(self) == len(self._number):  # one row each: rows are people
            if self._index is None:
                self._index = SearchIndex(self.features)
            scores, rows = self._index.search(queries, k)
            return scores, torch.tensor(self._owner)[rows]
        owner = torch.tensor(self._owner).expand(len(queries), -1)
        best = queries.new_full((len(queries), len(self._number)), -2.0)
        best.scatter_reduce_(1, owner, queries @ self.features.T, "amax")
        return tuple(best.topk(k, dim=1))  # type: ignore[return-value]

    def _unknown(self, name: str) -> GalleryError:
        near = difflib.get_close_matches(name, self.people, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return GalleryError(f"nobody is enrolled as {name!r}{hint}")

    def _features(self, samples: Tensor) -> Tensor:
        """Unit features (n, d) of pictures or features."""
        if samples.ndim == 2:
            found = samples
        elif self.model is None:
            raise GalleryError(
                "this gallery has no model, so it takes features (d,); "
                f"got shape {tuple(samples.shape[1:])}"
            )
        else:
            both = self.flips == "concatenate"
            found = extract(self.model, samples, flips=both, transform=self.transform).flatten(1)
        found = check_features("features", found).float()
        if self.dim is not None and found.shape[1] != self.dim:
            raise GalleryError(
                f"the gallery holds features of dimension {self.dim}; got {found.shape[1]}"
            )
        if bool((found == 0).all(1).any()):
            raise ValueError("a feature is zero: it has no direction to compare")
        return normalize(found)

    def save(self, folder: str | Path) -> Path:
        """Write to a folder, gallery.json and a safetensors file, atomically."""
        settings = {"flips": self.flips, "threshold": self.threshold}
        return write_gallery(folder, self.features, self.names, self.fingerprint, settings)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        model: nn.Module | None = None,
        *,
        transform: Callable[[Tensor], Tensor] | None = None,
        fingerprint: str | None = None,
    ) -> Gallery:
        """Read a gallery; with a `model` (or a fingerprint) of another origin it is refused."""
        given = fingerprint or (model_hash(model) if model is not None else "")
        features, names, origin, settings = read_gallery(folder)
        if given and origin and given != origin:
            raise GalleryError(
                f"{folder}: its features come from model {origin}, this is model {given}. "
                "Features of different models cannot be compared: enroll again with this model"
            )
        gallery = cls(model, transform=transform, fingerprint=origin or given, **settings)
        gallery._rows = features
        for name in names:
            gallery._owner.append(gallery._number.setdefault(name, len(gallery._number)))
        return gallery
