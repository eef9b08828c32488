"""What `rotate` is going to do, layer by layer, before it touches anything."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial

from torch import nn

from ..finding import FilterMatrix, LeftOut, Site, aligned_columns
from ..registry import nearest, unknown_name
from .choice import SIDES, choose_side, chosen_sites
from .costs import memory_estimate, trained_numbers
from .first_maps import Form, block_count
from .matrices import CONSTRUCTED, METHODS
from .refine import REFINEMENTS

__all__ = ["PlannedLayer", "RotationPlan", "make_plan"]

MEMORY_WARNING = 2**30  # bytes for one layer
STRUCTURES = ("blocks", "butterfly", "reflections")


@dataclass(frozen=True)
class PlannedLayer:
    """One layer to rotate.

    Args:
        site: the weight.
        side: "weight" or "input".
        form: of R.
        learn_lengths: whether the length of each neuron is trained, too.
    """

    site: Site
    side: str
    form: Form
    learn_lengths: bool = False

    @property
    def trained(self) -> int:
        """Numbers that R trains, and lengths of neurons."""
        layout = self.site.layout
        lengths = layout.sets * layout.neurons if self.learn_lengths else 0
        return trained_numbers(self.form, layout) + lengths

    @property
    def fewer_blocks(self) -> str:
        """Why the layer has fewer blocks than asked for; empty if it has them."""
        layout, asked = self.site.layout, self.form.blocks
        count = block_count(layout, asked)
        if count == asked:
            return ""
        return f"{count} for blocks={asked}, which does not divide {layout.channels}"


@dataclass
class RotationPlan:
    """What is rotated on which side, and what is left alone and why; `str` prints a table.

    Args:
        layers: to rotate.
        left_out: everything else that has a weight.
    """

    layers: list[PlannedLayer]
    left_out: list[LeftOut]

    def __iter__(self) -> Iterator[PlannedLayer]:
        return iter(self.layers)

    def __str__(self) -> str:
        rows = [("layer", "what", "side", "R", "trained", "remarks")]
        for x in self.layers:
            layout = x.site.layout
            what = f"{x.site.kind} {layout.sets * layout.neurons} x {layout.dim}"
            text = x.form.describe(layout)
            note = "; ".join(text for text in (x.site.note, x.fewer_blocks) if text)
            rows.append((x.site.label, what, x.side, text, f"{x.trained:,}", note))
        for out in self.left_out:
            rows.append((out.name or "(the model)", out.what, "-", "left out", "", out.reason))
        return aligned_columns(rows)


def make_plan(
    model: nn.Module,
    form: Form,
    start: str,
    side: str,
    skip: Collection[str] | None,
    targets: str | Collection[str] | None,
    needs_weight: str,
    learn_lengths: bool = False,
) -> RotationPlan:
    """The plan, or an error that names every layer in the way."""
    check_form(form, start)
    if side not in SIDES:
        raise unknown_name("side", side, SIDES)
    chosen, left_out = chosen_sites(model, skip, targets)
    if not chosen:
        raise ValueError("every layer is skipped; name fewer modules in skip (skip=() for none)")
    layers, problems = [], []
    factors_fit = False
    for site in chosen:
        length = form.block_length(site.layout)
        if form.method == "skew" and length % 2:
            raise ValueError(
                f"a skew matrix of odd size is singular, and {site.label} has neurons of length "
                f"{length}: name it in skip, or choose blocks of even length"
            )
        most = replace(form, factors=None).factor_count(site.layout)
        factors_fit = factors_fit or form.factors is None or form.factors <= most
        picked, problem = choose_side(site, side, needs_weight, length)
        layers.append(PlannedLayer(site, picked, form, learn_lengths))
        problems += [problem] if problem else []
    if not factors_fit:
        raise ValueError(
            f"no layer has {form.factors} factors with blocks={form.blocks}: leave factors out for "
            f"as many as there are, or use more blocks"
        )
    if problems:
        more = f" (and {len(problems) - 5} more)" if len(problems) > 5 else ""
        raise ValueError("; ".join(problems[:5]) + more)
    return RotationPlan(layers, left_out)


def check_form(form: Form, start: str) -> None:
    """Everything that can be wrong with the arguments alone."""
    method = form.method
    if isinstance(method, str) and method not in METHODS:
        near = nearest(method, METHODS)
        hint = f"; did you mean {near!r}?" if near else ""
        raise ValueError(
            f"unknown method {method!r}; expected a callable T(v) or one of: "
            f"{', '.join(METHODS)}{hint}"
        )
    if not isinstance(method, str) and not callable(method):
        raise ValueError(f"method must be a name or a callable T(v); got {method!r}")
    for name in ("blocks", "rank", "factors", "bandwidth"):
        value = getattr(form, name)
        if type(value) is not int and not (name == "factors" and value is None):
            raise ValueError(f"{name} expects a whole number; got {value!r}")
    if form.blocks < 1:
        raise ValueError(f"blocks must be at least 1; got {form.blocks}")
    if start not in ("random", "identity", "normal"):
        raise ValueError(f"start must be 'random', 'identity' or 'normal'; got {start!r}")
    if form.structure not in STRUCTURES:
        raise unknown_name("structure", form.structure, STRUCTURES)
    plain = form.structure == "blocks" and not form.both_sides
    if start == "normal" and not (plain and method in (*CONSTRUCTED, "none", "regularized")):
        what = repr(method) if plain else f"with structure={form.structure!r}, both_sides"
        raise ValueError(
            f"start='normal' draws any U, which method {what} cannot start from; use 'random' "
            f"or 'identity'"
        )
    if method == "banded" and form.bandwidth < 0:
        raise ValueError(f"bandwidth counts diagonals beside the main one; got {form.bandwidth}")
    if form.structure == "butterfly" and method not in CONSTRUCTED:
        raise ValueError(
            f"structure='butterfly' is made of orthogonal blocks: method must be one of "
            f"{', '.join(CONSTRUCTED)}; got {method!r}"
        )
    if form.structure == "butterfly" and form.share_blocks:
        raise ValueError("structure='butterfly' has no shared blocks; use share_blocks=False")
    if form.factors is not None and (form.factors < 1 or form.structure != "butterfly"):
        raise ValueError(
            f"factors counts the factors of structure='butterfly', at least 1; got {form.factors} "
            f"with structure={form.structure!r}"
        )
    if form.structure != "reflections" and form.rank != Form.rank:
        raise ValueError(
            f"rank counts the reflections of structure='reflections'; got rank={form.rank} with "
            f"structure={form.structure!r}"
        )
    if form.structure == "reflections":
        # P of both sides is no product of reflections: its method is the default one.
        known = ("cayley",) if form.both_sides else ("cayley", "householder")
        if method not in known:
            raise ValueError(f"structure='reflections' needs no method; got {method!r}")
        if form.rank < 2 or form.rank % 2:
            raise ValueError(
                f"rank counts reflections, which start as pairs that undo each other: an even "
                f"number; got {form.rank}"
            )
        if form.blocks != 1:
            raise ValueError(
                f"structure='reflections' has no blocks; use blocks=1, got {form.blocks}"
            )
    if form.both_sides and method not in (*CONSTRUCTED, "ogd"):
        raise ValueError(
            f"both_sides keeps the spectrum, so both matrices are orthogonal: method must be 'ogd' "
            f"or one of {', '.join(CONSTRUCTED)}; got {method!r}"
        )


def check_not_replicated(model: nn.Module) -> None:
    """Raise if DistributedDataParallel is in it, which averages only what it has seen."""
    if any(isinstance(module, nn.parallel.DistributedDataParallel) for module in model.modules()):
        raise ValueError(
            "rotate the model before DistributedDataParallel wraps it: the gradients of what joins "
            "later are not averaged over the processes"
        )


def check_refine(refine: str | None) -> None:
    """Raise unless it is the name of a refinement, or None."""
    if refine is not None and refine not in REFINEMENTS:
        raise ValueError(
            f"refine must be None, {' or '.join(map(repr, REFINEMENTS))}; got {refine!r}"
        )


def warn_of_fewer_blocks(plan: RotationPlan) -> None:
    """Warn of linear layers that have fewer blocks than asked for, and so train more numbers."""
    linear = [x for x in plan if x.site.kind in ("linear", "Conv1D") and not x.form.both_sides]
    fewer = [f"{x.site.label} ({x.fewer_blocks})" for x in linear if x.fewer_blocks]
    if fewer:
        more = f" and {len(fewer) - 3} more" if len(fewer) > 3 else ""
        warnings.warn(
            f"fewer blocks than asked for, so more numbers to train: {', '.join(fewer[:3])}{more}",
            stacklevel=3,
        )


def warn_of_memory(plan: RotationPlan, limit: int) -> None:
    """Warn of layers whose R takes more than `limit` bytes in training."""
    for layer in plan:
        form, layout = layer.form, layer.site.layout
        if form.structure != "blocks" or not isinstance(form.method, str):
            continue
        need = partial(_bytes_needed, form, layout, layer.side)
        now = block_count(layout, form.blocks)
        if need(now) < limit:
            continue
        finer = [k for k in range(now + 1, layout.channels + 1) if layout.channels % k == 0]
        better = next((k for k in finer if need(k) < limit / 2), layout.channels)
        warnings.warn(
            f"rotating {layer.site.label} (neurons of length d = {layout.dim}) will take about "
            f"{need(now) / 2**30:.1f} GiB for R, its gradient, momentum and factorization; "
            f"blocks={better} would take {need(better) / 2**30:.2f} GiB",
            stacklevel=4,
        )


def _bytes_needed(form: Form, layout: FilterMatrix, side: str, blocks: int) -> int:
    shared, sets, neurons = form.share_blocks, layout.sets, layout.neurons
    return memory_estimate(layout.dim, blocks, shared, form.method, sets, neurons, side)
