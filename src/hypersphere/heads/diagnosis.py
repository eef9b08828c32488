"""A training that does not move, explained in words."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..functional.angles import normalize, row_norm
from ..functional.cross_entropy import margin_cross_entropy, margin_logits
from ..functional.labels import check_labels, check_shapes
from ..functional.margins import is_trivial
from .margin import MarginHead
from .theory import automatic_scale, minimum_loss, minimum_scale

__all__ = ["Diagnosis", "Start", "diagnose", "first_look"]

OPPOSITE = -0.5  # mean cosine to all classes, below which nothing comes back by itself
AWAY = -0.3  # below which features are on the way there, or stay if nothing else is learned


@dataclass(frozen=True)
class Diagnosis:
    """What `diagnose` measured on a batch, and what to change, in words.

    Args:
        loss: the cross entropy with margin and annealing as the head has them, without penalties.
        plain_loss: without margin.
        log_classes: log C, the loss of guessing.
        accuracy: without margin, in 0..1.
        target_angle: mean angle to the own class, in degrees.
        class_cosine: mean cosine to all classes; near 0 in a training that works.
        scale: mean scale of the scores.
        lam: the lambda of annealing; None without it.
        advice: what to change; empty if nothing is conspicuous.
    """

    loss: float
    plain_loss: float
    log_classes: float
    accuracy: float
    target_angle: float
    class_cosine: float
    scale: float
    lam: float | None
    advice: list[str] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        """Whether nothing is conspicuous."""
        return not self.advice

    def __str__(self) -> str:
        lam = "" if self.lam is None else f", lambda {self.lam:.3g}"
        lines = [
            f"loss {self.loss:.3f} (without margin {self.plain_loss:.3f}, guessing "
            f"{self.log_classes:.3f}), accuracy {100 * self.accuracy:.1f} %, "
            f"angle to the own class {self.target_angle:.0f} degrees, scale {self.scale:.3g}{lam}"
        ]
        return "\n".join(
            [*lines, *(f"- {line}" for line in self.advice or ["nothing conspicuous"])]
        )


class Start(NamedTuple):
    """What :func:`first_look` measured at the first update; nobody has waited for it.

    Args:
        accuracy: without margin, in 0..1.
        target_angle: mean angle to the own class, in degrees.
        scale: mean scale of the scores.
    """

    accuracy: Tensor
    target_angle: Tensor
    scale: Tensor


@torch.no_grad()
def first_look(
    head: MarginHead, features: Tensor, labels: Tensor, ignore_index: int = -100
) -> Start:
    """Measure a first batch for a later :func:`diagnose`, without a value that the host reads.

    Args:
        head: the head, not sharded.
        features: (B, d), from the training set.
        labels: (B,) integers.
        ignore_index: samples with this label are left out.

    Returns:
        The measurements, on the device of the features.
    """
    x, counted = features.detach().float(), (labels != ignore_index).float()
    counted = counted / counted.sum().clamp_min(1)
    labels = labels.long().clamp(0, head.num_classes - 1)
    right = margin_logits(x, head.weight, **head.score_options()).argmax(1) == labels
    lengths = row_norm(x) if head.scale is None else torch.ones_like(counted) * head.scale
    means = (counted @ right.float(), counted @ _own_angles(head, x, labels), counted @ lengths)
    return Start(*means)


def _own_angles(head: MarginHead, x: Tensor, labels: Tensor) -> Tensor:
    """Angle of each feature to its class, the nearest of its sub-centers, in degrees."""
    rows = head.weight.view(head.num_classes, head.subcenters, -1)[labels]
    cos = torch.einsum("bd,bkd->bk", normalize(x), normalize(rows.float(), dim=-1)).amax(1)
    return cos.clamp(-1, 1).acos().rad2deg()


@torch.no_grad()
def diagnose(
    head: MarginHead,
    features: Tensor,
    labels: Tensor,
    stuck: float = 0.1,
    ignore_index: int = -100,
    fresh: bool = False,
    start: Start | Diagnosis | None = None,
) -> Diagnosis:
    """Look at one batch: is the loss stuck at log C, and is the margin too hard?

    Call it after some hundred updates; a fresh head has a loss of log C by nature. With `fresh` it
    says only what is sure before, and with `start` also where the features are on a wrong way.

    Args:
        head: the head, not sharded.
        features: (B, d), from the training set.
        labels: (B,) integers.
        stuck: how near to log C, relative, counts as stuck.
        ignore_index: samples with this label are left out.
        fresh: leave out what is natural after few updates: a loss of log C, a margin that is not
            met.
        start: what was found at the first update, to compare with: by this function, or by
            `first_look`.

    Returns:
        The measurements and the advice; printed, it reads as text.

    >>> torch.manual_seed(0)
    <torch._C.Generator object at ...>
    >>> head = MarginHead(16, 100, scale=1.0)
    >>> found = diagnose(head, torch.randn(32, 16), torch.randint(100, (32,)))
    >>> print(found.advice[0])
    the scale 1 is too small for 100 classes: even perfect features give a loss of 3.61; use ...
    """
    if head.shard is not None:
        raise ValueError("diagnose looks at all classes: call it on a head before shard(head)")
    check_shapes(features, head.weight, labels)
    labels = labels.long()
    check_labels(labels, head.num_classes, ignore_index)
    keep = labels != ignore_index
    if not bool(keep.any()):
        raise ValueError(f"diagnose needs samples with a label; all are {ignore_index} (ignored)")
    x, labels = features.detach()[keep].float(), labels[keep]
    options = head.score_options()
    scores = margin_logits(x, head.weight, **options)
    plain = margin_cross_entropy(x, head.weight, labels, **options)
    lam = None if head.annealing is None else head.annealing.value
    loss = _margin_loss(head, x, labels, lam, options)
    rows = normalize(head.weight.float()).view(head.num_classes, head.subcenters, -1)
    scale = head.scale
    found = Diagnosis(
        loss=float(loss),
        plain_loss=float(plain),
        log_classes=math.log(head.num_classes),
        accuracy=float((scores.argmax(1) == labels).float().mean()),
        target_angle=float(_own_angles(head, x, labels).mean()),
        class_cosine=float((normalize(x) @ rows.mean((0, 1))).mean()),
        scale=float(row_norm(x).mean() if scale is None else scale),
        lam=lam,
    )
    found.advice.extend(_advice(head, found, x, labels, stuck, fresh))
    if start is not None and not found.advice:
        found.advice.extend(_since(head, start, found, x, labels))
    return found


def _advice(
    head: MarginHead, found: Diagnosis, x: Tensor, labels: Tensor, stuck: float, fresh: bool
) -> list[str]:
    if not math.isfinite(found.loss):
        return ["the loss is not finite: look for NaN in the features before the head"]
    if not bool(x.any()):
        return ["all features are zero: the layer before the head is dead (a last ReLU? see A.1)"]
    if head.num_classes == 1:
        return []  # one class is always right: log C = 0 is the best loss, not a guess
    advice = []
    at_log_c = not fresh and abs(found.plain_loss - found.log_classes) <= stuck * found.log_classes
    chance = 1 / head.num_classes
    told_apart = found.accuracy > (1 + chance) / 2  # more than half way from chance to all
    stays = at_log_c and not told_apart  # a head that learns passes by; one that guesses is there
    opposite = found.class_cosine < (AWAY if stays else OPPOSITE)
    if opposite:
        advice.append(_opposite(head, found))
    if head.scale is not None and not head.keep_weight_norm:
        least = minimum_loss(head.num_classes, found.scale)
        if least > 0.1 * found.log_classes:
            enough = math.ceil(minimum_scale(head.num_classes))
            advice.append(
                f"the scale {found.scale:.3g} is too small for {head.num_classes} classes: even "
                f"perfect features give a loss of {least:.2f}; use scale={enough} or more, or "
                f"learn_scale=True"
            )
    elif at_log_c and found.scale < 1 and _escapes_margin(head, found, x, labels):
        short = f"the features are short (mean |x| = {found.scale:.2g})"
        why = f"{short}: with |x| as the scale, shrinking them is the way out of a hard margin"
        advice.append(_softer(head, found, why))
    elif at_log_c and found.scale < 1:
        advice.append(
            f"the features are short (mean |x| = {found.scale:.2g}), so all scores are alike: take "
            f"a larger initialization or a BatchNorm before the head, or a head with a scale s"
        )
    spread = float(x.std(0).mean() / x.std().clamp_min(1e-12)) if len(x) > 1 else 1.0
    if at_log_c and spread < 0.05:
        advice.append(
            "all features are nearly the same vector: the backbone has collapsed; lower the "
            "learning rate, warm up, and check its initialization and normalization"
        )
    excess = found.loss - found.plain_loss
    # Classes that are told apart are learned under the margin, however high its loss still is.
    hard = not (fresh or opposite or told_apart) and excess > max(1.0, 0.5 * found.log_classes)
    learned = found.accuracy > 2 * chance and not at_log_c
    if hard and not learned:
        advice.append(_softer(head, found, "the margin is on before anything is learned"))
    elif hard and found.loss > found.log_classes:
        advice.append(
            _softer(
                head,
                found,
                f"without margin the loss is {found.plain_loss:.2f} at "
                f"{100 * found.accuracy:.0f} % accuracy, with it {found.loss:.2f}, above guessing: "
                f"the margin is too hard for now",
            )
        )
    if at_log_c and told_apart and not advice:
        advice.append(
            f"the classes are told apart ({100 * found.accuracy:.0f} % accuracy), but the loss "
            f"stays at log C = {found.log_classes:.2f}: the scores are too much alike; train "
            f"longer, or raise the learning rate of the head"
        )
    elif at_log_c and not advice:
        advice.append(
            f"the loss stays at log C = {found.log_classes:.2f}: the head guesses. Check that "
            f"labels and inputs belong together and that the optimizer holds the head's "
            f"parameters; then raise the learning rate, or train without margin first"
        )
    return advice


def _margin_loss(
    head: MarginHead, x: Tensor, labels: Tensor, lam: float | None, options: dict[str, Any]
) -> Tensor:
    """The cross entropy with the margin. That of binary decisions is on no scale with log C."""
    psi = None if head.link == "softplus" else head.bound_margin(x, labels)
    return margin_cross_entropy(
        x,
        head.weight,
        labels,
        psi,
        lam=lam,
        curriculum=head.curriculum,
        others_kind=head.others_kind(),
        **options,
    )


def _opposite(head: MarginHead, found: Diagnosis) -> str:
    """See the trap in docs/heads.md."""
    angle = math.degrees(math.acos(max(-1.0, found.class_cosine)))
    what = "lower the learning rate or the scale, end the network with a BatchNorm"
    if head.gradient == "exact" and head.margin is not None:
        what += ", take gradient='detached', or let the margin grow with a MarginSchedule"
    return (
        f"the features {'lie' if found.class_cosine < OPPOSITE else 'turn'} opposite to all "
        f"classes at once (about {angle:.0f} degrees, own class {found.target_angle:.0f}): there "
        f"{'they stay' if head.margin is None else 'the margin keeps them'}, and nothing more is "
        f"learned. Start anew: {what}"
    )


def _since(
    head: MarginHead, first: Start | Diagnosis, found: Diagnosis, x: Tensor, labels: Tensor
) -> list[str]:
    """The two ways in which a margin is evaded, while the features are still on them.

    Both take many updates to their end. A batch that is no nearer to its classes than at the start
    tells them from a training that learns and passes by.
    """
    grown = found.target_angle - float(first.target_angle)
    if grown < -5 or found.accuracy > float(first.accuracy) + 0.1 or head.num_classes == 1:
        return []
    if found.class_cosine < AWAY and grown > 20:
        return [_opposite(head, found)]
    shorter = head.scale is None and found.scale < float(first.scale) / 2
    if shorter and _escapes_margin(head, found, x, labels):
        before, now = float(first.scale), found.scale
        lengths = f"the features shrink (mean |x| from {before:.2g} to {now:.2g})"
        return [_softer(head, found, f"{lengths} in place of turning, to escape a hard margin")]
    return []


def _escapes_margin(head: MarginHead, found: Diagnosis, x: Tensor, labels: Tensor) -> bool:
    """Whether features of these directions would lose by being long, because of the margin.

    f_y = |x| psi(theta_y) lies below f_j = |x| g(theta_j) wherever the margin is not met, and the
    shorter x is, the less that costs: the loss falls to log C. So compare the loss of the same
    directions at a length that could tell C classes apart.
    """
    if is_trivial(head.bound_margin(x, labels)):
        return False
    length = max(1.0, minimum_scale(head.num_classes))
    longer = x / row_norm(x).clamp_min(torch.finfo(x.dtype).tiny).unsqueeze(1) * length
    options = head.score_options()
    if head.keep_weight_norm:  # the lengths of the classes shrink as well
        options["unit"] = True
    plain = margin_cross_entropy(longer, head.weight, labels, **options)
    loss = _margin_loss(head, longer, labels, found.lam, options)
    return bool(loss > found.log_classes) and bool(loss > plain + 0.5 * found.log_classes)


def _softer(head: MarginHead, found: Diagnosis, why: str) -> str:
    enough = automatic_scale(head.num_classes)
    if head.scale is not None and found.scale > 1.5 * enough:
        what = (
            f"the scale {found.scale:.3g} is large for {head.num_classes} classes: set "
            f"scale={enough:.3g}, end the network with a BatchNorm, or lower the learning rate"
        )
        if head.margin is not None:
            what += "; else use a smaller m"
    elif head.annealing is None:
        what = (
            "set head.annealing = LambdaAnnealing.sphereface(), or use a smaller m, or start from "
            "a network trained without margin"
        )
    else:
        what = (
            f"let lambda fall more slowly (gamma, power), stop it higher (minimum, now "
            f"{head.annealing.minimum:g}), or use a smaller m"
        )
    return f"{why} (angle to the own class {found.target_angle:.0f} degrees): {what}"
