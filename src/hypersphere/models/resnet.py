"""Residual networks: Tables B.2, C.1, D.2, E.2, F.2 and the two SphereResNets of Sec. 3.4.6."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from ..registry import unknown_name
from .blocks import (
    DEFAULT,
    Backbone,
    Style,
    check_images,
    embedding,
    initialize_weights,
    same_length,
    size_pair,
)
from .catalog import add_table

SHORTCUTS = ("plain", "decoupled", "identity")
BLOCKS = ("basic", "bottleneck")


class IdentityShortcut(nn.Module):
    """Every `stride`-th pixel, and zeros for the new channels: no parameters (option A of [61])."""

    def __init__(self, new_channels: int, stride: int) -> None:
        super().__init__()
        self.new_channels, self.stride = new_channels, stride

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, :, :: self.stride, :: self.stride]
        return F.pad(x, (0, 0, 0, 0, 0, self.new_channels))

    def extra_repr(self) -> str:
        return f"new_channels={self.new_channels}, stride={self.stride}"


class ResidualBlock(nn.Module):
    """act(residual(x) + shortcut(x)): two 3x3 convolutions, or 1x1, 3x3 and 1x1 (4 width).

    The shortcut is the identity where the shape is kept. Elsewhere ``shortcut`` says what it is:
    a 1x1 convolution with norm that is "plain" (SphereResNet v2) or "decoupled" (v1), or
    "identity".
    """

    def __init__(
        self, inputs: int, width: int, stride: int, block: str, shortcut: str, style: Style
    ) -> None:
        super().__init__()
        if block == "basic":
            outputs = width
            self.residual = nn.Sequential(
                style.unit(2, inputs, width, 3, stride),
                style.unit(2, width, width, 3, activate=False),
            )
        else:
            outputs = 4 * width
            self.residual = nn.Sequential(
                style.unit(2, inputs, width, 1, stride),  # the stride is here in the original [2]
                style.unit(2, width, width, 3),
                style.unit(2, width, outputs, 1, activate=False),
            )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            if shortcut == "identity":
                if outputs < inputs:
                    raise ValueError(
                        f"an identity shortcut cannot go from {inputs} to {outputs} channels; "
                        "use shortcut='plain' or widths that do not shrink"
                    )
                self.shortcut = IdentityShortcut(outputs - inputs, stride)
            else:
                made = style if shortcut == "decoupled" else Style(norm=style.norm)
                self.shortcut = made.unit(2, inputs, outputs, 1, stride, activate=False)
        self.act = style.activate(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.residual(x) + self.shortcut(x))


class ResNet(Backbone):
    """Stem, stages of residual blocks (stride 2 from the second on), average pooling.

    Images (B, in_channels, H, W) of any size -> (B, widths[-1]), four times that with bottleneck
    blocks, or (B, features).

    Args:
        widths: filters of each stage.
        depths: blocks of each stage.
        in_channels: channels of the images.
        image_size: side of the images, or (height, width), that summaries and exports use; any size
            works.
        features: width of a fully connected layer after the pooling. Default: without it.
        block: "basic" or "bottleneck".
        shortcut: "plain", "decoupled" or "identity": the shortcut where channels or size change.
        stem_width: filters of the first convolution (Conv0.x). Default: ``widths[0]``.
        stem_kernel: side of the kernel of the first convolution.
        stem_stride: stride of the first convolution.
        stem_pool: whether a 3x3 max pooling of stride 2 follows the first convolution.
        style: operator, norm and activation of the layers.
    """

    def __init__(
        self,
        widths: Sequence[int] = (16, 32, 64),
        depths: Sequence[int] = (5, 5, 5),
        in_channels: int = 3,
        image_size: int | Sequence[int] = 32,
        features: int | None = None,
        block: str = "basic",
        shortcut: str = "plain",
        stem_width: int | None = None,
        stem_kernel: int = 3,
        stem_stride: int = 1,
        stem_pool: bool = False,
        style: Style = DEFAULT,
    ) -> None:
        super().__init__()
        same_length(widths, depths)
        if block not in BLOCKS:
            raise unknown_name("block", block, BLOCKS)
        if shortcut not in SHORTCUTS:
            raise unknown_name("shortcut", shortcut, SHORTCUTS)
        self.in_channels = in_channels
        channels = stem_width or widths[0]
        self.stem = style.unit(2, in_channels, channels, stem_kernel, stem_stride)
        self.pool0 = nn.MaxPool2d(3, stride=2, padding=1) if stem_pool else nn.Identity()
        self.stages = nn.Sequential()
        for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
            blocks = nn.Sequential()
            for i in range(depth):
                stride = 2 if stage > 0 and i == 0 else 1
                blocks.append(ResidualBlock(channels, width, stride, block, shortcut, style))
                channels = width * (4 if block == "bottleneck" else 1)
            self.stages.append(blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.embedding = embedding(style, channels, features, normalize=False)
        self.out_features = channels if features is None else features
        self.input_shape = (in_channels, *size_pair(image_size))
        initialize_weights(self)

    def forward(self, x: Tensor) -> Tensor:
        check_images(x, self.in_channels)
        return self.embedding(self.pool(self.stages(self.pool0(self.stem(x)))).flatten(1))


_IMAGENET = {
    "image_size": 224,
    "stem_kernel": 7,
    "stem_stride": 2,
    "stem_pool": True,
    "widths": (64, 128, 256, 512),
}
_WIDE = {"widths": (256, 512, 768, 1024), "depths": (2, 2, 2, 2)}

for _n, _depth in ((20, 3), (32, 5)):
    add_table(
        f"resnet{_n}",
        ResNet,
        "Table F.2",
        f"CIFAR ResNet-{_n}, 16/32/64, parameter-free shortcuts as in the original (OPT)",
        depths=(_depth,) * 3,
        shortcut="identity",
    )
for _name, _widths, _source, _what in (
    ("resnet32_b2", (64, 96, 128), "Table B.2", "SphereNets, Sec. 3.4.2"),
    ("resnet32_c1", (96, 192, 384), "Tables B.2, C.1", "SphereNets, decoupled networks"),
    ("resnet32_d2", (64, 128, 256), "Tables D.2, E.2", "MHE, CoMHE"),
):
    add_table(
        _name,
        ResNet,
        _source,
        f"CIFAR ResNet-32, {'/'.join(map(str, _widths))} ({_what})",
        widths=_widths,
    )
add_table(
    "resnet18",
    ResNet,
    "Tables C.1, D.2, E.2",
    "ResNet-18 for 224x224 images, 64/128/256/512",
    depths=(2, 2, 2, 2),
    **_IMAGENET,
)
add_table(
    "resnet34",
    ResNet,
    "Tables D.2, E.2",
    "ResNet-34 for 224x224 images, 64/128/256/512",
    depths=(3, 4, 6, 3),
    **_IMAGENET,
)
add_table(
    "resnet50",
    ResNet,
    "Sec. E.1",
    "ResNet-50 for 224x224 images, bottleneck blocks (CoMHE)",
    depths=(3, 4, 6, 3),
    block="bottleneck",
    **_IMAGENET,
)
add_table(
    "resnet18_wide",
    ResNet,
    "Table B.2",
    "wide ResNet-18 for 224x224 images, 256/512/768/1024 (baseline of SphereResNet)",
    **{**_IMAGENET, **_WIDE},
)
for _v, _shortcut in ((1, "decoupled"), (2, "plain")):
    add_table(
        f"sphere_resnet18_v{_v}",
        ResNet,
        "Table B.2, Sec. 3.4.6",
        f"SphereResNet-18 v{_v}: the wide ResNet-18 with SphereConv, {_shortcut} 1x1 shortcuts",
        shortcut=_shortcut,
        operator="sphere",
        **{**_IMAGENET, **_WIDE},
    )
