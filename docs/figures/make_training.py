"""docs/figures/training.png: the default run of `hypersphere train`, with MHE."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from hypersphere.commands import _config, train
from hypersphere.reports.style import legend_below, styled
from hypersphere.training import train as run_training


def main() -> None:
    settings = ["--train.quiet", "true", "--regularizers.mhe", '{"half_space": true}']
    config = _config.read(None, settings, defaults=train.DEFAULT)
    with tempfile.TemporaryDirectory() as folder:
        run_training(config, Path(folder) / "run")
        text = (Path(folder) / "run" / "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    parts = {s: [x for x in lines if x["split"] == s] for s in ("train", "test", "monitor")}
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 2.8), layout="constrained")
    left.plot([x["step"] for x in parts["train"]], [x["loss"] for x in parts["train"]], "C0")
    left.set(xlabel="update", ylabel="training loss", title="letters, A-Softmax, MHE")
    twin = left.twinx()
    accuracy = [100 * x["accuracy"] for x in parts["test"]]
    twin.plot([x["step"] for x in parts["test"]], accuracy, "C1o-", markersize=3)
    twin.set_ylabel("test accuracy (%)", color="C1")
    twin.grid(False)
    twin.spines["right"].set_visible(True)
    left.yaxis.label.set_color("C0")
    for name in parts["monitor"][0]["energy"]:
        short = name.removeprefix("backbone.").removeprefix("body.").split(".")[0]
        energies = [x["energy"][name] for x in parts["monitor"]]
        right.plot([x["step"] for x in parts["monitor"]], energies, label=short)
    right.set(xlabel="update", ylabel="energy, s = 2", title="hyperspherical energy of each layer")
    legend_below(right)
    figure.savefig(Path(__file__).with_name("training.png"), dpi=140)


if __name__ == "__main__":
    with styled():
        main()
