"""What every network is made of: the style of its layers, and the checks they share."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..functional.angular import angular_function
from ..registry import names

SHARES = ("filter", "layer", "network")
NORMS = ("batch", "layer", "none")
ACTIVATIONS = ("relu", "prelu", "leaky_relu", "none")
_NORM_LAYERS = {0: nn.BatchNorm1d, 1: nn.BatchNorm1d, 2: nn.BatchNorm2d}


def unknown(kind: str, value: object, allowed: Iterable[str]) -> ValueError:
    """The error for a name that is not known: it gives the nearest one, then all of them."""
    names = list(allowed)
    near = difflib.get_close_matches(str(value), names, n=1, cutoff=0.5)
    hint = f" did you mean {near[0]!r}?" if near else ""
    return ValueError(f"unknown {kind} {value!r};{hint} known: {', '.join(names)}")


@dataclass(frozen=True)
class Style:
    """How the layers of a network are made; the shape of the network is not its business.

    - ``operator``: None or "plain" for the inner product; a magnitude by name ("sphere" "ball"
      "tanh" "linear" "segmented" "log" "mixed") or an instance of one (Eq. 4.4-4.10), copied for
      each layer; a layer class such as ``SphereConv2d``, used wherever it is a subclass of the
      plain layer; or a function ``make(plain_class, *arguments, **options)`` giving the layer.
    - ``angular``: the angular activation g (Eq. 4.11-4.14) of decoupled layers, a name, an instance
      or a function of cos(theta). ``k`` is the curvature of the sigmoid, ``learn_k`` learns it per
      "filter", "layer" or "network".
    - ``norm``: "batch", "layer" (over all values of a sample) or "none". ``activation``: "relu"
      "prelu" "leaky_relu" (slope 0.1) "none".
    - ``weighted``, ``rescale``: handed to the decoupled layers (Eq. 4.15, 4.16; Sec. 3.2.5).

    >>> Style(activation="prelu").unit(2, 3, 8, kernel_size=3)
    Sequential(
      (conv): Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), bias=False)
      (norm): BatchNorm2d(8, ...)
      (act): PReLU(num_parameters=8)
    )
    """

    operator: Any = None
    angular: Any = "cosine"
    norm: str = "batch"
    activation: str = "relu"
    k: float | None = None
    learn_k: str | None = None
    weighted: str | None = None
    rescale: bool = False

    def __post_init__(self) -> None:
        operators = ["plain", *names("magnitude")]
        if isinstance(self.operator, str) and self.operator not in operators:
            raise unknown("operator", self.operator, operators)
        if isinstance(self.angular, str) and self.angular not in names("angular"):
            raise unknown("angular activation", self.angular, names("angular"))
        if self.norm not in NORMS:
            raise unknown("norm", self.norm, NORMS)
        if self.activation not in ACTIVATIONS:
            raise unknown("activation", self.activation, ACTIVATIONS)
        if self.learn_k is not None and self.learn_k not in SHARES:
            raise unknown("learn_k", self.learn_k, SHARES)
        if (self.k is not None or self.learn_k) and not self._has_k():
            raise ValueError(
                "k and learn_k belong to angular='sigmoid' (Eq. 4.13); "
                f"got angular={self.angular!r}"
            )

    def _has_k(self) -> bool:
        named = isinstance(self.angular, str)
        return named and angular_function(self.angular).default_k is not None

    @functools.cached_property
    def _angular(self) -> Any:
        # Made once a network: a curvature shared by all layers is the parameter of one object.
        if self.k is None and self.learn_k is None:
            return self.angular
        from ..layers import make_angular

        given = {} if self.k is None else {"k": self.k}
        share: Any = self.learn_k or "layer"
        return make_angular(self.angular, **given, learnable=bool(self.learn_k), share=share)

    @property
    def plain(self) -> bool:
        """Whether the layers are torch's own."""
        return self.operator is None or (
            isinstance(self.operator, str) and self.operator == "plain"
        )

    def make(self, layer: type[nn.Module], *arguments: Any, **options: Any) -> nn.Module:
        """The layer of this style in place of the plain `layer` (Conv1d, Conv2d or Linear)."""
        operator = self.operator
        if self.plain:
            return layer(*arguments, **options)
        made = operator.func if isinstance(operator, functools.partial) else operator
        if isinstance(made, type):
            return (operator if issubclass(made, layer) else layer)(*arguments, **options)
        if inspect.isroutine(made):
            return operator(layer, *arguments, **options)
        from .. import layers  # only decoupled networks need them

        return getattr(layers, "Decoupled" + layer.__name__)(
            *arguments,
            **options,
            magnitude=operator,  # the layers copy what they must not share
            angular=self._angular,
            weighted=self.weighted,
            rescale=self.rescale,
        )

    def conv(
        self,
        dims: int,
        inputs: int,
        outputs: int,
        kernel_size: int = 1,
        stride: int = 1,
        bias: bool = False,
    ) -> nn.Module:
        """A convolution in 1 or 2 dimensions, padded so that stride 1 keeps the size."""
        layer = nn.Conv1d if dims == 1 else nn.Conv2d
        return self.make(
            layer,
            inputs,
            outputs,
            kernel_size,
            stride=stride,
            padding=kernel_size // 2,
            bias=bias,
        )

    def linear(self, inputs: int, outputs: int, bias: bool = False) -> nn.Module:
        return self.make(nn.Linear, inputs, outputs, bias=bias)

    def normalization(self, channels: int, dims: int = 2) -> nn.Module:
        if self.norm == "layer":
            return nn.GroupNorm(1, channels)  # over all values of a sample, a gain per channel
        return nn.Identity() if self.norm == "none" else _NORM_LAYERS[dims](channels)

    def activate(self, channels: int) -> nn.Module:
        if self.activation == "prelu":
            return nn.PReLU(channels)
        if self.activation == "leaky_relu":
            return nn.LeakyReLU(0.1)
        return nn.ReLU() if self.activation == "relu" else nn.Identity()

    def unit(
        self,
        dims: int,
        inputs: int,
        outputs: int,
        kernel_size: int = 1,
        stride: int = 1,
        activate: bool = True,
        normalize: bool = True,
        bias: bool = False,
    ) -> nn.Sequential:
        """Convolution (``dims`` 1, 2) or linear layer (``dims`` 0), then norm, then activation."""
        layer = (
            self.linear(inputs, outputs, bias)
            if dims == 0
            else self.conv(dims, inputs, outputs, kernel_size, stride, bias)
        )
        parts: OrderedDict[str, nn.Module] = OrderedDict()
        parts["linear" if dims == 0 else "conv"] = layer
        if normalize and self.norm != "none":
            parts["norm"] = self.normalization(outputs, dims)
        if activate and self.activation != "none":
            parts["act"] = self.activate(outputs)
        return nn.Sequential(parts)


