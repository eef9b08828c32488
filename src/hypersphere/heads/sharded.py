"""Class weights spread over processes: each holds some rows, the loss is that of all of them."""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..functional.angles import cosine
from ..functional.binary_classes import assemble_binary
from ..functional.class_parts import (
    Reduction,
    assemble_loss,
    own_bias,
    scaled_features,
    smoothing_mass,
)
from ..functional.cross_entropy import class_logsumexp, margin_logits
from ..functional.labels import check_labels, check_options, check_shapes, sample_classes
from ..functional.target_score import target_level, target_score
from . import collectives
from .arguments import weighted_penalty
from .margin import MarginHead
from .margin_values import bound
from .shard_in_ddp import ROWWISE, ignore_in_ddp, refuse_earlier_ddp, watch_ddp

__all__ = ["ClassShard", "ignore_in_ddp", "shard", "unshard"]


def shard(
    head: MarginHead,
    group: Any = None,
    averaged: bool = True,
    device: torch.device | str | None = None,
) -> MarginHead:
    """Keep this process's share of the classes, in place: `head.weight` becomes its rows.

    After this, `head.loss` exchanges features and gives every process the loss of the whole batch
    over all classes, with exact gradients: what one process would compute on the joined batch. The
    batches may differ in size or be empty. `head(x)` gives all C scores of the own features. Call
    both on all processes. DDP may wrap a model with a sharded head: it leaves the rows alone.

    A head made under `torch.device("meta")` gets its rows without the whole ever being in one
    place. `head.state_dict()` is the whole head, under its usual names (all processes have to call
    it), and loads on any number of processes; `save_shards` keeps the rows apart.

    Args:
        head: a head with all C classes, alike on all processes.
        group: the processes, a ``torch.distributed.ProcessGroup``. Default: all.
        averaged: whether the gradients of the network before the head are averaged over processes,
            as DDP does; the features' gradients are scaled so that this average is the gradient of
            the loss. False leaves them as they are, for networks that sum.
        device: where the rows are kept. Default: where the head is; the CPU for a meta head.

    Returns:
        The head.

    Raises:
        RuntimeError: if no process group is initialized.
        ValueError: if the head is sharded already, or has fewer classes than there are processes.
    """
    if not dist.is_initialized():
        raise RuntimeError(
            "shard(head) needs the processes to be connected: call "
            "torch.distributed.init_process_group (torchrun starts them) before it"
        )
    if head.shard is not None:
        raise ValueError("this head is sharded already; unshard(head) first")
    world = dist.get_world_size(group)
    if head.num_classes < world:
        raise ValueError(f"{head.num_classes} classes cannot be spread over {world} processes")
    watch_ddp()
    head.shard = ClassShard(head.num_classes, group, averaged)
    own = slice(head.shard.start, head.shard.stop)
    meta = head.weight.is_meta
    for name in ROWWISE:
        whole = getattr(head, name)
        if whole is not None:
            place = whole.device if device is None and not meta else torch.device(device or "cpu")
            rows = torch.empty_like(whole[own], device=place)
            part = nn.Parameter(rows if meta else rows.copy_(whole[own].detach()))
            setattr(head, name, part)
            head.shard.replaced.append(weakref.ref(whole))
    if meta:
        place = head.weight.device
        if head.log_scale is not None and head._scale is not None:
            head.log_scale = nn.Parameter(torch.tensor(math.log(head._scale), device=place))
        if head.log_k is not None:
            head.log_k = nn.Parameter(torch.tensor(math.log(head._k or 0.5), device=place))
        for member in head.modules():  # what heads and margins remember
            if hasattr(member, "reset_state"):
                member.reset_state(place)  # type: ignore[operator]
        head.reset_parameters()
    module: Any = head  # torch leaves both methods untyped
    head.shard.hooks = [
        module.register_state_dict_post_hook(_whole_state),
        module.register_load_state_dict_pre_hook(_own_state),
    ]
    return head


