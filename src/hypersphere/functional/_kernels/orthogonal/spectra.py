"""Ends of spectra, and the coefficients of matrix functions on them; plain numbers come out."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from ctypes import c_bool, c_float, c_int, c_void_p
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...host import can_look, known
from ..libraries import library, switched_off, trial
from ..shared import made_once

# Note [Spectra]
# Loewdin and the exponential choose their number of terms from the spectrum of a matrix, the
# triangular maps their way. A few Lanczos steps come within some percent of its ends, from the
# inside, and this margin makes up for the rest. Single eigenvalues far from all others may be
# overlooked: all three check afterwards that lengths were kept, and go another way if not.
_LANCZOS_STEPS = 8
_MARGIN = 0.03
_FEW = 180  # columns up to which one thread is through before a second one has started


def spectrum(A: Tensor, squared: bool = False, skew: bool = False) -> tuple[float, float]:
    """Ends of the spectrum of a symmetric A (..., d, d), or of A / i for a skew A. Note [Spectra].

    With `squared`, of A^T A for any A, which is not formed.
    """
    d = A.shape[-1]
    A = A.detach().reshape(-1, d, d)
    x = _start(d, A.dtype, A.device)
    diagonal, off, unit = _native_lanczos(A, x, squared, skew) or _lanczos(A, x, squared, skew)
    if not number_of(torch.isfinite(diagonal.sum() + off.sum())):
        return math.nan, math.nan
    # After an early end come zeros; the first entry lies within the spectrum.
    ended = torch.cat([torch.ones_like(diagonal[..., :1]), off], -1).cumprod(-1) == 0
    diagonal = torch.where(ended, diagonal[..., :1], diagonal)
    T = torch.diag_embed(diagonal) + torch.diag_embed(off, -1)  # of which the lower half is read
    values = torch.linalg.eigvalsh(T)
    margin = _MARGIN * (values[..., -1:] - values[..., :1])
    low, high = (values[..., :1] - margin) * unit, (values[..., -1:] + margin) * unit
    return number_of(low.min()), number_of(high.max())


@made_once(maxsize=32)
def _start(d: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The first vector, of length 1."""
    x = torch.cos(torch.arange(d, dtype=dtype, device=device))
    start: Tensor = x / torch.linalg.vector_norm(x)
    return start


