"""Draws docs/figures/models.png; with --table, fills the list of networks in docs/models.md.

The picture is Fig. 1.1 on scikit-learn's digits: an autoencoder is trained on 1500 of them, then
its encoder gives out inner products, cosines or norms for others, with the weights as they are.
"""

import re
import sys
from pathlib import Path

import torch

from hypersphere import models
from hypersphere.models.summary import models_markdown
from hypersphere.reports.style import styled

HERE = Path(__file__).resolve().parent


def fill_table() -> None:
    page = HERE.parent / "models.md"
    marks = r"(<!-- models -->\n).*?(<!-- end models -->)"
    text = re.sub(marks, rf"\g<1>{models_markdown()}\n\g<2>", page.read_text(), flags=re.DOTALL)
    page.write_text(text)


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    a, b = (x.flatten(1) - x.flatten(1).mean(1, keepdim=True) for x in (a, b))
    return torch.nn.functional.cosine_similarity(a, b).mean().item()


def draw() -> None:
    import matplotlib.pyplot as plt
    from sklearn.datasets import load_digits

    torch.manual_seed(0)
    images = torch.tensor(load_digits().images, dtype=torch.float32).unsqueeze(1) / 16
    train, test = images[:1500], images[1500:]
    net = models.create("autoencoder", image_size=8)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    for _ in range(12):
        for batch in train[torch.randperm(1500)].split(64):
            optimizer.zero_grad()
            (net(batch) - batch).square().mean().backward()
            optimizer.step()
    net.eval()
    with torch.no_grad():
        rows = {"image": test}
        for emit, label in (("product", "w . x"), ("angle", "cos θ"), ("norm", "|w| |x|")):
            rows[label] = net(test, emit)
    figure, axes = plt.subplots(4, 12, figsize=(7.2, 2.9), layout="constrained")
    for line, (label, pictures) in zip(axes, rows.items(), strict=True):
        for cell, picture in zip(line, pictures, strict=False):
            cell.imshow(picture[0], cmap="gray_r", vmin=0, vmax=1)
            cell.set(xticks=[], yticks=[])
            cell.spines[:].set(visible=True, color="0.8")
        text = label if label == "image" else f"{label}\n(r = {correlation(pictures, test):.2f})"
        line[0].set_ylabel(text, rotation=0, ha="right", va="center", fontsize=9)
    figure.savefig(HERE / "models.png", dpi=110)


if __name__ == "__main__":
    with styled():
        fill_table() if "--table" in sys.argv else draw()
