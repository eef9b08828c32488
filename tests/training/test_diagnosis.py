"""What went bad first: NaN and infinity put into each layer of several networks in turn."""

import json
import math

import pytest
import torch
from small_run import run, small_config
from torch import nn

from hypersphere import heads, models
from hypersphere.data import ArrayDataset, BatchLoader
from hypersphere.training import (
    Classification,
    ClassifierLoss,
    NotFinite,
    Player,
    RunFolder,
    Settings,
    TrainConfig,
    fit,
    make_fabric,
    make_optimizer,
    schedules,
)
from hypersphere.training.conclude import save_features
from hypersphere.training.diagnose import bad_parameters, events_in_order

NETWORKS = {
    "cnn9": ({"in_channels": 1, "image_size": 8, "widths": (4, 4, 4), "features": 6}, (1, 8, 8)),
    "resnet18": ({"in_channels": 1, "image_size": 8, "widths": (4, 4, 4, 4)}, (1, 8, 8)),
    "mlp": ({"in_channels": 1, "image_size": 8, "widths": (6, 5)}, (1, 8, 8)),
    "pointnet": ({}, (16, 3)),
}
STRIDES = {"resnet18": 5}  # its stages are alike


@pytest.fixture(scope="module")
def fabric():
    return make_fabric(accelerator="cpu", devices=1)


def task_of(name, fabric):
    torch.manual_seed(0)
    options, shape = NETWORKS[name]
    data = ArrayDataset(torch.rand(32, *shape), torch.arange(32) % 3, ["a", "b", "c"])
    backbone = models.create(name, **options)
    net = models.Classifier(backbone, heads.SoftmaxHead(backbone.out_features, 3))
    made = make_optimizer(net, "sgd", lr=1e-3)
    rate = schedules.LearningRate(made, schedules.constant())
    module = fabric.setup_module(ClassifierLoss(net))
    player = Player(module, fabric.setup_optimizers(made), rate)
    loader = BatchLoader(data, 16, normalize=None, drop_last=True)
    return Classification(net, player, loader, None, fabric)


def layers_of(net):
    """Layers with parameters, in the order of the forward pass."""
    return [n for n, m in net.named_modules() if any(True for _ in m.parameters(recurse=False))]


class Spoil:
    """After the first update: a value in a weight, or in everything a layer computes."""

    def __init__(self, layer, value, what):
        self.layer, self.value, self.what = layer, value, what

    def after_update(self, run):
        if run.step:
            return
        module = run.model.get_submodule(self.layer)
        if self.what == "output":
            module.register_forward_hook(lambda m, i, o: o * self.value)
        else:
            with torch.no_grad():
                next(module.parameters(recurse=False)).fill_(self.value)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_layer_that_is_spoiled_is_the_layer_that_is_named(fabric, tmp_path, name, value):
    names = layers_of(task_of(name, fabric).model)[:: STRIDES.get(name, 1)]
    assert len(names) >= 3
    for number, layer in enumerate(names):
        task = task_of(name, fabric)
        hook = Spoil(layer, value, "weight")
        with pytest.raises(NotFinite) as error:
            settings = Settings(4, log_every=100, test_every=100, quiet=True)
            fit(task, RunFolder(tmp_path / str(number)), fabric, settings, [hook])
        assert "at step 1: " in str(error.value), layer
        assert f"'{layer}." in str(error.value), (layer, str(error.value))
        assert "went bad in the update before" in str(error.value)


@pytest.mark.parametrize("name", ["cnn9", "resnet18", "mlp"])
def test_the_layer_whose_output_is_spoiled_is_named(fabric, tmp_path, name):
    names = layers_of(task_of(name, fabric).model)[:: STRIDES.get(name, 1)]
    for number, layer in enumerate(names):
        if layer == "head":  # its loss is called, not the head itself
            continue
        task = task_of(name, fabric)
        with pytest.raises(NotFinite, match="went bad first") as error:
            settings = Settings(4, log_every=100, test_every=100, quiet=True)
            hook = Spoil(layer, math.nan, "output")
            fit(task, RunFolder(tmp_path / str(number)), fabric, settings, [hook])
        assert f"layer '{layer}' (" in str(error.value), (layer, str(error.value))


def test_statistics_that_the_failed_pass_has_written_are_no_evidence(fabric, tmp_path):
    """NaN in the first convolution makes every running mean NaN before anybody looks."""
    task = task_of("cnn9", fabric)
    first = layers_of(task.model)[0]
    with pytest.raises(NotFinite) as error:
        settings = Settings(4, log_every=100, test_every=100, quiet=True)
        fit(task, RunFolder(tmp_path), fabric, settings, [Spoil(first, math.nan, "weight")])
    assert f"'{first}.weight'" in str(error.value) and "running" not in str(error.value)


def test_layers_come_in_the_order_of_the_forward_pass():
    class Backwards(nn.Module):
        def __init__(self):
            super().__init__()
            self.last, self.first = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x):
            return self.last(self.first(x))

    net = Backwards()
    found = events_in_order(net, lambda: net(torch.ones(1, 2)))
    assert [e.name for e in found if e.finite is None] == ["", "first", "last"]
    assert [e.name for e in found if e.finite] == ["first", "last", ""]


