"""Settings reach every task, or are refused by name; a run can always go on."""

import json

import pytest
import torch
from safetensors.torch import load_file
from small_run import run, small_config

from hypersphere import data
from hypersphere.registry import entry, names
from hypersphere.training import Config, make_fabric, prepare
from hypersphere.training.config import (
    DataConfig,
    FewShotConfig,
    GanConfig,
    OptimizerConfig,
    TrainConfig,
)
from hypersphere.training.prepare import make_settings, refuse_unused


def gan(**changes):
    settings = {
        "task": "gan",
        "data": DataConfig(batch_size=16, share=0.1, test_share=0.2, normalize="symmetric"),
        "model": {"name": "sngan_discriminator", "widths": [4, 8], "spectral": False},
        "gan": GanConfig({"name": "sngan_generator", "widths": [8, 4], "features": 6}, samples=20),
        "optimizer": OptimizerConfig(name="adam", lr=1e-3),
        "train": TrainConfig(steps=3, quiet=True),
    }
    return Config(**{**settings, **changes})


def reconstruction(**changes):
    settings = {
        "task": "reconstruction",
        "data": DataConfig(batch_size=16, share=0.1, test_share=0.2),
        "model": {"name": "autoencoder", "widths": [4], "features": 4},
        "optimizer": OptimizerConfig(name="adam", lr=1e-3),
        "train": TrainConfig(steps=3, quiet=True),
    }
    return Config(**{**settings, **changes})


def graph_config(**changes):
    settings = {
        "task": "graph",
        "data": DataConfig(name="cora"),
        "model": {"name": "gcn", "in_channels": None},
        "head": {"name": "softmax", "bias": False},
        "optimizer": OptimizerConfig(name="adam", lr=0.02),
        "train": TrainConfig(steps=8, test_every=4, quiet=True),
    }
    return Config(**{**settings, **changes})


@pytest.fixture
def small_graph(monkeypatch):
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(20) // 10
    linked = torch.triu(torch.rand(20, 20, generator=random) < 0.3, 1)
    edges = (linked | linked.T).nonzero().T.contiguous()
    features = torch.randn(20, 6, generator=random) + labels[:, None]
    nodes = torch.randperm(20, generator=random)
    from hypersphere.data.planetoid import GraphDataset

    graph = GraphDataset(features, edges, labels, nodes[:6], nodes[6:12], nodes[12:], ["a", "b"])
    monkeypatch.setattr(data, "load", lambda name, root=None, **options: graph)
    return graph


SMOOTH = TrainConfig(label_smoothing=0.1)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (gan(head={"name": "a_softmax", "m": 4}), "task gan does not use the section 'head'"),
        (gan(head={"name": "softmax", "bias": False}), "task gan does not use the section 'head'"),
        (gan(train=SMOOTH), "task gan does not use the setting 'train.label_smoothing'"),
        (gan(few_shot=FewShotConfig(way=3)), "task gan does not use the section 'few_shot'"),
        (reconstruction(head={"name": "arcface"}), "task reconstruction .* section 'head'"),
        (reconstruction(train=SMOOTH), "task reconstruction .* 'train.label_smoothing'"),
        (reconstruction(gan=GanConfig(samples=3)), "task reconstruction .* section 'gan'"),
        (small_config(gan=GanConfig(samples=3)), "task classification .* section 'gan'"),
        (graph_config(data=DataConfig(augment="flip")), "task graph .* setting 'data.augment'"),
        (graph_config(data=DataConfig(batch_size=3)), "task graph .* setting 'data.batch_size'"),
    ],
)
def test_what_a_task_does_not_use_is_refused_by_name(config, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        run(config, tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_defaults_that_are_spelled_out_are_not_refused():
    from hypersphere.commands import _config

    for task in names("task"):
        config = _config.read(None, [], defaults={"task": task})
        refuse_unused(config, entry("task", task).target.sections)


def test_every_recipe_uses_sections_of_its_task():
    from hypersphere.commands import _config
    from hypersphere.commands.recipes import list_recipes

    seen = set()
    for recipe in list_recipes():
        settings = _config.load_file(recipe.path, [recipe.variant] if recipe.variant else [])
        task = settings.get("task", "classification")
        key = json.dumps([task, settings.get("head"), settings["data"]], sort_keys=True)
        if task != "classification" and key not in seen:
            seen.add(key)
            shown = {k: settings[k] for k in ("task", "head", "data", "gan") if k in settings}
            config = _config.read(None, [], defaults=shown)
            refuse_unused(config, entry("task", task).target.sections)
    assert seen


@pytest.mark.parametrize("make", [gan, reconstruction, graph_config, small_config])
def test_weights_to_start_from_are_looked_for_by_every_task(make, tmp_path, small_graph, request):
    if make in (gan, reconstruction, small_config):
        request.getfixturevalue("monkeypatch").undo()
    config = make()
    config.train.init_from = str(tmp_path / "no/such")
    with pytest.raises(FileNotFoundError, match="no weights in .*such"):
        run(config, tmp_path / "a")


@pytest.mark.parametrize("make", [gan, reconstruction])
def test_a_run_starts_from_another(make, tmp_path):
    run(make(), tmp_path / "a")
    config = make(optimizer=OptimizerConfig(lr=0.0, momentum=0.0))
    config.train.init_from = str(tmp_path / "a")
    run(config, tmp_path / "b")
    first, second = (
        load_file(tmp_path / k / "checkpoints/step-00000003/model.safetensors") for k in "ab"
    )
    matrices = [k for k, v in first.items() if v.ndim > 1]
    assert matrices and all(torch.equal(first[k], second[k]) for k in matrices)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"rotate": {"method": "cayley"}}, ".U"),
        ({"low_rank": {"rank": 2}}, "parametrizations.weight.original0"),
    ],
)
def test_a_discriminator_is_rotated_and_of_low_rank(changes, key, tmp_path):
    run(gan(**changes), tmp_path)
    weights = load_file(tmp_path / "checkpoints/step-00000003/model.safetensors")
    changed = [k for k in weights if k.endswith(key)]
    assert changed and all(k.startswith("discriminator.") for k in changed)
    assert (tmp_path / "folded.safetensors").exists()


