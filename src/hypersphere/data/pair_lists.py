"""LFW's pairs.txt: the one parser of that format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from .errors import damaged

__all__ = ["ListedPair", "parse_lfw_header", "parse_lfw_pairs"]


class ListedPair(NamedTuple):
    """One line of the list: picture ``first_number`` of one person, and one of another or the same.

    Args:
        line: its number in the file, from 1.
        first: name of a person.
        first_number: which picture of that person, from 1.
        second: name of the other person; the same name for a pair of one person.
        second_number: which picture of that person, from 1.
    """

    line: int
    first: str
    first_number: int
    second: str
    second_number: int

    @property
    def same(self) -> bool:
        """Whether both pictures are of one person."""
        return self.first == self.second

    @property
    def stems(self) -> tuple[str, str]:
        """The names of both pictures without their ending: NAME_0001."""
        return (
            f"{self.first}_{self.first_number:04d}",
            f"{self.second}_{self.second_number:04d}",
        )


def parse_lfw_header(words: Sequence[str]) -> tuple[int, int] | None:
    """Folds and pairs of each kind per fold, from a first line "10 300" or "300".

    Args:
        words: the words of the first line.

    Returns:
        (folds, pairs of each kind per fold), folds 1 for a single number; None if the line is no
        such header.

    >>> parse_lfw_header(["10", "300"]), parse_lfw_header(["300"]), parse_lfw_header(["Ann", "1"])
    ((10, 300), (1, 300), None)
    """
    if not 1 <= len(words) <= 2 or not all(_is_number(word) for word in words):
        return None
    numbers = [int(word) for word in words]
    if min(numbers) < 1:
        return None
    return (numbers[0], numbers[1]) if len(numbers) == 2 else (1, numbers[0])


def parse_lfw_pairs(
    path: Path, lines: Sequence[tuple[int, Sequence[str]]], where: str
) -> list[ListedPair]:
    """The lines after the header: "NAME i j" for one person, "NAME i OTHER j" for two.

    Args:
        path: the file, for messages.
        lines: number and words of each line.
        where: where a fresh copy is available, for messages.

    Returns:
        One entry per line.

    Raises:
        DamagedData: for any other line, with its number.
    """
    pairs = []
    for number, words in lines:
        if len(words) not in (3, 4) or not _is_number(words[1]) or not _is_number(words[-1]):
            raise damaged(
                path,
                "'NAME i j' or 'NAME i OTHER j'",
                f"line {number}: {' '.join(words)!r}",
                where,
            )
        other = words[0] if len(words) == 3 else words[2]
        pairs.append(ListedPair(number, words[0], int(words[1]), other, int(words[-1])))
    return pairs


def _is_number(word: str) -> bool:
    # isdigit() alone also takes superscripts, which int() refuses.
    return word.isascii() and word.isdigit() and len(word) < 10
