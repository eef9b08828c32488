"""The multilayer perceptron of Sec. F.3."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from .blocks import (
    UNNORMALIZED,
    Backbone,
    Style,
    check_images,
    embedding,
    initialize_weights,
    mark,
    size_pair,
)
from .catalog import add_table


class MLP(Backbone):
    """Flattened image through fully connected layers, an activation after each.

    (B, in_channels, H, W) or (B, in_channels H W) -> (B, widths[-1]), or (B, features). No bias in
    layers that are decoupled or batch-normalized.

    Args:
        widths: neurons of the layers.
        in_channels: channels of the images.
        image_size: side of the images, or (height, width).
        features: neurons of one more layer, without activation. Default: without it.
        style: operator, norm and activation of the layers.
    """

    def __init__(
        self,
        widths: Sequence[int] = (256, 256),
        in_channels: int = 1,
        image_size: int | Sequence[int] = 28,
        features: int | None = None,
        style: Style = UNNORMALIZED,
    ) -> None:
        super().__init__()
        self.in_channels, self.image_size = in_channels, size_pair(image_size)
        self.input_shape = (in_channels, *self.image_size)
        width = in_channels * self.image_size[0] * self.image_size[1]
        bias = style.plain and style.norm == "none"
        self.flat = width
        self.layers = nn.Sequential()
        for outputs in widths:
            unit = style.unit(0, width, outputs, bias=bias)
            mark(unit[0], "hidden")  # the last layer here is not the output layer: the head is
            self.layers.append(unit)
            width = outputs
        self.embedding = embedding(style, width, features, normalize=False, bias=style.plain)
        self.out_features = width if features is None else features
        initialize_weights(self)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 2 or x.shape[1] != self.flat:
            check_images(x, self.in_channels, self.image_size)
            x = x.flatten(1)
        return self.embedding(self.layers(x))


add_table(
    "mlp",
    MLP,
    "Sec. F.3",
    "multilayer perceptron 784-256-256, a head of 10 classes makes it three layers (OPT on MNIST)",
    norm="none",
)
