"""The loop: what it computes, what it records, and how it stops."""

import json
import signal

import pytest
import torch
from small_run import run, small_config
from torch import nn

from hypersphere import models
from hypersphere.data import ArrayDataset, BatchLoader
from hypersphere.training import (
    Classification,
    ClassifierLoss,
    NotFinite,
    Player,
    RunFolder,
    Settings,
    fit,
    make_fabric,
    make_optimizer,
    schedules,
)
from hypersphere.training.config import TrainConfig
from hypersphere.training.progress import Progress
from tolerances import close


@pytest.fixture(scope="module")
def fabric():
    return make_fabric(accelerator="cpu", devices=1)


def tiny_task(fabric, lr=0.1, samples=64, batch=16, optimizer="sgd"):
    torch.manual_seed(0)
    x = torch.randn(samples, 1, 2, 2)
    data = ArrayDataset(x, (x.mean((1, 2, 3)) > 0).long(), ["a", "b"])
    net = models.Classifier(
        models.create("mlp", in_channels=1, image_size=2, widths=(4, 4)), nn.Linear(4, 2)
    )
    module = fabric.setup_module(ClassifierLoss(net))
    made = make_optimizer(net, optimizer, lr=lr)
    player = Player(
        module, fabric.setup_optimizers(made), schedules.LearningRate(made, schedules.constant())
    )
    loader = BatchLoader(data, batch, normalize=None, drop_last=True)
    return Classification(
        net, player, loader, BatchLoader(data, 64, normalize=None, shuffle=False), fabric
    )


def fit_tiny(fabric, folder, task=None, hooks=(), **settings):
    task = task or tiny_task(fabric)
    settings = {"steps": 6, "quiet": True, "log_every": 2, **settings}
    return fit(task, RunFolder(folder), fabric, Settings(**settings), hooks)


def test_equal_to_a_bare_loop(fabric, tmp_path):
    task = tiny_task(fabric)
    twin = tiny_task(fabric)
    fit_tiny(fabric, tmp_path, task)
    optimizer = torch.optim.SGD(twin.model.parameters(), lr=0.1, momentum=0.9)
    batches = twin.batches()
    twin.model.train()
    for _ in range(6):
        x, y = next(batches)
        optimizer.zero_grad()
        twin.model.loss(x, y).backward()
        optimizer.step()
    close(list(task.model.parameters()), list(twin.model.parameters()))


def test_accumulated_parts_give_the_gradient_of_the_batch(fabric, tmp_path):
    """The MLP's BatchNorm would see parts; without it, 4 parts are the batch."""
    found = []
    for parts in (1, 4):
        task = tiny_task(fabric)
        for module in task.model.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.eval()
                module.train = lambda mode=True: None
        fit_tiny(fabric, tmp_path / str(parts), task, accumulate=parts)
        found.append(torch.cat([p.flatten() for p in task.model.parameters()]))
    close(found[0], found[1])


def test_clipping_bounds_the_update(fabric, tmp_path):
    class Norms:
        def __init__(self):
            self.seen = []

        def after_update(self, run):
            self.seen.append(
                float(torch.cat([p.grad.flatten() for p in run.model.parameters()]).norm())
            )

    norms = Norms()
    fit_tiny(fabric, tmp_path, hooks=[norms], clip=0.01)
    assert max(norms.seen) <= 0.01 * (1 + 1e-4)


def test_hooks_are_called_in_order(fabric, tmp_path):
    calls = []

    class Spy:
        def __getattr__(self, name):
            if name.startswith("_") or name in ("state_dict", "load_state_dict"):
                raise AttributeError(name)

            def method(run, *arguments):
                calls.append(name)
                return {
                    "change_batch": arguments[0] if arguments else None,
                    "terms": {},
                    "log": {},
                }.get(name)

            return method

    fit_tiny(fabric, tmp_path, hooks=[Spy()], steps=2)
    step = ["change_batch", "terms", "before_update", "after_update"]
    # A test after each step and a line of training at the end, each shown once it is written.
    assert calls == ["start", *step, "logged", *step, "log", "logged", "logged", "finish"]


def test_record_of_a_run(fabric, tmp_path):
    fit_tiny(fabric, tmp_path, test_every=3)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [x["step"] for x in lines if x["split"] == "train"] == [2, 4, 6]
    assert [x["step"] for x in lines if x["split"] == "test"] == [3, 6]
    assert {"loss", "accuracy", "lr", "time"} <= set(lines[0])
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["last"]["step"] == 6
    assert summary["best"]["accuracy"] >= summary["last"]["accuracy"]
    assert (tmp_path / "checkpoints" / "best" / "model.safetensors").exists()


