"""What a decoupled layer and a training step would cost a graphics card: counted, not measured.

    python benchmarks/launches.py

Launches and bytes of one forward and backward pass, with the routes of accelerators taken on a
processor; the roofline they give (bytes at 1.5 TB/s plus 5 microseconds per launch) beside that of
nn.Conv2d; and the values that a training step waits for. Nothing here depends on the machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor, nn

import hypersphere as hs
from hypersphere.functional._kernels.decoupled.routes import force
from hypersphere.functional.host import without_looking

from counting import Meter, counted, waits
from harness import Row, write

MAGNITUDES = ("sphere", "ball", "tanh", "linear", "segmented", "log", "mixed")
ACTIVATIONS = ("cosine", "linear", "sigmoid", "square_cosine")
BATCH, FILTERS, SIDE = 128, 64, 32
LIMITS = {"whole": 45, "triton": 20}


def step(layer: nn.Module, channels: int, batch: int) -> Callable[[], object]:
    """Forward and backward of one layer."""
    x = torch.randn(batch, channels, SIDE, SIDE, requires_grad=True)
    grad = torch.randn(batch, FILTERS, SIDE, SIDE)
    wanted = [x, *layer.parameters()]
    return lambda: torch.autograd.grad(layer(x), wanted, grad)


def meter(layer: nn.Module, channels: int = FILTERS) -> Meter:
    """What one step of a layer takes with a full batch.

    Launches do not depend on the batch, and bytes are a constant plus so many per image: two small
    batches tell both, without minutes of convolutions.
    """
    found = []
    for batch in (2, 2, 3):  # the first time formulas are read and constants made
        run = step(layer, channels, batch)
        with counted(batch * FILTERS * SIDE * SIDE) as seen:
            run()
        found.append(seen)
    _, two, three = found
    assert two.launches == three.launches and two.passes == three.passes
    two.bytes += (three.bytes - two.bytes) * (BATCH - 2)
    return two


def layer(channels: int = FILTERS, **operator: str) -> nn.Module:
    return hs.layers.DecoupledConv2d(channels, FILTERS, 3, padding=1, **operator)


def plain(channels: int = FILTERS) -> nn.Module:
    return nn.Conv2d(channels, FILTERS, 3, padding=1, bias=False)


def launch_rows(route: str) -> list[Row]:
    conv = meter(plain())
    rows = [Row("nn.Conv2d", value=conv.total, unit="launches", ratio=1.0)]
    for magnitude, angular in product(MAGNITUDES, ACTIVATIONS):
        with force(route):
            seen = meter(layer(magnitude=magnitude, angular=angular))
        rows.append(
            Row(
                f"{magnitude}, {angular}",
                value=seen.total,
                unit="launches",
                ratio=seen.seconds / conv.seconds,
                limit=LIMITS[route],
            )
        )
    return rows


def pass_rows() -> list[Row]:
    """Reads and writes of tensors of the size of the output, beyond the convolution's own."""
    rows = []
    for magnitude, angular in product(MAGNITUDES, ACTIVATIONS):
        if (magnitude, angular) == ("linear", "cosine"):
            continue  # which is a convolution
        with force("triton"):
            seen = meter(layer(48, magnitude=magnitude, angular=angular), 48)
        passes = sum(seen.passes.values())
        rows.append(Row(f"{magnitude}, {angular}", value=passes, unit="passes", limit=5))
    return rows


def wait_rows() -> list[Row]:
    """Values that the host would wait for in one step of each part, on an accelerator's ways."""
    torch.manual_seed(0)
    x, y = torch.randn(8, 3, 10, 10), torch.randint(10, (8,))

    def net() -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(288, 10)
        )

    def train(model: nn.Module, loss: Callable[[], Tensor], optimizer: object = None) -> int:
        optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.01)

        def step() -> None:
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()

        step()
        with without_looking():
            step()
            return waits(step)

    found: dict[str, int] = {}
    decoupled = layer(3, magnitude="tanh", angular="sigmoid")
    found["layers"] = train(decoupled, lambda: decoupled(x).square().mean())
    head = hs.heads.ASoftmaxHead(12, 10, m=4)
    features = torch.randn(8, 12)
    found["head.loss"] = train(head, lambda: head.loss(features, y))
    for name, part in {
        "MHE": hs.regularizers.MHE(half_space=True),
        "CoMHE, random": hs.regularizers.CoMHE(projection="random", dim=4),
        "CoMHE, unrolled": hs.regularizers.CoMHE("angle_preserving", mode="unrolled", dim=4),
        "CoMHE, adversarial": hs.regularizers.CoMHE(projection="adversarial", dim=4),
        "CoMHE, group": hs.regularizers.CoMHE(projection="group", dim=4),
    }.items():
        model = net()
        found[name] = train(model, lambda model=model, part=part: part(model))
    for method in ("cayley", "gram_schmidt", "householder", "loewdin", "exponential"):
        model = hs.orthogonal.rotate(net(), method=method)
        found[f"rotate, {method}"] = train(model, lambda model=model: model(x).square().mean())
    model = hs.orthogonal.rotate(net(), method="ogd")
    optimizer = hs.orthogonal.OGD(hs.orthogonal.parameter_groups(model), lr=0.01)
    found["OGD"] = train(model, lambda: model(x).square().mean(), optimizer)
    return [Row(name, value=count, unit="waits", limit=0) for name, count in found.items()]


def main() -> int:
    torch.manual_seed(0)
    shape = f"forward + backward, batch {BATCH}, {FILTERS} filters, {SIDE} x {SIDE}"
    tables = {
        f"{shape}, with Triton; ratio: computed time over nn.Conv2d's": launch_rows("triton"),
        f"{shape}, without Triton; ratio: computed time over nn.Conv2d's": launch_rows("whole"),
        "Reads and writes of an output beyond the convolution's own, with Triton": pass_rows(),
        "Values waited for in one training step": wait_rows(),
    }
    return 0 if write("launches", tables, measured=False) else 1


if __name__ == "__main__":
    sys.exit(main())
