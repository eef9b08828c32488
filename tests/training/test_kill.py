"""Interrupted is not lost: real SIGKILLs at random times."""

import json
import sys
from pathlib import Path

import pytest

import warm


@pytest.mark.slow
def test_killed_at_random_times_ends_bit_for_bit_where_the_whole_run_does(tmp_path):
    script = Path(__file__).with_name("kill_and_resume.py")
    done = warm.run(
        [sys.executable, str(script), str(tmp_path), "1", "6"],
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["kills"] >= 1
    assert result["equal"] == {
        "model.safetensors": True,
        "state.safetensors": True,
        "metrics": True,
    }
