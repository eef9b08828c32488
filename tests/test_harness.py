import json
import time

import pytest
import torch

from harness import Row, format_rows, measure, peak_memory, write


def test_measure_gives_ratios_against_the_baseline():
    work = {"short": lambda: time.sleep(0.002), "long": lambda: time.sleep(0.008)}
    rows = measure(work, baseline="short", limits={"long": 2.0}, repeats=5, warmup=0, memory=False)
    short, long = rows
    assert short.ratio == 1.0
    assert 2.5 < long.ratio < 5.0
    assert long.seconds >= 0.008
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
