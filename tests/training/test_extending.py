"""Every example of docs/extending.md is a plugin that trains, with the command under it."""

import hashlib
import json
import re
import shlex
import sys
from pathlib import Path

import pytest

import hypersphere.training
from hypersphere import cli, registry

PAGE = Path(__file__).resolve().parents[2] / "docs" / "extending.md"
SECTION = re.compile(r"^## (.+?)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
EXAMPLE = re.compile(r"^```python\n(.*?)^```\s+^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)
# Small and short; what the commands of the page say comes after it and wins.
TINY = ["--train.steps", "3", "--train.quiet", "true", "--run.report", "false"]
TINY += ["--data.batch_size", "16", "--data.share", "0.1", "--data.test_share", "0.1"]
TINY += ["--baseline", "false"]
KINDS = {
    "An angular activation": "angular",
    "A magnitude": "magnitude",
    "A margin": "margin",
    "A head": "head",
    "A regularizer": "regularizer",
    "A model": "model",
    "A data set": "data",
    "A hook": "hook",
    "A task": "task",
}


def examples():
    """heading -> (code, words of the command)."""
    found = {}
    for heading, body in SECTION.findall(PAGE.read_text()):
        example = EXAMPLE.search(body)
        if example:
            found[heading] = (example[1], shlex.split(example[2]))
    return found


EXAMPLES = examples()


@pytest.fixture
def forget():
    """Take what a test imports and registers away again."""
    before = {kind: dict(table) for kind, table in registry._ENTRIES.items()}
    modules = set(sys.modules)
    yield
    for name, module in list(sys.modules.items()):
        if name not in modules and "__sha256__" in vars(module):
            del sys.modules[name]
    for kind, table in registry._ENTRIES.items():
        table.clear()
        table.update(before[kind])


def write(heading, folder):
    """The plugin of a section as the file that its command names; returns (file, command)."""
    code, command = EXAMPLES[heading]
    path = folder / command[command.index("--plugin") + 1]
    path.write_text(code)
    return path, command


def test_every_kind_has_an_example():
    assert set(EXAMPLES) == set(KINDS)
    assert set(KINDS.values()) == set(registry.KINDS)
    for code, command in EXAMPLES.values():
        assert 10 <= len(code.splitlines()) <= 45 and command[:2] == ["hypersphere", "train"]


@pytest.mark.parametrize("heading", EXAMPLES)
def test_the_example_trains(heading, tmp_path, monkeypatch, forget, capsys):
    monkeypatch.chdir(tmp_path)
    plugin, command = write(heading, tmp_path)
    assert cli.main([*command[1:2], *TINY, *command[2:], "--run.folder", "run"]) == 0, (
        capsys.readouterr().err
    )
    record = json.loads((tmp_path / "run/run.json").read_text())
    ((key, part),) = record["config"]["parts"].items()
    kind, _, name = key.partition(".")
    assert kind == KINDS[heading] and registry.entry(kind, name).own
    assert part["file"] == str(plugin) and part["module"] == plugin.stem
    assert part["sha256"] == hashlib.sha256(plugin.read_bytes()).hexdigest()
    assert json.loads((tmp_path / "run/summary.json").read_text())["last"]["step"] == 3
    SEEN[KINDS[heading]](tmp_path / "run", record)


def in_the_network(name):
    def check(folder, record):
        modules = hypersphere.training.load_net(folder).modules()
        assert name in [type(module).__name__ for module in modules]

    return check


def a_margin(folder, record):
    head = hypersphere.training.load_net(folder).head
    assert type(head.margin).__name__ == "ProportionalMargin" and head.margin.m == 0.5


def a_term_of_the_loss(folder, record):
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    assert any("coherence" in line for line in lines if line["split"] == "train")


def wrong_labels(folder, record):
    assert record["config"]["data"]["options"] == {"noise": 0.4}
    split = hypersphere.data.load("noisy-digits", noise=0.4)
    wrong = split.train.labels != hypersphere.data.load("digits").train.labels
    assert 0.2 < wrong.double().mean() < 0.5


def averaged_weights(folder, record):
    hypersphere.training.load_net(folder, folder / "average.safetensors")


def four_classes(folder, record):
    if hasattr(registry.entry("task", "classification").target, "build"):
        assert record["task"] == "rotation" and "data" not in record
        assert "top5_error" not in json.loads((folder / "summary.json").read_text())["last"]


SEEN = {
    "angular": in_the_network("PowerAngular"),
    "magnitude": in_the_network("RationalMagnitude"),
    "margin": a_margin,
    "head": in_the_network("FocalHead"),
    "regularizer": a_term_of_the_loss,
    "model": in_the_network("Separable"),
    "data": wrong_labels,
    "hook": averaged_weights,
    "task": four_classes,
}


@pytest.mark.parametrize("heading", EXAMPLES)
def test_every_option_of_the_example_has_a_text(heading, tmp_path, monkeypatch, forget):
    from hypersphere.commands.plugins import import_plugin
    from hypersphere.training.parts import options

    monkeypatch.chdir(tmp_path)
    plugin, _ = write(heading, tmp_path)
    import_plugin(str(plugin))
    (part,) = (p for p in registry.entries(KINDS[heading]) if p.own)
    assert part.summary
    assert all(option.help for option in options(part.kind, part.name).values())


@pytest.mark.slow
def test_compare_and_sweep_take_plugins(tmp_path, monkeypatch, forget, capsys, warm_workers):
    monkeypatch.chdir(tmp_path)
    write("A head", tmp_path)
    write("A regularizer", tmp_path)
    (tmp_path / "c.yaml").write_text(
        "data: {batch_size: 16, share: 0.1, test_share: 0.1}\n"
        "model: {name: mlp, widths: [4]}\nhead: {name: focal}\n"
        "regularizers: {coherence: {weight: 0.1}}\ntrain: {steps: 2, quiet: true}\n"
        "variants: {hard: {head: {gamma: 4.0}}}\n"
    )
    plugins = ["--plugin", "focal.py", "--plugin=coherence.py"]
    assert cli.main(["compare", "c.yaml", "c.yaml:hard", "--seeds", "0", *plugins]) == 0
    assert "c-hard" in capsys.readouterr().out
    written = json.loads((tmp_path / "runs/compare/comparison.json").read_text())
    assert "--plugin focal.py" in written["command"]
    search = ["--search", "head.gamma=0.5:1.5", "--trials", "1", "--folds", "2"]
    assert cli.main(["sweep", "c.yaml", *search, *plugins]) == 0
    assert "best accuracy" in capsys.readouterr().out
