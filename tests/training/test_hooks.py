"""Hooks: each does to the model or the loss what its equation says."""

import json
from types import SimpleNamespace

import pytest
import torch
from small_run import run as train_small
from small_run import small_config
from torch import nn

from hypersphere import heads, layers, models, regularizers
from hypersphere.training import Settings, TrainConfig, make_optimizer, parameter_groups
from hypersphere.training.adversarial import AdversarialExamples
from hypersphere.training.hooks import (
    Anneal,
    ClassEnergyTerm,
    OrthogonalityTerm,
    ProjectWeights,
    Regularize,
    WeightGradients,
)
from hypersphere.training.metric_losses import MetricLossTerm
from hypersphere.training.monitors import Monitor, layer_angles, layer_energies
from hypersphere.training.tasks.gan_penalties import ClipWeights, gradient_penalty
from hypersphere.training.watch_head import WatchHead
from tolerances import close


def a_run(step=0, operator="sphere", **extra):
    backbone = models.create("mlp", in_channels=1, image_size=4, widths=(6, 5), operator=operator)
    net = models.Classifier(backbone, heads.ASoftmaxHead(5, 3, m=4))
    fabric = SimpleNamespace(world_size=1)

    def record(step, split, values, **notes):
        made.folder.log(step=step, **notes, split=split, **values)

    parts = {"model": net, "settings": Settings(10), "fabric": fabric, "task": None}
    made = SimpleNamespace(step=step, record=record, **parts, **extra)
    return made


def test_a_head_that_cannot_learn_says_so_at_the_first_log_line(tmp_path, capsys):
    for name, scale in (("stuck", 1.0), ("fine", 16.0)):
        config = small_config(
            head={"name": "s_softmax", "scale": scale},
            train=TrainConfig(steps=8, log_every=4, test_every=8),
        )
        train_small(config, tmp_path / name)
    said = capsys.readouterr().err
    assert said.count("diagnosis at step 4: the scale 1 is too small for 10 classes") == 1
    assert "diagnosis at step 8" not in said  # once
    record = json.loads((tmp_path / "stuck" / "diagnosis.json").read_text())
    assert record["step"] == 4 and record["advice"][0].startswith("the scale 1 is too small")
    assert not (tmp_path / "fine" / "diagnosis.json").exists()


def test_features_that_shrink_are_told_at_the_first_log_line(tmp_path):
    watch, notes = WatchHead(), []
    folder = SimpleNamespace(json=lambda name, content: None)
    made = a_run(notes=notes, folder=folder)
    made.settings.log_every = 5
    features, labels = 3 * torch.randn(30, 5), torch.arange(30) % 3
    for step, length in enumerate((1.0, 0.8, 0.6, 0.4, 0.3)):
        made.step = step
        watch.terms(made, (None, labels), length * features, True)
    assert not notes
    made.step = 5
    watch.log(made)
    assert len(notes) == 1 and notes[0].startswith("diagnosis at step 5: the features shrink"), (
        notes
    )


def test_each_kind_of_advice_is_said_once(monkeypatch):
    """Its numbers made a new text of it at each log line."""
    from hypersphere.training import watch_head

    texts = iter(
        ["without margin the loss is 2.31 at 20 %", "without margin the loss is 1.9 at 4 %"]
    )
    found = lambda *_, **__: SimpleNamespace(advice=[next(texts)])  # noqa: E731
    monkeypatch.setattr(watch_head, "diagnose", found)
    watch, made = WatchHead(), a_run(notes=[], folder=SimpleNamespace(json=lambda *_: None))
    for made.step in (40, 50):
        watch.batch = torch.randn(3, 5), torch.arange(3)
        watch.log(made)
    assert len(made.notes) == 1


def batch(n=8):
    return torch.rand(n, 1, 4, 4), torch.arange(n) % 3


def test_annealing_moves_once_per_update():
    run = a_run()
    hook = Anneal()
    assert hook.log(run) == {}
    run.model.head.annealing = heads.LambdaAnnealing(base=100.0, gamma=1.0, power=1.0, minimum=0.0)
    hook.after_update(run)
    assert hook.log(run) == {"lambda": 50.0}


def test_margin_schedules_move_once_per_update():
    run = a_run()
    run.model.head = heads.ArcFaceHead(5, 3, m=heads.MarginSchedule(0.0, 0.4, steps=4))
    hook = Anneal()
    hook.start(run)
    hook.after_update(run)
    assert hook.log(run) == {"margin": pytest.approx(0.1)}