def _lanczos(A: Tensor, x: Tensor, squared: bool, skew: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Diagonals (batch, steps) and (batch, steps - 1) of T, and the unit (batch, 1) it is in."""
    x, parts = x.expand(len(A), 1, -1), [A.mT, A] if squared else [A]
    if len(A) == 1:  # a plain product is faster than a batch of one
        x, parts = x[0], [F[0] for F in parts]
    units = []  # so that squares neither under- nor overflow
    for F in parts:
        size = (x @ F).abs().amax(-1, keepdim=True)
        units.append(torch.where(size > 0, size, 1.0))
    previous, beta = torch.zeros_like(x), torch.zeros_like(x[..., :1])
    alphas, betas = [], []
    for _ in range(min(_LANCZOS_STEPS, A.shape[-1])):
        y = x
        for F, unit in zip(parts, units, strict=True):
            y = (y @ F).div_(unit)
        alpha = torch.zeros_like(beta) if skew else torch.linalg.vecdot(x, y).unsqueeze(-1)
        y = y.addcmul_(alpha, x, value=-1.0).addcmul_(beta, previous, value=1.0 if skew else -1.0)
        beta = torch.linalg.vector_norm(y, dim=-1, keepdim=True)
        previous, x = x, y / beta.clamp_min(1e-30)
        alphas.append(alpha)
        betas.append(beta)
    unit = math.prod(units[1:], start=units[0]).double()
    return torch.cat(alphas, -1).double(), torch.cat(betas, -1).double()[..., :-1], unit


def _native_lanczos(
    A: Tensor, x: Tensor, squared: bool, skew: bool
) -> tuple[Tensor, Tensor, Tensor] | None:
    """The same in C++, for one matrix; None where there is no library."""
    if len(A) != 1 or A.dtype != torch.float32 or not can_look(A) or switched_off():
        return None
    kernels = _lanczos_library()
    return None if kernels is None else _run_lanczos(kernels, A, x, squared, skew)


def _run_lanczos(
    kernels: Any, A: Tensor, x: Tensor, squared: bool, skew: bool
) -> tuple[Tensor, Tensor, Tensor]:
    A, x, d = A.contiguous(), x.contiguous(), A.shape[-1]
    steps, threads = min(_LANCZOS_STEPS, d), torch.get_num_threads() if d > _FEW else 1
    diagonals = A.new_empty(2, 1, steps, dtype=torch.float64)
    places = (A.data_ptr(), x.data_ptr(), diagonals[0].data_ptr(), diagonals[1].data_ptr())
    largest = kernels.lanczos(*places, d, steps, squared, skew, threads)
    unit = largest * largest if squared else largest
    return diagonals[0], diagonals[1, :, :-1], diagonals.new_tensor([[unit or 1.0]])


@functools.cache
def _lanczos_library() -> Any:
    """The function of lanczos.cpp, or None; tried once, on a few numbers."""
    found = library(Path(__file__).with_name("lanczos.cpp").read_text())
    if found is None:
        return None
    places = [c_void_p, c_void_p, c_void_p, c_void_p]
    found.lanczos.argtypes = [*places, c_int, c_int, c_bool, c_bool, c_int]
    found.lanczos.restype = c_float
    return found if _lanczos_agrees(found) else None


@trial
def _lanczos_agrees(kernels: Any) -> bool:
    """Whether both forms give the same matrix T for a symmetric, a squared and a skew A."""
    with torch.no_grad(), torch.device("cpu"):
        A = torch.linspace(-1.1, 2.3, 25, dtype=torch.float32).sin().view(1, 5, 5)
        x = torch.full((5,), 0.2**0.5, dtype=torch.float32)
        for matrix, squared, skew in (
            (A + A.mT, False, False),
            (A, True, False),
            (A - A.mT, False, True),
        ):
            found = _run_lanczos(kernels, matrix, x, squared, skew)
            expected = _lanczos(matrix, x, squared, skew)
            # Of a rank that ends early only the beginning is more than rounding.
            pairs = zip(_beginning(*found), _beginning(*expected), strict=True)
            if not all(abs(a - b) <= 1e-3 * (1.0 + abs(b)) for a, b in pairs):
                return False
    return True


def _beginning(diagonal: Tensor, off: Tensor, unit: Tensor) -> list[float]:
    numbers: list[float] = (torch.cat([diagonal[0, :3], off[0, :2]]) * unit[0]).tolist()
    return numbers


def number_of(value: Tensor) -> float:
    """The number that a way is chosen by; accelerators go by products.py, which chooses none."""
    found = known(value)
    return float(value) if found is None else found


def inverse_root_poles(low: float, high: float, error: float) -> tuple[list[float], list[float]]:
    """Shifts s_j and weights w_j with lambda^{-1/2} ~ sum_j w_j / (lambda + s_j) on [low, high].

    The trapezoidal rule after a conformal map; its error is about 2 exp(-2 pi r K / K').

    >>> shifts, weights = inverse_root_poles(1.0, 2.0, error=2e-6)
    >>> len(shifts), round(sum(w / (1.5 + s) for s, w in zip(shifts, weights)) * 1.5**0.5, 5)
    (3, 1.0)
    """
    ratio = min(low / high, 1.0 - 1e-9)
    half, full = _elliptic_k(1.0 - ratio), _elliptic_k(ratio)
    count = max(1, math.ceil(math.log(2.0 / error) * half / (2.0 * math.pi * full)))
    shifts, weights = [], []
    for j in range(count):
        sn, cn, dn = _jacobi((j + 0.5) * half / count, 1.0 - ratio)
        shifts.append(low * (sn / cn) ** 2)
        weights.append(2.0 * half * math.sqrt(low) / (math.pi * count) * dn / cn**2)
    return shifts, weights


def _elliptic_k(m: float) -> float:
    a, b = 1.0, math.sqrt(1.0 - m)
    while abs(a - b) > 1e-15 * a:
        a, b = (a + b) / 2, math.sqrt(a * b)
    return math.pi / (2.0 * a)


def _jacobi(u: float, m: float) -> tuple[float, float, float]:
    """sn, cn, dn at u with parameter m, by the arithmetic-geometric mean."""
    a, b, c = 1.0, math.sqrt(1.0 - m), math.sqrt(m)
    ratios = []
    while abs(c) > 1e-16:
        a, b, c = (a + b) / 2, math.sqrt(a * b), (a - b) / 2
        ratios.append(c / a)
    phi = 2.0 ** len(ratios) * a * u
    for r in reversed(ratios):
        phi = (phi + math.asin(r * math.sin(phi))) / 2
    sn = math.sin(phi)
    return sn, math.cos(phi), math.sqrt(1.0 - m * sn * sn)


def bessel(z: Sequence[float], eps: float, count: int | None = None) -> Tensor:
    """J_0(z), 2 J_1(z), 2 J_2(z), ... for every z: (len(z), count), in float64.

    The Fourier coefficients of exp(i z sin t). Without a `count` they are taken down to `eps`.

    >>> bessel([1.0], 1e-2)
    tensor([[0.7652, 0.8801, 0.2298, 0.0391]], dtype=torch.float64)
    """
    top = max(z)
    points = 2 * int(top + 12 * top ** (1 / 3) + 20)  # J_k(z) < 1e-17 from half of it on
    t = torch.arange(points, dtype=torch.float64, device="cpu") * (2.0 * math.pi / points)
    turns = torch.tensor(z, dtype=torch.float64, device="cpu").unsqueeze(-1)
    wave = torch.exp(1j * turns * torch.sin(t))
    values: Tensor = torch.fft.fft(wave).real[:, : points // 2] * (2.0 / points)
    values[:, 0] *= 0.5
    if count is None:
        above = (values.abs().amax(0) > eps).numpy().nonzero()[0]
        count = max(int(above[-1]) + 1, 3)
    return values[:, :count]


def gauss_legendre(theta: float, error: float) -> tuple[Tensor, Tensor]:
    """Nodes and weights on [0, 1] that integrate exp(i theta s) to `error`, in float64.

    >>> nodes, weights = gauss_legendre(2.0, 1e-6)
    >>> len(nodes), round(float((weights * torch.cos(2.0 * nodes)).sum()), 6)  # sin(2) / 2
    (4, 0.454649)
    """
    count, bound = 1, theta**2 / 24.0
    while bound > error:  # theta^2n (n!)^4 / ((2n + 1) (2n)!^3), the remainder of the rule
        count += 1
        ratio = (theta * count * count) ** 2 / (2.0 * count * (2.0 * count - 1.0)) ** 3
        bound *= ratio * (2.0 * count - 1.0) / (2.0 * count + 1.0)
    return _gauss_legendre(count)


@made_once(maxsize=64)
def _gauss_legendre(count: int) -> tuple[Tensor, Tensor]:
    """From the eigenvectors of the Jacobi matrix (Golub, Welsch 1969)."""
    k = torch.arange(1, count, dtype=torch.float64, device="cpu")
    off = k / (4.0 * k * k - 1.0).sqrt()
    nodes, vectors = torch.linalg.eigh(torch.diag(off, 1) + torch.diag(off, -1))
    return (nodes + 1.0) / 2.0, vectors[0].square()
