"""`hypersphere models`: the networks by name, and the layers of one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from .._terminal import complain, hanging
from ._numbers import Count, read_as


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hypersphere models",
        description="Without a name: every network, its table and its parameters (without a head). "
        "With a name: its layers, the shapes they give out, their parameters, and its options.",
        epilog="example: hypersphere models cnn9 operator=sphere in_channels=1 image_size=28",
    )
    parser.add_argument("name", nargs="?", help="a network, e.g. cnn9")
    parser.add_argument(
        "options",
        nargs="*",
        metavar="OPTION=VALUE",
        help="options of create(), e.g. widths=16,32,64",
    )
    parser.add_argument(
        "--batch", type=read_as(Count), default=2, help="batch of the shapes (default 2)"
    )
    parser.add_argument("--markdown", action="store_true", help="the list as a Markdown table")
    return parser


def parse_value(text: str) -> object:
    """A Python literal where it is one ("64", "None", "64,96"), otherwise the text itself.

    >>> parse_value("16,32,64"), parse_value("0.5"), parse_value("sphere"), parse_value("none")
    ((16, 32, 64), 0.5, 'sphere', 'none')
    """
    import ast

    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], right: set[int]) -> str:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = []
    for row in (header, *rows):
        cells = (
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _list() -> str:
    from ..models.summary import model_table

    rows = [
        (name, source, _number(parameters), _number(features), what)
        for name, source, parameters, features, what in model_table()
    ]
    header = ("name", "from", "parameters", "features", "what")
    table = _table(header, rows, right={2, 3})
    if not sys.stdout.isatty():
        return table
    short = _table(header[:4], [row[:4] for row in rows], right={2, 3}).splitlines()
    texts = [hanging(" " * 4, row[4]) for row in rows]
    return "\n".join([short[0], *(f"{a}\n{b}" for a, b in zip(short[1:], texts, strict=True))])


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _show(name: str, options: dict[str, object], batch: int) -> str:
    from ..models import count_parameters, create, layer_rows, model_entry
    from ..models.summary import example_inputs
    from ..training.parts import options as part_options
    from ._options import format_options

    model = create(name, **options)
    found = model_entry(name)
    lines = [hanging("", f"{name} ({found.source or found.build.__module__}): {found.description}")]
    try:
        inputs = " and ".join(" x ".join(map(str, x.shape)) for x in example_inputs(model, batch))
        rows = [
            (row.name, row.kind, " x ".join(map(str, row.shape)), f"{row.parameters:,}")
            for row in layer_rows(model, batch)
        ]
        lines += [f"input {inputs}, features {model.out_features}", ""]
        lines.append(_table(("layer", "kind", "output", "parameters"), rows, right={3}))
    except ValueError as error:
        if not found.own:
            raise
        lines += [f"features {model.out_features}", hanging("", f"no layers: {error}")]
    lines += ["", f"{count_parameters(model):,} parameters", "", "options:"]
    lines.append(format_options(part_options("model", name).values(), prefix=""))
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `hypersphere models`; returns the exit code."""
    arguments = _parser().parse_args(argv)
    options: dict[str, object] = {}
    for item in arguments.options:
        key, equals, value = item.partition("=")
        if not equals:
            print(f"hypersphere models: expected OPTION=VALUE, got {item!r}", file=sys.stderr)
            return 2
        options[key] = parse_value(value)
    try:
        if arguments.name is not None:
            print(_show(arguments.name, options, arguments.batch))
        elif arguments.markdown:
            from ..models.summary import models_markdown

            print(models_markdown())
        else:
            print(_list())
    except ValueError as error:
        complain("models", error)
        return 2
    return 0
