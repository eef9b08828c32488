"""Mistakes in parts of one's own: each is told in one line that names the part."""

import pytest

from hypersphere import cli

SMALL = [
    "--data.name",
    "digits",
    "--baseline",
    "false",
    "--data.share",
    "0.1",
    "--run.report",
    "false",
    "--train.steps",
    "2",
    "--train.quiet",
]

SMALL += ["true", "--data.batch_size", "16"]
MLP = ["--model.name", "mlp", "--model.widths", "[4]"]

WRONG = '''
import torch
from torch import nn
import hypersphere as hs
from typing import Annotated
from hypersphere.ranges import Range


@hs.register("head", "forwardless")
class Forwardless(nn.Module):
    def __init__(self, in_features, num_classes):
        super().__init__()


@hs.register("head", "plain_object")
class PlainObject:
    def __init__(self, in_features, num_classes):
        pass

    def __call__(self, features):
        return features


@hs.register("head", "loss_per_sample")
class LossPerSample(nn.Linear):
    def __init__(self, in_features, num_classes):
        super().__init__(in_features, num_classes)

    def loss(self, features, labels):
        return self(features).sum(1)


@hs.register("head", "eight_scores")
class EightScores(nn.Linear):
    """Scores of eight classes."""
    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__(in_features, 8)

@hs.register("head", "one_score")
class OneScore(nn.Linear):
    def __init__(self, in_features, num_classes):
        super().__init__(in_features, num_classes)

    def forward(self, features):
        return super().forward(features).sum(1)


@hs.register("angular", "valueless")
class Valueless(hs.layers.Angular):
    def valu(self, cos):
        return cos


@hs.register("magnitude", "valueless")
class ValuelessToo(hs.layers.Magnitude):
    def valu(self, norm):
        return norm


@hs.register("regularizer", "number")
def number():
    return lambda module: 0.5


@hs.register("hook", "misspelt")
class Misspelt:
    def after_updat(self, run):
        pass


@hs.register("hook", "empty_log")
class EmptyLog:
    def log(self, run):
        pass


@hs.register("angular", "summed")
class Summed(hs.layers.Angular):
    def value(self, cos):
        return cos.sum()


@hs.register("margin", "summed")
def summed(cos):
    return cos.sum()


@hs.register("magnitude", "halved")
def halved(norm, half: float = 1.0):
    """h = |x| / (half + |x|)."""
    return norm / (half + norm)


@hs.register("model", "square")
class Square(nn.Module):
    def __init__(self, image_size: int = 2, in_channels: int = 1, fail: bool = False):
        super().__init__()
        if fail:
            nn.Linear("wide", 3)
        self.layer = nn.Linear(in_channels * image_size**2, 4)
        self.out_features = 4

    def forward(self, x):
        return self.layer(x.flatten(1))


@hs.register("data", "some")
def some(share: Annotated[float, Range(gt=0)] = 0.5) -> hs.data.Split:
    return hs.data.load("digits")


@hs.register("task", "half")
class Half:
    sections = ("data", "head")
'''


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "own parts"
    folder.mkdir()
    (folder / "wrong.py").write_text(WRONG)
    return "own parts/wrong.py"


DECOUPLED = ("--model.operator", "sphere", "--model.angular")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--head.name", "forwardless"), "the head 'forwardless' has to be an nn.Module with forw"),
        (("--head.name", "plain_object"), "the head 'plain_object' has to be an nn.Module"),
        (("--head.name", "loss_per_sample"), "sum of scalar tensors; 'loss' is a tensor (16,)"),
        (("--head.name", "one_score"), "OneScore should give scores (2, number of classes)"),
        (("--head.name", "eight_scores"), "a score for each of the 10 classes, num_classes; it g"),
        ((*DECOUPLED, "valueless"), "Valueless has to define value(self, cos)"),
        (("--model.operator", "valueless"), "ValuelessToo has to define value(self, norm)"),
        (("--regularizers.number",), "sum of scalar tensors; 'number' is 0.5"),
        (("--hooks.misspelt",), "the hook 'misspelt' (Misspelt) has none of the methods"),
        (("--hooks.empty_log", "{}"), "log of the hook EmptyLog has to return a dictionary"),
        ((*DECOUPLED, "summed"), "Summed.value has to give a value for each of its inputs"),
        (("--head.name", "margin", "--head.margin", "summed"), "summed has to give a value for"),
        (("--model.name", "square", "--model.fail"), "wrong.py, line"),
        (("--data.name", "some", "--data.options.share", "-1"), "data.options.share must be a num"),
        (("--task", "half"), "the task 'half' has to define build"),
        (("--hooks", "{}"), "hooks is a section of names: --hooks.NAME takes one"),
        (("--hooks.monitor", "7"), "hooks.monitor is a section of options"),
        (("--rotate", "cayley"), "rotate is a section of options: --rotate takes its defaults"),
    ],
)
def test_a_mistake_is_one_line(plugin, capsys, words, message):
    model = [] if "--model.name" in words else MLP
    assert cli.main(["train", "--plugin", plugin, *SMALL, *model, *words]) in (1, 2)
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    "words",
    [
        ("--hooks.weighted_gradients", "--model.operator", "sphere"),
        ("--hooks.monitor", '{"every": 1}'),
        ("--regularizers", "null", "--regularizers.orthogonal"),
        ("--rotate",),
        ("--model.operator", '{"name": "halved", "half": 2.0}'),
        ("--model.operator", "halved"),
    ],
)
def test_a_part_is_chosen_as_a_whole(plugin, words):
    assert cli.main(["train", "--plugin", plugin, *SMALL, *MLP, *words]) == 0


def test_a_model_that_takes_a_number_gets_one(plugin):
    assert cli.main(["train", "--plugin", plugin, *SMALL, "--model.name", "square"]) == 0


def test_the_place_of_an_error_and_a_path_with_spaces(tmp_path, monkeypatch, capsys, plugin):
    (tmp_path / "own parts" / "late.py").write_text("import hypersphere\n\n1 / 0\n")
    assert cli.main(["heads", "--plugin", "own parts/late.py"]) == 2
    assert "late.py, line 3)" in capsys.readouterr().err
    words = ["--run.folder", "run", "--model.operator", "halved"]
    assert cli.main(["train", "--plugin", plugin, *SMALL, *MLP, *words]) == 0
    first = (tmp_path / "run" / "config.yaml").read_text().splitlines()[0]
    assert first == f"# needs --plugin '{tmp_path / plugin}'"


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--help"],
        ["compare", "--help"],
        ["sweep", "--help"],
        ["heads"],
        ["heads", "arcface"],
        ["--help"],
    ],
)
def test_help_fits_the_terminal(monkeypatch, capsys, words):
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(words) == 0
    long = [line for line in capsys.readouterr().out.splitlines() if len(line) > 80]
    assert not long


def test_the_options_of_a_model_without_shapes(plugin, capsys):
    assert cli.main(["models", "square", "--plugin", plugin]) == 0
    shown = capsys.readouterr().out
    assert "image_size INT OR NULL" in shown and "shapes of Square are unknown" in shown


def test_the_help_of_a_data_set(capsys):
    assert cli.main(["train", "--help", "data.cifar10"]) == 0
    shown = capsys.readouterr().out
    assert "data.options:" in shown and "protocol" not in shown
