"""`hypersphere report RUN...`: one HTML page for a run, or for several side by side."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .._terminal import begin, complain, printable
from ._numbers import Positive, read_as
from ._output import output_file
from ._yaml import parse_yaml


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="hypersphere report",
        description="Write one HTML page for a run, or for several runs side by side with the "
        "differences of their configs. The page opens offline.",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders")
    parser.add_argument(
        "-o",
        "--output",
        type=output_file(".html"),
        help="the page, .html (default: RUN/report.html or comparison.html)",
    )
    parser.add_argument("--watch", action="store_true", help="refresh while training goes on")
    parser.add_argument(
        "--every",
        type=read_as(Positive),
        default=5.0,
        help="seconds between looks (--watch; default: 5)",
    )
    parser.add_argument(
        "--patience",
        type=read_as(Positive),
        default=600.0,
        help="stop after so many quiet seconds (--watch; default: 600)",
    )
    options = parser.parse_args(argv)
    count = len(options.runs)
    begin(f"reading {options.runs[0] if count == 1 else f'{count} runs'} ...")
    from ..reports import watch, write_page

    def parse_config(text: str) -> dict[str, Any]:
        return parse_yaml(text, Path("config.yaml"))

    try:
        if options.watch:
            page = watch(
                options.runs,
                options.output,
                parse_config,
                options.every,
                options.patience,
                say=lambda line: print(printable(line)),
            )
        else:
            page = write_page(options.runs, options.output, parse_config)
    except (OSError, ValueError) as error:
        complain("report", error)
        return 1
    print(printable(page))
    return 0
