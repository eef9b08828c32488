"""A gallery of known people (or things) that can be asked: who is this, is this really her?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ...registry import nearest
from ..fingerprints import model_hash
from ..recognition.search_index import SearchIndex
from ..recognition.thresholds import Threshold, check_threshold
from .decision import Decision, optional_threshold
from .gallery_error import GalleryError
from .names import text_names
from .rows import PersonRows, one_sample, samples_of_one, unit_features
from .scores import Match, impostor_scores, not_enrolled, parts, person_scores
from .store import FLIPS, gallery_state, locked, read_gallery, write_gallery


class Gallery:
    """Names with one or more unit features each, searched exactly by the cosine.

    A person is accepted when the score is at least the threshold. Without one nobody can be told
    from an unknown person: `identify` then warns and gives the nearest people. `calibrate` fits it.

    Args:
        model: turns pictures into features (`features(x)` or the module itself). Default: none,
            and the gallery takes features only.
        transform: from pictures to the model's input, e.g. `data.Normalize`.
        flips: "unused", or "concatenate" the features of a picture and its mirror image (2.3.6).
        threshold: cosine from which `verify` says yes and `identify` gives a name, or a `Threshold`
            of `fit_threshold` for a search among as many people. Default: none; see `calibrate`.
        fingerprint: identifies the origin of the features where there is no model.
        aligned: for the record, whether the pictures are aligned faces. Default: unknown.

    >>> import torch
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
        threshold: float | Threshold | None = None,
        fingerprint: str | None = None,
        aligned: bool | None = None,
    ) -> None:
        if flips not in FLIPS:
            raise ValueError(f"flips: 'unused' or 'concatenate'; got {flips!r}")
        self.model, self.transform, self.flips = model, transform, flips
        self.aligned = aligned
        self.decision = Decision(optional_threshold(threshold))
        self.fingerprint = fingerprint or (model_hash(model) if model is not None else "")
        self._rows = PersonRows()
        self._index: SearchIndex | None = None  # made when asked, forgotten when rows change
        # Note [Two writers]: what changed since the folder was read or written.
        self._origin: tuple[Path, str] | None = None
        self._changes: list[tuple[str, list[str], Tensor | None]] = []
        self._stored_decision: Decision | None = None

    def __len__(self) -> int:
        """How many features are enrolled; `people` names whose they are."""
        return len(self._rows)

    def __contains__(self, name: object) -> bool:
        return name in self._rows.number

    @property
    def people(self) -> list[str]:
        """The names of all people, in the order of enrollment."""
        return list(self._rows.number)

    @property
    def names(self) -> list[str]:
        """The name of each row of `features`."""
        return self._rows.names

    @property
    def dim(self) -> int | None:
        """Dimension of the features; None as long as there are none."""
        return self.features.shape[1] if len(self) else None

    @property
    def threshold(self) -> float | Threshold | None:
        """Least score of a name: a cosine, or what `calibrate` fitted; setting it forgets that."""
        return self.decision.search

    @threshold.setter
    def threshold(self, threshold: float | Threshold | None) -> None:
        self.decision = Decision(optional_threshold(threshold))

    @property
    def features(self) -> Tensor:
        """(n, d) unit features in the order of enrollment."""
        return self._rows.features

    def enroll(self, name: str, sample: Any) -> None:
        """Add a picture or a feature of a person; several make one person surer.

        Args:
            name: whose it is.
            sample: a picture (C, H, W), its file, a list of files, or a feature (d,).
        """
        samples = samples_of_one(sample)
        self.enroll_many([name] * len(samples), samples)

    def enroll_many(self, names: Sequence[str | int] | Tensor, samples: Any) -> int:
        """Add several pictures or features; all of them or, after an error, none.

        What is enrolled already, of the same person to 1e-6, is left out.

        Args:
            names: whose each sample is: texts, or whole numbers.
            samples: features (n, d), or pictures as `extract` takes them: (n, C, H, W), a list of
                files, a data set, a DataLoader.

        Returns:
            How many were added.
        """
        names = text_names("names", names)
        empty = [i for i, name in enumerate(names) if not name.strip()]
        if empty:
            raise ValueError(f"name {empty[0]} is empty")
        rows = self._features(samples)
        if len(names) != len(rows):
            raise ValueError(f"{len(names)} names for {len(rows)} samples")
        new = self._rows.new(names, rows)
        whose, rows = [names[i] for i in new], rows[new]
        self._add(whose, rows)
        if self._origin is not None:
            self._changes.append(("enroll", whose, rows))
        return len(new)

    def _add(self, names: Sequence[str], rows: Tensor) -> None:
        self._index = None
        self._rows.add(names, rows)

    def remove(self, name: str) -> int:
        """Forget a person.

        Args:
            name: who is forgotten.

        Returns:
            How many features went.

        Raises:
            GalleryError: if nobody of that name is enrolled.
        """
        (name,) = text_names("name", [name])
        if name not in self:
            raise self._unknown(name)
        before, self._index = len(self), None
        self._rows = self._rows.without(name)
        if self._origin is not None:
            self._changes.append(("remove", [name], None))
        return before - len(self)

    def verify(self, name: str, sample: Any, threshold: float | None = None) -> tuple[bool, float]:
        """Is this that person?

        Args:
            name: the person.
            sample: a picture (C, H, W) or a feature (d,).
            threshold: least cosine of a yes. Default: that of a pair at the rate the gallery was
                calibrated for, else the gallery's threshold; without any the answer is no.

        Returns:
            The answer, and the cosine with the nearest feature of that person.
        """
        (name,) = text_names("name", [name])
        if name not in self:
            raise self._unknown(name)
        least = self._least(threshold, pair=True)
        query = self._features(one_sample(sample))
        mine = self._rows.owner == self._rows.number[name]
        score = float((self.features[mine] @ query[0]).max())
        return least is not None and score >= least, score

    def identify(self, sample: Any, top: int = 5, threshold: float | None = None) -> list[Match]:
        """Who is this?

        Args:
            sample: a picture (C, H, W) or a feature (d,).
            top: at most this many people.
            threshold: least cosine of a match. Default: the gallery's.

        Returns:
            The nearest people at or above the threshold, best first; empty for an unknown person.
        """
        return self.identify_many(one_sample(sample), top, threshold)[0]

    def identify_many(
        self, samples: Any, top: int = 5, threshold: float | None = None
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
        if top < 1 or int(top) != top:
            raise ValueError(f"top: expected a whole number, at least 1; got {top}")
        least = self._least(threshold)
        queries = self._features(samples)
        people = self.people
        answers = []
        for part in parts(queries, len(self)):
            scores, places = self._nearest(part, min(top, len(people)))
            for best, who in zip(scores.tolist(), places.tolist(), strict=True):
                pairs = zip(who, best, strict=True)
                answers.append(
                    [Match(people[i], s) for i, s in pairs if least is None or s >= least]
                )
        return answers

    def _nearest(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Scores and places in `people` of the k nearest people, by the best row of each."""
        if len(self) == len(self._rows.number):  # one row each: rows are people
            if self._index is None:
                self._index = SearchIndex(self.features)
            scores, rows = self._index.search(queries, k)
            return scores, self._rows.owner[rows]
        best = person_scores(queries, self.features, self._rows.owner, len(self._rows.number))
        return tuple(best.topk(k, dim=1))  # type: ignore[return-value]

    def calibrate(
        self, features: Any, labels: Sequence[object] | Tensor, far: float = 1e-3
    ) -> Threshold:
        """Fit the threshold to a false-accept rate of search among the people enrolled now.

        Samples of people who are enrolled are no impostors: they are left out with a warning.
        Those of people who were not trained on tell most.
        A second threshold, at the same rate for a single comparison, is kept for `verify`.

        Args:
            features: pictures (n, C, H, W) or features (n, d).
            labels: who each of them is: names, or numbers.
            far: share of searches by unknown people that may end with a name.

        Returns:
            The threshold with its interval; the gallery keeps and saves it.

        Raises:
            ValueError: if there are fewer than 1 / far - 1 samples, or fewer than three people.
        """
        if len(self) == 0:
            raise GalleryError("the gallery is empty: enroll somebody first")
        queries = self._features(features)
        names = text_names("labels", labels)
        if len(names) != len(queries):
            raise ValueError(f"labels: {len(names)} for {len(queries)} samples")
        rows = self._rows
        kept = not_enrolled(names, rows.number)
        scores = impostor_scores(queries[kept], rows.features, rows.owner, len(rows.number))
        whose = [names[i] for i in kept]
        self.decision = Decision.fit(scores, whose, len(rows.number), len(rows), far)
        assert isinstance(self.decision.search, Threshold)
        return self.decision.search

    def _least(self, threshold: float | None, pair: bool = False) -> float | None:
        if threshold is not None:
            return float(check_threshold(threshold))
        return self.decision.least(len(self._rows.number), len(self), pair)

    def _unknown(self, name: str) -> GalleryError:
        near = nearest(name, self.people)
        hint = f"; did you mean {near!r}?" if near else ""
        return GalleryError(f"nobody is enrolled as {name!r}{hint}")

    def _features(self, samples: Any) -> Tensor:
        """Unit features (n, d) of pictures or features."""
        return unit_features(samples, self.model, self.flips, self.transform, self.dim)

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
            settings = {"flips": self.flips, "aligned": self.aligned, **self.decision.record()}
            new = write_gallery(folder, self.features, self.names, self.fingerprint, settings)
        self._origin, self._changes = (folder.resolve(), new), []
        self._stored_decision = self.decision
        return folder

    def _catch_up(self, folder: Path) -> None:
        """Take over what others have saved, then make the own changes again."""
        stored, changes = read_gallery(folder), self._changes
        if stored.model and self.fingerprint and stored.model != self.fingerprint:
            raise GalleryError(f"{folder}: meanwhile saved with features of another model")
        self._take(stored.features, stored.names)
        if self.decision is self._stored_decision:  # not changed here: others may have
            self.decision = stored.settings["decision"]
        for what, names, rows in changes:
            if what == "enroll" and rows is not None:
                if self.dim not in (None, rows.shape[1]):
                    raise GalleryError(f"{folder}: meanwhile saved with dimension {self.dim}")
                new = self._rows.new(names, rows)  # others may have enrolled the same
                self._add([names[i] for i in new], rows[new])
            elif what == "remove" and names[0] in self:
                self.remove(names[0])
        self._changes = changes

    def _take(self, features: Tensor, names: Sequence[str]) -> None:
        """Hold these rows and no others."""
        self._rows, self._index = PersonRows(features, names), None

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
        stored, given = read_gallery(folder), fingerprint or (model_hash(model) if model else "")
        if given and stored.model and given != stored.model:
            raise GalleryError(
                f"{folder}: its features come from model {stored.model}, this is model {given}. "
                "Features of different models cannot be compared: enroll again with this model"
            )
        origin = stored.model or given
        how = {key: stored.settings[key] for key in ("flips", "aligned")}
        gallery = cls(model, transform=transform, fingerprint=origin, **how)
        gallery.decision = gallery._stored_decision = stored.settings["decision"]
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
