"""Keeps a report up to date while its run is going on."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .page import arrange, news_file, write_news, write_page

__all__ = ["watch"]

_FILES = ("metrics.jsonl", "summary.json", "features.npz", "verification.json", "baseline.json")


def watch(
    runs: list[Path],
    output: Path | None = None,
    parse_config: Callable[[str], Any] | None = None,
    every: float = 5.0,
    patience: float = 600.0,
    say: Callable[[str], None] = print,
) -> Path:
    """Write the page, then tell it what is new whenever a run's files change.

    An open page takes the news in place: what was zoomed, turned, scrolled or unfolded stays so.
    Ends, with a page that looks for news no more, once nothing has changed for `patience` seconds
    or on Ctrl-C.

    Args:
        runs: run folders.
        output: the page. Default: as `write_page`.
        parse_config: from the text of config.yaml to a dictionary.
        every: seconds between looks.
        patience: stop after this many seconds without a change.
        say: called with a line whenever the page was written.

    Returns:
        The page.
    """
    seen: dict[Path, float] | None = None
    page: Path | None = None
    changed = time.monotonic()
    try:
        while time.monotonic() - changed < patience:
            now = {p: p.stat().st_mtime for run in runs for n in _FILES if (p := run / n).exists()}
            if now != seen:
                if page is None:
                    wait = max(1, round(every))
                    page = write_page(runs, output, parse_config, wait, still_figures=False)
                else:
                    news = arrange(runs, page.parent / "figures", parse_config, False)
                    write_news(page, news, done=False)
                say(f"{time.strftime('%H:%M:%S')} {page}")
                seen, changed = now, time.monotonic()
            time.sleep(every)
    except KeyboardInterrupt:
        pass
    final = write_page(runs, output, parse_config)
    if page is not None and news_file(page).exists():
        # An open page still asks for news once more; then nobody does.
        write_news(page, arrange(runs, page.parent / "figures", parse_config), done=True)
    return final
