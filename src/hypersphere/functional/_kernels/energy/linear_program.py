"""The linear programs of one step towards packings, by an interior point method for many at once.

Points x_i move by d_i = r B_i y_i in their tangent spaces (B_i an orthonormal basis). To first
order the cosine of a pair becomes g_ij + x_j . d_i + x_i . d_j, and the largest one, c, is to be as
small as possible:

    minimize c   subject to   g_k + r a_k . y <= c  for each pair k,   |y| <= 1 in each coordinate.

Solved for (c - max g) / r, so that what is left shrinks with r.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["ContactRows", "smallest_maximum"]

Solve = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
# Entries of the matrices of the constraints up to which they are formed.
DENSE_ENTRIES = 2**22


class ContactRows:
    """Constraints a_k . y = left_k . y_i + right_k . y_j of R configurations of n points.

    i, j: (R, K) which points; left, right: (R, K, d - 1) slopes of the cosine in their coordinates;
    gap: (R, K) >= 0, what the cosine is below the largest one, divided by r. A row with slopes 0
    and a large gap stands for no constraint.
    """

    def __init__(
        self, n: int, i: Tensor, j: Tensor, left: Tensor, right: Tensor, gap: Tensor
    ) -> None:
        self.n, self.i, self.j, self.left, self.right, self.gap = n, i, j, left, right, gap
        count, pairs, m = left.shape
        self.rows: Tensor | None = None
        if count * pairs * n * m <= DENSE_ENTRIES:
            rows = left.new_zeros(count, pairs, n, m)
            place = torch.arange(count)[:, None], torch.arange(pairs)
            rows[(*place, i)] = left
            rows[(*place, j)] += right
            self.rows = rows.flatten(2)

    def times(self, y: Tensor) -> Tensor:
        """a_k . y for all pairs: (R, n, d - 1) -> (R, K)."""
        if self.rows is not None:
            return (self.rows @ y.flatten(1)[..., None])[..., 0]
        number = torch.arange(len(y))[:, None]
        return (self.left * y[number, self.i]).sum(2) + (self.right * y[number, self.j]).sum(2)

    def transposed(self, weights: Tensor) -> Tensor:
        """sum_k weights_k a_k: (R, K) -> (R, n, d - 1)."""
        count, m = len(weights), self.left.shape[2]
        if self.rows is not None:
            return (weights[:, None] @ self.rows).view(count, self.n, m)
        first = self.n * torch.arange(count)[:, None]
        total = self.left.new_zeros(count * self.n, m)
        for index, slope in ((self.i, self.left), (self.j, self.right)):
            weighted = weights[:, :, None] * slope
            total.index_add_(0, (first + index).flatten(), weighted.flatten(0, 1))
        return total.view(count, self.n, m)

    def normal_matrix(self, weights: Tensor) -> Tensor:
        """sum_k weights_k a_k a_k^T: (R, n (d - 1), n (d - 1)).

        Of few constraints by a matrix product; of many by their blocks of (d - 1, d - 1).
        """
        if self.rows is not None:
            return (self.rows * weights[..., None]).mT @ self.rows
        count, m, n = len(weights), self.left.shape[2], self.n
        first = n * n * torch.arange(count)[:, None]
        blocks = self.left.new_zeros(count * n * n, m, m)
        ends = ((self.i, self.left), (self.j, self.right))
        for a, u in ends:
            weighted = (weights[:, :, None] * u)[..., None]
            for b, v in ends:
                place = (first + a * n + b).flatten()
                blocks.index_add_(0, place, (weighted * v[:, :, None]).flatten(0, 1))
        return blocks.view(count, n, n, m, m).transpose(2, 3).reshape(count, n * m, n * m)


def smallest_maximum(
    pairs: ContactRows, tolerance: float = 1e-11, iterations: int = 60
) -> tuple[Tensor, Tensor, Tensor]:
    """Mehrotra's predictor-corrector method from the feasible start y = 0, c = max g + r.

    Returns:
        The steps y (R, n, d - 1); the multipliers (R, K), >= 0 with sum 1, which are the forces in
        the contacts; and (c - max g) / r, (R,), what the steps promise: below 0 if they improve.
    """
    count, m = len(pairs.i), pairs.left.shape[2]
    y = pairs.left.new_zeros(count, pairs.n, m)
    c = y.new_ones(count)
    slack = pairs.gap + 1
    force = torch.full_like(slack, 1 / slack.shape[1])
    # Slacks and multipliers of y <= 1 and of -y <= 1
    signs = y.new_tensor([1.0, -1.0])[:, None, None]
    sides = y.new_ones(count, 2, pairs.n, m)
    walls = torch.full_like(sides, 1 / (2 * pairs.n * m))
    total = slack.shape[1] + sides[0].numel()
    done = torch.zeros(count, dtype=torch.bool)
    for _ in range(iterations):
        mean = ((slack * force).sum(1) + (sides * walls).flatten(1).sum(1)) / total
        dual = pairs.transposed(force) + (signs * walls).sum(1)
        dual_c = 1 - force.sum(1)
        wrong = torch.maximum(dual.abs().amax((1, 2)), dual_c.abs())
        # Programs that are done stay where they are: farther on, 1 / slack leaves the range
        done |= (mean * total < tolerance) & (wrong < 100 * tolerance)
        if bool(done.all()):
            break
        solve, failed = _factor(pairs, force / slack, (walls / sides).sum(1))
        done |= failed

        now = (slack, force, sides, walls, dual, dual_c)
        _, _, ds, dsides, df, dwalls = _step(pairs, solve, now, slack * force, sides * walls)
        a, b = _longest(slack, ds, sides, dsides), _longest(force, df, walls, dwalls)
        ahead = ((slack + a[:, None] * ds) * (force + b[:, None] * df)).sum(1)
        a4, b4 = a[:, None, None, None], b[:, None, None, None]
        ahead += ((sides + a4 * dsides) * (walls + b4 * dwalls)).flatten(1).sum(1)
        target = mean * (ahead / total / mean).clamp(0, 1) ** 3
        dy, dc, ds, dsides, df, dwalls = _step(
            pairs,
            solve,
            now,
            slack * force + ds * df - target[:, None],
            sides * walls + dsides * dwalls - target[:, None, None, None],
        )
        a = 0.995 * _longest(slack, ds, sides, dsides)
        b = 0.995 * _longest(force, df, walls, dwalls)
        a, b = a.masked_fill(done, 0), b.masked_fill(done, 0)
        a4, b4 = a[:, None, None, None], b[:, None, None, None]
        y, c = y + a4[:, 0] * dy, c + a * dc
        slack, sides = slack + a[:, None] * ds, sides + a4 * dsides
        force, walls = force + b[:, None] * df, walls + b4 * dwalls
        if float(torch.maximum(a, b).max()) < 1e-9:  # rounding has the last word
            break
    return y, force, c


def _step(
    pairs: ContactRows, solve: Solve, now: tuple[Tensor, ...], pull: Tensor, wall_pull: Tensor
) -> tuple[Tensor, ...]:
    """The Newton step after which slack x force has lost `pull` and the duals are zero."""
    slack, force, sides, walls, dual, dual_c = now
    signs = slack.new_tensor([1.0, -1.0])[:, None, None]
    # slack df + force ds = -pull with ds = dc - a . dy
    right = -dual + pairs.transposed(pull / slack) + (signs * wall_pull / sides).sum(1)
    dy, dc = solve(right, -dual_c - (pull / slack).sum(1))
    ds = dc[:, None] - pairs.times(dy)
    dsides = -signs * dy[:, None]
    df = -(pull + force * ds) / slack
    return dy, dc, ds, dsides, df, -(wall_pull + walls * dsides) / sides


def _factor(pairs: ContactRows, weights: Tensor, box: Tensor) -> tuple[Solve, Tensor]:
    """Solver of the normal equations in (y, c), by a Cholesky factor of the part of y.

    Also: (R,) which matrices have no factor even after a correction of the size of the rounding.
    """
    matrix = pairs.normal_matrix(weights)
    diagonal = matrix.diagonal(dim1=1, dim2=2)
    diagonal.add_(box.flatten(1))
    scale = diagonal.rsqrt()
    matrix.mul_(scale[:, :, None]).mul_(scale[:, None])
    factor, failed = torch.linalg.cholesky_ex(matrix)
    for exponent in range(-15, -9):  # rounding may take the last eigenvalues below zero
        if not bool(failed.any()):
            break
        diagonal += 10.0**exponent * (failed > 0)[:, None]
        factor, failed = torch.linalg.cholesky_ex(matrix)
    if bool(failed.any()):
        factor[failed > 0] = torch.eye(matrix.shape[1], dtype=matrix.dtype)

    def apply(right: Tensor) -> Tensor:
        return scale * torch.cholesky_solve((scale * right)[..., None], factor)[..., 0]

    border = pairs.transposed(weights).flatten(1)  # minus the column of c
    through = apply(border)
    corner = (weights.sum(1) - (border * through).sum(1)).clamp_min(1e-300)

    def solve(right: Tensor, right_c: Tensor) -> tuple[Tensor, Tensor]:
        part = apply(right.flatten(1))
        dc = (right_c + (border * part).sum(1)) / corner
        return (part + dc[:, None] * through).view_as(right), dc

    return solve, failed > 0


def _longest(a: Tensor, da: Tensor, b: Tensor, db: Tensor) -> Tensor:
    """The longest steps up to 1 that keep both positive: (R,)."""
    worst = torch.maximum((-da / a).amax(1), (-db / b).flatten(1).amax(1))
    return 1 / worst.clamp_min(1)
