"""The tasks beside classification: graphs, GANs, few-shot, fine-tuning; and the commands over
many runs.
"""

import dataclasses
import json

import numpy as np
import pytest
import torch
from small_run import run, small_config

from hypersphere import data
from hypersphere.data import ArrayDataset, Split
from hypersphere.training import Config, load_net
from hypersphere.training.build import make_sized_model
from hypersphere.training.config import (
    DataConfig,
    FewShotConfig,
    GanConfig,
    OptimizerConfig,
    TrainConfig,
)
from hypersphere.training.diagnose import NotFinite
from hypersphere.training.held_out import hold_out
from hypersphere.training.run.checkpoint import load_weights
from hypersphere.training.run.trained import TrainedRun
from hypersphere.training.tasks.few_shot import refuse_trained_classes
from tolerances import close


@pytest.fixture
def two_communities(monkeypatch):
    """A graph of two groups of 20 nodes, dense inside, sparse between."""
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(40) // 20
    same = labels[:, None] == labels
    chance = torch.rand(40, 40, generator=random)
    linked = torch.triu((chance < torch.where(same, 0.4, 0.02)), 1)
    edges = (linked | linked.T).nonzero().T.contiguous()
    features = torch.randn(40, 12, generator=random) + labels[:, None]
    nodes = torch.randperm(40, generator=random)
    graph = (
        data.GraphDataset(features, edges, labels, nodes[:8], nodes[8:20], nodes[20:], ["a", "b"])
        if hasattr(data, "GraphDataset")
        else None
    )
    if graph is None:
        from hypersphere.data.planetoid import GraphDataset

        graph = GraphDataset(
            features, edges, labels, nodes[:8], nodes[8:20], nodes[20:], ["a", "b"]
        )
    monkeypatch.setattr(data, "load", lambda name, root=None, **options: graph)
    return graph


@pytest.mark.parametrize("rotate", [None, {"method": "cayley"}, {"method": "ogd"}])
def test_graph_is_trained_full_batch(two_communities, tmp_path, rotate):
    config = Config(
        task="graph",
        data=DataConfig(name="cora"),
        model={"name": "gcn"},
        head={"name": "softmax", "bias": False},
        rotate=rotate,
        optimizer=OptimizerConfig(name="adam", lr=0.02, weight_decay=5e-4, head_weight_decay=0.0),
        train=TrainConfig(steps=40, test_every=10, quiet=True),
    )
    if rotate == {"method": "ogd"}:  # the original optimizer for all but the rotation (F.3)
        config.optimizer.name, config.optimizer.others = "ogd", "adam"
        config.optimizer.rotation_lr = 1.0
    outcome = run(config, tmp_path)
    assert outcome.last["accuracy"] > 0.9 and outcome.best["validation_accuracy"] > 0.9
    assert (tmp_path / "folded.safetensors").exists() is (rotate is not None)


class Dense(torch.nn.Module):
    """Dropout takes no sparse tensor."""

    out_features, input_shape = 12, (12,)

    def forward(self, x, adjacency):
        return adjacency @ torch.nn.functional.dropout(x, 0.1, self.training)


def test_only_networks_that_take_sparse_features_get_them(two_communities, tmp_path, monkeypatch):
    words = two_communities.features.clamp(min=0)
    graph = dataclasses.replace(two_communities, features=words.to_sparse())
    monkeypatch.setattr(data, "load", lambda name, root=None, **options: graph)
    seen = []
    forward = torch.nn.Linear.forward
    monkeypatch.setattr(
        torch.nn.Linear, "forward", lambda self, x: seen.append(x.layout) or forward(self, x)
    )
    for model in ({"name": "gcn"}, Dense()):
        config = Config(
            task="graph",
            data=DataConfig(name="cora"),
            model=model,
            head={"name": "softmax", "bias": False},
            train=TrainConfig(steps=3, test_every=3, quiet=True),
        )
        run(config, tmp_path / type(model).__name__)
    assert seen and set(seen) == {torch.sparse_coo}


def assert_resumes_to_the_same(config, folder, half):
    """Stopped at step `half`, it ends with the weights of the whole run in folder/a."""
    steps, config.train.steps = config.train.steps, half
    run(config, folder / "b")
    config.train.steps = steps
    run(config, folder / "b", resume=True)
    names = [folder / d / f"checkpoints/step-{steps:08d}/model.safetensors" for d in "ab"]
    assert names[0].read_bytes() == names[1].read_bytes()


