"""The maps of Section 7.3 and Appendix F.1 in float64, as the text writes them: no tricks."""

from __future__ import annotations

import torch
from torch import Tensor


def gram_schmidt(U: Tensor) -> Tensor:
    """Eq. F.1: subtract the projections of u_j on all earlier vectors, then normalize."""
    vectors: list[Tensor] = []
    for u in U.double().T:
        t = u.clone()
        for e in vectors:
            t = t - (u @ e) / (e @ e) * e
        vectors.append(t)
    return torch.stack([t / t.norm() for t in vectors], dim=1)


def modified_gram_schmidt(U: Tensor) -> Tensor:
    """Eq. F.3: each projection is taken of what the earlier ones have left."""
    vectors: list[Tensor] = []
    for u in U.double().T:
        t = u.clone()
        for e in vectors:
            t = t - (t @ e) / (e @ e) * e
        vectors.append(t)
    return torch.stack([t / t.norm() for t in vectors], dim=1)


def iterative_gram_schmidt(U: Tensor, steps: int = 3) -> Tensor:
    """Algorithm 2 with the while loop unrolled."""
    n = len(U)
    R = torch.zeros(n, n, dtype=torch.float64)
    for j in range(n):
        t = U.double()[:, j]
        for _ in range(steps):
            t = t - R @ (R.T @ t)
        R[:, j] = t / t.norm()
    return R


def householder(U: Tensor) -> Tensor:
    """Algorithm 3, with the reflections multiplied out: Q = H_1 H_2 ... H_{n-1}."""
    U = U.double().clone()
    n = len(U)
    Q = torch.eye(n, dtype=torch.float64)
    for j in range(n - 1):
        x = U[j:, j].clone()
        sigma2 = (x[1:] ** 2).sum()
        v = x.clone()
        v[0] = 1.0
        beta = 0.0
        if sigma2 != 0:
            mu = (x[0] ** 2 + sigma2).sqrt()
            v1 = x[0] - mu if x[0] <= 0 else -sigma2 / (x[0] + mu)
            beta = 2 * v1**2 / (sigma2 + v1**2)
            v = v / v1
            v[0] = 1.0
        H = torch.eye(n, dtype=torch.float64)
        H[j:, j:] -= beta * torch.outer(v, v)
        U, Q = H @ U, Q @ H
    return Q


def loewdin(U: Tensor) -> Tensor:
    """Eq. F.14: R = W V^T from the singular value decomposition."""
    W, _, Vt = torch.linalg.svd(U.double())
    return W @ Vt


def skew(U: Tensor) -> Tensor:
    return U.double().triu(1) - U.double().triu(1).T


def cayley(U: Tensor) -> Tensor:
    """R = (I + W)(I - W)^{-1} (7.3.4)."""
    W, eye = skew(U), torch.eye(len(U), dtype=torch.float64)
    return (eye + W) @ torch.linalg.inv(eye - W)


def exponential(U: Tensor) -> Tensor:
    """R = exp(W) by its power series on W / 2^k, then squared k times."""
    W = skew(U) / 2**20
    R = torch.eye(len(U), dtype=torch.float64) + W + W @ W / 2 + W @ W @ W / 6
    for _ in range(20):
        R = R @ R
    return R


def ogd_step(U: Tensor, gradient: Tensor, lr: float) -> Tensor:
    """Eq. 7.5 with the inverse, W as printed, and the sign of descent."""
    eye = torch.eye(len(U), dtype=torch.float64)
    hat = -(gradient @ U.T - 0.5 * U @ (U.T @ gradient @ U.T))
    W = hat - hat.T
    return torch.linalg.inv(eye - lr / 2 * W) @ (eye + lr / 2 * W) @ U
