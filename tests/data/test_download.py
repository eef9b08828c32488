"""Downloads from a server of our own: progress, resuming, verification, unpacking."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import tarfile
import threading
import zipfile
from dataclasses import replace

import numpy as np
import pytest

import hypersphere as hs
from hypersphere.data import DamagedData, MissingData, download
from hypersphere.data import sources as table
from hypersphere.data.__main__ import main
from hypersphere.data.download import _Bar, fetch
from hypersphere.data.sources import Remote

from reference.data_files import idx_bytes

CONTENT = bytes(range(256)) * 2000
MD5 = f"md5:{hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()}"


class Server(http.server.ThreadingHTTPServer):
    """Serves `files` with byte ranges; `break_after` bytes of an answer are sent when it is set."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.ranges: list[str | None] = []
        self.break_after: int | None = None
        self.with_ranges = True
        self.fail_first = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.ranges.append(asked)
        content = self.server.files.get(self.path)
        if self.server.fail_first:
            self.server.fail_first -= 1
            return self.send_error(503)
        if content is None:
            return self.send_error(404)
        start = 0
        if asked and self.server.with_ranges:
            start = int(asked.removeprefix("bytes=").rstrip("-"))
            if start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.send_header("Content-Length", "0")
                return self.end_headers()
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        limit, self.server.break_after = self.server.break_after, None
        self.wfile.write(content[start:] if limit is None else content[start : start + limit])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server():
    with Server() as server:
        server.files["/file"] = CONTENT
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def get(server, tmp_path, **options):
    return fetch(Remote(f"{server.url}/file", "sub/file", MD5), tmp_path, progress=False, **options)


