import json
import math

import pytest
import torch

from hypersphere import functional as HF
from hypersphere.cli import main
from hypersphere.functional._kernels.energy.newton import newton

from reference.thomson import TAMMES, THOMSON


def energy(points, s=1.0, half_space=False):
    return float(HF.hyperspherical_energy(points, s, half_space, reduction="sum")) / 2


def check_unit(points, n, dim):
    assert points.shape == (n, dim) and points.dtype == torch.float64
    torch.testing.assert_close(points.norm(dim=1), torch.ones(n, dtype=torch.float64))


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 8, 12, 24])
def test_thomson_optima_by_default_settings(n):
    points = HF.minimize_energy(n, 3)
    check_unit(points, n, 3)
    assert energy(points) == pytest.approx(THOMSON[n], abs=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("n", [16, 32, 47, 56, 69, 78])  # the last three are the rarest basins
def test_more_of_the_published_table(n):
    assert energy(HF.minimize_energy(n, 3)) == pytest.approx(THOMSON[n], abs=1e-6)


@pytest.mark.parametrize("n", [5, 7])
def test_tammes_by_default_settings(n):
    points = HF.minimize_energy(n, 3, math.inf)
    check_unit(points, n, 3)
    assert math.degrees(HF.separation_distance(points)) == pytest.approx(TAMMES[n], abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("n", sorted(set(TAMMES) - {5, 7}))
def test_more_packings(n):
    points = HF.minimize_energy(n, 3, math.inf)
    assert math.degrees(HF.separation_distance(points)) == pytest.approx(TAMMES[n], abs=1e-6)


@pytest.mark.parametrize("s", [0.0, 1.0, 9.0, 30.0, 2000.0, math.inf])
@pytest.mark.parametrize("dim", [2, 5])
def test_simplex_in_every_dimension_for_every_s(s, dim):
    points = HF.minimize_energy(dim + 1, dim, s, restarts=6)
    cos = (points @ points.T)[~torch.eye(dim + 1, dtype=torch.bool)]
    torch.testing.assert_close(cos, torch.full_like(cos, -1 / dim), rtol=0, atol=1e-7)


def test_cross_polytope_and_lines():
    points = HF.minimize_energy(8, 4, restarts=10)  # the 16-cell
    cos = (points @ points.T).flatten()
    assert all(min(abs(c - k) for k in (-1, 0, 1)) < 1e-6 for c in cos.tolist())
    lines = HF.minimize_energy(6, 3, half_space=True, restarts=10)  # axes of the icosahedron
    cos = (lines @ lines.T).abs()[~torch.eye(6, dtype=torch.bool)]
    torch.testing.assert_close(cos, torch.full_like(cos, 5**-0.5), rtol=0, atol=1e-7)
    packed = HF.minimize_energy(6, 3, math.inf, half_space=True, restarts=10)
    cos = (packed @ packed.T).abs()[~torch.eye(6, dtype=torch.bool)]
    torch.testing.assert_close(cos, torch.full_like(cos, 5**-0.5), rtol=0, atol=1e-7)


def test_logarithmic_energy_of_whyte():
    octahedron = torch.cat([torch.eye(3), -torch.eye(3)]).double()
    assert energy(HF.minimize_energy(6, 3, 0.0), 0.0) == pytest.approx(energy(octahedron, 0.0))


def test_steep_energies_lie_between_their_neighbours():
    """As s grows the smallest angle rises towards that of the packing, here n = 7."""
    found = [HF.minimize_energy(7, 3, s, restarts=20) for s in (1.0, 12.0, 13.0, 100.0, 1e4)]
    angles = [math.degrees(HF.separation_distance(points)) for points in found]
    assert angles == sorted(angles)
    assert angles[-1] == pytest.approx(TAMMES[7], abs=0.02)
    assert abs(angles[2] - angles[1]) < 0.3  # the two ways to the minimum meet


def test_the_finish_leaves_no_gradient():
    points = HF.minimize_energy(19, 3, 1.0, restarts=4).requires_grad_()
    HF.hyperspherical_energy(points, 1.0, reduction="sum").backward()
    assert float(points.grad.norm()) < 1e-7


@pytest.mark.parametrize(
    "n, dim, s, half_space",
    [(3, 3, 1.0, True), (5, 2, 0.0, False), (40, 40, 1.0, True)],  # the last without a Hessian
)
def test_forces_that_cancel_altogether_leave_nothing_to_do(n, dim, s, half_space):
    """Orthogonal lines, five points on a circle: the sum of the forces is 0. A warning fails."""
    points = HF.minimize_energy(n, dim, s, half_space)
    cos = points @ points.T - torch.eye(n, dtype=torch.float64)
    assert float(cos.max()) < (1e-7 if half_space else math.cos(2 * math.pi / 5) + 1e-7)


def test_a_configuration_that_is_not_finished_is_told(monkeypatch):
    from hypersphere.functional import points

    monkeypatch.setattr(points, "newton", lambda x, p: newton(x, p, iterations=0))
    monkeypatch.setattr(points, "descend", lambda objective, x: (x, objective(x)[0]))
    with pytest.warns(UserWarning, match="the gradient is still .* of the forces in it"):
        HF.minimize_energy(30, 3, restarts=1)


def test_same_seed_same_points():
    a, b = (HF.minimize_energy(9, 3, restarts=3, seed=5) for _ in range(2))
    assert torch.equal(a, b)
    assert not torch.equal(a, HF.minimize_energy(9, 3, restarts=3, seed=6))


def test_smallest_problems():
    check_unit(HF.minimize_energy(1, 3), 1, 3)
    assert HF.minimize_energy(2, 1).flatten().tolist() == [1.0, -1.0]


@pytest.mark.parametrize(
    "arguments, message",
    [((0, 3), "n >= 1"), ((3, 0), "dim >= 1"), ((3, 3, -1.0), "s >= 0"), ((3, 1), "two directions"),
     ((3, 3, math.nan), "s >= 0"), ((3, 3, 1.0, False, 0), "at least 1")],
)  # fmt: skip
def test_wrong_arguments_are_told(arguments, message):
    with pytest.raises(ValueError, match=message):
        HF.minimize_energy(*arguments)


def test_command_prints_saves_and_draws(tmp_path, capsys):
    csv, png, html = (tmp_path / f"points.{kind}" for kind in ("csv", "png", "html"))
    assert main(["points", "12", "--restarts", "5", "--out", str(csv), "--draw", str(png)]) == 0
    text = capsys.readouterr().out
    assert "49.165253058" in text and "63.434949 degrees" in text and "37.377368" in text
    sphere = [line for line in text.splitlines() if set(line) <= set(" .o")]
    assert len(sphere) == 17 and sum(line.count("o") for line in sphere) == 12
    rows = [list(map(float, line.split(","))) for line in csv.read_text().splitlines()]
    assert energy(torch.tensor(rows, dtype=torch.float64)) == pytest.approx(THOMSON[12])
    assert png.stat().st_size > 5000
    lines = ["points", "3", "-s", "inf", "--half-space", "--restarts", "5", "--json"]
    assert main([*lines, "--draw", str(html)]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["minimal_angle"] == pytest.approx(90) and result["energy"] is None
    text = html.read_text(encoding="utf-8")
    assert "<canvas" in text and html.stat().st_size < 40_000 and "smallest angle" in text


def test_command_compares_with_the_record(tmp_path, capsys):
    html = tmp_path / "icosahedron.html"
    words = ["points", "12", "-s", "inf", "--restarts", "8", "--symmetry", "H3"]
    assert main([*words, "--draw", str(html)]) == 0
    text = capsys.readouterr().out
    assert "63.4349488 degrees: reached, to all its digits" in text and "Sloane" in text
    page = html.read_text(encoding="utf-8")
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert len(data["contacts"]) == 30 and len(data["faces"]) == len(data["holes"]) == 20
    assert data["degrees"] == [5] * 12 and data["rattlers"] == []
    assert data["deepest"] == pytest.approx(math.radians(37.377368), abs=1e-6)
    assert main(["points", "9", "--restarts", "1", "--seed", "3", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["behind"] == pytest.approx(result["energy"] - THOMSON[9], abs=1e-12)
    assert main(["points", "12", "--symmetry", "E8"]) == 2
    assert "unknown symmetry" in capsys.readouterr().err


@pytest.mark.parametrize("s", [20.0, 1000.0, 3000.0])
def test_command_tells_the_energy_of_large_powers(s, capsys):
    """Four points have the distance sqrt(8/3) six times; of 50, that of the nearest decides."""
    assert main(["points", "4", "-s", str(s), "--restarts", "3", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    expected = math.log10(6) - s / 2 * math.log10(8 / 3)
    assert result["log10_energy"] == pytest.approx(expected, rel=1e-9)
    held = pytest.approx(10**expected, rel=1e-6) if expected > -300 else None
    assert result["energy"] == held
    assert main(["points", "50", "-s", str(s), "--restarts", "2"]) == 0
    text = capsys.readouterr().out
    angle = float(text.split("minimal angle")[1].split()[0])
    shortest = -s * math.log10(2 * math.sin(math.radians(angle) / 2))
    if s > 20:
        power = float(text.split("(unordered pairs)  10^")[1].split()[0])
        assert shortest < power < shortest + math.log10(50 * 49 / 2)


def test_command_says_where_the_covering_radius_is_a_bound(capsys):
    outputs = []
    for seed in (1, 2):
        torch.manual_seed(seed)  # of everything else in the process
        assert main(["points", "16", "--dim", "8", "--restarts", "2"]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] and "covering radius           at least " in outputs[0]
    assert main(["points", "3", "--dim", "8", "--restarts", "2"]) == 0
    assert "at least" not in capsys.readouterr().out  # of points in a plane it is exact


def test_squares_on_the_hull_are_one_face():
    from hypersphere.reports.sphere_page import configuration

    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 3)
    cube = configuration(HF.normalize(signs), contacts=True)
    assert sorted(map(len, cube["faces"])) == [4] * 6 and cube["degrees"] == [3] * 8
    assert len(cube["contacts"]) == 12
    flat = configuration(HF.normalize(signs[:, :2]).unique(dim=0) @ torch.eye(2, 3))
    assert flat["faces"] == [] and flat["holes"] == []


def test_command_tells_what_is_wrong(capsys, monkeypatch):
    assert main(["points", "3", "--dim", "1"]) == 2
    assert "two directions" in capsys.readouterr().err
    monkeypatch.setattr(HF, "minimize_energy", lambda *_: pytest.fail("solved in vain"))
    for words in (
        ["--out", "p.xyz"],
        ["--draw", "p.txt"],
        ["--dim", "4", "--draw", "x.png"],
        ["--out", "no-such-folder/p.csv"],
    ):
        with pytest.raises(SystemExit):
            main(["points", "12", *words])
