"""The two passes over the classes, a chunk at a time, on plain tensors.

    f_j = |z| n_j g(c_j) + b_j,   c_j = cos(z, w_j),   n_j = 1 or |w_j|
    forward:   others = log sum_{j != y} exp f_j,   moment = sum_{j != y} mass_j f_j
    backward:  P_j = d loss / d f_j = d loss / d others * exp(f_j - others) + ...

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

from ...angular import angular, angular_derivative, angular_derivative_k, is_cosine
from ...host import known

__all__ = ["ClassScores", "backward_pass", "default_chunk", "forward_pass"]

CHUNK_ENTRIES = 1 << 19  # scores a chunk holds: 2 MB, small enough for the cache
MIN_CHUNK = 256


def default_chunk(batch: int) -> int:
    """Classes at a time, so that the scores of a chunk stay in the cache."""
    return max(MIN_CHUNK, CHUNK_ENTRIES // max(1, batch))


class ClassScores(NamedTuple):
    """What determines the scores; see :func:`~hypersphere.functional.class_logsumexp`.

    `subset` is its `index`: the classes that are summed over, None for all.
    """

    z: Tensor
    weight: Tensor
    labels: Tensor
    bias: Tensor | None
    k: Tensor | None
    mass: Tensor | None
    subset: Tensor | None
    offset: Tensor | None
    unit: bool
    jacobian: bool
    chunk: int
    kind: Any

    @property
    def class_count(self) -> int:
        """Classes that are summed over."""
        return self.weight.shape[0] if self.subset is None else self.subset.shape[0]

    def parts(self) -> Iterator[slice]:
        """The chunks, as ranges of the classes summed over."""
        for start in range(0, self.class_count, self.chunk):
            yield slice(start, min(start + self.chunk, self.class_count))

    def scratch(self) -> Tensor:
        """A buffer for the scores of the largest chunk."""
        return self.z.new_empty(self.z.shape[0] * min(self.chunk, self.class_count))

    def empty_inverse(self) -> Tensor:
        """A place for 1 / |w_j|, which the plain product z . w does not need."""
        return self.z.new_empty(self.class_count if self.unit or not is_cosine(self.kind) else 0)

    def classes(self, part: slice) -> slice | Tensor:
        """Where the classes of a chunk stand in the weight."""
        return part if self.subset is None else self.subset[part]

    def rows(self, part: slice) -> Tensor:
        """The weights of a chunk of classes, in the type of z."""
        return self.weight[self.classes(part)].to(self.z.dtype)

    def shift(self, part: slice) -> Tensor | None:
        """What is added to the scores of a chunk: bias and offset, if any."""
        own = None if self.bias is None else self.bias[self.classes(part)].to(self.z.dtype)
        extra = None if self.offset is None else self.offset[part].to(self.z.dtype)
        return extra if own is None else own if extra is None else own + extra

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
        z, unit, kind, k = self.z, self.unit, self.kind, self.k
        f = torch.mm(z, w.T, out=_view(scratch, (z.shape[0], w.shape[0])))
        if is_cosine(kind):
            if unit:
                f *= r
            return f, f, f
        c = (f * _inverse(length)[:, None]).mul_(r).clamp_(-1, 1)  # not in scratch: it is kept
        g = angular(c, kind, k)
        return _times_norm(g * length[:, None], r, unit), c, g


def forward_pass(scores: ClassScores) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """others (B,), moment (B,), the rows w_y (B, d) and 1 / |w|, which the backward pass uses."""
    z, mass = scores.z, scores.mass
    position = scores.position()
    length = torch.linalg.vector_norm(z, dim=1)
    others = z.new_full((z.shape[0],), -torch.inf)
    moment = z.new_zeros(z.shape[0])
    inverse = scores.empty_inverse()
    scratch = scores.scratch()

    def chunk_scores(part: slice) -> Tensor:
        f, _, _ = scores.values(scores.rows(part), length, inverse[part], scratch)
        shift = scores.shift(part)
        return f if shift is None else f.add_(shift)

    for part in scores.parts():
        start = part.start
        if len(inverse):
            inverse[part] = _inverse(torch.linalg.vector_norm(scores.rows(part), dim=1))
        f = chunk_scores(part)
        if mass is not None:
            at_target = _exclude(f, position, start, 0.0)
            moment += torch.linalg.vecdot(f, scores.masses(mass, part, f))
            f.scatter_(1, *at_target)
        _exclude(f, position, start, -torch.inf)
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
    rows = scores.weight[scores.labels.clamp_min(0)].to(z.dtype)
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
    z, weight, labels, bias, k, mass, subset, _, unit, jacobian, _, kind = scores
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
    wait = is_cosine(kind) and mass is None
    factor = grad_others if wait else torch.ones_like(grad_others)
    z_factor = z * factor[:, None]
    for part in scores.parts():
        start, w, r = part.start, scores.rows(part), inverse[part]
        f, c, g = scores.values(w, length, r, scratch)
        p = torch.sub(f, others[:, None], out=_view(second_scratch, f.shape))
        shift = scores.shift(part)
        if shift is not None:
            p += shift
        # Where the target's margin lowered its score, its excluded plain one may be far above.
        _exclude(p, position, start, -torch.inf)
        p.exp_()
        if not wait:
            p *= grad_others[:, None]
        if mass is not None:
            p.addcmul_(scores.masses(mass, part, p), grad_moment[:, None])
            _exclude(p, position, start, 0.0)
        if bias is not None:
            grad_bias[scores.classes(part)] = (factor @ p).to(bias.dtype)
        # q = p n g'(c) / |w|, and the multiple of w; see Note [Gradients by hand]. For the cosine,
        # f, p and q share the two buffers: each is overwritten where its value is used up.
        pull = q_weight = None
        if is_cosine(kind):
            if unit and jacobian:
                q = p.mul_(r)
                pull = -(factor @ f.mul_(q)) * r
            elif unit:  # the scores see w/|w|, the gradient goes to w as it is
                q, q_weight = torch.mul(p, r, out=f), p
            else:
                q = p
        else:
            upstream = _times_norm(p * length[:, None], r, unit) if learned else None
            slope, found = _slopes(c, kind, k, parameters, upstream)
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
        out = grad_weight[part] if in_place else torch.empty_like(w)
        if pull is None:
            torch.mm((q if q_weight is None else q_weight).T, z_factor, out=out)
        else:
            torch.mul(w, pull[:, None], out=out).addmm_(q.T, z_factor)
        if not in_place:
            grad_weight[scores.classes(part)] = out.to(weight.dtype)
    grad_z *= factor[:, None]
    grad_z += (along * _inverse(length))[:, None] * z
    grad_rows = torch.where(labels[:, None] >= 0, grad_rows, torch.zeros_like(grad_rows))
    grad_weight.index_add_(0, labels.clamp_min(0), grad_rows.to(weight.dtype))
    grad_k = grad_learned[0].to(k.dtype) if k is not None and learn_k else z.new_zeros(0)
    return grad_z, grad_weight, grad_bias, grad_k, *grad_learned[len(learned) - len(parameters) :]


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
    c: Tensor,
    kind: Any,
    k: Tensor | None,
    parameters: tuple[Tensor, ...],
    upstream: Tensor | None,
) -> tuple[Tensor, list[Tensor]]:
    """g'(c), and the sums of upstream dg/dk or upstream dg/dparameter for what is learned in g."""
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
