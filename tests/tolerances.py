"""How near two computations of one number have to be, by type: the only table of its kind.

Two ways of computing a number differ in the order of their sums, and so does one way on two
processors, so tests compare with `close`. Bit for bit (`torch.equal`) is for what is promised so:
resuming, copies, files, seeds, the same call twice, integers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# Relative and absolute error of numbers of size 1, after some dozens of operations.
TOLERANCES: dict[torch.dtype, tuple[float, float]] = {
    torch.float64: (1e-9, 1e-10),
    torch.float32: (1e-5, 1e-6),
    torch.float16: (2e-3, 1e-3),
    torch.bfloat16: (2e-2, 1e-2),
}


def close(
    got: Tensor | Sequence[Tensor], expected: Tensor | Sequence[Tensor], scale: float = 1.0
) -> None:
    """Assert |got - expected| <= scale (rtol |expected| + atol); of two types the coarser counts.

    `scale` is how many times worse than that of a short computation the error may be: 3 for a
    decomposition, 10 for the way through a network or a gradient.
    """
    if not isinstance(got, Tensor) or not isinstance(expected, Tensor):
        for one, other in zip(got, expected, strict=True):
            close(one, other, scale)
        return
    types = [value.dtype for value in (got, expected)]
    rtol, atol = max(TOLERANCES[kind] for kind in types)
    wide = max(types, key=lambda kind: torch.finfo(kind).bits)
    torch.testing.assert_close(
        got.to(wide), expected.to(wide), rtol=scale * rtol, atol=scale * atol
    )
