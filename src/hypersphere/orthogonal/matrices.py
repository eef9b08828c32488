"""The matrices a layer may learn: R = R(U) for every method of `rotate`."""

from __future__ import annotations

import torch
from torch import Tensor

from ..functional.orthogonalize import METHODS as MAPS
from ..functional.orthogonalize import apply_orthogonal, orthogonalize, skew
from ..registry import unknown_name

# R orthogonal by construction, for any U.
CONSTRUCTED = MAPS
# R = U: kept orthogonal by the optimizer (7.6), by a penalty (7.7), or not at all (UPT).
FREE = ("ogd", "regularized", "none")
# Generalized OPT (F.35): linear maps with another structure than orthogonality.
STRUCTURED = (
    "spd",
    "lower_triangular",
    "upper_triangular",
    "banded",
    "symmetric",
    "skew",
    "hessenberg",
    "lower_hessenberg",
)
METHODS = (*CONSTRUCTED, *FREE, *STRUCTURED)
# Methods that use a skew matrix: the d (d - 1) / 2 numbers above its diagonal are all they store.
PACKED = ("cayley", "exponential", "skew")
# Methods whose R is a signed permutation, not the identity, where `neutral` starts them.
TURNED_START = ("householder", "skew")
# Methods whose U can be a random rotation itself: R(U) = U up to the last sign of Householder.
TAKES_ROTATION = (*(m for m in CONSTRUCTED if m not in ("cayley", "exponential")), *FREE)


def matrix(U: Tensor, method: str, bandwidth: int = 1) -> Tensor:
    """R(U) of shape (..., d, d).

    Beside the maps of :func:`hypersphere.functional.orthogonalize`:
    ``spd`` R = L L^T with L = tril(U); ``lower_triangular`` tril(U); ``upper_triangular`` triu(U);
    ``banded`` the entries with \\|i - j\\| <= bandwidth; ``symmetric`` the upper triangle mirrored;
    ``skew`` triu(U, 1) - triu(U, 1)^T; ``hessenberg`` triu(U, -1), the upper one;
    ``lower_hessenberg`` tril(U, 1); the rest U itself.

    >>> matrix(torch.ones(3, 3), "banded")
    tensor([[1., 1., 0.],
            [1., 1., 1.],
            [0., 1., 1.]])
    """
    if method in CONSTRUCTED:
        return orthogonalize(U, method)
    if method in FREE:
        return U
    if method == "spd":
        L = U.tril()
        return L @ L.mT
    if method == "lower_triangular":
        return U.tril()
    if method == "upper_triangular":
        return U.triu()
    if method == "banded":
        return U.triu(-bandwidth).tril(bandwidth)
    if method == "symmetric":
        return U.triu() + U.triu(1).mT
    if method == "skew":
        return skew(U)
    if method == "hessenberg":
        return U.triu(-1)
    if method == "lower_hessenberg":
        return U.tril(1)
    raise unknown_name("method", method, METHODS)


def apply(U: Tensor, V: Tensor, method: str, bandwidth: int = 1) -> Tensor:
    """R(U) V for the columns of V (..., d, n), without forming R where that is cheaper."""
    if method in CONSTRUCTED:
        return apply_orthogonal(U, V, method)
    with torch.autocast(device_type=U.device.type, enabled=False):
        work = torch.promote_types(torch.promote_types(U.dtype, V.dtype), torch.float32)
        U, columns = U.to(work), V.to(work)
        if method == "spd":
            L = U.tril()
            return (L @ (L.mT @ columns)).to(V.dtype)
        return (matrix(U, method, bandwidth) @ columns).to(V.dtype)


def neutral(method: str, d: int) -> Tensor:
    """A U at which R(U) is the identity, or else a signed permutation: exact in any precision.

    Zero for Cayley and the exponential, the identity for most. Householder's map jumps at the
    identity (a column that needs no reflection gets none), so it starts at a cyclic shift, in the
    middle of smooth ground. A skew matrix cannot be the identity: it starts at the quarter turns
    of pairs of coordinates. What is not the identity is undone in the neurons, see `rotate`.
    """
    if method in ("cayley", "exponential"):
        return torch.zeros(d, d, dtype=torch.float64)
    eye = torch.eye(d, dtype=torch.float64)
    if method == "householder":
        return eye.roll(1, dims=0)
    if method == "skew":
        if d % 2:
            raise ValueError(f"a skew matrix of odd size ({d}) is singular")
        pairs = torch.zeros(d, d, dtype=torch.float64)
        pairs[torch.arange(0, d, 2), torch.arange(1, d, 2)] = 1.0
        return pairs
    return eye
