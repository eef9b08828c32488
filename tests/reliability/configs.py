"""Mutated settings: every recipe with a value, a key, a section or its text changed.

A config is refused with a sentence, or accepted rightly: what it says stands in the resolved config
that `--print_config` shows, and that config read again is the same. Small configs of every task
are mutated and trained, too: they are refused, or trained to finite numbers.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from reliability.calls import Answer, call, warming_up
from reliability.judging import ACCEPTED, REFUSED, WRONG, Case
from reliability.worlds import TASKS, graph_world

ODD: list[Any] = [
    -1, 0, 1, -0.5, 0.0, 2.5, 1e20, -1e20, 1e-300, 10**30, math.nan, math.inf, -math.inf,
    "", " ", "null", "true", "nan", "x", "x" * 3000, "../..", "/dev/zero", "é\u202e", "\x1b[2J",
    "1e400", "0x10", "1_000", "[1, 2]", "{}", True, False, None, [], [1, 2, 3], [-1], ["a"],
    [[1], [2]], [None], {}, {"a": 1}, {"name": "x"}, {"a": {"b": {"c": [1]}}},
]  # fmt: skip
LINES = [
    "seed: 1", "base: nowhere.yaml", "base: .", "base: mutated.yaml", "\tseed: 1", "%YAML 9.9",
    "--- ", "...", "- a", "? [a]", "x: &a [*a]", "x: *nothing", "seed: !!python/name:os.system",
    "seed: 2001-01-01", "seed: !!binary aGk=", "!!set {a}", "<<: {seed: 3}", "<<: 5", "{}", "\x00",
    "\ufeffseed: 1", "'unclosed", "[unclosed", "a: b: c", "#", "data: {name: digits}", "nosuch: 1",
    "variants: 5", "variants: {cpu: 5}", "model: 5", "head: null", "train: {epochs: 2, steps: 3}",
]  # fmt: skip
# Sections that are not settings: they say where other settings are.
STRUCTURE = ("base", "variants", "thesis", "dissertation")


@dataclass(frozen=True)
class Mutation:
    """A config after a change.

    Args:
        kind: what was changed.
        recipe: the file that it was.
        variants: of the file, that are read with it.
        content: of the changed file.
        refused: whether it has to be refused.
    """

    kind: str
    recipe: Path
    variants: tuple[str, ...]
    content: bytes
    refused: bool = False


@functools.cache
def recipes() -> list[Path]:
    """Every shipped config file."""
    from hypersphere.commands._config import recipe_root

    return sorted(recipe_root().rglob("*.yaml"))


def mutations(files: st.SearchStrategy[Path] | None = None) -> st.SearchStrategy[Mutation]:
    """Any change of any recipe (or of these files)."""
    return _mutation(files if files is not None else st.sampled_from(recipes()))


@st.composite
def _mutation(draw: st.DrawFn, files: st.SearchStrategy[Path]) -> Mutation:
    recipe = draw(files)
    text = recipe.read_text("utf-8")
    content = yaml.safe_load(text)
    names = sorted(content.get("variants") or {})
    chosen = tuple(draw(st.lists(st.sampled_from(names), max_size=2))) if names else ()
    if chosen:  # a change of another variant would not be read
        content["variants"] = {name: content["variants"][name] for name in chosen}
        for layer in content["variants"].values():
            if isinstance(layer, dict):
                layer.pop("variants", None)  # not chosen, so not looked at either
    else:
        content.pop("variants", None)
    kind = draw(st.sampled_from(["value", "type", "key", "section", "structure", "text", "bytes"]))
    refused = False
    if kind == "text":
        changed = _text(draw, text)
    elif kind == "bytes":
        return Mutation(kind, recipe, chosen, _bytes(draw, text.encode()))
    else:
        refused = CHANGES[kind](draw, content)
        changed = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    return Mutation(kind, recipe, chosen, changed.encode("utf-8", "surrogateescape"), refused)


def _places(
    content: Any, sections: bool, prefix: tuple[Any, ...] = ()
) -> Iterator[tuple[Any, ...]]:
    """Paths of the values (or of the sections) below a mapping."""
    for key, value in content.items():
        inside = isinstance(value, dict)
        if inside == sections:
            yield (*prefix, key)
        if inside:
            yield from _places(value, sections, (*prefix, key))


def _at(content: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        content = content[key]
    return content


def _pick(draw: st.DrawFn, content: Any, sections: bool) -> tuple[Any, Any] | None:
    found = list(_places(content, sections))
    if not found:
        return None
    *above, key = draw(st.sampled_from(found))
    return _at(content, tuple(above)), key


def _value(draw: st.DrawFn, content: Any) -> bool:
    found = _pick(draw, content, sections=False)
    if found:
        found[0][found[1]] = draw(st.sampled_from(ODD))
    return False


def _type(draw: st.DrawFn, content: Any) -> bool:
    found = _pick(draw, content, draw(st.booleans()))
    if found:
        section, key = found
        wraps = [
            lambda v: [v],
            lambda v: {"name": v},
            lambda v: str(v),
            lambda v: [v, v],
            len,
            float,
        ]
        wrap = draw(st.sampled_from(wraps))
        try:
            section[key] = wrap(section[key])
        except (TypeError, ValueError):
            section[key] = None
    return False


def _key(draw: st.DrawFn, content: Any) -> bool:
    """A key misspelled: such a key exists nowhere."""
    found = _pick(draw, content, draw(st.booleans()))
    if not found:
        return False
    section, key = found
    typed = draw(
        st.sampled_from([f"{key}x", f"x{key}", str(key)[::-1] + "_", f"{key} ", f"{key}."])
    )
    items = [(typed if k == key else k, v) for k, v in section.items()]
    section.clear()
    section.update(items)
    replaced = content.get("variants") and any(
        _holds(content.get(name), section) for name in ("model", "head", "data", "optimizer")
    )  # a variant that names another part drops what the file says of the first
    return (
        section is not content.get("variants") and not _is_free(content, section) and not replaced
    )


def _holds(value: Any, section: Any) -> bool:
    """Whether a section is this one or one in it."""
    if not isinstance(value, dict):
        return False
    return value is section or any(_holds(item, section) for item in value.values())


def _is_free(content: Any, section: Any) -> bool:
    """Whether any key may stand in a section: numbers of the text that a recipe quotes."""
    for part in (content, *(content.get("variants") or {}).values()):
        for name in ("dissertation", "thesis"):
            quoted = (part or {}).get(name)
            if isinstance(quoted, dict) and quoted.get("also") is section:
                return True
    return False


def _section(draw: st.DrawFn, content: Any) -> bool:
    """A section removed, doubled under another name, swapped with another, or filled with odds."""
    names = [k for k, v in content.items() if isinstance(v, dict)]
    what = draw(st.sampled_from(["new", "removed", "moved", "swapped", "odd"]))
    if what == "new" or not names:
        content[draw(st.sampled_from(["sections", "optimiser", "loss", "x.y", "task.name"]))] = {
            "a": 1
        }
        return True
    one, two = draw(st.sampled_from(names)), draw(st.sampled_from(names))
    if what == "removed":
        del content[one]
    elif what == "moved":
        content.setdefault(two, {})
        content[two] = {**content[two], one: content[one]}
    elif what == "swapped":
        content[one], content[two] = content[two], content[one]
    else:
        content[one] = draw(st.sampled_from(ODD))
    return False


def _structure(draw: st.DrawFn, content: Any) -> bool:
    key = draw(
        st.sampled_from(["base", "variants", "task", "seed", "data", "model", "regularizers"])
    )
    content[key] = draw(st.sampled_from(ODD))
    return False


CHANGES = {"value": _value, "type": _type, "key": _key, "section": _section}
CHANGES["structure"] = _structure


def _text(draw: st.DrawFn, text: str) -> str:
    lines = text.splitlines(keepends=True)
    at = draw(st.integers(0, max(0, len(lines) - 1)))
    what = draw(
        st.sampled_from(["added", "doubled", "removed", "indented", "cut", "joined", "all"])
    )
    if what == "added":
        lines.insert(at, draw(st.sampled_from(LINES)) + "\n")
    elif what == "doubled":
        lines.insert(at, lines[at])
    elif what == "removed":
        del lines[at]
    elif what == "indented":
        lines[at] = draw(st.sampled_from([" ", "  ", "\t", "- "])) + lines[at]
    elif what == "cut":
        return text[: draw(st.integers(0, len(text)))]
    elif what == "joined":
        lines[at] = lines[at].rstrip("\n")
    else:
        return text + text
    return "".join(lines)


def _bytes(draw: st.DrawFn, content: bytes) -> bytes:
    at = draw(st.integers(0, len(content) - 1))
    byte = content[at] ^ (1 << draw(st.integers(0, 7)))
    return content[:at] + bytes([byte]) + content[at + 1 :]


# --- judging ------------------------------------------------------------------------------------


class Kitchen:
    """A copy of the recipes in which mutated ones are read."""

    def __init__(self, folder: Path) -> None:
        from hypersphere.commands._config import recipe_root

        self.root = recipe_root()
        self.folder = folder
        self.count = 0
        shutil.copytree(self.root, folder / "recipes", dirs_exist_ok=True)
        with warming_up():
            assert call(["train", str(recipes()[0]), "--print_config"], folder).code == 0

    def judge(self, mutation: Mutation) -> Case:
        """Read a mutated config, and what it was resolved to."""
        place = self.folder / "recipes" / mutation.recipe.relative_to(self.root).parent
        self.count += 1
        path = place / f"mutated-{self.count}.yaml"
        path.write_bytes(mutation.content)
        spec = (
            ":".join([str(path), ",".join(mutation.variants)]) if mutation.variants else str(path)
        )
        answer = call(["train", spec, "--print_config"], self.folder)
        verdict, detail = self._verdict(mutation, answer)
        path.unlink()
        if verdict == WRONG:
            detail += f"\n{spec}\n{mutation.content[:3000].decode('utf-8', 'replace')}"
        name = str(mutation.recipe.relative_to(self.root))
        return Case("config", mutation.kind, name, "train", verdict, detail)

    def _verdict(self, mutation: Mutation, answer: Answer) -> tuple[str, str]:
        if fault := answer.fault():
            return WRONG, fault
        if answer.is_refusal:
            return REFUSED, ""
        if mutation.refused:
            return WRONG, "accepted a key that does not exist"
        lost = list(lost_settings(mutation, answer.out))
        if lost:
            return WRONG, f"accepted, but {lost[0]}"
        again = self.folder / f"again-{self.count}.yaml"
        again.write_text(answer.out, "utf-8")
        second = call(["train", str(again), "--print_config"], self.folder)
        again.unlink()
        if second.out != answer.out:
            return WRONG, f"read again it is another config: {second.err}{second.escaped}"
        return ACCEPTED, ""


def lost_settings(mutation: Mutation, printed: str) -> Iterator[str]:
    """What the uppermost layer of a config says and its resolved form does not."""
    content = yaml.safe_load(mutation.content.decode("utf-8-sig"))
    if not isinstance(content, dict):
        return
    resolved = yaml.safe_load(printed)
    layer = content
    if mutation.variants:
        layer = (content.get("variants") or {}).get(mutation.variants[-1]) or {}
    settings = {k: v for k, v in layer.items() if k not in STRUCTURE}
    for path in _places(settings, sections=False):
        given = _at(settings, path)
        if given is None:
            continue
        try:
            found = _at(resolved, path)
        except (KeyError, TypeError):
            yield f"{'.'.join(map(str, path))} is lost"
            continue
        if not same(given, found):
            yield f"{'.'.join(map(str, path))} is {given!r} there and {found!r} resolved"


def same(given: Any, found: Any) -> bool:
    """Whether a resolved value is the given one; "1e-3" is text in YAML and a number to us.

    Text is taken for what it would be without its quotes, as on the command line.
    """
    if isinstance(given, str) and not isinstance(found, str):
        with contextlib.suppress(yaml.YAMLError):
            unquoted = yaml.safe_load(given)
            if not isinstance(unquoted, str) and same(unquoted, found):
                return True
    if isinstance(given, list) and isinstance(found, list):
        return len(given) == len(found) and all(map(same, given, found))
    if isinstance(given, dict) and isinstance(found, dict):
        return all(k in found and same(v, found[k]) for k, v in given.items())
    if given == found or (given in ({}, []) and not found):
        return True
    if isinstance(given, bool) or isinstance(found, bool):
        return str(given).lower() == str(found).lower()
    try:
        return float(given) == float(found)
    except (TypeError, ValueError, OverflowError):
        return str(given).strip() == str(found).strip()


# --- mutated and trained ------------------------------------------------------------------------


# Seconds of the processor in which a mutated config is trained. Without its section, task few_shot
# has 600 episodes of every method, which take a slow processor six seconds.
TRAINING = 30.0


class Workshop:
    """A folder in which mutated small configs of every task are trained."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, text in TASKS.items():
            (folder / f"{name}.yaml").write_text(text)
        graph_world(folder)
        shutil.move(folder / "citeseer.yaml", folder / "graph.yaml")
        self.files = [folder / f"{name}.yaml" for name in (*TASKS, "graph")]
        with warming_up():
            for file in self.files:
                words = ["train", str(file), "--run.folder", f"runs/{file.stem}"]
                assert call(words, folder).code == 0, file

    def judge(self, mutation: Mutation) -> Case:
        """Train a mutated config for its two steps."""
        path, run = self.folder / "mutated.yaml", self.folder / "run"
        path.write_bytes(mutation.content)
        shutil.rmtree(run, ignore_errors=True)
        limits = ["--train.steps", "2", "--run.folder", "run", "--run.report", "false"]
        answer = call(["train", str(path), *limits], self.folder, TRAINING)
        verdict, detail = self._verdict(answer, run)
        if verdict == WRONG:
            detail += f"\n{mutation.content[:3000].decode('utf-8', 'replace')}"
        return Case(
            "config, trained", mutation.kind, mutation.recipe.stem, "train", verdict, detail
        )

    def _verdict(self, answer: Answer, run: Path) -> tuple[str, str]:
        if fault := answer.fault():
            return WRONG, fault
        if answer.is_refusal:
            return REFUSED, ""
        summary = json.loads((run / "summary.json").read_text())
        numbers = [v for v in summary["last"].values() if isinstance(v, float)]
        if summary["last"].get("step") != 2 or not all(map(math.isfinite, numbers)):
            return WRONG, f"trained, but ended with {summary['last']}"
        return ACCEPTED, ""
