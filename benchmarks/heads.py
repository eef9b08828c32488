"""Margin heads with many classes: time and memory of a training step's forward and backward.

    python benchmarks/heads.py

Baseline are the three matrix products that no such loss can do without: scores, gradient of the
features, gradient of the class weights. The loss itself makes four, because it recomputes the
scores instead of keeping them.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F

from hypersphere.functional import margin_logits
from hypersphere.heads import ArcFaceHead

from harness import Row, measure, peak_memory, write

BATCH, DIM, CLASSES = 128, 512, 100_000
MIB = 2**20


def batch(classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(BATCH, DIM), torch.randint(classes, (BATCH,))


def step(loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], classes: int) -> Callable:
    """Forward and backward to fresh gradients of features and class weights."""
    x, y = batch(classes)

    def run() -> None:
        features = x.clone().requires_grad_()
        loss(features, y).backward()

    return run


def without_gradient(head: torch.nn.Module, run: Callable[[], None]) -> Callable[[], None]:
    """The step, and its gradients dropped again: the next one has to make room for its own."""

    def fresh() -> None:
        run()
        for parameter in head.parameters():
            parameter.grad = None

    return fresh


def against_peers() -> list[Row]:
    from pytorch_metric_learning.losses import ArcFaceLoss

    head = ArcFaceHead(DIM, CLASSES, m=math.radians(28.6), scale=64.0)  # the peer's defaults
    peer = ArcFaceLoss(CLASSES, DIM)
    with torch.no_grad():
        peer.W.copy_(head.weight.T)
    x, y = batch(CLASSES)
    scores = torch.randn(BATCH, CLASSES)
    weight = head.weight.detach()

    def products() -> None:
        x @ weight.T
        scores @ weight
        scores.T @ x

    def autograd(features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(
            margin_logits(features, head.weight, labels, head.margin, scale=64.0), labels
        )

    with torch.no_grad():  # the same loss, or the comparison means nothing
        difference = abs(float(head.loss(x, y)) - float(peer(x, y)))
    assert difference < 1e-2, f"the two losses differ by {difference}"
    ours, theirs = "ours", "pytorch-metric-learning ArcFaceLoss"
    rows = measure(
        {
            "three matrix products": products,
            ours: without_gradient(head, step(head.loss, CLASSES)),
            theirs: without_gradient(peer, step(peer, CLASSES)),
            "dense scores through autograd": without_gradient(head, step(autograd, CLASSES)),
        },
        baseline="three matrix products",
        limits={ours: 1.6},
        repeats=7,
        warmup=1,
        seconds=70,
    )
    by_name = {row.name: row for row in rows}
    speed = by_name[theirs].ratio / by_name[ours].ratio
    memory = by_name[ours].peak_mb / by_name[theirs].peak_mb
    return [
        *rows,
        Row("times faster than ArcFaceLoss", value=speed, limit=2.5, at_least=True),
        Row("share of ArcFaceLoss's extra memory", value=memory, limit=0.5),
    ]


def million() -> list[Row]:
    classes = 1_000_000
    head = ArcFaceHead(DIM, classes)
    run = without_gradient(head, step(head.loss, classes))
    peak = peak_memory(run)
    weights = head.weight.numel() * 4 / MIB
    return [
        Row("weights", peak_mb=weights),
        Row("one step beyond the weights", peak_mb=peak),
        Row("all, against weights + gradient", value=(weights + peak) / (2 * weights), limit=1.1),
    ]


def growth() -> list[Row]:
    """Time per class and memory beyond weights and gradient, as C grows."""
    sizes = (25_000, 50_000, 100_000, 200_000)
    runs = {}
    for classes in sizes:
        head = ArcFaceHead(DIM, classes)
        runs[f"C = {classes:,}"] = without_gradient(head, step(head.loss, classes))
    rows = measure(runs, baseline="C = 25,000", repeats=9, warmup=1, seconds=40)
    extra = []
    for row, classes in zip(rows, sizes, strict=True):
        row.value = row.ratio / (classes / sizes[0])
        row.unit = "time per class"
        extra.append(row.peak_mb - classes * DIM * 4 / MIB)
    # as a share of what the weights themselves grow by
    slope = (extra[-1] - extra[0]) / ((sizes[-1] - sizes[0]) * DIM * 4 / MIB)
    per_class = [row.value for row in rows]
    return [
        *rows,
        Row("time per class, largest C / smallest", value=per_class[-1], limit=1.25),
        Row("extra memory's growth / weights' growth", value=max(0.0, slope), limit=0.02),
    ]


def main() -> int:
    warnings.filterwarnings("ignore")  # of the peers
    title = f"{CLASSES:,} classes, d = {DIM}, batch {BATCH}, forward + backward"
    tables = {title: against_peers()}
    tables["growth with the number of classes"] = growth()
    tables["1,000,000 classes"] = million()
    return 0 if write("heads", tables) else 1


if __name__ == "__main__":
    sys.exit(main())
