"""Own parts on the command line: imported when the user says so, and only then."""

import json
import sys

import pytest

import hypersphere.training  # noqa: F401 - registers the parts of the library
from hypersphere import cli, registry
from hypersphere.commands import _config, evaluate, train
from hypersphere.commands.plugins import import_plugin
from registered import restore

HEAD = '''
import hypersphere as hs

@hs.register("head", "{name}")
class OwnHead(hs.heads.SSoftmaxHead):
    """{text}

    Args:
        in_features: width of the features.
        num_classes: number of classes.
        weight: factor of the scores.
    """

    def __init__(self, in_features: int, num_classes: int, weight: float = 2.0) -> None:
        super().__init__(in_features, num_classes, scale=weight)
'''
SMALL = [
    "--data.name",
    "digits",
    "--baseline",
    "false",
    "--model.name",
    "mlp",
    "--model.widths",
    "[4]",
    "--data.share",
    "0.1",
    "--run.report",
]

SMALL += ["false", "--train.steps", "2", "--train.quiet", "true", "--data.batch_size", "16"]


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "own_head.py"
    path.write_text(HEAD.format(name="own", text="An own head."))
    return path


def test_a_run_asks_for_its_plugin(plugin, capsys):
    before = {kind: dict(table) for kind, table in registry._ENTRIES.items()}
    modules = set(sys.modules)
    own = ["--plugin", "own_head.py", "--head.name", "own", "--head.weight", "3"]
    assert cli.main(["train", *SMALL, *own, "--run.folder", "a"]) == 0
    config = json.loads((plugin.parent / "a/run.json").read_text())["config"]
    assert config["head"]["weight"] == 3 and config["parts"]["head.own"]["file"] == str(plugin)
    assert f"# needs --plugin {plugin}" in (plugin.parent / "a/config.yaml").read_text()
    capsys.readouterr()
    more = ["--resume", "a", "--train.steps", "3"]
    assert cli.main(["train", "--plugin=own_head.py", *more]) == 0
    assert cli.main(["evaluate", "classification", "a", "--plugin", "own_head", "--quiet"]) == 0
    assert cli.main(["report", "a", "--plugin", "own_head.py"]) == 0

    restore(before, modules)  # as in a new process
    capsys.readouterr()
    wanted = (
        f"uses the head 'own' of the plugin {plugin}, which is not loaded: give it with --plugin"
    )
    assert train.main([*more[:2], "--train.steps", "4"]) == 2
    assert wanted in capsys.readouterr().err
    assert evaluate.main(["classification", "a", "--quiet"]) == 1
    assert wanted in capsys.readouterr().err
    assert "own" not in registry.names("head")  # nothing was imported by reading the run
    assert train.main([*SMALL, "--head.name", "own"]) == 2
    assert "unknown head 'own'" in capsys.readouterr().err


