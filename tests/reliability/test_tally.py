"""docs/reliability.md and results/reliability.json agree with each other and with the harness."""

import importlib.util
import json
from pathlib import Path

import pytest

from reliability import tally
from reliability.formats import FORMATS
from reliability.jobs import JOBS
from reliability.judging import Case

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def record():
    if not tally.FILE.exists():
        pytest.skip(f"nothing is counted yet: {tally.COMMAND}")
    return json.loads(tally.FILE.read_text())


@pytest.fixture(scope="module")
def generate():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_made_from_the_file(generate):
    page = (ROOT / "docs" / "reliability.md").read_text()
    assert generate.fill(page) == page
    assert ("not measured yet" in page) != tally.FILE.exists()


def test_everything_was_counted(record):
    """Another format, reader or damage has to be counted before it can be claimed."""
    inputs = record["inputs"]
    for form in FORMATS:
        assert inputs[form.name]["ways"] == len(form.damages), form.name
        assert inputs[form.name]["tried"] == len(form.damages) * len(form.readers), form.name
    assert set(inputs) == {*(form.name for form in FORMATS), "config, read", "config, trained"}
    assert set(record["faults"]) == {job.name for job in JOBS}
    assert inputs["config, read"]["tried"] >= 500


def test_nothing_was_wrong(record):
    for name, row in record["inputs"].items():
        assert row["wrong"] == 0 and row["tried"] == row["refused"] + row["accepted"], name
    for name, row in record["faults"].items():
        assert len(row["kinds"]) == 5
        for kind, counts in row["kinds"].items():
            assert counts["tried"] == counts["survived"] > 0, (name, kind)


def test_a_fault_would_be_seen(generate, tmp_path, monkeypatch):
    path = tmp_path / "counts.json"
    monkeypatch.setenv(tally.VARIABLE, str(path))
    cases = [Case("a", "flipped", "bit 1", "data", v) for v in ("refused", "accepted", "wrong")]
    tally.note_cases("a", cases[:2], "test_a")
    tally.note_cases("a", cases, "test_a")  # replaces the row
    kinds = [{"kind": "killed", "tried": 3, "survived": 2, "wrong": ["x"]}]
    tally.note_faults("train", kinds, "test_b")
    found = json.loads(path.read_text())
    assert found["inputs"]["a"]["tried"] == 3 and found["inputs"]["a"]["ways"] == 1
    text = generate.reliability_tables(found)
    assert "2 of 3 faults survived" in text and "1 accepted rightly, 1 wrong" in text
    assert "| flipped | 3 | 1 | 1 | 1 |" in text
    monkeypatch.delenv(tally.VARIABLE)
    tally.note_faults("train", [], "test_b")  # nobody counts
    assert json.loads(path.read_text()) == found
