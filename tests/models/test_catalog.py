"""Networks by name: those of the package, and a user's own."""

import pytest
import torch
from torch import nn

import hypersphere as hs
from hypersphere import models, registry
from hypersphere.commands.models import main


@pytest.fixture
def own_name():
    before = dict(registry._ENTRIES["model"])
    yield "mine"
    registry._ENTRIES["model"].clear()
    registry._ENTRIES["model"].update(before)


class Flat(nn.Module):
    """All pixels, times a matrix."""

    def __init__(self, features=4, image_size=8):
        super().__init__()
        self.out_features, self.input_shape = features, (1, image_size, image_size)
        self.layer = nn.Linear(image_size**2, features)

    def forward(self, x):
        return self.layer(x.flatten(1))


def test_every_network_is_in_the_register():
    assert models.list_models() == registry.names("model")
    entry = registry.entry("model", "cnn9")
    assert entry.target is models.PlainCNN and entry.source == "Table B.1" and not entry.own
    assert entry.details["defaults"]["widths"] == (64, 96, 128)
    assert models.entry("cnn9") == models.model_entry("cnn9")
    assert models.Entry is models.ModelEntry


def test_an_own_class_without_style(own_name, capsys):
    hs.register("model", own_name, source="a paper", defaults={"features": 3})(Flat)
    net = models.create(own_name, image_size=4)
    assert net(torch.zeros(2, 1, 4, 4)).shape == (2, 3)
    assert models.create(own_name, features=6).out_features == 6
    with pytest.raises(ValueError, match="unknown option of mine 'feature'; did you mean 'featu"):
        models.create(own_name, feature=6)
    with pytest.raises(ValueError, match="unknown option of mine 'operator'"):
        models.create(own_name, operator="sphere")
    found = models.model_entry(own_name)
    assert found.options == ("features", "image_size") and found.own
    assert found.description == "All pixels, times a matrix." and found.source == "a paper"
    assert [row.shape for row in models.layer_rows(net)] == [(2, 3)]
    assert main([own_name]) == 0 and "Linear" in capsys.readouterr().out
    assert main([]) == 0 and "All pixels, times a matrix." in capsys.readouterr().out
    assert own_name not in models.summary.models_markdown()


def test_an_own_function_with_style(own_name):
    @hs.register("model", own_name, description="one layer")
    def build(width=5, style=None):
        layer = style.unit(0, 6, width)
        layer.out_features = width
        return layer

    net = models.create(own_name, operator="sphere", width=7)
    assert isinstance(net[0], hs.layers.DecoupledLinear) and net(torch.ones(2, 6)).shape == (2, 7)
    assert "norm" in models.model_entry(own_name).options


def test_an_own_function_that_takes_any_option(own_name):
    hs.register("model", own_name)(lambda **options: Flat(**options))
    assert models.create(own_name, features=9).out_features == 9


@pytest.mark.parametrize("made", [nn.Linear, lambda: nn.ReLU(), lambda: 5])
def test_what_an_own_model_has_to_return_is_said(own_name, made):
    hs.register("model", own_name)(made)
    if made is nn.Linear:
        assert models.create(own_name, in_features=2, out_features=3).out_features == 3
        assert models.model_table()[-1][:4] == ("mine", "", None, None)
        return
    with pytest.raises(TypeError, match="the model 'mine' .* has to return an nn.Module with"):
        models.create(own_name)


def test_a_network_without_shapes_says_what_it_lacks(own_name):
    with pytest.raises(ValueError, match="the shapes of Linear are unknown: give it input_shape"):
        models.layer_rows(nn.Linear(2, 3))


def test_the_name_of_a_library_network_is_taken(own_name):
    with pytest.raises(ValueError, match="the model 'cnn9' is already registered by hypersphere"):
        hs.register("model", "cnn9")(Flat)


def test_an_own_activation_is_an_option_of_the_style(own_name):
    before = dict(registry._ENTRIES["angular"])
    try:
        hs.register("angular", "own_activation")(lambda cos: cos)
        assert hs.models.Style(angular="own_activation").angular == "own_activation"
        with pytest.raises(ValueError, match="did you mean 'own_activation'"):
            hs.models.Style(angular="own_activatio")
    finally:
        registry._ENTRIES["angular"].clear()
        registry._ENTRIES["angular"].update(before)
