"""Build the pages as a site that works offline: `python3 dev.py docs`, `python docs/site.py DIR`.

The pages of docs/ are taken as they are. Beside them stand pages made here: the API of every public
name from its docstring, and the index of equations. Warnings are errors.
"""

from __future__ import annotations

import importlib
import inspect
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE, SITE = ROOT / "build" / "site-source", ROOT / "build" / "site"
# Packages in the order in which data flows through them.
PACKAGES = (
    "functional",
    "layers",
    "heads",
    "regularizers",
    "orthogonal",
    "distributions",
    "models",
)
PACKAGES += ("data", "training", "evaluation", "reports", "integrations")
CHAPTERS = {
    "Start": ("index", "tutorials/*"),
    "Parts": ("angles", "layers", "heads", "regularizers", "uniformity", "distributions"),
    "Training": ("orthogonal", "finetuning", "models", "data", "training", "extending"),
    "Judging": ("evaluation", "open-set", "reports", "gallery", "results"),
    "Ground": ("performance", "reliability", "dependencies", "releases"),
}


def main(arguments: list[str]) -> int:
    """Assemble the source and build it.

    Args:
        arguments: where the site goes. Default: build/site.

    Returns:
        The exit code of Sphinx.
    """
    from sphinx.cmd.build import build_main

    target = Path(arguments[0]) if arguments else SITE
    shutil.rmtree(SOURCE, ignore_errors=True)
    SOURCE.mkdir(parents=True)
    for page in sorted((ROOT / "docs").rglob("*")):
        if page.suffix in (".md", ".png", ".svg") and page.is_file():
            copy = SOURCE / page.relative_to(ROOT / "docs")
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(page.read_bytes())
            if page.suffix == ".md":  # anchors as MyST knows them
                copy.write_text(re.sub(r'<a id="([\w-]+)"></a>', r"(\1)=", page.read_text()))
    shutil.copy(ROOT / "docs" / "conf.py", SOURCE)
    api = write_api(SOURCE / "api")
    from equations import write_index

    write_index(SOURCE / "equations.md")
    _close(SOURCE / "index.md", api)
    code = build_main(["-W", "--keep-going", "-q", "-b", "html", str(SOURCE), str(target)])
    if not code:
        print(f"open {target / 'index.html'}")
    return code


def write_api(folder: Path) -> list[str]:
    """A page per public package, with every name of its `__all__`.

    Args:
        folder: where the pages go.

    Returns:
        Their names.
    """
    folder.mkdir(parents=True)
    written, shown = [], set()
    for package in PACKAGES:
        try:
            module = importlib.import_module(f"hypersphere.{package}")
        except ModuleNotFoundError:
            continue
        title = f"hypersphere.{package}"
        lines = [title, "=" * len(title), "", *_first_lines(module), ""]
        for name in sorted(module.__all__, key=str.lower):
            value = getattr(module, name)
            if id(value) not in shown:  # one thing may be public in two packages, such as Margin
                lines += _directive(f"{title}.{name}", value)
            shown.add(id(value))
        (folder / f"{package}.rst").write_text("\n".join(lines) + "\n")
        written.append(f"api/{package}")
    return written


def _first_lines(module: object) -> list[str]:
    """The first paragraph of a module's docstring, as plain text."""
    text = (inspect.getdoc(module) or "").split("\n\n")[0]
    return [text.replace("|", "∣").replace("*", "\\*")]


def _directive(path: str, value: object) -> list[str]:
    if inspect.ismodule(value):
        return []
    if inspect.isclass(value):
        return [f".. autoclass:: {path}", "   :members:", "   :show-inheritance:", ""]
    if callable(value) and hasattr(value, "__name__"):
        return [f".. autofunction:: {path}", ""]
    # A type alias or a constant: its docstring would be that of its type.
    return [f".. py:data:: {path}", "", f"   ``{type(value).__name__}``", ""]


def _close(index: Path, api: list[str]) -> None:
    """The tables of contents, which the page itself does without."""
    lines = [index.read_text()]
    for chapter, names in {**CHAPTERS, "Reference": (*api, "equations")}.items():
        found = [p for name in names for p in _existing(name) if p != "index"]
        if found:
            head = f"```{{toctree}}\n:hidden:\n:caption: {chapter}\n:maxdepth: 1\n"
            lines.append(head + "\n".join(found) + "\n```")
    index.write_text("\n\n".join(lines) + "\n")


def _existing(name: str) -> list[str]:
    found = [p for suffix in (".md", ".rst") for p in SOURCE.glob(name + suffix)]
    return sorted(re.sub(r"\.\w+$", "", str(p.relative_to(SOURCE))) for p in found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
