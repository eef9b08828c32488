"""The convolutional autoencoder of Fig. 1.1: what do angles carry, what do norms?"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..registry import unknown_name
from .blocks import DEFAULT, Backbone, Style, check_images, halve, initialize_weights, size_pair
from .catalog import add_table

EMISSIONS = ("product", "angle", "norm")


class Autoencoder(Backbone):
    """Strided 3x3 convolutions down to a latent map, transposed ones back up to the image.

    Images (B, in_channels, H, W) -> the same shape. ``emit`` (of `encode` and ``forward``) says
    what the last convolution of the encoder gives to the decoder, with all weights as they are:

    - "product": w . x, as trained;
    - "angle": cos(theta(w, x)), the angular information alone;
    - "norm": |w| |x|, the magnitude alone.

    ``rescale`` multiplies the last two by one number for the whole batch, so that their root mean
    square is that of the product: the decoder stays in the range it was trained for and learns
    nothing about the single image from it. Fig. 1.1 gives no sizes and does not say how angles are
    fed to the decoder. The encoder takes the operator of the style, the decoder is always plain.

    Args:
        widths: channels of the encoder's layers before the latent map.
        features: channels of the latent map.
        in_channels: channels of the images.
        image_size: side of the images, or (height, width).
        squash: bring the output into [0, 1] by a sigmoid.
        style: operator, norm and activation of the layers.

    >>> net = Autoencoder(image_size=8, widths=(4,), features=2)
    >>> image = torch.rand(3, 1, 8, 8)
    >>> cosines = net.encode(image, emit="angle", rescale=False)
    >>> net.decode(cosines).shape, cosines.abs().max().item() <= 1 + 1e-6
    (torch.Size([3, 1, 8, 8]), True)
    """

    def __init__(
        self,
        widths: Sequence[int] = (32, 64),
        features: int = 16,
        in_channels: int = 1,
        image_size: int | Sequence[int] = 28,
        squash: bool = True,
        style: Style = DEFAULT,
    ) -> None:
        super().__init__()
        self.in_channels, self.image_size = in_channels, size_pair(image_size)
        self.input_shape = (in_channels, *self.image_size)
        sizes = [self.image_size]
        for _ in range(len(widths) + 1):
            sizes.append(halve(sizes[-1]))
        channels = [in_channels, *widths, features]
        self.encoder = nn.Sequential(
            *(style.unit(2, channels[i], channels[i + 1], 3, 2) for i in range(len(widths)))
        )
        self.latent = style.conv(2, channels[-2], features, 3, 2)
        self.decoder = nn.Sequential()
        for i in reversed(range(len(sizes) - 1)):
            # Halving rounds up, so a layer gives back 2 n - 1 or, with output padding, 2 n pixels.
            padding = tuple(1 - n % 2 for n in sizes[i])
            parts: OrderedDict[str, nn.Module] = OrderedDict()
            parts["conv"] = nn.ConvTranspose2d(
                channels[i + 1],
                channels[i],
                3,
                2,
                1,
                output_padding=padding,  # type: ignore[arg-type]
                bias=i == 0 or style.norm == "none",
            )
            if i > 0:
                parts["norm"] = style.normalization(channels[i])
                parts["act"] = style.activate(channels[i])
            self.decoder.append(nn.Sequential(parts))
        self.squash = nn.Sigmoid() if squash else nn.Identity()
        self.out_features = features * sizes[-1][0] * sizes[-1][1]
        initialize_weights(self)

    def encode(self, x: Tensor, emit: str = "product", rescale: bool = True) -> Tensor:
        """The latent map of images.

        Args:
            x: images (B, in_channels, H, W).
            emit: "product", "angle" or "norm".
            rescale: bring angles or norms to the root mean square of the products.

        Returns:
            Inner products, cosines or norms (B, features, h, w).
        """
        if emit not in EMISSIONS:
            raise unknown_name("emission", emit, EMISSIONS)
        check_images(x, self.in_channels, self.image_size)
        x = self.encoder(x)
        product = self.latent(x)
        if emit == "product":
            return product
        plain, norms = self._product_and_norms(x)
        emitted = norms if emit == "norm" else plain / norms.clamp_min(1e-12)
        if rescale:
            power = emitted.square().mean().clamp_min(torch.finfo(emitted.dtype).tiny)
            emitted = emitted * (product.square().mean() / power).sqrt()
        return emitted

    def _product_and_norms(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """w . x and |w| |x| of every filter and patch, both (B, features, h, w)."""
        weight = self.latent.weight
        plain = F.conv2d(x, weight, stride=2, padding=1)  # type: ignore[arg-type]
        squares = x.square().sum(1, keepdim=True)
        box = torch.ones(1, 1, 3, 3, dtype=x.dtype, device=x.device)
        patch = F.conv2d(squares, box, stride=2, padding=1).clamp_min(0).sqrt()
        filters = weight.flatten(1).norm(dim=1)  # type: ignore[operator, union-attr]
        return plain, patch * filters.view(1, -1, 1, 1)

    def decode(self, latent: Tensor) -> Tensor:
        """Images from a latent map.

        Args:
            latent: (B, features, h, w).

        Returns:
            Images (B, in_channels, H, W).
        """
        return self.squash(self.decoder(latent))

    def forward(self, x: Tensor, emit: str = "product", rescale: bool = True) -> Tensor:
        return self.decode(self.encode(x, emit, rescale))


add_table(
    "autoencoder",
    Autoencoder,
    "Fig. 1.1",
    "convolutional autoencoder whose encoder can give out angles or norms only",
)
