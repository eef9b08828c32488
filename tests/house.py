"""The rules of the source tree, each as a function that gives one line per violation.

`tests/test_house.py` asserts them; `python tests/house.py [FOLDER ...]` prints them and counts.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src" / "hypersphere"

# Who may import whom: a package imports from lower levels only, and never from its own level.
LEVELS: dict[str, int] = {
    "_version": -1, "_optional": -1, "_reading": 0, "_terminal": 0, "registry": 0,
    "ranges": 1, "finding": 1,
    "functional": 2,
    "layers": 3, "heads": 3, "regularizers": 3, "orthogonal": 3, "distributions": 3,
    "models": 4,
    "data": 5,
    "evaluation": 6,
    "training": 7,
    "reports": 8, "integrations": 8,
    "commands": 9,
    "cli": 10,
    "__main__": 11,
}  # fmt: skip
ONLY_BASICS = ("functional", "data")  # these import nothing of the package above level 0
BASICS = ("_version", "_optional", "_reading", "_terminal", "registry")

# Files that share a name because they are one thing: the formula, and the module that holds its
# parameters (or the private code that computes it fast).
FORMULA = "functional"
AROUND_FORMULAS = ("functional", "layers", "heads", "regularizers", "orthogonal", "distributions")

# Names that stand twice on purpose, each with its reason.
SAME_THING: dict[str, str] = {
    "main": "the entry point of a command",
}

WORDS: dict[str, str] = {
    r"one (number|value|factor|line|function|file|thread|process) an? \w+": "use 'per'",
    r"\bof strangers\b": "use 'untrusted' (files) or 'unknown people'",
    r"\bculprit": "use 'invalid argument'",
    r"what stands in brackets": "use 'default: ...'",
    r"\binnocent": "name the condition, e.g. own_loss_is_finite",
    r"\bin_use\b": "name the condition, e.g. is_fsdp",
    r"\bthe thesis\b": "use 'the dissertation'",
    r"\b(normal|initial|general|regular|recogn|organ|special|parameter|factor|summar|visual|real|util|local|serial|minim|maxim|quant|orthogonal|orthonormal|linear|discret|material|emphas|synchron|categor|standard)is(e[sd]?|ing|ations?|ers?)\b":
        "American spelling: -ize",
    r"\boptimis(e[sd]?|ing|ations?|ers?)\b": "American spelling: -ize",
    r"colour": "American spelling: color",
    r"neighbour": "American spelling: neighbor",
    r"behaviour": "American spelling: behavior",
    r"\bfavour": "American spelling: favor",
    r"\bcentre(s|d)?\b": "American spelling: center",
    r"\blabelled\b|\bmodelled\b|\bcancelled\b|\btravell": "American spelling: one l",
    r"\banalys(e[sd]?|ing)\b": "American spelling: analyze",
    r"\blicence": "American spelling: license",
    r"\bgrey(s|ish)?\b": "American spelling: gray",
    r"\benrolment\b": "American spelling: enrollment",
}  # fmt: skip
# Titles of published works keep their own spelling.
TITLES: tuple[str, ...] = ()

LONGEST_FILE = 400

# What the project is written in. Everything else in the repository is somebody's data.
WRITTEN_HERE = {
    "py", "cpp", "h", "html", "css", "js", "md", "txt", "typed", "cff",
    "yaml", "yml", "toml", "json", "editorconfig", "gitignore", "png", "svg",
}  # fmt: skip
WITHOUT_SUFFIX = {"LICENSE", ".ci/check", ".ci/run"}


class Violation(NamedTuple):
    """One line of a report."""

    folder: str
    place: str
    text: str

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


class Import(NamedTuple):
    """An import statement: who imports what, where, and the name taken from it (or "")."""

    importer: str
    target: str
    name: str
    line: int


def report(violations: Iterable[Violation]) -> str:
    """One line per violation, for an assertion message."""
    found = [str(v) for v in violations]
    return "\n".join([f"{len(found)} violations", *found])


@cache
def modules() -> dict[str, Path]:
    """Dotted name below `hypersphere` ("" is the package itself) -> file."""
    found = {}
    for path in sorted(SRC.rglob("*.py")):
        parts = list(path.relative_to(SRC).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        found[".".join(parts)] = path
    return found


def folders() -> list[str]:
    """The packages and modules directly below `hypersphere`."""
    return sorted({name.split(".")[0] for name in modules() if name})


def top(module: str) -> str:
    return module.split(".")[0]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


def place(module: str, line: int) -> str:
    return f"{modules()[module].relative_to(ROOT)}:{line}"


# --- imports ----------------------------------------------------------------------------------


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes that run: the bodies of `if TYPE_CHECKING` are left out."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield other
                yield from statements(other)
            continue
        yield child
        yield from statements(child)


@cache
def imports() -> tuple[Import, ...]:
    """Every import of a part of the package, inside functions too."""
    found = []
    for module, path in modules().items():
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        for node in statements(tree(path)):
            for target, name in _targets(node, package):
                found.append(_resolved(module, target, name, node.lineno))
    return tuple(found)


def _targets(node: ast.AST, package: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name.split(".")[0] == "hypersphere":
                yield alias.name.partition(".")[2], ""
    elif isinstance(node, ast.ImportFrom):
        if node.level:
            parts = package.split(".") if package else []
            base = parts[: len(parts) - (node.level - 1)]
            target = ".".join([*base, *([node.module] if node.module else [])])
        elif node.module and node.module.split(".")[0] == "hypersphere":
            target = node.module.partition(".")[2]
        else:
            return
        for alias in node.names:
            yield target, alias.name
    elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
        argument = node.args[0] if node.args else None
        if isinstance(argument, ast.Constant) and str(argument.value).startswith("hypersphere."):
            yield str(argument.value).partition(".")[2], ""


def _resolved(importer: str, target: str, name: str, line: int) -> Import:
    """`from . import x` names the module x, if there is one, and else the package."""
    inside = f"{target}.{name}" if target else name
    if name and inside in modules():
        return Import(importer, inside, "", line)
    return Import(importer, target, name, line)


def cycles(edges: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Strongly connected groups of two or more (Tarjan)."""
    graph: dict[str, set[str]] = defaultdict(set)
    for a, b in edges:
        if a != b:
            graph[a].add(b)
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = []
            while True:
                group.append(stack.pop())
                if group[-1] == node:
                    break
            if len(group) > 1:
                groups.append(sorted(group))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return groups


