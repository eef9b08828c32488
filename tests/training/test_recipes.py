"""Every shipped recipe and variant is read, typed and built: network, head, regularizers,
optimizer, hooks.
"""

import json
from unittest import mock

import pytest
import torch

from hypersphere.commands import _config
from hypersphere.commands.recipes import SMALLER, list_recipes
from hypersphere.commands.recipes import main as recipes_command
from hypersphere.training.build import (
    construct_model,
    make_head,
    make_hooks,
    make_net,
    make_player_optimizer,
    make_rate,
)
from hypersphere.training.config import DissertationConfig
from hypersphere.training.parts import CHANGES, names_in_section

# (shape of a sample, classes): what the data would tell; the recipes are built without them.
DATA = {
    "digits": ((1, 8, 8), 10),
    "letters": ((1, 28, 28), 138),
    "mnist": ((1, 28, 28), 10),
    "fashion-mnist": ((1, 28, 28), 10),
    "cifar10": ((3, 32, 32), 10),
    "cifar100": ((3, 32, 32), 100),
    "imagenet": ((3, 224, 224), 1000),
    "mini-imagenet": ((3, 84, 84), 64),
    "omniglot": ((1, 28, 28), 964),
    "lfw": ((3, 112, 96), 10575),
    "folder": ((3, 112, 96), 10575),
    "modelnet40": ((1024, 3), 40),
    "cora": ((1433,), 7),
    "citeseer": ((3703,), 6),
    "pubmed": ((500,), 3),
}
RECIPES = list_recipes()
SEEN: set[str] = set()


def new(*parts):
    """Whether this has not been built before: tables share most of their settings."""
    key = json.dumps(parts, sort_keys=True, default=str)
    return key not in SEEN and not SEEN.add(key)


@pytest.mark.filterwarnings("ignore:fewer blocks than asked for")  # of layers made smaller
@pytest.mark.slow
@pytest.mark.parametrize(
    "path", sorted({r.path for r in RECIPES}), ids=lambda p: f"{p.parent.name}-{p.stem}"
)
def test_every_variant_is_read_and_built(path):
    first = path.read_text().splitlines()[0]
    place = path.relative_to(_config.recipe_root())
    assert first.startswith(f"# hypersphere train recipes/{place}"), "first line = the command"
    _config.read(f"{path}{first.partition('.yaml')[2]}".strip())
    for recipe in (r for r in RECIPES if r.path == path):
        assert recipe.cpu, "every recipe has a cpu variant"
        small = [name for name in SMALLER if name in _config.variants_of(path)]
        for variants in ([recipe.variant], *([recipe.variant, name] for name in small)):
            settings = _config.load_file(path, [v for v in variants if v])
            assert settings["dissertation"]["source"] and settings["dissertation"]["metric"]
            check(settings)


def check(settings):
    """Read in parts (types, names), each of which is built; a part seen before is not repeated."""
    assert set(settings["dissertation"]) <= set(vars(DissertationConfig()))
    built = (
        "model",
        *CHANGES,
        "head",
        "regularizers",
        "hooks",
        "optimizer",
        "schedule",
        "dissertation",
    )
    fixed = {k: v for k, v in settings.items() if k not in built}
    if new(fixed):
        _config.read(None, defaults=fixed)
    task, data = settings.get("task", "classification"), settings["data"]["name"]
    shape, _ = DATA[data]
    parts = {k: settings.get(k) for k in ("model", *CHANGES)}
    if new(task, shape, parts):
        config = _config.read(
            None, defaults={**{k: v for k, v in parts.items() if v}, "task": task}
        )
        build_model(config, shape)
    if new(settings.get("head")) and task != "gan":
        config = _config.read(None, defaults={"head": settings.get("head", {})})
        make_head(config.head, 8, 10)
    keys = ("regularizers", "hooks", "optimizer", "schedule")
    rest = {k: settings[k] for k in keys if k in settings}
    if new(rest):
        config = _config.read(None, defaults=rest)
        make_hooks(config)
        if config.optimizer.name == "ogd":  # which wants rotations: what moves the rest
            config.optimizer.name, config.optimizer.others = config.optimizer.others, "sgd"
        optimizer = make_player_optimizer(config, torch.nn.Linear(2, 2))
        make_rate(optimizer, config.schedule, 100)


def build_model(config, shape):
    if config.task == "gan":
        assert config.gan.generator["name"] in names_in_section("model")
    if config.task == "graph":
        config.model["in_channels"] = shape[0]
    if config.rotate:  # turning long neurons takes seconds: one narrow network shows that it fits
        config.model["widths"] = [4 for _ in config.model["widths"]]
        if config.model.get("features"):
            config.model["features"] = 4
        shape = (shape[0], 16, 16) if len(shape) == 3 else shape
        if config.rotate.get("refine_steps"):  # 5,000 are the text's; that they run is shown by 5
            config.rotate["refine_steps"] = 5
    if config.task == "gan":
        config.model.pop("in_channels")
        options = {k: v for k, v in config.model.items() if k != "name" and v is not None}
        construct_model(config.model["name"], options)
        return
    if config.task == "reconstruction":
        options = {k: v for k, v in config.model.items() if k != "name" and v is not None}
        assert hasattr(construct_model(config.model["name"], options), "encode")
        return
    if config.rotate:
        net = make_net(config, shape, 10)
    else:  # without storage there is nothing to draw: the widest network is built in a moment
        drawn = ("kaiming_normal_", "kaiming_uniform_", "uniform_", "normal_")
        idle = {name: lambda weight, *_, **__: weight for name in drawn}
        with torch.device("meta"), mock.patch.multiple(torch.nn.init, **idle):
            net = make_net(config, shape, 10)
    if config.rotate and config.rotate["method"] == "ogd":
        config.optimizer.name = "ogd"
        make_player_optimizer(config, net)


def test_the_list_has_every_recipe_and_its_number(capsys):
    assert recipes_command([]) == 0
    text = capsys.readouterr().out
    for recipe in RECIPES:
        assert recipe.spec in text
    assert recipes_command(["3.1", "sigmoid.yaml:ga_softmax"]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert "Table 3.1" in line and "92.38" in line
    assert recipes_command(["surely not there"]) == 1
    capsys.readouterr()
    assert recipes_command(["5.5"]) == 0  # a table, not the end of 85.51
    lines = capsys.readouterr().out.splitlines()[2:]
    assert lines and all("table-5.5." in line or "figure-5.5." in line for line in lines)


def test_the_commands_of_the_documentation_are_understood():
    config = _config.read(
        "recipes/ch3/table-3.1/sigmoid.yaml", ["--head.m", "3", "--data.root", "x"]
    )
    assert config.head["m"] == 3 and config.data.root == "x"
    assert config.model["angular"] == {"name": "sigmoid", "k": 0.3}
    assert config.schedule.at == [34_000, 54_000] and config.train.steps == 64_000
