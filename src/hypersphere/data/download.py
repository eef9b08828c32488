"""Fetching published files: progress, resuming where it stopped, and verification."""

from __future__ import annotations

import gzip
import sys
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from pathlib import Path
from typing import TextIO

from .checksums import verify
from .errors import DamagedData, MissingData
from .sources import SOURCES, Remote


def download(name: str, root: Path | str, progress: bool = True) -> list[Path]:
    """Fetch the files of a data set; what is already there is left alone.

    Archives are unpacked and then removed; an empty file ARCHIVE.unpacked remembers it.

    Args:
        name: a data set with a public address.
        root: the folder that receives them.
        progress: show a bar on a terminal.

    Returns:
        The files, or for archives the folders they were unpacked to.

    Raises:
        MissingData: if it has no public address, or the address does not answer.
        DamagedData: if what came has another checksum than published.
    """
    source = SOURCES.get(name)
    if source is None or not source.remotes:
        where = source.where if source else "no known place"
        raise MissingData(f"{name!r} has no public address to fetch it from: {where}")
    return [fetch(remote, Path(root), progress) for remote in source.remotes]


def fetch(remote: Remote, root: Path, progress: bool = True, attempts: int = 4) -> Path:
    """Fetch one file; returns its path, or for an archive the folder it was unpacked to."""
    target = root / remote.path
    mark = target.with_name(target.name + ".unpacked")
    if mark.exists() and remote.unpack is not None:
        return root / remote.unpack
    if target.exists() and remote.checksum is not None:
        try:
            verify(target, remote.checksum, remote.url)
        except DamagedData:
            target.unlink()
    if not target.exists():
        _transfer(remote, target, progress, attempts)
    if remote.unpack is None:
        return target
    folder = root / remote.unpack
    _unpack(target, folder, remote.url)
    mark.touch()
    target.unlink()
    return folder


def _transfer(remote: Remote, target: Path, progress: bool, attempts: int) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    for attempt in range(attempts):
        try:
            _receive(remote.url, part, target.name, progress)
            break
        except urllib.error.HTTPError as error:
            if error.code < 500 or attempt == attempts - 1:
                raise MissingData(f"{remote.url} answers {error.code} {error.reason}") from None
        except OSError as error:  # no name, no route, refused, timed out, broken off
            if attempt == attempts - 1:
                kept = f". What came is kept in {part}: run the same again to go on from there"
                raise MissingData(
                    f"{remote.url} could not be fetched: {getattr(error, 'reason', error)}"
                    + (kept if part.exists() else "")
                ) from None
        time.sleep(0.25 * 2**attempt)
    if remote.checksum is not None:
        try:
            verify(part, remote.checksum, remote.url)
        except DamagedData:
            part.unlink()  # resuming would keep the damage
            raise
    part.replace(target)


def _receive(url: str, part: Path, label: str, progress: bool) -> None:
    """Append to `part` what it lacks; raises ConnectionError if the file does not get complete."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "hypersphere"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        response = urllib.request.urlopen(request, timeout=30)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:
            # Nothing lies beyond `have`: complete, unless the server tells another length.
            length = (error.headers.get("Content-Range") or "").rpartition("/")[2]
            if length == str(have):
                return
            part.unlink()
            raise ConnectionError("the kept part is longer than the file") from None
        raise
    with response:
        resumed = response.status == 206
        if resumed and not _continues(response.headers.get("Content-Range"), have):
            part.unlink()
            raise ConnectionError("the server answers with another range than asked for")
        have = have if resumed else 0  # a server without ranges sends everything again
        length = response.headers.get("Content-Length")
        total = have + int(length) if length is not None else None
        with part.open("ab" if resumed else "wb") as file, _Bar(label, total, progress) as bar:
            while piece := response.read(1 << 16):
                file.write(piece)
                have += len(piece)
                bar.show(have)
    if total is not None and have != total:
        raise ConnectionError(f"the connection ended after {have:,} of {total:,} bytes")


def _continues(content_range: str | None, have: int) -> bool:
    return content_range is not None and content_range.startswith(f"bytes {have}-")


def _unpack(archive: Path, folder: Path, url: str) -> None:
    """Unpack a .zip or .tar.gz; entries that point out of `folder` are refused."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zipped:
                zipped.extractall(folder)  # drops "..", drives and leading slashes itself
        else:
            with tarfile.open(archive) as tarred:
                _extract(tarred, folder)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, gzip.BadGzipFile) as error:
        archive.unlink()
        raise DamagedData(
            f"{archive} is no archive that can be unpacked ({error}); it was removed. Fetch it "
            f"again from {url}"
        ) from None


def _extract(tarred: tarfile.TarFile, folder: Path) -> None:
    if hasattr(tarfile, "data_filter"):
        tarred.extractall(folder, filter="data")
        return
    base = folder.resolve()  # Python without filters: files and folders inside only
    for member in tarred.getmembers():
        inside = base in (base / member.name).resolve().parents
        if not (member.isfile() or member.isdir()) or not inside:
            raise tarfile.TarError(f"{member.name!r} is no plain file of this folder")
    tarred.extractall(folder)


class _Bar:
    """A line that fills: NAME [####    ] 45 %  12.1 MB  3.2 MB/s; without a terminal, its end."""

    def __init__(
        self, label: str, total: int | None, shown: bool, out: TextIO | None = None
    ) -> None:
        self.label, self.total, self.shown = label, total, shown
        self.out = out or sys.stderr
        self.terminal = self.out.isatty()
        self.start = self.last = time.monotonic()
        self.first: int | None = None
        self.line = ""

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self.shown and self.line:
            self.out.write(("\r" if self.terminal else "") + self.line + "\n")
            self.out.flush()

    def show(self, have: int) -> None:
        now = time.monotonic()
        self.first = have if self.first is None else self.first
        speed = (have - self.first) / max(now - self.start, 1e-6) / 1e6
        size = f"{have / 1e6:.1f} MB  {speed:.1f} MB/s"
        if self.total:
            done = min(have / self.total, 1.0)
            filled = "#" * round(24 * done)
            self.line = f"{self.label} [{filled:<24}] {100 * done:3.0f} %  {size}"
        else:
            self.line = f"{self.label} {size}"
        if self.shown and self.terminal and now - self.last > 0.1:
            self.last = now
            self.out.write("\r" + self.line)
            self.out.flush()
