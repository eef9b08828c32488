"""What learning R costs: numbers to train, and bytes."""

from __future__ import annotations

from ..finding import FilterMatrix
from ..functional.orthogonalize import packed_length
from ..registry import unknown_name
from .first_maps import Form, block_count
from .matrices import METHODS, PACKED

__all__ = ["memory_estimate", "trained_numbers"]

# Square matrices (blocks x d/k x d/k) and sets of neurons (n x d) that one training step holds at
# its peak beside the parameter, its gradient and momentum; measured, see tests.
_SQUARES = {"loewdin": 6.0, "exponential": 3.0, "ogd": 5.0, "regularized": 1.0, "none": 1.0}
_NEURONS = {"loewdin": 8.0, "exponential": 12.0}


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

    Returns:
        The number of bytes.

    >>> memory_estimate(4096) // 2**20, memory_estimate(4096, blocks=128) // 2**20
    (224, 1)
    """
    if isinstance(method, str) and method not in METHODS:
        raise unknown_name("method", method, METHODS)
    name = str(method)
    size = d // blocks
    stored = sets * (1 if share_blocks else blocks)
    numbers = 3 * stored * _numbers(name, size)
    numbers += int(_SQUARES.get(name, 2.0) * stored * size * size)
    numbers += int(_NEURONS.get(name, 4.0) * sets * (neurons or 0) * d)
    return 4 * numbers