def module_cycles() -> list[Violation]:
    edges = [(i.importer, i.target) for i in imports()]
    return [
        Violation(top(group[0]), "modules", "a cycle of imports: " + " <-> ".join(group))
        for group in cycles(edges)
    ]


def package_cycles() -> list[Violation]:
    """Cycles between packages: at the top, and between the rooms of one package."""
    packages = {name for name, path in modules().items() if path.name == "__init__.py"}
    found = []
    for parent in sorted(packages):
        depth = len(parent.split(".")) if parent else 0

        def room(module: str, parent: str = parent, depth: int = depth) -> str | None:
            if parent and not module.startswith(parent + "."):
                return None
            name = ".".join(module.split(".")[: depth + 1])
            # Below the top only packages count as rooms: a file may stand between two of them.
            return name if name in packages or not parent else None

        edges = [(room(i.importer), room(i.target)) for i in imports()]
        for group in cycles((a, b) for a, b in edges if a and b):
            text = "a cycle of packages: " + " <-> ".join(group)
            found.append(Violation(top(group[0]), "packages", text))
    return found


def package_order(folder: str) -> list[Violation]:
    """Imports upwards or sideways, and functional's imports of anything but torch."""
    found = []
    for i in imports():
        if top(i.importer) != folder or not i.target or top(i.target) == folder:
            continue
        target = top(i.target)
        if folder not in LEVELS or target not in LEVELS:
            text = f"{folder} or {target} has no level in tests/house.py"
        elif LEVELS[target] >= LEVELS[folder]:
            text = f"{folder} imports {i.target}: {target} is not below {folder}"
        elif folder in ONLY_BASICS and target not in BASICS:
            text = f"{folder} imports {i.target}; it stands on its own"
        else:
            continue
        found.append(Violation(folder, place(i.importer, i.line), text))
    return found + (_beside_torch() if folder == "functional" else [])