def test_projection_every_n_updates():
    run = a_run(step=0)
    hook = ProjectWeights(every=2, radius=3.0)
    layer = next(m for m in run.model.modules() if isinstance(m, layers.DecoupledLinear))
    for step, wanted in ((0, False), (1, True)):
        layer.weight.data.mul_(2.0)
        run.step = step
        hook.after_update(run)
        lengths = layer.weight.norm(dim=1)
        assert bool(torch.allclose(lengths, torch.full_like(lengths, 3.0), atol=1e-5)) is wanted


def test_weighted_gradients_multiply_by_the_length():
    run, hook = a_run(), WeightGradients()
    layer = next(m for m in run.model.modules() if isinstance(m, layers.DecoupledLinear))
    fixed = batch()

    def gradient():
        run.model.zero_grad()
        run.model.loss(*fixed).backward()
        return layer.weight.grad.clone()

    plain = gradient()
    hook.start(run)
    lengths = layer.weight.detach().norm(dim=1, keepdim=True)
    torch.testing.assert_close(gradient(), plain * lengths)
    hook.finish(run)
    torch.testing.assert_close(gradient(), plain)


def test_regularizer_has_its_own_schedule_and_state():
    run = a_run()
    reg = regularizers.MHE()
    hook = Regularize("mhe", reg, begin=5, ramp=2)
    assert hook.terms(run, None, None, True) == {}
    run.step = 5
    half = hook.terms(run, None, None, True)["mhe"]
    run.step = 6
    torch.testing.assert_close(hook.terms(run, None, None, True)["mhe"], 2 * half)
    assert hook.terms(run, None, None, final=False) == {}
    other = Regularize("comhe", regularizers.CoMHE(dim=3, count=1))
    wide = SimpleNamespace(
        model=nn.Sequential(nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 2)), step=0
    )
    other.terms(wide, None, None, True)
    saved = other.state_dict()
    values = [other.terms(wide, None, None, True)["comhe"].item() for _ in range(2)]
    other.load_state_dict(saved)
    assert other.terms(wide, None, None, True)["comhe"].item() == values[0] != values[1]


def test_class_energy_is_eq_5_8():
    run, hook = a_run(), ClassEnergyTerm(weight=0.5)
    y = batch()[1]
    wanted = regularizers.ClassEnergy(weight=0.5)(run.model.head.weight, y)
    assert torch.equal(hook.terms(run, (None, y), None, True)["class_energy"], wanted)


def test_orthogonality_term_counts_the_error():
    from hypersphere.orthogonal import rotate

    run = a_run(operator=None)
    rotate(run.model, method="regularized")
    hook = OrthogonalityTerm(weight=2.0)
    value = hook.terms(run, None, None, True)["orthogonality"].item()
    assert value == pytest.approx(0.0, abs=1e-5)
    rotation = next(p for n, p in run.model.named_parameters() if n.endswith(".U"))
    rotation.data.mul_(2.0)
    assert float(hook.terms(run, None, None, True)["orthogonality"].detach()) > 1.0


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_fgsm_moves_by_eps_raises_the_loss_and_stays_in_range(share):
    run = a_run()
    run.model.train()
    x, y = batch(16)
    attacked, _ = AdversarialExamples(eps=8.0, share=share).change_batch(run, (x, y))
    moved = (attacked - x).abs()
    count = round(16 * share)
    assert float(moved[:count].max()) <= 8 / 255 + 1e-6
    assert share == 1.0 or float(moved[count:].max()) == 0.0
    assert float(attacked.min()) >= 0.0 and float(attacked.max()) <= 1.0
    assert run.model.training
    run.model.eval()
    with torch.no_grad():
        assert run.model.loss(attacked, y) > run.model.loss(x, y)


def test_fgsm_is_that_of_the_evaluation_and_knows_the_normalization():
    from hypersphere.evaluation import attack
    from hypersphere.evaluation.robustness.attacks import training_loss

    run = a_run()
    run.task = SimpleNamespace(normalize=SimpleNamespace(mean=0.5, std=0.25))
    x, y = (torch.rand(8, 1, 4, 4) - 0.5) / 0.25, batch()[1]
    attacked, _ = AdversarialExamples(eps=8.0).change_batch(run, (x, y))
    assert float((attacked - x).abs().max()) <= 8 / 255 / 0.25 + 1e-5
    options = {"normalize": run.task.normalize, "loss": training_loss}
    assert torch.equal(attacked, attack(run.model, x, y, "fgsm", 8 / 255, **options))
    assert all(p.requires_grad and p.grad is None for p in run.model.parameters())


