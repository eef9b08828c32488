"""Options derived from signatures and docstrings: complete, typed, in range."""

import math
import re

import pytest

from hypersphere import cli, ranges, registry
from hypersphere.commands import _config, _options, train
from hypersphere.commands.listing import LISTINGS
from hypersphere.training import config as sections
from hypersphere.training.argument_texts import read_arguments
from hypersphere.training.parts import CHANGES, options, section_options

PARTS = [(part.kind, part.name) for kind in registry.KINDS for part in registry.entries(kind)]


@pytest.mark.parametrize(("kind", "name"), PARTS, ids=lambda value: value)
def test_every_option_of_every_part_has_a_text(kind, name):
    assert registry.entry(kind, name).summary
    missing = [key for key, option in options(kind, name).items() if not option.help]
    assert not missing, f"{registry.entry(kind, name).target}: no text for {', '.join(missing)}"


@pytest.mark.parametrize("kind", [*CHANGES, "annealing"])
def test_every_option_of_every_change_has_a_text(kind):
    assert not [key for key, option in options(kind).items() if not option.help]


@pytest.mark.parametrize("section", ["", *_config.FIXED])
def test_every_option_of_every_section_has_a_text(section):
    found = section_options(section)
    assert found and not [key for key, option in found.items() if not option.help]


def test_help_shows_text_type_default_choices_and_range(capsys):
    assert train.main(["--regularizers.mhe", "--data.name", "digits", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    lr = "--optimizer.lr FLOAT Learning rate at the start. Range: in [0, 1e+30]. Default: 0.1."
    assert lr in text
    assert "One of: constant, steps, every, cosine, plateau. Default: constant." in text
    assert (
        "--head.m FLOAT OR LIST OF FLOAT OR SECTION" in text
        and "--regularizers.mhe.begin INT" in text
    )
    assert "--head.annealing.base FLOAT" in text and "--data.options.protocol" in text
    assert "a_softmax, ga_softmax, am_softmax, arcface" in text
    assert "then ~/.cache/hypersphere." in text  # a text of several lines is whole
    assert train.main(["--help", "head.arcface"]) == 0
    text = capsys.readouterr().out
    assert "--head.scale" in text and "--optimizer" not in text and "usage" not in text
    assert train.main(["--help", "hooks.monitor"]) == 0
    assert "--hooks.monitor.every INT" in capsys.readouterr().out
    assert train.main(["--help", "rotate"]) == 0
    assert "--rotate.method" in capsys.readouterr().out
    assert train.main(["--help", "optimiser"]) == 2
    assert "did you mean 'optimizer'?" in capsys.readouterr().err


@pytest.mark.parametrize("command", LISTINGS)
def test_listings(command, capsys):
    kind = LISTINGS[command]
    assert cli.main([command]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in registry.names(kind))
    assert cli.main([command, "--markdown"]) == 0
    assert capsys.readouterr().out.startswith("| name | source | what |")
    for name in registry.names(kind):
        assert cli.main([command, name]) == 0
        assert all(option in capsys.readouterr().out for option in list(options(kind, name))[:1])
    assert cli.main([command, "surely_not"]) == 2
    assert "unknown" in capsys.readouterr().err


BAD = {
    "train.clip": [-1, 0, "nan", "inf", "''"],
    "train.epochs": [-1, 0, "nan", "inf", 1e20],
    "train.steps": [-1, 0, 10**20],
    "train.accumulate": [0],
    "train.test_every": [0, -1],
    "train.checkpoint_every": [0, -1],
    "train.log_every": [0],
    "train.keep": [0],
    "train.threads": [0, 1025, 100_000, 10**10],
    "train.label_smoothing": [-0.1, 1, "nan"],
    "optimizer.lr": [-1, "nan", "inf"],
    "optimizer.weight_decay": [-1, "nan", "inf"],
    "optimizer.momentum": [-1, 1, 1e20, "nan"],
    "optimizer.betas": ["[0.9, 1.0]", "[-1, 0.9]"],
    "data.batch_size": [0, -1, 10**18, 10**20],
    "data.test_batch_size": [0, 10**18],
    "data.share": [0, -1, 1.1, "nan"],
    "data.test_share": [0],
    "schedule.period": [0],
    "schedule.end": [-1, 1e20, "nan"],
    "schedule.warmup": [-1],
    "schedule.at": ["[0]"],
    "seed": [-1, 2**32],
    "init.std": [0, -1, "nan"],
    "hooks.monitor.every": [0, -1],
    "regularizers.mhe.begin": [-1],
    "run.folder": ["''"],
    "run.name": ["''", "../../x", "a/../../x", "/x", "C:\\x", "..\\x"],
    "data.workers": [-1, 1025],
    "fabric.devices": [-2, 100_000],
    "fabric.num_nodes": [0, 10**9],
    "fabric.silence": [0, -1, "nan", "inf"],
}


@pytest.mark.parametrize(("key", "value"), [(k, v) for k, values in BAD.items() for v in values])
def test_numbers_out_of_range_are_refused_on_the_command_line(key, value, capsys):
    text = "" if value == "''" else str(value)
    assert train.main([f"--{key}={text}"]) == 2
    error = capsys.readouterr().err
    assert key in error and "Traceback" not in error
    assert re.search(r"must (be an? (whole )?number (>|in )|not be empty|be a name)", error), error


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sections.TrainConfig(clip=-1), "train.clip must be a number > 0 or null; got -1"),
        (
            lambda: sections.TrainConfig(steps=2.5),
            "train.steps must be a whole number >= 1; got 2.5",
        ),
        (lambda: sections.TrainConfig(steps=True), "train.steps must be a whole number"),
        (lambda: sections.TrainConfig(steps="5"), "train.steps must be a whole number"),
        (
            lambda: sections.OptimizerConfig(lr=math.nan),
            "optimizer.lr must be a number in [0, 1e+30]; got nan",
        ),
        (lambda: sections.OptimizerConfig(momentum=1e20), "in [0, 1); got 1e+20"),
        (lambda: sections.OptimizerConfig(name="sdg"), "did you mean 'sgd'?"),
        (lambda: sections.DataConfig(share=0.0), "data.share must be a number in (0, 1]; got 0.0"),
        (lambda: sections.RunConfig(folder=" "), "run.folder must not be empty"),
        (lambda: sections.Config(seed=-1), "seed must be a whole number in [0, 4294967296)"),
    ],
)
def test_numbers_out_of_range_are_refused_in_python(make, message):
    with pytest.raises(ValueError) as error:
        make()
    assert message in str(error.value)


