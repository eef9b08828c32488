"""Turn any model into its orthogonally over-parameterized form (Chapter 7)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ..functional import normalize as unit
from .diagnostics import energy
from .first_maps import Form, start_neurons
from .fold import unparametrized
from .input_side import attach_input_rotation, average_over_ranks, detach_input_rotation
from .matrices import CONSTRUCTED, TURNED_START
from .plan import (
    PlannedLayer,
    RotationPlan,
    check_not_replicated,
    check_refine,
    make_plan,
    warn_of_fewer_blocks,
    warn_of_memory,
)
from .pretrained import install_plain_files
from .refine import refine_neurons
from .rotation import MAPS, Rotation
from .steps import watch_optimizers

MEMORY_WARNING = 2**30  # bytes for one layer
_OWN = ("plain", "sharded", "quantized")  # weights of one module alone


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
    targets: str | Collection[str] | None = None,
    structure: str = "blocks",
    side: str = "auto",
    both_sides: bool = False,
    rank: int = 8,
    factors: int | None = None,
    verbose: bool = False,
) -> nn.Module:
    r"""Over-parameterize the layers of `model` in place: w = R v with v fixed and R learned (7.1).

    Nothing is touched if any layer cannot be rotated as asked.

    Args:
        model: what :func:`hypersphere.finding.find_layers` finds is rotated: convolutions of any
            dimension and groups, linear and decoupled layers, the Conv1D of Hugging Face, the
            projections of nn.MultiheadAttention and recurrent cells; one R for all neurons of a
            layer (q, k and v of an attention, and the gates of a cell, count as layers). Of a
            layer wrapped by LoRA the base is rotated.
        method: how R is made from its parameter U:

            - a name of :func:`hypersphere.functional.orthogonalize`;
            - "ogd": R = U, to be trained with :class:`OGD` (7.6); another optimizer raises at its
              first step;
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
        targets: names of modules to rotate, as PEFT's target_modules: whole names, last parts
            ("q_proj") or patterns ("*.attn.*"), or one regular expression for whole names, or
            "all-linear", which leaves the output layer out as the default does.
            Embeddings and bilinear layers are rotated only if named here. Default: all layers but
            those of `skip`.
        structure: "blocks" (F.33, F.34); "butterfly", a product of block-diagonal factors over
            wider and wider strides (BOFT); "reflections", a product of `rank` of them (HRA).
        side: "weight" turns the neurons, w = R v; "input" turns the inputs, y = W (R^T x), and
            leaves the weight untouched, be it frozen, quantized, sharded or shared (linear layers
            and 1x1 convolutions with start="identity"); "auto" takes the cheaper side, which is
            the inputs' where a block is at most a quarter as long as the layer has neurons, or
            where the weight cannot be turned, and the weights' elsewhere.
        both_sides: W = P W_0 R^T with a second orthogonal matrix P that mixes the neurons: the
            singular values of W stay, the energy does not (POET). See :func:`restart`.
        rank: number of reflections, even.
        factors: factors of the butterfly. Default: as many as the blocks allow, which connects
            every input to every output if their number is a power of two.
        verbose: print what is rotated, on which side, and what is left out and why; see
            :func:`plan_rotation`.

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
    form = Form(method, blocks, share_blocks, structure, factors, rank, both_sides, bandwidth)
    check_not_replicated(model)
    unit_norm = start != "identity" if normalize is None else normalize
    plan = plan_rotation(
        model, method, blocks, share_blocks, start, skip, targets, structure, side, both_sides,
        rank, factors, normalize, refine, learn_neurons, bandwidth, refine_steps, generator,
        learn_lengths, verbose,
    )  # fmt: skip
    warn_of_memory(plan, MEMORY_WARNING)
    warn_of_fewer_blocks(plan)

    def prepared(layer: PlannedLayer) -> tuple[PlannedLayer, Rotation, Tensor | None]:
        """The rotation and, if they are not the weight as it is, the neurons."""
        site = layer.site
        if layer.side == "input":
            return layer, _input_rotation(layer, generator), None
        layout, weight = site.layout, getattr(site.module, site.parameter)
        rows = layout.rows(weight.detach())
        before = rows
        rows = unit(rows) if unit_norm else rows
        if refine is not None:
            rows = refine_neurons(rows, layout.sets, refine == "half_space_mhe", refine_steps)
        rows, first = start_neurons(form, layout, rows, start, generator)
        # The energy at the start is that of the neurons, unless they or R may change it.
        constant = not learn_neurons and (start != "normal" or method in CONSTRUCTED)
        value = float("nan") if constant else energy(first(rows), layout.sets)
        rotation = Rotation(layout, first, value, weight.requires_grad, learn_lengths)
        rotation.to(weight.device)
        changed = start != "identity" or unit_norm or refine is not None
        rotation.moved_neurons.fill_(rows is not before and changed)
        if learn_lengths:
            rotation.to(torch.promote_types(weight.dtype, torch.float32))
            rows = rotation.take_lengths(rows)
        if not isinstance(first, MAPS):
            rotation(layout.weight(rows))  # the caller's own T(v) may not fit
        return layer, rotation, None if rows is before else layout.weight(rows).contiguous()

    with torch.no_grad():
        everything = [prepared(layer) for layer in plan]
    _attach_all(everything, learn_neurons)
    watch_optimizers()
    install_plain_files(model)
    return model


