"""Maps from a square matrix to an orthogonal one (Section 7.3.3, 7.3.4, Appendix F.1)."""

from __future__ import annotations

import torch
from torch import Tensor

from ._kernels.autograd import full_precision, one_step
from ._kernels.orthogonal import elimination
from ._kernels.orthogonal.batches import each_matrix
from ._kernels.orthogonal.cayley import Cayley, CayleyMatrix
from ._kernels.orthogonal.exponential import Exponential
from ._kernels.orthogonal.opaque import series
from ._kernels.orthogonal.packed import pack_skew, packed_length, packed_size, unpacked_skew
from ._kernels.orthogonal.rotations import skew
from ._kernels.orthogonal.spectra import spectrum
from ._kernels.orthogonal.symmetric import half_product
from ._kernels.orthogonal.triangular import triangular
from .host import can_look

METHODS = (
    "gram_schmidt",
    "modified_gram_schmidt",
    "iterative_gram_schmidt",
    "householder",
    "loewdin",
    "cayley",
    "exponential",
)
# Blocks up to this size are inverted as a batch: products with R are then cheaper than solves.
_SMALL = 128


def orthogonalize(U: Tensor, method: str = "gram_schmidt") -> Tensor:
    r"""The orthogonal matrix R(U) of each method; the columns of U are the vectors.

    - ``gram_schmidt`` (F.1), ``modified_gram_schmidt`` (F.3), ``iterative_gram_schmidt``
      (Algorithm 2): U = R T with T upper triangular and a positive diagonal. The three differ only
      in rounding; here all are one QR factorization with the sign fixed, orthogonal to working
      precision (the unrolled loop loses 1e-3 at d = 576 in float32).
    - ``householder`` (7.3, Algorithm 3): the same, by n - 1 reflections x -> \|x\| e_1. The last
      diagonal entry of T keeps its sign, hence det R = (-1)^(n-1) for a general U. A column that is
      already a multiple of e_1 is not reflected, as in Algorithm 3.
    - ``loewdin`` (7.4, F.10): R = U (U^T U)^(-1/2), the orthogonal matrix nearest to U.
    - ``cayley`` (7.3.4): R = (I + W)(I - W)^(-1) with W = triu(U, 1) - triu(U, 1)^T; det R = 1.
    - ``exponential`` (7.3.4): R = exp(W) with the same W; det R = 1.

    Gradients are finite also where a column is e_1, where singular values are equal and, for the
    Cayley transform, next to -I. Computed in float32 or wider, with autocast off. R is orthogonal
    for every finite U: where W is so large that it leaves the digits of float64, beyond entries of
    1e8, ``cayley`` and ``exponential`` take it scaled back to that.

    Args:
        U: (..., d, d); leading dimensions are a batch of blocks.
        method: one of the names above.

    Returns:
        R, like U, with R^T R = I.

    >>> U = torch.tensor([[3.0, 1.0], [4.0, 2.0]])
    >>> orthogonalize(U, "gram_schmidt")
    tensor([[ 0.6000, -0.8000],
            [ 0.8000,  0.6000]])
    >>> R = orthogonalize(U, "loewdin")
    >>> torch.allclose(R.T @ R, torch.eye(2), atol=1e-6)
    True
    """
    _check(U, method)
    if _is_small(U, method):
        with full_precision(U.device.type):
            work = U.to(torch.promote_types(U.dtype, torch.float32))
            small: Tensor = _cayley_matrix(work.flatten(0, -3))
        return small.view(U.shape).to(U.dtype)
    eye = torch.eye(U.shape[-1], dtype=U.dtype, device=U.device).expand_as(U)
    return apply_orthogonal(U, eye, method)


def apply_orthogonal(U: Tensor, V: Tensor, method: str = "gram_schmidt") -> Tensor:
    """R(U) V, without forming R where that is cheaper.

    The same map and gradient as ``orthogonalize(U, method) @ V``. Cayley solves with the n columns
    of V as right-hand sides, Householder and Gram-Schmidt apply reflectors, Loewdin and the
    exponential act through short series: O(n d^2) each beside one factorization of U. With more
    columns than rows, R is formed once.

    Args:
        U: (..., d, d).
        V: (..., d, n), one vector per column; the same leading dimensions as U.
        method: as in :func:`orthogonalize`.

    Returns:
        (..., d, n), in the type of V.

    >>> U, V = torch.randn(2, 6, 6), torch.randn(2, 6, 3)
    >>> W = apply_orthogonal(U, V, "cayley")
    >>> torch.allclose(W.mT @ W, V.mT @ V, atol=1e-5)
    True
    """
    _check(U, method)
    if V.dim() < 2 or V.shape[:-1] != U.shape[:-1]:
        raise ValueError(
            f"apply_orthogonal expects V of shape {(*U.shape[:-1], 'n')} beside U of shape "
            f"{tuple(U.shape)}; got {tuple(V.shape)}: one vector of length d per column"
        )
    work = torch.promote_types(torch.promote_types(U.dtype, V.dtype), torch.float32)
    U, columns, batch = U.to(work), V.to(work), U.shape[:-2].numel()
    if U.dim() > 2:  # one batch; a batch of one is slower than a plain product
        lead = () if batch == 1 else (batch,)
        U = U.reshape(*lead, *U.shape[-2:])
        columns = columns.reshape(*lead, *V.shape[-2:])
    with full_precision(U.device.type):
        # On the meta device only the shape counts; not all factorizations know it there.
        rotated = U @ columns if U.is_meta else _act(U, columns, method)
    return rotated.reshape(V.shape).to(V.dtype)


