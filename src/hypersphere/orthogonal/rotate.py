"""Turn any model into its orthogonally over-parameterized form (Chapter 7)."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Collection
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ..functional import normalize as unit
from ..functional import random_rotation
from ..registry import nearest
from .diagnostics import energy, memory_estimate
from .matrices import CONSTRUCTED, METHODS, TAKES_ROTATION, neutral
from .pretrained import install_plain_files
from .refine import REFINEMENTS, refine_neurons
from .rotation import Function, Matrix, Rotation
from .sites import FilterMatrix, Site, chosen_sites

MEMORY_WARNING = 2**30  # bytes for one layer


def rotate(
    model: nn.Module,
    method: str | Callable[[Tensor], Tensor] = "cayley",
    blocks: int = 1,
    share_blocks: bool = False,
    start: str = "random",
    normalize: bool | None = None,
    refine: str | None = None,
    skip: Collection[str] | None = None,
    learn_neurons: bool = False,
    bandwidth: int = 1,
    refine_steps: int = 1000,
    generator: torch.Generator | None = None,
    learn_lengths: bool = False,
) -> nn.Module:
    r"""Over-parameterize the layers of `model` in place: w = R v with v fixed and R learned (7.1).

    Args:
        model: convolutions of any dimension and groups, linear and decoupled layers, and the
            projections of nn.MultiheadAttention are rotated; one R for all neurons of a layer
            (q, k and v of an attention count as three layers).
        method: how R is made from its parameter U:

            - a name of :func:`hypersphere.functional.orthogonalize`;
            - "ogd": R = U, to be trained with :class:`OGD` (7.6); training with another optimizer
              raises once R has left the orthogonal matrices;
            - "regularized": R = U, with :func:`orthogonality_penalty` in the loss (7.7);
            - "none": R = U, nothing keeps it orthogonal (UPT);
            - "spd", "lower_triangular", "upper_triangular", "banded", "symmetric", "skew",
              "hessenberg" (upper), "lower_hessenberg": generalized OPT (F.35);
            - a function or module T from rows (n, d) to (n, d); every layer gets its own copy.
        blocks: k of F.5.1. R is block-diagonal and each block acts on d/k numbers, the filter
            over 1/k of the input channels. A layer whose channels k does not divide (three
            colors, say) takes the greatest common divisor of the two instead.
        share_blocks: True is R_s (F.33), False is R_u (F.34).
        start: "random" turns the neurons by a uniformly drawn rotation; "identity" leaves the
            weights as they are, for fine-tuning (F.8); "normal" draws the entries of U from
            N(0, 1), as in the dissertation (F.3).
        normalize: unit-norm neurons (7.3.7). Default: False with start="identity", else True.
        refine: "mhe" or "half_space_mhe" lowers the energy of the neurons first (7.3.7).
        skip: names of modules to leave alone; () for none. Default: the output layer, which is what
            declares `neuron_role = "output"`, else the last linear layer.
        learn_neurons: train v as well (Table 7.1, "FN" = N).
        bandwidth: for method "banded": diagonals on each side of the main one.
        refine_steps: gradient steps of `refine`.
        generator: source of the random rotations, on the CPU.
        learn_lengths: train the length of each neuron beside its direction. The text keeps it
            fixed.

    Returns:
        The model.

    A random start is exact for every method. Where R(U) can be any rotation, U is the drawn one.
    Cayley and the exponential would need a huge U (turns near pi), and the structured matrices of
    F.35 are no rotations at all: there the drawn rotation is multiplied into the fixed neurons, and
    R starts at the identity, w = R(U) (Q v). With start="normal" the gradient of U is smaller, at
    d = 196 by 10 (Gram-Schmidt), 27 (Loewdin) and 300 (Cayley, which starts near -I);
    :func:`parameter_groups` makes up for that.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(),
    ...                       nn.Linear(8, 10))
    >>> model = rotate(model, method="cayley", start="identity")
    >>> [name for name, p in model[2].named_parameters() if p.requires_grad]
    ['bias', 'parametrizations.weight.0.tasks.default.U']
    >>> model[4]  # the output layer is left alone
    Linear(in_features=8, out_features=10, bias=True)
    """
    _check(method, blocks, start, refine)
    chosen = chosen_sites(model, skip)
    _check_sites(model, chosen)
    _check_sizes(chosen, method, blocks, bandwidth)
    _warn_of_memory(chosen, method, blocks, share_blocks)
    unit_norm = start != "identity" if normalize is None else normalize
    for site in chosen:
        layout, weight = site.layout, getattr(site.module, site.parameter)
        shape = _block_shape(layout, blocks, share_blocks)
        with torch.no_grad():
            rows = layout.rows(weight).clone()
            rows = unit(rows) if unit_norm else rows
            if refine is not None:
                rows = refine_neurons(rows, layout.sets, refine == "half_space_mhe", refine_steps)
            turn = None
            count = block_count(layout, blocks)
            if start == "random":
                turn = random_rotation(shape[-1], shape[:2], generator, torch.float64)
                rows = Matrix(turn.to(rows.device), "none")(rows.double()).to(rows.dtype)
            first = _first_map(method, turn, shape, count, bandwidth)
            if start == "normal" and isinstance(first, Matrix):
                first.U.normal_(generator=generator)
                rows = first.to(rows.device)(rows.double()).to(rows.dtype)
            weight.copy_(layout.weight(rows))
            rotation = Rotation(
                layout,
                first.to(weight),
                energy(rows, layout.sets),
                weight.requires_grad,
                learn_lengths,
            )
            rotation.to(weight.device)
        # torch asks the rotation's right_inverse for the neurons behind the weight just set.
        parametrize.register_parametrization(
            site.module, site.parameter, rotation.train(site.module.training)
        )
        chain: Any = cast(Any, site.module.parametrizations)[site.parameter]
        chain.original.requires_grad_(learn_neurons)
    install_plain_files(model)
    return model


def _first_map(
    method: str | Callable[[Tensor], Tensor],
    turn: Tensor | None,
    shape: tuple[int, int, int, int],
    blocks: int,
    bandwidth: int,
) -> nn.Module:
    if isinstance(method, nn.Module):
        return copy.deepcopy(method)
    if not isinstance(method, str):
        return Function(method)
    if turn is not None and method in TAKES_ROTATION:
        return Matrix(turn, method, blocks, bandwidth)
    return Matrix(neutral(method, shape[-1]).repeat(*shape[:2], 1, 1), method, blocks, bandwidth)


def _block_shape(
    layout: FilterMatrix, blocks: int, share_blocks: bool
) -> tuple[int, int, int, int]:
    """Shape of U: (sets, stored blocks, d/k, d/k)."""
    blocks = block_count(layout, blocks)
    size = layout.dim // blocks
    return layout.sets, 1 if share_blocks else blocks, size, size


def block_count(layout: FilterMatrix, blocks: int) -> int:
    """Blocks of one layer: as asked, or the largest number below that its channels allow."""
    return math.gcd(blocks, layout.channels)


def _check(method: object, blocks: int, start: str, refine: str | None) -> None:
    if isinstance(method, str) and method not in METHODS:
        near = nearest(method, METHODS)
        hint = f"; did you mean {near!r}?" if near else ""
        raise ValueError(
            f"unknown method {method!r}; expected a callable T(v) or one of: "
            f"{', '.join(METHODS)}{hint}"
        )
    if not isinstance(method, str) and not callable(method):
        raise ValueError(f"method must be a name or a callable T(v); got {method!r}")
    if blocks < 1:
        raise ValueError(f"blocks must be at least 1; got {blocks}")
    if start not in ("random", "identity", "normal"):
        raise ValueError(f"start must be 'random', 'identity' or 'normal'; got {start!r}")
    if start == "normal" and method not in (*CONSTRUCTED, "none", "regularized"):
        raise ValueError(
            f"start='normal' draws any U, which method {method!r} cannot start from; use 'random' "
            f"or 'identity'"
        )
    if refine is not None and refine not in REFINEMENTS:
        raise ValueError(
            f"refine must be None, {' or '.join(map(repr, REFINEMENTS))}; got {refine!r}"
        )


def _check_sites(model: nn.Module, chosen: list[Site]) -> None:
    if not chosen:
        raise ValueError("every layer is skipped; name fewer modules in skip (skip=() for none)")
    owners: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owners.setdefault(id(parameter), []).append(name)
    for site in chosen:
        if parametrize.is_parametrized(site.module, site.parameter):
            raise ValueError(
                f"{site.label} has a parametrized weight already: fold(model) a rotated model, "
                "remove other parametrizations, or name the layer in skip"
            )
        names = owners[id(getattr(site.module, site.parameter))]
        if len(names) > 1:
            raise ValueError(
                f"{' and '.join(names)} are one tied weight; rotating one would untie it: "
                f"name {site.label} in skip"
            )


def _check_sizes(chosen: list[Site], method: object, blocks: int, bandwidth: int) -> None:
    """Everything that depends on a layer's size, before the first of them is touched."""
    if method == "banded" and bandwidth < 0:
        raise ValueError(f"bandwidth counts diagonals beside the main one; got {bandwidth}")
    for site in chosen:
        size = site.layout.dim // block_count(site.layout, blocks)
        if method == "skew" and size % 2:
            raise ValueError(
                f"a skew matrix of odd size is singular, and {site.label} has neurons of length "
                f"{size}: name it in skip, or choose blocks of even length"
            )


def _warn_of_memory(chosen: list[Site], method: object, blocks: int, share_blocks: bool) -> None:
    for site in chosen:
        layout = site.layout

        def need(count: int, layout: FilterMatrix = layout) -> int:
            return memory_estimate(layout.dim, count, share_blocks, method, layout.sets)

        now = block_count(layout, blocks)
        if need(now) < MEMORY_WARNING or not isinstance(method, str):
            continue
        finer = [k for k in range(now + 1, layout.channels + 1) if layout.channels % k == 0]
        better = next((k for k in finer if need(k) < MEMORY_WARNING / 2), layout.channels)
        warnings.warn(
            f"rotating {site.label} (neurons of length d = {layout.dim}) will take about "
            f"{need(now) / 2**30:.1f} GiB for R, its gradient, momentum and factorization; "
            f"blocks={better} would take {need(better) / 2**30:.2f} GiB",
            stacklevel=3,
        )
