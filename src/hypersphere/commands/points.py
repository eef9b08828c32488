"""`hypersphere points`: spread points on a sphere and say how good the configuration is."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import functional as HF
from .._optional import require
from .._terminal import complain
from ..functional.covering import MAX_HULL_DIM
from ._memory import memory_of_machine
from ._numbers import Count, Seed, read_as
from ._output import output_file

__all__ = ["main"]

OUT = (".csv", ".npy", ".pt")
DRAW = (".png", ".svg", ".pdf", ".html")


def main(argv: list[str]) -> int:
    parser = _parser()
    options = parser.parse_args(argv)
    # What cannot be written is said before the work, not after it.
    if options.draw is not None and options.dim not in (2, 3):
        parser.error(f"--draw shows circles and spheres, --dim 2 or 3; got --dim {options.dim}")
    for path in (options.out, options.draw):
        if path is not None and not path.parent.is_dir():
            parser.error(f"there is no folder {path.parent} for {path.name}")
    needed, there = 8 * options.n * options.dim, memory_of_machine()
    if there is not None and needed > there / 4:  # beside the points, gradients and copies of them
        complain(
            "points",
            f"{options.n:,} points in {options.dim:,} dimensions take {needed / 1e9:,.0f} GB, and "
            f"several times that to spread them; this machine has {there / 1e9:,.0f} GB: ask for "
            f"fewer",
        )
        return 2
    try:
        points = HF.minimize_energy(
            options.n,
            options.dim,
            options.s,
            options.half_space,
            options.restarts,
            options.seed,
            options.symmetry,
        )
        result = describe(points, options.s, options.half_space)
    except ValueError as error:
        complain("points", error)
        return 2
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, RuntimeError) and "allocate memory" not in str(error):
            raise
        complain("points", f"{options.n:,} points take more memory than there is: ask for fewer")
        return 1
    print(json.dumps(result) if options.json else _table(result))
    if not options.json and options.dim == 3 and not options.no_sphere:
        print(_text_sphere(points))
    if options.out is not None:
        save(points, options.out)
    if options.draw is not None:
        draw(points, options.draw, options.half_space, options.s)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hypersphere points",
        description="Points of minimum energy on a sphere: Thomson s=1, Whyte s=0, Tammes s=inf.",
    )
    parser.add_argument("n", type=read_as(Count), help="number of points")
    parser.add_argument(
        "--dim", type=read_as(Count), default=3, help="dimension of the space (default: 3)"
    )
    parser.add_argument(
        "-s", "--s", type=float, default=1.0, help="power of the kernel; inf: Tammes (default: 1)"
    )
    parser.add_argument(
        "--half-space", action="store_true", help="spread lines: the points and -points"
    )
    parser.add_argument(
        "--restarts", type=read_as(Count), help="random starts (default: chosen by n)"
    )
    parser.add_argument(
        "--seed", type=read_as(Seed), default=0, help="of the random starts (default: 0)"
    )
    parser.add_argument(
        "--symmetry",
        help="starts from orbits of a group: any, or one such as H3+, B3, D5, E8, C5 (default: "
        "random starts)",
    )
    parser.add_argument("--out", type=output_file(*OUT), help="write the points: .csv, .npy or .pt")
    parser.add_argument(
        "--draw",
        type=output_file(*DRAW),
        help="draw the sphere: .png, .svg, .pdf, or .html to turn",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--no-sphere", action="store_true", help="no sphere in the terminal")
    return parser


def describe(points: Tensor, s: float, half_space: bool = False) -> dict[str, Any]:
    """Energy over unordered pairs, smallest angle and covering radius, in degrees.

    An energy that no float can hold is None; log10_energy is there for every s > 0. Where
    covering_radius_exact is False, the radius is at least what is given.

    >>> octahedron = torch.cat([torch.eye(3), -torch.eye(3)]).double()
    >>> round(describe(octahedron, s=1.0)["energy"], 6)
    9.985281
    """
    everything = torch.cat([points, -points]) if half_space else points
    several = len(everything) > 1
    finite = math.isfinite(s) and several
    energy, log10_energy = _energy(everything, s) if finite else (None, None)
    angle = math.degrees(float(HF.separation_distance(everything))) if several else None
    # The random directions of the bound are the same each time, whatever was drawn before
    generator = torch.Generator().manual_seed(0)
    radius = math.degrees(float(HF.covering_radius(everything, generator=generator)))
    exact = points.shape[1] <= MAX_HULL_DIM or radius >= 90
    known = None if half_space else HF.best_known(len(points), points.shape[1], s)
    ours = energy if finite else angle
    behind = None
    if known is not None and ours is not None:
        # How far behind the record, in its unit: positive is worse
        behind = ours - known.value if finite else known.value - ours
    return {
        "n": len(points),
        "dim": points.shape[1], "s": s if math.isfinite(s) else "inf", "half_space": half_space,
        "energy": energy, "log10_energy": log10_energy, "minimal_angle": angle,
        "covering_radius": radius, "covering_radius_exact": exact,
        "record": known and known.value, "behind": behind, "precision": known and known.precision,
        "source": known and known.source,
    }  # fmt: skip


def _energy(points: Tensor, s: float) -> tuple[float | None, float | None]:
    """Energy over unordered pairs and its decimal logarithm, None where there is none.

    Of the distances as they are: `hyperspherical_energy` has a floor on them, which is high for a
    large s.
    """
    total, logs = 0.0, []
    for start in range(0, len(points), 1024):
        rows = points[start : start + 1024]
        distance = torch.cdist(rows, points, compute_mode="donot_use_mm_for_euclid_dist")
        # Every pair once: those of a row with later ones
        later = torch.ones_like(distance, dtype=torch.bool).triu(start + 1)
        log = -distance[later].log()
        total += float(log.sum() if s == 0 else (s * log).exp().sum())
        logs.append((s * log).logsumexp(0))
    if s == 0:
        return total, None
    held = total if 0 < total < math.inf else None
    return held, float(torch.stack(logs).logsumexp(0)) / math.log(10)


def _energy_text(result: dict[str, Any]) -> str | None:
    """The energy to nine digits behind the point, as a power of ten where it is huge or tiny."""
    energy, power = result["energy"], result["log10_energy"]
    if power is not None and abs(power) > 12:
        return f"10^{power:.6f}"
    return None if energy is None else f"{energy:.9f}"


def _table(result: dict[str, Any]) -> str:
    what = "line" if result["half_space"] else "point"
    what += "" if result["n"] == 1 else "s"
    lines = [f"{result['n']} {what} in R^{result['dim']}, s = {float(result['s']):g}"]
    if energy := _energy_text(result):
        lines.append(f"  energy (unordered pairs)  {energy}")
    if result["minimal_angle"] is not None:
        lines.append(f"  minimal angle             {result['minimal_angle']:.6f} degrees")
    bound = "" if result["covering_radius_exact"] else "at least "
    lines.append(f"  covering radius           {bound}{result['covering_radius']:.6f} degrees")
    if result["record"] is not None:
        lines.append(f"  best published value      {_compared(result)}")
        lines.append(f"  source: {result['source']}")
    return "\n".join(lines)


def _compared(result: dict[str, Any]) -> str:
    """The record and how close it is."""
    value, behind, precision = result["record"], result["behind"], result["precision"]
    unit = " degrees" if result["energy"] is None else ""
    digits = 9 if result["energy"] is not None else 7
    if abs(behind) <= 1.01 * precision + 1e-9:
        return f"{value:.{digits}f}{unit}: reached, to all its digits"
    word = "short of it by" if behind > 0 else "beaten by"
    return f"{value:.{digits}f}{unit}: {word} {abs(behind):.2e}"


def _text_sphere(points: Tensor, rows: int = 17) -> str:
    """The near and the far hemisphere side by side: o is a point, . the rim."""
    columns = 2 * rows + 1
    near = [[" "] * columns for _ in range(rows)]
    far = [[" "] * columns for _ in range(rows)]
    middle = (rows - 1) / 2

    def put(disc: list[list[str]], x: float, y: float, mark: str) -> None:
        disc[round(middle - middle * y)][round((columns - 1) / 2 * (1 + x))] = mark

    for step in range(160):
        turn = 2 * math.pi * step / 160
        for disc in (near, far):
            put(disc, math.cos(turn), math.sin(turn), ".")
    for x, y, z in points.tolist():
        put(near if z >= 0 else far, x if z >= 0 else -x, y, "o")
    discs = ["".join(a) + "    " + "".join(b) for a, b in zip(near, far, strict=True)]
    captions = "front".center(columns) + "    " + "back".center(columns)
    return "\n".join(line.rstrip() for line in [*discs, captions])


def save(points: Tensor, path: Path) -> None:
    if path.suffix == ".csv":
        rows = [",".join(f"{value:.17g}" for value in row) for row in points.tolist()]
        path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    elif path.suffix == ".npy":
        require("numpy", extra="data").save(path, points.numpy())
    else:
        torch.save(points, path)


def draw(points: Tensor, path: Path, half_space: bool = False, s: float = 1.0) -> None:
    """The points on their sphere (dim 3) or circle (dim 2); .html is a sphere one can turn."""
    flat = (
        torch.cat([points, torch.zeros(len(points), 1, dtype=points.dtype)], 1)
        if points.shape[1] == 2
        else points
    )
    if path.suffix == ".html":
        _draw_page(points, flat, path, half_space, s)
    else:
        _draw_matplotlib(flat, path, half_space)


def _draw_page(points: Tensor, flat: Tensor, path: Path, half_space: bool, s: float) -> None:
    from ..reports.sphere_page import write_sphere

    result = describe(points, s, half_space)
    facts = []
    if energy := _energy_text(result):
        facts.append(("energy", energy))
    if result["minimal_angle"] is not None:
        facts.append(("smallest angle", f"{result['minimal_angle']:.7f} degrees"))
    facts.append(("covering radius", f"{result['covering_radius']:.5f} degrees"))
    if result["record"] is not None:
        facts += [("best published", _compared(result)), ("source", result["source"])]
    names = {0.0: "Whyte", 1.0: "Thomson", math.inf: "Tammes"}
    what = names.get(s, f"Riesz energy, s = {s:g}")
    kind = "lines" if half_space else "points"
    title = f"{len(points)} {kind} in R^{points.shape[1]}: {what}"
    everything = torch.cat([flat, -flat]) if half_space else flat
    write_sphere(path, title, facts, everything, s == math.inf, half_space)


def _nearest_edges(points: Tensor) -> list[tuple[int, int]]:
    """Pairs within 1.25 times the nearest distance: mostly the edges of the polyhedron."""
    distance = torch.cdist(points, points).fill_diagonal_(math.inf)
    reach = 1.25 * distance.amin(1)
    pairs = (distance <= torch.maximum(reach[:, None], reach[None])).triu(1).nonzero()
    return [(int(i), int(j)) for i, j in pairs]


def _draw_matplotlib(points: Tensor, path: Path, half_space: bool) -> None:
    from ..reports.style import canvas, color, draw_sphere, save, styled

    with styled():
        figure, axes = canvas(width=5, height=5, subplot_kw={"projection": "3d"})
        draw_sphere(axes)
        everything = torch.cat([points, -points]) if half_space else points
        for i, j in _nearest_edges(everything) if len(everything) > 1 else []:
            axes.plot(*everything[[i, j]].T.numpy(), color=color(4), linewidth=0.9)
        axes.scatter(*points.T.numpy(), color=color(1), s=36, depthshade=True)
        if half_space:
            mirrored = {"facecolors": "none", "edgecolors": color(1)}
            axes.scatter(*(-points).T.numpy(), s=24, **mirrored)
    save(figure, path)
