"""Draws docs/figures/data.png: a batch before and after augmentation, and two imbalanced sets."""

from pathlib import Path

import matplotlib.pyplot as plt
import torch

import hypersphere as hs
from hypersphere.data import Compose, Flip, PadCrop, imbalanced
from hypersphere.reports.style import legend_below, styled


def main() -> None:
    train = hs.data.load("digits").train
    loader = hs.data.BatchLoader(train, 6, seed=1)
    raw, _ = next(iter(loader))
    moved = Compose((PadCrop(2), Flip()))(raw, torch.Generator().manual_seed(0))
    figure = plt.figure(figsize=(7.6, 2.2), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(1.7, 1))
    rows = left.subplots(2, 6)
    for line, batch, name in ((rows[0], raw, "batch"), (rows[1], moved, "crop\nflip")):
        for axes, picture in zip(line, batch, strict=True):
            axes.imshow(picture[0], cmap="gray_r", vmin=0, vmax=1)
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set(visible=True, color="0.8")
        line[0].set_ylabel(name, rotation=0, ha="right", va="center")
    axes = right.subplots()
    for offset, kind in ((-0.2, "single"), (0.2, "multiple")):
        counts = imbalanced(train, kind).counts()
        axes.bar(torch.arange(10) + offset, counts, 0.4, label=kind)
    axes.set(xlabel="class", ylabel="samples", xticks=range(10), ylim=(0, 150))
    axes.grid(axis="x", visible=False)
    legend_below(axes)
    figure.savefig(Path(__file__).with_name("data.png"), dpi=140)


if __name__ == "__main__":
    with styled():
        main()