def test_whole_file_and_nothing_twice(server, tmp_path):
    path = get(server, tmp_path)
    assert path == tmp_path / "sub" / "file" and path.read_bytes() == CONTENT
    assert list(path.parent.iterdir()) == [path]
    get(server, tmp_path)
    assert server.ranges == [None]
    path.write_bytes(b"damaged on disk")
    assert get(server, tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize("with_ranges", [True, False])
def test_a_broken_connection_is_resumed(server, tmp_path, with_ranges):
    server.break_after, server.with_ranges = 100_000, with_ranges
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=100000-"]


def test_a_broken_run_is_resumed_by_the_next(server, tmp_path):
    server.break_after = 70_000
    with pytest.raises(MissingData, match=r"ended after 70,000 of 512,000 bytes.*file\.part: run"):
        get(server, tmp_path, attempts=1)
    assert (tmp_path / "sub" / "file.part").stat().st_size == 70_000
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.ranges[-1] == "bytes=70000-"


def test_a_complete_part_is_taken_and_a_longer_one_thrown_away(server, tmp_path):
    part = tmp_path / "sub" / "file.part"
    part.parent.mkdir()
    part.write_bytes(CONTENT)
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.ranges == [f"bytes={len(CONTENT)}-"]
    (tmp_path / "sub" / "file").unlink()
    part.write_bytes(CONTENT + b"more")
    assert get(server, tmp_path).read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_nothing_behind(server, tmp_path):
    server.files["/file"] = CONTENT[:-1] + b"x"
    with pytest.raises(DamagedData, match=f"expected the checksum {MD5}"):
        get(server, tmp_path)
    assert list((tmp_path / "sub").iterdir()) == []


def test_a_stale_part_of_another_file_is_found_by_the_checksum(server, tmp_path):
    part = tmp_path / "sub" / "file.part"
    part.parent.mkdir()
    part.write_bytes(b"z" * 1000)
    with pytest.raises(DamagedData):
        get(server, tmp_path)
    assert get(server, tmp_path).read_bytes() == CONTENT


def test_answers_of_the_server(server, tmp_path):
    with pytest.raises(MissingData, match="/none answers 404"):
        fetch(Remote(f"{server.url}/none", "none"), tmp_path, progress=False)
    server.fail_first = 1
    assert get(server, tmp_path).read_bytes() == CONTENT  # 503 passes
    with pytest.raises(MissingData, match="could not be fetched: .*refused$"):
        fetch(Remote("http://127.0.0.1:9/x", "x"), tmp_path, progress=False, attempts=1)


def tar_of(**files: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def zip_of(**files: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


@pytest.mark.parametrize("pack", [tar_of, zip_of])
def test_archives_are_unpacked_once(server, tmp_path, pack):
    server.files["/a"] = pack(**{"inner/x": b"1", "y": b"22"})
    remote = Remote(f"{server.url}/a", "a.tgz", unpack="out")
    for _ in range(2):
        assert fetch(remote, tmp_path, progress=False) == tmp_path / "out"
    assert (tmp_path / "out" / "inner" / "x").read_bytes() == b"1"
    assert len(server.ranges) == 1 and not (tmp_path / "a.tgz").exists()


@pytest.mark.parametrize("pack", [tar_of, zip_of])
def test_archives_cannot_write_elsewhere(server, tmp_path, pack):
    server.files["/a"] = pack(**{"../outside": b"1"})
    remote = Remote(f"{server.url}/a", "in/a.tgz", unpack="in/out")
    if pack is tar_of:
        with pytest.raises(DamagedData, match="outside"):
            fetch(remote, tmp_path, progress=False)
    else:
        fetch(remote, tmp_path, progress=False)
    assert not (tmp_path / "outside").exists() and not (tmp_path / "in" / "outside").exists()


def test_a_damaged_archive_is_removed(server, tmp_path):
    server.files["/a"] = tar_of(x=CONTENT)[:-50]
    with pytest.raises(DamagedData, match="it was removed. Fetch it again"):
        fetch(Remote(f"{server.url}/a", "a.tgz", unpack="."), tmp_path, progress=False)
    assert not (tmp_path / "a.tgz").exists()


@pytest.fixture
def mnist(server, monkeypatch):
    """MNIST in small, published by our server under its usual file names."""
    random = np.random.default_rng(0)
    remotes, checksums = [], {}
    for remote in table.SOURCES["mnist"].remotes:
        name = remote.path.rpartition("/")[2]
        count = 6 if "train" in name else 2
        shape = (count, 28, 28) if "images" in name else (count,)
        content = gzip.compress(idx_bytes(random.integers(0, 10, shape)))
        server.files[f"/{name}"] = content
        checksums[name] = f"md5:{hashlib.md5(content, usedforsecurity=False).hexdigest()}"
        remotes.append(replace(remote, url=f"{server.url}/{name}", checksum=checksums[name]))
    source = replace(table.SOURCES["mnist"], remotes=tuple(remotes), checksums=checksums)
    monkeypatch.setitem(table.SOURCES, "mnist", source)
    return server


def test_load_fetches_what_is_missing_and_only_then(mnist, tmp_path):
    split = hs.data.load("mnist", tmp_path, download=True, verify=True)
    assert len(split.train) == 6 and len(split.test) == 2 and len(mnist.ranges) == 4
    hs.data.load("mnist", tmp_path, download=True)
    assert len(mnist.ranges) == 4
    with pytest.raises(MissingData, match="no public address"):
        download("megaface", tmp_path)


def test_the_command(mnist, tmp_path, capsys):
    assert main(["mnist", "--root", str(tmp_path)]) == 1
    assert "--download --root" in capsys.readouterr().err
    assert main(["mnist", "--root", str(tmp_path), "--download", "--verify"]) == 0
    captured = capsys.readouterr()
    assert "train: (6, 1, 28, 28), 10 classes" in captured.out
    assert captured.out.count("checksum is right") == 4
    assert "t10k-labels-idx1-ubyte.gz [########################] 100 %" in captured.err
    assert main([]) == 0
    assert "cifar100" in capsys.readouterr().out
    assert main(["mnits"]) == 2


def test_the_bar_fills_on_a_terminal():
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    with _Bar("file", 1000, True, out) as bar:
        bar.show(250)
        bar.last -= 1  # as if time had passed
        bar.show(500)
        bar.show(1000)
    lines = out.getvalue().split("\r")
    assert "[############            ]  50 %" in lines[1] and "100 %" in lines[-1]
    out = io.StringIO()
    with _Bar("file", None, True, out) as bar:
        bar.show(2_000_000)
    assert out.getvalue().startswith("file 2.0 MB")
