"""Runs every ```python block of README and docs, each file's blocks in order in one namespace.

Not collected by a plain `pytest` (its name does not start with test_): `dev.py check` names it.
A block opened with ```python no-run is only compiled.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[int, str, str]]:
    text = page.read_text()
    return [(text.count("\n", 0, m.start()) + 2, m[1].strip(), m[2]) for m in BLOCK.finditer(text)]


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: p.name)
def test_code_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for line, flag, source in blocks(page):
        code = compile("\n" * (line - 1) + source, str(page), "exec")
        if flag != "no-run":
            exec(code, namespace)
