"""Plain convolutional networks: Tables 2.1, B.1, C.1, D.1, E.1, E.3, F.1, F.3, 5.2, 6.4 and C.4."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor, nn

from .blocks import (
    DEFAULT,
    Backbone,
    Style,
    check_images,
    embedding,
    halve,
    initialize_weights,
    same_length,
    size_pair,
)
from .catalog import add_table


class PlainCNN(Backbone):
    """Stages of equal convolutions, a 2x2 max pooling after each, then a fully connected layer.

    Images (B, in_channels, H, W) -> (B, features), or (B, flattened maps) with ``features=None``.
    No layer has a bias, as in the released code.

    Args:
        widths: filters of each stage (Conv1.x, Conv2.x, ...).
        depths: convolutions of each stage.
        in_channels: channels of the images.
        image_size: side of the images, or (height, width).
        features: width of the last fully connected layer; None leaves it out.
        hidden: widths of fully connected layers (with norm and activation) before the features.
        kernel_size: side of the kernels.
        stem_kernel: side of the kernel of one convolution before the stages (Conv0.x), with as many
            filters as the first stage. Default: no such convolution.
        stem_stride: stride of the convolution before the stages.
        stem_pool: whether a 3x3 max pooling of stride 2 follows that convolution.
        final_pool: False leaves out the pooling after the last stage.
        ceil_mode: halve odd sizes upwards, as in Caffe and TensorFlow, which the dissertation used.
        feature_norm: batch normalization of the features (with ``norm="batch"``). The dissertation
            does not say; the released code of chapters 3-4 has it, that of chapter 5 has not, and
            so have the entries of the tables.
        feature_relu: a ReLU after the features, to see what it does (A.1). Default: none.
        style: operator, norm and activation of the layers.
    """

    def __init__(
        self,
        widths: Sequence[int] = (64, 96, 128),
        depths: Sequence[int] = (3, 3, 3),
        in_channels: int = 3,
        image_size: int | Sequence[int] = 32,
        features: int | None = 256,
        hidden: Sequence[int] = (),
        kernel_size: int = 3,
        stem_kernel: int | None = None,
        stem_stride: int = 1,
        stem_pool: bool = False,
        final_pool: bool = True,
        ceil_mode: bool = True,
        feature_norm: bool = False,
        feature_relu: bool = False,
        style: Style = DEFAULT,
    ) -> None:
        super().__init__()
        same_length(widths, depths)
        size = self.image_size = size_pair(image_size)
        self.in_channels = channels = in_channels
        body: OrderedDict[str, nn.Module] = OrderedDict()
        if stem_kernel is not None:
            body["conv0"] = style.unit(2, channels, widths[0], stem_kernel, stem_stride)
            channels = widths[0]
            size = halve(size) if stem_stride == 2 else size
        if stem_pool:
            body["pool0"] = nn.MaxPool2d(3, stride=2, padding=1)
            size = halve(size)
        for stage, (width, depth) in enumerate(zip(widths, depths, strict=True), start=1):
            for i in range(1, depth + 1):
                body[f"conv{stage}_{i}"] = style.unit(2, channels, width, kernel_size)
                channels = width
            if stage < len(widths) or final_pool:
                body[f"pool{stage}"] = nn.MaxPool2d(2, ceil_mode=ceil_mode)
                size = halve(size, ceil_mode)
        if min(size) < 1:
            raise ValueError(
                f"image_size {self.image_size} is too small for {len(widths)} poolings"
            )
        self.body = nn.Sequential(body)
        flat = channels * size[0] * size[1]
        self.hidden = nn.Sequential()
        for width in hidden:
            self.hidden.append(style.unit(0, flat, width))
            flat = width
        self.embedding = embedding(style, flat, features, feature_norm, relu=feature_relu)
        self.out_features = flat if features is None else features
        self.input_shape = (in_channels, *self.image_size)
        initialize_weights(self)

    def forward(self, x: Tensor) -> Tensor:
        check_images(x, self.in_channels, self.image_size)
        return self.embedding(self.hidden(self.body(x).flatten(1)))


def _equal(convolutions: int) -> tuple[int, int, int]:
    return (convolutions // 3,) * 3


for _n in (3, 9, 18, 45, 60, 69):
    add_table(
        f"cnn{_n}",
        PlainCNN,
        "Table B.1",
        f"plain CNN, {_n} convolutions, 64/96/128, features 256 (SphereNets)",
        widths=(64, 96, 128),
        depths=_equal(_n),
        feature_norm=True,
    )
add_table(
    "cnn9_c1",
    PlainCNN,
    "Table C.1",
    "plain CNN-9, 64/128/256, features 512 (decoupled networks)",
    widths=(64, 128, 256),
    features=512,
    feature_norm=True,
)
add_table(
    "cnn9_adversarial",
    PlainCNN,
    "Table C.1",
    "plain CNN-9, 32/64/128, features 256, no batch norm (adversarial attacks)",
    widths=(32, 64, 128),
    norm="none",
)
for _n, _name in ((6, "cnn6"), (9, "cnn9_d1"), (15, "cnn15")):
    add_table(
        _name,
        PlainCNN,
        "Tables D.1, E.1",
        f"plain CNN-{_n}, 64/128/256, features 256 (MHE, CoMHE)",
        widths=(64, 128, 256),
        depths=_equal(_n),
    )
for _t in (1, 2, 4, 8, 16, 20):
    add_table(
        f"cnn9_t{_t}",
        PlainCNN,
        "Table 6.4" if _t == 20 else "Tables 5.2, 6.4",
        f"plain CNN-9 of width t = {_t}: {16 * _t}/{32 * _t}/{64 * _t}, features 256",
        widths=(16 * _t, 32 * _t, 64 * _t),
    )
for _n in (3, 9):
    add_table(
        f"cnn{_n}_e3",
        PlainCNN,
        "Table E.3",
        f"small plain CNN-{_n}, 32/64/64, features 64 (energy strategies, Fig. 6.1)",
        widths=(32, 64, 64),
        depths=_equal(_n),
        features=64,
    )
for _n in (6, 9):
    add_table(
        f"cnn{_n}_f1",
        PlainCNN,
        "Table F.1",
        f"plain CNN-{_n}, 64/64/64, features 64 (OPT on CIFAR-100)",
        widths=(64, 64, 64),
        depths=_equal(_n),
        features=64,
    )
add_table(
    "cnn10",
    PlainCNN,
    "Table F.1",
    "plain CNN-10 for 224x224 images, 7x7 stem, 64/128/256, features 256 (OPT on ImageNet)",
    widths=(64, 128, 256),
    image_size=224,
    stem_kernel=7,
    stem_stride=2,
    stem_pool=True,
)
add_table(
    "cnn4",
    PlainCNN,
    "Table F.3",
    "plain CNN-4, four pooled convolutions of 64, features 1600 from 84x84 (few-shot)",
    widths=(64, 64, 64, 64),
    depths=(1, 1, 1, 1),
    image_size=84,
    features=None,
    ceil_mode=False,  # as in the few-shot reference [189]: 84 -> 42 -> 21 -> 10 -> 5
)
add_table(
    "cnn6_mnist2d",
    PlainCNN,
    "Sec. C.4",
    "plain CNN-6, 32/64/128, 256 hidden, 2-D features (MNIST pictures of decoupled networks)",
    widths=(32, 64, 128),
    depths=(2, 2, 2),
    in_channels=1,
    image_size=28,
    hidden=(256,),
    features=2,
)
add_table(
    "lsoftmax_mnist2d",
    PlainCNN,
    "Table 2.1 (Fig. 2.2)",
    "5x5 convolutions 32/64/128, 2-D features, PReLU (MNIST pictures of L-Softmax)",
    widths=(32, 64, 128),
    depths=(2, 2, 2),
    in_channels=1,
    image_size=28,
    kernel_size=5,
    features=2,
    activation="prelu",
)
add_table(
    "lsoftmax_mnist",
    PlainCNN,
    "Table 2.1",
    "ten convolutions of 64, features 256, PReLU (L-Softmax on MNIST)",
    widths=(64, 64, 64),
    in_channels=1,
    image_size=28,
    stem_kernel=3,
    activation="prelu",
)
add_table(
    "lsoftmax_cifar10",
    PlainCNN,
    "Table 2.1",
    "13 convolutions, 64/96/128, features 256, PReLU (L-Softmax on CIFAR-10)",
    widths=(64, 96, 128),
    depths=(4, 4, 4),
    stem_kernel=3,
    activation="prelu",
)
add_table(
    "lsoftmax_cifar100",
    PlainCNN,
    "Table 2.1",
    "13 convolutions, 96/192/384, features 512, PReLU (L-Softmax on CIFAR-100)",
    widths=(96, 192, 384),
    depths=(4, 4, 4),
    stem_kernel=3,
    features=512,
    activation="prelu",
)
add_table(
    "lsoftmax_lfw",
    PlainCNN,
    "Table 2.1",
    "17 convolutions, 64/256/256/256, features 512, PReLU, 112x96 faces (L-Softmax on LFW)",
    widths=(64, 256, 256, 256),
    depths=(4, 4, 4, 4),
    image_size=(112, 96),
    stem_kernel=3,
    stem_stride=2,
    final_pool=False,
    features=512,
    activation="prelu",
)
