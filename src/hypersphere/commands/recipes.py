"""`hypersphere recipes [TEXT ...]`: the shipped configs, with the dissertation's number beside."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypersphere._terminal import complain, hanging
from hypersphere.commands import _config

USAGE = """usage: hypersphere recipes [TEXT ...] [--results FOLDER]

Lists the shipped recipes: how to run each, which table or figure of the dissertation it belongs
to, and the number printed there. TEXT keeps only those whose path, table or row contain every
word of it, e.g. `hypersphere recipes 5.5 mhe`. A recipe marked * has a cpu variant that finishes
on two cores in minutes: append :cpu (after a comma, if the recipe names a variant already);
:evidence, where there is one, is what `hypersphere claims` compares.

  --results FOLDER   also show the mean of finished runs found there (comparison.json of `compare`)
"""


SMALLER = ("cpu", "evidence")  # variants that shrink the others


@dataclass(frozen=True)
class Recipe:
    """One entry: a file, or one variant of it."""

    path: Path
    variant: str
    dissertation: dict[str, Any]
    cpu: bool

    @property
    def spec(self) -> str:
        """As `hypersphere train` takes it."""
        place = Path("recipes") / self.path.relative_to(_config.recipe_root())
        return f"{place}:{self.variant}" if self.variant else str(place)


def list_recipes(root: Path | None = None) -> list[Recipe]:
    """Every recipe and variant under `root`, in order of chapter and name."""
    root = root or _config.recipe_root()
    found = []
    for path in sorted(root.glob("**/*.yaml")):
        # What recipes build on, and what is compared: no recipes themselves.
        if path.name.startswith("_") or path.parent.name == "claims":
            continue
        variants = _config.variants_of(path)
        names = [v for v in variants if v not in SMALLER]
        for name in ["", *names]:
            settings = _config.load_file(path, [name] if name else [])
            printed = settings.get("dissertation") or {}
            # The file itself is an entry if it stands for a number of its own.
            if name == "" and names and not printed.get("source"):
                continue
            found.append(Recipe(path, name, printed, "cpu" in variants))
    return found


def main(argv: Sequence[str]) -> int:
    if any(a in ("-h", "--help") for a in argv):
        print(USAGE)
        return 0
    words = [a.lower() for a in argv if not a.startswith("--")]
    wanted: Path | None = None
    if "--results" in argv:
        place = argv[list(argv).index("--results") + 1 :][:1]
        if not place:
            print("hypersphere recipes: --results needs a folder", file=sys.stderr)
            return 2
        words.remove(place[0].lower())
        wanted = Path(place[0])
    try:
        results = {} if wanted is None else measured(wanted)
        recipes = list_recipes()
    except ValueError as error:  # a config, or a result, that cannot be read
        complain("recipes", error)
        return 1
    rows = []
    for recipe in recipes:
        printed = recipe.dissertation
        value = printed.get("value")
        row = [
            recipe.spec + (" *" if recipe.cpu else ""),
            printed.get("source", ""),
            printed.get("row", ""),
            f"{printed.get('metric', '')} {value:g}" if value is not None else "",
        ]
        if results:
            row.append(results.get(recipe.spec, ""))
        if all(contains(" ".join([recipe.spec, *row[1:3]]), word) for word in words):
            rows.append(row)
    if not rows:
        print(f"no recipe contains {' '.join(words)!r}", file=sys.stderr)
        return 1
    if sys.stdout.isatty():
        print(_grouped(rows))
        return 0
    header = ["recipe", "source", "row", "dissertation"] + (["measured"] if results else [])
    widths = [max(len(line[i]) for line in [header, *rows]) for i in range(len(header))]
    for line in [header, ["-" * w for w in widths], *rows]:
        print("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip())
    return 0


def _grouped(rows: Sequence[Sequence[str]]) -> str:
    """The recipes for a terminal: a heading for each file, its variants below.

    >>> print(_grouped([["a.yaml:m1 *", "Fig. 2", "m=1", ""], ["a.yaml:m2", "Fig. 2", "", ""]]))
    a.yaml  (Fig. 2)
      :m1 *                   m=1
      :m2
    """
    lines: list[str] = []
    heading = ""
    for spec, source, row, *values in rows:
        file, _, variant = spec.partition(":")
        if (title := f"{file.removesuffix(' *')}  ({source})") != heading:
            lines.append(title)
            heading = title
        told = ", ".join(text for text in (row, *values) if text)
        start = f"  {':' + variant if variant else file[len(file.removesuffix(' *')) :].strip()}"
        lines.append(hanging(f"{start:<26}", told) if told else start)
    return "\n".join(lines)


def contains(text: str, word: str) -> bool:
    """Whether `word` is in `text`, a number only as a whole: 5.5 is in table-5.5, not in 85.51.

    >>> contains("recipes/ch5/table-5.5.yaml", "5.5"), contains("TAR 85.561", "5.5")
    (True, False)
    """
    before = r"(?<!\d)" if word[:1].isdigit() else ""
    after = r"(?!\d)" if word[-1:].isdigit() else ""
    return re.search(before + re.escape(word) + after, text, re.IGNORECASE) is not None


def measured(folder: Path) -> dict[str, str]:
    """Recipe -> 'last 91.20 +- 0.10' from every comparison.json below a folder."""
    from hypersphere._reading import read_json
    from hypersphere.commands._comparison import spread

    found = {}
    for path in folder.glob("**/comparison.json"):
        record = read_json(path)
        rows = record.get("rows") if isinstance(record, dict) else record
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ValueError(f"{path} is no comparison: expected rows, of `hypersphere compare`")
        for row in rows:
            metric = row.get("metric", "accuracy")
            found[row.get("spec", row["name"])] = spread(row["last"], metric)
    return found
