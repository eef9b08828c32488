"""What learning R costs beside the convolution it turns: python benchmarks/orthogonal.py

64 filters of 3 x 3 x 64 (d = 576). The baseline is that convolution's own forward + backward at
16 x 16 with batch 128. A method's work is the weight and the gradient of its parameter; for OGD
also the optimizer step, which is where it does its work.
"""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import hypersphere as hs
from hypersphere.functional.orthogonalize import pack_skew

from harness import Row, measure, write

FILTERS, CHANNELS, KERNEL = 64, 64, 3
DIM = CHANNELS * KERNEL**2
METHODS = ("gram_schmidt", "householder", "loewdin", "cayley", "exponential", "ogd")
LIMIT = {method: 0.08 if method == "cayley" else 0.25 for method in METHODS}
# Size of the skew matrix by which R has left its start in the tables with a limit: what a few
# hundred steps of SGD with lr 0.1 and momentum 0.9 reach on the digits of docs/figures.
TURN = 1.75


def convolution_step(layer: nn.Module | None = None) -> Callable[[], object]:
    layer = layer or nn.Conv2d(CHANNELS, FILTERS, KERNEL, padding=1, bias=False)
    x = torch.randn(128, CHANNELS, 16, 16, requires_grad=True)
    gradient = torch.randn(128, FILTERS, 16, 16)

    def step() -> None:
        x.grad = None
        layer.zero_grad()
        layer(x).backward(gradient)

    return step


def rotated(method: str, turn: float = TURN, **options: object) -> nn.Module:
    """A rotated layer whose R has moved by `turn` from its start, as training moves it."""
    layer = nn.Conv2d(CHANNELS, FILTERS, KERNEL, padding=1, bias=False)
    hs.orthogonal.rotate(layer, method, **options)
    U = parameter(layer)
    size = layer.parametrizations.weight[0].map.size
    noise = torch.randn(*U.shape[:2], size, size)
    skew = noise - noise.mT
    skew = turn * skew / torch.linalg.matrix_norm(skew, ord=2, dim=(-2, -1), keepdim=True)
    with torch.no_grad():
        if method in ("cayley", "exponential"):
            U += pack_skew(skew) / (2 if method == "cayley" else 1)
        elif method != "ogd":
            U += U @ skew
    return layer


def parameter(layer: nn.Module) -> Tensor:
    return next(p for name, p in layer.named_parameters() if name.endswith(".U"))


def weight_step(layer: nn.Module, optimizer: torch.optim.Optimizer | None = None):
    gradient = torch.randn(FILTERS, CHANNELS, KERNEL, KERNEL) / DIM

    def step() -> None:
        layer.zero_grad()
        layer.weight.backward(gradient)
        if optimizer is not None:
            optimizer.step()

    return step


def method_step(method: str, turn: float = TURN, **options: object):
    layer = rotated(method, turn, **options)
    optimizer = None
    if method == "ogd":
        groups = hs.orthogonal.parameter_groups(layer)
        optimizer = hs.orthogonal.OGD(groups, lr=0.1, momentum=0.9)
    return weight_step(layer, optimizer)


def peer_steps() -> dict[str, Callable[[], object]]:
    """An orthogonal 576 x 576 matrix by other libraries, applied to the same 64 neurons."""
    import geotorch

    neurons = torch.randn(DIM, FILTERS)
    gradient = torch.randn(DIM, FILTERS) / DIM

    def step(layer: nn.Module) -> Callable[[], object]:
        def run() -> None:
            layer.zero_grad()
            (layer.weight @ neurons).backward(gradient)

        return run

    peers: dict[str, Callable[[], object]] = {}
    for name in ("cayley", "matrix_exp", "householder"):
        layer = parametrizations.orthogonal(nn.Linear(DIM, DIM, bias=False), orthogonal_map=name)
        peers[f"torch parametrizations.orthogonal, {name}"] = step(layer)
    for name in ("cayley", "expm"):
        layer = nn.Linear(DIM, DIM, bias=False)
        geotorch.orthogonal(layer, "weight", triv=name)
        peers[f"geotorch.orthogonal, {name}"] = step(layer)
    return peers


def main() -> int:
    torch.manual_seed(0)
    warnings.filterwarnings("ignore", category=UserWarning, module="geotorch")
    work: dict[str, Callable[[], object]] = {"convolution": convolution_step()}
    work |= {method: method_step(method) for method in METHODS}
    cost = measure(work, baseline="convolution", limits=LIMIT, repeats=15, seconds=40)

    peers = measure(
        {"convolution": work["convolution"], "cayley (ours)": work["cayley"], **peer_steps()},
        baseline="convolution",
        repeats=4,
        warmup=1,
        seconds=40,
    )

    turns: dict[str, Callable[[], object]] = {"convolution": work["convolution"]}
    for method in ("loewdin", "exponential", "cayley"):
        for turn in (0.0, 1.0, 4.0):
            turns[f"{method}, turned by {turn:g}"] = method_step(method, turn)
    growth = measure(turns, baseline="convolution", repeats=6, seconds=25, memory=False)

    blocks: list[Row] = []
    for method in ("cayley", "gram_schmidt"):
        steps = {
            f"{method}, {k} block{'s' * (k > 1)}{', shared' * share}": method_step(
                method, blocks=k, share_blocks=share
            )
            for k, share in ((1, False), (2, False), (4, False), (8, False), (4, True), (8, True))
        }
        rows = measure(steps, baseline=f"{method}, 1 block", repeats=15, seconds=15)
        for fewer, more in itertools.pairwise(rows[:4]):
            more.limit = fewer.ratio  # the cost falls with the number of blocks
        blocks += rows

    folded = hs.orthogonal.fold(rotated("cayley"))
    inference = measure(
        {
            "plain convolution": convolution_step(),
            "folded": convolution_step(folded),
            "rotated (training)": convolution_step(rotated("cayley")),
        },
        baseline="plain convolution",
        limits={"folded": 1.05},
        repeats=10,
        seconds=25,
    )
    tables = {
        "cost of R against the convolution's forward + backward": cost,
        "other libraries, R formed and applied": peers,
        "cost by how far R has turned": growth,
        "cost of blocks against one block": blocks,
        "whole step after fold": inference,
    }
    return 0 if write("orthogonal", tables) else 1


if __name__ == "__main__":
    sys.exit(main())