def test_options_out_of_range_are_refused_when_built():
    from hypersphere.training.build import make_hooks

    with pytest.raises(ValueError, match=r"hooks.monitor.every must be a whole number >= 1; got 0"):
        make_hooks(sections.Config(hooks={"monitor": {"every": 0}}))


def test_ranges_read_as_they_are_written():
    assert str(ranges.Range(gt=0, le=1)) == "in (0, 1]" and str(ranges.Range(lt=2)) == "< 2"
    assert math.inf not in ranges.Range() and 10**30 not in ranges.Range() and 0 in ranges.Range()


def test_docstrings_are_read():
    text = "A.\n\nArgs:\n    a (int): one\n        more.\n\n        still a.\n    *rest: all.\n\n"
    text += "Returns:\n    b: no argument.\n"
    assert read_arguments(text) == {"a": "one more. still a.", "rest": "all."}


def test_an_option_as_text():
    option = options("init")["distribution"]
    assert "One of: own, he, xavier, normal. Default: own." in _options.describe(option)
    assert _options.describe(options("low_rank")["rank"]).endswith("Range: >= 1. Required.")


def test_a_margin_that_is_a_number_names_no_part(capsys):
    for kind, name in (("hook", "metric_loss"), ("head", "hinge")):
        option = options(kind, name)["margin"]
        assert (option.type, option.choices) == (float, ())
    words = ["--hooks.metric_loss.name", "triplet", "--hooks.metric_loss.margin", "wide"]
    assert cli.main(["train", *words]) == 2
    assert "hooks.metric_loss.margin must be a number >= 0" in capsys.readouterr().err
