"""Which layers `rotate` takes, and on which side of their weights."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import replace
from fnmatch import fnmatchcase

from torch import nn

from ..finding import LeftOut, Site, find_layers
from ..registry import nearest
from .input_side import why_no_inputs
from .rotation import INPUT_ROTATION

__all__ = ["SIDES", "choose_side", "chosen_sites"]

ALL_LINEAR = "all-linear"  # PEFT's word for it
SIDES = ("weight", "input", "auto")
# On the input side a row costs block length / neurons more than the layer alone. Up to this share
# it is the cheaper side for any number of rows but the largest.
_CHEAP_INPUTS = 4


def chosen_sites(
    model: nn.Module,
    skip: Collection[str] | None = None,
    targets: str | Collection[str] | None = None,
) -> tuple[list[Site], list[LeftOut]]:
    """(sites to rotate, everything else with the reason).

    Args:
        model: any module.
        skip: names of modules to leave alone. Default: the output layer, unless targets are given.
        targets: names or patterns of modules to take; a string is a regular expression for whole
            names, or "all-linear". Default: all.
    """
    if targets is not None and not targets:
        raise ValueError("targets is empty: name modules, or leave it out to rotate all layers")
    all_linear = targets == ALL_LINEAR
    targets = None if all_linear else targets
    findings = find_layers(model, embeddings=targets is not None, lora="base")
    found, left_out = findings.sites, [_in_our_words(x) for x in findings.left_out]
    if not found:
        seen = "; ".join(f"{x.name or type(model).__name__}: {x.reason}" for x in left_out[:5])
        raise ValueError(
            f"{type(model).__name__} has no convolution, linear layer or attention to rotate"
            + (f" ({seen})" if seen else "")
        )
    names = _all_names(model)
    _check_names(model, found, skip)
    wanted = _target_test(model, found, targets)
    lone = len(found) == 1 and getattr(found[0].module, "neuron_role", None) != "output"
    chosen = []
    for site in found:
        if targets is not None:
            reason = "" if any(map(wanted, names[site.name])) else "not in targets"
        else:
            reason = _why_not_by_default(site, skip, lone)
            if all_linear and site.kind not in ("linear", "Conv1D"):
                reason = "not linear"
        if skip and any(_matches(own, name) for name in skip for own in names[site.name]):
            reason = "in skip"
        if reason:
            size = f"{site.layout.sets * site.layout.neurons} x {site.layout.dim}"
            left_out.append(LeftOut(site.label, f"{site.kind} {size}", reason))
        else:
            chosen.append(site)
    return chosen, left_out


def _in_our_words(left_out: LeftOut) -> LeftOut:
    if left_out.reason == "embeddings=False":  # an argument of find_layers
        return replace(left_out, reason="embedding: name it in targets")
    return left_out


def _why_not_by_default(site: Site, skip: Collection[str] | None, lone: bool) -> str:
    own_kind = site.kind != "linear" or isinstance(site.module, nn.Linear)
    if site.copy:
        return "a copy that PEFT trains whole"
    if site.kind == "bilinear":
        return "bilinear: name it in targets"
    if site.state == "packed":
        return site.note
    if site.role == "output" and not lone and (skip is None or not own_kind):
        return "output layer"
    return ""


def _all_names(model: nn.Module) -> dict[str, list[str]]:
    """All names of every module, by its first one: a module may be used twice."""
    first = {id(module): name for name, module in model.named_modules()}
    names: dict[str, list[str]] = {name: [] for name in first.values()}
    for name, module in model.named_modules(remove_duplicate=False):
        names[first[id(module)]].append(name)
    return names


def _check_names(model: nn.Module, found: list[Site], skip: Collection[str] | None) -> None:
    if isinstance(skip, str):
        raise ValueError(f"skip expects a tuple of module names; got the string {skip!r}")
    names = [name for name, _ in model.named_modules(remove_duplicate=False)]
    for name in skip or ():
        if not any(_matches(other, name) for other in names):
            layers = ", ".join(site.label for site in found)
            raise ValueError(
                f"skip names {name!r}, which is not a module; the layers are: {layers}"
            )


def _target_test(
    model: nn.Module, found: list[Site], targets: str | Collection[str] | None
) -> Callable[[str], bool]:
    """A function that says whether a name is among the targets, each of which must fit a layer."""
    if targets is None:
        return lambda name: True
    if isinstance(targets, str):
        try:
            re.compile(targets)
        except re.error as error:
            raise ValueError(
                f"targets={targets!r} is a string, thus a regular expression, and no valid one "
                f"({error}); pass a list for names and patterns such as '*.attn.*'"
            ) from None
    fits = _is_whole_match if isinstance(targets, str) else _matches
    patterns = [targets] if isinstance(targets, str) else list(targets)
    names = _all_names(model)
    layers = [name for site in found for name in names[site.name]]
    for target in patterns:
        if any(fits(name, target) for name in layers):
            continue
        modules = dict(model.named_modules(remove_duplicate=False))
        others = [f"{n} ({type(m).__name__})" for n, m in modules.items() if fits(n, target)]
        if others:
            raise ValueError(
                f"targets names {target!r}, which is no layer that can be rotated: {others[0]}"
            )
        near = nearest(target, [name.rpartition(".")[2] for name in layers])
        hint = f"; did you mean {near!r}?" if near else ""
        if isinstance(targets, str):
            raise ValueError(
                f"targets={target!r} is a regular expression for whole names, and fits none; pass "
                f"a list for names and their last parts, targets=[{target!r}]; the layers are: "
                f"{', '.join(layers)}"
            )
        raise ValueError(
            f"targets names {target!r}, which is not a module{hint}; the layers are: "
            f"{', '.join(layers)}"
        )
    return lambda name: any(fits(name, target) for target in patterns)


def _is_whole_match(module: str, expression: str) -> bool:
    return re.fullmatch(expression, module) is not None


def _matches(module: str, name: str) -> bool:
    """`fc` means any module of that name, and everything below it."""
    if f".{name}." in f".{module}.":
        return True
    return any(sign in name for sign in "*?[") and fnmatchcase(module, name)


def choose_side(site: Site, side: str, needs_weight: str, block_length: int) -> tuple[str, str]:
    """(side, reason why it is impossible or "").

    Args:
        site: the layer.
        side: as asked: "weight", "input" or "auto".
        needs_weight: an argument that changes the weight itself, such as "start='random'"; or "".
        block_length: numbers that a block of R turns at once.
    """
    if INPUT_ROTATION in site.module._modules or (side == "input" and _is_rotated(site)):
        return side, f"{site.label} is rotated already: fold(model) it first"
    no_inputs = why_no_inputs(site)
    if side == "input" and no_inputs:
        return side, f"{site.label}: {no_inputs}; name it in skip, or use side='auto'"
    no_inputs = no_inputs or (needs_weight and f"{needs_weight} changes the weight")
    if side == "input":
        way = "start='identity'" if needs_weight.startswith("start=") else "side='weight'"
        return side, f"{site.label}: {no_inputs}; pass {way}" if no_inputs else ""
    if site.state == "plain":
        cheap = _CHEAP_INPUTS * block_length <= site.layout.neurons
        return "input" if side == "auto" and not no_inputs and cheap else "weight", ""
    if side == "auto" and not no_inputs and not _is_rotated(site):
        return "input", ""
    return "weight", _why_no_weight(site, why_no_inputs(site), needs_weight)


def _is_rotated(site: Site) -> bool:
    return "Rotation" in site.note


def _why_no_weight(site: Site, no_inputs: str, needs_weight: str) -> str:
    ways = [f"name {site.label} in skip"]
    if not no_inputs:
        still = f" (without {needs_weight})" if needs_weight else ""
        ways.insert(0, f"turn its inputs with side='input', start='identity'{still}")
    if site.note.startswith("parametrized") or "; parametrized" in site.note:
        return (
            f"{site.label} has a parametrized weight already: fold(model) a rotated model, "
            f"remove other parametrizations, or {', or '.join(ways)}"
        )
    if site.state == "tied":
        names = site.note.partition("one tied weight: ")[2]
        return f"{names} are one tied weight; rotating one would untie it: {', or '.join(ways)}"
    if site.state == "sharded":
        ways.insert(0, "rotate before fully_shard")
    if site.note.startswith("legacy"):
        ways.insert(0, f"remove {site.note.removeprefix('legacy ')} first")
    return f"the weight of {site.label} cannot be turned ({site.note}): {', or '.join(ways)}"