def test_weights_are_clipped_and_gradients_penalized():
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    x, y = torch.rand(2, 6, 1, 2, 2).double()
    torch.manual_seed(3)
    value = gradient_penalty(net, x, y)
    torch.manual_seed(3)
    share = torch.rand(6, 1, 1, 1, dtype=torch.float64)
    lengths = []
    for u in share * x + (1 - share) * y:  # straight from the formula, a picture at a time
        h = net[1](u.flatten()).tanh()
        lengths.append((net[3].weight[0] * (1 - h * h) @ net[1].weight).norm())
    torch.testing.assert_close(value, (torch.stack(lengths) - 1).square().mean())
    value.backward()  # through the gradient
    assert net[1].weight.grad.abs().sum() > 0
    ClipWeights(0.1).after_update(SimpleNamespace(model=net))
    assert max(p.abs().max().item() for p in net.parameters()) == pytest.approx(0.1)


@pytest.mark.parametrize("name", ["contrastive", "triplet", "center"])
def test_metric_losses_pull_classes_together(name):
    run, (_, y) = a_run(), batch(12)
    hook = MetricLossTerm(name, weight=1.0, margin=0.3)
    features = torch.randn(12, 5, requires_grad=True)
    optimizer = torch.optim.SGD([features], lr=0.5)
    first = None
    for _ in range(30):
        optimizer.zero_grad()
        loss = hook.terms(run, (features, y), features, True)[name]
        first = float(loss.detach()) if first is None else first
        loss.backward()
        optimizer.step()
        hook.after_update(run)
    assert float(loss.detach()) < first
    again = MetricLossTerm(name, weight=1.0, margin=0.3)
    again.load_state_dict(hook.state_dict())
    assert (again.centers is None) == (name != "center")


def test_monitor_writes_energies_and_angles(tmp_path):
    from hypersphere import functional as HF
    from hypersphere.training import RunFolder

    run = a_run(operator=None)
    run.folder = RunFolder(tmp_path)
    monitor = Monitor(every=2)
    monitor.start(run)
    run.folder.close()
    (line,) = run.folder.read()
    assert line["split"] == "monitor" and set(line["energy"]) == set(line["angle"])
    name = next(iter(line["energy"]))
    weight = dict(run.model.named_modules())[name].weight
    assert line["energy"][name] == pytest.approx(float(HF.hyperspherical_energy(weight.detach())))
    assert (
        set(layer_energies(run.model)) == set(layer_angles(run.model)) and "head" in line["energy"]
    )


def test_weight_decay_spares_what_is_no_neuron():
    from hypersphere.orthogonal import rotate

    net = models.Classifier(
        models.create(
            "cnn3", in_channels=1, image_size=8, widths=(4, 4, 4), features=4, operator="tanh"
        ),
        heads.SSoftmaxHead(4, 3, learn_scale=True),
    )
    groups = parameter_groups(net, weight_decay=5e-4, head_weight_decay=1e-3)
    decay = {id(p): g["weight_decay"] for g in groups for p in g["params"]}
    named = dict(net.named_parameters())
    assert len(decay) == len(named)
    assert decay[id(net.head.weight)] == 1e-3 and decay[id(net.head.log_scale)] == 0
    radii = [n for n in named if n.endswith(".raw")]
    assert radii and all(decay[id(named[n])] == 0 for n in radii)
    rotate(
        net := models.Classifier(
            models.create("mlp", in_channels=1, image_size=4, widths=(4, 4)), nn.Linear(4, 2)
        )
    )
    groups = parameter_groups(net, weight_decay=5e-4, rotation_lr=0.01)
    assert [g.get("lr") for g in groups] == [None, 0.01] and groups[1]["weight_decay"] == 0


@pytest.mark.parametrize(
    ("method", "decayed"), [("none", 5e-4), ("regularized", 5e-4), ("cayley", 0.0)]
)
def test_weight_decay_of_unconstrained_rotations(method, decayed):
    from hypersphere.orthogonal import rotate

    net = rotate(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), method=method)
    rotation = next(p for n, p in net.named_parameters() if n.endswith(".U"))
    for wanted, yes in ((0.0, False), (decayed, True)):
        groups = parameter_groups(net, 5e-4, rotation_lr=0.01, decay_rotations=yes)
        (group,) = (g for g in groups if any(p is rotation for p in g["params"]))
        assert group["weight_decay"] == wanted and group["lr"] == 0.01


