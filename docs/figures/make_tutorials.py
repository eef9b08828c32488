"""Draws the pictures of the tutorials: `python docs/figures/make_tutorials.py [NAME ...]`.

Runs the code of the page, as a reader would, in an empty folder, and keeps the last `figure`.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGES = HERE.parent / "tutorials"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def main(names: list[str]) -> None:
    (HERE / "tutorials").mkdir(exist_ok=True)
    for name in names or sorted(page.stem for page in PAGES.glob("*.md")):
        space: dict[str, object] = {"__name__": "__main__"}
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            for code in BLOCK.findall((PAGES / f"{name}.md").read_text()):
                exec(compile(code, f"{name}.md", "exec"), space)
            os.chdir(HERE)
        figure = space["figure"]
        figure.savefig(HERE / "tutorials" / f"{name}.png", dpi=160, bbox_inches="tight")  # type: ignore[attr-defined]
        print(f"docs/figures/tutorials/{name}.png")


if __name__ == "__main__":
    main(sys.argv[1:])
