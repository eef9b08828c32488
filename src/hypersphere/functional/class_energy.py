"""Energy of the classes in a mini-batch against all classes (Eq. 5.8, SphereFace+)."""

from __future__ import annotations

import torch
from torch import Tensor

from ._kernels.energy.class_blocks import batch_class_energy
from ._kernels.energy.potential import Potential
from .energy import check_kernel, distance_floor
from .host import can_look, demand

__all__ = ["class_energy"]


def class_energy(
    weight: Tensor, labels: Tensor, s: float = 2.0, distance: str = "euclidean"
) -> Tensor:
    r"""Data-dependent energy of the output layer, the second term of Eq. 5.8:

    .. math:: \frac{1}{m (N-1)} \sum_{i=1}^m \sum_{j \ne y_i} f_s(|\hat w_{y_i} - \hat w_j|)

    Only rows of classes that occur among the labels are compared, each with all N classes; a class
    that occurs twice is computed once and counted twice. Memory is O(classes in the batch x block).
    The result is float32 for 16-bit weights. With K sub-centers per class it is the mean over the
    K^2 pairs of sub-centers of two classes; those of one class do not push each other.

    Differs from the released code, which pulls the classes away from their common mean instead.

    Args:
        weight: (N, d), one class per row, N >= 2; or (N, K, d), K sub-centers per class.
        labels: (m,) integers in [0, N).
        s: power of the Riesz kernel, >= 0; 0 is the logarithmic energy.
        distance: "euclidean", or "geodesic" for the angle in radians.

    Returns:
        A scalar.

    >>> weight = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    >>> class_energy(weight, torch.tensor([0, 0]))  # distances sqrt(2) and 2
    tensor(0.3750)
    """
    if weight.ndim not in (2, 3) or len(weight) < 2:
        raise ValueError(
            f"expected weight (N, d), one class per row, or (N, K, d) with K sub-centers each, "
            f"N >= 2; got {tuple(weight.shape)}"
        )
    if labels.ndim != 1 or labels.numel() == 0 or labels.is_floating_point():
        raise ValueError(
            f"expected labels (m,) of integers, m >= 1; got {labels.dtype} of shape "
            f"{tuple(labels.shape)}"
        )
    demand(
        (labels.min() >= 0) & (labels.max() < len(weight)),
        lambda: (
            f"labels must lie in [0, {len(weight)}), the rows of weight; got "
            f"{int(labels.min())} to {int(labels.max())}"
        ),
    )
    check_kernel(s, distance)
    wide = weight.float() if weight.dtype.itemsize < 4 else weight
    potential = Potential(float(s), distance == "geodesic", False, distance_floor(s, wide.dtype))
    if can_look(labels):
        classes, counts = torch.unique(labels, return_counts=True)
    else:  # how many there are is not known without a wait: a class that occurs twice comes twice
        classes, counts = labels, torch.ones_like(labels)
    centers = weight.shape[1] if weight.ndim == 3 else 1
    rows = (classes[:, None] * centers + torch.arange(centers, device=classes.device)).flatten()
    share = counts.to(wide.dtype) / (len(labels) * (len(weight) - 1) * centers**2)
    share = share.repeat_interleave(centers)
    with torch.autocast(weight.device.type, enabled=False):
        return batch_class_energy(wide.flatten(0, -2), rows, share, potential, centers)
