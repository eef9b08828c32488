"""Exact nearest neighbors: the k largest inner products with every row of a gallery.

Scores of a block of the gallery come from one matrix product that stays in the cache. Their maxima
over short runs are cheap; the k best scores lie in the k runs with the largest maxima, so only
those runs are sorted, and only for the queries whose k-th best can still be beaten. Nothing is
approximated.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ..._optional import require
from ..inputs import check_finite

RUN = 64  # neighboring scores that share one maximum
SCORES_AT_ONCE = 1 << 21  # 8 MB of float32 scores
MANY_ROWS = 1 << 14  # from here on the form of a product is worth a measurement
FEW_QUERIES = 8  # with more of them all forms are the library's large products


def search(queries: Tensor, gallery: Tensor, k: int = 1) -> tuple[Tensor, Tensor]:
    """Scores and rows of the k best matches of each query, best first.

    Args:
        queries: (n, d). For cosines hand in unit vectors (`functional.normalize`).
        gallery: (N, d), of the same type as the queries (float32 is the fast one).
        k: how many matches; at most N.

    Returns:
        Scores (n, k) and rows (n, k). Between equal scores any order may come. Where products
        overflow, so that there are fewer than k, the score is -inf and the row is -1.

    Raises:
        ValueError: if shapes or types do not fit, or a row is not finite.

    >>> scores, rows = search(torch.eye(2), torch.tensor([[0.6, 0.8], [1.0, 0.0], [0.0, 0.5]]), k=2)
    >>> rows.tolist()
    [[1, 0], [0, 2]]
    """
    check_search(queries, gallery, k)
    queries, gallery = queries.detach(), gallery.detach()
    check_finite("queries", queries)
    n = len(queries)
    best = queries.new_full((n, k), -math.inf)
    rows = torch.zeros(n, k, dtype=torch.long, device=queries.device)
    for q in range(0, n, 1024):
        here = slice(q, q + 1024)
        _search_some(queries[here], gallery, best[here], rows[here])
    # Note [Rows that are not finite]: a look at the whole gallery would read it a second time, so
    # it is taken when scores are NaN or infinite. Finite rows of very large numbers may go on.
    if not bool(best.isfinite().all()):
        check_finite("gallery", gallery)
        rows.masked_fill_(best == -math.inf, -1)
    return best, rows


def check_search(queries: Tensor, gallery: Tensor, k: int) -> None:
    """Refuse shapes and types that do not fit together.

    Args:
        queries: (n, d).
        gallery: (N, d).
        k: how many matches.
    """
    if queries.ndim != 2 or gallery.ndim != 2 or queries.shape[1] != gallery.shape[1]:
        raise ValueError(
            "expected queries (n, d) and gallery (N, d) of one dimension; "
            f"got {tuple(queries.shape)} and {tuple(gallery.shape)}"
        )
    if queries.dtype != gallery.dtype:
        raise ValueError(
            f"queries are {queries.dtype}, the gallery is {gallery.dtype}; use one type"
        )
    if len(gallery) == 0:
        raise ValueError("the gallery is empty, so that there is nothing to find; add a row first")
    if not 1 <= k <= len(gallery):
        raise ValueError(f"k: expected 1 to {len(gallery)} (the size of the gallery); got {k}")


def _search_some(queries: Tensor, gallery: Tensor, best: Tensor, rows: Tensor) -> None:
    """Fill `best` and `rows` (n, k) in place for a few queries."""
    n = len(best)
    size = max(16 * RUN, min(SCORES_AT_ONCE // n, 1 << 16) // RUN * RUN)
    scores = queries.new_empty(size, n)
    for start in range(0, len(gallery), size):
        block = gallery[start : start + size]
        part = scores[: -(-len(block) // RUN) * RUN]
        products(block, queries, part[: len(block)])
        part[len(block) :] = -math.inf
        maxima = run_maxima(part)  # (runs, n)
        # NaN is neither above nor below: those queries are among the beaten, too.
        beaten = (~(maxima.amax(0) <= best[:, -1])).nonzero().flatten()
        if len(beaten) and not bool((maxima < math.inf).all()):
            check_finite("gallery", gallery)  # Note [Rows that are not finite]
            # inf - inf is NaN, or inf where a processor multiplies and adds in one step.
            part.nan_to_num_(nan=-math.inf, posinf=-math.inf, neginf=-math.inf)
            maxima = run_maxima(part)
        if len(beaten):
            _merge(part, maxima, beaten, start, best, rows)


def products(block: Tensor, queries: Tensor, out: Tensor) -> None:
    """Inner products of all rows with all queries.

    Args:
        block: (N, d), rows of a gallery.
        queries: (n, d).
        out: (N, n), filled in place.
    """
    few = len(queries) <= FEW_QUERIES and len(block) >= MANY_ROWS
    form = _fastest(block, queries) if few and block.device.type == "cpu" else _by_columns
    form(block, queries, out)


def _by_columns(block: Tensor, queries: Tensor, out: Tensor) -> None:
    """A query per column."""
    torch.mm(block, queries.T.contiguous(), out=out)


def _by_rows(block: Tensor, queries: Tensor, out: Tensor) -> None:
    """Rows with rows, as both lie in memory."""
    torch.mm(block, queries.T, out=out)


def _rows_apart(block: Tensor, queries: Tensor, out: Tensor) -> None:
    """The product of each row alone with the queries."""
    turned = queries.T.expand(len(block), -1, -1)
    torch.bmm(block.unsqueeze(1), turned, out=out.unsqueeze(1))


Form = Callable[[Tensor, Tensor, Tensor], None]
FORMS: tuple[Form, ...] = (_by_columns, _by_rows, _rows_apart)
_found: dict[tuple[torch.dtype, int, int], Form] = {}


def _fastest(block: Tensor, queries: Tensor) -> Form:
    """The form that multiplies so many queries fastest.

    All read the gallery once. Which of them reaches the speed of the memory differs between
    processors and libraries by a factor of four. Measured once per process, type and number of
    queries and threads, with rows of the gallery itself: memory that was never written would be
    read from the cache.
    """
    key = (block.dtype, len(queries), torch.get_num_threads())
    if key not in _found:
        out = queries.new_empty(len(block), len(queries))
        rounds = [
            [_seconds(partial(form, block, queries, out)) for form in FORMS] for _ in range(4)
        ]
        least = [min(column) for column in zip(*rounds[1:], strict=True)]
        _found[key] = FORMS[least.index(min(least))]
    return _found[key]


def _seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def run_maxima(scores: Tensor) -> Tensor:
    """Maxima over runs of neighboring rows.

    Args:
        scores: (N, n), N a multiple of RUN.

    Returns:
        (N / RUN, n).
    """
    if scores.shape[1] == 1:  # a plain row reduces faster than a column
        return scores.view(-1, RUN).amax(1, keepdim=True)
    return scores.view(-1, RUN, scores.shape[1]).amax(1)


def _merge(
    part: Tensor, maxima: Tensor, beaten: Tensor, start: int, best: Tensor, rows: Tensor
) -> None:
    """Let the block's best scores join the best so far, for the queries `beaten`."""
    k = best.shape[1]
    runs = maxima[:, beaten].topk(min(k, len(maxima)), dim=0).indices.T
    place = (runs.unsqueeze(-1) * RUN + torch.arange(RUN, device=runs.device)).flatten(1)
    joined = torch.cat([best[beaten], part[place, beaten.unsqueeze(1)]], 1)
    top, where = joined.topk(k, dim=1)
    best[beaten] = top
    rows[beaten] = torch.cat([rows[beaten], place + start], 1).gather(1, where)


