"""A gallery of known people (or things) that can be asked: who is this, is this really her?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...functional.angles import normalize
from ...registry import nearest
from ..extraction import extract
from ..fingerprints import model_hash
from ..inputs import check_features
from ..recognition.search_index import SearchIndex
from .store import FLIPS, GalleryError, gallery_state, locked, read_gallery, write_gallery

SCORES_AT_ONCE = 1 << 25


@dataclass(frozen=True)
class Match:
    """A person of the gallery who resembles a sample.

    Args:
        name: the person.
        score: cosine with the nearest of the person's features, in [-1, 1].
    """

    name: str
    score: float


class Gallery:
    """Names with one or more unit features each, searched exactly by the cosine.

    A person is accepted when the score is at least the threshold.

    Args:
        model: turns pictures into features (`features(x)` or the module itself). Default: none,
            and the gallery takes features only.
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
        if flips not in FLIPS:
            raise ValueError(f"flips: 'unused' or 'concatenate'; got {flips!r}")
        self.model, self.transform, self.flips = model, transform, flips
        self.threshold = _check_threshold(threshold)
        self.fingerprint = fingerprint or (model_hash(model) if model is not None else "")
        self._number: dict[str, int] = {}  # name -> place in `people`
        self._owner: list[int] = []  # row -> place in `people`
        self._rows = torch.empty(0, 0)  # capacity doubles; only the first len(self) rows count
        self._index: SearchIndex | None = None  # made when asked, forgotten when rows change
        # Note [Two writers]: what changed since the folder was read or written.
        self._origin: tuple[Path, str] | None = None
        self._changes: list[tuple[str, list[str], Tensor | None]] = []

    def __len__(self) -> int:
        """How many features are enrolled; `people` names whose they are."""
        return len(self._owner)

    def __contains__(self, name: object) -> bool:
        return name in self._number

    @property
    def people(self) -> list[str]:
        """The names of all people, in the order of enrollment."""
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
        """(n, d) unit features in the order of enrollment."""
        return self._rows[: len(self)]

    def enroll(self, name: str, sample: Tensor) -> None:
        """Add a picture or a feature of a person; several make one person surer.

        Args:
            name: whose it is.
            sample: a picture (C, H, W) or a feature (d,).
        """
        self.enroll_many([name], torch.as_tensor(sample).unsqueeze(0))

    def enroll_many(self, names: Sequence[str], samples: Tensor) -> None:
        """Add several pictures or features; all of them or, after an error, none.

        Args:
            names: whose each sample is.
            samples: pictures (n, C, H, W) or features (n, d).
        """
        if len(names) != len(samples):
            raise ValueError(f"{len(names)} names for {len(samples)} samples")
        empty = [i for i, name in enumerate(names) if not str(name).strip()]
        if empty:
            raise ValueError(f"name {empty[0]} is empty")
        rows = self._features(samples)
        whose = [str(name) for name in names]
        self._add(whose, rows)
        if self._origin is not None:
            self._changes.append(("enroll", whose, rows))

    def _add(self, names: Sequence[str], rows: Tensor) -> None:
        self._index = None
        used, total = len(self), len(self) + len(rows)
        if used == 0 or total > len(self._rows):
            bigger = torch.empty(max(64, 2 * used, total), rows.shape[1])
            bigger[:used] = self.features if used else rows[:0]
            self._rows = bigger
        self._rows[used:total] = rows
        self._owner += [self._number.setdefault(n, len(self._number)) for n in names]

    def remove(self, name: str) -> int:
        """Forget a person.

        Args:
            name: who is forgotten.

        Returns:
            How many features went.

        Raises:
            GalleryError: if nobody of that name is enrolled.
        """
        if name not in self:
            raise self._unknown(name)
        names, self._index = self.names, None
        keep = [i for i, other in enumerate(names) if other != name]
        gone = len(self) - len(keep)
        self._rows = self.features[torch.tensor(keep, dtype=torch.long)]
        del self._number[name]
        self._number = {other: i for i, other in enumerate(self._number)}
        self._owner = [self._number[names[i]] for i in keep]
        if self._origin is not None:
            self._changes.append(("remove", [name], None))
        return gone

    def verify(
        self, name: str, sample: Tensor, threshold: float | None = None
    ) -> tuple[bool, float]:
        """Is this that person?

        Args:
            name: the person.
            sample: a picture (C, H, W) or a feature (d,).
            threshold: least cosine of a yes. Default: the gallery's.

        Returns:
            The answer, and the cosine with the nearest feature of that person.
        """
        if name not in self:
            raise self._unknown(name)
        least = self.threshold if threshold is None else _check_threshold(threshold)
        query = self._features(torch.as_tensor(sample).unsqueeze(0))
        mine = torch.tensor(self._owner) == self._number[name]
        score = float((self.features[mine] @ query[0]).max())
        return score >= least, score

    def identify(self, sample: Tensor, top: int = 5, threshold: float | None = None) -> list[Match]:
        """Who is this?

        Args:
            sample: a picture (C, H, W) or a feature (d,).
            top: at most this many people.
            threshold: least cosine of a match. Default: the gallery's.

        Returns:
            The nearest people at or above the threshold, best first; empty for an unknown person.
        """
        return self.identify_many(torch.as_tensor(sample).unsqueeze(0), top, threshold)[0]

    def identify_many(
        self, samples: Tensor, top: int = 5, threshold: float | None = None
    ) -> list[list[Match]]:
        """`identify` for several samples.

        Args:
            samples: pictures (n, C, H, W) or features (n, d).
            top: at most this many people each.
            threshold: least cosine of a match. Default: the gallery's.

        Returns:
            The matches of each sample.
        """
        if len(self) == 0:
            raise GalleryError("the gallery is empty: enroll somebody first")
        if top < 1:
            raise ValueError(f"top: expected at least 1; got {top}")
        least = self.threshold if threshold is None else _check_threshold(threshold)
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
        near = nearest(name, self.people)
        hint = f"; did you mean {near!r}?" if near else ""
        return GalleryError(f"nobody is enrolled as {name!r}{hint}")

    def _features(self, samples: Tensor) -> Tensor:
        """Unit features (n, d) of pictures or features."""
        samples = torch.as_tensor(samples)
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
        """Write to a folder, gallery.json and a safetensors file, atomically.

        # Note [Two writers]
        A gallery that was loaded from this folder (or saved to it) keeps what others have saved
        there meanwhile: its own changes are made to what the folder holds now. A gallery that has
        nothing to do with the folder replaces what it holds.

        Args:
            folder: made if it is missing.

        Returns:
            The folder.
        """
        folder = Path(folder)
        with locked(folder):
            origin, state = self._origin or (None, None)
            known = origin == folder.resolve()
            if known and gallery_state(folder) not in (None, state):
                self._catch_up(folder)
            settings = {"flips": self.flips, "threshold": _check_threshold(self.threshold)}
            new = write_gallery(folder, self.features, self.names, self.fingerprint, settings)
        self._origin, self._changes = (folder.resolve(), new), []
        return folder

    def _catch_up(self, folder: Path) -> None:
        """Take over what others have saved, then make the own changes again."""
        stored, changes = read_gallery(folder), self._changes
        if stored.model and self.fingerprint and stored.model != self.fingerprint:
            raise GalleryError(f"{folder}: meanwhile saved with features of another model")
        self._take(stored.features, stored.names)
        for what, names, rows in changes:
            if what == "enroll" and rows is not None:
                if self.dim not in (None, rows.shape[1]):
                    raise GalleryError(f"{folder}: meanwhile saved with dimension {self.dim}")
                self._add(names, rows)
            elif what == "remove" and names[0] in self:
                self.remove(names[0])
        self._changes = changes

    def _take(self, features: Tensor, names: Sequence[str]) -> None:
        """Hold these rows and no others."""
        self._rows, self._index, self._number, self._owner = features, None, {}, []
        for name in names:
            self._owner.append(self._number.setdefault(name, len(self._number)))

    @classmethod
    def load(
        cls,
        folder: str | Path,
        model: nn.Module | None = None,
        *,
        transform: Callable[[Tensor], Tensor] | None = None,
        fingerprint: str | None = None,
    ) -> Gallery:
        """Read a gallery; features of another model are refused.

        Args:
            folder: where it was saved.
            model: as in the constructor.
            transform: as in the constructor.
            fingerprint: identifies the origin of the features where there is no model.

        Returns:
            The gallery.

        Raises:
            GalleryError: if its features come from another model, or it is damaged.
        """
        given = fingerprint or (model_hash(model) if model is not None else "")
        stored = read_gallery(folder)
        if given and stored.model and given != stored.model:
            raise GalleryError(
                f"{folder}: its features come from model {stored.model}, this is model {given}. "
                "Features of different models cannot be compared: enroll again with this model"
            )
        origin = stored.model or given
        gallery = cls(model, transform=transform, fingerprint=origin, **stored.settings)
        gallery._take(stored.features, stored.names)
        gallery._origin = (Path(folder).resolve(), stored.state)
        return gallery

    @classmethod
    @contextmanager
    def edit(
        cls, folder: str | Path, model: nn.Module | None = None, **settings: Any
    ) -> Iterator[Gallery]:
        """Load a gallery (or begin one), change it, and save it, while others wait.

        Args:
            folder: where it is, or will be.
            model: as in the constructor.
            settings: further arguments of the constructor; those of an existing gallery stay.

        Returns:
            A context that gives the gallery, and saves it unless an error ends it.
        """
        with locked(folder):
            if (Path(folder) / "gallery.json").exists():
                known = {k: v for k, v in settings.items() if k in ("transform", "fingerprint")}
                gallery = cls.load(folder, model, **known)
            else:
                gallery = cls(model, **settings)
            yield gallery
            gallery.save(folder)


def _check_threshold(threshold: float) -> float:
    if isinstance(threshold, (str, bytes)) or not math.isfinite(threshold):
        raise ValueError(f"threshold: expected a finite number (a cosine); got {threshold!r}")
    return float(threshold)