def test_initial_weights_reach_a_discriminator():
    fabric = make_fabric(accelerator="cpu", devices=1)
    task = prepare(gan(init={"distribution": "normal", "mean": 5.0, "std": 0.1}), fabric).task
    means = [p.mean() for p in task.model["discriminator"].parameters() if p.ndim == 4]
    assert means and all(abs(m - 5) < 0.1 for m in means)


@pytest.mark.parametrize("name", ["class_energy", "metric_loss", "adversarial"])
def test_hooks_that_need_labels_are_refused_without_them(name, tmp_path):
    with pytest.raises(ValueError, match="needs labels, which task gan has none of"):
        run(gan(hooks={name: {}}), tmp_path / "a")


def test_label_smoothing_reaches_a_graph(small_graph):
    config = graph_config()
    config.train.label_smoothing = 0.2
    fabric = make_fabric(accelerator="cpu", devices=1)
    losses = []
    for smoothing in (0.0, 0.2):
        config.train.label_smoothing = smoothing
        task = prepare(config, fabric).task
        task.model.eval()
        losses.append(task.players[0].module(task.labels)[0].item())
    assert losses[0] != losses[1]


def test_preparing_does_not_change_the_config(small_graph):
    for config in (graph_config(), gan(), reconstruction(), small_config()):
        if config.task != "graph":
            continue
        before = json.dumps(config.to_dict(), default=str)
        prepare(config, make_fabric(accelerator="cpu", devices=1))
        assert json.dumps(config.to_dict(), default=str) == before


def test_a_graph_run_goes_on(small_graph, tmp_path):
    run(graph_config(), tmp_path / "whole")
    half = graph_config(train=TrainConfig(steps=4, test_every=4, quiet=True))
    run(half, tmp_path / "cut")
    run(graph_config(), tmp_path / "cut", resume=True)
    files = [tmp_path / k / "checkpoints/step-00000008/model.safetensors" for k in ("whole", "cut")]
    assert files[0].read_bytes() == files[1].read_bytes()
    # A run of an earlier version has recorded the width of its data.
    record = json.loads((tmp_path / "cut/run.json").read_text())
    record["config"]["model"]["in_channels"] = 6
    del record["checksum"]
    (tmp_path / "cut/run.json").write_text(json.dumps(record))
    longer = graph_config(train=TrainConfig(steps=10, test_every=4, quiet=True))
    assert run(longer, tmp_path / "cut", resume=True).last["step"] == 10


def test_steps_and_epochs_together_are_refused_by_name():
    assert make_settings(TrainConfig(epochs=2), 7).steps == 14
    assert make_settings(TrainConfig(steps=60), 7).steps == 60
    with pytest.raises(ValueError, match="train.steps=60 and train.epochs=2 both say how long"):
        make_settings(TrainConfig(steps=60, epochs=2), 7)
