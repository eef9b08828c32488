"""Draws docs/figures/orthogonal.png: energy and test error of plain training, OPT and OR."""

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn import functional as F

import hypersphere as hs
from hypersphere.reports.style import styled

STEPS = 400
RUNS = {
    "baseline": None,
    "OPT, Cayley": "cayley",
    "OPT, Gram-Schmidt": "gram_schmidt",
    "OPT, OGD": "ogd",
    "OR (7.7)": "regularized",
}


def network() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU()),
        *(nn.Conv2d(24, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(24, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(96, 10)),
    )


def train(method: str | None, data: hs.data.Split) -> tuple[list[int], list[float], list[float]]:
    torch.manual_seed(0)
    model = network()
    if method is not None:
        # The same neurons as the baseline's, so that all start with the same energy.
        hs.orthogonal.rotate(model, method, normalize=False)
    groups = hs.orthogonal.parameter_groups(model)
    optimizer = (
        hs.orthogonal.OGD(groups, lr=0.1, momentum=0.9)
        if method == "ogd"
        else torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    )
    steps, energy, error = [], [], []
    for step in range(STEPS + 1):
        if step % 20 == 0:
            layers = list(hs.orthogonal.energies(model).values())[1:-1]
            model.eval()
            with torch.no_grad():
                wrong = model(data.test.images).argmax(1) != data.test.labels
            model.train()
            steps.append(step)
            energy.append(sum(layers) / len(layers))
            error.append(100 * wrong.float().mean().item())
        pick = torch.randint(len(data.train.images), (64,))
        loss = F.cross_entropy(model(data.train.images[pick]), data.train.labels[pick])
        if method == "regularized":
            loss = loss + 0.1 * hs.orthogonal.orthogonality_penalty(model)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return steps, energy, error


def main() -> None:
    torch.set_num_threads(1)
    data = hs.data.load("digits")
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 2.8), layout="constrained")
    styles = ("-", "-", "--", ":", "-.")
    for (name, method), style in zip(RUNS.items(), styles, strict=True):
        steps, energy, error = train(method, data)
        print(f"{name:20} energy {energy[0]:.5f} -> {energy[-1]:.5f}, error {error[-1]:.2f} %")
        left.plot(steps, energy, style, label=name)
        right.plot(steps, error, style, label=name)
    left.set(xlabel="iteration", ylabel="energy per pair (s = 1)", title="hidden convolutions")
    right.set(xlabel="iteration", ylabel="test error (%)", title="8 x 8 digits", ylim=(0, 12))
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=len(RUNS))
    figure.savefig(Path(__file__).with_name("orthogonal.png"), dpi=140)


if __name__ == "__main__":
    with styled():
        main()
