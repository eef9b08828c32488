"""Records of point configurations: ours, the published value, the gap, the seconds.

    python benchmarks/records.py                       # everything, hours on one core
    python benchmarks/records.py --problem tammes --from 4 --to 20

Writes results/records.json, a row for each configuration; rows of other runs stay. docs/generate.py
makes the table of docs/uniformity.md from it.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path

import torch

from hypersphere import functional as HF

RESULTS = Path(__file__).resolve().parents[1] / "results" / "records.json"
# Problem -> power, dimension
POWERS = {"thomson": 1.0, "tammes": math.inf, "kissing": math.inf}
KISSING = {24: 4, 40: 5, 72: 6, 126: 7, 240: 8}
# Kissing configurations start from orbits of these groups; everything else has default settings.
GROUPS = {4: "D4", 5: "D5", 6: "E6", 7: "E7", 8: "E8"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problem", choices=[*POWERS], help="default: all")
    parser.add_argument("--from", dest="first", type=int, default=2, help="smallest n")
    parser.add_argument("--to", dest="last", type=int, default=150, help="largest n")
    parser.add_argument("--seeds", type=int, default=1, help="seeds 0 to SEEDS - 1, the best kept")
    parser.add_argument("--out", type=Path, default=RESULTS, help="results file")
    options = parser.parse_args()
    for problem in [options.problem] if options.problem else POWERS:
        sizes = KISSING if problem == "kissing" else range(2 if problem == "thomson" else 4, 151)
        for n in sizes:
            if options.first <= n <= options.last and (problem != "tammes" or n <= 60):
                for seed in range(options.seeds):
                    store(options.out, measure(problem, n, seed))


def measure(problem: str, n: int, seed: int) -> dict[str, object]:
    """Solve one configuration."""
    s, dim = POWERS[problem], KISSING.get(n, 3) if problem == "kissing" else 3
    begin = time.perf_counter()
    if problem == "kissing":
        points = HF.minimize_energy(n, dim, s, restarts=1, seed=seed, symmetry=GROUPS[dim])
    else:
        points = HF.minimize_energy(n, dim, s, seed=seed)
    seconds = time.perf_counter() - begin
    if s == math.inf:
        ours = math.degrees(float(HF.separation_distance(points)))
    else:
        ours = math.fsum(torch.pdist(points).reciprocal().tolist())  # exact to the last digit
    known = HF.best_known(n, dim, s)
    gap = None if known is None else (known.value - ours) * (1 if s == math.inf else -1)
    return {
        "problem": problem, "n": n, "dim": dim, "ours": ours, "gap": gap,
        "seconds": round(seconds, 1),
        "published": known and known.value, "precision": known and known.precision,
        "source": known and known.source, "seed": seed, "torch": torch.__version__,
    }  # fmt: skip


def store(path: Path, row: dict[str, object]) -> None:
    """Add the row, or put it in place of a worse one of the same configuration."""
    rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    table = {(r["problem"], r["n"]): r for r in rows}
    key = (row["problem"], row["n"])
    better = 1 if row["problem"] == "thomson" else -1
    old = table.get(key)
    if old is None or better * (float(row["ours"]) - float(old["ours"])) < -1e-9:  # type: ignore[arg-type]
        table[key] = row
    ordered = [table[k] for k in sorted(table)]
    path.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
    print(row["problem"], row["n"], row["ours"], row["gap"], row["seconds"], flush=True)


if __name__ == "__main__":
    main()
