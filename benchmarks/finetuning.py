"""Rotated layers beside PEFT's OFT, in one run: python benchmarks/finetuning.py

Forward and backward of one layer whose R has left the identity, with PEFT's exact Cayley transform
as the baseline and its default, a series that is not orthogonal, beside it. Then what wrapping a
large layer costs, and what a step needs in memory.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable

import peft
import torch
from torch import Tensor, nn

import hypersphere as hs

from harness import Row, measure, tensor_memory, write

LINEAR = ((768, 16), (2048, 64))  # width and blocks
ROWS = (32, 1024)
CHANNELS, BLOCKS = 64, 16  # of the convolution, 3 x 3
PICTURES = ((8, 16), (8, 32), (32, 32))  # number and side
WRAP = (4096, 128)
SIDES = ("auto", "weight", "input")


def step(layer: nn.Module, x: Tensor) -> Callable[[], object]:
    """Forward and backward to the input and everything that is trained."""
    x = x.clone().requires_grad_()
    gradient = torch.randn_like(layer(x).detach())

    def run() -> None:
        x.grad = None
        layer.zero_grad()
        layer(x).backward(gradient)

    return run


def move(layer: nn.Module) -> nn.Module:
    """Leave the identity, as training does."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in layer.parameters():
            if parameter.requires_grad:
                parameter.add_(0.02 * torch.randn_like(parameter))
    return layer


def ours(layer: nn.Module, blocks: int, side: str) -> nn.Module:
    layer.requires_grad_(False)
    return move(
        hs.orthogonal.rotate(layer, "cayley", blocks=blocks, start="identity", side=side, skip=())
    )


def theirs(layer: nn.Module, blocks: int, series: bool) -> nn.Module:
    config = peft.OFTConfig(
        target_modules=["0"], r=blocks, oft_block_size=0, use_cayley_neumann=series
    )
    return move(peft.get_peft_model(nn.Sequential(layer), config))


def low_rank(layer: nn.Module, rank: int) -> nn.Module:
    config = peft.LoraConfig(target_modules=["0"], r=rank, lora_alpha=rank)
    return move(peft.get_peft_model(nn.Sequential(layer), config))


def layer_rows(make: Callable[[], nn.Module], x: Tensor, blocks: int, limit: float) -> list[Row]:
    """PEFT and ours on one layer; the limit holds for side="auto", which chooses."""
    work = {"PEFT OFT, exact": step(theirs(make(), blocks, False), x)}
    work["PEFT OFT, series of 5 terms"] = step(theirs(make(), blocks, True), x)
    if isinstance(make(), nn.Linear):
        work["PEFT LoRA, rank 16"] = step(low_rank(make(), 16), x)
    else:
        work.pop("PEFT OFT, series of 5 terms")
    for side in SIDES if isinstance(make(), nn.Linear) else ("weight",):
        work[f"ours, side={side!r}"] = step(ours(make(), blocks, side), x)
    chosen = "ours, side='auto'" if "ours, side='auto'" in work else "ours, side='weight'"
    return measure(work, "PEFT OFT, exact", {chosen: limit}, repeats=60, seconds=40)


def memory_rows() -> list[Row]:
    """Peak of forward and backward at 1,024 rows; ours must not need more."""
    width, blocks = LINEAR[1]
    x = torch.randn(1024, width)
    peaks = {
        "PEFT OFT, exact": tensor_memory(step(theirs(nn.Linear(width, width), blocks, False), x)),
        "ours, side='auto'": tensor_memory(step(ours(nn.Linear(width, width), blocks, "auto"), x)),
    }
    bar = peaks["PEFT OFT, exact"]
    return [
        Row(name, value=peak, unit="MiB", limit=None if name.startswith("PEFT") else bar)
        for name, peak in peaks.items()
    ]


def wrap_rows() -> list[Row]:
    """Seconds until the layer is rotated, from the identity."""
    width, blocks = WRAP
    rows = []
    makers: dict[str, Callable[[nn.Module], object]] = {
        "PEFT OFT": lambda layer: theirs(layer, blocks, False),
        "ours": lambda layer: hs.orthogonal.rotate(layer, blocks=blocks, start="identity", skip=()),
    }
    for name, make in makers.items():
        best = float("inf")
        for _ in range(3):
            layer = nn.Linear(width, width, bias=False)
            start = time.perf_counter()
            make(layer)
            best = min(best, time.perf_counter() - start)
        rows.append(
            Row(name, seconds=best, value=best, unit="s", limit=0.1 if name == "ours" else None)
        )
    return rows


def main() -> int:
    warnings.filterwarnings("ignore", category=UserWarning, module="peft")
    torch.manual_seed(0)
    tables = {}
    for width, blocks in LINEAR:
        for count in ROWS:
            rows = layer_rows(
                lambda width=width: nn.Linear(width, width), torch.randn(count, width), blocks, 1.0
            )
            tables[f"linear {width}, {blocks} blocks, {count:,} rows: forward + backward"] = rows
    for count, side in PICTURES:
        rows = layer_rows(
            lambda: nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1),
            torch.randn(count, CHANNELS, side, side),
            BLOCKS,
            1 / 3,
        )
        name = f"convolution 3 x 3, {CHANNELS} channels, {BLOCKS} blocks"
        tables[f"{name}, {count} pictures of {side} x {side} (PEFT's output is wrong)"] = rows
    tables["peak memory, linear 2048, 64 blocks, 1,024 rows"] = memory_rows()
    tables["wrapping a linear layer of 4096 x 4096 in 128 blocks"] = wrap_rows()
    return 0 if write("finetuning", tables) else 1


if __name__ == "__main__":
    sys.exit(main())