def test_gan_moves_both_players_and_regularizes_the_discriminator(tmp_path):
    config = Config(
        task="gan",
        data=DataConfig(batch_size=16, share=0.1, test_share=0.2, normalize="symmetric"),
        model={"name": "sngan_discriminator", "widths": [4, 8], "image_size": None},
        regularizers={"mhe": {"hidden": 1.0, "output": 0.0}},
        optimizer=OptimizerConfig(name="adam", lr=1e-3, betas=(0.5, 0.999)),
        gan=GanConfig({"name": "sngan_generator", "widths": [8, 4], "features": 6}, samples=20),
        train=TrainConfig(steps=6, test_every=3, log_every=3, checkpoint_every=3, quiet=True),
    )
    run(config, tmp_path / "a")
    lines = [json.loads(x) for x in (tmp_path / "a/metrics.jsonl").read_text().splitlines()]
    assert all("mhe" in x for x in lines if x["split"] == "train")
    tests = [x for x in lines if x["split"] == "test"]
    assert 0 < tests[-1]["generated"] < 1 and 0 < tests[-1]["real"] < 1
    pictures = np.load(tmp_path / "a/samples.npy")
    assert pictures.shape == (64, 1, 8, 8) and pictures.dtype == np.uint8
    # in evaluation mode, of the last weights: none depends on the others of its batch
    generator = load_weights(tmp_path / "a/checkpoints/step-00000006/model.safetensors")
    made = make_sized_model(config.gan.generator, (1,)).eval()
    made.load_state_dict(
        {k.partition(".")[2]: v for k, v in generator.items() if k.startswith("generator.")}
    )
    z = torch.randn(64, 6, generator=torch.Generator().manual_seed(config.seed))
    alone = ((made(z[:1]).clamp(-1, 1) + 1) * 127.5).detach().round()
    assert (alone - torch.from_numpy(pictures[:1])).abs().max() <= 1
    assert_resumes_to_the_same(config, tmp_path, 3)


@pytest.mark.parametrize(
    ("model", "gan", "hooks"),
    [
        ({"spectral": False}, {"gradient_penalty": 10.0}, {}),
        (
            {"spectral": False},
            {"gradient_penalty": 10.0, "loss": "wasserstein", "generator_every": 2},
            {},
        ),
        ({"spectral": False}, {}, {"clip_weights": {"bound": 0.01}}),
        ({"spectral": False, "norm": "layer"}, {}, {}),
        ({"spectral": False, "weight_normalized": True}, {}, {}),
    ],
    ids=["gp", "wgan_gp", "clipping", "layer_norm", "weight_norm"],
)
def test_the_other_gans_of_table_d4(tmp_path, model, gan, hooks):
    config = Config(
        task="gan",
        data=DataConfig(batch_size=16, share=0.1, test_share=0.2, normalize="symmetric"),
        model={"name": "sngan_discriminator", "widths": [4, 8], **model},
        hooks=hooks,
        optimizer=OptimizerConfig(name="adam", lr=1e-3, betas=(0.5, 0.999)),
        gan=GanConfig(
            {"name": "sngan_generator", "widths": [8, 4], "features": 6}, samples=20, **gan
        ),
        train=TrainConfig(steps=4, test_every=2, log_every=2, quiet=True),
    )
    outcome = run(config, tmp_path)
    assert 0 < outcome.last["generated"] < 1
    from hypersphere.training.run.checkpoint import load_weights

    weights = load_weights(tmp_path / "checkpoints/step-00000004/model.safetensors")
    largest = max(v.abs().max() for k, v in weights.items() if k.startswith("discriminator"))
    assert (largest <= 0.010001) == bool(hooks)


