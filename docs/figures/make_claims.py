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
    for record in read_claims(claims_folder()):
        save(claim_dots(record), TARGET / f"{record['name']}.svg")