def unshard(head: MarginHead) -> MarginHead:
    """All classes on every process again, in place; the opposite of `shard`.

    Args:
        head: a sharded head; any other is left as it is.

    Returns:
        The head.
    """
    part = head.shard
    if part is None:
        return head
    for name in ROWWISE:
        rows = getattr(head, name)
        if rows is not None:
            whole = collectives.concatenate(rows.detach(), part.counts, part.group)
            setattr(head, name, nn.Parameter(whole))
    for hook in part.hooks:
        hook.remove()
    head.shard = None
    return head


class ClassShard:
    """Which classes this process has, start <= class < stop, and how the loss is made of shards."""

    def __init__(self, num_classes: int, group: Any = None, averaged: bool = True) -> None:
        self.group, self.num_classes = group, num_classes
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        bounds = [num_classes * r // self.world for r in range(self.world + 1)]
        self.counts = [b - a for a, b in itertools.pairwise(bounds)]
        self.start, self.stop = bounds[self.rank], bounds[self.rank + 1]
        self.factor = float(self.world) if averaged else 1.0
        self.hooks: list[Any] = []
        self.replaced: list[Any] = []  # weak references to the whole weight and bias

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "replaced": []}  # weak references cannot be pickled

    def logits(
        self,
        head: MarginHead,
        features: Tensor,
        labels: Tensor | None,
        ignore_index: int = -100,
    ) -> Tensor:
        """All C scores of this process's features; gathers the rows of W for it."""

        def check() -> None:
            if labels is not None and labels.is_floating_point():
                raise _soft_targets()
            check_shapes(features, head.weight, labels)
            if labels is not None:
                check_labels(labels, self.num_classes, ignore_index)

        self._row_counts(features, check)
        options = head.score_options()
        rows = {"weight": head.weight, "bias": head.bias}
        whole = {
            name: None
            if value is None
            else collectives.gather_rows(value, self.counts, 1 / self.factor, self.group)
            for name, value in rows.items()
        }
        if head.bias is not None:
            options["bias"] = whole["bias"]
        weight = whole["weight"]
        assert weight is not None
        if labels is None:
            return margin_logits(features, weight, **options)
        psi = bound(head.margin, features, torch.where(labels != ignore_index, labels, -1))
        options.update(head.label_options(), ignore_index=ignore_index)
        return margin_logits(features, weight, labels, psi, **options)

    def loss(
        self,
        head: MarginHead,
        features: Tensor,
        labels: Tensor,
        reduction: Reduction,
        label_smoothing: float,
        class_weight: Tensor | None,
        ignore_index: int,
        observe: bool = True,
    ) -> Tensor:
        """The loss of the joined batch over all classes; "none" gives that of the own samples."""
        sample, count = head.sample if head.training else None, self.num_classes

        def check() -> None:
            if labels.is_floating_point():
                raise _soft_targets()
            check_shapes(features, head.weight, labels)
            check_options(labels, label_smoothing, sample, class_weight, count)
            check_labels(labels, count, ignore_index)

        counts = self._row_counts(features, check)
        group, options = self.group, head.score_options()
        shared = ("scale", "k", "bias") if head.bias is None else ("scale", "k")
        for name in shared:  # what all processes have: the gradients of their parts are added
            value = options[name]
            if isinstance(value, Tensor) and value.requires_grad:
                options[name] = collectives.share(value, group)
        scale, bias, k = options["scale"], options["bias"], options["k"]
        with torch.autocast(features.device.type, enabled=False):
            wide = torch.promote_types(features.dtype, torch.float32)
            x = collectives.gather_batch(features.to(wide), counts, self.factor, group)
            y = collectives.concatenate(labels.long(), counts, group)
            target_class = torch.where(y != ignore_index, y, -torch.ones_like(y))
            mine = (target_class >= self.start) & (target_class < self.stop)
            own_class = torch.where(mine, target_class - self.start, -torch.ones_like(y))
            z = scaled_features(x, head.weight, scale)

            def target_cosines() -> Tensor:
                rows = head.weight.detach()[own_class.clamp_min(0)].to(z.dtype)
                cos = cosine(z.detach(), rows)
                return collectives.sum_over(torch.where(mine, cos, torch.zeros_like(cos)), group)

            if observe and head.training:
                head.observe(x.detach(), target_class, target_cosines)
            psi = bound(head.margin, x, target_class)
            lam = None if head.annealing is None else head.annealing()
            index = offset = level = None
            if head.curriculum is not None:
                level = target_level(target_cosines(), psi, options["kind"], k, lam).detach()
            if sample is not None:
                index, offset = sample_classes(own_class, self.stop - self.start, sample)
            mass = smoothing_mass(label_smoothing, class_weight, self.num_classes, z)
            raised, others_bias = head.raised(), bias
            if isinstance(raised, Tensor) and raised.ndim == 1:
                raised = raised[self.start : self.stop]
            if isinstance(raised, Tensor) or raised:
                others_bias = bias + scale * raised
            others, moment, rows = class_logsumexp(
                z,
                head.weight,
                own_class,
                unit=options["unit"],
                bias=others_bias,
                kind=head.others_kind() or options["kind"],
                k=k,
                mass=None if mass is None else mass[self.start : self.stop],
                index=index,
                offset=offset,
                jacobian=head.gradient != "caffe",
                level=level,
                t=head.curriculum,
                link=head.link,
                chunk=head.chunk,
            )
            target = target_score(
                z, rows, psi, options["unit"], options["kind"], k, lam, head.gradient
            )
            if bias is not None:
                target = target + own_bias(bias, own_class)
            target = collectives.sum_over(
                torch.where(mine, target, torch.zeros_like(target)), group
            )
            if head.link == "softplus":
                others = collectives.sum_over(others, group)
                loss = assemble_binary(
                    others, target, target_class, scale, head.positive, class_weight, reduction
                )
            else:
                others = collectives.logsumexp_over(others, group)
                if mass is not None:
                    moment = collectives.sum_over(moment, group)
                loss = assemble_loss(
                    others,
                    target,
                    moment,
                    target_class,
                    self.num_classes,
                    class_weight,
                    label_smoothing,
                    reduction,
                )
            penalty = head.penalty(x)
            if penalty is not None:
                # Each process brings its own samples: the gradients of the parts are added.
                own = torch.zeros_like(penalty, dtype=torch.bool)
                own[sum(counts[: self.rank]) : sum(counts[: self.rank + 1])] = True
                penalty = collectives.sum_over(penalty * own, group)
                loss = loss + weighted_penalty(penalty, target_class, class_weight, reduction)
            if reduction == "none":
                loss = collectives.own_rows(loss, counts, 1 / self.factor, group)
            return loss

    def _row_counts(self, features: Tensor, check: Callable[[], None]) -> list[int]:
        """Rows of each process, after `check` on all: what one refuses, all refuse."""
        rows, error = 0, None
        try:
            if not torch.compiler.is_compiling():
                refuse_earlier_ddp(self.replaced)
            check()
            rows = len(features)
        except Exception as refused:
            error = refused
        return collectives.row_counts(rows, self.group, features.device, error)


def _soft_targets() -> ValueError:
    return ValueError(
        "soft targets are (B, C), which sharding is there to avoid: give integer labels"
    )


def _whole_state(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    part = getattr(module, "shard", None)
    if part is None:
        return
    for name in ROWWISE:
        if prefix + name in state:
            rows = state[prefix + name].detach()
            state[prefix + name] = collectives.concatenate(rows, part.counts, part.group)


def _own_state(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    part = getattr(module, "shard", None)
    if part is None:
        return
    for name in ROWWISE:
        value = state.get(prefix + name)
        if value is not None and value.shape[0] == part.num_classes:
            state[prefix + name] = value[part.start : part.stop]
