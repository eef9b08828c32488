"""DeepFool: the smallest step over the nearest decision boundary, found by linear steps (C.3)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .attacks import frozen
from .pixels import PixelRange


def deepfool(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    norm: str = "l2",
    steps: int = 50,
    candidates: int = 10,
    overshoot: float = 0.02,
    normalize: Any = None,
) -> Tensor:
    """Perturb x until the model's decision leaves y.

    Each step linearizes the scores f around the current point. With w_k = grad f_k - grad f_y and
    g_k = f_k - f_y, the boundary to class k is |g_k| / |w_k| away (for linf: |g_k| / |w_k|_1), and
    the nearest one is crossed: x += |g_k| w_k / |w_k|^2 (linf: |g_k| / |w_k|_1 sign w_k). The total
    is stretched by 1 + overshoot and clipped to valid pixels. Distances are those of pixels in
    [0, 1]. Samples that are wrong from the start stay as they are.

    Args:
        model: any classifier; it is left as it was.
        x: (B, ...) in the model's input space.
        y: (B,) labels.
        norm: "l2" or "linf".
        steps: at most this many linear steps.
        candidates: how many of the classes with the highest scores at the start are considered.
        overshoot: by which share the total is stretched.
        normalize: what the model's inputs went through, an object with `mean` and `std` on pixels
            in [0, 1] (`hypersphere.data.Normalize`) or (mean, std). Default: inputs are pixels.

    Returns:
        Adversarial examples, of the shape of x.

    >>> model = nn.Linear(2, 2, bias=False)
    >>> model.weight.data = torch.eye(2)
    >>> x = torch.tensor([[0.7, 0.5]])                       # the boundary is the diagonal
    >>> round(float((deepfool(model, x, torch.tensor([0]), overshoot=0.0) - x).norm()), 3)
    0.142
    """
    if norm not in ("l2", "linf"):
        raise ValueError(f"norm: 'l2' or 'linf'; got {norm!r}")
    pixels = PixelRange.of(normalize, x)
    pixels.check(x)
    original = pixels.to_pixels(x.detach())
    total = torch.zeros_like(original)
    result = original.clone()
    with frozen(model):
        with torch.no_grad():
            scores = model(x)
        k = min(candidates, scores.shape[1])
        # The own class first, then the strongest others as they are at the start.
        scores = scores.scatter(1, y.unsqueeze(1), float("inf"))
        classes = scores.argsort(1, descending=True)[:, :k]
        active = torch.arange(len(x), device=x.device)
        for _ in range(steps):
            logits, gap, slope = _linearize(model, pixels, result[active], classes[active])
            going = logits.argmax(1) == y[active]
            active, gap, slope = active[going], gap[going], slope[going]
            if len(active) == 0:
                break
            total[active] += _step(gap, slope, norm).view_as(total[active])
            result[active] = (original[active] + (1 + overshoot) * total[active]).clamp(0, 1)
    return pixels.to_model(result).detach()


def _linearize(
    model: nn.Module, pixels: PixelRange, u: Tensor, classes: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Scores (B, C), gaps (B, K-1) and their slopes (B, K-1, D) at pixels u."""
    with torch.enable_grad():
        u = u.detach().requires_grad_(True)
        logits = model(pixels.to_model(u))
        gaps = logits.gather(1, classes[:, 1:]) - logits.gather(1, classes[:, :1])
        count = gaps.shape[1]
        slopes = [
            torch.autograd.grad(gaps[:, k].sum(), u, retain_graph=k + 1 < count)[0].flatten(1)
            for k in range(count)
        ]
    return logits.detach(), gaps.detach(), torch.stack(slopes, 1)


def _step(gap: Tensor, slope: Tensor, norm: str) -> Tensor:
    """The shortest step over the nearest linearized boundary, (B, D)."""
    dual = slope.abs().sum(2) if norm == "linf" else slope.norm(dim=2)
    distance = gap.abs() / dual.clamp(min=1e-12)
    nearest = distance.argmin(1)
    rows = torch.arange(len(gap), device=gap.device)
    w = slope[rows, nearest]
    # A little more than zero, or a point exactly on a boundary would stay there for ever.
    length = (distance[rows, nearest] + 1e-4).unsqueeze(1)
    if norm == "linf":
        return length * w.sign()
    return length * w / w.norm(dim=1, keepdim=True).clamp(min=1e-12)
