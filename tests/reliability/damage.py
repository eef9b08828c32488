"""Ways to damage a file: truncated, flipped, swapped, emptied, replaced, bombed.

`DAMAGES` fit any file. What a format can be told in its own words (a header that lies, an archive
that unpacks to gigabytes) is beside the format, in `formats.py`.
"""

from __future__ import annotations

import functools
import gzip
import io
import os
import random
import shutil
import stat
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

KINDS = ("truncated", "flipped", "swapped", "emptied", "replaced", "bombed", "lying")


@dataclass(frozen=True)
class Damage:
    """One way to damage a file.

    Args:
        name: what it does.
        kind: one of `KINDS`.
        apply: changes the file at a path, which exists.
    """

    name: str
    kind: str
    apply: Callable[[Path], object]


def rewrite(name: str, kind: str, change: Callable[[bytes], bytes]) -> Damage:
    """A damage that is a function of the content."""

    def apply(path: Path) -> None:
        content = change(path.read_bytes())
        path.unlink()
        path.write_bytes(content)

    return Damage(name, kind, apply)


def replace(name: str, kind: str, content: bytes | Callable[[], bytes]) -> Damage:
    """A damage that puts other content in the place of the file.

    Content that takes long to make is given as a function, called where the damage is done: every
    process that collects the tests makes a list of all damages.
    """
    return rewrite(name, kind, lambda _: content() if callable(content) else content)


def _flip(place: float, bit: int) -> Callable[[bytes], bytes]:
    def change(content: bytes) -> bytes:
        if not content:
            return content
        at = min(int(place * len(content)), len(content) - 1)
        return content[:at] + bytes([content[at] ^ (1 << bit)]) + content[at + 1 :]

    return change


