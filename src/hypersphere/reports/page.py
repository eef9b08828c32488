"""One HTML page for a run, or for several side by side; it opens offline from a file."""

from __future__ import annotations

import base64
import gzip
import html
import io
import json
import os
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from .._optional import require
from .._reading import check_replaceable
from .._version import __version__
from .feature_geometry import geometry_tables
from .headline import headline, result_tables
from .interactive import curve_plots, energy_plot, feature_plot
from .markup import escape, folded, html_table, note, plot_box, section, short
from .pooled import group_runs, pooled_sections
from .run_data import RunData, flatten, read_run
from .stills import stills
from .style import grid_shape, save

__all__ = ["Page", "arrange", "write_page"]

ASSETS = Path(__file__).with_name("assets")
_LARGE = ("loss", "accuracy")  # curves that are not folded away
_NOT_SHOWN = ("dissertation.", "thesis.", "run.", "parts.")  # in the differences of configs


@dataclass
class Page:
    """What a page shows, before it becomes a file.

    Args:
        title: its heading.
        body: HTML.
        plots: the interactive plots by name.
        pictures: the thumbnails behind the points, or None.
    """

    title: str
    body: str
    plots: dict[str, Any]
    pictures: dict[str, Any] | None


def write_page(
    runs: str | Path | Sequence[str | Path],
    output: str | Path | None = None,
    parse_config: Callable[[str], Any] | None = None,
    refresh: int | None = None,
    still_figures: bool = True,
) -> Path:
    """Write the report of one run folder, or of several side by side.

    The still figures of a single run are also written beside the page as PNG and SVG, in
    RUN/figures. Missing or damaged parts of a run are named on the page. Runs that differ in their
    seed alone are pooled.

    Args:
        runs: one run folder, or several.
        output: the page. Default: RUN/report.html, or comparison.html for several runs.
        parse_config: from the text of config.yaml to a dictionary (the command passes a YAML
            reader). Default: the config is shown as text.
        refresh: make the page look every so many seconds for what `watch` writes beside it.
            Default: never.
        still_figures: draw the figures of matplotlib too, the slow part.

    Returns:
        The page.
    """
    paths = [runs] if isinstance(runs, (str, Path)) else list(runs)
    if not paths:
        raise ValueError("write_page expects at least one run folder")
    default = Path(paths[0]) / "report.html" if len(paths) == 1 else Path("comparison.html")
    target = Path(output) if output is not None else default
    if target.is_dir():
        raise ValueError(
            f"the page is a file, and {target} is a folder: give {target / default.name}"
        )
    page = arrange(paths, target.parent / "figures", parse_config, still_figures)
    source = html.escape(news_file(target).name)
    text = Template((ASSETS / "page.html").read_text("utf-8")).substitute(
        title=html.escape(page.title),
        watch=f' data-every="{refresh}" data-source="{source}"' if refresh else "",
        css=(ASSETS / "page.css").read_text("utf-8"),
        js=(ASSETS / "page.js").read_text("utf-8"),
        body=page.body,
        version=__version__,
        plots=_script_json(page.plots),
        pictures=_picture_tag(page.pictures),
        plotly=_packed_plotly() if page.plots or refresh else "",
    )
    _replace(target, text)
    return target


def news_file(page: Path) -> Path:
    """The file in which a watched page finds what is new; a script, as pages may load those."""
    return page.with_suffix(".news.js")


def write_news(page: Path, content: Page, done: bool) -> None:
    """Tell an open page what to show now."""
    news = {"body": content.body, "plots": content.plots, "done": done}
    _replace(news_file(page), f"hypersphereNews({_script_json(news)});\n")


def _replace(target: Path, text: str) -> None:
    check_replaceable(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".partial")
    partial.write_text(text, "utf-8")
    os.replace(partial, target)


def arrange(
    paths: Sequence[str | Path],
    figures: Path,
    parse_config: Callable[[str], Any] | None = None,
    still_figures: bool = True,
) -> Page:
    """Read run folders and arrange what they hold: the result first, then what explains it.

    Args:
        paths: one run folder, or several.
        figures: the folder of the still figures.
        parse_config: as in `write_page`.
        still_figures: as in `write_page`.

    Returns:
        The page.
    """
    data = [read_run(path, parse_config) for path in paths]
    plots: dict[str, Any] = {}
    if len(data) > 1:
        body = [*pooled_sections(group_runs(data), plots), *_missing(data), *_energy(data, plots)]
        body += [*_differences(data), *_configs(data), *_reproduce(data)]
        names = ", ".join(run.name for run in data)
        return Page(f"Comparison of {names}", "\n".join(body), plots, None)
    run = data[0]
    geometry = list(_geometry(run))  # first: it may find that something is missing
    body = [*headline(run), *_missing(data), *_features(run, plots)]
    body += [*geometry, *_curves(data, plots)]
    body += _energy(data, plots)
    if still_figures:
        body += _stills(run, figures)
    body += [*result_tables(run), *_configs(data), *_reproduce(data)]
    return Page(run.name, "\n".join(body), plots, _picture_sheet(run))


