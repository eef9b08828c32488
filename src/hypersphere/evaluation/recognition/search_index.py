"""A gallery prepared for single queries: screened in 8 bits, answered exactly.

One query reads the whole gallery once, so memory bandwidth is its speed. `SearchIndex` keeps a copy
of the rows in one byte a number. Its scores are off by at most a bound b that is known: whoever is
more than 2 b below the k-th best can be left out, and the few rows that remain are scored in full
precision. The answer is that of `search`, from a quarter of the traffic.

# Note [Bound of the screening]
With q = q' + dq, g = g' + dg (primes: the rounded vectors),
|q.g - q'.g'| <= |dq| |g| + |q'| |dg|  (Cauchy-Schwarz). The products of whole numbers are exact.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from ..inputs import check_features, check_finite
from .search import RUN, check_search, run_maxima, search

FEW = 8  # with more queries the product, not the memory, is the limit: `search` is as fast
BLOCK = 1 << 16


class SearchIndex:
    """Exact search over rows of float32, which are kept and not copied; N d bytes more.

    Args:
        gallery: (N, d) float32.

    >>> g = torch.Generator().manual_seed(0)
    >>> gallery = torch.nn.functional.normalize(torch.randn(140_000, 8, generator=g), dim=1)
    >>> scores, rows = SearchIndex(gallery).search(gallery[7:8], k=3)
    >>> rows[0, 0].item(), torch.equal(rows, search(gallery[7:8], gallery, 3)[1])
    (7, True)
    """

    def __init__(self, gallery: Tensor) -> None:
        self.gallery = check_features("gallery", gallery)
        if self.gallery.dtype != torch.float32:
            raise ValueError(f"gallery: expected float32; got {self.gallery.dtype}")
        self.longest = self.worst = 0.0
        # A small gallery is in the cache anyway.
        self.plain = len(gallery) < 2 * BLOCK or not _products_are_exact()
        if self.plain:
            return
        self.codes = torch.empty(gallery.shape, dtype=torch.int8)
        self.scale = torch.empty(len(gallery))
        for start in range(0, len(gallery), BLOCK):
            here = slice(start, start + BLOCK)
            codes, self.scale[here], error = _encode(gallery[here])
            self.codes[here] = codes
            self.longest = max(self.longest, float(gallery[here].norm(dim=1).max()))
            self.worst = max(self.worst, float(error.max()))

    def __len__(self) -> int:
        return len(self.gallery)

    def search(self, queries: Tensor, k: int = 1) -> tuple[Tensor, Tensor]:
        """The k best matches of each query, best first.

        Args:
            queries: (n, d) float32.
            k: how many matches; at most N.

        Returns:
            Scores (n, k) and rows (n, k).
        """
        check_search(queries, self.gallery, k)
        check_finite("queries", queries)
        if self.plain or len(queries) > FEW or len(self) < 64 * k:
            return search(queries, self.gallery, k)
        codes, scale, error = _encode(queries)
        rounded = scale * codes.float().norm(dim=1)
        # Note [Bound of the screening]; the last part covers the rounding of float32 itself.
        bound = error * self.longest + rounded * self.worst + 1e-5 * self.longest * rounded
        rough = self._rough(codes, scale)  # (N, n)
        whole = len(self) // RUN * RUN
        # The k-th largest maximum of a run is not above the k-th best score.
        least = run_maxima(rough[:whole]).topk(k, dim=0).values[-1] - 2 * bound
        scores, rows = queries.new_empty(len(queries), k), torch.empty(len(queries), k).long()
        for i, query in enumerate(queries):
            left = (rough[:, i] >= least[i]).nonzero().flatten()
            # Where a product overflows, or nothing stands out, the screening tells nothing.
            if k <= len(left) <= len(self) // 16:
                top = (self.gallery[left] @ query).topk(k)
                scores[i], rows[i] = top.values, left[top.indices]
                if bool(top.values.isfinite().all()):
                    continue
            found = search(query.unsqueeze(0), self.gallery, k)
            scores[i], rows[i] = found[0][0], found[1][0]
        return scores, rows

    def _rough(self, codes: Tensor, scale: Tensor) -> Tensor:
        """Scores (N, n) of the rounded vectors."""
        turned = codes.T.contiguous()
        out = torch.empty(len(self), len(codes))
        for start in range(0, len(self), BLOCK):
            here = slice(start, start + BLOCK)
            product = torch._int_mm(self.codes[here], turned)
            torch.mul(product, self.scale[here].unsqueeze(1), out=out[here])
        return out.mul_(scale)


@functools.cache
def _products_are_exact() -> bool:
    """Whether this processor multiplies 8-bit numbers exactly.

    Without instructions made for it (VNNI), two products are added in 16 bits, which saturate: the
    bound of the screening would not hold, and the plain search is used instead.
    """
    largest = torch.full((64, 64), 127, dtype=torch.int8)
    exact = torch.full((64, 64), 64 * 127 * 127, dtype=torch.int32)
    return all(
        torch.equal(torch._int_mm(sign * largest, largest), sign * exact) for sign in (1, -1)
    )


def _encode(vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Whole numbers in [-127, 127] (n, d), the scale of each row (n,), the length of the error."""
    scale = vectors.abs().amax(1) / 127
    scale = torch.where(scale > 0, scale, 1.0)
    rounded = (vectors / scale.unsqueeze(1)).round_()
    error = (vectors - rounded * scale.unsqueeze(1)).norm(dim=1)
    return rounded.to(torch.int8), scale, error
