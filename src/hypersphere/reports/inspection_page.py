"""The page of `hypersphere inspect`: what stands out, a table, the spectra; it opens offline."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from string import Template
from typing import Any

from .._version import __version__

__all__ = ["write_inspection"]

ASSETS = Path(__file__).with_name("assets")


def write_inspection(
    path: str | Path,
    title: str,
    remarks: Sequence[str],
    layers: Sequence[Any],
    tables: Sequence[tuple[str, Sequence[str], Iterable[Sequence[object]]]] = (),
) -> Path:
    """Write one HTML page without any script.

    Args:
        path: the page.
        title: of the page.
        remarks: sentences on what stands out.
        layers: entries with the attributes of `evaluation.InspectedLayer`.
        tables: further tables: title, header, rows.

    Returns:
        The page.
    """
    body = ["<section><h2>What stands out</h2><ul>"]
    body += [f"<li>{html.escape(remark)}</li>" for remark in remarks]
    body.append("</ul></section>")
    if layers:
        body.append(f"<section><h2>Layers</h2>{_legend()}{_layers(layers)}</section>")
    for name, header, rows in tables:
        body.append(f"<section><h2>{html.escape(name)}</h2>{_table(header, rows)}</section>")
    text = Template((ASSETS / "inspection.html").read_text("utf-8")).substitute(
        title=html.escape(title),
        css=(ASSETS / "page.css").read_text("utf-8"),
        body="\n".join(body),
        version=__version__,
    )
    target = Path(path)
    target.write_text(text, encoding="utf-8")
    return target


def _legend() -> str:
    return (
        '<p class="note">Energy: 0 is the least that so many directions can have, 1 that of random '
        "directions. Spectrum: singular values relative to the largest, from left to right. Angles "
        "in degrees.</p>"
    )


def _layers(layers: Sequence[Any]) -> str:
    header = ("layer", "neurons x dim", "energy", "", "smallest angle", "near duplicates",
              "effective rank", "spectrum", "length")  # fmt: skip
    rows = []
    for layer in layers:
        rank = f"{layer.effective_rank:.1f} of {layer.full_rank}"
        rows.append((
            html.escape(layer.name), f"{layer.neurons} x {layer.dim}", _number(layer.relative, 2),
            _gauge(layer.relative), _number(layer.smallest_angle, 1), str(layer.duplicates), rank,
            _spectrum(layer.spectrum),
            f"{_number(layer.norms.mean, 3)} &plusmn; {_number(layer.norms.deviation, 3)}",
        ))  # fmt: skip
    return _rows(header, rows)


def _gauge(value: float) -> str:
    """A mark between the best possible (left) and twice as bad as random (right)."""
    if not math.isfinite(value):
        return ""
    place = 4 + 92 * min(2.0, max(0.0, value)) / 2
    color = "#009E73" if value < 0.8 else "#0072B2" if value < 1.5 else "#D55E00"
    return (
        '<svg width="100" height="14" role="img" aria-label="energy between best and random">'
        '<line x1="4" y1="7" x2="96" y2="7" stroke="#bbb"/><line x1="50" y1="2" x2="50" y2="12" '
        f'stroke="#bbb"/><circle cx="{place:.1f}" cy="7" r="4.5" fill="{color}"/></svg>'
    )


def _spectrum(values: Sequence[float]) -> str:
    if not values:
        return ""
    step = 110 / max(1, len(values) - 1)
    points = " ".join(f"{2 + k * step:.1f},{26 - 24 * v:.1f}" for k, v in enumerate(values))
    return (
        '<svg width="114" height="28" role="img" aria-label="singular values">'
        f'<polyline points="2,26 {points} 112,26" fill="#0072B222" stroke="#0072B2"/></svg>'
    )


def _number(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if math.isfinite(value) else "-"


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    return _rows(header, [[html.escape(str(cell)) for cell in row] for row in rows])


def _rows(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    lines = ["<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows]
    return f'<div class="scroll"><table><tr>{head}</tr>{"".join(lines)}</table></div>'
