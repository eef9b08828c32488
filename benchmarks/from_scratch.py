"""Which heads learn from scratch, at an ordinary rate, in a network without BatchNorm.

    python benchmarks/from_scratch.py [--steps 600] [--data letters lfw]

The network is a small one of SphereFace (Table 2.7), whose features keep a common part: there an
additive angular margin with the scale of its paper drives all features to the side opposite to all
classes (see "The trap" in docs/heads.md). LFW is looked for in HYPERSPHERE_DATA and left out
without it. Figures are test accuracies in percent after 600 updates of 64 pictures with SGD,
learning rate 0.05, momentum 0.9, weight decay 5e-4, seed 0. Every head has its defaults, which were
chosen on a quarter of the training pictures, held out; the last rows have the scales of the papers.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn

import hypersphere as hs
from hypersphere import functional as HF
from hypersphere.heads import LambdaAnnealing, MarginSchedule

from harness import Row, write

BATCH, RATE = 64, 0.05
Make = Callable[[int, int], nn.Module]


def annealed(features: int, classes: int) -> nn.Module:
    """A-Softmax as it has to be trained: from lambda 1000 to 5 within the run."""
    head = hs.heads.ASoftmaxHead(features, classes)
    head.annealing = LambdaAnnealing(base=1000.0, gamma=0.12, power=1.0, minimum=5.0)
    return head


HEADS: dict[str, Make] = {
    "softmax": hs.heads.SoftmaxHead,
    "A-Softmax, annealed": annealed,
    "AM-Softmax": hs.heads.AMSoftmaxHead,
    "ArcFace": hs.heads.ArcFaceHead,
    "ArcFace, margin growing": lambda d, c: hs.heads.ArcFaceHead(
        d, c, m=MarginSchedule(0.0, 0.5, steps=100)
    ),
    "ArcFace, 3 sub-centers": lambda d, c: hs.heads.ArcFaceHead(d, c, subcenters=3),
    "AdaFace": hs.heads.AdaFaceHead,
    "MagFace": hs.heads.MagFaceHead,
    "CurricularFace": hs.heads.CurricularFaceHead,
    "SphereFace-R v1": hs.heads.SphereFaceRHead,
    "SphereFace2": hs.heads.SphereFace2Head,
    "AM-Softmax, s = 30": lambda d, c: hs.heads.AMSoftmaxHead(d, c, scale=30.0),
    "SphereFace2, s = 40, factor 50": lambda d, c: hs.heads.SphereFace2Head(
        d, c, scale=40.0, factor=50.0
    ),
    "ArcFace, s = 64": lambda d, c: hs.heads.ArcFaceHead(d, c, scale=64.0),
}


def pixels(pictures: Tensor) -> Tensor:
    return (pictures.float() - 127.5) / 128


def train(make: Make, split: hs.data.Split, steps: int) -> tuple[float, float]:
    """Test accuracy in percent, and the angle to all classes in degrees."""
    torch.manual_seed(0)
    pictures, labels = split.train.images, split.train.labels
    backbone = hs.models.create(
        "sphereface64",
        in_channels=pictures.shape[1],
        image_size=tuple(pictures.shape[2:]),
        widths=[16, 32, 48, 64],
        units=[0, 1, 1, 0],
        features=128,
    )
    head = make(backbone.out_features, split.num_classes)
    net = hs.models.Classifier(backbone, head)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=0.9, weight_decay=5e-4)
    schedules = [m for m in head.modules() if isinstance(m, (MarginSchedule, LambdaAnnealing))]
    for _ in range(steps):
        drawn = torch.randint(len(labels), (BATCH,))
        optimizer.zero_grad()
        net.loss(pixels(pictures[drawn]), labels[drawn]).backward()
        optimizer.step()
        for schedule in schedules:
            schedule.step()
    net.eval()
    with torch.no_grad():
        x = torch.cat([net.features(pixels(part)) for part in split.test.images.split(256)])
        correct = (head(x).argmax(1) == split.test.labels).double().mean()
        rows = head.weight.reshape(-1, x.shape[1])
        cosine = HF.pairwise_cosine(x, rows).mean().clamp(-1, 1)
    return 100 * float(correct), math.degrees(math.acos(float(cosine)))


def compare(split: hs.data.Split, steps: int) -> list[Row]:
    found = {name: train(make, split, steps) for name, make in HEADS.items()}
    bar = 0.8 * found["softmax"][0]
    rows = []
    for name, (accuracy, angle) in found.items():
        limit = None if ", s = " in name else bar
        rows.append(Row(name, value=accuracy, unit="%", limit=limit, at_least=True))
        if name == "ArcFace, s = 64":
            rows.append(Row("the same: angle to all classes", value=angle, unit="degrees"))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--data", nargs="+", default=["letters", "lfw"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tables = {}
    root = os.environ.get("HYPERSPHERE_DATA")
    if "letters" in arguments.data:
        split = hs.data.load("letters")
        tables[f"letters, {split.num_classes} classes"] = compare(split, arguments.steps)
    if "lfw" in arguments.data and root:
        options = {"protocol": "open_set", "size": (28, 24), "test_fraction": 0.25}
        split = hs.data.load("lfw", root, **options)
        tables[f"LFW, {split.num_classes} people"] = compare(split, arguments.steps)
    return 0 if write("from_scratch", tables) else 1


if __name__ == "__main__":
    sys.exit(main())
