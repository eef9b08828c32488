"""Draws docs/figures/evaluation.png: two heads on the 8 x 8 digits, judged on digits never seen."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import nn

import hypersphere as hs
from hypersphere.reports.style import COLORS, legend_below, styled

SEEN = list(range(6))  # trained on 0 ... 5, judged on 6 ... 9


def trained(head: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> nn.Module:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.PReLU(), nn.Linear(128, 16))
    net = hs.models.Classifier(backbone, head)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    for step in range(400):
        rows = torch.randint(len(labels), (64,), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        net.loss(images[rows], labels[rows]).backward()
        optimizer.step()
    return net.eval()


def main() -> None:
    split = hs.data.load("digits")
    parts = []
    for part in (split.train, split.test):
        images = part.images.float() / (255 if part.images.dtype == torch.uint8 else 1)
        parts.append((images, part.labels))
    (train_x, train_y), (test_x, test_y) = parts
    seen = torch.isin(train_y, torch.tensor(SEEN))
    everything, everyone = torch.cat([train_x, test_x]), torch.cat([train_y, test_y])
    new = ~torch.isin(everyone, torch.tensor(SEEN))
    heads = {
        "softmax": hs.heads.SoftmaxHead(16, len(SEEN)),
        "additive margin": hs.heads.AMSoftmaxHead(16, len(SEEN), m=0.35, scale=16.0),
    }
    figure, axes = plt.subplots(1, 4, figsize=(9.4, 2.4), layout="constrained")
    for (name, head), color in zip(heads.items(), COLORS, strict=False):
        net = trained(head, train_x[seen], train_y[seen])
        features = hs.evaluation.extract(net, everything[new])
        positive, negative, *_ = hs.evaluation.pair_angles(features, everyone[new])
        middle = torch.linspace(0, torch.pi, len(positive) + 1)[:-1]
        for counts, style in ((positive, "-"), (negative, "--")):
            axes[0].plot(middle, counts / counts.sum(), style, color=color)
        roc = hs.evaluation.all_pairs(features, everyone[new]).roc
        axes[1].semilogx(roc.far[1:], roc.tar[1:], color=color, label=name)
        strangers = hs.evaluation.extract(net, everything[~new])
        order = torch.randperm(len(strangers), generator=torch.Generator().manual_seed(0))
        people = hs.evaluation.divide(features, everyone[new])
        sizes = [0, 1, 3, 10, 30, 100, 300, len(strangers)]
        ranks = hs.evaluation.identification(*people, strangers[order], (1,), sizes=sizes)
        axes[2].plot(
            [max(s, 0.5) for s in sizes],
            [a[0] for a in ranks.accuracy],
            "o-",
            color=color,
            markersize=3,
        )
        known = torch.isin(test_y, torch.tensor(SEEN))
        result = hs.evaluation.robustness(
            net, [(test_x[known], test_y[known])], ("none", "deepfool_l2")
        )
        axes[3].plot(result.attacks[1].l2, color=color)
    axes[0].set(xlabel="angle (rad)", title="pairs of new digits")
    axes[0].plot([], [], "k-", label="same")
    axes[0].plot([], [], "k--", label="different")
    legend_below(axes[0])
    axes[1].set(xlabel="false accept rate", xlim=(1e-5, 1), title="true accept rate")
    legend_below(axes[1])
    axes[2].set(xscale="log", xlabel="distractors", title="found first, one picture each")
    axes[3].set(xlabel="test sample, sorted", title="perturbation that fools (l2)")
    figure.savefig(Path(__file__).with_name("evaluation.png"), dpi=140)


if __name__ == "__main__":
    with styled():
        main()