def test_a_changed_plugin_is_noticed(plugin, capsys):
    own = ["--plugin", "own_head.py", "--head.name", "own"]
    assert cli.main(["train", *SMALL, *own, "--run.folder", "a"]) == 0
    plugin.write_text(HEAD.format(name="own", text="Another own head."))
    with pytest.warns(UserWarning, match="has changed since this run was made"):
        assert cli.main(["evaluate", "classification", "a", "--quiet", *own[:2]]) == 0
    capsys.readouterr()
    with pytest.warns(UserWarning, match="has changed since this run was made"):
        assert cli.main(["train", *own[:2], "--resume", "a", "--train.steps", "3"]) == 0
    assert "parts.head.own.sha256" in capsys.readouterr().out
    record = json.loads((plugin.parent / "a/run.json").read_text())
    assert "parts.head.own.sha256" in record["changes"][0]["changed"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x = 1\n", "registers nothing: put @hypersphere.register"),
        ("import surely_not_there\n", "cannot be imported: ModuleNotFoundError"),
        ("def f(:\n", "cannot be imported: SyntaxError"),
        (HEAD.format(name="arcface", text="x"), "the head 'arcface' is already registered by"),
        (HEAD.format(name="", text="x"), "a part needs a non-empty name"),
        (HEAD.replace('"head"', '"heads"').format(name="x", text="x"), "did you mean 'head'?"),
    ],
)
def test_plugins_that_cannot_be_used(tmp_path, monkeypatch, capsys, content, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad_plugin.py").write_text(content)
    for command in ("train", "heads"):
        assert cli.main([command, "--plugin", "bad_plugin.py"]) == 2
        assert message in capsys.readouterr().err
    assert "bad_plugin" not in sys.modules


def test_plugins_that_are_not_there(capsys):
    for name in ("no_such_plugin", "no_such_plugin.py", "a.b.no_such"):
        assert cli.main(["heads", "--plugin", name]) == 2
        assert f"there is no plugin {name}" in capsys.readouterr().err
    assert cli.main(["heads", "--plugin"]) == 2
    assert "--plugin needs a module name" in capsys.readouterr().err


def test_own_parts_are_listed_and_helped(plugin, capsys):
    assert cli.main(["heads", "--plugin", "own_head.py"]) == 0
    assert "own: own_head" in capsys.readouterr().out
    assert cli.main(["heads", "own", "--plugin", "own_head.py"]) == 0
    assert "Factor of the scores. Default: 2." in capsys.readouterr().out
    assert cli.main(["train", "--plugin", "own_head.py", "--head.name", "own", "--help"]) == 0
    assert "--head.weight FLOAT" in capsys.readouterr().out
    assert cli.main(["train", "--plugin", "own_head.py", "--help", "head.own"]) == 0
    assert "--head.weight FLOAT" in capsys.readouterr().out
    assert cli.main(["train", "--plugin", "own_head.py", "--head.name", "onw"]) == 2
    assert "did you mean 'own'?" in capsys.readouterr().err


def test_a_file_is_imported_once_and_again_when_it_changes(plugin):
    first = import_plugin("own_head.py")
    assert import_plugin(str(plugin)) is first
    plugin.write_text(HEAD.format(name="own", text="Changed."))
    assert import_plugin("own_head.py") is not first
    assert registry.entry("head", "own").summary == "Changed."


ACTIVATION = '''
import torch
import hypersphere as hs

@hs.register("angular", "soft_cosine")
class SoftCosine(torch.nn.Module):
    """cos(theta), bent.

    Args:
        a: how much.
    """

    def __init__(self, a: float = 0.5) -> None:
        super().__init__()
        self.a = a

    def forward(self, c):
        return torch.tanh(self.a * c)
'''


@pytest.mark.parametrize(
    "written, given, wanted",
    [
        ("{name: soft_cosine, a: 0.8}", ["--model.angular.a", "3"], {"a": 3}),
        ("soft_cosine", ["--model.angular.a", "3"], {"a": 3}),
        ("cosine", ["--model.angular", "soft_cosine", "--model.angular.a", "2"], {"a": 2}),
        ("{name: soft_cosine, a: 0.8}", ["--model.angular", "cosine"], "cosine"),
    ],
)
def test_options_of_an_activation_by_key(tmp_path, monkeypatch, written, given, wanted):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(ACTIVATION)
    (tmp_path / "c.yaml").write_text(f"model: {{operator: sphere, angular: {written}}}")
    import_plugin("own.py")
    angular = _config.read("c.yaml", given).model["angular"]
    expected = {"name": "soft_cosine", **wanted} if isinstance(wanted, dict) else wanted
    assert angular == expected


def test_a_misspelled_activation_in_place_of_a_mapping(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text("model: {operator: sphere, angular: {name: sigmoid, k: 0.5}}")
    command = ["train", "c.yaml", *SMALL, "--model.operator", "sphere"]
    assert cli.main([*command, "--model.angular", "cosin"]) != 0
    assert "did you mean 'cosine'" in capsys.readouterr().err