@pytest.mark.parametrize("where", ["hidden.0", "head"])
def test_nan_names_the_layer_that_went_bad_first(fabric, tmp_path, where):
    task = tiny_task(fabric)

    class Poison:
        def after_update(self, run):
            if run.step == 2:
                layers = {n: m for n, m in run.model.named_modules() if isinstance(m, nn.Linear)}
                self.name = list(layers)[0 if where == "hidden.0" else -1]
                layers[self.name].register_forward_hook(lambda m, i, o: o * float("nan"))

    poison = Poison()
    with pytest.raises(NotFinite, match="not finite at step 3") as error:
        fit_tiny(fabric, tmp_path, task, hooks=[poison])
    assert f"'{poison.name}' (Linear)" in str(error.value)


def test_nan_weights_batches_and_terms_are_told_apart(fabric, tmp_path):
    class Weights:
        def after_update(self, run):
            next(run.model.parameters()).data.fill_(float("inf"))

    with pytest.raises(NotFinite, match="went bad in the update before"):
        fit_tiny(fabric, tmp_path, hooks=[Weights()])

    class Batch:
        def change_batch(self, run, batch):
            return (batch[0] * float("nan"), batch[1])

    with pytest.raises(NotFinite, match="the batch itself holds NaN"):
        fit_tiny(fabric, tmp_path, hooks=[Batch()])

    class Term:
        def terms(self, run, batch, outputs, final):
            return {"energy": torch.tensor(float("inf"))}

    with pytest.raises(NotFinite, match="the term 'energy' went bad"):
        fit_tiny(fabric, tmp_path, hooks=[Term()])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_save_and_stop_and_resume_goes_on(fabric, tmp_path, number):
    class Signal:
        def after_update(self, run):
            if run.step == 2 and run.folder.path.name != "whole":
                signal.raise_signal(number)

    whole = tiny_task(fabric)
    fit_tiny(fabric, tmp_path / "whole", whole, hooks=[Signal()])
    task = tiny_task(fabric)
    stopped = fit_tiny(fabric, tmp_path / "run", task, hooks=[Signal()])
    assert stopped.interrupted == number and stopped.step == 3
    again = tiny_task(fabric)
    fit(
        again,
        RunFolder(tmp_path / "run"),
        fabric,
        Settings(6, log_every=2, quiet=True),
        [Signal()],
        True,
    )
    for a, b in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)
    lines = [(tmp_path / d / "metrics.jsonl").read_text().splitlines() for d in ("whole", "run")]
    drop_time = [[{**json.loads(x), "time": 0} for x in part] for part in lines]
    assert drop_time[0] == drop_time[1]


