"""The index of equations: where is Eq. 5.8 in the code, the tests, the recipes and the pages?

An equation is found where a docstring, a comment or a page names it: "Eq. 4.6", "(4.5, 4.6)",
"Eq. 4.11-4.14"; sections such as 4.3.2 and tables are left alone.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NUMBER = r"(?:[1-7]|[A-F])\.\d{1,2}(?!\d*\.\d)(?![\d%])"
# "Eq. 4.6", "Eq. 4.5 / 4.6", "Eq. 7.3-7.4, F.1"
NAMED = re.compile(rf"Eqs?\.\s*({NUMBER}(?:\s*(?:,|/|-|and|or|to)\s*{NUMBER})*)")
RANGE = re.compile(rf"({NUMBER})(?:\s*(?:-|to)\s*({NUMBER}))?")


def numbers(text: str) -> set[str]:
    """The equations that a text names.

    Args:
        text: a docstring, a comment or a page.

    Returns:
        Their numbers.

    >>> sorted(numbers("Eq. 4.11-4.13 and Eq. 5.8; Table 4.1, section 4.3.2"))
    ['4.11', '4.12', '4.13', '5.8']
    """
    found: set[str] = set()
    for match in NAMED.finditer(text):
        for first, last in RANGE.findall(match[1]):
            chapter, low = first.split(".")
            high = last.split(".")[1] if last and last.split(".")[0] == chapter else low
            found |= {f"{chapter}.{n}" for n in range(int(low), int(high) + 1)}
            if last and last.split(".")[0] != chapter:
                found.add(last)
    return found


def _definitions(path: Path) -> Iterator[tuple[str, str]]:
    """(name, text) of each public class and function of a file, with its comments."""
    source = path.read_text()
    lines = source.splitlines()
    for node in ast.parse(source).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("_"):
            yield node.name, "\n".join(lines[node.lineno - 1 : node.end_lineno])


def collect() -> dict[str, dict[str, set[str]]]:
    """Places by equation and kind ("function", "test", "recipe", "page").

    Returns:
        For each number, the places of each kind.
    """
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for path in sorted((ROOT / "src" / "hypersphere").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        for name, text in _definitions(path):
            for number in numbers(text):
                found[number]["function"].add(f"{module.removeprefix('hypersphere.')}.{name}")
    for kind, folder, pattern in (("test", "tests", "*.py"), ("recipe", "recipes", "*.yaml")):
        for path in sorted((ROOT / folder).rglob(pattern)):
            for number in numbers(path.read_text()):
                found[number][kind].add(str(path.relative_to(ROOT / folder)))
    for path in sorted((ROOT / "docs").rglob("*.md")):
        for number in numbers(path.read_text()):
            found[number]["page"].add(str(path.relative_to(ROOT / "docs")))
    return found


def _key(number: str) -> tuple[bool, str, int]:
    chapter, index = number.split(".")
    return (not chapter.isdigit(), chapter, int(index))


def write_index(path: Path) -> None:
    """Write the index as a page.

    Args:
        path: the page.
    """
    lines = [
        "# Where is Eq. 5.8?",
        "",
        "The equations of the dissertation, where they are computed, tested, used in recipes and",
        "explained. Type the number into your browser's search, or into the search of this site.",
        "",
        "| Eq. | computed in | tested in | recipes | pages |",
        "|---|---|---|---|---|",
    ]
    found = collect()
    for number in sorted(found, key=_key):
        places = found[number]
        cells = [", ".join(f"`{p}`" for p in sorted(places[k])[:6]) for k in ("function", "test")]
        cells.append(", ".join(f"`{p}`" for p in sorted(places["recipe"])[:3]))
        cells.append(", ".join(f"[{p[:-3]}]({p})" for p in sorted(places["page"])))
        lines.append(f"| {number} | " + " | ".join(cells) + " |")
    path.write_text("\n".join(lines) + "\n")
