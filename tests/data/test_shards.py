"""WebDataset shards and saved `datasets`: written by their own libraries, read lazily."""

import dataclasses
import io
import tarfile
from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image

import hypersphere as hs
from hypersphere.data import DamagedData, MissingData, ShardLoader

wds = pytest.importorskip("webdataset", reason="needs the extra shards")


def png(value, label):
    pixels = np.zeros((4, 4, 3), np.uint8)
    pixels[..., 0], pixels[..., 1] = value, label
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "png")
    return buffer.getvalue()


def write(folder, name, first, count, classes=4):
    with wds.TarWriter(str(folder / name)) as shard:
        for value in range(first, first + count):
            label = value % classes
            sample = {"__key__": f"{value:06d}", "png": png(value, label), "cls": str(label)}
            shard.write({k: v.encode() if k == "cls" else v for k, v in sample.items()})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("shards")
    for shard in range(6):
        write(place, f"train-{shard:06d}.tar", 20 * shard, 20)
    write(place, "test-000000.tar", 200, 12)
    return place


def values(loader):
    """The number of each picture, batch by batch; labels must belong to them."""
    found = []
    for x, y in loader:
        raw = (255 * x).round().long()
        assert torch.equal(raw[:, 1, 0, 0], y) and torch.equal(raw[:, 0, 0, 0] % 4, y)
        found.append(raw[:, 0, 0, 0].tolist())
    return found


def test_a_folder_of_shards(folder):
    split = hs.data.load("webdataset", folder, workers=0)
    assert len(split.train) == 120 and len(split.test) == 12 and split.num_classes == 4
    assert split.train.shape == (3, 4, 4) and split.train.counts().tolist() == [30] * 4
    loader = split.train.make_loader(10, seed=3)
    first, second = values(loader), values(loader)
    assert len(first) == len(loader) == 12
    assert sorted(v for b in first for v in b) == list(range(120))  # every sample once
    assert first != second and loader.epoch == 2
    assert first == values(split.train.make_loader(10, seed=3))
    assert first != values(split.train.make_loader(10, seed=4))
    near = sum(abs(a - b) == 1 for batch in first for a, b in pairwise(batch))
    assert near < 30  # shuffled within shards, not only between them


@pytest.mark.parametrize("name", ["./{}.png", "v1.0/{}.png", "{}.PNG", "a/b/{}.Png"])
def test_samples_have_the_names_of_the_library(tmp_path, name):
    """`tar cf x.tar .` writes ./0.png; a folder may have a dot in its name."""
    for part, first in (("train", 0), ("test", 100)):
        with tarfile.open(tmp_path / f"{part}-0.tar", "w") as shard:
            for value in range(first, first + 12):
                picture = name.format(value)
                label = f"{picture[:-4]}.cls"
                for entry, content in (
                    (picture, png(value, value % 4)),
                    (label, str(value % 4).encode()),
                ):
                    info = tarfile.TarInfo(entry)
                    info.size = len(content)
                    shard.addfile(info, io.BytesIO(content))
    split = hs.data.load("webdataset", tmp_path, workers=0)
    assert len(split.train) == len(split.test) == 12
    found = values(split.train.make_loader(4))
    assert sorted(v for b in found for v in b) == list(range(12))


def test_empty_shards_are_left_out_and_one_that_became_empty_is_named(tmp_path):
    for shard in range(2):
        write(tmp_path, f"train-{shard}.tar", 20 * shard, 20)
    write(tmp_path, "test-0.tar", 100, 4)
    tarfile.open(tmp_path / "train-2.tar", "w").close()
    train = hs.data.load("webdataset", tmp_path, workers=2).train
    assert len(train.files) == 2 and train.make_loader(10).workers == 2
    tarfile.open(tmp_path / "train-1.tar", "w").close()
    alone = dataclasses.replace(train, files=[str(tmp_path / "train-1.tar")], workers=0)
    with pytest.raises(DamagedData, match=r"train-1\.tar .*no sample"):
        next(iter(alone.make_loader(10)))
    tarfile.open(tmp_path / "train-0.tar", "w").close()
    with pytest.raises(DamagedData, match="no sample in the training shards"):
        hs.data.load("webdataset", tmp_path)


def test_processes_have_shards_of_their_own(folder):
    train = hs.data.load("webdataset", folder, workers=0).train
    ranks = [values(train.make_loader(10, seed=1, rank=r, world_size=3)) for r in range(3)]
    assert {len(r) for r in ranks} == {4}
    seen = [{v for b in r for v in b} for r in ranks]
    assert seen[0] | seen[1] | seen[2] == set(range(120))
    assert not (seen[0] & seen[1]) and not (seen[1] & seen[2]) and not (seen[0] & seen[2])
    with pytest.raises(ValueError, match="6 shards for 7 processes"):
        train.make_loader(2, world_size=7)


