import itertools
import json

import pytest
import torch

import harness
from harness import Row, format_rows, measure, peak_memory, write


class Clock:
    """Seconds that pass when told to, so that a busy machine makes no difference."""

    now = 0.0

    def perf_counter(self):
        return self.now

    def busy(self, *seconds):
        """Work that takes so long, in turn."""
        turns = itertools.cycle(seconds)

        def work():
            self.now += next(turns)

        return work


def test_measure_gives_ratios_against_the_baseline(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(harness, "time", clock)
    work = {"short": clock.busy(0.5, 0.002, 0.9), "long": clock.busy(0.7, 0.6, 0.008)}
    rows = measure(work, baseline="short", limits={"long": 2.0}, repeats=5, warmup=0, memory=False)
    short, long = rows
    assert short.ratio == 1.0
    assert long.seconds == pytest.approx(0.008)  # the best, whatever disturbed the others
    assert long.ratio == pytest.approx(4.0)
    assert long.met is False
    assert short.met is None
    assert "MISSED" in format_rows(rows)
    with pytest.raises(ValueError, match="baseline 'none' is not among short, long"):
        measure(work, baseline="none")


def test_peak_memory_sees_what_a_call_holds_and_lets_go():
    peak = peak_memory(lambda: torch.ones(50, 1024, 1024).sum())  # 200 MiB
    assert 180 < peak < 300


def test_write_keeps_the_figures_with_what_made_them(tmp_path, capsys):
    fast = Row("search", value=3.0, unit="x", limit=2.0, at_least=True)
    assert write("demo", {"a table": [fast]}, directory=tmp_path)
    record = json.loads((tmp_path / "demo.json").read_text())
    assert record["tables"]["a table"][0]["met"] is True
    assert record["environment"]["packages"]["torch"] == torch.__version__.split("+")[0]
    assert "every limit met" in capsys.readouterr().out
    assert not write("demo", {"t": [Row("slow", ratio=1.2, limit=1.1)]}, directory=tmp_path)
