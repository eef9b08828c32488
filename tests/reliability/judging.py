"""Judging: a file is damaged in every way, and every command that reads it is called.

A command refuses with a sentence, or it accepts rightly: its answer is that of the undamaged file,
or that of the same content written afresh (`oracles.py`), or it names the damaged file and goes on
with what is whole (`report`, and `train --resume`, whose weights stay the same).
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from reliability.calls import Answer, warming_up
from reliability.damage import DAMAGES, Damage, fresh_copy

REFUSED, ACCEPTED, WRONG = "refused", "accepted", "wrong"


class Case(NamedTuple):
    """One damaged file in front of one command."""

    subject: str
    kind: str
    damage: str
    reader: str
    verdict: str
    detail: str = ""


@dataclass(frozen=True)
class Reader:
    """A command that reads a file.

    Args:
        name: of the command.
        run: calls it in a folder.
        result: what it left in the folder, to compare.
        kept: what has to be the same even where it names the damage; None if it may not go on.
        spoken: whether its output is part of the answer, beside what it left.
    """

    name: str
    run: Callable[[Path], Answer]
    result: Callable[[Path], Any] = lambda folder: None
    kept: Callable[[Path], Any] | None = None
    spoken: bool = True


@dataclass(frozen=True)
class Format:
    """A file format.

    Args:
        name: of the format.
        world: the folder that holds such a file, of `worlds.WORLDS`.
        file: the file, or a pattern with exactly one match.
        readers: the commands that read it.
        lies: damages of its own.
        afresh: its oracle; None where a checksum shows every damage.
        spare: whether a set without this file is whole, so that its absence is no damage.
    """

    name: str
    world: str
    file: str
    readers: tuple[Reader, ...]
    lies: Sequence[Damage] = ()
    afresh: Callable[[bytes], bytes | None] | None = None
    spare: bool = False

    @property
    def damages(self) -> list[Damage]:
        """All ways to damage it."""
        absent = ("removed", "a folder") if self.spare else ()
        return [d for d in (*DAMAGES, *self.lies) if d.name not in absent]


def examine(
    form: Format, pristine: Path, share: int | None = None, watch: Callable[[Case], object] = print
) -> list[Case]:
    """Damage the file in every way (or `share` of them per command) and judge every command."""
    (place,) = pristine.glob(form.file)
    relative = place.relative_to(pristine)
    cases = []
    with tempfile.TemporaryDirectory(dir=pristine.parent) as scratch:
        folder = Path(scratch) / "world"
        for number, reader in enumerate(form.readers):
            with warming_up():
                whole = _outcome(reader, reader.run(fresh_copy(pristine, folder)), folder)
            assert whole.answer.fault() == "" and not whole.answer.is_refusal, whole.answer
            for damage in chosen(form.damages, share, number):
                fresh_copy(pristine, folder)
                damage.apply(folder / relative)
                content = _content(folder / relative)
                found = _outcome(reader, reader.run(folder), folder)
                verdict, detail = _judge(form, reader, found, whole, folder)
                if verdict == WRONG and not detail and form.afresh is not None and content:
                    clean = form.afresh(content)
                    if clean is not None:
                        (fresh_copy(pristine, folder) / relative).write_bytes(clean)
                        again = _outcome(reader, reader.run(folder), folder)
                        if again == found:
                            verdict = ACCEPTED
                        else:
                            detail = f"other answer than for the content written afresh: {again}"
                if verdict == WRONG:
                    detail = detail or f"accepted, with another answer: {found.answer.out[-400:]}"
                case = Case(form.name, damage.kind, damage.name, reader.name, verdict, detail)
                watch(case)
                cases.append(case)
    return cases


def chosen(damages: Sequence[Damage], share: int | None, number: int) -> list[Damage]:
    """`share` of the damages, evenly spread, others for each command; all without a share."""
    if share is None or share >= len(damages):
        return list(damages)
    return [damages[(number + i * len(damages) // share) % len(damages)] for i in range(share)]


@dataclass
class Outcome:
    """An answer and what the command left; equal if a user could not tell them apart."""

    answer: Answer
    result: Any
    kept: Any
    spoken: bool = True

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Outcome)
        return self._shown() == other._shown()

    def _shown(self) -> Any:
        return self.answer.code, self.spoken and _timeless(self.answer.out), self.result


def _outcome(reader: Reader, answer: Answer, folder: Path) -> Outcome:
    if answer.code not in (0, 3) or answer.is_refusal:
        return Outcome(answer, None, None)
    kept = reader.kept(folder) if reader.kept else None
    return Outcome(answer, reader.result(folder), kept, reader.spoken)


def _judge(
    form: Format, reader: Reader, found: Outcome, whole: Outcome, folder: Path
) -> tuple[str, str]:
    answer = found.answer
    if (folder / "owned").exists():
        return WRONG, "it ran a command that stood in the file"
    if fault := answer.fault():
        return WRONG, fault
    if answer.is_refusal:
        return REFUSED, ""
    if found == whole:
        return ACCEPTED, ""
    listed = re.search(r"left out|cannot be read|expected a picture|skipped", answer.err)
    if listed and Path(form.file).name in answer.err:
        return ACCEPTED, ""  # a few pictures may be damaged; they are listed by name
    if reader.kept is not None and found.kept == whole.kept:
        place = Path(form.file)
        said = f"{answer.out}\n{answer.err}\n{_notes(found.result)}"
        names = [place.name, place.parent.name] if place.parent.name != "run" else [place.name]
        if any(name in said for name in names):
            return ACCEPTED, ""
    return WRONG, ""


def _notes(result: Any) -> str:
    """What a report says that it could not read."""
    found = re.search(r'<section class="missing"[^>]*>.*?</section>', str(result), re.DOTALL)
    return found[0] if found else ""


def _timeless(text: str) -> str:
    return re.sub(r"\b\d+\.\d s\b", "... s", text)


def _content(path: Path) -> bytes | None:
    if not path.is_file() or path.stat().st_size > 1 << 26:
        return None
    return path.read_bytes()


def wrong(cases: Sequence[Case]) -> Iterator[str]:
    """A line per fault."""
    for case in cases:
        if case.verdict == WRONG:
            yield f"{case.subject}, {case.damage}, {case.reader}: {case.detail}"
