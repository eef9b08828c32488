"""A hyperspherical variational autoencoder: digits on the ordinary sphere.

    python examples/hyperspherical_vae.py [--posterior vmf] [--steps 1500] [--draw vae.png]

The encoder gives each image a von Mises-Fisher distribution (or a power spherical one) of latent
directions; the prior is uniform, so no direction is special and none is far away. The loss is the
cross entropy of the pixels at one reparameterized sample plus the divergence from the prior, both
with exact gradients in mean direction and concentration. The divergence enters gradually, or the
decoder would learn to ignore the latent direction first. Data: the 8 x 8 digits of scikit-learn, no
download. Less than a minute on one core.
"""

from __future__ import annotations

import argparse
import math
import sys
import time

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Distribution, kl_divergence
from torch.nn import functional as F

from hypersphere import functional as HF
from hypersphere.data import load_digits
from hypersphere.distributions import PowerSpherical, UniformOnSphere, VonMisesFisher
from hypersphere.reports.style import color, styled

POSTERIORS = {"vmf": VonMisesFisher, "power_spherical": PowerSpherical}


class HypersphericalVAE(nn.Module):
    """Encoder to a distribution on the unit sphere of R^dim, decoder from a direction to pixels."""

    def __init__(self, pixels: int = 64, hidden: int = 128, dim: int = 3, posterior: str = "vmf"):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(pixels, hidden), nn.ReLU(), nn.Linear(hidden, dim + 1)
        )
        self.decoder = nn.Sequential(
            nn.Linear(dim, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, pixels),
        )
        self.family = POSTERIORS[posterior]
        self.dim = dim

    def posterior(self, images: Tensor) -> Distribution:
        """q(z | x): mean direction and concentration from one linear layer. images: (n, pixels)."""
        code = self.encoder(images)
        return self.family(HF.normalize(code[:, :-1]), 50 * F.softplus(code[:, -1]))

    def loss(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Cross entropy of the pixels and divergence from the uniform prior, in nats per image."""
        q = self.posterior(images)
        logits = self.decoder(q.rsample())
        pixels = F.binary_cross_entropy_with_logits(logits, images, reduction="none").sum(-1)
        return pixels.mean(), kl_divergence(q, UniformOnSphere(self.dim)).mean()


def images_and_labels(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and test images (n, 64) in [0, 1] with their labels."""
    split = load_digits(seed=seed)
    parts = []
    for part in (split.train, split.test):
        parts += [torch.stack([part[i][0] for i in range(len(part))]).flatten(1)]
        parts += [torch.tensor([int(part[i][1]) for i in range(len(part))])]
    return parts[0], parts[1], parts[2], parts[3]


def train(
    model: HypersphericalVAE, images: Tensor, steps: int, batch: int = 128, lr: float = 2e-3
) -> list[float]:
    """Loss per step, by Adam on random batches; full weight of the divergence from halfway on."""
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, steps), lr / 20)
    history = []
    for step in range(steps):
        weight = min(1.0, 2 * step / steps)
        rows = torch.randint(len(images), (batch,))
        pixels, divergence = model.loss(images[rows])
        optimizer.zero_grad()
        (pixels + weight * divergence).backward()
        optimizer.step()
        schedule.step()
        history.append(pixels.detach() + divergence.detach())
    return torch.stack(history).tolist() if history else []


