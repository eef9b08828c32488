"""The source tree keeps its own rules: who imports whom, names, words and docstrings."""

import pytest

import house

FOLDERS = house.folders()


@pytest.mark.parametrize("rule", house.WHOLE)
def test_the_tree_keeps(rule):
    found = house.WHOLE[rule]()
    assert not found, house.report(found)


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("rule", house.PER_FOLDER)
def test_a_folder_keeps(rule, folder):
    found = house.PER_FOLDER[rule](folder)
    assert not found, house.report(found)


def test_the_pages_keep_the_words():
    found = house.words("docs")
    assert not found, house.report(found)


def test_every_folder_has_its_place_in_the_order():
    assert set(FOLDERS) <= set(house.LEVELS)


def test_a_cycle_is_found_through_several_modules():
    edges = [("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")]
    assert house.cycles(edges) == [["a", "b", "c"]]
    assert house.cycles([("a", "b"), ("b", "c")]) == []


def test_a_docstring_is_read_as_the_help_reads_it():
    def full(x, y=1) -> int:
        """Add.

        Args:
            x: a number.
            y: another.

        Returns:
            Their sum.
        """

    def half(x, y=1) -> int:
        """Add.

        Args:
            x: a number.
            z: a stranger.
        """

    assert list(house._function_lacks("full", full)) == []
    assert [text for _, text in house._function_lacks("half", half)] == [
        "Args lacks y",
        "Args names what is no parameter: z",
        "no Returns",
    ]
