"""`hypersphere models`, the layer list, and the table in the docs."""

from pathlib import Path

import pytest

from hypersphere import cli, models
from hypersphere.models import summary

PAGE = Path(__file__).resolve().parents[2] / "docs" / "models.md"


@pytest.mark.parametrize(
    "name", ["cnn9_c1", "sngan_discriminator", "pointnet_tnet", "resnet20", "gcn"]
)
def test_rows_add_up_and_end_in_the_features(name):
    model = models.create(name)
    rows = models.layer_rows(model, batch=3)
    assert sum(row.parameters for row in rows) == models.count_parameters(model)
    last = [row for row in rows if row.kind != "Dropout"][-1]
    assert last.shape[:2] == (3, model.out_features)
    assert model.training  # as it was


def test_a_layer_row_by_hand():
    rows = {row.name: row for row in models.layer_rows(models.create("cnn3", image_size=10))}
    assert rows["body.conv2_1.conv"] == ("body.conv2_1.conv", "Conv2d", (2, 96, 5, 5), 64 * 96 * 9)
    assert rows["body.pool2"].shape == (2, 96, 3, 3)
    assert rows["embedding.linear"].parameters == 128 * 2 * 2 * 256


def test_the_list_names_every_model(capsys):
    assert cli.main(["models"]) == 0
    printed = capsys.readouterr().out
    for name in models.list_models():
        assert f"\n{name} " in printed
    assert "Table B.1" in printed and "1,228,672" in printed


def test_one_model(capsys):
    assert cli.main(["models", "cnn3", "in_channels=1", "widths=4,6,8", "norm=none"]) == 0
    printed = capsys.readouterr().out
    assert "body.conv1_1.conv" in printed and "2 x 4 x 32 x 32" in printed
    assert f"{9 * (4 + 4 * 6 + 6 * 8) + 8 * 16 * 256:,} parameters" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cnn99"], "did you mean 'cnn9'"),
        (["cnn9", "widht=3"], "did you mean 'widths'"),
        (["cnn9", "wide"], "expected OPTION=VALUE, got 'wide'"),
    ],
)
def test_mistakes_on_the_command_line(arguments, message, capsys):
    assert cli.main(["models", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_the_table_in_the_docs_is_up_to_date():
    assert summary.models_markdown() in PAGE.read_text(), (
        "docs/models.md is behind the registry: python docs/figures/make_models.py --table"
    )
