"""One learning rate for all maps: how much a small step lowers the loss, beside plain training.

    python benchmarks/rates.py    # results/rates.json

Nothing is timed: the figures are the same on every machine up to rounding.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import hypersphere as hs
from hypersphere.orthogonal import OGD, parameter_groups, rotate

from harness import environment

RESULT = Path(__file__).resolve().parent.parent / "results" / "rates.json"
MAPS = ("cayley", "exponential", "gram_schmidt", "householder", "loewdin", "ogd")
WIDTHS, BLOCKS = (64, 256, 1024), (1, 4, 16)
SMALL = {"sgd": 1e-4, "adam": 1e-7}
USUAL = 1e-3  # of Adam


def problem(d: int, width: int = 96, seed: int = 0) -> tuple[nn.Sequential, Callable[[], Tensor]]:
    """A network, and its loss on a batch."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(d, width), nn.ReLU(), nn.Linear(width, 10))
    x, y = torch.randn(64, d).abs(), torch.randint(10, (64,))
    return net, lambda: nn.functional.cross_entropy(net(x), y)


def optimizer_of(net: nn.Module, name: str, lr: float, **options: Any) -> torch.optim.Optimizer:
    groups = parameter_groups(net, weight_decay=0.0, lr=lr, optimizer=name, **options)
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "ogd": OGD}
    return kinds[name](groups)


def decrease(
    net: nn.Sequential, loss: Callable[[], Tensor], name: str, lr: float, **options: Any
) -> float:
    """Loss before - after one step that moves the first layer's weight alone."""
    for p in net[2].parameters():
        p.requires_grad_(False)
    net[0].bias.requires_grad_(False)
    optimizer = optimizer_of(net, name, lr, **options)
    before = loss()
    before.backward()
    optimizer.step()
    return (before - loss()).item()


def step(d: int, blocks: int, method: str | None, name: str, lr: float, **options: Any) -> float:
    """The decrease for a map, or for plain training (None), in float64."""
    net, _ = problem(d)
    net.double()
    torch.manual_seed(1)
    x, y = torch.randn(64, d, dtype=torch.float64).abs(), torch.randint(10, (64,))
    if method is not None:
        rotate(net, method, blocks=blocks, start="identity")

    def loss() -> Tensor:
        return nn.functional.cross_entropy(net(x), y)

    return decrease(net, loss, "ogd" if method == "ogd" else name, lr, **options)


def first_turn(method: str | None, d: int, blocks: int) -> float:
    """The largest turn of a neuron, in degrees, in Adam's first step at its usual rate."""
    net, loss = problem(d, 32)
    if method is not None:
        rotate(net, method, blocks=blocks, start="identity")
    before = net[0].weight.detach().clone()
    optimizer = optimizer_of(net, "adam", USUAL)
    loss().backward()
    optimizer.step()
    return torch.rad2deg(hs.functional.angle(before, net[0].weight.detach())).max().item()


def main() -> None:
    rows = []
    for name, lr in SMALL.items():
        plain = {d: step(d, 1, None, name, lr) for d in WIDTHS}
        for method in MAPS:
            if name == "adam" and method == "ogd":
                continue  # it is an optimizer itself
            cells = [
                " / ".join(f"{step(d, b, method, name, lr) / plain[d]:.2f}" for b in BLOCKS)
                for d in WIDTHS
            ]
            turns = (
                "" if name == "sgd" else f"{max(first_turn(method, 512, b) for b in BLOCKS):.1f}"
            )
            rows.append([method, name, *cells, turns])
            print(*rows[-1], flush=True)
    rows.append(["plain training", "adam", *["1"] * len(WIDTHS), f"{first_turn(None, 512, 1):.1f}"])
    record = {
        "columns": ["map", "optimizer", *(f"d = {d}" for d in WIDTHS), "first turn, degrees"],
        "rows": rows,
        "caption": "Decrease of the loss in one small step over that of plain training at the same "
        "rate, with " + ", ".join(map(str, BLOCKS)) + " blocks; largest turn of a neuron in the "
        f"first step at {USUAL:g}, d = 512, of any of these",
        "command": "python benchmarks/rates.py",
        "environment": environment(),
    }
    RESULT.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
