"""The picture of the README, and what its commands print: `python docs/figures/make_letters.py`.

In the folder of `runs/letters`, the run of `hypersphere train`; it is made if it is not there.
docs/figures/letters.png: features of letters that no network was trained on, softmax beside
A-Softmax; a color is a letter, a dot its picture in one of twelve faces. results/first-run.json:
the last lines of `train`, and what `points` prints, for docs/generate.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

from hypersphere.data.letters import UNSEEN, letters
from hypersphere.reports.style import color, draw_sphere, styled
from hypersphere.training import Config, load_net
from hypersphere.training.baseline import FOLDER
from hypersphere.training.build import make_loaders
from hypersphere.training.tasks.classification import extract_features

RUN = Path("runs/letters")
POINTS = "points 24 --dim 4 -s inf"
SHOWN = "ԱԳԿՋաթდ"  # seven letters of both unseen alphabets


def directions(run: Path) -> tuple[np.ndarray, np.ndarray]:
    """Unit features of the letters shown, in their three principal directions, and labels."""
    config = Config.from_dict(json.loads((run / "run.json").read_text())["config"])
    loaders = make_loaders(config.data, config.seed)
    features, labels = extract_features(
        load_net(run), loaders.over(loaders.split.pairs.dataset), "cpu"
    )
    names = letters(UNSEEN)
    keep = torch.tensor([names[int(label)] in SHOWN for label in labels])
    x = torch.nn.functional.normalize(features[keep].double(), dim=1)
    y = torch.tensor([SHOWN.index(names[int(label)]) for label in labels[keep]])
    means = torch.stack([x[y == c].mean(0) for c in range(len(SHOWN))])
    # The three directions in which the letters differ most.
    _, _, axes = torch.linalg.svd(means - means.mean(0), full_matrices=False)
    shown = torch.nn.functional.normalize(x @ axes[:3].T, dim=1)
    return shown.numpy(), y.numpy()


def keep_prints() -> None:
    """What `train` says at its end, and what `points` says."""
    environment = {**os.environ, "COLUMNS": "88"}

    def printed(*words: str) -> str:
        command = [sys.executable, "-m", "hypersphere", *words]
        return subprocess.check_output(command, env=environment, text=True)

    begun = (RUN / "run.json").exists()
    lines = printed("train", *(["--resume", str(RUN)] if begun else [])).splitlines()
    first = next(
        i for i, line in enumerate(lines) if line.split() == ["accuracy", "95", "%", "EER"]
    )
    last = next(i for i, line in enumerate(lines) if "everything is in" in line)
    train = "\n".join(lines[first:last]).rstrip()
    record = {"printed": {"train": train, "points": printed(*POINTS.split()).rstrip()}}
    path = Path(__file__).parents[2] / "results" / "first-run.json"
    path.write_text(json.dumps(record, indent=1) + "\n")


def main() -> None:
    record = json.loads((RUN / "baseline.json").read_text())["rows"]
    accuracy = {row["name"]: row["accuracy"] for row in record}
    panels = [
        (RUN / FOLDER, "softmax", accuracy["plain network, softmax"]),
        (RUN, "A-Softmax, m = 4", accuracy["this run"]),
    ]
    with styled():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7.2, 3.5))
        for index, (folder, title, share) in enumerate(panels):
            points, labels = directions(folder)
            axes = figure.add_axes((index / 2, 0, 0.5, 0.94), projection="3d")
            draw_sphere(axes, zoom=1.5)
            for label in range(len(SHOWN)):
                rows = points[labels == label]
                axes.scatter(*rows.T, color=color(label), s=14, depthshade=True, edgecolors="none")
                mean = rows.mean(0)
                axes.text(*(1.2 * mean / np.linalg.norm(mean)), SHOWN[label], color=color(label))
            axes.view_init(elev=22, azim=35)
            text = f"{title}: {share:.1%} of unseen pairs told right"
            figure.text(index / 2 + 0.25, 0.95, text, ha="center", fontsize=9)
    figure.savefig(Path(__file__).with_name("letters.png"), dpi=160)


if __name__ == "__main__":
    keep_prints()
    main()