def test_a_generator_of_another_size_is_refused(tmp_path):
    config = Config(
        task="gan",
        data=DataConfig(batch_size=16, share=0.1, test_share=0.2, normalize="symmetric"),
        model={"name": "sngan_discriminator", "widths": [4, 8]},
        gan=GanConfig({"name": "sngan_generator", "widths": [8, 4, 4], "features": 6}),
    )
    message = r"makes samples of shape \(1, 16, 16\), those of the data have \(1, 8, 8\)"
    with pytest.raises(ValueError, match=message):
        run(config, tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_an_autoencoder_keeps_what_its_angles_carry(tmp_path):
    config = Config(
        task="reconstruction",
        data=DataConfig(batch_size=64),
        model={"name": "autoencoder", "widths": [16], "features": 16},
        optimizer=OptimizerConfig(name="adam", lr=5e-3),
        train=TrainConfig(steps=150, test_every=75, quiet=True),
    )
    outcome = run(config, tmp_path / "a")
    last = outcome.last
    assert last["loss"] < last["angle_loss"] < last["norm_loss"]  # Fig. 1.1
    pictures = np.load(tmp_path / "a/reconstructions.npy")
    assert pictures.shape == (4, 16, 1, 8, 8) and pictures.dtype == np.uint8
    assert_resumes_to_the_same(config, tmp_path, 75)
    config.model = {"name": "mlp"}
    with pytest.raises(ValueError, match="trains an autoencoder; 'mlp' is none"):
        run(config, tmp_path / "c")
    config.data.normalize = "mean"
    with pytest.raises(ValueError, match=r"pixels of 0\.\.1"):
        run(config, tmp_path / "c")


@pytest.mark.parametrize("name", ["triplet", "center"])
def test_a_metric_loss_alone_trains_the_network(tmp_path, name):
    """`detached`: the head learns from features that do not learn from it."""
    settings = {
        "model": {"name": "mlp", "widths": [16, 8]},
        "head": {"name": "softmax", "detached": True},
        "optimizer": OptimizerConfig(lr=0.05),
    }
    run(small_config(**settings), tmp_path / "none")
    hooks = {"metric_loss": {"name": name, "weight": 1.0, "margin": 0.2}}
    run(small_config(**settings, hooks=hooks), tmp_path / "alone")
    first, trained = load_net(tmp_path / "none"), load_net(tmp_path / "alone")
    torch.manual_seed(0)
    from hypersphere.training.build import make_net

    start = make_net(small_config(**settings), (1, 8, 8), 10)
    for a, b, c in zip(
        start.backbone.parameters(),
        first.backbone.parameters(),
        trained.backbone.parameters(),
        strict=True,
    ):
        assert torch.equal(a, b) and not torch.equal(a, c)
    assert not torch.equal(start.head.weight, first.head.weight)


def test_few_shot_pretrains_and_tests_on_new_classes(monkeypatch, tmp_path):
    whole = data.load("digits")
    split = data.Split(whole.train.only(range(5)), whole.train.only(range(5, 10)), name="digits")
    monkeypatch.setattr(data, "load", lambda name, root=None, **options: split)
    config = Config(
        task="few_shot",
        data=DataConfig(batch_size=32),
        model={"name": "cnn3", "widths": [8, 8, 8], "features": 16},
        optimizer=OptimizerConfig(name="adam", lr=3e-3),
        few_shot=FewShotConfig(["baseline", "baseline++"], episodes=10, epochs=5, queries=5),
        train=TrainConfig(steps=30, test_every=15, quiet=True),
    )
    run(config, tmp_path)
    found = json.loads((tmp_path / "summary.json").read_text())["few_shot"]
    assert found["baseline++"]["accuracy"] > 0.3 and 0 < found["baseline"]["half_width"] < 0.5


def test_few_shot_holds_out_whole_classes(tmp_path):
    """Settings are chosen by episodes of training classes that were left out."""
    split = data.load("digits")
    part = hold_out(split, 0.5, classes=True)
    held = set(part.test.labels.tolist())
    assert len(held) == 5 and not held & set(part.train.labels.tolist())
    assert len(part.train) + len(part.test) == len(split.train)
    config = Config(
        task="few_shot",
        data=DataConfig(batch_size=32, holdout=0.5, share=0.05),
        model={"name": "cnn3", "widths": [8, 8, 8], "features": 16},
        few_shot=FewShotConfig(["baseline"], episodes=3, epochs=2, queries=5),
        train=TrainConfig(steps=3, quiet=True),
    )
    run(config, tmp_path)
    found = json.loads((tmp_path / "summary.json").read_text())
    assert 0 <= found["few_shot"]["baseline"]["accuracy"] <= 1
    # Opened again, it has the same parts: a warning would be an error here.
    again = TrainedRun.open(tmp_path).loaders.split
    assert not set(again.test.labels.tolist()) & set(again.train.labels.tolist())


def test_few_shot_refuses_to_test_on_trained_classes(tmp_path):
    config = Config(task="few_shot", data=DataConfig(batch_size=32), model={"name": "mlp"})
    with pytest.raises(ValueError, match="test part of digits has 10 trained classes .*holdout"):
        run(config, tmp_path)


def test_few_shot_refuses_a_few_trained_classes():
    def part(names):
        images = torch.zeros(2 * len(names), 1, 2, 2, dtype=torch.uint8)
        return ArrayDataset(images, torch.arange(len(names)).repeat(2), names)

    refuse_trained_classes(Split(part(["a", "b", "c"]), part(["d", "e"])))
    with pytest.raises(ValueError, match=r"has 1 trained classes \(b, ...\)"):
        refuse_trained_classes(Split(part(["a", "b", "c"]), part(["b", "d"])))


@pytest.mark.parametrize("lr", [1e21, 1e30])
def test_few_shot_that_diverges_in_the_last_update_is_an_error(tmp_path, lr):
    config = Config(
        task="few_shot",
        data=DataConfig(batch_size=32, holdout=0.5),
        model={"name": "mlp", "widths": [8]},
        optimizer=OptimizerConfig(lr=lr),
        few_shot=FewShotConfig(["nearest_mean"], episodes=3, queries=5),
        train=TrainConfig(steps=1, quiet=True),
    )
    with pytest.raises(NotFinite, match="not finite"):
        run(config, tmp_path)
    assert (tmp_path / "diverged.json").exists()


def test_fine_tuning_starts_from_the_weights_that_fit(tmp_path):
    run(small_config(), tmp_path / "first")
    first = load_net(tmp_path / "first")
    config = small_config(
        head={"name": "a_softmax", "m": 4},
        hooks={"class_energy": {"weight": 1.0}},
        train=TrainConfig(steps=1, quiet=True, init_from=str(tmp_path / "first")),
        optimizer=OptimizerConfig(lr=0.0, momentum=0.0),
    )
    run(config, tmp_path / "second")
    second = load_net(tmp_path / "second")
    for (name, a), b in zip(first.named_parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b), name
    config.train.init_from = str(tmp_path / "first/checkpoints/step-00000012")
    config.model = {"name": "mlp", "widths": [4, 4]}
    config.head = {"name": "softmax"}
    with pytest.raises(ValueError, match="no weight matrix of .* fits the model"):
        run(config, tmp_path / "third")
    assert not (tmp_path / "third").exists()


def test_low_rank_and_initial_weights_by_config(tmp_path):
    from hypersphere.training.build import make_net
    from hypersphere.training.run.checkpoint import load_weights

    config = small_config(
        model={"name": "mlp", "widths": [16, 12]},
        init={"distribution": "xavier", "mean": 0.05},
        low_rank={"rank": 3},
        regularizers={"comhe": {"projection": "bilateral", "dim": 3}},
    )
    run(config, tmp_path)
    net = load_net(tmp_path)
    hidden = net.backbone.layers[0][0]
    assert hidden.parametrizations.weight.original0.shape == (3, 16)
    config.low_rank = None
    plain = make_net(config, (1, 8, 8), 10)
    assert plain.backbone.layers[0][0].weight.mean() > 0.03 > plain.head.weight.mean()
    plain.load_state_dict(load_weights(tmp_path / "folded.safetensors"))
    assert torch.linalg.matrix_rank(plain.backbone.layers[0][0].weight) == 3
    x = torch.rand(4, 1, 8, 8)
    close(plain.eval()(x), net(x), scale=10)


def test_one_set_of_neurons_serves_several_tasks(tmp_path):
    """F.8: a second run keeps the neurons of the first and learns an R of its own."""
    from hypersphere.training.run.checkpoint import load_weights

    rotate = {"method": "cayley", "start": "random"}
    model = {"name": "mlp", "widths": [6, 5]}
    run(small_config(model=model, rotate=rotate), tmp_path / "a")
    config = small_config(model=model, rotate=rotate, head={"name": "softmax"})
    config.train.init_from = str(tmp_path / "a")
    run(config, tmp_path / "b")
    a, b = (
        load_weights(tmp_path / k / "checkpoints/step-00000012/model.safetensors") for k in "ab"
    )
    names = [k for k in a if k.endswith("weight.original")]
    assert names and all(torch.equal(a[k], b[k]) for k in names)
    assert not any(torch.equal(a[k], b[k]) for k in a if k.endswith(".U"))
    # Progressive training: the folded weights are the new neurons.
    config.train.init_from = str(tmp_path / "a/folded.safetensors")
    config.rotate = {"method": "cayley", "start": "identity"}
    config.optimizer = OptimizerConfig(lr=0.0, momentum=0.0)
    run(config, tmp_path / "c")
    first, third = load_net(tmp_path / "a"), load_net(tmp_path / "c")
    x = torch.rand(4, 1, 8, 8)
    close(first.features(x), third.features(x), scale=10)


def test_folded_weights_are_those_of_a_plain_network(tmp_path):
    from hypersphere.training.build import make_net
    from hypersphere.training.run.checkpoint import load_weights

    config = small_config(
        model={"name": "mlp", "widths": [6, 5]}, rotate={"method": "cayley"}, hooks={}
    )
    run(config, tmp_path)
    rotated = load_net(tmp_path, tmp_path / "checkpoints/step-00000012")
    config.rotate = None
    plain = make_net(config, (1, 8, 8), 10)
    plain.load_state_dict(load_weights(tmp_path / "folded.safetensors"))
    x = torch.rand(4, 1, 8, 8)
    close(plain.eval()(x), rotated(x), scale=10)


CONFIG = """
data: {name: digits, batch_size: 32, share: 0.2, test_share: 0.3}
model: {name: mlp, widths: [8, 8]}
optimizer: {lr: 0.05}
train: {steps: 8, quiet: true}
thesis: {source: Table 0, row: a, metric: accuracy, value: 50.0, also: {top5_error: 12.5}}
variants: {a_softmax: {head: {name: a_softmax, m: 2}}}
"""


def test_top5_error_is_that_of_the_evaluation(tmp_path):
    """In every test of a run with more than five classes, and as a direct count gives it."""
    run(small_config(), tmp_path)
    lines = [json.loads(x) for x in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    tests = [x for x in lines if x["split"] == "test"]
    assert tests and all(0 <= x["top5_error"] <= x["error"] for x in tests)
    last = json.loads((tmp_path / "summary.json").read_text())["last"]
    assert last["top5_error"] == tests[-1]["top5_error"]
    from hypersphere.training.build import make_loaders

    loader = make_loaders(small_config().data, 0).test
    net, wrong, count = load_net(tmp_path), 0, 0
    for x, y in loader:
        scores = net(x)
        above = (scores > scores.gather(1, y[:, None])).sum(1)
        wrong, count = wrong + int((above >= 5).sum()), count + len(y)
    assert last["top5_error"] == pytest.approx(wrong / count)


def test_few_classes_have_no_top5_error():
    from types import SimpleNamespace

    from hypersphere import heads, models
    from hypersphere.training.tasks.classification import Classification

    net = models.Classifier(
        models.create("mlp", widths=(4,), image_size=2), heads.SoftmaxHead(4, 5)
    )
    fabric = SimpleNamespace(device="cpu", world_size=1, autocast=torch.no_grad)
    batch = (torch.rand(6, 1, 2, 2), torch.arange(6) % 5)
    found = Classification(net, None, None, [batch], fabric).test()
    assert set(found) == {"loss", "accuracy", "error"}


def test_sweep_by_cross_validation(tmp_path, capsys, monkeypatch):
    from hypersphere.commands import sweep

    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(CONFIG)
    command = ["c.yaml", "--trials", "2", "--folds", "2", "--search", "optimizer.lr=1e-3:1e-1:log"]
    assert sweep.main([*command, "--search", "head.name=softmax,a_softmax"]) == 0
    assert "best accuracy" in capsys.readouterr().out
    best = json.loads((tmp_path / "runs/sweep-c/best.json").read_text())
    assert set(best["parameters"]) == {"optimizer.lr", "head.name"}
    assert (tmp_path / "runs/sweep-c/sweep.db").exists()
    assert sweep.main(["c.yaml", "--search", "optimizer.lrr=1:2"]) == 2
    assert "did you mean 'optimizer.lr'?" in capsys.readouterr().err
    assert sweep.main(["c.yaml", "--search", "optimizer.lr=what"]) == 2


def test_folds_are_stratified_and_cover_everything():
    from hypersphere.training.crossval import fold_parts

    labels = torch.arange(60) % 3
    parts = fold_parts(labels, 4)
    assert torch.cat(parts).sort().values.tolist() == list(range(60))
    assert all(torch.bincount(labels[p]).tolist() == [5, 5, 5] for p in parts)
    with pytest.raises(ValueError, match="folds must be at least 2"):
        fold_parts(labels, 1)


def test_imbalance_and_shares_reach_the_loader():
    from hypersphere.training.build import make_loaders

    loaders = make_loaders(DataConfig(imbalance="single"), 0)
    counts = loaders.split.train.counts()
    assert counts[0] < counts[1] / 5
    half = make_loaders(DataConfig(share=0.5), 0)
    assert abs(len(half.split.train) - 674) < 8
