"""Letters of unknown alphabets told from known ones: scores and training losses over seeds.

    python benchmarks/out_of_distribution.py

A small network learns the letters of three alphabets (Latin, Greek, Cyrillic; the faces of
matplotlib, nothing is downloaded). Test letters are then to be told from the digits of the embedded
data set, from the letters of two other alphabets and, with --root DATA, from MNIST, by features
alone. Writes results/out_of_distribution.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor, nn

import hypersphere as hs
from hypersphere.evaluation.out_of_distribution import METHODS

RESULTS = Path(__file__).resolve().parents[1] / "results" / "out_of_distribution.json"
HEADS = {
    "softmax": hs.heads.SoftmaxHead,
    "CIDER": hs.heads.CiderHead,
    "von Mises-Fisher": hs.heads.VonMisesFisherHead,
    "cosine softmax": hs.heads.SSoftmaxHead,
}
DIM = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--root", help="folder with MNIST")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    train, labels, test, others = data(options.root)
    rows = []
    for title, kind in HEADS.items():
        found: dict[tuple[str, str], list[tuple[float, float]]] = {}
        errors = []
        for seed in range(options.seeds):
            net, head = fit(train, labels, kind, seed, options.epochs)
            features = [embed(net, x) for x in (train, test[0])]
            errors.append(1 - float((head(features[1]).argmax(1) == test[1]).float().mean()))
            for set_name, images in others.items():
                strange = embed(net, images)
                for method in METHODS:
                    result = hs.evaluation.out_of_distribution(
                        features[0], features[1], strange, method, labels, k=10
                    )
                    key = (set_name, method)
                    found.setdefault(key, []).append((result.auroc, result.fpr95))
        for (set_name, method), values in found.items():
            rates = 100 * torch.tensor(values)
            spread = rates.std(0) if len(values) > 1 else torch.zeros(2)
            rows.append({
                "head": title, "other": set_name, "method": method,
                "auroc": f"{rates[:, 0].mean():.2f} +- {spread[0]:.2f}",
                "fpr95": f"{rates[:, 1].mean():.2f} +- {spread[1]:.2f}",
                "error": f"{100 * sum(errors) / len(errors):.2f}",
            })  # fmt: skip
            print(rows[-1], flush=True)
        write(options, rows, len(train), int(labels.max()) + 1, len(test[0]))


def write(
    options: argparse.Namespace, rows: list[dict[str, str]], train: int, classes: int, test: int
) -> None:
    """The rows so far, with what they were measured on."""
    columns = {"head": "trained with", "other": "other set", "method": "score",
               "auroc": "AUROC %", "fpr95": "FPR95 %", "error": "test error %"}  # fmt: skip
    note = f"Mean and deviation over {options.seeds} seeds, {options.epochs} epochs; k = 10. "
    note += f"{train} training letters of {classes} classes, "
    note += f"{test} test letters."
    content = {"command": "python benchmarks/out_of_distribution.py --root DATA", "note": note,
               "columns": columns, "rows": rows}  # fmt: skip
    options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def data(root: str | None) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor], dict[str, Tensor]]:
    """Training letters, their classes, test letters, and the sets that are none of them."""
    split = hs.data.load("letters", copies=2)

    def pixels(images: Tensor) -> Tensor:
        return images.float() / 255 if images.dtype == torch.uint8 else images.float()

    digits = hs.data.load("digits").test.images.float()
    digits = nn.functional.interpolate(digits / digits.max(), 28, mode="bilinear")
    train, test = pixels(split.train.images), pixels(split.test.images)
    others = {"digits": digits, "other alphabets": pixels(split.pairs.dataset.images)}
    if root is not None:
        others["MNIST"] = pixels(hs.data.load("mnist", root=root).test.images[::5])
    return train, split.train.labels, (test, split.test.labels), others


def network() -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in ((1, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after)]
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 9, DIM))


def fit(
    train: Tensor, labels: Tensor, kind: type[nn.Module], seed: int, epochs: int
) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(seed)
    head = kind(in_features=DIM, num_classes=int(labels.max()) + 1)
    net = network()
    optimizer = torch.optim.Adam([*net.parameters(), *head.parameters()], lr=2e-3)
    batch = 128
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 4e-3, total_steps=epochs * (len(train) // batch)
    )
    for _ in range(epochs):
        order = torch.randperm(len(train))
        for start in range(0, len(train) // batch * batch, batch):
            some = order[start : start + batch]
            optimizer.zero_grad()
            head.loss(net(train[some]), labels[some]).backward()
            optimizer.step()
            schedule.step()
    return net.eval(), head.eval()


@torch.no_grad()
def embed(net: nn.Module, images: Tensor) -> Tensor:
    return torch.cat([net(part) for part in images.split(512)])


if __name__ == "__main__":
    main()
