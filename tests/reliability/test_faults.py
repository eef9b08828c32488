"""Killed, interrupted, out of space, two at once: nothing is lost, and the result is the same."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import warm
from reliability import faults as faulty
from reliability import tally
from reliability.faults import End, Fault, difference, spread
from reliability.jobs import JOBS

COUNT = 3  # moments of the commonest fault


def faults(name, count, folder):
    path = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "benchmarks")]
    path += filter(None, [os.environ.get("PYTHONPATH")])
    done = warm.run(
        [sys.executable, "-m", "reliability.faults", name, str(count), str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS, ids=lambda job: tally.slug(job.name))
def test_faults(job, tmp_path):
    found = faults(job.name, COUNT, tmp_path / "faults")
    test = f"tests/reliability/test_faults.py::test_faults[{tally.slug(job.name)}]"
    tally.note_faults(job.name, found, test)
    assert len(found) == 5 and all(fault["tried"] for fault in found)
    wrong = [f"{fault['kind']}: {line}" for fault in found for line in fault["wrong"]]
    assert not wrong, "\n".join(wrong)


def test_a_gallery_outlives_a_kill(tmp_path):
    found = faults("gallery remove", 2, tmp_path / "faults")
    assert [fault["wrong"] for fault in found] == [[]] * 5


@pytest.mark.parametrize(
    ("code", "hangs"),
    [("while True: pass", True), ("import time; time.sleep(60)", True), ("", False)],
    ids=["works without end", "waits without end", "ends"],
)
def test_a_hang_is_told_by_work_and_stillness(tmp_path, monkeypatch, code, hangs):
    monkeypatch.setattr(faulty, "WORK", 0.3)
    # What ends may start slowly on a busy machine.
    monkeypatch.setattr(faulty, "STILLNESS", 2.0 if hangs else 60.0)
    (tmp_path / "a.said").write_text("done")
    process = subprocess.Popen([sys.executable, "-S", "-c", code], start_new_session=True)
    end = faulty._wait(process.pid, tmp_path / "folder")
    process.wait()
    assert ("a hang after" in end.said) == hangs and end.code == (-1 if hangs else 0)


def test_the_judge_of_ends():
    good, killed = End(0, "done", 3, 0.1), End(-9, "", 3, 0.1)
    assert good.problem() == "" and killed.problem((0, -9)) == ""
    assert "exit -9" in killed.problem()
    assert "traceback" in End(1, "Traceback (most recent call last)", 0, 0.1).problem((0, 1))
    assert "without a word" in End(1, " ", 0, 0.1).problem((0, 1))
    fault = Fault("killed")
    fault.judge("", "change 1")
    fault.judge("lost", "change 2")
    assert (fault.tried, fault.survived, fault.wrong) == (2, 1, ["change 2: lost"])
    assert difference({"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 3}}) == "b: c: 2 instead of 3"
    assert spread(9, 3) == [1, 5, 9] and spread(2, 5) == [1, 2] and spread(10, 1) == [5]
