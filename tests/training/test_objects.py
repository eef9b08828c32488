"""A Config that holds objects where others have names."""

import json

import pytest
import torch
from small_run import run, small_config
from torch import nn

import hypersphere as hs
from hypersphere.training import Config, load_net
from hypersphere.training.config import DataConfig, TrainConfig


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.ReLU())

    def forward(self, x):
        return self.layers(x)


class Count:
    def __init__(self):
        self.updates = 0

    def after_update(self, run):
        self.updates += 1

    def state_dict(self):
        return {"updates": self.updates}

    def load_state_dict(self, state):
        self.updates = state["updates"]


class Lengths(nn.Module):
    def forward(self, module):
        return 1e-3 * sum(p.square().sum() for p in module.parameters())


def objects(steps=6, hook=None):
    torch.manual_seed(3)
    return small_config(
        model=Net(),
        head=nn.Linear(6, 10),
        regularizers={"lengths": Lengths()},
        hooks={"count": hook or Count()},
        train=TrainConfig(steps=steps, test_every=3, checkpoint_every=3, quiet=True),
    )


def test_objects_train_resume_and_load(tmp_path):
    hook = Count()
    config = objects(hook=hook)
    start = config.model["object"].layers[1].weight.clone()
    run(config, tmp_path / "whole")
    assert hook.updates == 6  # the hook is the one that was given
    assert torch.equal(start, config.model["object"].layers[1].weight)  # the module is copied
    lines = (tmp_path / "whole/metrics.jsonl").read_text()
    assert '"lengths"' in lines

    run(objects(steps=3), tmp_path / "parts")
    hook = Count()
    run(objects(hook=hook), tmp_path / "parts", resume=True)
    assert hook.updates == 6
    whole = load_net(tmp_path / "whole", net=hs.models.Classifier(Net(), nn.Linear(6, 10)))
    again = load_net(tmp_path / "parts", net=hs.models.Classifier(Net(), nn.Linear(6, 10)))
    for a, b in zip(whole.state_dict().values(), again.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(
        ValueError, match=r"test_objects\.Net, which a run folder cannot bring back"
    ):
        load_net(tmp_path / "whole")


def test_a_run_records_its_objects(tmp_path):
    config = objects()
    values = json.loads(json.dumps(config.to_dict()))
    assert values["model"]["object"].endswith("test_objects.Net")
    assert values["head"] == {"object": "torch.nn.modules.linear.Linear"}
    kinds = [key.split()[0] for key in values["parts"]]
    assert kinds == ["model", "head", "regularizer", "hook"]
    assert all(len(part["sha256"]) == 64 and part["file"] for part in values["parts"].values())
    assert json.loads(json.dumps(Config.from_dict(values).to_dict())) == values


def test_a_named_head_takes_the_width_of_a_module(tmp_path):
    config = small_config(model=Net(), train=TrainConfig(steps=2, quiet=True))
    run(config, tmp_path)
    net = load_net(tmp_path, net=Net())
    assert net.head.in_features == 6 and net(torch.rand(2, 1, 8, 8)).shape == (2, 10)
    wrong = small_config(model=nn.Conv2d(1, 3, 3))
    with pytest.raises(
        ValueError, match=r"has to give features \(B, d\).*Conv2d gives \(2, 3, 6, 6\)"
    ):
        run(wrong, tmp_path / "wrong")


def test_data_and_options_may_be_objects(tmp_path):
    split = hs.data.load("digits", protocol="open_set")
    options = {"name": "mlp", "widths": [4], "operator": "sphere"}
    options["angular"] = hs.layers.SigmoidAngular(k=0.3)
    config = small_config(
        data=DataConfig(name=split, batch_size=32, share=0.2),
        model=options,
        train=TrainConfig(steps=2, quiet=True),
    )
    run(config, tmp_path)
    saved = json.loads((tmp_path / "run.json").read_text())["config"]
    assert saved["data"]["name"] == {"object": "hypersphere.data.dataset.Split"}
    assert saved["model"]["angular"]["object"].endswith("SigmoidAngular")
    assert Config(data=split).data.name is split
    with pytest.raises(ValueError, match="which a run folder cannot bring back"):
        hs.training.build.make_loaders(Config.from_dict(saved).data, 0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": None}, "model is a name, a section with name and options, or an object; got N"),
        ({"model": nn.Linear}, r"model is the class Linear: give an object, Linear\(\)"),
        ({"model": lambda x: x}, "model has to be an nn.Module, so that its parameters"),
        ({"head": 3}, "head is a name"),
        ({"regularizers": [Lengths()]}, "regularizers is a dictionary of parts by name"),
        ({"regularizers": {"mine": 0.5}}, "regularizers.mine is a section of options, or an obj"),
        ({"optimizer": {"learning_rate": 1}}, "unknown key of optimizer 'learning_rate'"),
        ({"optimizer": "sgd"}, "optimizer is a OptimizerConfig or a dictionary of its values"),
    ],
)
def test_what_cannot_stand_in_a_config(settings, message):
    with pytest.raises(ValueError, match=message):
        Config(**settings)


def test_names_and_dictionaries_stand_for_sections():
    config = Config(model="cnn3", head="arcface", optimizer={"lr": 0.5}, data={"batch_size": 8})
    assert (config.model, config.head) == ({"name": "cnn3"}, {"name": "arcface"})
    assert (config.optimizer.lr, config.data.batch_size, config.data.name) == (0.5, 8, "digits")


def test_a_hook_without_methods_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"the hook 'none' \(object\) has none of the methods"):
        run(small_config(hooks={"none": object()}), tmp_path)