@pytest.mark.parametrize("others", ["adam", "adamw"])
def test_ogd_beside_adam_is_each_of_them(others):
    """The matrices move as under OGD alone, everything else as under Adam alone; and resumes."""
    from hypersphere.orthogonal import orthogonality_error, rotate

    torch.manual_seed(0)
    first = rotate(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), method="ogd")
    state = first.state_dict()
    x = torch.randn(20, 6)

    def trained(steps, resumed=None, **options):
        net = rotate(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), method="ogd")
        net.load_state_dict(state if resumed is None else resumed[0])
        optimizer = make_optimizer(net, "ogd", 0.02, weight_decay=0.1, **options)
        if resumed is not None:
            optimizer.load_state_dict(resumed[1])
        for _ in range(steps):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
        return net, optimizer

    both, _ = trained(1, others=others, rotation_lr=0.5)
    ogd, _ = trained(1, rotation_lr=0.5)
    named = dict(ogd.named_parameters())
    rotated = [n for n in named if n.endswith(".U")]
    close(both.get_parameter(rotated[0]), named[rotated[0]])
    assert orthogonality_error(trained(30, others=others)[0]) < 1e-5
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[others]
    plain = rotate(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), method="ogd")
    plain.load_state_dict(state)
    optimizer = kind([p for n, p in plain.named_parameters() if n not in rotated], 0.02)
    optimizer.param_groups[0]["weight_decay"] = 0.1
    plain(x).square().mean().backward()
    optimizer.step()
    for name, p in plain.named_parameters():
        if name not in rotated:
            torch.testing.assert_close(both.get_parameter(name), p)
    half = trained(2, others=others)
    again, _ = trained(2, (half[0].state_dict(), half[1].state_dict()), others=others)
    whole, _ = trained(4, others=others)
    assert all(
        torch.equal(a, b) for a, b in zip(again.parameters(), whole.parameters(), strict=True)
    )


def test_nesterov_reaches_ogd():
    from hypersphere.orthogonal import rotate

    net = rotate(nn.Linear(3, 3), method="ogd", skip=())
    assert make_optimizer(net, "ogd", nesterov=True).param_groups[0]["nesterov"] is True


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw", "ogd"])
def test_every_optimizer_descends(name):
    from hypersphere.orthogonal import rotate

    net = models.Classifier(
        models.create("mlp", in_channels=1, image_size=4, widths=(6, 5)), nn.Linear(5, 3)
    )
    if name == "ogd":
        rotate(net, method="ogd")
    optimizer = make_optimizer(net, name, lr=0.02)
    x, y = batch(32)
    losses = []
    for _ in range(25):
        optimizer.zero_grad()
        loss = net.loss(x, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    with pytest.raises(
        ValueError, match=r"unknown optimizer 'lion' \(known: sgd, adam, adamw, ogd\)"
    ):
        make_optimizer(net, "lion")


def test_hooks_summarize_what_they_measured(tmp_path):
    """The energy's change, and the accuracy under attack, stand in summary.json."""
    from hypersphere.commands._comparison import metric_value
    from hypersphere.training.config import Config
    from hypersphere.training.job import train

    config = Config(
        data={"name": "digits", "share": 0.3, "test_share": 0.3, "batch_size": 32},
        model={"name": "mlp", "widths": [8]},
        hooks={"monitor": {"every": 3}, "attacked_test": {"samples": 50, "steps": 3, "eps": 64.0}},
        train={"steps": 30, "quiet": True},
        run={"report": False},
    )
    train(config, tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    lines = [json.loads(x) for x in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    energies = [sum(x["energy"].values()) / len(x["energy"]) for x in lines if "angle" in x]
    assert summary["measured"]["energy_change"] == pytest.approx(energies[-1] / energies[0] - 1)
    hidden = [[e for k, e in x["energy"].items() if k != "head"] for x in lines if "angle" in x]
    change = sum(hidden[-1]) / sum(hidden[0]) - 1
    assert hidden[0] and summary["measured"]["hidden_energy_change"] == pytest.approx(change)
    clean = metric_value(summary, "last", "accuracy", "run")
    fgsm, bim = (
        metric_value(summary, "last", f"{name}_accuracy", "run") for name in ("fgsm", "bim")
    )
    assert 0 <= fgsm < clean and 0 <= bim < clean
