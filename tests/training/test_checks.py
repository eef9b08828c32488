"""What can be known from a config alone is said before any data are read."""

import subprocess
import sys
from pathlib import Path

import pytest

from hypersphere import cli, registry
from hypersphere.commands import _config
from hypersphere.commands._overrides import read_overrides
from hypersphere.commands._unused import refuse_unused_options
from hypersphere.training.checks import check_settings

ROOT = Path(__file__).parents[2]
WRONG = {
    "--head.m -1": "head: a multiplicative margin needs m >= 1",
    "--head.name arcface --head.m 9": "did you mean radians(9)",
    "--head.name arcface --head.scale -3": "head: scale is",
    "--head.annealing.base -4": "head.annealing: LambdaAnnealing expects base >= 0",
    "--model.widths [0,1,2]": "model.widths must be a whole number >= 1",
    "--model.widths [16,a,16]": "model.widths must be a whole number >= 1; got 'a'",
    "--model.widths [1:30,16,16]": "model.widths: 1:30 is no number",
    "--optimizer.lr 1:30": "optimizer.lr: 1:30 is no number",
    "--model.widths [16]": "model: widths gives one number of filters per stage",
    "--model.features 0": "model.features must be a whole number >= 1",
    "--model.operator foo": "model: unknown operator 'foo'",
    "--model.operator sphere --model.angular foo": "model: unknown angular activation 'foo'",
    "--model.norm foo": "model: unknown norm 'foo'",
    "--regularizers.mhe.s -3": "regularizers.mhe: s must be a finite number >= 0",
    "--regularizers.comhe.projection foo": "regularizers.comhe: projection must be one of",
    "--hooks.wandb.mode foo": "hooks.wandb: wandb.mode must be",
    "--rotate.method foo": "rotate: unknown method 'foo'",
    "--rotate.blocks 0": "rotate: blocks must be at least 1",
    "--rotate.refine foo": "rotate: ",
    "--rotate.method ogd": "rotate.method=ogd learns matrices that only optimizer.name=ogd",
    "--head.m 1e20": "head: a multiplicative margin needs m >= 1 (1 is no margin) and < 1000",
    "--head.name l_softmax --head.m 1e20": "head: a multiplicative margin needs m >= 1",
    "--head.name am_softmax --head.m 1e20": "head: an additive cosine margin needs m >= 0 and <",
    "--head.name arcface --head.scale 1e20": "head: scale is None for |x|, or a number in (0,",
    "--head.annealing.iteration -1": "head.annealing: LambdaAnnealing expects iteration >= 0",
    "--hooks.metric_loss.weight -1": "hooks.metric_loss.weight must be a number >= 0; got -1",
    "--hooks.mixup.alpha 1e-300": "hooks.mixup.alpha must be a number in [0.001, 1000]",
    "--data.name digits --data.options.unseen [1]": "goes with data.options.protocol open_set",
    "--optimizer.name adam --optimizer.betas [0.9]": "optimizer.betas must be a list of 2 num",
    "--resume a --run.folder b": "leave --run.folder out",
    "--schedule.name steps": "schedule.at",
    "--data.name foo": "unknown data set 'foo'",
    "--data.options.copies -3": "data.options.copies must be a whole number >= 1",
    "--data.options.cop 3": "has no option 'cop'; did you mean 'copies'?",
    "--data.name webdataset --data.options.workers 9999": "workers must be a whole number in [0, ",
    "--data.imbalance foo": "unknown data.imbalance 'foo'",
    "--train.init_from nowhere": "no weights in nowhere",
    "--task gan": "task gan does not use the section 'head'",
    "--task few_shot --few_shot.methods [foo]": "unknown few_shot.methods 'foo'",
    "--fabric.accelerator foo": "unknown fabric.accelerator 'foo'",
    "--fabric.strategy deepspeed": "unknown fabric.strategy 'deepspeed' (known: auto, ddp, fsdp)",
    "--fabric.precision foo": "unknown fabric.precision 'foo'",
    "--fabric.precision 16-true": "unknown fabric.precision '16-true'",
    "--fabric.precision bf16-true": "unknown fabric.precision 'bf16-true'",
    "--fabric.precision 64-true": "unknown fabric.precision '64-true'",
    "--fabric.precision transformer-engine": "unknown fabric.precision",
    "--fabric.strategy foo": "unknown fabric.strategy 'foo'",
    "--fabric.devices 0": "fabric.devices must be auto, a number of processes >= 1",
    "--optimizer.betas [0.9,0.99]": "optimizer.betas goes with optimizer.name adam or adamw",
    "--optimizer.name adam --optimizer.momentum 0.5": "goes with optimizer.name sgd or ogd",
    "--schedule.patience 3": "schedule.name is 'cosine'",
    "--head.name softmax --head.annealing.base 10": "head.annealing.base anneals a margin",
    "--optimizer.rotation_lr 3": "optimizer.rotation_lr is of rotations, and rotate is null",
    "--optimizer.decay_rotations all": "optimizer.decay_rotations is of rotations",
    "--run.folder a --run.name b": "run.folder a is the whole path of the run",
    "--regularizers.mhe.begin 50 --regularizers.mhe.end 10": "regularizers.mhe.end must be after",
    "--model.angular linear": "model.operator is 'plain'",
    "--fabric.strategy fsdp --rotate": "fabric.strategy fsdp cannot be used here",
}


@pytest.mark.parametrize(("words", "message"), WRONG.items(), ids=list(WRONG))
def test_a_wrong_value_is_refused_at_once(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", *words.split()]) == 2
    error = capsys.readouterr().err
    assert error.startswith("hypersphere train: ") and message in error
    assert "loading" not in error and not Path("runs").exists()


@pytest.mark.parametrize("command", ["compare", "sweep"])
def test_so_do_the_commands_that_train_many(tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text("head: {name: a_softmax}\n")
    search = ["--search", "optimizer.lr=0.1:0.2"] if command == "sweep" else []
    assert cli.main([command, "a.yaml", "--head.m", "-1", *search]) == 2
    assert "a multiplicative margin needs m >= 1" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_options_that_are_used_are_taken(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("inherits.yaml").write_text("optimizer: {name: sgd, betas: [0.8, 0.9]}\n")
    for spec, words in {
        None: ["--optimizer.name", "ogd", "--optimizer.others", "adam", "--optimizer.eps", "1e-6"],
        "inherits.yaml": ["--model.operator", "sphere", "--model.angular", "linear"],
    }.items():
        config = _config.read(spec, words)
        refuse_unused_options(config, read_overrides(words))


def test_no_shipped_recipe_is_refused():
    files = [f for f in (ROOT / "recipes").rglob("*.yaml") if f.parent.name != "claims"]
    assert len(files) > 50
    for file in files:
        check_settings(_config.read(str(file), []))


@pytest.mark.parametrize("kind", ["model", "head"])
def test_no_part_is_refused_with_its_defaults(kind):
    for name in registry.names(kind):
        check_settings(_config.read(None, [f"--{kind}.name", name]))


def test_the_check_does_not_load_the_compiler():
    """It takes seconds, before the first word of a run."""
    code = (
        "import sys; from hypersphere.commands import _config, train; "
        "_config.check(_config.read(None, [], defaults=train.DEFAULT)); "
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_what_depends_on_the_data_is_left_to_the_run():
    # One margin per class: how many there are, only the data say.
    words = ["--head.name", "arcface", "--head.m", "[0.1,0.2,0.3]"]
    check_settings(_config.read(None, words))