@torch.no_grad()
def neighbor_accuracy(
    model: HypersphericalVAE,
    train_images: Tensor,
    train_labels: Tensor,
    images: Tensor,
    labels: Tensor,
) -> float:
    """Share of test images whose nearest training image on the latent sphere has their label."""
    known, asked = (model.posterior(x).mode for x in (train_images, images))
    nearest = HF.pairwise_cosine(asked, known).argmax(1)
    return float((train_labels[nearest] == labels).float().mean())


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--posterior", choices=sorted(POSTERIORS), default="vmf")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draw", help="a picture of the latent sphere and of reconstructions")
    options = parser.parse_args(argv)
    torch.manual_seed(options.seed)
    train_x, train_y, test_x, test_y = images_and_labels(options.seed)
    model = HypersphericalVAE(posterior=options.posterior)
    start = time.perf_counter()
    history = train(model, train_x, options.steps)
    seconds = time.perf_counter() - start
    with torch.no_grad():
        pixels, divergence = model.loss(test_x)
        concentration = model.posterior(test_x).concentration.median()
    accuracy = neighbor_accuracy(model, train_x, train_y, test_x, test_y)
    if history:
        print(f"training loss {history[0]:.2f} -> {sum(history[-50:]) / len(history[-50:]):.2f}")
    print(
        f"test: pixels {pixels:.2f} + divergence {divergence:.2f} = {pixels + divergence:.2f} nats"
    )
    print(f"median concentration {concentration:.1f}, nearest neighbor accuracy {accuracy:.3f}")
    print(f"{options.steps} steps in {seconds:.1f} s")
    if options.draw:
        with styled():
            draw(model, test_x, test_y, options.draw)
    return 0


@torch.no_grad()
def draw(model: HypersphericalVAE, images: Tensor, labels: Tensor, path: str) -> None:
    """Test images on the latent sphere (equal-area map), decoded directions, reconstructions."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    q = model.posterior(images)
    x, y, z = q.mode.T
    figure = pyplot.figure(figsize=(8.4, 4.2), layout="constrained")
    grid = figure.add_gridspec(2, 2, height_ratios=[2.1, 1])

    sphere = figure.add_subplot(grid[0, 0], projection="mollweide")
    colors = [color(int(digit)) for digit in labels]
    sphere.scatter(torch.atan2(y, x).numpy(), z.asin().numpy(), c=colors, s=5)
    for digit in range(10):  # the digit at the mean direction of its images
        center = HF.normalize(q.mode[labels == digit].mean(0))
        at = float(torch.atan2(center[1], center[0])), float(center[2].clamp(-1, 1).asin())
        style = {"weight": "bold", "color": "white", "ha": "center", "va": "center"}
        disc = {"boxstyle": "circle,pad=0.15", "color": color(digit)}
        sphere.annotate(str(digit), at, bbox=disc, **style)
    sphere.set_title("mean directions of the test images", pad=14)
    sphere.grid(alpha=0.3)
    sphere.set_xticklabels([])
    sphere.set_yticklabels([])

    rows, columns = 9, 16
    # equal steps of sin(latitude): each image stands for the same area of the sphere
    height = torch.linspace(1 - 1 / rows, -1 + 1 / rows, rows)
    longitude = (torch.arange(columns) + 0.5) * (2 * math.pi / columns) - math.pi
    radius = (1 - height.square()).sqrt()[:, None]
    directions = torch.stack(
        [radius * longitude.cos(), radius * longitude.sin(), height[:, None].expand(rows, columns)],
        -1,
    )
    decoded = model.decoder(directions).sigmoid().reshape(rows, columns, 8, 8)
    atlas = figure.add_subplot(grid[0, 1])
    atlas.imshow(tiles(decoded), cmap="gray_r")
    atlas.set_title("what directions decode to (longitude x sin latitude)")
    atlas.set_axis_off()

    shown = torch.cat([torch.nonzero(labels == digit)[:2, 0] for digit in range(10)])
    again = model.decoder(q.mode[shown]).sigmoid()
    sampled = model.decoder(q.sample()[shown]).sigmoid()
    strip = torch.stack([images[shown], again, sampled]).reshape(3, len(shown), 8, 8)
    below = figure.add_subplot(grid[1, :])
    below.imshow(tiles(strip), cmap="gray_r")
    below.set_yticks([4, 13, 22], ["image", "from the mode", "from a sample"])
    below.tick_params(length=0)
    below.spines[:].set_visible(False)
    below.set_xticks([])
    below.grid(False)
    below.set_title("reconstructions of test images")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def tiles(images: Tensor) -> np.ndarray:
    """Images (rows, columns, 8, 8) side by side, a pixel apart."""
    padded = F.pad(images, (0, 1, 0, 1))
    rows, columns, height, width = padded.shape
    return padded.permute(0, 2, 1, 3).reshape(rows * height, columns * width).numpy()


if __name__ == "__main__":
    sys.exit(main())