def apply_packed(numbers: Tensor, V: Tensor, method: str) -> Tensor:
    """:func:`apply_orthogonal` for a U of which only the numbers above the diagonal are stored.

    Args:
        numbers: (..., d (d - 1) / 2), row by row.
        V: (..., d, n), with the same leading dimensions.
        method: "cayley" or "exponential".

    Returns:
        (..., d, n), in the type of V.

    >>> U, V = torch.randn(6, 6), torch.randn(6, 3)
    >>> W = apply_packed(pack_skew(U), V, "cayley")
    >>> torch.allclose(W, apply_orthogonal(U, V, "cayley"), atol=1e-5)
    True
    """
    d, n = V.shape[-2:]
    batch = numbers.shape[:-1].numel()
    wide = numbers.dtype == V.dtype and V.dtype.itemsize >= 4
    suits = batch == 1 or (batch > 1 and not inverts_blocks(numbers, d, n, method))
    if wide and 0 < n <= d and suits and can_look(numbers):
        kernel = {"cayley": Cayley, "exponential": Exponential}[method]
        lead = () if batch == 1 else (batch,)
        columns = V.reshape(*lead, d, n)
        with full_precision(V.device.type):
            rotated: Tensor = kernel.apply(numbers.reshape(*lead, -1), columns, True)
        return rotated.reshape(V.shape)
    return apply_orthogonal(unpacked_skew(numbers, d), V, method)


def inverts_blocks(numbers: Tensor, d: int, n: int, method: str) -> bool:
    """Whether a batch of small blocks of Cayley is inverted, rather than applied to n columns.

    Products with inverses are the faster way for many columns, and for few, too, where there is no
    elimination in C++.
    """
    return method == "cayley" and d <= _SMALL and (n > d or not elimination.available(numbers))


def random_rotation(
    d: int,
    batch: tuple[int, ...] = (),
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Rotations drawn uniformly (Haar measure on SO(d)).

    Q of a Gaussian matrix with the sign of T fixed is uniform on O(d); where its determinant is
    -1, exchanging the sign of one column makes it uniform on SO(d).

    Args:
        d: size of the rotations.
        batch: leading dimensions of the result.
        generator: source of randomness, on the CPU.
        dtype: of the result. Default: torch's default type.
        device: of the result. Default: torch's default device.

    Returns:
        (*batch, d, d).

    >>> R = random_rotation(5, dtype=torch.float64)
    >>> bool(torch.linalg.det(R) > 0.999)
    True
    """
    wide = torch.randn(*batch, d, d, generator=generator, dtype=torch.float64)
    R = orthogonalize(wide, "gram_schmidt")
    R[..., 0] *= determinants(R).sign().unsqueeze(-1)
    return R.contiguous().to(dtype=dtype or torch.get_default_dtype(), device=device)


def spectral_norm(W: Tensor) -> float:
    """|W|_2 of skew matrices (..., d, d), the largest of a batch, to some percent.

    Args:
        W: (..., d, d), skew.

    Returns:
        The norm.

    >>> W = torch.tensor([[0.0, 2.0], [-2.0, 0.0]])
    >>> 2.0 <= spectral_norm(W) < 2.5
    True
    """
    return spectrum(W, skew=True)[1]


def _act(U: Tensor, V: Tensor, method: str) -> Tensor:
    d, n = V.shape[-2:]
    if V.numel() == 0:
        return U @ V
    if _is_small(U, method):
        small: Tensor = _cayley_matrix(U)
        return small @ V
    if n > d:
        return _act(U, torch.eye(d, dtype=U.dtype, device=U.device).expand_as(U), method) @ V
    if method == "cayley":
        rotated: Tensor = _cayley(U, V, False)
        return rotated
    if method in ("loewdin", "exponential"):
        return series(U, V, method)
    return triangular(U, V, reflections=method == "householder")


_cayley, _cayley_matrix = one_step(Cayley), one_step(CayleyMatrix)


def _is_small(U: Tensor, method: str) -> bool:
    return method == "cayley" and U.dim() > 2 and U.shape[-1] <= _SMALL


def _check(U: Tensor, method: str) -> None:
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; expected one of: {', '.join(METHODS)}")
    if U.dim() < 2 or U.shape[-1] != U.shape[-2]:
        raise ValueError(
            f"orthogonalize expects square matrices (..., d, d); got {tuple(U.shape)}: "
            "the columns are the d vectors to orthogonalize"
        )
    if not U.is_floating_point():
        raise ValueError(f"orthogonalize expects floating-point matrices; got {U.dtype}")


__all__ = [
    "METHODS",
    "apply_orthogonal",
    "half_product",
    "orthogonalize",
    "pack_skew",
    "packed_length",
    "packed_size",
    "random_rotation",
    "skew",
    "spectral_norm",
    "unpacked_skew",
]


def determinants(R: Tensor) -> Tensor:
    """The determinant of each matrix of (..., d, d)."""
    return each_matrix(torch.linalg.det, R)


def solve_each(A: Tensor, B: Tensor) -> Tensor:
    """A^{-1} B for each pair of matrices of (..., d, d) and (..., d, n)."""
    return each_matrix(torch.linalg.solve, A, B)
