"""Gradient attacks within a box of half width eps: FGSM, BIM, PGD (4.6.2, C.1.2).

eps and step are fractions of the pixel range, so the dissertation's eps = 8 of 255 is 8/255.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .pixels import PixelRange

LossFunction = Callable[[nn.Module, Tensor, Tensor], Tensor]
EPS = 8 / 255
STEP = 2 / 255
STEPS = 20


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Cross entropy, summed over the batch so that samples do not share a gradient scale.

    Args:
        model: from x to scores (B, C).
        x: (B, ...).
        y: (B,) labels.

    Returns:
        A scalar.
    """
    return F.cross_entropy(model(x), y, reduction="sum")


def training_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The loss the model was trained with, `model.loss`, margin and all (J of C.1.2).

    Args:
        model: with a method `loss(x, y)`, the mean over the batch.
        x: (B, ...).
        y: (B,) labels.

    Returns:
        A scalar, the sum over the batch.
    """
    return model.loss(x, y) * len(x)  # type: ignore[operator]


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without parameter gradients: an attack must not move running statistics.

    Args:
        model: set back to what it was at the end.
    """
    modes = {module: module.training for module in model.modules()}
    needs = {p: p.requires_grad for p in model.parameters()}
    model.eval()
    for p in needs:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
        for p, need in needs.items():
            p.requires_grad_(need)


def input_gradient(model: nn.Module, x: Tensor, y: Tensor, loss: LossFunction) -> Tensor:
    """d loss / d x.

    Args:
        model: the model.
        x: (B, ...).
        y: (B,).
        loss: of model, x and y.

    Returns:
        The gradient, of the shape of x.
    """
    with torch.enable_grad():
        x = x.detach().requires_grad_(True)
        (gradient,) = torch.autograd.grad(loss(model, x, y), x)
    return gradient


def fgsm(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    eps: float = EPS,
    *,
    normalize: Any = None,
    loss: LossFunction = cross_entropy,
) -> Tensor:
    """x + eps sign(grad_x J(x, y)), one step to the wall of the box (C.1.2), clipped to pixels.

    Args:
        model: any classifier; it is left as it was.
        x: (B, ...) in the model's input space.
        y: (B,) labels.
        eps: largest change of a pixel, relative to the pixel range; 8/255 is the dissertation's 8.
        normalize: what the model's inputs went through, an object with `mean` and `std` on pixels
            in [0, 1] (`hypersphere.data.Normalize`) or (mean, std). Default: inputs are pixels.
        loss: what is raised; `training_loss` is the model's own, with margin.

    Returns:
        Adversarial examples, of the shape of x.

    >>> model = nn.Linear(2, 2, bias=False)
    >>> model.weight.data = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> fgsm(model, torch.tensor([[0.6, 0.5]]), torch.tensor([0]), eps=0.1)
    tensor([[0.5000, 0.6000]])
    """
    return bim(model, x, y, eps, step=eps, steps=1, normalize=normalize, loss=loss)


def bim(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    eps: float = EPS,
    *,
    step: float = STEP,
    steps: int = STEPS,
    start: Tensor | None = None,
    normalize: Any = None,
    loss: LossFunction = cross_entropy,
) -> Tensor:
    """Several small steps of FGSM, clipped to |x' - x| <= eps after each (C.1.2).

    Args:
        model: any classifier; it is left as it was.
        x: (B, ...) in the model's input space.
        y: (B,) labels.
        eps: largest change of a pixel, relative to the pixel range; 8/255 is the dissertation's 8.
        step: size of a step, as a fraction of the pixel range.
        steps: how many steps.
        start: where to begin, of the shape of x. Default: x.
        normalize: what the model's inputs went through, an object with `mean` and `std` on pixels
            in [0, 1] (`hypersphere.data.Normalize`) or (mean, std). Default: inputs are pixels.
        loss: what is raised; `training_loss` is the model's own, with margin.

    Returns:
        Adversarial examples, of the shape of x.
    """
    if not 0 <= eps <= 1 or not 0 <= step <= 1:
        raise ValueError(
            f"eps and step are fractions of the pixel range; got {eps:g} and {step:g}. "
            "For 8 of 255 write eps=8/255"
        )
    pixels = PixelRange.of(normalize, x)
    pixels.check(x)
    reach, stride = eps / pixels.std, step / pixels.std
    low, high = pixels.clip(x - reach), pixels.clip(x + reach)
    current = x.detach() if start is None else start
    with frozen(model):
        for _ in range(steps):
            gradient = input_gradient(model, current, y, loss)
            current = current + stride * gradient.sign()
            current = torch.minimum(torch.maximum(current, low), high)
    return current.detach()


def pgd(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    eps: float = EPS,
    *,
    step: float = STEP,
    steps: int = STEPS,
    restarts: int = 1,
    generator: torch.Generator | None = None,
    normalize: Any = None,
    loss: LossFunction = cross_entropy,
) -> Tensor:
    """BIM from a uniformly random point of the box; with restarts the first that fools is kept.

    Args:
        model: any classifier; it is left as it was.
        x: (B, ...) in the model's input space.
        y: (B,) labels.
        eps: largest change of a pixel, relative to the pixel range; 8/255 is the dissertation's 8.
        step: size of a step, as a fraction of the pixel range.
        steps: how many steps.
        restarts: how many random points are tried.
        generator: of the random points. Default: torch's own.
        normalize: what the model's inputs went through, an object with `mean` and `std` on pixels
            in [0, 1] (`hypersphere.data.Normalize`) or (mean, std). Default: inputs are pixels.
        loss: what is raised; `training_loss` is the model's own, with margin.

    Returns:
        Adversarial examples, of the shape of x.
    """
    pixels = PixelRange.of(normalize, x)
    result = x.detach().clone()
    fooled = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    for _ in range(max(1, restarts)):
        noise = torch.rand(x.shape, generator=generator, dtype=x.dtype).to(x.device) * 2 - 1
        start = pixels.clip(x + noise * eps / pixels.std)
        found = bim(
            model, x, y, eps, step=step, steps=steps, start=start, normalize=normalize, loss=loss
        )
        with torch.no_grad(), frozen(model):
            new = model(found).argmax(1) != y
        replace = ~fooled
        result[replace] = found[replace]
        fooled |= new
        if bool(fooled.all()):
            break
    return result
