"""The pictures of docs/results.md: `python docs/figures/make_claims.py`."""

from __future__ import annotations

from pathlib import Path

import matplotlib

from hypersphere.reports.claims import claims_folder, read_claims
from hypersphere.reports.figures import claim_dots
from hypersphere.reports.style import save

TARGET = Path(__file__).resolve().parent / "claims"

if __name__ == "__main__":
    matplotlib.rcParams["svg.fonttype"] = "none"  # text as text: small files
    records = {record["name"]: record for record in read_claims(claims_folder())}
    for name, record in records.items():
        save(claim_dots(record), TARGET / f"{name}.svg")
    for path in TARGET.glob("*.svg"):  # of claims that have no result any more
        if path.stem not in records:
            path.unlink()