def plan_rotation(
    model: nn.Module,
    method: str | Callable[[Tensor], Tensor] = "cayley",
    blocks: int = 1,
    share_blocks: bool = False,
    start: str = "random",
    skip: Collection[str] | None = None,
    targets: str | Collection[str] | None = None,
    structure: str = "blocks",
    side: str = "auto",
    both_sides: bool = False,
    rank: int = 8,
    factors: int | None = None,
    normalize: bool | None = None,
    refine: str | None = None,
    learn_neurons: bool = False,
    bandwidth: int = 1,
    refine_steps: int = 1000,
    generator: torch.Generator | None = None,
    learn_lengths: bool = False,
    verbose: bool = False,
) -> RotationPlan:
    """What :func:`rotate` would do with the same arguments; the model is left as it is.

    Args:
        model: any model.
        method: as in :func:`rotate`.
        blocks: as in :func:`rotate`.
        share_blocks: as in :func:`rotate`.
        start: as in :func:`rotate`.
        skip: as in :func:`rotate`.
        targets: as in :func:`rotate`.
        structure: as in :func:`rotate`.
        side: as in :func:`rotate`.
        both_sides: as in :func:`rotate`.
        rank: as in :func:`rotate`.
        factors: as in :func:`rotate`.
        normalize: as in :func:`rotate`.
        refine: as in :func:`rotate`.
        learn_neurons: as in :func:`rotate`.
        bandwidth: as in :func:`rotate`.
        refine_steps: changes nothing here.
        generator: changes nothing here.
        learn_lengths: as in :func:`rotate`.
        verbose: print the plan.

    Returns:
        The plan: which layers, on which side, with which R; what is left out and why. It prints as
        a table.

    >>> net = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> print(plan_rotation(net, blocks=2, start="identity"))
    layer  what             side   R                 trained  remarks
    1      linear 8 x 4     input  cayley, 2 blocks  2
    0      Embedding(9, 4)  -      left out                   embedding: name it in targets
    3      linear 3 x 8     -      left out                   output layer
    """
    form = Form(method, blocks, share_blocks, structure, factors, rank, both_sides, bandwidth)
    check_refine(refine)
    unit_norm = start != "identity" if normalize is None else normalize
    needs_weight = _needs_weight(form, start, unit_norm, refine, learn_neurons, learn_lengths)
    plan = make_plan(model, form, start, side, skip, targets, needs_weight, learn_lengths)
    if verbose:
        print(plan)
    return plan


def _needs_weight(
    form: Form,
    start: str,
    unit_norm: bool,
    refine: str | None,
    learn_neurons: bool,
    learn_lengths: bool,
) -> str:
    """The first argument that changes the weight itself, as text; empty if none does."""
    changes = {
        "a function T(v)": not isinstance(form.method, str),
        f"method={form.method!r}": form.method in TURNED_START and form.structure != "reflections",
        f"start={start!r}": start != "identity",
        "normalize=True": unit_norm,
        f"refine={refine!r}": refine is not None,
        "learn_neurons=True": learn_neurons,
        "learn_lengths=True": learn_lengths,
        "both_sides=True": form.both_sides,
    }
    return next((text for text, yes in changes.items() if yes), "")


def _input_rotation(layer: PlannedLayer, generator: torch.Generator | None) -> Rotation:
    module, layout = layer.site.module, layer.site.layout
    # Some quantized layers have no parameters, or no tensors at all.
    tensors = (*module.parameters(), *module.buffers())
    device = tensors[0].device if tensors else torch.device("cpu")
    weight = getattr(module, layer.site.parameter, None)
    known = isinstance(weight, Tensor) and weight.dtype == torch.float64
    dtype = torch.float64 if known else torch.float32
    nothing = torch.empty(0, layout.dim, device=device, dtype=dtype)
    sharded = layer.site.state == "sharded"
    if sharded and generator is None:  # every rank draws the same
        generator = torch.Generator().manual_seed(0)
    _, first = start_neurons(layer.form, layout, nothing, "identity", generator)
    trainable = isinstance(weight, Tensor) and weight.requires_grad
    rotation = Rotation(layout, first, trainable=trainable, side="input").to(device)
    if sharded:
        average_over_ranks(rotation, weight)
    return rotation


def _attach_all(
    everything: list[tuple[PlannedLayer, Rotation, Tensor | None]], learn_neurons: bool
) -> None:
    """Attach all rotations, or none if one fails."""
    undo: list[Callable[[], Any]] = []
    try:
        for layer, rotation, neurons in everything:
            module, parameter = layer.site.module, layer.site.parameter
            rotation.train(module.training)
            weight = getattr(module, parameter, None)
            trained = isinstance(weight, Tensor) and weight.requires_grad
            if layer.side == "input":
                attach_input_rotation(module, rotation)
                undo.append(partial(detach_input_rotation, module))
                # The base stays as it is; what makes a computed weight, or shares a tied one, is
                # the caller's.
                if isinstance(weight, Tensor) and trained and layer.site.state in _OWN:
                    weight.requires_grad_(False)
                    undo.append(partial(weight.requires_grad_, True))
                continue
            assert isinstance(weight, nn.Parameter)
            if neurons is not None:
                undo.append(partial(setattr, weight, "data", weight.data))
                weight.data = neurons
            rotation.holds_neurons = True
            # unsafe only skips torch's own trial run, which would form R
            parametrize.register_parametrization(module, parameter, rotation, unsafe=True)
            rotation.holds_neurons = False
            undo.append(partial(unparametrized, module, parameter, weight, trained))
            chain: Any = cast(Any, module.parametrizations)[parameter]
            chain.original.requires_grad_(learn_neurons)
    except BaseException:
        for step in reversed(undo):
            step()
        raise
