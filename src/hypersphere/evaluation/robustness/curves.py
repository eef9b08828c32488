"""Robustness: accuracy under attack, white box and transferred, and the size of what it takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..results import Result, percent
from .attacks import EPS, STEP, STEPS, LossFunction, bim, cross_entropy, fgsm, frozen, pgd
from .deepfool import deepfool
from .pixels import PixelRange

METHODS = ("none", "fgsm", "bim", "pgd", "deepfool_l2", "deepfool_linf")


def attack(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    method: str = "fgsm",
    eps: float = EPS,
    *,
    step: float = STEP,
    steps: int | None = None,
    normalize: Any = None,
    loss: LossFunction = cross_entropy,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Adversarial examples by a named attack, in the model's input space.

    Args:
        model: any classifier; it is left as it was.
        x: (B, C, H, W) in the model's input space.
        y: (B,) labels.
        method: "fgsm", "bim", "pgd", "deepfool_l2", "deepfool_linf", or "none".
        eps: largest change of a pixel, relative to the pixel range: 8/255 is the dissertation's 8.
            DeepFool has no bound and ignores it.
        step: size of a step of BIM and PGD, as a fraction of the pixel range.
        steps: how many steps of the iterative attacks. Default: 20, and at most 50 for DeepFool
            (C.1.2).
        normalize: what the model's inputs went through, an object with `mean` and `std` on pixels
            in [0, 1] (`hypersphere.data.Normalize`) or (mean, std); steps and clipping are then
            exact in pixels. Default: inputs are pixels.
        loss: what FGSM, BIM and PGD raise; `training_loss` is the model's own, with margin.
        generator: of PGD's random points. Default: torch's own.

    Returns:
        Adversarial examples, of the shape of x.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    >>> x, y = torch.rand(3, 1, 2, 2), torch.tensor([0, 1, 0])
    >>> bool(((attack(model, x, y, "bim", eps=8/255) - x).abs() <= 8/255 + 1e-6).all())
    True
    """
    if len(x) == 0 or y.shape != x.shape[:1]:
        raise ValueError(
            f"expected x (B, ...) with B >= 1 and y (B,); got {tuple(x.shape)} and {tuple(y.shape)}"
        )
    if method == "none":
        return x.detach()
    if method == "fgsm":
        return fgsm(model, x, y, eps, normalize=normalize, loss=loss)
    if method == "bim":
        return bim(
            model, x, y, eps, step=step, steps=steps or STEPS, normalize=normalize, loss=loss
        )
    if method == "pgd":
        return pgd(
            model,
            x,
            y,
            eps,
            step=step,
            steps=steps or STEPS,
            generator=generator,
            normalize=normalize,
            loss=loss,
        )
    if method in ("deepfool_l2", "deepfool_linf"):
        norm = method.removeprefix("deepfool_")
        return deepfool(model, x, y, norm=norm, steps=steps or 50, normalize=normalize)
    raise ValueError(f"unknown attack {method!r}: one of {', '.join(METHODS)}")


@dataclass
class AttackResult:
    """One attack: accuracy on its examples, and the size of the perturbations in pixels [0, 1].

    Sizes are of the samples that were right before the attack (Fig. C.1); samples that the attack
    could not fool count with their last perturbation.

    Args:
        method: the attack.
        accuracy: on its examples.
        mean_l2: mean length of the perturbations.
        mean_linf: mean of their largest changes of a pixel.
        l2: the lengths, sorted.
        linf: the largest changes, sorted.
    """

    method: str
    accuracy: float
    mean_l2: float
    mean_linf: float
    l2: list[float] = field(default_factory=list)
    linf: list[float] = field(default_factory=list)


@dataclass
class RobustnessResult(Result):
    """Result of `robustness`.

    Args:
        attacks: one result per attack.
        samples: number of samples.
        eps_255: eps in pixels of 255, as the tables of the dissertation.
        step_255: step in pixels of 255.
        box: "white", or "black" for transferred examples.
    """

    attacks: list[AttackResult]
    samples: int
    eps_255: float
    step_255: float
    box: str

    def header(self) -> Sequence[str]:
        return ("attack", "accuracy", "mean l2", "mean linf (of 255)")

    def rows(self) -> Iterator[Sequence[object]]:
        for a in self.attacks:
            linf = f"{255 * a.mean_linf:.2f}"
            yield a.method, percent(a.accuracy), f"{a.mean_l2:.4f}", linf
        yield f"({self.box} box, eps {self.eps_255:g}, {self.samples:,} samples)", "", "", ""

    def accuracy(self, method: str) -> float:
        """Accuracy under one of the attacks.

        Args:
            method: its name.

        Returns:
            The accuracy, in [0, 1].
        """
        return next(a.accuracy for a in self.attacks if a.method == method)


