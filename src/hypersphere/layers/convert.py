"""Swap the layers of any model for decoupled ones in place, weights kept, and back (4.4.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from torch import nn
from torch.nn import functional as F

from ..finding import Findings, Site, find_layers
from ..functional.decoupled import Weighted
from ..registry import nearest
from .angular import Angular, AngularLike, make_angular
from .decoupled import (
    DecoupledConv1d,
    DecoupledConv2d,
    DecoupledConv3d,
    DecoupledLayer,
    DecoupledLinear,
)
from .magnitude import Magnitude, MagnitudeLike, make_magnitude
from .operator import RescaleLike

__all__ = ["Swap", "convert", "revert"]

_DECOUPLED: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv1d: DecoupledConv1d,
    nn.Conv2d: DecoupledConv2d,
    nn.Conv3d: DecoupledConv3d,
    nn.Linear: DecoupledLinear,
}
_LAYERS = tuple(_DECOUPLED)
_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_is_full_backward_hook",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)
SHORTCUTS = ("*downsample*", "*shortcut*", "*skip*", "*projection*")


class Swap(NamedTuple):
    """What happened to one layer.

    Args:
        name: its name in the model.
        before: what it was.
        after: what it is now; empty if it stayed.
        reason: why it stayed; empty if it was swapped.
    """

    name: str
    before: str
    after: str
    reason: str


def convert(
    model: nn.Module,
    magnitude: MagnitudeLike = "sphere",
    angular: AngularLike = "cosine",
    weighted: Weighted | None = None,
    rescale: RescaleLike = False,
    skip: Sequence[str] = (),
    shortcuts: bool = True,
    linear: bool = False,
    shortcut_names: Sequence[str] = SHORTCUTS,
    verbose: bool = True,
    output: bool = False,
) -> nn.Module:
    """Make every convolution (and, with linear=True, linear layer) of a model decoupled, in place.

    The new layers hold the very parameters of the old ones, so a pretrained network becomes the
    start of a decoupled one (4.4.3), and an optimizer made before goes on working. Layers whose
    weight is computed (parametrizations, attention projections), quantized or sharded, those inside
    adapters of PEFT, those whose inputs are rotated, transposed convolutions and other kinds that
    have no decoupled form stay, and are named with the reason. Nothing is swapped if a layer fails.

    Args:
        model: any module; a layer is replaced itself.
        magnitude: as in :class:`DecoupledConv2d`. An instance is copied for each layer.
        angular: as in :class:`DecoupledConv2d`. An instance is copied for each layer, except
            SigmoidAngular(learnable=True, share="network"), which all of them share.
        weighted: as in :class:`DecoupledConv2d`.
        rescale: as in :class:`DecoupledConv2d`.
        skip: names of modules to leave, with everything below them; patterns as in file names:
            "fc", "layer1.*.conv1", "*.attn". One that fits no module is an error.
        shortcuts: False leaves the 1x1 convolutions on shortcuts plain (SphereResNet v2 of 3.4.6),
            True converts them too (v1).
        linear: whether linear layers are converted, too.
        shortcut_names: patterns by which shortcuts are recognized.
        verbose: print what was swapped and what was not.
        output: whether the output layer is converted, too. It is what declares
            `neuron_role = "output"`, else the last linear layer; its logits would lie in [-1, 1].
            A model that is itself a layer is always converted.

    Returns:
        The model; a new layer if the model is itself a layer.

    Raises:
        ValueError: if a pattern in skip fits no module, with the nearest name.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
    >>> net = convert(net, "tanh")
    layer  before             after
    0      Conv2d(3, 8, 3x3)  DecoupledConv2d(tanh, cosine)
    3      Linear(8, 2)       stays: linear=False
    """
    if isinstance(skip, str):
        raise TypeError(f"skip expects a sequence of names, got the string {skip!r}")
    _check_names(model, skip)
    magnitude, angular = make_magnitude(magnitude), make_angular(angular)
    account: list[Swap] = []
    swapped: dict[int, nn.Module] = {}
    findings = find_layers(model)
    sites = {id(site.module): site for site in findings}

    def swap(layer: nn.Module, name: str) -> nn.Module | None:
        if id(layer) in swapped:  # one layer under two names stays one layer
            return swapped[id(layer)]
        reason = _reason_to_stay(layer, name, skip, shortcuts, linear, shortcut_names)
        if reason is None and layer is not model:
            reason = _reason_of_place(sites.get(id(layer)), output)
        if reason is None:
            new = _decoupled_twin(layer, magnitude, angular, weighted, rescale)
            swapped[id(layer)] = new
            after = _describe(new)
            account.append(Swap(name, _describe(layer), after, ""))
            return new
        account.append(Swap(name, _describe(layer), "", reason))
        return None

    model = _replace(model, swap)
    account += _without_decoupled_form(findings, skip)
    if verbose:
        _print(account)
    return model


def revert(model: nn.Module, verbose: bool = True) -> nn.Module:
    """Make every decoupled layer of a model the plain torch layer again, in place, weights kept.

    What only the operator had (k, radius, rescaling) is dropped. Outputs stay the same only where
    the operator was a plain inner product: linear magnitude, cosine, linear weighting. Layers whose
    weight is computed (parametrizations) stay: remove those first.

    Args:
        model: any module; a layer is replaced itself.
        verbose: print what was swapped and what was not.

    Returns:
        The model; a new layer if the model is itself a layer.

    >>> net = revert(convert(nn.Sequential(nn.Conv2d(3, 8, 3)), verbose=False))
    layer  before                           after
    0      DecoupledConv2d(sphere, cosine)  Conv2d(3, 8, 3x3)
    """
    account: list[Swap] = []
    swapped: dict[int, nn.Module] = {}

    def swap(layer: nn.Module, name: str) -> nn.Module | None:
        if not isinstance(layer, tuple(_DECOUPLED.values())):
            return None
        if not {"weight", "bias"} <= layer._parameters.keys():
            account.append(Swap(name, _describe(layer), "", "its weight or bias is computed"))
            return None
        if id(layer) not in swapped:
            new = swapped[id(layer)] = _plain_twin(layer)
            account.append(Swap(name, _describe(layer), _describe(new), ""))
        return swapped[id(layer)]

    model = _replace(model, swap)
    if verbose:
        _print(account)
    return model


def _replace(model: nn.Module, swap: Callable[[nn.Module, str], nn.Module | None]) -> nn.Module:
    if isinstance(model, _LAYERS):
        return swap(model, "") or model
    # All twins are made before the first of them takes its place.
    places: list[tuple[nn.Module, str, nn.Module]] = []
    for prefix, parent in model.named_modules():
        for name, child in parent._modules.items():
            if isinstance(child, _LAYERS):
                new = swap(child, f"{prefix}.{name}" if prefix else name)
                places += [] if new is None else [(parent, name, new)]
    for parent, name, new in places:
        parent._modules[name] = new
    for parent in list(model.modules()):
        if isinstance(parent, nn.TransformerEncoderLayer):
            _choose_path(parent)
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder):
            _choose_nesting(module)
    return model


def _reason_to_stay(
    layer: nn.Module,
    name: str,
    skip: Sequence[str],
    shortcuts: bool,
    linear: bool,
    shortcut_names: Sequence[str],
) -> str | None:
    if _matches(name, skip):
        return "in skip"
    if isinstance(layer, tuple(_DECOUPLED.values())):
        return "decoupled already"
    if type(layer) not in _DECOUPLED or "weight" not in layer._parameters:
        return f"{type(layer).__name__} is more than a plain layer"
    if layer._modules:  # a twin would lose them
        return f"has modules of its own: {', '.join(layer._modules)}"
    if isinstance(layer, nn.Linear):
        return None if linear else "linear=False"
    pointwise = all(size == 1 for size in layer.kernel_size)  # type: ignore[union-attr]
    if pointwise and not shortcuts and _matches(name, shortcut_names):
        return "1x1 shortcut"
    return None


def _reason_of_place(site: Site | None, output: bool) -> str | None:
    """Why a layer stays for where it stands in the model, or for what its weight is."""
    if site is None or "LoRA" in site.note or site.note.startswith("base of"):
        return "part of an adapter or its frozen copy"
    if site.state in ("quantized", "sharded"):
        return site.note
    return "output layer: output=True converts it" if site.role == "output" and not output else None


def _without_decoupled_form(findings: Findings, skip: Sequence[str]) -> list[Swap]:
    """Layers of kinds that nothing above has looked at."""
    stay = []
    for site in findings:
        if not isinstance(site.module, _LAYERS):
            layout = site.layout
            before = f"{type(site.module).__name__}({layout.dim}, {layout.sets * layout.neurons})"
            reason = (
                "in skip" if _matches(site.name, skip) else f"{site.kind} has no decoupled form"
            )
            stay.append(Swap(site.label, before, "", reason))
    unknown = [x for x in findings.left_out if x.reason.startswith("unknown")]
    return stay + [Swap(x.name, x.what, "", "unknown layer") for x in unknown]


def _decoupled_twin(
    layer: nn.Module,
    magnitude: Magnitude,
    angular: Angular,
    weighted: Weighted | None,
    rescale: RescaleLike,
) -> nn.Module:
    new = _DECOUPLED[type(layer)](
        **_arguments(layer),
        magnitude=magnitude,
        angular=angular,
        weighted=weighted,
        rescale=rescale,
    )
    return _take_over(new, layer)


def _plain_twin(layer: nn.Module) -> nn.Module:
    plain = next(base for base in type(layer).__mro__ if base in _DECOUPLED)
    return _take_over(plain(**_arguments(layer)), layer)


def _arguments(layer: nn.Module) -> dict[str, Any]:
    names = ["in_features", "out_features"]
    if not isinstance(layer, nn.Linear):
        names = ["in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation"]
        names += ["groups", "padding_mode"]
    weight = layer.weight
    return {name: getattr(layer, name) for name in names} | {
        "bias": layer.bias is not None,
        "device": weight.device,
        "dtype": weight.dtype,
    }


def _take_over(new: nn.Module, old: nn.Module) -> nn.Module:
    """Give new the parameters, the mode and the hooks of old; their handles go on working."""
    new.weight, new.bias = old.weight, old.bias
    for name in _HOOKS:
        setattr(new, name, getattr(old, name))
    if "neuron_role" in vars(old):  # declared by the caller
        new.neuron_role = old.neuron_role
    return new.train(old.training)


def _choose_path(layer: nn.TransformerEncoderLayer) -> None:
    """In evaluation torch would compute w^T x from the weights, past our layers; forbid it."""
    decoupled = isinstance(layer.linear1, DecoupledLinear) or isinstance(
        layer.linear2, DecoupledLinear
    )
    if decoupled:
        layer.activation_relu_or_gelu = 0
    elif layer.activation_relu_or_gelu == 0:
        layer.activation_relu_or_gelu = {F.relu: 1, F.gelu: 2}.get(layer.activation, 0)


def _choose_nesting(encoder: nn.TransformerEncoder) -> None:
    """In evaluation torch would pack padded batches for its own path, which ours cannot read."""
    if any(isinstance(module, tuple(_DECOUPLED.values())) for module in encoder.modules()):
        vars(encoder).setdefault("_nested_before", encoder.use_nested_tensor)
        encoder.use_nested_tensor = False
    elif "_nested_before" in vars(encoder):
        encoder.use_nested_tensor = vars(encoder).pop("_nested_before")


def _check_names(model: nn.Module, skip: Sequence[str]) -> None:
    names = [name for name, _ in model.named_modules()]
    layers = [name for name, module in model.named_modules() if isinstance(module, _LAYERS)]
    for pattern in skip:
        if not any(_matches(name, [pattern]) for name in names):
            near = nearest(pattern, names)
            hint = f"; did you mean {near!r}?" if near else ""
            raise ValueError(
                f"skip names {pattern!r}, which is not a module{hint} "
                f"(the layers are: {', '.join(layers) or 'none'})"
            )


def _matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether a pattern fits the name or that of a module it lies in."""
    parts = name.split(".")
    prefixes = [".".join(parts[: i + 1]) for i in range(len(parts))]
    return any(fnmatchcase(prefix, pattern) for prefix in prefixes for pattern in patterns)


def _describe(layer: nn.Module) -> str:
    if isinstance(layer, DecoupledLayer):
        op = layer.operator
        return f"{type(layer).__name__}({_name(op.magnitude.kind)}, {_name(op.angular.kind)})"
    if isinstance(layer, nn.Linear):
        return f"{type(layer).__name__}({layer.in_features}, {layer.out_features})"
    assert isinstance(layer, (nn.Conv1d, nn.Conv2d, nn.Conv3d))
    size = "x".join(map(str, layer.kernel_size))
    return f"{type(layer).__name__}({layer.in_channels}, {layer.out_channels}, {size})"


def _name(kind: object) -> str:
    return kind if isinstance(kind, str) else getattr(kind, "__name__", type(kind).__name__)


def _print(account: Sequence[Swap]) -> None:
    rows = [("layer", "before", "after")]
    rows += [(s.name or "(the model)", s.before, s.after or f"stays: {s.reason}") for s in account]
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    for name, before, after in rows:
        print(f"{name:{widths[0]}}  {before:{widths[1]}}  {after}")
