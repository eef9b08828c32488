"""Exact 1:N search against faiss's flat index: a gallery of one million features of dimension 512.

    python benchmarks/search.py [--rows 1000000]

faiss and torch get the same number of threads; both are exact, and the answers are compared.
"""

from __future__ import annotations

import argparse
import math
import sys

import faiss
import torch
from torch.nn.functional import normalize

from hypersphere.evaluation import SearchIndex, identification, search

from harness import Row, measure, write

DIM, TOP = 512, 10


def unit(rows: int, seed: int) -> torch.Tensor:
    """Random unit vectors, made in slices so that no second copy of a large set exists."""
    generator = torch.Generator().manual_seed(seed)
    out = torch.empty(rows, DIM)
    for part in out.split(1 << 16):
        torch.randn(part.shape, generator=generator, out=part)
        normalize(part, out=part)
    return out


def agreement(a: torch.Tensor, b: torch.Tensor) -> Row:
    return Row("same rows found", value=float((a == b).double().mean()), limit=0.999, at_least=True)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    options = parser.parse_args(arguments)
    faiss.omp_set_num_threads(torch.get_num_threads())
    gallery = unit(options.rows, seed=0)
    flat = faiss.IndexFlatIP(DIM)
    flat.add(gallery.numpy())
    index = SearchIndex(gallery)

    tables = {}
    for count in (1, 8, 100):
        queries = unit(count, seed=count)
        rows = measure(
            {
                "faiss flat": lambda q=queries: flat.search(q.numpy(), TOP),
                "search": lambda q=queries: search(q, gallery, TOP),
                "SearchIndex": lambda q=queries: index.search(q, TOP),
            },
            baseline="faiss flat",
            # One query at a time is what the 8-bit screening is for; `search` alone reads all.
            limits={"SearchIndex": 0.4, "search": 1.0 if count == 1 else 0.4},
            repeats=5 if count < 100 else 3,
            warmup=1,
            seconds=25,
        )
        found = torch.from_numpy(flat.search(queries.numpy(), TOP)[1])
        rows.append(agreement(found, index.search(queries, TOP)[1]))
        tables[f"{count} quer{'y' if count == 1 else 'ies'}, top {TOP} of {options.rows:,}"] = rows

    probes = normalize(gallery[:100] + 0.05 * unit(100, seed=7) * math.sqrt(DIM), dim=1)
    mates = normalize(gallery[:100] + 0.05 * unit(100, seed=8) * math.sqrt(DIM), dim=1)
    ids = torch.arange(100)
    tables[f"identification, 100 probes, 10 ... {options.rows:,} distractors"] = measure(
        {
            "faiss flat, once": lambda: flat.search(probes.numpy(), TOP),
            "identification, all sizes": lambda: identification(probes, mates, ids, ids, gallery),
        },
        baseline="faiss flat, once",
        limits={"identification, all sizes": 1.0},
        repeats=2,
        warmup=0,
        seconds=20,
    )
    return 0 if write("search", tables) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
