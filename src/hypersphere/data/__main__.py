"""`hypersphere data`, `python -m hypersphere.data`: list the data sets, fetch and check them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import torch

from .. import registry
from .._terminal import complain, hanging
from .checksums import verify_files
from .download import download
from .errors import MissingData
from .files import data_root
from .readers import check_name, list_datasets, load
from .sources import SOURCES


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0, 1 when data are missing or damaged, 2 when the command line is not understood."""
    parser = argparse.ArgumentParser(
        prog="hypersphere data",
        description="Without a name: what there is. With one: load it and say what it holds.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME")
    parser.add_argument("--root", help="data folder (default: HYPERSPHERE_DATA or a cache folder)")
    parser.add_argument("--download", action="store_true", help="fetch it: resumes and verifies")
    parser.add_argument("--verify", action="store_true", help="compare the published checksums")
    options = parser.parse_args(argv)
    if options.root is not None and not options.root.strip():
        parser.error("argument --root: expected a folder; got ''")
    try:
        options.name is None or check_name(options.name)
    except ValueError as error:
        complain("data", error)
        return 2
    root = data_root(options.root)
    if options.name is None:
        for name in list_datasets():
            source = SOURCES.get(name)
            where = source.where if source else _no_source(name)
            fetch = "  [--download]" if source and source.remotes else ""
            print(hanging(f"{name:<14} ", f"{where}{fetch}"))
        return 0
    try:
        if options.download:
            download(options.name, root)
        if options.verify and options.name in SOURCES:
            source = SOURCES[options.name]
            present = [root / f / n for f in source.folders for n in source.checksums]
            checked = verify_files([p for p in present if p.exists()], source)
            print("\n".join(f"{path}: checksum is right" for path in checked) or "nothing to check")
        for part, value in vars(load(options.name, root)).items():
            if isinstance(value, torch.Tensor):
                print(f"{part}: {tuple(value.shape)}")
            elif hasattr(value, "shape"):
                shape = (len(value), *value.shape)
                print(f"{part}: {shape}, {len(value.classes)} classes")
            elif part == "pairs" and value is not None:
                print(f"pairs: {len(value)} over {len(value.dataset)} samples")
    except (MissingData, ValueError) as error:  # DamagedData is a ValueError
        complain("data", error)
        return 1
    return 0


def _no_source(name: str) -> str:
    found = registry.entry("data", name)
    if found.own:
        return f"registered by {found.module}"
    library = "matplotlib, whose fonts it draws" if name == "letters" else "scikit-learn"
    return f"comes with {library}"


if __name__ == "__main__":
    sys.exit(main())