def _beside_torch() -> list[Violation]:
    found = []
    for module, path in modules().items():
        if top(module) != "functional":
            continue
        for node in statements(tree(path)):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level and node.module:
                names = [node.module]
            for name in names:
                allowed = {*sys.stdlib_module_names, "torch", "hypersphere"}
                if module.startswith("functional._kernels.decoupled.triton."):
                    allowed.add("triton")  # which comes with torch where these are imported
                if name.split(".")[0] not in allowed:
                    text = f"functional imports {name}; it may import torch alone"
                    found.append(Violation("functional", place(module, node.lineno), text))
    return found


def private_names(folder: str) -> list[Violation]:
    """Names with a leading underscore that another package imports or reads."""
    found = []
    for i in imports():
        if top(i.importer) != folder or not i.target or top(i.target) == folder:
            continue
        parts = [p for p in [*i.target.split(".")[1:], i.name] if p.startswith("_")]
        if parts and not all(p.startswith("__") for p in parts):
            full = ".".join(filter(None, [i.target, i.name]))
            text = f"imports the private {full} of another package"
            found.append(Violation(folder, place(i.importer, i.line), text))
    for module, path in modules().items():
        if top(module) != folder:
            continue
        known = _module_aliases(module)
        for node in ast.walk(tree(path)):
            if (
                isinstance(node, ast.Attribute)
                and node.attr.startswith("_")
                and not node.attr.startswith("__")
                and isinstance(node.value, ast.Name)
                and top(known.get(node.value.id, folder)) != folder
            ):
                text = f"reads the private {known[node.value.id]}.{node.attr} of another package"
                found.append(Violation(folder, place(module, node.lineno), text))
    return found


def _module_aliases(module: str) -> dict[str, str]:
    """Local name -> module of the package, for `from .. import functional as HF`."""
    path = modules()[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found = {}
    for node in statements(tree(path)):
        if isinstance(node, ast.ImportFrom):
            for (target, name), alias in zip(_targets(node, package), node.names, strict=False):
                inside = f"{target}.{name}" if target else name
                if inside in modules():
                    found[alias.asname or alias.name] = inside
    return found


def kernel_imports(folder: str) -> list[Violation]:
    """Imports of `functional._kernels` from outside of `functional`."""
    return [
        Violation(
            folder, place(i.importer, i.line), f"imports {i.target}; use hypersphere.functional"
        )
        for i in imports()
        if top(i.importer) == folder != FORMULA and i.target.startswith("functional._kernels")
    ]


# --- names ------------------------------------------------------------------------------------


def doubled_names() -> list[Violation]:
    """Public classes and functions of one name that two modules define."""
    where: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for module, path in modules().items():
        if top(module) in ("commands", "__main__"):
            continue
        for node in tree(path).body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("_"):
                where[node.name].append((module, node.lineno))
    found = []
    for name, places in sorted(where.items()):
        if len({m for m, _ in places}) > 1 and name not in SAME_THING:
            others = ", ".join(m for m, _ in places)
            for module, line in places:
                text = f"{name!r} is defined in {others}"
                found.append(Violation(top(module), place(module, line), text))
    return found


def doubled_files() -> list[Violation]:
    """Files of one name in two packages."""
    where: dict[str, list[str]] = defaultdict(list)
    for module, path in modules().items():
        if path.stem not in ("__init__", "__main__") and top(module) != "commands":
            where[path.stem].append(module)
    found = []
    for name, places in sorted(where.items()):
        packages = {top(m) for m in places}
        # A formula and what holds its parameters share a noun: style.md, "one noun everywhere".
        formula = FORMULA in packages and packages <= set(AROUND_FORMULAS) and len(packages) <= 2
        if len(places) > 1 and not formula and name not in SAME_THING:
            for module in places:
                text = f"a file of this name stands in {', '.join(places)}"
                found.append(Violation(top(module), place(module, 1), text))
    return found


def file_lengths(folder: str) -> list[Violation]:
    """Files past 400 lines: they hold two ideas."""
    found = []
    for module, path in modules().items():
        lines = len(path.read_text("utf-8").splitlines())
        if top(module) == folder and lines > LONGEST_FILE:
            found.append(Violation(folder, place(module, 1), f"{lines} lines: two ideas"))
    return found


def foreign_files() -> list[Violation]:
    """Files in the repository of other kinds than code, text and figures, such as data sets."""
    if not (ROOT / ".git").exists():
        return []  # an unpacked source archive
    tracked = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True)
    text = "not a kind of file that the project is written in; data sets stay outside"
    return [
        Violation(name.split("/")[0], name, text)
        for name in tracked.split("\0")
        if name and name.rpartition(".")[2] not in WRITTEN_HERE and name not in WITHOUT_SUFFIX
    ]