def _missing(runs: Sequence[RunData]) -> Iterable[str]:
    found = [
        f"<li>{escape(what if len(runs) == 1 else f'{run.name}: {what}')}</li>"
        for run in runs
        for what in run.missing
    ]
    if found:
        yield section("What is missing", f"<ul>{''.join(found)}</ul>", extra="missing")


def _curves(runs: Sequence[RunData], plots: dict[str, Any]) -> Iterable[str]:
    large: list[str] = []
    small: list[str] = []
    for metric, plot in curve_plots(runs).items():
        plots[f"curve-{metric}"] = plot
        box = plot_box(f"curve-{metric}", f"{metric} over the iterations")
        (large if metric in _LARGE else small).append(box)
    if large or small:
        body = f'<div class="grid">{"".join(large)}</div>' if large else ""
        rest = f'<div class="grid">{"".join(small)}</div>'
        body += folded("more curves", rest) if large and small else rest if small else ""
        yield section("Curves", note("Drag to zoom; double-click to go back.") + body)


def _energy(runs: Sequence[RunData], plots: dict[str, Any]) -> Iterable[str]:
    energy = energy_plot(runs)
    if energy:
        plots["energy"] = energy
        box = plot_box("energy", "energy of each layer over the iterations")
        yield section("Hyperspherical energy", box)


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
        "".join(map(note, notes))
        + buttons
        + plot_box("features", "test features by class", tall=True)
    )
    flat = plots["features"]["data"][0]["type"] != "scatter3d"
    yield section("Features in the plane" if flat else "Features on the sphere", body)


def _geometry(run: RunData) -> Iterable[str]:
    text, tables = geometry_tables(run)
    if tables:
        body = note(text) + "".join(html_table(head, rows) for head, rows in tables)
        yield section("Geometry of the features", body)


def _stills(run: RunData, folder: Path) -> Iterable[str]:
    try:
        require("matplotlib", extra="report")
    except ModuleNotFoundError as error:
        yield section("Figures", note(str(error)))
        return
    boxes = []
    for still in stills(run):
        save(still.figure, folder / still.stem)
        picture = base64.b64encode((folder / f"{still.stem}.png").read_bytes()).decode()
        caption, stem = escape(still.caption), escape(still.stem)
        boxes.append(
            f'<figure><img src="data:image/png;base64,{picture}" alt="{caption}">'
            f"<figcaption>{caption} (figures/{stem}.png, .svg)</figcaption></figure>"
        )
    if boxes:
        yield section("Figures", f'<div class="grid">{"".join(boxes)}</div>')


def _differences(runs: Sequence[RunData]) -> Iterable[str]:
    flat = [
        {k: v for k, v in flatten(run.config).items() if not k.startswith(_NOT_SHOWN)}
        for run in runs
    ]
    if not all(flat):
        yield section(
            "Differences in config", note("A config could not be read, so they are not shown.")
        )
        return
    keys = dict.fromkeys(key for config in flat for key in config)
    rows = []
    for key in keys:
        values = [config.get(key, "—") for config in flat]
        if any(value != values[0] for value in values[1:]):
            cells = "".join(f'<td class="differs">{escape(short(v))}</td>' for v in values)
            rows.append(f"<tr><td>{escape(key)}</td>{cells}</tr>")
    if not rows:
        yield section("Differences in config", note("None: the configs are the same."))
        return
    head = "".join(f"<th>{escape(name)}</th>" for name in ["setting", *(run.name for run in runs)])
    table = f'<div class="scroll"><table><tr>{head}</tr>{"".join(rows)}</table></div>'
    yield section("Differences in config", table)


def _configs(runs: Sequence[RunData]) -> Iterable[str]:
    for run in runs:
        if run.config_text:
            title = "Config" if len(runs) == 1 else f"Config of {run.name}"
            yield section(title, folded("config.yaml", f"<pre>{escape(run.config_text)}</pre>"))


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
        text = note("The command that made it, and the same from the resolved config:")
        yield section("Reproduce", text + f"<pre>{escape(chr(10).join(lines))}</pre>")


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
