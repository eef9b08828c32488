"""One HTML page for a run, or for several side by side; it opens offline from a file."""

from __future__ import annotations

import base64
import gzip
import html
import io
import json
import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from .._optional import require
from .._version import __version__
from .feature_geometry import geometry_tables
from .interactive import curve_plots, energy_plot, feature_plot
from .run_data import RunData, flatten, read_run
from .stills import stills
from .style import grid_shape, save

__all__ = ["write_page"]

ASSETS = Path(__file__).with_name("assets")
_SHOWN_CONFIG = ("data", "model", "head", "rotate", "regularizers", "optimizer")


def write_page(
    runs: str | Path | Sequence[str | Path],
    output: str | Path | None = None,
    parse_config: Callable[[str], Any] | None = None,
    refresh: int | None = None,
    still_figures: bool = True,
) -> Path:
    """Write the report of one run folder, or of several side by side.

    The still figures of a single run are also written beside the page as PNG and SVG, in
    RUN/figures. Missing or damaged parts of a run are named on the page.

    Args:
        runs: one run folder, or several.
        output: the page. Default: RUN/report.html, or comparison.html for several runs.
        parse_config: from the text of config.yaml to a dictionary (the command passes a YAML
            reader). Default: the config is shown as text.
        refresh: make the page reload itself every so many seconds. Default: never.
        still_figures: draw the figures of matplotlib too, the slow part.

    Returns:
        The page.
    """
    paths = [runs] if isinstance(runs, (str, Path)) else list(runs)
    if not paths:
        raise ValueError("write_page expects at least one run folder")
    data = [read_run(path, parse_config) for path in paths]
    single = data[0] if len(data) == 1 else None
    default = data[0].path / "report.html" if single else Path("comparison.html")
    target = Path(output) if output is not None else default
    plots: dict[str, Any] = {}
    body = [*_glance(data), *_missing(data), *_curves(data, plots)]
    sheet = None
    if single:
        body += _features(single, plots)
        body += _geometry(single)
        sheet = _picture_sheet(single)
        if still_figures:
            body += _stills(single, target.parent / "figures")
        body += _results(single)
    else:
        body += _differences(data)
    body += _configs(data)
    body += _reproduce(data)
    title = single.name if single else "Comparison of " + ", ".join(run.name for run in data)
    text = Template((ASSETS / "page.html").read_text("utf-8")).substitute(
        title=html.escape(title),
        refresh=f'<meta http-equiv="refresh" content="{refresh}">\n' if refresh else "",
        css=(ASSETS / "page.css").read_text("utf-8"),
        js=(ASSETS / "page.js").read_text("utf-8"),
        body="\n".join(body),
        version=__version__,
        plots=_script_json(plots),
        pictures=_picture_tag(sheet),
        plotly=_packed_plotly() if plots else "",
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".partial")
    partial.write_text(text, "utf-8")
    os.replace(partial, target)
    return target


def _glance(runs: Sequence[RunData]) -> Iterable[str]:
    """What was trained, on what, with which result."""
    if len(runs) > 1:
        yield _section("At a glance", _summary_table(runs))
        return
    run = runs[0]
    cards = [(key, name) for key in _SHOWN_CONFIG if (name := _part_name(run.config.get(key)))]
    for kind in ("last", "best"):
        values = run.summary.get(kind)
        if isinstance(values, Mapping):
            cards += [(f"{kind} {k}", v) for k, v in values.items() if k not in ("time", "split")]
    verification = run.summary.get("verification")
    if isinstance(verification, Mapping):
        cards += [(f"verification {k}", v) for k, v in verification.items()]
    if "seconds" in run.summary:
        cards.append(("trained for", f"{run.summary['seconds']:.0f} s"))
    versions = run.record.get("versions")
    if isinstance(versions, Mapping):
        shown = ("hypersphere", "torch", "python")
        cards.append(("versions", ", ".join(f"{k} {versions[k]}" for k in shown if k in versions)))
    hardware = run.record.get("hardware")
    if isinstance(hardware, Mapping):
        cards.append(("hardware", f"{hardware.get('cores')} cores, {hardware.get('processor')}"))
    for key in ("seed", "started", "commit"):
        if run.record.get(key) is not None:
            cards.append((key, run.record[key]))
    items = "".join(
        f"<div><span>{_e(k)}</span><strong>{_e(_short(v))}</strong></div>" for k, v in cards
    )
    yield _section(
        "At a glance", f'<div class="glance">{items}</div>' if items else _note("Nothing known.")
    )