def test_a_failing_write_stops_with_the_last_checkpoint_whole(fabric, tmp_path):
    import resource

    from hypersphere.training.run.checkpoint import RunError, newest_checkpoint

    class Limit:
        def after_update(self, run):
            if run.step == 3:
                resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises(RunError, match="limit was reached"):
            fit_tiny(fabric, tmp_path, hooks=[Limit()], checkpoint_every=1, test_every=100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert newest_checkpoint(tmp_path / "checkpoints")[0] == 3


def test_whole_run_from_a_config(tmp_path):
    outcome = run(small_config(), tmp_path)
    details = json.loads((tmp_path / "run.json").read_text())
    assert details["seed"] == 0 and details["versions"]["torch"] == torch.__version__
    assert details["hardware"]["cores"] >= 1 and details["config"]["head"]["m"] == 4
    assert outcome.last["step"] == 12 and (tmp_path / "features.npz").exists()
    lines = [json.loads(x) for x in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    lambdas = [x["lambda"] for x in lines if x["split"] == "train"]
    assert lambdas == sorted(lambdas, reverse=True) and lambdas[0] < 50


def test_resume_refuses_other_settings_and_records_what_may_change(tmp_path, capsys):
    import json

    import yaml

    from hypersphere.commands import train as command

    folder = tmp_path / "a"
    words = ["--run.folder", str(folder), "--run.report", "false", "--train.quiet", "true"]
    words += ["--baseline", "false"]
    words += ["--data.share", "0.2", "--model.widths", "[4,4,4]", "--data.options", "{copies: 1}"]
    assert command.main([*words, "--train.steps", "3"]) == 0
    record, text = (folder / "run.json").read_text(), (folder / "config.yaml").read_text()
    capsys.readouterr()
    resume = ["--resume", str(folder)]
    assert command.main([*resume, "--head.m", "3", "--optimizer.lr", ".3"]) == 1
    said = capsys.readouterr().err
    assert "head.m 4 (not 3)" in said and "optimizer.lr 0.05 (not 0.3)" in said
    assert "without --resume" in said and said.count("\n") == 1
    assert command.main([*resume, "--train.steps", "2"]) == 1
    assert "is at step 3, beyond the 2" in capsys.readouterr().err
    assert (folder / "run.json").read_text() == record
    assert (folder / "config.yaml").read_text() == text
    assert command.main([*resume, "--train.steps", "5", "--train.log_every", "1"]) == 0
    said = capsys.readouterr().out
    assert "train.steps 3 -> 5" in said and "resumed at step 3" in said
    assert "run.folder" not in said  # where the run is, is no change
    record = json.loads((folder / "run.json").read_text())
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert record["config"]["train"]["steps"] == config["train"]["steps"] == 5
    changed = record["changes"][0]["changed"]
    assert changed == {"train.steps": [3, 5], "train.log_every": [20, 1]}
    assert json.loads((folder / "summary.json").read_text())["last"]["step"] == 5


def test_a_config_that_was_changed_after_the_run_wrote_it_is_not_resumed(tmp_path, capsys):
    """Cut in the middle, config.yaml is still a config: that of another run."""
    from hypersphere.commands import train as command

    folder = tmp_path / "a"
    words = ["--run.folder", str(folder), "--run.report", "false", "--train.quiet", "true"]
    words += ["--baseline", "false"]
    words += ["--data.share", "0.2", "--model.widths", "[4,4,4]", "--data.options", "{copies: 1}"]
    assert command.main([*words, "--train.steps", "3"]) == 0
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(text.partition("train:")[0])
    capsys.readouterr()
    assert command.main(["--resume", str(folder)]) == 1
    assert "config.yaml is damaged or was changed" in capsys.readouterr().err
    (folder / "config.yaml").write_text(text)
    assert command.main(["--resume", str(folder), "--train.steps", "4"]) == 0
    # Killed between run.json and config.yaml, the earlier text is one of the run's own.
    (folder / "config.yaml").write_text(text)
    assert command.main(["--resume", str(folder), "--train.steps", "5"]) == 0


def test_a_run_goes_on_for_another_row_of_a_table(tmp_path):
    """Two claims may ask for the same run: what the text prints beside it changes no number."""
    quoted = {"source": "Table 2.8", "row": "m=4", "value": 95.0}
    config = small_config(train=TrainConfig(steps=2, quiet=True), dissertation=quoted)
    run(config, tmp_path / "run")
    again = small_config(
        train=TrainConfig(steps=4, quiet=True), dissertation={**quoted, "source": "Table 2.9"}
    )
    run(again, tmp_path / "run", resume=True)
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["config"]["dissertation"]["source"] == "Table 2.9"


def test_resumed_after_damage_is_the_uninterrupted_run(tmp_path, capsys):
    """12 steps in one go, against 8, a damaged newest checkpoint, and on from 6."""
    run(small_config(), tmp_path / "whole")
    train_to = TrainConfig(steps=8, log_every=4, test_every=4, checkpoint_every=2, quiet=True)
    run(small_config(train=train_to), tmp_path / "cut")
    newest = tmp_path / "cut/checkpoints/step-00000008/state.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    run(small_config(), tmp_path / "cut", resume=True)
    said = capsys.readouterr().out
    assert "step-00000008" in said and "resumed at step 6" in said
    final = "checkpoints/step-00000012/"
    for name in ("model.safetensors", "state.safetensors"):
        assert (tmp_path / "whole" / final / name).read_bytes() == (
            tmp_path / "cut" / final / name
        ).read_bytes()


def test_plain_lines_and_bar():
    import io

    stream = io.StringIO()
    progress = Progress(10, stream=stream, interval=0.0)
    progress.update(5, 50, {"loss": 0.5, "accuracy": 0.25, "energy": 1.5})
    assert "step 5/10  loss 0.5000  accuracy 25.00%  energy 1.5000" in stream.getvalue()
    assert "samples/s" in stream.getvalue() and "left" in stream.getvalue()

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    bar = Progress(10, stream=(terminal := Terminal()))
    bar.interval = 0.0
    bar.update(5, 50, {"loss": 0.5})
    assert "[####----] step 5/10" in terminal.getvalue().replace("\033[32m", "").replace(
        "\033[0m", ""
    )