class SpoilLast:
    """The very last update spoils a weight: no loss follows that could tell."""

    def __init__(self, step):
        self.step = step

    def after_update(self, run):
        if run.step == self.step:
            next(run.model.parameters()).data.fill_(math.nan)


@pytest.mark.parametrize("step", [3, 5])
def test_weights_spoiled_before_a_test_or_a_save_end_the_run(fabric, tmp_path, step):
    settings = Settings(6, log_every=2, test_every=4, checkpoint_every=2, quiet=True)
    with pytest.raises(NotFinite, match=f"not finite after step {step + 1}: 'backbone"):
        fit(task_of("mlp", fabric), RunFolder(tmp_path), fabric, settings, [SpoilLast(step)])
    names = sorted(p.name for p in (tmp_path / "checkpoints").glob("step-*"))
    assert names[-1] == f"step-{step - 1:08d}"


def test_divergence_in_the_last_update_is_an_error_of_the_command(tmp_path, capsys):
    from hypersphere.commands import train

    words = ["--run.folder", str(tmp_path / "a"), "--run.report", "false", "--train.quiet", "true"]
    words += ["--data.share", "0.2", "--model.widths", "[4,4,4]", "--optimizer.lr", "1e30"]
    assert train.main([*words, "--train.steps", "1", "--schedule.name", "constant"]) == 1
    said = capsys.readouterr()
    assert (
        "after step 1" in said.err
        and "not finite" in said.err
        and "everything is in" not in said.out
    )


def test_a_last_test_that_is_not_finite_is_an_error(fabric, tmp_path):
    task = task_of("mlp", fabric)
    task.test = lambda: {"loss": math.nan, "accuracy": 0.1}
    with pytest.raises(NotFinite, match="the test after step 2 gives loss nan"):
        fit(task, RunFolder(tmp_path), fabric, Settings(2, test_every=1, quiet=True))
    assert not (tmp_path / "checkpoints/step-00000002").exists()


def test_a_buffer_that_spoils_the_last_test_is_named(fabric, tmp_path):
    task = task_of("mlp", fabric)
    task.model.register_buffer("running_var", torch.tensor([math.nan]))
    task.test = lambda: {"loss": math.nan}
    with pytest.raises(NotFinite, match="finite; its buffer 'running_var' is not finite"):
        fit(task, RunFolder(tmp_path), fabric, Settings(1, quiet=True))


def test_weights_whose_length_overflows_are_bad():
    net = nn.Linear(2, 2)
    assert bad_parameters(net) == []
    net.bias.data.fill_(1e30)
    assert bad_parameters(net) == ["bias"] and bad_parameters(net.double()) == []


def test_features_that_are_not_finite_are_refused_with_a_sentence(tmp_path):
    features = torch.rand(5, 8)
    features[1, 2] = 1e30
    with pytest.raises(NotFinite, match="features of 1 of 5 test samples are not finite"):
        save_features(RunFolder(tmp_path), features, torch.arange(5), list("abcde"))


def test_a_gradient_that_is_not_finite_is_named_by_clipping(fabric, tmp_path):
    class Gradient:
        def before_update(self, run):
            next(run.model.parameters()).grad.fill_(math.inf)

    with pytest.raises(NotFinite, match="the gradient is not finite at step 0, though the loss is"):
        settings = Settings(2, clip=1.0, quiet=True)
        fit(task_of("mlp", fabric), RunFolder(tmp_path), fabric, settings, [Gradient()])


@pytest.mark.parametrize("settings", [{}, {"accumulate": 2}, {"clip": 0.1}])
def test_an_update_never_waits_for_the_device(fabric, tmp_path, settings):
    """Between two log lines no value is read: neither the loss, nor its sum, nor its check."""
    task = task_of("mlp", fabric)
    task.model.head = nn.Linear(5, 3)
    seen = []

    class Profile:
        def after_update(self, run):
            if run.step == 1:
                self.profile = torch.profiler.profile()
                self.profile.__enter__()
            if run.step == 5:
                self.profile.__exit__(None, None, None)
                seen.extend(event.key for event in self.profile.key_averages())

    settings = Settings(8, log_every=8, test_every=8, quiet=True, **settings)
    fit(task, RunFolder(tmp_path), fabric, settings, [Profile()])
    assert "aten::addmm" in seen and "aten::isfinite" in seen
    assert "aten::_local_scalar_dense" not in seen and "aten::item" not in seen


def test_sums_of_the_log_are_those_of_every_update(fabric, tmp_path):
    losses = []

    class Keep:
        def terms(self, run, batch, outputs, final):
            losses.append(run.task.model.head.loss(outputs, batch[1]).item())
            return {}

    fit(
        task_of("mlp", fabric),
        RunFolder(tmp_path),
        fabric,
        Settings(6, log_every=3, quiet=True),
        [Keep()],
    )
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    logged = [line["loss"] for line in lines if line["split"] == "train"]
    assert logged == pytest.approx([sum(losses[:3]) / 3, sum(losses[3:]) / 3])


def test_a_diverging_run_names_its_step(tmp_path):
    config = small_config(train=TrainConfig(steps=30, log_every=30, test_every=30, quiet=True))
    config.optimizer.lr = 1e30
    with pytest.raises(NotFinite, match=r"at step \d+: "):
        run(config, tmp_path)