def faiss_search(queries: Tensor, gallery: Tensor, k: int = 1) -> tuple[Tensor, Tensor]:
    """The same answer from faiss's flat index; needs the extra `search`.

    Args:
        queries: (n, d).
        gallery: (N, d).
        k: how many matches; at most N.

    Returns:
        Scores (n, k) and rows (n, k), in float32.

    >>> faiss_search(torch.eye(2), torch.eye(2))[1].tolist()
    [[0], [1]]
    """
    check_search(queries, gallery, k)
    check_finite("queries", queries)
    check_finite("gallery", gallery)
    faiss = require("faiss", extra="search")
    index = faiss.IndexFlatIP(gallery.shape[1])
    index.add(gallery.float().contiguous().numpy())
    scores, rows = index.search(queries.float().contiguous().numpy(), k)
    return torch.from_numpy(scores), torch.from_numpy(rows)


Search = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]
SEARCHES: dict[str, Search] = {"torch": search, "faiss": faiss_search}


def get_search(backend: str) -> Search:
    """A search by name.

    Args:
        backend: "torch" or "faiss".

    Returns:
        A function of queries, gallery and k.
    """
    if backend not in SEARCHES:
        raise ValueError(f"unknown backend {backend!r}: one of {', '.join(SEARCHES)}")
    return SEARCHES[backend]