def _part_name(part: Any) -> str:
    """The name of a section of the config: its name or method, else the names of its entries."""
    if not isinstance(part, Mapping):
        return str(part) if part else ""
    named = part.get("name") or part.get("method")
    return str(named) if named else ", ".join(str(key) for key, value in part.items() if value)


def _summary_table(runs: Sequence[RunData]) -> str:
    columns = dict.fromkeys(
        (kind, key)
        for run in runs
        for kind in ("last", "best", "verification")
        for key in (run.summary.get(kind) or {})
        if key not in ("time", "split")
    )
    head = ["run", *(f"{kind} {key}" for kind, key in columns)]
    rows = [
        [run.name, *((run.summary.get(kind) or {}).get(key, "") for kind, key in columns)]
        for run in runs
    ]
    return _table(head, rows)


def _missing(runs: Sequence[RunData]) -> Iterable[str]:
    found = [
        f"<li>{_e(what if len(runs) == 1 else f'{run.name}: {what}')}</li>"
        for run in runs
        for what in run.missing
    ]
    if found:
        yield _section("What is missing", f"<ul>{''.join(found)}</ul>", extra="missing")


def _curves(runs: Sequence[RunData], plots: dict[str, Any]) -> Iterable[str]:
    curves = curve_plots(runs)
    boxes = []
    for metric, plot in curves.items():
        plots[f"curve-{metric}"] = plot
        boxes.append(_plot(f"curve-{metric}", f"{metric} over the iterations"))
    if boxes:
        yield _section("Curves", f'<div class="grid">{"".join(boxes)}</div>')
    energy = energy_plot(runs)
    if energy:
        plots["energy"] = energy
        yield _section(
            "Hyperspherical energy", _plot("energy", "energy of each layer over the iterations")
        )


def _features(run: RunData, plots: dict[str, Any]) -> Iterable[str]:
    found = feature_plot(run)
    if found is None:
        return
    plots["features"], notes = found
    notes = ["Click a class to hide or show it; drag to turn or move.", *notes]
    buttons = "".join(
        f'<button data-plot="features" data-show="{what}">{what} classes</button> '
        for what in ("all", "no")
    )
    body = (
        "".join(map(_note, notes))
        + buttons
        + _plot("features", "test features by class", tall=True)
    )
    flat = plots["features"]["data"][0]["type"] != "scatter3d"
    yield _section("Features in the plane" if flat else "Features on the sphere", body)


def _geometry(run: RunData) -> Iterable[str]:
    note, tables = geometry_tables(run)
    if tables:
        body = _note(note) + "".join(_table(head, rows) for head, rows in tables)
        yield _section("Geometry of the features", body)


def _stills(run: RunData, folder: Path) -> Iterable[str]:
    try:
        require("matplotlib", extra="report")
    except ModuleNotFoundError as error:
        yield _section("Figures", _note(str(error)))
        return
    boxes = []
    for still in stills(run):
        save(still.figure, folder / still.stem)
        picture = base64.b64encode((folder / f"{still.stem}.png").read_bytes()).decode()
        boxes.append(
            f'<figure><img src="data:image/png;base64,{picture}" alt="{_e(still.caption)}">'
            f"<figcaption>{_e(still.caption)} (figures/{_e(still.stem)}.png, .svg)</figcaption>"
            "</figure>"
        )
    if boxes:
        yield _section("Figures", f'<div class="grid">{"".join(boxes)}</div>')


def _results(run: RunData) -> Iterable[str]:
    for name, result in run.results.items():
        rows = [
            (k, v) for k, v in flatten(result).items() if isinstance(v, (int, float, str, bool))
        ]
        points = result.get("tar_at_far")
        if isinstance(points, list):
            for point in points:
                if isinstance(point, Mapping) and point.get("far") is not None:
                    tar = point.get("tar")
                    shown = tar if tar is not None else "too few negatives to say"
                    rows.append((f"TAR at FAR {point['far']:g}", shown))
        if rows:
            yield _section(name.replace("_", " ").replace("-", " "), _table(["", ""], rows))


