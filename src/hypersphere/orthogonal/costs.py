"""What learning R costs: numbers to train, and bytes."""

from __future__ import annotations

from ..finding import FilterMatrix
from ..functional.orthogonalize import packed_length
from ..registry import unknown_name
from .block_matrix import FORMED
from .first_maps import Form, block_count
from .matrices import METHODS, PACKED

__all__ = ["memory_estimate", "trained_numbers"]

# What a training step with momentum holds at its peak, as the tests measure it, with
# parameter, gradient and momentum included: matrices of the size of R beside few neurons, further
# tensors of the size of the weight, and matrices where R is formed from small blocks.
_HELD: dict[str, tuple[float, float, float]] = {
    "cayley": (3.0, 5.6, 5.3),  # between both of its ways, in C++ and in LAPACK
    "exponential": (3.4, 18.6, 20.0),  # of the first steps; more terms the further U turns
    "gram_schmidt": (6.7, 6.0, 12.0),
    "householder": (6.7, 7.0, 12.7),
    "loewdin": (7.0, 12.9, 19.7),
    "ogd": (7.0, 0.3, 6.0),
    "none": (2.4, 1.6, 3.5),
    "spd": (4.0, 3.0, 5.5),  # and whatever else has a structure (F.35)
}
_SAME = {"modified_gram_schmidt": "gram_schmidt", "iterative_gram_schmidt": "gram_schmidt"}
_SAME["regularized"] = "none"
_FORMED_WEIGHTS = 2.0  # tensors of the size of the weight where R is formed


def trained_numbers(form: Form, layout: FilterMatrix) -> int:
    """Numbers that R trains in one layer; 0 if R is a function of the caller."""
    if not isinstance(form.method, str):
        return 0
    count = block_count(layout, form.blocks)
    length = layout.dim // count
    if form.structure == "reflections":
        total = layout.sets * form.rank * layout.dim
    else:
        stored = 1 if form.share_blocks else count
        if form.structure == "butterfly":
            stored = count * form.factor_count(layout)
        total = layout.sets * stored * _numbers(form.method, length)
    if form.both_sides:
        groups = layout.sets * layout.groups
        neurons = layout.sets * layout.neurons // groups
        mixed = block_count(FilterMatrix((neurons, 1), neurons), form.blocks)
        total += groups * mixed * _numbers(form.method, neurons // mixed)
    return total


def _numbers(method: str, size: int) -> int:
    return packed_length(size) if method in PACKED else size * size


def memory_estimate(
    d: int,
    blocks: int = 1,
    share_blocks: bool = False,
    method: object = "cayley",
    sets: int = 1,
    neurons: int | None = None,
    side: str = "weight",
) -> int:
    """Bytes that learning R takes in float32: U, gradient, momentum and the work of a step.

    Beside the parameter there are matrices of the size of R and, with many neurons, tensors of the
    size of the weight; the neurons themselves are not counted, the plain layer has them too.

    Args:
        d: length of a neuron.
        blocks: number of blocks of R.
        share_blocks: whether one block is stored for all.
        method: as in :func:`rotate`.
        sets: number of independent matrices, 3 for the packed projections of attention.
        neurons: number of neurons of a set. Default: few beside d.
        side: "input" turns no weight, and takes tensors of the size of the inputs instead, which
            are not counted.

    Returns:
        The number of bytes, to about a fifth.

    >>> memory_estimate(4096) // 2**20, memory_estimate(4096, blocks=128) // 2**20
    (192, 2)
    """
    if side not in ("weight", "input"):
        raise unknown_name("side", side, ("weight", "input"))
    if isinstance(method, str) and method not in METHODS:
        raise unknown_name("method", method, METHODS)
    name = _SAME.get(str(method), str(method))
    few, many, formed = _HELD.get(name, _HELD["spd"])
    size = d // blocks
    stored = sets * (1 if share_blocks else blocks)
    if stored > 1 and size <= FORMED:
        few, many = formed, _FORMED_WEIGHTS
    rows = 0 if side == "input" else sets * (neurons or 0)
    return int(4 * (few * stored * size * size + many * rows * d))