DEFAULT = Style()
UNNORMALIZED = Style(norm="none")


class Backbone(nn.Module):
    """A network that returns features; the head is separate.

    ``out_features`` is the width of the features, ``input_shape`` the shape of one sample.
    """

    out_features: int
    input_shape: tuple[int, ...]

    def example_inputs(self, batch: int = 2) -> tuple[Tensor, ...]:
        """Inputs of the right shapes, for summaries and exports."""
        device = next(self.parameters()).device
        return (torch.zeros(batch, *self.input_shape, device=device),)


def embedding(
    style: Style,
    inputs: int,
    outputs: int | None,
    normalize: bool,
    bias: bool = False,
    relu: bool = False,
) -> nn.Module:
    """The last fully connected layer: no activation, so features may point anywhere (A.1).

    ``relu`` puts one there all the same, as standard CNNs have it: features of one orthant.
    It is a hidden layer (the classes are the head's), which it says to regularizers and rotations.
    """
    if outputs is None:
        return nn.ReLU() if relu else nn.Identity()
    layer = style.unit(0, inputs, outputs, activate=False, normalize=normalize, bias=bias)
    mark(layer[0], "hidden")
    if relu:
        layer.append(nn.ReLU())
    return layer


def mark(layer: nn.Module, role: str) -> None:
    """Tell regularizers and rotations what the neurons of a layer are: "hidden" or "output"."""
    layer.neuron_role = role  # type: ignore[assignment]


def initialize(model: nn.Module, weight: Callable[[Tensor], object] | None = None) -> None:
    """He et al. [38], N(0, 2 / fan_in), on every layer; biases 0 (Appendix C.1, Sec. 2.2.7)."""
    for module in model.modules():
        if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d, nn.Linear)):
            if weight is None:
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            else:
                weight(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def size_pair(image_size: int | Sequence[int]) -> tuple[int, int]:
    """(height, width) from one number or two."""
    pair = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)
    if len(pair) != 2 or min(pair) < 1:
        raise ValueError(
            f"image_size must be a number or (height, width), both positive; got {image_size}"
        )
    return pair


def halve(size: tuple[int, int], ceil_mode: bool = True) -> tuple[int, int]:
    """The size after a stride of 2: rounded up, as in Caffe and TensorFlow, or down."""
    height, width = (n + 1 if ceil_mode else n for n in size)
    return height // 2, width // 2


def same_length(widths: Sequence[int], depths: Sequence[int]) -> None:
    if len(widths) != len(depths):
        raise ValueError(
            f"widths gives one number of filters per stage; this network has {len(depths)} stages, "
            f"got widths={tuple(widths)}"
        )


def check_images(x: Tensor, channels: int, size: tuple[int, int] | None = None) -> None:
    """Images (B, channels, H, W); `size` is given where a fully connected layer fixes it."""
    fits = x.dim() == 4 and x.shape[1] == channels and (size is None or x.shape[2:] == size)
    if not fits:
        height, width = size or ("H", "W")
        raise ValueError(
            f"this network expects images (B, {channels}, {height}, {width}); "
            f"got {tuple(x.shape)}: set in_channels and image_size when creating it"
        )
