"""The index of equations, and what the site is made of; `dev.py check` builds the site itself."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def equations():
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import equations as module
    finally:
        sys.path.remove(str(ROOT / "docs"))
    return module


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Eq. 5.8", {"5.8"}),
        ("Eq. 4.11-4.13", {"4.11", "4.12", "4.13"}),
        ("Eq. 4.5 / 4.6 / 4.8", {"4.5", "4.6", "4.8"}),
        ("Eq. 2.6, 2.20, 3.11 (L-, A-, GA-Softmax)", {"2.6", "2.20", "3.11"}),
        ("Eq. C.1-C.3", {"C.1", "C.2", "C.3"}),
        ("Table 4.1, section 4.3.2, 4.6 %", set()),
    ],
)
def test_numbers(equations, text, found):
    assert equations.numbers(text) == found


def test_where_is_5_8(equations, tmp_path):
    places = equations.collect()["5.8"]
    assert "functional.class_energy.class_energy" in places["function"]
    assert places["test"]
    assert "regularizers.md" in places["page"]
    equations.write_index(tmp_path / "equations.md")
    rows = [
        x for x in (tmp_path / "equations.md").read_text().splitlines() if x.startswith("| 5.8")
    ]
    assert len(rows) == 1 and "functional.class_energy.class_energy" in rows[0]


def test_most_equations_of_the_parts_are_found(equations):
    found = equations.collect()
    for number in ("2.6", "2.20", "3.11", "4.3", "4.6", "4.13", "5.1", "6.3", "7.6", "7.7", "F.33"):
        assert found[number]["function"], number


def test_readme_links_every_page():
    text = (ROOT / "README.md").read_text()
    for page in sorted((ROOT / "docs").rglob("*.md")):
        name = page.relative_to(ROOT)
        if page.name not in ("index.md",):
            assert f"({name})" in text, f"README has no link to {name}"
