"""Every shipped recipe and variant is read, typed and built: network, head, regularizers, optimizer, hooks."""

import json
from functools import lru_cache

import pytest

from hypersphere.commands import _config
from hypersphere.commands.recipes import list_recipes
from hypersphere.commands.recipes import main as recipes_command
from hypersphere.training.build import make_hooks, make_net, make_player_optimizer, make_rate
from hypersphere.training.parts import names

# (shape of a sample, classes): what the data would tell; the recipes are built without them.
DATA = {
    "digits": ((1, 8, 8), 10),
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
# Turning neurons of thousands of entries takes seconds each; one width shows that the config fits.
LARGE = 4_000_000
RECIPES = list_recipes()


@lru_cache(maxsize=1)
def files():
    return sorted({recipe.path for recipe in RECIPES})


@pytest.mark.parametrize("path", files(), ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_every_variant_is_built(path):
    first = path.read_text().splitlines()[0]
    place = path.relative_to(_config.recipe_root())
    assert first.startswith(f"# hypersphere train recipes/{place}"), "first line = the command"
    own = [recipe for recipe in RECIPES if recipe.path == path]
    assert all(recipe.cpu for recipe in own), "every recipe has a cpu variant"
    _config.read(str(path) + first.partition(".yaml")[2].split()[0])
    built = set()
    for recipe in own:
        for extra in ([], ["cpu"]):
            variants = [v for v in (recipe.variant, *extra) if v]
            config = _config.read(str(path), variants=variants)
            assert config.thesis.source and config.thesis.metric
            kinds = {"model": config.model, "head": config.head, "rotate": config.rotate}
            kinds.update(regularizers=config.regularizers, hooks=config.hooks)
            key = json.dumps([kinds, vars(config.optimizer), vars(config.schedule)], default=str)
            if key not in built:
                built.add(key)
                build(config)


def build(config):
    shape, classes = DATA[config.data.name]
    if config.task == "gan":
        for section in (config.model, config.gan.generator):
            assert section["name"] in names("model")
        return
    if config.task == "graph":
        config.model["in_channels"] = shape[0]
    net = make_net(config, shape, classes) if not config.rotate else small_rotated(config, shape)
    optimizer = make_player_optimizer(config, net)
    make_rate(optimizer, config.schedule, 100)
    make_hooks(config)


def small_rotated(config, shape):
    """A rotated network at its own width if that is quick, narrower otherwise."""
    rotate, config.rotate = config.rotate, None
    net = make_net(config, shape, 10)
    config.rotate = rotate
    largest = max(p[0].numel() ** 2 for p in net.parameters() if p.dim() > 1)
    if largest > LARGE or len(list(net.modules())) > 40:
        config.model["widths"] = [4 for _ in config.model["widths"]]
        config.model["features"] = 4
    return make_net(config, shape, 10)


def test_the_list_has_every_recipe_and_its_number(capsys):
    assert recipes_command([]) == 0
    text = capsys.readouterr().out
    for recipe in RECIPES:
        assert recipe.spec in text
    assert recipes_command(["3.1", "sigmoid.yaml:ga_softmax"]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert "Table 3.1" in line and "92.38" in line
    assert recipes_command(["surely not there"]) == 1


def test_the_commands_of_the_documentation_are_understood():
    config = _config.read("recipes/ch3/table-3.1/sigmoid.yaml", ["--head.m", "3", "--data.root", "x"])
    assert config.head["m"] == 3 and config.data.root == "x"
    assert config.model["angular"] == {"name": "sigmoid", "k": 0.3}
    assert config.schedule.at == [34_000, 54_000] and config.train.steps == 64_000