def _differences(runs: Sequence[RunData]) -> Iterable[str]:
    flat = [flatten(run.config) for run in runs]
    if not all(flat):
        yield _section(
            "Differences in config", _note("A config could not be read, so they are not shown.")
        )
        return
    keys = dict.fromkeys(key for config in flat for key in config)
    rows = []
    for key in keys:
        values = [config.get(key, "—") for config in flat]
        if any(value != values[0] for value in values[1:]):
            cells = "".join(f'<td class="differs">{_e(_short(v))}</td>' for v in values)
            rows.append(f"<tr><td>{_e(key)}</td>{cells}</tr>")
    if not rows:
        yield _section("Differences in config", _note("None: the configs are the same."))
        return
    head = "".join(f"<th>{_e(name)}</th>" for name in ["setting", *(run.name for run in runs)])
    table = f'<div class="scroll"><table><tr>{head}</tr>{"".join(rows)}</table></div>'
    yield _section("Differences in config", table)


def _configs(runs: Sequence[RunData]) -> Iterable[str]:
    for run in runs:
        if run.config_text:
            title = "Config" if len(runs) == 1 else f"Config of {run.name}"
            body = (
                f"<details><summary>config.yaml</summary><pre>{_e(run.config_text)}</pre></details>"
            )
            yield _section(title, body)


def _reproduce(runs: Sequence[RunData]) -> Iterable[str]:
    lines = []
    for run in runs:
        command = run.record.get("command")
        if isinstance(command, list) and command:
            words = [str(word) for word in command]
            words[0] = "hypersphere" if words[0] in ("hypersphere", "__main__.py") else words[0]
            lines.append(shlex.join(words))
        if run.config_text:
            lines.append(f"hypersphere train {shlex.quote(str(run.path / 'config.yaml'))}")
    if lines:
        note = _note("The command that made it, and the same from the resolved config:")
        yield _section("Reproduce", note + f"<pre>{_e(chr(10).join(lines))}</pre>")


def _picture_sheet(run: RunData) -> dict[str, Any] | None:
    """All thumbnails in one PNG: `images` of features.npz, (n, [1 or 3,] H, W) uint8."""
    images = run.features.get("images")
    if images is None or images.ndim not in (3, 4) or images.dtype != np.uint8:
        return None
    x = images[:, None] if images.ndim == 3 else images
    if x.shape[1] not in (1, 3):
        return None
    Image = require("PIL.Image", extra="data")
    n, channels, height, width = x.shape
    rows, columns = grid_shape(n)
    cells = np.zeros((rows * columns, height, width, channels), np.uint8)
    cells[:n] = x.transpose(0, 2, 3, 1)
    cells = cells.reshape(rows, columns, height, width, channels).swapaxes(1, 2)
    sheet = cells.reshape(rows * height, columns * width, channels)
    buffer = io.BytesIO()
    Image.fromarray(sheet[..., 0] if channels == 1 else sheet).save(buffer, "PNG", optimize=True)
    data = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    return {"data": data, "columns": columns, "size": [width, height]}


def _picture_tag(sheet: dict[str, Any] | None) -> str:
    if sheet is None:
        return ""
    return f'<script type="application/json" id="pictures">{_script_json(sheet)}</script>\n'


@lru_cache(maxsize=1)
def _packed_plotly() -> str:
    """plotly.js, compressed: the browser unpacks it, and the page stays below half the size."""
    offline = require("plotly.offline", extra="report")
    return base64.b64encode(gzip.compress(offline.get_plotlyjs().encode(), 9, mtime=0)).decode()


def _script_json(value: Any) -> str:
    # "</" would end the script element; NaN is no JSON, so none may be left.
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("</", "<\\/")


def _section(title: str, body: str, extra: str = "") -> str:
    kind = f' class="{extra}"' if extra else ""
    return f"<section{kind}><h2>{_e(title)}</h2>\n{body}</section>"


def _plot(name: str, what: str, tall: bool = False) -> str:
    kind = "plot tall" if tall else "plot"
    return f'<div class="{kind}" role="img" aria-label="{_e(what)}" data-plot="{_e(name)}"></div>'


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [f"<tr>{''.join(f'<th>{_e(h)}</th>' for h in head)}</tr>"] if any(head) else []
    for row in rows:
        cells = "".join(
            f'<td class="number">{_e(_short(v))}</td>'
            if isinstance(v, (int, float)) and not isinstance(v, bool)
            else f"<td>{_e(_short(v))}</td>"
            for v in row
        )
        lines.append(f"<tr>{cells}</tr>")
    return f'<div class="scroll"><table>{"".join(lines)}</table></div>'


def _note(text: str) -> str:
    return f'<p class="note">{_e(text)}</p>'


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    return str(value)


def _e(text: Any) -> str:
    return html.escape(str(text))
