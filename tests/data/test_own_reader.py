"""A user's own data set by name."""

import pytest
import torch

import hypersphere as hs
from hypersphere import registry
from hypersphere.data import ArrayDataset, Split


@pytest.fixture
def own_name():
    before = dict(registry._ENTRIES["data"])
    yield "mine"
    registry._ENTRIES["data"].clear()
    registry._ENTRIES["data"].update(before)


def squares(count):
    return ArrayDataset(torch.rand(count, 1, 4, 4), torch.arange(count) % 2, ["a", "b"])


def test_every_reader_is_in_the_register():
    assert hs.data.list_datasets() == registry.names("data")
    assert registry.entry("data", "cora").target is hs.data.load_planetoid
    assert hs.data.reader_options("digits")[0] == "protocol"


def test_an_own_reader_gets_the_root_and_its_options(own_name, tmp_path, capsys):
    @hs.register("data", own_name)
    def load(root, count=6):
        """Random squares."""
        assert root == tmp_path
        return Split(squares(count), squares(2))

    split = hs.data.load(own_name, tmp_path, count=8)
    assert len(split.train) == 8 and split.name == "mine"
    assert hs.data.load(own_name, tmp_path, imbalance="multiple").train.counts().tolist() == [1, 2]
    with pytest.raises(ValueError, match=r"no option 'cout'; did you mean 'count'\? \(it takes: c"):
        hs.data.load(own_name, tmp_path, cout=8)
    assert own_name in hs.data.list_datasets()
    from hypersphere.cli import main

    assert main(["data"]) == 0
    assert "mine           registered by" in capsys.readouterr().out
    assert main(["data", own_name, "--root", str(tmp_path)]) == 0
    assert "train: (6, 1, 4, 4), 2 classes" in capsys.readouterr().out


def test_an_own_reader_without_root_and_with_any_option(own_name):
    hs.register("data", own_name)(lambda **options: Split(squares(options["n"]), squares(2)))
    assert len(hs.data.load(own_name, n=4).train) == 4


def test_what_an_own_reader_has_to_return_is_said(own_name):
    hs.register("data", own_name)(lambda root: squares(3))
    with pytest.raises(TypeError, match="'mine' .* has to return a Split, .* got ArrayDataset"):
        hs.data.load(own_name)