@pytest.mark.parametrize("stop", [1, 4, 7])
def test_a_resumed_loader_goes_on_with_the_same_batches(folder, stop):
    train = hs.data.load("webdataset", folder, workers=0).train
    whole = train.make_loader(10, seed=5)
    expected = values(whole) + values(whole)
    part = train.make_loader(10, seed=5)
    begun = []
    for x, _ in part:
        begun.append((255 * x[:, 0, 0, 0]).round().long().tolist())
        if len(begun) == stop:
            state = part.state_dict()
            break
    again = train.make_loader(10, seed=5)
    again.load_state_dict(state)
    assert begun + values(again) + values(again) == expected
    with pytest.raises(ValueError, match="seed=5, this one has seed=6"):
        train.make_loader(10, seed=6).load_state_dict(state)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_workers_read_and_a_resumed_loader_with_workers_goes_on(folder):
    train = hs.data.load("webdataset", folder, workers=2).train
    loader = ShardLoader(train, 10, seed=5)
    assert loader.workers == 2
    expected = values(loader)
    assert sorted(v for b in expected for v in b) == list(range(120))
    for stop in (3, 4):
        state = {**loader.state_dict(), "epoch": 0, "batch": stop}
        again = ShardLoader(train, 10, seed=5)
        again.load_state_dict(state)
        assert values(again) == expected[stop:]


def test_a_checkpoint_of_shards_keeps_its_number_of_processes(folder):
    from hypersphere.training.run.checkpoint import RunError
    from hypersphere.training.run.resume import for_processes

    train = hs.data.load("webdataset", folder, workers=0).train
    task = {"loader": train.make_loader(10, world_size=2).state_dict()}
    assert for_processes(task, 2) == task
    with pytest.raises(RunError, match="of 2 processes .* with 1: .* Resume with 2"):
        for_processes(task, 1)


def test_a_run_trains_on_shards(folder, tmp_path):
    from hypersphere.training.config import Config, DataConfig, TrainConfig

    config = Config(
        data=DataConfig(name="webdataset", root=str(folder), batch_size=12, options={"workers": 0}),
        model={"name": "mlp", "widths": [8]},
        train=TrainConfig(steps=14, quiet=True, checkpoint_every=7),
    )
    outcome = hs.training.train(config, tmp_path / "run")
    assert outcome.last["step"] == 14 and "loss" in outcome.last
    with pytest.raises(TypeError, match="normalize unit or symmetric"):
        hs.data.Normalize.fit(hs.data.load("webdataset", folder).train, "channel")


def test_damaged_shards_are_named(tmp_path):
    with pytest.raises(MissingData, match="at least two shards"):
        hs.data.load("webdataset", tmp_path)
    write(tmp_path, "train-0.tar", 0, 5)
    write(tmp_path, "test-0.tar", 0, 5)
    good = (tmp_path / "train-0.tar").read_bytes()
    (tmp_path / "train-0.tar").write_bytes(b"no tar" * 200)
    with pytest.raises(DamagedData, match=r"train-0\.tar is damaged: expected a tar file"):
        hs.data.load("webdataset", tmp_path)
    (tmp_path / "train-0.tar").write_bytes(good)
    (tmp_path / "classes.txt").write_text("one\ntwo\n")
    with pytest.raises(DamagedData, match="labels reach from 0 to 1"):
        hs.data.load("webdataset", tmp_path)


def saved(folder, parts):
    datasets = pytest.importorskip("datasets", reason="needs the extra arrow")
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["ant", "bee", "cow"])}
    )
    made = {}
    for part, count in parts.items():
        rows = [{"image": {"bytes": png(i, i % 3), "path": None}, "label": i % 3}
                for i in range(count)]  # fmt: skip
        made[part] = datasets.Dataset.from_list(rows, features=features)
    found = datasets.DatasetDict(made) if len(made) > 1 else made["all"]
    found.save_to_disk(str(folder))


@pytest.mark.parametrize("parts", [{"all": 24}, {"train": 12, "test": 6, "validation": 6}])
def test_saved_datasets(tmp_path, parts):
    saved(tmp_path / "set", parts)
    split = hs.data.load("arrow", tmp_path, path="set", test_fraction=0.25)
    assert split.classes == ["ant", "bee", "cow"] and split.train.shape == (3, 4, 4)
    assert len(split.train) + len(split.test) + len(split.validation or []) == 24
    batch = split.train.take(torch.arange(len(split.train)))
    assert torch.equal(batch[:, 1, 0, 0].long(), split.train.labels)
    assert hs.data.load("arrow", tmp_path / "set", size=2, mode="L").train.shape == (1, 2, 2)
    with pytest.raises(ValueError, match="no column face; it has image, label"):
        hs.data.load("arrow", tmp_path / "set", image="face")
    with pytest.raises(MissingData, match="the folder of a saved data set"):
        hs.data.load("arrow", tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DamagedData, match="no data set that `datasets` saved"):
        hs.data.load("arrow", tmp_path / "empty")
