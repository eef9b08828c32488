"""What a visitor sees first: name, first result, README, figures, words.

The bar and the columns of the terminal are in commands/test_first_hour.py, the options of
`train --help` in training/test_parts.py, own parts in commands/test_plugins.py and in the blocks of
docs/extending.md, the report page in reports/test_page.py.
"""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import tomllib
from matplotlib.backends.backend_agg import FigureCanvasAgg

from hypersphere import cli, data
from hypersphere.commands import _config
from hypersphere.reports import figures
from hypersphere.reports.style import COLORS
from hypersphere.training.run.resume import MAY_CHANGE

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_name_is_ours_and_no_address_is_invented():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == "torch-hypersphere" and "urls" not in project
    for page in PAGES:
        assert not re.search(r"pip install (-\S+ )*hypersphere\b", page.read_text()), page


def test_the_default_run_beats_raw_pixels_and_softmax_on_every_seed():
    seeds = json.loads((ROOT / "results" / "letters.json").read_text())["seeds"]
    raw, softmax, ours = ([run["accuracy"] for run in seeds[name]] for name in seeds)
    assert len(ours) == 5
    assert all(p < s < o for p, s, o in zip(raw, softmax, ours, strict=True))


def test_small_variants_keep_what_the_table_is_about():
    widths = []
    for factor in (1, 2, 4, 8, 16):
        recipe = f"{ROOT}/recipes/ch5/table-5.2.yaml:t{factor}_baseline,cpu"
        widths.append(tuple(_config.read(recipe, []).model["widths"]))
    assert widths == [tuple(f * w for w in widths[0]) for f in (1, 2, 4, 8, 16)]


def test_readme_has_a_picture_a_result_and_what_each_part_costs_and_brings():
    text = (ROOT / "README.md").read_text()
    (picture,) = re.findall(r"!\[.*?\]\((\S+)\)", text)
    assert (ROOT / picture).stat().st_size > 10_000
    assert "<!-- printed: train -->" in text and "<!-- table: claims-count -->" in text
    assert "this run" in text and "points more of them right than the plain network" in text
    assert '<!-- figure: letters "gain"' in text
    table = text[text.index("| part |") :].split("\n\n")[0].splitlines()[2:]
    for row in table:
        _, part, line, costs, brings, _ = re.sub(r"<!--.*?-->", "", row).split("|")
        assert "](docs/" in part and ("`hs." in line or "`gallery." in line)
        assert costs.strip() and brings.strip(), part


def test_twelve_classes_have_twelve_colors():
    assert len(set(COLORS[:12])) == 12


def test_figures_have_one_style():
    """No other palette, no sphere of its own, and every picture of the docs has its script."""
    scripts = [*ROOT.glob("docs/figures/*.py"), *ROOT.glob("examples/*.py")]
    sources = [
        p for p in (ROOT / "src").rglob("*.py") if "reports" in p.parts or "commands" in p.parts
    ]
    assert len(scripts) >= 20 and len(sources) > 50
    for path in [*scripts, *sources]:
        found = re.search(r"\btab:|tab10|plot_wireframe", path.read_text())
        assert not found, f"{path.name}: {found and found[0]}; take hypersphere.reports.style"
    for picture in ROOT.glob("docs/figures/*.png"):
        assert (ROOT / "docs" / "figures" / f"make_{picture.stem}.py").exists(), picture.name
        assert picture.stat().st_size < 300_000, picture.name


@pytest.mark.parametrize("curves", [1, 5, 12])
def test_a_legend_below_does_not_touch_the_axis(curves):
    layers = {f"backbone.body.block{i}.conv": ([0, 1], [1.0, 1.0 + i]) for i in range(curves)}
    drawing = figures.energy_curves(layers)
    canvas = FigureCanvasAgg(drawing)
    canvas.draw()
    (axes,) = drawing.axes
    renderer = canvas.get_renderer()
    label, legend = axes.xaxis.label, axes.get_legend()
    assert legend.get_window_extent(renderer).y1 <= label.get_window_extent(renderer).y0


def test_a_drawn_configuration_is_small_enough_to_mail(tmp_path):
    page = tmp_path / "points.html"
    assert cli.main(["points", "8", "--restarts", "2", "--draw", str(page)]) == 0
    assert page.stat().st_size < 5_000_000
    assert "plotly" not in page.read_text().lower()


def test_letters_that_look_alike_are_told_apart_by_their_alphabets():
    names = data.load("letters", copies=1, per_fold=10).train.classes
    assert "A (Latin, Greek, Cyrillic)" in names and "D" in names
    names = data.load("letters", copies=1, per_fold=10, share_lookalikes=False).train.classes
    assert {"A (Latin)", "\u0391 (Greek)", "\u0410 (Cyrillic)"} <= set(names)


def test_the_page_and_the_code_agree_on_what_may_change_on_resume():
    text = (ROOT / "docs" / "training.md").read_text()
    sentences = text[text.index("is refused by name. May") :].split("Such a change")[0]
    assert sorted(re.findall(r"`([\w.]+)`", sentences)) == sorted(MAY_CHANGE)


def test_help_tells_what_holds_in_this_run(capsys):
    def told(*words):
        assert cli.main(["train", *words]) == 0
        return " ".join(capsys.readouterr().out.split())

    assert "Default: 0.1. In this run: 0.05." in told("--help", "optimizer.lr")
    shown = told("--help", "head")
    assert "Default: 1000. In this run: 100." in shown  # head.annealing.base
    assert "In this run: 0.3." in told("--optimizer.lr", "0.3", "--help", "optimizer.lr")
    assert "In this run" not in told("--help", "head.arcface")  # not the head of this run


def test_what_cannot_be_drawn_says_what_to_do():
    for draw in (figures.features_3d, figures.point_configuration):
        arguments = (np.ones((8, 16)), np.zeros(8))[: 2 if draw is figures.features_3d else 1]
        with pytest.raises(ValueError, match=r"\(n, 3\).*\(8, 16\).* directions"):
            draw(*arguments)


@pytest.mark.parametrize(
    "phrase",
    [
        r"one (number|hole|value|row) an? \w+",
        "filters be",
        "Who goes on",
        "stands in brackets",
        "culprit",
    ],
)
def test_the_words_are_plain_english(phrase):
    sources = sorted((ROOT / "src").rglob("*.py"))
    assert len(sources) > 300
    for path in [*PAGES, *sources]:
        text = " ".join(path.read_text().split())
        assert not re.search(phrase, text), f"{path.name}: {re.search(phrase, text)}"
