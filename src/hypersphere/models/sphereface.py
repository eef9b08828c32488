"""SphereFace networks (Table 2.7) and the modified ResNet-18 of the same build (Table C.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from .blocks import (
    Backbone,
    Style,
    check_images,
    embedding,
    halve,
    same_length,
    size_pair,
)
from .catalog import add_table

FACE_STYLE = Style(norm="none", activation="prelu")


class FaceUnit(nn.Module):
    """x + act(conv(act(conv(x)))): an activation after each convolution, none after the sum."""

    def __init__(self, width: int, style: Style) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            style.unit(2, width, width, 3), style.unit(2, width, width, 3)
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.residual(x)


class SphereFace(Backbone):
    """Stages of one 3x3 convolution of stride 2 and some residual units, then FC1.

    Images (B, in_channels, H, W) -> (B, features).

    Initialization: unit convolutions N(0, 0.01^2) without bias; the strided convolutions and FC1
    uniform with variance 1 / fan_in and a bias, as released. A strided convolution has no bias
    where batch normalization or a decoupled operator makes it useless. FC1 has no activation by
    default: with a ReLU all features lie in one orthant (A.1). The released SphereFace-64 has one
    unit fewer than Table 2.7; this is the table.

    Args:
        widths: filters of each stage.
        units: residual units of each stage.
        in_channels: channels of the images.
        image_size: side of the images, or (height, width).
        features: width of FC1; None, with ``average_pool`` only, leaves it out.
        stem_kernel: side of the kernel of one convolution of stride 2 in front, a 3x3 max pooling
            after it (Conv0.x). Default: without it.
        average_pool: average the maps, so that any image size fits; otherwise they are flattened
            and ``image_size`` fixes FC1.
        feature_relu: a ReLU after FC1. Default: none.
        style: operator, norm and activation of the layers.
    """

    def __init__(
        self,
        widths: Sequence[int] = (64, 128, 256, 512),
        units: Sequence[int] = (1, 2, 4, 1),
        in_channels: int = 3,
        image_size: int | Sequence[int] = (112, 96),
        features: int | None = 512,
        stem_kernel: int | None = None,
        average_pool: bool = False,
        feature_relu: bool = False,
        style: Style = FACE_STYLE,
    ) -> None:
        super().__init__()
        same_length(widths, units)
        self.in_channels, size = in_channels, size_pair(image_size)
        self.image_size = None if average_pool else size
        self.input_shape = (in_channels, *size)
        bias = style.plain and style.norm == "none"
        channels = in_channels
        self.stem = nn.Sequential()
        if stem_kernel is not None:
            self.stem.append(style.unit(2, channels, widths[0], stem_kernel, 2, bias=bias))
            self.stem.append(nn.MaxPool2d(3, stride=2, padding=1))
            channels, size = widths[0], halve(halve(size))
        self.stages = nn.Sequential()
        for width, count in zip(widths, units, strict=True):
            down = style.unit(2, channels, width, 3, 2, bias=bias)
            self.stages.append(nn.Sequential(down, *(FaceUnit(width, style) for _ in range(count))))
            channels, size = width, halve(size)
        self.pool = nn.AdaptiveAvgPool2d(1) if average_pool else nn.Identity()
        flat = channels * (1 if average_pool else size[0] * size[1])
        self.embedding = embedding(
            style, flat, features, style.norm != "none", bias=style.plain, relu=feature_relu
        )
        self.out_features = flat if features is None else features
        self._initialize()

    def _initialize(self) -> None:
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                bound = math.sqrt(3.0 / module.weight[0].numel())
                nn.init.uniform_(module.weight, -bound, bound)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        for unit in self.modules():
            if isinstance(unit, FaceUnit):
                for layer in unit.modules():
                    if isinstance(layer, nn.Conv2d):
                        nn.init.normal_(layer.weight, std=0.01)

    def forward(self, x: Tensor) -> Tensor:
        check_images(x, self.in_channels, self.image_size)
        return self.embedding(self.pool(self.stages(self.stem(x))).flatten(1))


for _n, _units in {
    4: (0, 0, 0, 0),
    10: (0, 1, 2, 0),
    20: (1, 2, 4, 1),
    36: (2, 4, 8, 2),
    64: (3, 8, 16, 3),
}.items():
    add_table(
        f"sphereface{_n}",
        SphereFace,
        "Table 2.7",
        f"SphereFace-{_n} for 112x96 faces, PReLU, features 512",
        units=_units,
        norm="none",
        activation="prelu",
    )
add_table(
    "resnet18_modified",
    SphereFace,
    "Table C.1",
    "modified ResNet-18 for 224x224 images, SphereFace units, 128/256/512/1024",
    widths=(128, 256, 512, 1024),
    units=(1, 2, 3, 0),
    image_size=224,
    features=None,
    stem_kernel=7,
    average_pool=True,
    activation="prelu",
)
