"""The two passes over the classes, a chunk at a time, on plain tensors.

Note [Gradients by hand]: with a = |z|, c = cos(z, w), n = 1 or |w|, the score f = a n g(c) has
    df/dz = n [ g'(c) (w/|w| - c z/|z|) + g(c) z/|z| ],
    df/dw = a n g'(c) (z/|z| - c w/|w|) / |w|   (+ a g(c) w/|w| where the norm of w stays).
Both are a matrix product with Q = P n g'(c) / |w| plus a multiple of z and of w themselves.
"""

from typing import Any

import torch
from torch import Tensor

from ...angular import angular, angular_derivative, angular_derivative_k, is_cosine


def forward_pass(
    z: Tensor,
    weight: Tensor,
    labels: Tensor,
    bias: Tensor | None,
    k: Tensor | None,
    mass: Tensor | None,
    index: Tensor | None,
    offset: Tensor | None,
    unit: bool,
    jacobian: bool,
    chunk: int,
    kind: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    count = weight.shape[0] if index is None else index.shape[0]
    position = _position(labels, index)
    length = torch.linalg.vector_norm(z, dim=1)
    others = z.new_full((z.shape[0],), -torch.inf)
    moment = z.new_zeros(z.shape[0])
    inverse = z.new_empty(count if unit or not is_cosine(kind) else 0)  # 1 / |w|
    scratch = z.new_empty(z.shape[0] * min(chunk, count))

    def scores(part: slice) -> Tensor:
        w = _rows(weight, index, part, z.dtype)
        f, _, _ = _scores(z, w, length, inverse[part], unit, kind, k, scratch)
        shift = _bias(bias, index, offset, part, z.dtype)
        return f if shift is None else f.add_(shift)

    for start in range(0, count, chunk):
        part = slice(start, min(start + chunk, count))
        if len(inverse):
            w = _rows(weight, index, part, z.dtype)
            inverse[part] = _inverse(torch.linalg.vector_norm(w, dim=1))
        f = scores(part)
        if mass is not None:
            at_target = _exclude(f, position, start, 0.0)
            moment += torch.linalg.vecdot(f, _mass(mass, index, part, f))
            f.scatter_(1, *at_target)
        _exclude(f, position, start, -torch.inf)
        # What is already known of the sum replaces the search for the largest score, except where
        # asking whether that overflowed would cost more than it saves.
        if start > 0 and z.device.type == "cpu" and not torch.compiler.is_compiling():
            total = f.sub_(others[:, None]).exp_().sum(1)
            if bool(total.isfinite().all()):
                others = others + total.log1p_()
                continue
            f = scores(part)
            _exclude(f, position, start, -torch.inf)
        others = torch.logaddexp(others, torch.logsumexp(f, 1))
    rows = weight[labels.clamp_min(0)].to(z.dtype)
    return others, moment, rows, inverse


def backward_pass(
    grad_others: Tensor,
    grad_moment: Tensor,
    grad_rows: Tensor,
    z: Tensor,
    weight: Tensor,
    labels: Tensor,
    bias: Tensor | None,
    k: Tensor | None,
    mass: Tensor | None,
    index: Tensor | None,
    offset: Tensor | None,
    others: Tensor,
    inverse: Tensor,
    unit: bool,
    jacobian: bool,
    chunk: int,
    kind: Any,
    learn_k: bool,
    parameters: tuple[Tensor, ...] = (),
) -> tuple[Tensor, ...]:
    """Gradients of z, weight, bias, k (both empty where there is none) and the parameters of g."""
    count = weight.shape[0] if index is None else index.shape[0]
    position = _position(labels, index)
    length = torch.linalg.vector_norm(z, dim=1)
    # A sample without other classes has -inf there; all its probabilities are 0.
    others = torch.where(others == -torch.inf, torch.zeros_like(others), others)

    grad_z = torch.zeros_like(z)
    grad_weight = torch.empty_like(weight) if index is None else torch.zeros_like(weight)
    grad_bias = z.new_zeros(0) if bias is None else torch.zeros_like(bias)
    learned = [*([k] if k is not None and learn_k else []), *parameters]
    grad_learned = [torch.zeros_like(p, dtype=z.dtype) for p in learned]
    along = z.new_zeros(z.shape[0])  # multiple of z / |z| in the gradient of z
    scratch = z.new_empty(2, z.shape[0] * min(chunk, count))
    # A factor per sample passes through the products: it can wait, and be applied to (B, d).
    later = is_cosine(kind) and mass is None
    factor = grad_others if later else torch.ones_like(grad_others)
    z_factor = z * factor[:, None]
    for start in range(0, count, chunk):
        part = slice(start, min(start + chunk, count))
        w, r = _rows(weight, index, part, z.dtype), inverse[part]
        f, c, g = _scores(z, w, length, r, unit, kind, k, scratch[0])
        p = torch.sub(f, others[:, None], out=_view(scratch[1], f.shape))
        shift = _bias(bias, index, offset, part, z.dtype)
        if shift is not None:
            p += shift
        # Where the target's margin lowered its score, its excluded plain one may be far above.
        _exclude(p, position, start, -torch.inf)
        p.exp_()
        if not later:
            p *= grad_others[:, None]
        if mass is not None:
            p.addcmul_(_mass(mass, index, part, p), grad_moment[:, None])
            _exclude(p, position, start, 0.0)
        if bias is not None:
            grad_bias[part if index is None else index[part]] = (factor @ p).to(bias.dtype)
        # q = p n g'(c) / |w|, and the multiple of w; see Note [Gradients by hand].
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
        in_place = index is None and weight.dtype == z.dtype
        out = grad_weight[part] if in_place else torch.empty_like(w)
        if pull is None:
            torch.mm((q if q_weight is None else q_weight).T, z_factor, out=out)
        else:
            torch.mul(w, pull[:, None], out=out).addmm_(q.T, z_factor)
        if not in_place:
            grad_weight[part if index is None else index[part]] = out.to(weight.dtype)
    grad_z *= factor[:, None]
    grad_z += (along * _inverse(length))[:, None] * z
    grad_rows = torch.where(labels[:, None] >= 0, grad_rows, torch.zeros_like(grad_rows))
    grad_weight.index_add_(0, labels.clamp_min(0), grad_rows.to(weight.dtype))
    grad_k = grad_learned[0].to(k.dtype) if k is not None and learn_k else z.new_zeros(0)
    return grad_z, grad_weight, grad_bias, grad_k, *grad_learned[len(learned) - len(parameters) :]


def _scores(
    z: Tensor,
    w: Tensor,
    length: Tensor,
    r: Tensor,
    unit: bool,
    kind: Any,
    k: Tensor | None,
    scratch: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """f = |z| n g(c), c and g(c) of one chunk; for the cosine f alone (the others alias it)."""
    f = torch.mm(z, w.T, out=_view(scratch, (z.shape[0], w.shape[0])))
    if is_cosine(kind):
        if unit:
            f *= r
        return f, f, f
    c = (f * _inverse(length)[:, None]).mul_(r).clamp_(-1, 1)  # not in scratch: it is kept
    g = angular(c, kind, k)
    return _times_norm(g * length[:, None], r, unit), c, g


def _view(scratch: Tensor, shape: tuple[int, ...]) -> Tensor:
    return scratch[: shape[0] * shape[1]].view(shape)


def _times_norm(x: Tensor, r: Tensor, unit: bool) -> Tensor:
    return x if unit else x * _inverse(r)


def _inverse(norm: Tensor) -> Tensor:
    # 0 where the norm is 0: a zero vector has cosine 0 with everything.
    return torch.where(norm > 0, norm.reciprocal(), torch.zeros_like(norm))


def _position(labels: Tensor, index: Tensor | None) -> Tensor:
    """Where the target stands in the list of classes summed over; -1 if it does not."""
    if index is None:
        return labels
    place = torch.searchsorted(index, labels).clamp_max(index.shape[0] - 1)
    return torch.where(index[place] == labels, place, -torch.ones_like(place))


def _exclude(f: Tensor, position: Tensor, start: int, value: float) -> tuple[Tensor, Tensor]:
    """Set the target's entry of each row to `value`; returns where, and what was there."""
    place = position - start
    inside = (place >= 0) & (place < f.shape[1])
    place = place.clamp(0, f.shape[1] - 1)[:, None]
    before = f.gather(1, place)
    f.scatter_(1, place, torch.where(inside[:, None], torch.full_like(before, value), before))
    return place, before


def _rows(weight: Tensor, index: Tensor | None, part: slice, dtype: torch.dtype) -> Tensor:
    return (weight[part] if index is None else weight[index[part]]).to(dtype)


def _bias(
    bias: Tensor | None,
    index: Tensor | None,
    offset: Tensor | None,
    part: slice,
    dtype: torch.dtype,
) -> Tensor | None:
    own = None if bias is None else (bias[part] if index is None else bias[index[part]]).to(dtype)
    extra = None if offset is None else offset[part].to(dtype)
    return extra if own is None else own if extra is None else own + extra


def _mass(mass: Tensor, index: Tensor | None, part: slice, like: Tensor) -> Tensor:
    return (mass[..., part] if index is None else mass[..., index[part]]).to(like).expand_as(like)


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
