import itertools
import json

import pytest
import torch

from hypersphere.commands._memory import keep_memory

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
    keep_memory()  # as `measure` has it: what is freed stays with the process
    torch.ones(50, 1024, 1024).sum()
    peak = peak_memory(lambda: torch.ones(50, 1024, 1024).sum())  # 200 MiB
    assert 180 < peak < 300


def test_write_keeps_the_figures_with_what_made_them(tmp_path, capsys):
    fast = Row("search", value=3.0, unit="x", limit=2.0, at_least=True)
    assert write("demo", {"a table": [fast]}, directory=tmp_path)
    (place,) = tmp_path.iterdir()
    assert place.name == f"demo.{harness.maker(harness._cpu_name())}.json"
    record = json.loads(place.read_text())
    assert record["tables"]["a table"][0]["met"] is True
    assert record["environment"]["packages"]["torch"] == torch.__version__.split("+")[0]
    assert "every limit met" in capsys.readouterr().out
    assert not write("demo", {"t": [Row("slow", ratio=1.2, limit=1.1)]}, directory=tmp_path)


def test_runs_of_several_makers_are_kept_and_shown_side_by_side(tmp_path, monkeypatch):
    import sys

    sys.path.insert(0, str(harness.ROOT / "docs"))
    import generate

    for cpu, ratio in (("AMD EPYC", 1.2), ("Intel(R) Xeon(R)", 0.9)):
        monkeypatch.setattr(harness, "_cpu_name", lambda cpu=cpu: cpu)
        write("demo", {"t": [Row("work", ratio=ratio, limit=1.1)]}, directory=tmp_path)
    write("counts", {"t": [Row("work", value=7, unit="launches")]}, tmp_path, measured=False)
    assert {p.name for p in tmp_path.iterdir()} == {
        "demo.amd.json", "demo.intel.json", "counts.json",
    }  # fmt: skip
    text = generate.benchmark_tables(generate.records(tmp_path / "demo.json"))
    assert "| | AMD | Intel | bar |" in text
    assert "| work | **1.2** | 0.9 | ≤ 1.1 |" in text
    assert "AMD EPYC" in text and "Xeon" in text
    counts = generate.benchmark_tables(generate.records(tmp_path / "counts.json"))
    assert "| work | 7 launches |" in counts
