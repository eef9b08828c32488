import ast
import inspect
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import hypersphere as hs
from hypersphere import evaluation, reports
from hypersphere import functional as HF
from hypersphere.reports import figures
from hypersphere.reports.claims import read_claims

ROOT = Path(__file__).resolve().parents[2]
STEPS = np.arange(0, 100, 10)
LABELS = np.arange(60) % 12
HISTORY = np.cumsum(np.random.default_rng(0).normal(size=(20, 6, 3)), 0)
IMAGES = np.random.default_rng(0).random((5, 8, 8))

# One honest call of every figure; the test below fails if a figure is missing here.
CALLS = {
    "angular_curves": lambda: figures.angular_curves({"cosine": lambda c: HF.angular(c, "cosine")}),
    "margin_curves": lambda: figures.margin_curves(
        {"m = 2": lambda c: 2 * c * c - 1 - 2 * (c < 0)}
    ),
    "magnitude_curves": lambda: figures.magnitude_curves(
        {"tanh": torch.tanh, "linear": lambda n: n}
    ),
    "features_2d": lambda: figures.features_2d(torch.randn(60, 2), LABELS, torch.randn(12, 2)),
    "features_3d": lambda: figures.features_3d(torch.randn(60, 3), LABELS, torch.randn(12, 3)),
    "pair_angle_histogram": lambda: figures.pair_angle_histogram([0.1, 0.2], [1.5, 1.6]),
    "value_histogram": lambda: figures.value_histogram(torch.rand(64), "k"),
    "class_cosine_matrix": lambda: figures.class_cosine_matrix(np.eye(4), ["a", "b", "c", "d"]),
    "training_curves": lambda: figures.training_curves(
        {"a": [(STEPS, STEPS / 100), (STEPS, STEPS / 90)], "b": [(STEPS, 1 - STEPS / 100)]}, "error"
    ),
    "energy_curves": lambda: figures.energy_curves({"conv": (STEPS, 2 - STEPS / 100)}),
    "error_against": lambda: figures.error_against([1, 2, 4], {"A-Softmax": np.eye(3)}, "m"),
    "roc_curves": lambda: figures.roc_curves({"plain": ([0, 0.01, 1], [0, 0.9, 1])}),
    "cmc_curves": lambda: figures.cmc_curves({"plain": [0.5, 0.7, 0.8]}),
    "adversarial_strength": lambda: figures.adversarial_strength({"plain": [3.0, 1.0, 2.0]}),
    "neuron_trajectories": lambda: figures.neuron_trajectories(HISTORY, mirrored=True),
    "point_configuration": lambda: figures.point_configuration(np.eye(3)),
    "filters": lambda: figures.filters(torch.randn(10, 3, 3, 3)),
    "image_grid": lambda: figures.image_grid(IMAGES, title="generated"),
    "reconstructions": lambda: figures.reconstructions(IMAGES, {"angles": IMAGES, "norms": IMAGES}),
    "claim_dots": lambda: figures.claim_dots(read_claims(ROOT / "results" / "claims")[0]),
    "reliability_diagram": lambda: figures.reliability_diagram(
        {"logistic": evaluation.reliability(torch.rand(200), torch.arange(200) % 2 == 0)}
    ),
    "quality_against_norm": lambda: figures.quality_against_norm(
        evaluation.quality_by_norm(torch.randn(60, 5), LABELS)
    ),
    "error_by_size": lambda: figures.error_by_size({"plain": _growth()}),
}


def _growth():
    people = torch.randn(40, 8)
    probes = torch.cat([people[:20] + 0.3 * torch.randn(20, 8), torch.randn(200, 8)])
    ids = [*range(20), *range(100, 300)]
    return evaluation.error_by_gallery_size(probes, people[:20], ids, range(20), far=0.05)


def test_every_figure_is_called_here():
    assert set(CALLS) == set(figures.__all__)
    assert all(inspect.getdoc(getattr(figures, name)) for name in figures.__all__)


@pytest.mark.parametrize("name", CALLS)
def test_figure_is_drawn_and_saved_both_ways(name, tmp_path):
    figure = CALLS[name]()
    png, svg = reports.save(figure, tmp_path / name)
    assert png.read_bytes()[:4] == b"\x89PNG"
    assert b"<svg" in svg.read_bytes()
    assert np.asarray(Image.open(png).convert("L"), dtype=float).std() > 1  # something is on it
    for axes in figure.axes:
        flat = not hasattr(axes, "zaxis") and axes.axison
        if flat and name not in ("reconstructions", "class_cosine_matrix", "claim_dots"):
            assert axes.get_xlabel() and axes.get_ylabel()


