"""The demonstrations of chapters 5 and 6 show what the text says."""

import importlib.util
import math
from pathlib import Path

import pytest
import torch

from hypersphere import functional as HF
from tolerances import close

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(f"examples_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("s, d", [(0.5, 2), (1.0, 2), (0.7, 3), (2.0, 6)])
def test_energy_integral_in_closed_form_is_the_sampled_one(s, d):
    asymptotics = load("asymptotics")
    sampled = asymptotics.sampled_energy_integral(s, d, pairs=100_000)
    assert asymptotics.energy_integral(s, d) == pytest.approx(sampled, rel=0.01)
    with pytest.raises(ValueError, match="0 < s < d"):
        asymptotics.energy_integral(float(d), d)


@pytest.mark.slow
@pytest.mark.parametrize("s", [0.5, 1.0, 2.0])
def test_theorem_2_limits(s):
    asymptotics = load("asymptotics")
    sizes = (12, 20, 32, 48)
    energies = asymptotics.minimal_energies(s, 2, sizes)
    limit = asymptotics.energy_integral(s, 2) if s < 2 else asymptotics.critical_limit(2)
    estimate = asymptotics.estimated_limit(s, 2, sizes, energies)
    assert estimate == pytest.approx(limit, rel=0.02)
    last = energies[-1] / asymptotics.growth(sizes[-1], s, 2)
    assert abs(last - limit) > abs(estimate - limit)  # the limit is approached, not yet reached


@pytest.mark.slow
def test_theorem_2_above_the_dimension_the_ratio_settles():
    asymptotics = load("asymptotics")
    sizes = (10, 20, 40)
    energies = asymptotics.minimal_energies(4.0, 2, sizes)
    a, b, c = (e / asymptotics.growth(n, 4.0, 2) for n, e in zip(sizes, energies, strict=True))
    assert abs(c - b) < 0.7 * abs(b - a) and c / b < 1.1
    as_squares = [e / n**2 for n, e in zip(sizes, energies, strict=True)]
    assert as_squares[2] > 3 * as_squares[0]  # N^2 would be the wrong power


@pytest.mark.parametrize("kind", ["gaussian", "signs"])
@pytest.mark.parametrize("degrees", [20, 80])
@pytest.mark.parametrize("k, eps", [(30, 0.8), (150, 0.45)])
def test_theorems_3_and_4_keep_their_promise(kind, degrees, k, eps):
    angles = load("angle_preservation")
    cos = math.cos(math.radians(degrees))
    cosines = angles.projected_cosines(cos, 200, k, 300, kind)
    assert 0 < angles.probability_3(k, eps) < 1 and 0 < angles.probability_4(k, eps) < 1
    assert angles.coverage(cosines, angles.bounds_3(cos, eps)) >= angles.probability_3(k, eps)
    if kind == "gaussian":
        assert angles.coverage(cosines, angles.bounds_4(cos, eps)) >= angles.probability_4(k, eps)
    wider = angles.projected_cosines(cos, 200, 4, 300, kind)
    assert (cosines - cos).abs().mean() < (wider - cos).abs().mean()  # more dimensions, less error


def test_which_theorem_is_tighter_depends_on_the_angle():
    angles = load("angle_preservation")
    eps = 0.3
    crossing = (eps + 3 * eps**2) / (
        3 * eps + eps**2
    )  # below this cosine Theorem 3's bound is better
    for cos, third_better in ((crossing - 0.05, True), (crossing + 0.05, False)):
        third, fourth = angles.bounds_3(cos, eps)[0], angles.bounds_4(cos, eps)[0]
        assert (third > fourth) is third_better


@pytest.mark.slow
def test_figure_5_1():
    trajectories = load("trajectories")
    ends = {name: path[-1] for name, path in trajectories.figure_5_1().items()}
    energy = {name: float(HF.hyperspherical_energy(x, 2.0)) for name, x in ends.items()}
    half = {name: float(HF.hyperspherical_energy(x, 2.0, True)) for name, x in ends.items()}
    assert min(energy, key=energy.get) == "MHE"
    assert min(half, key=half.get) == "half-space MHE"
    best = HF.minimize_energy(10, 3, 2.0, restarts=10)
    assert energy["MHE"] == pytest.approx(float(HF.hyperspherical_energy(best, 2.0)), rel=1e-3)
    angle = {name: float(HF.separation_distance(x)) for name, x in ends.items()}
    assert angle["orthonormal"] < 0.6 * angle["MHE"]  # it groups neurons


@pytest.mark.slow
def test_figures_d_1_and_d_2_heavy_neurons_stay(tmp_path):
    trajectories = load("trajectories")
    for heavy in (1, 2):
        paths = {beta: trajectories.weighted(beta, heavy, steps=150) for beta in (1.0, 4.0, 10.0)}
        for neuron in range(heavy):
            ways = [trajectories.length(path, neuron) for path in paths.values()]
            assert ways[0] > ways[1] > ways[2]
            light = trajectories.length(paths[10.0], 9)
            assert ways[2] < light
    trajectories.draw_weighted({"a": paths[1.0], "b": paths[4.0]}, 2, tmp_path / "d.png")
    trajectories.draw_5_1({"MHE": paths[1.0], "half-space MHE": paths[1.0]}, tmp_path / "5.png")
    assert (tmp_path / "d.png").stat().st_size > 5000 and (tmp_path / "5.png").stat().st_size > 5000
    norms = paths[1.0].norm(dim=-1)
    close(norms, torch.ones_like(norms))
