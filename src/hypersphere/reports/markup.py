"""Pieces of HTML, with everything from files escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["escape", "folded", "html_table", "note", "plot_box", "section", "short"]


def escape(text: Any) -> str:
    """Text that cannot break out of its place.

    Args:
        text: anything.

    Returns:
        Its text, escaped.
    """
    return html.escape(str(text))


def short(value: Any) -> str:
    """A value as a reader wants it.

    Args:
        value: a number or a text.

    Returns:
        Five digits of a number; the text of anything else.
    """
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def section(title: str, body: str, extra: str = "") -> str:
    """A box with a heading.

    Args:
        title: its heading.
        body: HTML.
        extra: a CSS class.

    Returns:
        HTML. Its name is the title, by which a watched page replaces it.
    """
    kind = f' class="{extra}"' if extra else ""
    name = escape(title)
    return f'<section{kind} data-section="{name}"><h2>{name}</h2>\n{body}</section>'


def folded(title: str, body: str) -> str:
    """What a reader opens on demand.

    Args:
        title: what is seen.
        body: HTML.

    Returns:
        HTML.
    """
    return f"<details><summary>{escape(title)}</summary>{body}</details>"


def plot_box(name: str, what: str, tall: bool = False) -> str:
    """The place of an interactive plot.

    Args:
        name: the key of the plot.
        what: what it shows, for those who cannot see it.
        tall: whether it is a large one.

    Returns:
        HTML.
    """
    kind = "plot tall" if tall else "plot"
    return (
        f'<div class="{kind}" role="img" aria-label="{escape(what)}" data-plot="{escape(name)}">'
        f"</div>"
    )


def html_table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table; numbers stand on the right.

    Args:
        head: a heading per column; all empty for none.
        rows: the cells.

    Returns:
        HTML.
    """
    lines = [f"<tr>{''.join(f'<th>{escape(h)}</th>' for h in head)}</tr>"] if any(head) else []
    for row in rows:
        cells = "".join(
            f'<td class="number">{escape(short(v))}</td>'
            if isinstance(v, (int, float)) and not isinstance(v, bool)
            else f"<td>{escape(short(v))}</td>"
            for v in row
        )
        lines.append(f"<tr>{cells}</tr>")
    return f'<div class="scroll"><table>{"".join(lines)}</table></div>'


def note(text: str) -> str:
    """A remark.

    Args:
        text: plain text.

    Returns:
        HTML.
    """
    return f'<p class="note">{escape(text)}</p>'
