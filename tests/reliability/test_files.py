"""Damaged files in front of every command: a sentence, or the right answer."""

from unittest import mock

import pytest

from reliability import tally
from reliability.calls import Answer
from reliability.damage import DAMAGES, KINDS, fresh_copy, replace
from reliability.formats import FORMATS
from reliability.judging import Format, Reader, chosen, examine, wrong

some_form = pytest.mark.parametrize("form", FORMATS, ids=lambda form: tally.slug(form.name))


@some_form
def test_a_damaged_file(form: Format, worlds):
    """One damage for each command, another for each."""
    cases = examine(form, worlds[form.world], share=1)
    assert not list(wrong(cases)), "\n".join(wrong(cases))


@pytest.mark.slow
@some_form
def test_every_damaged_file(form: Format, worlds):
    cases = examine(form, worlds[form.world])
    test = f"tests/reliability/test_files.py::test_every_damaged_file[{tally.slug(form.name)}]"
    tally.note_cases(form.name, cases, test)
    assert not list(wrong(cases)), "\n".join(wrong(cases))


@some_form
def test_there_are_many_ways_of_every_kind(form: Format):
    assert len({damage.name for damage in form.damages}) == len(form.damages) >= 30
    kinds = {damage.kind for damage in form.damages}
    assert kinds >= set(KINDS) - {"lying"}


def test_every_damage_of_a_few_meets_some_command():
    form = FORMATS[0]
    seen = {d.name for number in range(40) for d in chosen(form.damages, 2, number)}
    assert len(seen) > 30 and chosen(form.damages, None, 0) == form.damages


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: tally.slug(damage.name))
def test_a_fresh_copy_has_no_trace_of_a_damage(tmp_path, damage):
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "a" / "b").mkdir(parents=True)
    for name in ("a/one", "a/b/two", "three"):
        (source / name).write_bytes(name.encode() * 40)
    fresh_copy(source, target)
    before = (target / "three").stat()
    damage.apply(target / "a" / "one")
    (target / "a" / "b" / "two").write_bytes(b"a/b/twx" * 40)  # of the same length
    (target / "a" / "new").mkdir()
    (target / "a" / "new" / "file").write_text("5")
    fresh_copy(source, target)
    places = sorted(p.relative_to(source) for p in source.rglob("*"))
    assert sorted(p.relative_to(target) for p in target.rglob("*")) == places
    for place in places:
        one, other = source / place, target / place
        assert one.is_dir() == other.is_dir() and not other.is_symlink()
        if one.is_file():
            assert one.read_bytes() == other.read_bytes()
            assert one.stat().st_mtime_ns == other.stat().st_mtime_ns
    assert (target / "three").stat().st_ino == before.st_ino  # left as it was


def trusting(folder):
    return Answer(["read"], out=(folder / "a.txt").read_text(errors="replace"))


def crashing(folder):
    return Answer(["read"], code=-1, escaped="ValueError: 6")


def speechless(folder):
    return Answer(["read"], code=1, err="Error")


def careful(folder):
    return Answer(["read"], code=1, err="hypersphere read: a.txt has to hold a 5; write one")


@pytest.mark.parametrize("run", [trusting, crashing, speechless, careful])
def test_the_judge_sees_what_is_wrong(tmp_path, run):
    (tmp_path / "a.txt").write_text("5")

    def read(folder):
        path = folder / "a.txt"
        return trusting(folder) if path.is_file() and path.read_bytes() == b"5" else run(folder)

    sixth = replace("a six", "lying", b"6")
    form = Format("text", "", "a.txt", (Reader("read", read),), [sixth])
    with mock.patch("reliability.judging.DAMAGES", []):
        (case,) = examine(form, tmp_path, watch=lambda case: None)
    assert case.verdict == ("refused" if run is careful else "wrong")
