"""Tutorials with commands are gone through as a reader would, in an empty folder."""

import re
import shlex
from pathlib import Path

import pytest

import hypersphere.training  # noqa: F401 - registers the parts of the library
from hypersphere import cli, registry
from registered import restore

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted((DOCS / "tutorials").glob("*.md"))
BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PICTURE = re.compile(r"!\[[^\]]+\]\(\.\./(\S+)\)")


def test_there_are_five_and_every_list_of_pages_names_them():
    assert len(PAGES) == 5
    for place, text in {
        "docs/tutorials/": (DOCS.parent / "README.md").read_text(),
        "tutorials/": (DOCS / "index.md").read_text(),
    }.items():
        assert [page.name for page in PAGES if f"({place}{page.name})" not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pictures_are_there_and_made_by_the_page(page):
    assert PICTURE.findall(page.read_text())
    for picture in PICTURE.findall(page.read_text()):
        assert (DOCS / picture).stat().st_size > 10_000
        assert re.search(r"^ *figure\b.* = ", page.read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", [pytest.param("plugin", marks=pytest.mark.slow), "points"])
def test_code_and_commands_run(tmp_path, monkeypatch, warm_workers, name):
    before = {kind: dict(table) for kind, table in registry._ENTRIES.items()}
    monkeypatch.chdir(tmp_path)
    space: dict[str, object] = {"__name__": "__main__"}
    try:
        for kind, source in BLOCK.findall((DOCS / "tutorials" / f"{name}.md").read_text()):
            if kind == "python":
                exec(compile(source, f"{name}.md", "exec"), space)
                continue
            for command in source.splitlines():
                words = shlex.split(command)
                assert words[0] == "hypersphere" and cli.main(words[1:]) == 0, command
    finally:
        restore(before, set())