def robustness(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    methods: Sequence[str] = ("none", "fgsm", "bim"),
    eps: float = EPS,
    *,
    source: nn.Module | None = None,
    step: float = STEP,
    steps: int | None = None,
    normalize: Any = None,
    source_normalize: Any = None,
    loss: LossFunction = cross_entropy,
    seed: int = 0,
    progress: Callable[[int], object] | None = None,
) -> RobustnessResult:
    """Accuracy of `model` under attacks (Tables 4.7, 4.8, Fig. C.1).

    Args:
        model: the classifier that is tested.
        batches: (x, y) in the model's input space.
        methods: names of attacks, as in `attack`.
        eps: largest change of a pixel as a fraction of the pixel range.
        source: craft the examples on this other model and transfer them (black box, C.1.3).
            Default: the model itself (white box).
        step: size of a step of BIM and PGD, as a fraction of the pixel range.
        steps: of BIM and PGD. Default: 20. DeepFool takes what it needs, at most 50.
        normalize: what the model's inputs went through, as in `attack`.
        source_normalize: that of the source. Default: the same.
        loss: what FGSM, BIM and PGD raise.
        seed: seed of PGD's random points.
        progress: called with the number of samples done.

    Returns:
        Accuracy and size of the perturbations per attack.
    """
    box = "white" if source is None else "black"
    crafted_on = model if source is None else source
    generator = torch.Generator().manual_seed(seed)
    right = dict.fromkeys(methods, 0)
    sizes: dict[str, list[Tensor]] = {m: [] for m in methods}
    total = 0
    for x, y in batches:
        pixels = PixelRange.of(normalize, x)
        craft_norm = normalize if source_normalize is None else source_normalize
        craft_pixels = PixelRange.of(craft_norm, x)
        u = pixels.to_pixels(x)
        seen = craft_pixels.to_model(u)
        clean = _predict(model, x) == y
        for method in methods:
            found = attack(
                crafted_on,
                seen,
                y,
                method,
                eps,
                step=step,
                steps=None if method.startswith("deepfool") else steps,
                normalize=craft_norm,
                loss=loss,
                generator=generator,
            )
            moved = craft_pixels.to_pixels(found)
            change = (moved - u).flatten(1)[clean]
            right[method] += int((_predict(model, pixels.to_model(moved)) == y).sum())
            sizes[method].append(torch.stack([change.norm(dim=1), _max(change)]).cpu())
        total += len(x)
        if progress is not None:
            progress(total)
    if total == 0:
        raise ValueError("batches: expected at least one (x, y); got none")
    return RobustnessResult(
        [_summary(m, right[m] / total, torch.cat(sizes[m], 1)) for m in methods],
        total,
        255 * eps,
        255 * step,
        box,
    )


def _predict(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad(), frozen(model):
        return model(x).argmax(1)


def _max(change: Tensor) -> Tensor:
    return change.abs().amax(1) if change.numel() else change.new_zeros(len(change))


def _summary(method: str, accuracy: float, sizes: Tensor) -> AttackResult:
    if sizes.shape[1] == 0:
        return AttackResult(method, accuracy, math.nan, math.nan)
    mean_l2, mean_linf = sizes.mean(1).tolist()
    if method == "none":
        return AttackResult(method, accuracy, mean_l2, mean_linf)
    l2, linf = sizes.sort(1).values.tolist()
    return AttackResult(method, accuracy, mean_l2, mean_linf, l2, linf)


@dataclass
class AdversarialTraining:
    """Adversarial training: hand it each batch before the loss (FGSM with eps 8 in C.1.2).

    Examples are crafted on the model as it is now; running statistics do not see the crafting.

    Args:
        method: the attack, as in `attack`.
        eps: largest change of a pixel as a fraction of the pixel range.
        share: the part of the batch that is replaced, in (0, 1].
        step: size of a step of BIM and PGD.
        steps: how many steps of the iterative attacks.
        normalize: what the model's inputs went through, as in `attack`.
        loss: what FGSM, BIM and PGD raise.

    >>> hook = AdversarialTraining(eps=8/255)
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    >>> x, y = torch.rand(4, 1, 2, 2), torch.tensor([0, 1, 0, 1])
    >>> hook(model, x, y).shape
    torch.Size([4, 1, 2, 2])
    """

    method: str = "fgsm"
    eps: float = EPS
    share: float = 1.0
    step: float = STEP
    steps: int | None = None
    normalize: Any = None
    loss: LossFunction = cross_entropy

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share: expected a part of the batch in (0, 1]; got {self.share}")

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        count = max(1, round(self.share * len(x)))
        found = attack(
            model,
            x[:count],
            y[:count],
            self.method,
            self.eps,
            step=self.step,
            steps=self.steps,
            normalize=self.normalize,
            loss=self.loss,
        )
        return torch.cat([found, x[count:]])
