"""The default run of `hypersphere train` over five seeds: results/letters.json."""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from hypersphere.commands import _config
from hypersphere.commands.train import DEFAULT
from hypersphere.evaluation import paired
from hypersphere.training import train
from hypersphere.training.baseline import plain_twin, verify_inputs

from harness import environment

RESULT = Path(__file__).resolve().parent.parent / "results" / "letters.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    found: dict[str, list] = {"raw pixels": [], "softmax": [], "A-Softmax, m = 4": []}
    began = time.perf_counter()
    for seed in range(options.seeds):
        arguments = ["--seed", str(seed), "--train.quiet", "true"]
        config = _config.read(None, arguments, defaults=DEFAULT)
        with tempfile.TemporaryDirectory() as folder:
            run = train(config, Path(folder) / "run")
            twin = train(plain_twin(config), Path(folder) / "twin")
        results = (verify_inputs(config), twin.verification, run.verification)
        for name, result in zip(found, results, strict=True):
            found[name].append(result)
        print(seed, *(f"{r.accuracy:.4f}" for r in results), flush=True)
    seconds = (time.perf_counter() - began) / options.seeds
    plain = [r.accuracy for r in found["softmax"]]
    rows = []
    for name, results in found.items():
        accuracy = [r.accuracy for r in results]
        cells = [name, _spread(accuracy), _spread([r.eer for r in results])]
        gain = "-"
        if name.startswith("A-Softmax"):
            d = paired.paired_difference(accuracy, plain)
            gain = f"{100 * d.mean:+.2f} ({100 * d.low:+.2f} to {100 * d.high:+.2f})"
        rows.append([*cells, gain])
    record = {
        "caption": f"Verification of 6,000 pairs of letters of two alphabets that no network was "
        f"trained on, mean and deviation of {options.seeds} seeds, in percent; the last column is "
        f"the paired difference from softmax with its 95 % interval. {seconds:.0f} s per seed, all "
        f"three rows",
        "columns": ["", "accuracy", "equal error", "gain"],
        "rows": rows,
        "seeds": {
            name: [{"accuracy": r.accuracy, "eer": r.eer} for r in results]
            for name, results in found.items()
        },
        "command": "python benchmarks/letters.py",
        "environment": environment(),
    }
    RESULT.write_text(json.dumps(record, indent=1) + "\n")


def _spread(values: list[float]) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{100 * statistics.fmean(values):.2f} ± {100 * deviation:.2f}"


if __name__ == "__main__":
    main()