def _fill(place: float, value: int) -> Callable[[bytes], bytes]:
    def change(content: bytes) -> bytes:
        at = int(place * len(content))
        size = max(1, min(64, len(content) // 10))
        return content[:at] + bytes([value]) * size + content[at + size :]

    return change


def _swap(content: bytes) -> bytes:
    half = len(content) // 2
    return content[half:] + content[:half]


def _swap_inside(content: bytes) -> bytes:
    """Two neighboring blocks of the middle third change places."""
    third = len(content) // 3
    block = max(1, third // 4)
    a, b = third, third + block
    return content[:a] + content[b : b + block] + content[a:b] + content[b + block :]


def _shuffle(content: bytes) -> bytes:
    values = list(content)
    random.Random(0).shuffle(values)
    return bytes(values)


def _zip_of(content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", content)
    return file.getvalue()


def png(size: int = 4) -> bytes:
    """A small gray picture."""
    from PIL import Image

    file = io.BytesIO()
    Image.new("L", (size, size), 128).save(file, "PNG")
    return file.getvalue()


@functools.cache
def gzip_bomb(megabytes: int = 512) -> bytes:
    """Zeros, a thousand times as large as they look."""
    file = io.BytesIO()
    with gzip.GzipFile(fileobj=file, mode="wb", mtime=0, compresslevel=9) as packed:
        for _ in range(megabytes):
            packed.write(bytes(1 << 20))
    return file.getvalue()


def _by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "a").write_text("a")


def _by_link(target: str) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        path.unlink()
        path.symlink_to(target)

    return apply


def _by_itself(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def _by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _large(path: Path) -> None:
    """Two gigabytes that take no place on disk."""
    with open(path, "r+b") as file:
        file.truncate(2 << 30)


PICKLE = b"cos\nsystem\n(S'touch owned'\ntR."  # runs a command where it is unpickled
ALIASES = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(ord('b') + i)}: &{chr(ord('b') + i)} [{', '.join(['*' + chr(ord('a') + i)] * 9)}]\n"
    for i in range(12)
)

DAMAGES: list[Damage] = [
    replace("empty", "emptied", b""),
    Damage("removed", "emptied", lambda path: path.unlink()),
    rewrite("zeros of the same length", "emptied", lambda c: bytes(len(c))),
    replace("a line break", "emptied", b"\n"),
    *(
        rewrite(f"the first {share:.0%}", "truncated", lambda c, s=share: c[: int(s * len(c))])
        for share in (0.03, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)
    ),
    *(rewrite(f"without the last {n} bytes", "truncated", lambda c, n=n: c[:-n]) for n in (1, 7)),
    rewrite("one byte", "truncated", lambda c: c[:1]),
    rewrite("without its first byte", "truncated", lambda c: c[1:]),
    *(
        rewrite(f"bit {bit} at {place:.1%}", "flipped", _flip(place, bit))
        for place, bit in (
            (0.0, 0), (0.0, 7), (0.004, 1), (0.01, 4), (0.03, 2), (0.08, 6), (0.15, 0), (0.22, 3),
            (0.31, 7), (0.42, 1), (0.5, 5), (0.63, 2), (0.78, 6), (0.88, 0), (0.95, 4), (1.0, 3),
        )
    ),
    *(
        rewrite(f"bytes of {value:#04x} at {place:.0%}", "flipped", _fill(place, value))
        for place, value in ((0.0, 0), (0.0, 255), (0.4, 0), (0.6, 255), (0.9, 0))
    ),
    rewrite("halves swapped", "swapped", _swap),
    rewrite("blocks swapped", "swapped", _swap_inside),
    rewrite("reversed", "swapped", lambda c: c[::-1]),
    rewrite("shuffled", "swapped", _shuffle),
    rewrite("twice in a row", "swapped", lambda c: c + c),
    rewrite("something before it", "swapped", lambda c: b"\x00\x01junk" + c),
    rewrite("something behind it", "swapped", lambda c: c + b"\xff\x00junk"),
    replace("a picture", "replaced", png()),
    replace("a web page", "replaced", b"<!DOCTYPE html><html><body>404 not found</body></html>\n"),
    replace("a list in JSON", "replaced", b"[1, 2, 3]\n"),
    replace("a text", "replaced", "Ein Würfel fällt auf die Sieben.\n".encode()),
    replace("a text in UTF-16", "replaced", "data: digits\n".encode("utf-16")),
    replace("a program", "replaced", b"\x7fELF\x02\x01\x01" + bytes(200)),
    replace("a pickle that runs a command", "replaced", PICKLE),
    rewrite("its gzip", "replaced", lambda c: gzip.compress(c, mtime=0)),
    rewrite("a zip of it", "replaced", _zip_of),
    Damage("a folder", "replaced", _by_folder),
    Damage("a link to nowhere", "replaced", _by_link("nowhere/at/all")),
    Damage("a link to itself", "replaced", _by_itself),
    Damage("a pipe", "replaced", _by_pipe),
    Damage("the device null", "replaced", _by_link("/dev/null")),
    Damage("the device zero", "bombed", _by_link("/dev/zero")),
    Damage("2 GB of zeros behind it", "bombed", _large),
    replace("brackets 100,000 deep", "bombed", b"[" * 100_000 + b"]" * 100_000),
    replace("braces 100,000 deep", "bombed", b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    replace("a number of 100,000 digits", "bombed", b'{"format": 1' + b"0" * 100_000 + b"}"),
    replace("aliases of aliases", "bombed", ALIASES.encode()),
]  # fmt: skip


def fresh_copy(source: Path, target: Path) -> Path:
    """A copy of a folder at `target`, whatever damaged things are there.

    Only what differs is made anew: to write a whole folder takes longer than most commands.
    """
    if not _is_folder(target):
        _remove(target)
        target.mkdir()
    wanted = {entry.name for entry in os.scandir(source)}
    for entry in list(os.scandir(target)):
        if entry.name not in wanted:
            _remove(Path(entry.path))
    for entry in os.scandir(source):
        place = target / entry.name
        if entry.is_dir(follow_symlinks=False):
            fresh_copy(Path(entry.path), place)
        elif not _is_same(Path(entry.path), place):
            _remove(place)
            shutil.copy2(entry.path, place, follow_symlinks=False)
    return target


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _remove(path: Path) -> None:
    if _is_folder(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _is_same(one: Path, other: Path) -> bool:
    """Whether two files have the same kind, rights, time and content."""
    try:
        a, b = one.lstat(), other.lstat()
    except FileNotFoundError:
        return False
    if (a.st_mode, a.st_size, a.st_mtime_ns) != (b.st_mode, b.st_size, b.st_mtime_ns):
        return False
    # Something else may have been written within one tick of the file system's clock.
    return stat.S_ISREG(a.st_mode) and one.read_bytes() == other.read_bytes()
