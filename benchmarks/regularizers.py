"""What the regularizers cost, as a share of a training step of CNN-9 (64/128/256, batch 128).

    python benchmarks/regularizers.py

A step is forward, backward and SGD with momentum on 32 x 32 images; a regularizer is its own
forward and backward on all layers, whose gradients are added to those of the step. Both run in
turns, the short ones a few times a turn; the share is the best time over the best step.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import hypersphere as hs
from hypersphere import functional as HF

import harness

ROUNDS = 7
REPEATS = 3


def cnn9(widths: tuple[int, int, int] = (64, 128, 256), classes: int = 10) -> nn.Sequential:
    """Table D.1: three units of three 3 x 3 convolutions, 2 x 2 pooling, a layer of 256."""
    layers: list[nn.Module] = []
    channels = 3
    for width in widths:
        for _ in range(3):
            conv = nn.Conv2d(channels, width, 3, padding=1, bias=False)
            layers += [conv, nn.BatchNorm2d(width), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    layers += [nn.Flatten(), nn.Linear(channels * 16, 256), nn.BatchNorm1d(256), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(256, classes))


def training_step(net: nn.Module) -> Callable[[], None]:
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4, momentum=0.9)
    x, y = torch.randn(128, 3, 32, 32), torch.randint(0, 10, (128,))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()

    return step


def pairwise_difference(weight: Tensor, half_space: bool) -> Tensor:
    """Half-space energy, s = 2, through the (N, N, d) tensor of differences."""
    u = nn.functional.normalize(weight.flatten(1))
    n = len(u)
    other = ~torch.eye(n, dtype=torch.bool)
    total = (u[:, None] - u[None]).square().sum(-1)[other].reciprocal().sum()
    if not half_space:
        return total / (n * (n - 1))
    total = total + (u[:, None] + u[None]).square().sum(-1).reciprocal().sum()
    return 2 * total / (2 * n * (2 * n - 1))


def shares() -> list[harness.Row]:
    net = cnn9()
    convolutions = [m.weight for m in net if isinstance(m, nn.Conv2d)]

    def through(loss: Callable[[], Tensor]) -> Callable[[], None]:
        return lambda: loss().backward()

    make = hs.regularizers.create
    named: dict[str, tuple[nn.Module, float | None]] = {
        "MHE, full space": (make("dissertation_mhe"), None),
        "MHE, half space": (make("dissertation_half_space_mhe"), 2.0),
        "MHE, half space, geodesic": (make("dissertation_half_space_a_mhe"), None),
        "MHE, half space, s = 1": (make("dissertation_point_cloud_mhe"), None),
        "CoMHE, random 5 x 30": (make("dissertation_rp_comhe"), 5.0),
        "CoMHE, random 5 x 30, Hadamard": (make("dissertation_rp_comhe", sketch="hadamard"), None),
        "CoMHE, random 5 x 30, count sketch": (make("dissertation_rp_comhe", sketch="count"), None),
        "CoMHE, angle-preserving, unrolled": (make("dissertation_ap_comhe"), 5.0),
        "CoMHE, angle-preserving, alternating": (make("dissertation_ap_comhe_alternating"), 5.0),
        "CoMHE, adversarial": (make("dissertation_adversarial_comhe"), 5.0),
        "CoMHE, group of 8 channels": (make("dissertation_group_comhe"), 5.0),
        "CoMHE, bilateral": (make("dissertation_bilateral_comhe"), None),
        "orthonormal": (make("dissertation_orthonormal"), None),
        "orthogonal": (make("dissertation_orthogonal"), None),
        "SRIP": (make("srip"), None),
        "separation": (hs.regularizers.Separation(), 5.0),
        "KoLeo": (hs.regularizers.KoLeo(), 5.0),
        "Gram determinant": (hs.regularizers.GramDeterminant(), 5.0),
        "polarization, 8 points, 5 steps": (hs.regularizers.Polarization(), 5.0),
        "covering, 8 points, 5 steps": (hs.regularizers.Covering(), 5.0),
    }
    work = {name: through(lambda r=r: r(net)) for name, (r, _) in named.items()}
    limits = {name: limit for name, (_, limit) in named.items()}
    ours, naive = "half space, convolutions only", "the same by pairwise differences"
    work[ours] = through(lambda: sum(HF.hyperspherical_energy(w, 2.0, True) for w in convolutions))
    work[naive] = through(lambda: sum(pairwise_difference(w, True) for w in convolutions))
    with torch.no_grad():
        reference = float(sum(HF.hyperspherical_energy(w, 2.0, True) for w in convolutions))
        differences = float(sum(pairwise_difference(w, True) for w in convolutions))
    assert abs(differences / reference - 1) < 1e-4

    step = training_step(net)
    times: dict[str, list[float]] = {name: [] for name in work}
    steps: list[float] = []
    for function in (step, *work.values()):
        function()
    for _ in range(ROUNDS):
        steps.append(seconds(step))
        for name, function in work.items():
            if name != naive:
                times[name] += [seconds(function) for _ in range(REPEATS)]
            elif len(times[naive]) < 2:
                times[name].append(seconds(function))
    rows = [harness.Row("training step", min(steps), 1.0)]
    for name, measured in times.items():
        best = min(measured)
        share = 100 * best / min(steps)
        rows.append(harness.Row(name, best, value=share, unit="%", limit=limits.get(name)))
    return rows


def many_neurons() -> list[harness.Row]:
    weight = torch.randn(20_000, 64, requires_grad=True)

    def energy() -> None:
        weight.grad = None
        HF.hyperspherical_energy(weight, 2.0, half_space=True).backward()

    peak = harness.peak_memory(energy)  # first, before the allocator has anything to reuse
    taken = seconds(energy)
    labels = torch.randint(0, 20_000, (128,))

    def classes() -> None:
        weight.grad = None
        HF.class_energy(weight, labels).backward()

    def nearest() -> None:
        weight.grad = None
        HF.koleo(weight, half_space=True).backward()

    return [
        harness.Row("half-space energy", taken, peak_mb=peak, value=peak, unit="MiB", limit=1024),
        harness.Row(
            "128 classes of a batch against all (5.8)",
            min(seconds(classes) for _ in range(3)),
            peak_mb=harness.peak_memory(classes),
        ),
        harness.Row("KoLeo, half space", seconds(nearest), peak_mb=harness.peak_memory(nearest)),
    ]


def configurations() -> list[harness.Row]:
    """Energy above the published minimum, by default settings."""
    published = {12: 49.165253058, 24: 223.347074052, 50: 1055.182314726, 78: 2662.046474566,
                 100: 4448.350634331}  # fmt: skip
    rows = []
    for n, best in published.items():
        start = time.perf_counter()
        points = HF.minimize_energy(n, 3)
        taken = time.perf_counter() - start
        excess = float(HF.hyperspherical_energy(points, 1.0, reduction="sum")) / 2 - best
        rows.append(harness.Row(f"n = {n}", taken, value=abs(excess), limit=1e-6))
    return rows


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main() -> int:
    torch.manual_seed(0)
    large = many_neurons()
    tables = {
        "Share of a training step of CNN-9 (64/128/256, batch 128)": shares(),
        "20,000 neurons of dimension 64, forward and backward": large,
        "Thomson's problem, distance to the published energy": configurations(),
    }
    return 0 if harness.write("regularizers", tables) else 1


if __name__ == "__main__":
    sys.exit(main())
