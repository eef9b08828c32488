"""After training: plain layers again. Between tasks: another R over the same neurons (F.8)."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ..finding import weight_state
from .input_side import average_over_ranks, detach_input_rotation, effective_weight
from .rotation import Rotation, required_rotations
from .task_values import exchange_values, forget_values

__all__ = ["add_task", "fold", "tied_names", "unparametrized", "use_task", "why_not_written"]


@torch.no_grad()
def fold(model: nn.Module) -> nn.Module:
    """Multiply R into the neurons, in place: plain layers, the original keys, the same outputs.

    The current task's R is the one folded. Folding and rotating again with start="identity" is
    progressive training (F.8). A weight that was frozen, before `rotate` or since, stays frozen;
    copies of the model stay rotated. A weight that cannot be rewritten (quantized, sharded, or made
    by another parametrization) raises, and nothing is folded; one that is tied to another gets a
    parameter of its own.

    Args:
        model: a rotated model.

    Returns:
        The model.

    >>> from hypersphere.orthogonal import rotate
    >>> layer = nn.Linear(6, 4)
    >>> x = torch.randn(2, 6)
    >>> y = rotate(layer)(x)
    >>> torch.equal(fold(layer)(x), y), list(layer.state_dict())
    (True, ['weight', 'bias'])
    """
    found = required_rotations(model)
    refused = [f"{item[0]} ({why})" for item in found if (why := why_not_written(*item[1:]))]
    if refused:
        raise ValueError(
            f"cannot fold into {', '.join(refused[:5])}: such a weight cannot be rewritten, so R "
            f"stays beside it; keep what was trained with save_adapter(model, folder), or fold the "
            f"model before that"
        )
    # All weights first: nothing is folded if one of them fails.
    weights = [effective_weight(*item[1:]).detach().clone() for item in found]
    for (_, module, parameter, rotation), weight in zip(found, weights, strict=True):
        if rotation.side == "input":
            frozen = not any(p.requires_grad for p in rotation.parameters())
            detach_input_rotation(module)
            own: Any = getattr(module, parameter)
            trainable = rotation.trainable and not frozen
            # A parameter of its own: a tied one keeps its values elsewhere.
            setattr(module, parameter, nn.Parameter(weight.to(own.dtype), trainable))
            continue
        chain: Any = cast(Any, module.parametrizations)[parameter]
        frozen = bool(list(rotation.map.parameters())) and not any(
            p.requires_grad for p in chain.parameters()
        )
        unparametrized(module, parameter, weight, rotation.trainable and not frozen)
    forget_values(model)  # there are no tasks any more
    return model


def unparametrized(module: nn.Module, parameter: str, weight: Tensor, trainable: bool) -> None:
    """A plain parameter again, in its place among the others.

    Args:
        module: whose weight is parametrized.
        parameter: its name.
        weight: its values; a parameter itself takes its place as it is.
        trainable: whether it will be trained.
    """
    # Copies of a module share the class from which torch is about to remove the property.
    shared = type(module)
    module.__class__ = type(shared.__name__, shared.__bases__, dict(vars(shared)))
    parametrize.remove_parametrizations(module, parameter, leave_parametrized=False)
    plain = weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight, trainable)
    plain.requires_grad_(trainable)
    # Registered anew it would follow the bias; keys keep the order of the plain layer.
    others = {k: v for k, v in module._parameters.items() if k != parameter}
    module._parameters.clear()
    for name in _plain_order(module, parameter, list(others)):
        module._parameters[name] = plain if name == parameter else others[name]


def why_not_written(module: Any, parameter: str, rotation: Rotation) -> str:
    """Why the weight of a rotated layer cannot be rewritten; empty if it can."""
    if rotation.side == "weight":
        return ""
    state, remark, _ = weight_state(module, parameter, {})
    return "" if state == "plain" else remark


def tied_names(model: nn.Module, module: nn.Module, parameter: str) -> str:
    """Which other name the weight of an input rotation has, as a remark; empty if none."""
    own = module._parameters.get(parameter)
    if own is None:
        return ""
    names = [  # each module once: twice used is not tied
        f"{name}.{key}".lstrip(".")
        for name, part in model.named_modules()
        for key, value in part._parameters.items()
        if value is own
    ]
    return f"{' and '.join(names)} are one tied weight" if len(names) > 1 else ""


def _plain_order(module: nn.Module, parameter: str, others: list[str]) -> list[str]:
    if isinstance(module, nn.RNNCellBase):
        known = ["weight_ih", "weight_hh", "bias_ih", "bias_hh"]
        return [k for k in known if k in {parameter, *others}]
    if isinstance(module, nn.MultiheadAttention):
        known = [
            "in_proj_weight",
            "q_proj_weight",
            "k_proj_weight",
            "v_proj_weight",
            "in_proj_bias",
            "bias_k",
            "bias_v",
        ]
        everything = {parameter, *others}
        return [k for k in known if k in everything] + [k for k in others if k not in known]
    return [parameter, *others]


def add_task(model: nn.Module, name: str, source: str | None = None) -> nn.Module:
    """Give every rotated layer an R for the task `name`, starting as a copy of `source`'s.

    The new R is trained once :func:`use_task` makes it current.

    Args:
        model: a rotated model.
        name: of the new task, not empty and without a dot.
        source: task whose R is copied. Default: the current one.

    Returns:
        The model.

    >>> from hypersphere.orthogonal import rotate
    >>> model = use_task(add_task(rotate(nn.Linear(6, 4)), "birds"), "birds")
    """
    found = required_rotations(model)
    for _, _, _, rotation in found:  # all or none
        rotation.check_new_task(name, source)
    for _, _, _, rotation in found:
        rotation.add_task(name, source)
    return model


def use_task(model: nn.Module, name: str) -> nn.Module:
    """Make `name` the current task: its R turns the neurons, and is the one that is trained.

    The task every rotated model starts with is called "default". Give the optimizer the
    parameters of a task after making it current (`parameter_groups(model)`). What else its adapter
    brought (:func:`load_adapter`: classifier, norms) takes its place, too.

    Args:
        model: a rotated model.
        name: of a task it has.

    Returns:
        The model.
    """
    found = required_rotations(model)
    before = found[0][3].task
    for _, _, _, rotation in found:  # all or none
        rotation.check_task(name)
    for _, module, parameter, rotation in found:
        rotation.use_task(name)
        average_over_ranks(rotation, getattr(module, parameter, None))
    exchange_values(model, before, name)
    return model
