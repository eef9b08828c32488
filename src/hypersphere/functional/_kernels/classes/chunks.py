"""The two passes over the classes, a chunk at a time, on plain tensors.

    f_j = |z| n_j g(c_j) + b_j,   c_j = cos(z, w_j),   n_j = 1 or |w_j|
    forward:   others = log sum_{j != y} exp f_j,   moment = sum_{j != y} mass_j f_j
    backward:  P_j = d loss / d f_j = d loss / d others * exp(f_j - others) + ...

With link "softplus" others = sum_{j != y} log(1 + exp f_j), and sigmoid(f_j) takes the place of
exp(f_j - others).

Note [Sub-centers]: with K sub-centers the weight has K rows per class, one after the other, and the
score of a class is the largest of theirs. The gradient goes to that row alone: backwards, P (B, C)
is spread to (B, C K), zero elsewhere, and everything after it sees K C rows.

Note [Gradients by hand]: the score f = |z| n g(c) has
    df/dz = n [ g'(c) (w/|w| - c z/|z|) + g(c) z/|z| ],
    df/dw = |z| n g'(c) (z/|z| - c w/|w|) / |w|   (+ |z| g(c) w/|w| where the norm of w stays).
Both are a matrix product with Q = P n g'(c) / |w| plus a multiple of z and of w themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ...angular import angular, angular_derivative, angular_derivative_k, is_cosine
from ...curricular import curricular, curricular_slope
from ...host import known

__all__ = ["ClassScores", "backward_pass", "default_chunk", "forward_pass"]

CHUNK_ENTRIES = 1 << 19  # scores a chunk holds: 2 MB, small enough for the cache
MIN_CHUNK = 256


def default_chunk(batch: int, subcenters: int = 1) -> int:
    """Classes at a time, so that the scores of a chunk stay in the cache."""
    return max(1, max(MIN_CHUNK, CHUNK_ENTRIES // max(1, batch)) // subcenters)


class ClassScores(NamedTuple):
    """What determines the scores; see :func:`~hypersphere.functional.class_logsumexp`.

    `subset` is its `index`: the classes that are summed over, None for all. `level` and `t` are
    those of :func:`~hypersphere.functional.curricular`, None without it.
    """

    z: Tensor
    weight: Tensor
    labels: Tensor
    bias: Tensor | None
    k: Tensor | None
    mass: Tensor | None
    subset: Tensor | None
    offset: Tensor | None
    level: Tensor | None
    t: Tensor | None
    unit: bool
    jacobian: bool
    chunk: int
    subcenters: int
    link: str
    kind: Any

    @property
    def is_product(self) -> bool:
        """Whether the scores are inner products, for which there are shortcuts."""
        return is_cosine(self.kind) and self.level is None

    @property
    def class_count(self) -> int:
        """Classes that are summed over."""
        if self.subset is not None:
            return self.subset.shape[0]
        return self.weight.shape[0] // self.subcenters

    def parts(self) -> Iterator[slice]:
        """The chunks, as ranges of the classes summed over."""
        for start in range(0, self.class_count, self.chunk):
            yield slice(start, min(start + self.chunk, self.class_count))

    def scratch(self) -> Tensor:
        """A buffer for the scores of the largest chunk."""
        return self.z.new_empty(
            self.z.shape[0] * min(self.chunk, self.class_count) * self.subcenters
        )

    def empty_inverse(self) -> Tensor:
        """A place for 1 / |w_j|, which the plain product z . w does not need."""
        needed = self.unit or not self.is_product
        return self.z.new_empty(self.class_count * self.subcenters if needed else 0)

    def classes(self, part: slice) -> slice | Tensor:
        """Where the classes of a chunk stand among all."""
        return part if self.subset is None else self.subset[part]

    def places(self, part: slice) -> slice | Tensor:
        """Where the rows of a chunk stand in the weight."""
        if self.subset is None:
            return self.wide(part)
        if self.subcenters == 1:
            return self.subset[part]
        return _row_numbers(self.subset[part], self.subcenters).flatten()

    def wide(self, part: slice) -> slice:
        """A range of classes as a range of rows."""
        return slice(part.start * self.subcenters, part.stop * self.subcenters)

    def rows(self, part: slice) -> Tensor:
        """The weights of a chunk of classes, in the type of z."""
        return self.weight[self.places(part)].to(self.z.dtype)

    def shift(self, part: slice) -> Tensor | None:
        """What is added to the scores of a chunk: bias and offset, if any."""
        own = None if self.bias is None else self.bias[self.classes(part)].to(self.z.dtype)
        if self.link == "softplus":  # there the offset is a factor, see `times`
            return own
        extra = None if self.offset is None else self.offset[part].to(self.z.dtype)
        return extra if own is None else own if extra is None else own + extra

    def times(self, part: slice) -> Tensor | None:
        """How many classes each of a chunk stands for, where their terms are added up."""
        if self.link != "softplus" or self.offset is None:
            return None
        return self.offset[part].to(self.z.dtype).exp()

    def best(self, f: Tensor) -> tuple[Tensor, Tensor | None]:
        """The score of each class from those of its rows, and which row has it."""
        if self.subcenters == 1:
            return f, None
        values, index = f.view(f.shape[0], -1, self.subcenters).max(2)
        return values, index

    def spread(self, p: Tensor, index: Tensor | None) -> Tensor:
        """The opposite of `best` for gradients; see Note [Sub-centers]."""
        if index is None:
            return p
        wide = p.new_zeros(*p.shape, self.subcenters)
        return wide.scatter_(2, index[..., None], p[..., None]).flatten(1)

    def target_places(self) -> Tensor:
        """Where the rows w_y stand in the weight: of several, the nearest to z; (B,)."""
        labels = self.labels.clamp_min(0)
        if self.subcenters == 1:
            return labels
        places = _row_numbers(labels, self.subcenters)
        rows = self.weight[places].to(self.z.dtype)  # (B, K, d)
        cosines = torch.linalg.vecdot(rows, self.z[:, None]) * _inverse(rows.norm(dim=2))
        return places.gather(1, cosines.argmax(1, keepdim=True))[:, 0]

    def activation(self, c: Tensor) -> Tensor:
        """g(c)."""
        if self.level is not None and self.t is not None:
            return curricular(c, self.level.to(c), self.t.to(c))
        return angular(c, self.kind, self.k)

    def masses(self, mass: Tensor, part: slice, like: Tensor) -> Tensor:
        """The masses of a chunk, (B, chunk)."""
        return mass[..., self.classes(part)].to(like).expand_as(like)

    def position(self) -> Tensor:
        """Where the target stands among the classes summed over; -1 if it does not."""
        if self.subset is None:
            return self.labels
        place = torch.searchsorted(self.subset, self.labels).clamp_max(self.subset.shape[0] - 1)
        return torch.where(self.subset[place] == self.labels, place, -torch.ones_like(place))

    def values(
        self, w: Tensor, length: Tensor, r: Tensor, scratch: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """|z| n g(c), c and g(c) of a chunk; for the cosine |z| n g(c) alone (the others alias it).

        Args:
            w: the rows of the chunk.
            length: |z|, (B,).
            r: 1 / |w| of the chunk.
            scratch: a buffer that the first result may use.
        """
        z, unit = self.z, self.unit
        f = torch.mm(z, w.T, out=_view(scratch, (z.shape[0], w.shape[0])))
        if self.is_product:
            if unit:
                f *= r
            return f, f, f
        c = (f * _inverse(length)[:, None]).mul_(r).clamp_(-1, 1)  # not in scratch: it is kept
        g = self.activation(c)
        return _times_norm(g * length[:, None], r, unit), c, g


def forward_pass(scores: ClassScores) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """others (B,), moment (B,), the rows w_y (B, d) and 1 / |w|, which the backward pass uses."""
    z, mass = scores.z, scores.mass
    position = scores.position()
    length = torch.linalg.vector_norm(z, dim=1)
    others = z.new_full((z.shape[0],), -torch.inf if scores.link == "logsumexp" else 0.0)
    moment = z.new_zeros(z.shape[0])
    inverse = scores.empty_inverse()
    scratch = scores.scratch()

    def chunk_scores(part: slice) -> Tensor:
        f, _, _ = scores.values(scores.rows(part), length, inverse[scores.wide(part)], scratch)
        f, _ = scores.best(f)
        shift = scores.shift(part)
        return f if shift is None else f.add_(shift)

    for part in scores.parts():
        start = part.start
        if len(inverse):
            norm = torch.linalg.vector_norm(scores.rows(part), dim=1)
            inverse[scores.wide(part)] = _inverse(norm)
        f = chunk_scores(part)
        if mass is not None:
            at_target = _exclude(f, position, start, 0.0)
            moment += torch.linalg.vecdot(f, scores.masses(mass, part, f))
            f.scatter_(1, *at_target)
        _exclude(f, position, start, -torch.inf)
        if scores.link == "softplus":
            terms, times = F.softplus(f, threshold=40), scores.times(part)
            others = others + (terms.sum(1) if times is None else terms @ times)
            continue
        # What is already known of the sum replaces the search for the largest score, except where
        # asking whether that overflowed would cost more than it saves.
        if start > 0 and z.device.type == "cpu" and not torch.compiler.is_compiling():
            total = f.sub_(others[:, None]).exp_().sum(1)
            if known(total.isfinite().all()):
                others = others + total.log1p_()
                continue
            f = chunk_scores(part)
            _exclude(f, position, start, -torch.inf)
        others = torch.logaddexp(others, torch.logsumexp(f, 1))
    rows = scores.weight[scores.target_places()].to(z.dtype)
    return others, moment, rows, inverse


def backward_pass(
    scores: ClassScores,
    grad_others: Tensor,
    grad_moment: Tensor,
    grad_rows: Tensor,
    others: Tensor,
    inverse: Tensor,
    learn_k: bool,
    parameters: tuple[Tensor, ...] = (),
) -> tuple[Tensor, ...]:
    """Gradients of z, weight, bias, k (both empty where there is none) and the parameters of g."""
    z, weight, labels, bias, k, mass = scores[:6]
    subset, unit, jacobian = scores.subset, scores.unit, scores.jacobian
    position = scores.position()
    length = torch.linalg.vector_norm(z, dim=1)
    # A sample without other classes has -inf there; all its probabilities are 0.
    others = torch.where(others == -torch.inf, torch.zeros_like(others), others)

    grad_z = torch.zeros_like(z)
    grad_weight = torch.empty_like(weight) if subset is None else torch.zeros_like(weight)
    grad_bias = z.new_zeros(0) if bias is None else torch.zeros_like(bias)
    learned = [*([k] if k is not None and learn_k else []), *parameters]
    grad_learned = [torch.zeros_like(p, dtype=z.dtype) for p in learned]
    along = z.new_zeros(z.shape[0])  # multiple of z / |z| in the gradient of z
    scratch, second_scratch = scores.scratch(), scores.scratch()
    # A factor per sample passes through the products: it can wait, and be applied to (B, d).
    wait = scores.is_product and mass is None
    factor = grad_others if wait else torch.ones_like(grad_others)
    z_factor = z * factor[:, None]
    for part in scores.parts():
        start, w, r = part.start, scores.rows(part), inverse[scores.wide(part)]
        f, c, g = scores.values(w, length, r, scratch)
        score, row = scores.best(f)
        p = _view(second_scratch, score.shape)
        if scores.link == "softplus":
            p.copy_(score)
        else:
            torch.sub(score, others[:, None], out=p)
        shift = scores.shift(part)
        if shift is not None:
            p += shift
        # Where the target's margin lowered its score, its excluded plain one may be far above.
        _exclude(p, position, start, -torch.inf)
        if scores.link == "softplus":
            p.sigmoid_()
            times = scores.times(part)
            p = p if times is None else p.mul_(times)
        else:
            p.exp_()
        if not wait:
            p *= grad_others[:, None]
        if mass is not None:
            p.addcmul_(scores.masses(mass, part, p), grad_moment[:, None])
            _exclude(p, position, start, 0.0)
        if bias is not None:
            grad_bias[scores.classes(part)] = (factor @ p).to(bias.dtype)
        p = scores.spread(p, row)
        # q = p n g'(c) / |w|, and the multiple of w; see Note [Gradients by hand]. For the cosine,
        # f, p and q share the two buffers: each is overwritten where its value is used up.
        pull = q_weight = None
        if scores.is_product:
            if unit and jacobian:
                q = p.mul_(r)
                pull = -(factor @ f.mul_(q)) * r
            elif unit:  # the scores see w/|w|, the gradient goes to w as it is
                q, q_weight = torch.mul(p, r, out=f), p
            else:
                q = p
        else:
            upstream = _times_norm(p * length[:, None], r, unit) if learned else None
            slope, found = _slopes(scores, c, parameters, upstream)
            for total, one in zip(grad_learned, found, strict=True):
                total += one
            t = _times_norm(p, r, unit)
            q = t * slope
            along += torch.linalg.vecdot(t, g) - torch.linalg.vecdot(q, c)
            pull = -(length @ (q * c))
            if not unit:
                pull += torch.linalg.vecdot(p, f, dim=0)
            pull *= r * r
            q *= r
        grad_z.addmm_(q, w)
        in_place = subset is None and weight.dtype == z.dtype
        out = grad_weight[scores.wide(part)] if in_place else torch.empty_like(w)
        if pull is None:
            torch.mm((q if q_weight is None else q_weight).T, z_factor, out=out)
        else:
            torch.mul(w, pull[:, None], out=out).addmm_(q.T, z_factor)
        if not in_place:
            grad_weight[scores.places(part)] = out.to(weight.dtype)
    grad_z *= factor[:, None]
    grad_z += (along * _inverse(length))[:, None] * z
    grad_rows = torch.where(labels[:, None] >= 0, grad_rows, torch.zeros_like(grad_rows))
    grad_weight.index_add_(0, scores.target_places(), grad_rows.to(weight.dtype))
    grad_k = grad_learned[0].to(k.dtype) if k is not None and learn_k else z.new_zeros(0)
    return grad_z, grad_weight, grad_bias, grad_k, *grad_learned[len(learned) - len(parameters) :]


def _row_numbers(classes: Tensor, subcenters: int) -> Tensor:
    """The rows of each class, (..., K)."""
    return classes[..., None] * subcenters + torch.arange(subcenters, device=classes.device)


def _view(scratch: Tensor, shape: tuple[int, ...]) -> Tensor:
    return scratch[: shape[0] * shape[1]].view(shape)


def _times_norm(x: Tensor, r: Tensor, unit: bool) -> Tensor:
    return x if unit else x * _inverse(r)


def _inverse(norm: Tensor) -> Tensor:
    # 0 where the norm is 0: a zero vector has cosine 0 with everything.
    return torch.where(norm > 0, norm.reciprocal(), torch.zeros_like(norm))


def _exclude(f: Tensor, position: Tensor, start: int, value: float) -> tuple[Tensor, Tensor]:
    """Set the target's entry of each row to `value`; returns where, and what was there."""
    place = position - start
    inside = (place >= 0) & (place < f.shape[1])
    place = place.clamp(0, f.shape[1] - 1)[:, None]
    before = f.gather(1, place)
    f.scatter_(1, place, torch.where(inside[:, None], torch.full_like(before, value), before))
    return place, before


def _slopes(
    scores: ClassScores,
    c: Tensor,
    parameters: tuple[Tensor, ...],
    upstream: Tensor | None,
) -> tuple[Tensor, list[Tensor]]:
    """g'(c), and the sums of upstream dg/dk or upstream dg/dparameter for what is learned in g."""
    kind, k = scores.kind, scores.k
    if scores.level is not None and scores.t is not None:
        return curricular_slope(c, scores.level.to(c), scores.t.to(c)), []
    if upstream is None:
        return angular_derivative(c, kind, k), []
    if isinstance(kind, str):
        return angular_derivative(c, kind, k), [(upstream * angular_derivative_k(c, k, kind)).sum()]
    with torch.enable_grad():
        c = c.detach().requires_grad_()
        g = kind(c)
        (slope,) = torch.autograd.grad(g.sum(), c, retain_graph=True)
        got = torch.autograd.grad(g, parameters, upstream, allow_unused=True)
    pairs = zip(got, parameters, strict=True)
    return slope, [torch.zeros_like(p) if x is None else x for x, p in pairs]