def own_difflib(folder: str) -> list[Violation]:
    """ "Did you mean" is written once, in the register."""
    found = []
    for module, path in modules().items():
        if top(module) != folder or module == "registry":
            continue
        for node in ast.walk(tree(path)):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if "difflib" in names or (
                isinstance(node, ast.ImportFrom) and node.module == "difflib"
            ):
                text = "imports difflib; use registry.nearest or registry.unknown_name"
                found.append(Violation(folder, place(module, node.lineno), text))
    return found


def words(folder: str) -> list[Violation]:
    """Words that style.md replaces by others, in code and comments; "docs" is the pages."""
    if folder == "docs":
        files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
        files += sorted((ROOT / "docs").glob("*.md"))
    else:
        files = [path for module, path in modules().items() if top(module) == folder]
    found = []
    for path in files:
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            text = line
            for title in TITLES:
                text = text.replace(title, "")
            for pattern, advice in WORDS.items():
                for match in re.finditer(pattern, text, re.IGNORECASE):
                    where = f"{path.relative_to(ROOT)}:{number}"
                    found.append(Violation(folder, where, f"{match[0]!r}: {advice}"))
    return found


# --- docstrings -------------------------------------------------------------------------------


def docstrings(folder: str) -> list[Violation]:
    """What the docstrings of a folder's public names lack."""
    if folder not in modules() or modules()[folder].name != "__init__.py":
        return []
    package = importlib.import_module(f"hypersphere.{folder}")
    seen: set[int] = set()
    found: list[Violation] = []
    for name, thing in _public(package):
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if inspect.isclass(thing):
            lacks = _class_lacks(name, thing)
        else:
            lacks = ((thing, n, text) for n, text in _function_lacks(name, thing))
        found += [Violation(folder, _source(t, folder), f"{n}: {text}") for t, n, text in lacks]
    return list(dict.fromkeys(found))


def _public(package: Any) -> Iterator[tuple[str, Any]]:
    for name in getattr(package, "__all__", []):
        thing = getattr(package, name)
        if inspect.ismodule(thing):
            yield from _public(thing)
        elif (inspect.isclass(thing) or inspect.isfunction(thing)) and _ours(thing):
            yield name, thing


def _ours(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).split(".")[0] == "hypersphere"


def _source(thing: Any, folder: str) -> str:
    thing = inspect.unwrap(thing) if inspect.isfunction(thing) else thing
    try:
        path = Path(inspect.getsourcefile(thing) or "").relative_to(ROOT)
        return f"{path}:{inspect.getsourcelines(thing)[1]}"
    except (TypeError, OSError, ValueError):
        return folder


