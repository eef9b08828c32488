"""``hypersphere heads | regularizers | ...``: the registered parts and their options."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from .._terminal import complain, hanging

LISTINGS = {
    "heads": "head",
    "regularizers": "regularizer",
    "activations": "angular",
    "magnitudes": "magnitude",
    "margins": "margin",
    "hooks": "hook",
    "tasks": "task",
}


def main(command: str, argv: Sequence[str]) -> int:
    """Run one of the listings.

    Args:
        command: one of `LISTINGS`.
        argv: its command line.

    Returns:
        The exit code.
    """
    from hypersphere.registry import KINDS

    kind = LISTINGS[command]
    parser = argparse.ArgumentParser(
        prog=f"hypersphere {command}",
        description=f"Without a name: every {KINDS[kind]}. With a name: its options, each with "
        "type, text, range, choices and default.",
        epilog="--plugin MODULE adds those of a module or .py file of your own.",
    )
    parser.add_argument("name", nargs="?", help=f"a {KINDS[kind]}")
    parser.add_argument("--markdown", action="store_true", help="the list as a Markdown table")
    options = parser.parse_args(argv)
    try:
        if options.name is not None:
            print(show(kind, options.name))
        else:
            print(markdown_table(kind) if options.markdown else table(kind))
    except ValueError as error:
        complain(command, error)
        return 2
    return 0


def rows(kind: str) -> list[list[str]]:
    """Name, source and summary of every part of a kind.

    Args:
        kind: a kind of the register.

    Returns:
        One row per part.
    """
    import hypersphere.training  # noqa: F401 - registers the parts
    from hypersphere.registry import entries

    return [
        [part.name, part.source or ("own: " + part.module if part.own else ""), part.summary]
        for part in entries(kind)
    ]


def table(kind: str) -> str:
    """The parts of a kind as an aligned table.

    Args:
        kind: a kind of the register.
    """
    lines = rows(kind)
    widths = [max((len(line[i]) for line in lines), default=0) for i in range(2)]
    return "\n".join(
        hanging(
            "".join(
                f"{cell:<{width}}  "
                for cell, width in zip(line[:2], widths, strict=True)
                if width  # a column that is empty for all
            ),
            line[2],
        )
        for line in lines
    )


def markdown_table(kind: str) -> str:
    """The parts of a kind as a Markdown table, for the docs.

    Args:
        kind: a kind of the register.
    """
    lines = ["| name | source | what |", "|---|---|---|"]
    lines += [f"| `{name}` | {source} | {what} |" for name, source, what in rows(kind)]
    return "\n".join(lines)


def show(kind: str, name: str) -> str:
    """What a part is, and all its options.

    Args:
        kind: a kind of the register.
        name: the registered name.
    """
    from hypersphere.commands._options import format_options
    from hypersphere.registry import entry
    from hypersphere.training.parts import options

    part = entry(kind, name)
    source = f" ({part.source})" if part.source else ""
    listed = format_options(options(kind, name).values(), prefix="")
    return hanging("", f"{name}{source}: {part.summary}") + f"\n\n{listed or '  no options'}"
