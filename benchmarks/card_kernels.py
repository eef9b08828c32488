"""The Triton kernels compiled ahead of time for sm_80 and sm_90: registers, spills, instructions.

    python benchmarks/card_kernels.py            # every magnitude x activation x type, five minutes
    python benchmarks/card_kernels.py --quick    # one of each

Needs Triton, no graphics card: the tools that come with it say what a kernel takes.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "0"  # before the kernels are read

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from hypersphere.functional._kernels.decoupled.routes import force
from hypersphere.functional._kernels.decoupled.triton import (
    kernels,
    launch,
    mean_norm,
    norms,
    operator,
)

from harness import Row, format_rows, write  # noqa: F401 - for its test

MAGNITUDES = ("sphere", "ball", "tanh", "linear", "segmented", "log", "mixed")
ACTIVATIONS = ("cosine", "linear", "sigmoid", "square_cosine")
TARGETS = {"sm_80": 80, "sm_90": 90}
KERNELS = {
    name: getattr(module, name)
    for module in (kernels, norms, mean_norm)
    for name in vars(module)
    if name.endswith("_kernel")
}
TYPES = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int64: "*i64",
}
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
# What is compiled is what a card of this maker would be given, also where torch knows of none.
operator.BACKWARD["maxnreg"] = operator.MOST_REGISTERS


def recorded(dtype: torch.dtype, magnitude: str, angular: str) -> dict[str, tuple[Any, ...]]:
    """The arguments of every kernel in one forward and backward pass, by its name."""
    seen: dict[str, tuple[Any, ...]] = {}
    start = launch.launch

    def note(kernel: Any, grid: Any, like: Any, *arguments: Any, **constants: Any) -> None:
        seen[kernel.__name__] = (arguments, constants)

    for module in (operator, norms, mean_norm):
        module.launch = note
    try:
        with force("triton"):
            import hypersphere as hs

            layer = hs.layers.DecoupledConv2d(
                64, 64, 3, padding=1, magnitude=magnitude, angular=angular, rescale=True
            ).to(dtype)
            x = torch.zeros(2, 64, 32, 32, dtype=dtype, requires_grad=True)
            out = layer(x)
            torch.autograd.grad(out, [x, *layer.parameters()], torch.zeros_like(out))
    finally:
        for module in (operator, norms, mean_norm):
            module.launch = start
    return seen


def compiled(
    name: str, arguments: tuple[Any, ...], constants: dict[str, Any], target: int
) -> bytes:
    """The machine code of a kernel, specialized as if it were launched with these arguments."""
    kernel = KERNELS[name]
    signature: dict[str, str] = {}
    fixed: dict[str, Any] = {}
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    for place, parameter in enumerate(kernel.arg_names):
        if parameter in constants:
            signature[parameter], fixed[parameter] = "constexpr", constants[parameter]
            continue
        value = arguments[place]
        if isinstance(value, torch.Tensor):
            signature[parameter] = TYPES[value.dtype]
            attributes[(place,)] = [["tt.divisibility", 16]]
        elif isinstance(value, float):
            signature[parameter] = "fp32"
        elif value == 1:
            signature[parameter], fixed[parameter] = "constexpr", 1
        else:
            signature[parameter] = "i32"
            if value % 16 == 0:
                attributes[(place,)] = [["tt.divisibility", 16]]
    options = {key: constants[key] for key in ("num_warps", "maxnreg") if key in constants}
    source = ASTSource(fn=kernel, signature=signature, constexprs=fixed, attrs=attributes)
    return triton.compile(source, target=GPUTarget("cuda", target, 32), options=options).asm[
        "cubin"
    ]


def usage(cubin: bytes) -> dict[str, int]:
    """Registers, and bytes of stack and local memory, which is where registers are spilled to."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "kernel.cubin"
        place.write_bytes(cubin)
        command = [tool, "-res-usage", place]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", text))
    return {key: int(found[key]) for key in ("REG", "STACK", "LOCAL")}


def details(architecture: str, quick: bool) -> list[dict[str, Any]]:
    """Every kernel: what it computes, of which type, its registers and bytes spilled."""
    pairs = [("tanh", "sigmoid")] if quick else list(product(MAGNITUDES, ACTIVATIONS))
    pairs = [pair for pair in pairs if pair != ("linear", "cosine")]  # which is a convolution
    found = []
    for number, ((magnitude, angular), dtype) in enumerate(product(pairs, FLOATS)):
        for name, (arguments, constants) in recorded(dtype, magnitude, angular).items():
            own = name in ("forward_kernel", "backward_kernel")
            if not own and number >= len(FLOATS):
                continue  # the same for every pair
            numbers = usage(compiled(name, arguments, constants, TARGETS[architecture]))
            found.append(
                {
                    "kernel": name,
                    "operator": f"{magnitude}, {angular}" if own else None,
                    "type": str(dtype).removeprefix("torch."),
                    "registers": numbers["REG"],
                    "spilled": numbers["STACK"] + numbers["LOCAL"],
                }
            )
    return found


def rows(kernels: list[dict[str, Any]]) -> list[Row]:
    """Most registers of any activation and type, and all bytes spilled."""
    most: dict[str, int] = {}
    for one in kernels:
        magnitude = one["operator"] and one["operator"].split(",")[0]
        label = f"{magnitude}, {one['kernel']}" if magnitude else one["kernel"]
        most[label] = max(one["registers"], most.get(label, 0))
    limit = operator.MOST_REGISTERS
    found = [Row(label, value=n, unit="registers", limit=limit) for label, n in most.items()]
    spilled = sum(one["spilled"] for one in kernels)
    return [*found, Row(f"spilled by all {len(kernels)}", value=spilled, unit="bytes", limit=0)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one magnitude and activation")
    quick = parser.parse_args().quick
    found = {name: details(name, quick) for name in TARGETS}
    title = "Kernels for {}, registers: the most of any activation and type"
    tables = {title.format(name): rows(kernels) for name, kernels in found.items()}
    command = "python benchmarks/card_kernels.py"
    met = write("triton", tables, measured=False, command=command, details=found)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