@pytest.mark.parametrize("name", CALLS)
def test_no_legend_looks_for_the_best_place(name):
    """matplotlib's loc="best" (0) is slow for long curves, and warns."""
    for axes in CALLS[name]().axes:
        legend = axes.get_legend()
        assert legend is None or legend._get_loc() != 0


@pytest.mark.parametrize("folder", ["src", "examples"])
def test_every_legend_has_a_place(folder):
    """Without one, matplotlib looks for it, and warns if the machine is busy."""
    root = Path(__file__).parents[2] / folder
    calls = [
        (path.name, node)
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "legend"
    ]
    assert calls
    missing = [
        f"{name}:{call.lineno}"
        for name, call in calls
        if "loc" not in {keyword.arg for keyword in call.keywords}
    ]
    assert missing == []


def test_legends_stand_below_the_axes():
    for name in ("training_curves", "energy_curves", "roc_curves", "pair_angle_histogram"):
        figure = CALLS[name]()
        figure.canvas.draw()
        for axes in figure.axes:
            legend = axes.get_legend()
            if legend is not None:
                assert legend.get_window_extent().y1 <= axes.get_window_extent().y0, name


def test_figures_show_the_numbers_they_were_given():
    lines = CALLS["training_curves"]().axes[0].lines
    np.testing.assert_allclose(lines[0].get_ydata(), (STEPS / 100 + STEPS / 90) / 2)
    energy = CALLS["energy_curves"]().axes[0].lines[0].get_ydata()
    np.testing.assert_allclose(energy, (2 - STEPS / 100) / 2)
    strength = CALLS["adversarial_strength"]().axes[0].lines[0].get_ydata()
    np.testing.assert_allclose(strength, [1, 2, 3])
    curve = CALLS["angular_curves"]().axes[0].lines[0]
    np.testing.assert_allclose(curve.get_ydata(), np.cos(np.linspace(0, math.pi, 361)), atol=1e-12)


def test_results_of_evaluations_can_be_drawn_as_they_are():
    same = torch.arange(40) % 2 == 0
    a = torch.randn(40, 6)
    b = torch.where(same[:, None], a + 0.1 * torch.randn(40, 6), torch.randn(40, 6))
    result = hs.evaluation.verification(a, b, same, protocol="plain")
    line = figures.roc_curves({"plain": result}).axes[0].lines[0]
    np.testing.assert_allclose(line.get_ydata(), result.roc.tar)
    ids = torch.arange(20)
    found = hs.evaluation.identification(b[:20], a[:20], ids, ids, ranks=(1, 5))
    line = figures.cmc_curves({"digits": found}).axes[0].lines[0]
    np.testing.assert_allclose(line.get_ydata(), found.cmc[-1])


def test_the_same_figure_gives_the_same_file(tmp_path):
    for name in ("one.svg", "two.svg"):
        reports.save(CALLS["roc_curves"](), tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: figures.features_2d(np.ones((4, 3)), [0] * 4), r"\(n, 2\); got \(4, 3\)"),
        (
            lambda: figures.features_2d(np.ones((4, 2)), [0] * 3),
            r"one label per point \(4\), got 3",
        ),
        (lambda: figures.features_3d(np.full((2, 3), np.nan), [0, 1]), "NaN or infinite"),
        (lambda: figures.class_cosine_matrix(np.ones((2, 3))), r"square \(C, C\) matrix"),
        (lambda: figures.point_configuration(np.eye(4)), r"points \(n, 3\), got \(4, 4\)"),
        (lambda: figures.training_curves({"a": []}, "loss"), "a has no seeds"),
        (lambda: figures.image_grid(np.ones((2, 5, 4, 4))), "1 or 3 channels"),
        (lambda: figures.cmc_curves({"a": []}), "a is empty"),
        (lambda: figures.error_against([1, 2], {"a": [1]}, "m"), "1 errors for 2 values of m"),
    ],
)
def test_wrong_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_result_tables(tmp_path):
    import json

    good = {"table": "Table 3.1", "unit": "accuracy (%)", "command": "hypersphere compare ...",
            "rows": [{"name": "sigmoid", "ours": [90.0, 92.0], "dissertation": 91.31}]}  # fmt: skip
    (tmp_path / "t.json").write_text(json.dumps(good))
    table = reports.markdown_table(reports.read_result(tmp_path / "t.json"))
    assert "| sigmoid | 91.00 ± 1.41 (2 seeds) | 91.31 | none |" in table
    (tmp_path / "t.json").write_text(json.dumps({"table": "x"}))
    with pytest.raises(ValueError, match="is no result file: it has no 'unit'"):
        reports.read_result(tmp_path / "t.json")
