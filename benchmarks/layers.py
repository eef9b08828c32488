"""Decoupled convolutions against nn.Conv2d over the layers of CNN-9, forward + backward.

    python benchmarks/layers.py            # all tables, about eight minutes
    python benchmarks/layers.py --quick    # eager times only

Bars: cosine 1.10, every other activation and every magnitude 1.25 times nn.Conv2d, both at once
1.40; without a compiler for the kernels in C++ 1.35; at most one tensor of the size of the output
saved beyond what the convolution saves; the same bars compiled; 0.4 ms more for a small layer.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn

from hypersphere import layers as hl
from hypersphere import models
from hypersphere.functional._kernels.decoupled.routes import force

from harness import Row, measure, write

# Table B.1 with the widths 64, 96, 128 on 32 x 32 images: (channels in, filters, image side).
CNN9 = [(3, 64, 32), (64, 64, 32), (64, 64, 32)]
CNN9 += [(64, 96, 16), (96, 96, 16), (96, 96, 16)]
CNN9 += [(96, 128, 8), (128, 128, 8), (128, 128, 8)]
BATCH = 32
COSINE, OTHER, BOTH, PURE = 1.10, 1.25, 1.40, 1.35
SMALL = 0.4  # milliseconds

ACTIVATIONS = {
    "sphere, cosine": {"angular": "cosine"},
    "sphere, linear": {"angular": "linear"},
    "sphere, sigmoid": {"angular": "sigmoid"},
    "sphere, sigmoid with learned k": {"angular": hl.SigmoidAngular(learnable=True)},
    "sphere, square cosine": {"angular": "square_cosine"},
}
MAGNITUDES = {
    f"{kind}, cosine": {"magnitude": kind}
    for kind in ("ball", "tanh", "linear", "segmented", "log", "mixed")
}
COMBINED = {  # both at once: a magnitude of each filter and an arcsine
    "tanh, sigmoid": {"magnitude": "tanh", "angular": "sigmoid"},
    "segmented, linear": {"magnitude": "segmented", "angular": "linear"},
}
EAGER = ACTIVATIONS | MAGNITUDES | COMBINED
COMPILED = ["sphere, cosine", "sphere, linear", "sphere, sigmoid", "tanh, cosine", "tanh, sigmoid"]
ONE_THREAD = ["sphere, cosine", "sphere, sigmoid", "tanh, cosine", "tanh, sigmoid"]
COMPILED_LAYERS = CNN9[1:2]  # compiling takes longer than running; one shape says it


def steps(make: Callable[[int, int], nn.Module], compiled: bool = False) -> Callable[[], None]:
    """Forward and backward of all layers, one after the other."""
    work: list[tuple[Callable[[Tensor], Tensor], list[Tensor], Tensor, Tensor]] = []
    for c_in, filters, side in COMPILED_LAYERS if compiled else CNN9:
        layer = make(c_in, filters)
        call = torch.compile(layer, fullgraph=True) if compiled else layer
        # The first layer's input is the image, which needs no gradient.
        x = torch.randn(BATCH, c_in, side, side, requires_grad=c_in > 3)
        grad = torch.randn(BATCH, filters, side, side)
        wanted = [p for p in (x, *layer.parameters()) if p.requires_grad]
        work.append((call, wanted, x, grad))

    def step() -> None:
        for call, wanted, x, grad in work:
            torch.autograd.grad(call(x), wanted, grad)

    return step


def plain(c_in: int, filters: int) -> nn.Module:
    return nn.Conv2d(c_in, filters, 3, padding=1, bias=False)


def decoupled(**operator: object) -> Callable[[int, int], nn.Module]:
    return lambda c_in, filters: hl.DecoupledConv2d(c_in, filters, 3, padding=1, **operator)


def bar(name: str) -> float:
    return COSINE if name == "sphere, cosine" else BOTH if name in COMBINED else OTHER


def times(names: list[str], compiled: bool, seconds: float) -> list[Row]:
    work = {"nn.Conv2d": steps(plain, compiled)}
    work |= {name: steps(decoupled(**EAGER[name]), compiled) for name in names}
    limits = {name: bar(name) for name in names}
    return measure(work, "nn.Conv2d", limits, repeats=15, seconds=seconds, memory=False)


def without_kernels(seconds: float) -> list[Row]:
    """As on a machine without a compiler: torch's own operations on tiles."""
    work = {"nn.Conv2d": steps(plain)}
    for name, operator in EAGER.items():
        work[name] = _tiled(steps(decoupled(**operator)))
    limits = dict.fromkeys(EAGER, PURE)
    return measure(work, "nn.Conv2d", limits, repeats=15, seconds=seconds, memory=False)


def _tiled(step: Callable[[], None]) -> Callable[[], None]:
    def forced() -> None:
        with force("tiled"):
            step()

    return forced


def small_layers(seconds: float) -> list[Row]:
    """45 layers of 12 to 24 filters on 16 x 16 images: what one of them costs more than plain."""

    def network(operator: str) -> Callable[[], None]:
        model = models.create(
            "cnn45", in_channels=3, widths=(12, 16, 24), operator=operator, image_size=16
        )
        x = torch.randn(BATCH, 3, 16, 16)

        def step() -> None:
            torch.autograd.grad(model(x).square().mean(), list(model.parameters()))

        return step

    rows = measure(
        {"plain": network("plain"), "sphere": network("sphere")},
        "plain",
        repeats=15,
        seconds=seconds,
        memory=False,
    )
    layers = 45
    more = (rows[1].seconds or 0) - (rows[0].seconds or 0)
    return [
        *rows,
        Row(name="more for each layer", value=1e3 * more / layers, unit="ms", limit=SMALL),
    ]


def saved_outputs(layer: nn.Module, x: Tensor) -> float:
    """Bytes that autograd keeps beyond x and the parameters, in units of the output."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = layer(x)
    for own in (x, *layer.parameters()):
        kept.pop(own.untyped_storage().data_ptr(), None)
    return sum(kept.values()) / out.untyped_storage().nbytes()


def memory() -> list[Row]:
    """The layer 64 -> 64 at 32 x 32: one output, norms of one channel, the filters' directions."""
    rows = []
    x = torch.randn(BATCH, 64, 32, 32, requires_grad=True)
    spare = saved_outputs(plain(64, 64), x)
    for name, operator in EAGER.items():
        layer = decoupled(**operator)(64, 64)
        value = saved_outputs(layer, x) - spare
        rows.append(Row(name=name, value=value, unit="outputs", limit=1.05))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="eager times only")
    quick = parser.parse_args().quick
    torch.manual_seed(0)
    title = f"CNN-9 layers, batch {BATCH}, forward + backward"
    tables = {f"{title}, against nn.Conv2d": times(list(EAGER), False, 40 if quick else 75)}
    if not quick:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        tables[f"{title}, one thread"] = times(ONE_THREAD, False, 30)
        torch.set_num_threads(threads)
        tables[f"{title}, without the kernels in C++"] = without_kernels(60)
        tables["45 layers of 12/16/24 filters, 16 x 16"] = small_layers(20)
        tables["Saved for the backward beyond nn.Conv2d's own"] = memory()
        shape = "{} -> {} at {} x {}".format(*COMPILED_LAYERS[0], COMPILED_LAYERS[0][2])
        tables[f"{shape}, the same compiled with fullgraph=True"] = times(COMPILED, True, 20)
    return 0 if write("layers", tables) else 1


if __name__ == "__main__":
    sys.exit(main())
