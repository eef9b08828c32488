"""The generator and the discriminator of Table D.5."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from .blocks import (
    DEFAULT,
    Backbone,
    Style,
    check_images,
    halve,
    initialize_weights,
    mark,
    size_pair,
)
from .catalog import add_table

CRITIC_STYLE = Style(norm="none", activation="leaky_relu")


def _small(weight: Tensor) -> None:
    nn.init.normal_(weight, std=0.02)


class Generator(Backbone):
    """z (B, 128) -> images (B, 3, 32, 32) in [-1, 1].

    Dense to a 4x4 map of widths[0] channels, transposed 4x4 convolutions of stride 2 with norm and
    activation, a 3x3 convolution with tanh. Weights start at N(0, 0.02^2).

    Args:
        widths: channels of the maps.
        features: dimension of z.
        in_channels: channels of the images.
        base_size: side of the first map (M_g in the table).
        dense_norm: norm and activation after the dense layer as well, as in the released code; the
            table has not.
        style: norm and activation of the layers. Its operator must be plain: transposed
            convolutions have no decoupled form.
    """

    def __init__(
        self,
        widths: Sequence[int] = (512, 256, 128, 64),
        features: int = 128,
        in_channels: int = 3,
        base_size: int = 4,
        dense_norm: bool = False,
        style: Style = DEFAULT,
    ) -> None:
        super().__init__()
        if not style.plain:
            raise ValueError(
                "the generator is made of transposed convolutions, which have no decoupled form; "
                f"got operator={style.operator!r}: use it on the discriminator"
            )
        self.input_shape = (features,)
        self.base = (widths[0], base_size, base_size)
        self.dense = nn.Linear(features, widths[0] * base_size * base_size)
        mark(self.dense, "hidden")
        self.start = nn.Sequential()
        if dense_norm:
            self.start.append(style.normalization(widths[0]))
            self.start.append(style.activate(widths[0]))
        bias = style.norm == "none"
        self.body = nn.Sequential()
        for inputs, outputs in pairwise(widths):
            parts: OrderedDict[str, nn.Module] = OrderedDict()
            parts["conv"] = nn.ConvTranspose2d(inputs, outputs, 4, 2, 1, bias=bias)
            parts["norm"] = style.normalization(outputs)
            parts["act"] = style.activate(outputs)
            self.body.append(nn.Sequential(parts))
        self.image = nn.Conv2d(widths[-1], in_channels, 3, padding=1)
        side = base_size * 2 ** (len(widths) - 1)
        self.out_features = in_channels * side * side
        initialize_weights(self, _small)

    def forward(self, z: Tensor) -> Tensor:
        if z.dim() != 2 or z.shape[1] != self.input_shape[0]:
            raise ValueError(
                f"the generator expects z (B, {self.input_shape[0]}); got {tuple(z.shape)}"
            )
        x = self.start(self.dense(z).view(-1, *self.base))
        return self.image(self.body(x)).tanh()


class Discriminator(Backbone):
    """Images (B, 3, 32, 32) -> (B, features); one number, before the sigmoid, by default.

    3x3 convolutions of stride 1 and 4x4 convolutions of stride 2 in turn, leaky ReLU of slope 0.1,
    then a dense layer. Weights start at N(0, 0.02^2). The released code widens at the 4x4
    convolutions (64-128-128-256-256-512-512); the table, and this, one later.

    Args:
        widths: filters of the 3x3 convolutions.
        features: numbers that the dense layer returns; None returns what enters it.
        in_channels: channels of the images.
        image_size: side of the images, or (height, width).
        spectral: divide every weight by its largest singular value (Eq. D.13, torch's).
        weight_normalized: give every neuron a learned length instead, g v / |v| [128].
        style: operator, norm and activation of the layers.
    """

    def __init__(
        self,
        widths: Sequence[int] = (64, 128, 256, 512),
        features: int | None = 1,
        in_channels: int = 3,
        image_size: int | Sequence[int] = 32,
        spectral: bool = True,
        weight_normalized: bool = False,
        style: Style = CRITIC_STYLE,
    ) -> None:
        super().__init__()
        self.in_channels = channels = in_channels
        size = self.image_size = size_pair(image_size)
        self.input_shape = (in_channels, *size)
        bias = style.plain and style.norm == "none"
        self.body = nn.Sequential()
        for i, width in enumerate(widths):
            self.body.append(style.unit(2, channels, width, 3, bias=bias))
            channels = width
            if i < len(widths) - 1:
                down = style.make(nn.Conv2d, width, width, 4, stride=2, padding=1, bias=bias)
                parts = [down, style.normalization(width), style.activate(width)]
                self.body.append(nn.Sequential(*parts))
                size = halve(size, ceil_mode=False)
        flat = channels * size[0] * size[1]
        self.dense: nn.Module = nn.Identity()
        if features is not None:
            self.dense = nn.Linear(flat, features)
            mark(self.dense, "output")
        self.out_features = flat if features is None else features
        initialize_weights(self, _small)
        if spectral and weight_normalized:
            raise ValueError("spectral and weight_normalized exclude each other; choose one")
        if spectral or weight_normalized:
            for module in list(self.modules()):
                if isinstance(module, (nn.Conv2d, nn.Linear)):
                    spectral_norm(module) if spectral else weight_norm(module)

    def forward(self, x: Tensor) -> Tensor:
        check_images(x, self.in_channels, self.image_size)
        return self.dense(self.body(x).flatten(1))


add_table(
    "sngan_generator",
    Generator,
    "Table D.5",
    "generator for 32x32 images from z of 128 dimensions (MHE in GANs)",
)
add_table(
    "sngan_discriminator",
    Discriminator,
    "Table D.5",
    "discriminator for 32x32 images, spectral normalization, leaky ReLU 0.1 (MHE in GANs)",
    norm="none",
    activation="leaky_relu",
)
