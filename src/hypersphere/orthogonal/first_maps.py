"""The map R with which a layer starts, and the neurons that it then turns into the weight."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..finding import FilterMatrix
from ..functional import random_rotation
from .block_matrix import Matrix, start_matrix, times_blocks
from .butterfly import Butterfly, most_factors
from .matrices import TAKES_ROTATION, TURNED_START
from .reflections import Reflections
from .rotation import MAPS, Function
from .two_sided import TwoSided

__all__ = ["Form", "block_count", "first_map", "start_neurons"]


@dataclass(frozen=True)
class Form:
    """What R looks like, as told to `rotate`.

    Args:
        method: how R is made from its parameter, or a callable T(v).
        blocks: number of blocks.
        share_blocks: whether one block is stored for all.
        structure: "blocks", "butterfly" or "reflections".
        factors: of a butterfly. Default: as many as the blocks allow.
        rank: number of reflections.
        both_sides: whether the neurons are mixed, too.
        bandwidth: of method "banded".
    """

    method: str | Callable[[Tensor], Tensor] = "cayley"
    blocks: int = 1
    share_blocks: bool = False
    structure: str = "blocks"
    factors: int | None = None
    rank: int = 8
    both_sides: bool = False
    bandwidth: int = 1

    def block_length(self, layout: FilterMatrix) -> int:
        """Numbers of a neuron that one block turns; for reflections, their number."""
        if self.structure == "reflections":
            return self.rank
        return layout.dim // block_count(layout, self.blocks)

    def factor_count(self, layout: FilterMatrix) -> int:
        """Factors of the butterfly of one layer."""
        most = most_factors(block_count(layout, self.blocks))
        if self.block_length(layout) % 2:
            most = 1
        return most if self.factors is None else min(self.factors, most)

    def describe(self, layout: FilterMatrix) -> str:
        """R in a few words."""
        count = block_count(layout, self.blocks)
        name = self.method if isinstance(self.method, str) else "T(v)"
        if self.structure == "reflections":
            text = f"{self.rank} reflections"
        elif self.structure == "butterfly":
            text = f"{name}, {self.factor_count(layout)} x {count} blocks"
        else:
            text = f"{name}, {count} block{'s' * (count > 1)}"
        shared = ", shared" if self.share_blocks and count > 1 else ""
        return text + shared + (", both sides" if self.both_sides else "")


def block_count(layout: FilterMatrix, blocks: int) -> int:
    """Blocks of one layer: as asked, or the largest number below that its channels allow."""
    return math.gcd(blocks, layout.channels)


def first_map(
    form: Form, layout: FilterMatrix, turn: Tensor | None, generator: torch.Generator | None
) -> nn.Module:
    """The map at its start: the drawn rotation `turn` where the method can hold it, else neutral.

    Args:
        form: of R.
        layout: of the weight.
        turn: (sets, stored blocks, d/k, d/k), a drawn rotation; None for an identity start.
        generator: source of the vectors of reflections.
    """
    method, sets = form.method, layout.sets
    if isinstance(method, nn.Module):
        return copy.deepcopy(method)
    if not isinstance(method, str):
        return Function(method)
    count, size = block_count(layout, form.blocks), form.block_length(layout)
    first: nn.Module
    if form.structure == "reflections":
        # Pairs of equal vectors undo each other.
        pairs = torch.randn(sets, form.rank // 2, layout.dim, generator=generator)
        first = Reflections(pairs.repeat_interleave(2, dim=1))
    elif form.structure == "butterfly":
        factors = form.factor_count(layout)
        start = start_matrix(method, sets, factors * count, size, count)
        first = Butterfly(start.U.detach(), method, count, factors)
    elif turn is not None and method in TAKES_ROTATION:
        first = Matrix(turn, method, count, form.bandwidth)
    else:
        stored = 1 if form.share_blocks else count
        first = start_matrix(method, sets, stored, size, count, form.bandwidth)
    if not form.both_sides:
        return first
    groups = sets * layout.groups
    length = sets * layout.neurons // groups
    mixed = math.gcd(form.blocks, length)
    return TwoSided(first, start_matrix(method, groups, mixed, length // mixed, mixed))


def start_neurons(
    form: Form,
    layout: FilterMatrix,
    rows: Tensor,
    start: str,
    generator: torch.Generator | None,
) -> tuple[Tensor, nn.Module]:
    """(neurons, map) with which a layer starts, given the rows of its weight.

    The neurons are those that the map turns into the start asked for: the rows themselves, or the
    rows turned by a drawn rotation. Nothing is inverted where the map starts at the identity, and
    then the very rows come back.
    """
    turn = None
    if start == "random":
        count = block_count(layout, form.blocks)
        stored = 1 if form.share_blocks else count
        shape = (layout.sets, stored, layout.dim // count)
        if form.structure != "blocks":  # one rotation of the whole space
            shape = (layout.sets, 1, layout.dim)
        turn = random_rotation(shape[-1], shape[:2], generator, torch.float64)
    first = first_map(form, layout, turn, generator)
    wide = torch.promote_types(rows.dtype, torch.float32)
    if isinstance(first, MAPS):
        first.to(device=rows.device, dtype=wide)
    else:
        first.to(rows)  # the caller's own map computes in the type of the weights
    if start == "normal" and isinstance(first, Matrix):
        first.U.data = torch.randn(first.U.shape, generator=generator).to(first.U)
        return rows, first
    held = turn is not None and isinstance(form.method, str) and form.method in TAKES_ROTATION
    if held and form.structure == "blocks" and form.method != "householder":
        return rows, first  # U is the drawn rotation
    if turn is not None:
        turned = times_blocks(rows.double(), turn.to(rows.device).mT)
        rows = turned.to(rows.dtype)
    if isinstance(form.method, str) and form.method in TURNED_START and isinstance(first, MAPS):
        rows = first.undo(rows)
    return rows, first