def _class_lacks(name: str, cls: type) -> Iterator[tuple[type, str, str]]:
    for n, text in _lacks(name, vars(cls).get("__doc__"), _constructor_parameters(cls), False):
        yield cls, n, text
    foreign = [base for base in cls.__mro__ if not _ours(base) and base is not object]
    for base in filter(_ours, cls.__mro__):
        fields = getattr(base, "__dataclass_fields__", {})
        for key, member in vars(base).items():
            if key.startswith("_") or key in fields or any(hasattr(f, key) for f in foreign):
                continue
            full, doc = f"{base.__name__}.{key}", _inherited_doc(base, key)
            if isinstance(member, property) or type(member).__name__ == "cached_property":
                if not doc:
                    yield base, full, "no docstring"
            elif isinstance(member, (staticmethod, classmethod)) or inspect.isfunction(member):
                function = getattr(member, "__func__", member)
                for n, text in _function_lacks(full, function, doc):
                    yield base, n, text


def _inherited_doc(cls: type, key: str) -> str | None:
    """The docstring of a method, or of the method of the package that it overrides."""
    for base in cls.__mro__:
        doc = getattr(vars(base).get(key), "__doc__", None)
        if doc and _ours(base):
            return str(doc)
    return None


def _constructor_parameters(cls: type) -> list[str]:
    if dataclasses.is_dataclass(cls):
        return [f.name for f in dataclasses.fields(cls) if not f.name.startswith("_")]
    if getattr(cls, "_is_protocol", False):
        return []  # never constructed
    owner = next((b for b in cls.__mro__ if "__init__" in vars(b)), object)
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return list(cls._fields)
    if not _ours(owner):
        return []
    return _parameters(vars(owner)["__init__"])


def _parameters(function: Callable[..., Any]) -> list[str]:
    names = list(inspect.signature(function).parameters)
    return [n for n in names if n not in ("self", "cls") and not n.startswith("_")]


def _function_lacks(
    name: str, function: Callable[..., Any], doc: str | None = None
) -> Iterator[tuple[str, str]]:
    annotation = inspect.signature(function).return_annotation
    returns = str(annotation) not in ("None", "NoReturn", "<class 'inspect._empty'>")
    yield from _lacks(name, doc or function.__doc__, _parameters(function), returns)


def _lacks(
    name: str, doc: str | None, parameters: list[str], returns: bool
) -> Iterator[tuple[str, str]]:
    if not doc or not doc.strip():
        yield name, "no docstring"
        return
    from docstring_parser import ParseError, google  # as the command line reads them

    try:
        parsed = google.parse(inspect.cleandoc(doc))
    except ParseError as error:
        yield name, f"cannot be read by the command line: {error}"
        return
    documented = {p.arg_name.lstrip("*") for p in parsed.params}
    missing = [p for p in parameters if p not in documented]
    if missing:
        yield name, f"Args lacks {', '.join(missing)}"
    unknown = sorted(documented - set(parameters))
    if unknown:
        yield name, f"Args names what is no parameter: {', '.join(unknown)}"
    if returns and parsed.returns is None:
        yield name, "no Returns"


# --- the whole house --------------------------------------------------------------------------

PER_FOLDER: dict[str, Callable[[str], list[Violation]]] = {
    "package order": package_order,
    "private names": private_names,
    "kernels": kernel_imports,
    "file lengths": file_lengths,
    "difflib": own_difflib,
    "words": words,
    "docstrings": docstrings,
}
WHOLE: dict[str, Callable[[], list[Violation]]] = {
    "module cycles": module_cycles,
    "package cycles": package_cycles,
    "doubled names": doubled_names,
    "doubled files": doubled_files,
    "foreign files": foreign_files,
}


def main(chosen: list[str]) -> int:
    counts: Counter[tuple[str, str]] = Counter()
    for rule, check in WHOLE.items():
        for violation in check():
            counts[rule, violation.folder] += 1
            if not chosen or violation.folder in chosen:
                print(f"[{rule}] {violation}")
    for rule, examine in PER_FOLDER.items():
        for folder in [*folders(), "docs"]:
            for violation in examine(folder):
                counts[rule, folder] += 1
                if not chosen or folder in chosen:
                    print(f"[{rule}] {violation}")
    print()
    for (rule, folder), count in sorted(counts.items()):
        print(f"{rule:15} {folder:14} {count}")
    return 1 if counts else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
