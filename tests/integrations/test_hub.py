"""A classifier to a folder and back, by the mixin of huggingface_hub."""

import json

import pytest
import torch

pytest.importorskip("huggingface_hub")

import hypersphere as hs
from hypersphere.integrations import HubClassifier
from hypersphere.training import Config, DataConfig, TrainConfig, load_net, train
from tolerances import close


def test_to_a_folder_and_back(tmp_path):
    torch.manual_seed(0)
    head = {"name": "a_softmax", "m": 3, "num_classes": 5}
    net = HubClassifier({"name": "mlp", "widths": [6], "in_channels": 1, "image_size": 4}, head)
    net.save_pretrained(tmp_path / "net")
    names = {path.name for path in (tmp_path / "net").iterdir()}
    assert {"config.json", "model.safetensors", "README.md"} <= names
    assert json.loads((tmp_path / "net/config.json").read_text())["head"]["m"] == 3
    assert "hypersphere" in (tmp_path / "net/README.md").read_text()
    again = HubClassifier.from_pretrained(tmp_path / "net")
    x = torch.rand(3, 1, 4, 4)
    assert torch.equal(again.eval()(x), net.eval()(x)) and again.head.margin.m == 3


def test_a_rotated_classifier_is_written_folded(tmp_path):
    net = HubClassifier(
        {"name": "mlp", "widths": [6, 6], "in_channels": 1, "image_size": 4},
        {"name": "softmax", "num_classes": 5},
    )
    hs.orthogonal.rotate(net)  # a random start: the weights differ from the neurons
    net.save_pretrained(tmp_path)
    x = torch.rand(3, 1, 4, 4)
    again = HubClassifier.from_pretrained(tmp_path, strict=True)
    close(again.eval()(x), net.eval()(x), scale=10)


@pytest.mark.parametrize("rotate", [None, {"method": "cayley"}])
def test_from_a_run(tmp_path, rotate):
    config = Config(
        data=DataConfig(name="digits", batch_size=32, share=0.2),
        model={"name": "mlp", "widths": [4, 4]},
        head={"name": "am_softmax", "m": 0.2},
        rotate=rotate,
        train=TrainConfig(steps=3, quiet=True),
    )
    train(config, tmp_path / "run")
    net = HubClassifier.from_run(tmp_path / "run")
    net.save_pretrained(tmp_path / "net")
    x = torch.rand(4, 1, 8, 8)
    wanted = load_net(tmp_path / "run").eval()(x)
    found = HubClassifier.from_pretrained(tmp_path / "net").eval()(x)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
