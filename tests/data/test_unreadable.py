"""Pictures that cannot be read, in every kind of data set: replaced, counted, limited."""

import io
import pickle
import struct
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image

import hypersphere as hs
from hypersphere.data import BatchLoader, DamagedData
from hypersphere.data.record_io import MAGIC
from hypersphere.data.unreadable import UnreadablePictures

CLASSES, EACH = 2, 20


def png(label, value):
    """A picture that says in its pixels what it is of; noise, so that half a file is half of it."""
    pixels = np.random.default_rng(value).integers(0, 256, (16, 16, 3)).astype(np.uint8)
    pixels[0, 0] = label, value, 0
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "png")
    return buffer.getvalue()


def pictures(bad):
    """(label, number, content) of each picture; of the bad ones, the header and a half."""
    for label in range(CLASSES):
        for value in range(EACH):
            content = png(label, value)
            cut = (label, value) in bad
            yield label, value, content[: len(content) // 2] if cut else content


def folder(path, bad):
    for label, value, content in pictures(bad):
        (path / f"{label}").mkdir(exist_ok=True)
        (path / f"{label}" / f"{value:02d}.png").write_bytes(content)
    return lambda **options: hs.data.load("folder", path, lazy=True, **options)


def arrow(path, bad):
    datasets = pytest.importorskip("datasets", reason="needs the extra arrow")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    rows = [{"image": {"bytes": c, "path": None}, "label": k} for k, _, c in pictures(bad)]
    datasets.Dataset.from_list(rows, features=features).save_to_disk(str(path))
    return lambda **options: hs.data.load("arrow", path, **options)


def rec(path, bad):
    content, offsets = b"", []
    for label, _, picture in pictures(bad):
        record = struct.pack("<IfQQ", 0, float(label), 0, 0) + picture
        offsets.append(len(content))
        content += struct.pack("<II", MAGIC, len(record)) + record + b"\0" * (-len(record) % 4)
    (path / "train.rec").write_bytes(content)
    (path / "train.idx").write_text("".join(f"{i}\t{o}\n" for i, o in enumerate(offsets)))
    return lambda **options: hs.data.load("rec", path, test_fraction=0.25, **options)


KINDS = {"folder": folder, "arrow": arrow, "rec": rec}


def everything(part):
    loader = BatchLoader(part, 6, normalize=None, shuffle=False)
    batches = [(x[:, :2, 0, 0], y) for x, y in loader]
    return torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])


@pytest.mark.parametrize("kind", KINDS)
def test_another_picture_of_the_class_takes_the_place_of_a_bad_one(tmp_path, kind):
    load = KINDS[kind](tmp_path, {(0, 3), (1, 0)})
    split = load()
    with pytest.warns(UserWarning, match="cannot be read, and another of its class") as said:
        found = [everything(part) for part in (split.train, split.test)]
        again = [everything(part) for part in (split.train, split.test)]
    assert len(said) == 2  # each once
    pixels, labels = (torch.cat(parts) for parts in zip(*found, strict=True))
    assert len(labels) == CLASSES * EACH and torch.equal(pixels[:, 0].long(), labels)
    assert not {(0, 3), (1, 0)} & {tuple(p) for p in pixels.tolist()}
    for (x, _), (same, _) in zip(found, again, strict=True):
        assert torch.equal(x, same)
    assert len(pickle.loads(pickle.dumps(split.train))) == len(split.train)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:.*another of its class")
def test_more_than_the_limit_stop_the_run_in_a_sentence(tmp_path, kind):
    load = KINDS[kind](tmp_path, {(0, v) for v in range(3, 8)})
    for share, allowed in ((0.05, 2), (0.0, 0)):
        split = load(unreadable=share)
        with pytest.raises(DamagedData, match=rf"of 40 pictures .*; {allowed} may be .*unreadable"):
            [everything(part) for part in (split.train, split.test)]
    split = load(unreadable=0.2)
    assert sum(len(everything(part)[1]) for part in (split.train, split.test)) == 40


def shards(path, bad):
    pytest.importorskip("webdataset", reason="needs the extra shards")
    for part in ("train", "test"):
        with tarfile.open(path / f"{part}-0.tar", "w") as shard:
            for label, value, content in pictures(bad):
                for ending, data in (("png", content), ("cls", str(label).encode())):
                    info = tarfile.TarInfo(f"{label}{value:03d}.{ending}")
                    info.size = len(data)
                    shard.addfile(info, io.BytesIO(data))


def test_a_bad_sample_of_a_shard_does_not_end_the_epoch(tmp_path):
    shards(tmp_path, {(0, 0), (1, 7)})
    with pytest.warns(UserWarning, match="2 of 80 pictures cannot be read and are left out"):
        split = hs.data.load("webdataset", tmp_path, workers=0)
    assert len(split.test) == 38 and len(split.notes["unreadable"]) == 2
    assert split.train.shape == (3, 16, 16)
    loader = split.train.make_loader(8, normalize=None, seed=2)
    with pytest.warns(UserWarning, match=r"train-0\.tar, sample \d{4} cannot be read"):
        batches = [(x[:, :2, 0, 0], y) for x, y in loader]
    assert len(batches) == len(loader) == 5 and all(len(y) == 8 for _, y in batches)
    pixels, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    assert torch.equal(pixels[:, 0].long(), labels)
    # What replaces a bad sample does not move the others: a resumed loader goes on the same.
    again = split.train.make_loader(8, normalize=None, seed=2)
    again.load_state_dict({**loader.state_dict(), "epoch": 0, "batch": 3})
    rest = [x[:, :2, 0, 0] for x, _ in again]
    assert torch.equal(torch.cat(rest), torch.cat([x for x, _ in batches[3:]]))
    with pytest.raises(DamagedData, match="0 may be"):
        hs.data.load("webdataset", tmp_path, workers=0, unreadable=0)


def test_the_list_travels_to_other_processes():
    found = UnreadablePictures(0.5)
    found.total = 10
    found.add("a.jpg", "cut off")
    copy = pickle.loads(pickle.dumps(found))
    copy.add("b.jpg", "cut off")
    assert copy.paths == ["a.jpg", "b.jpg"] and found.paths == ["a.jpg"] and copy.allowed == 5
