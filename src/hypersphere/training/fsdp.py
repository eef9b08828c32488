"""Fully sharded training (`fabric.strategy: fsdp`): every process keeps a part of every weight.

Weights, gradients and optimizer moments are spread by rows (FSDP2: `fully_shard`). A unit of the
network is brought together just before it computes, and let go again after it. What needs whole
neurons outside of that (energies, checkpoints, clipping) is in `sharding.py`.

Numbers of no dimension (a learned k, radius or scale) have no rows: they stay whole everywhere, and
`sharding.average_gradients` takes the mean of their gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize

from hypersphere.training.run.checkpoint import RunError

__all__ = ["SMALLEST", "is_fsdp", "make_strategy", "refuse", "spread", "units"]

SMALLEST = 2**18  # elements: below this, a unit is not worth an exchange of its own
PRECISIONS = ("32-true", "bf16-mixed")


def make_strategy(precision: str = "32-true") -> Any:
    """Fabric's strategy for models that are spread by a function: `spread`."""
    from lightning_fabric.strategies import ModelParallelStrategy

    if precision not in PRECISIONS:
        raise ValueError(
            f"fabric.strategy fsdp takes fabric.precision {', '.join(PRECISIONS)}; got "
            f"{precision}: choose one of them, or --fabric.strategy ddp"
        )
    # Fabric's own mesh has a row per machine and goes unused here: all processes share the weights.
    return ModelParallelStrategy(parallelize_fn=spread)


def is_fsdp(fabric: Any) -> bool:
    """Whether this run spreads its weights."""
    return getattr(fabric.strategy, "_parallelize_fn", None) is spread


def refuse(config: Any) -> None:
    """`RunError` for what cannot be trained with spread weights, before anything is built."""
    hooks, head = config.hooks, config.head
    reasons = {
        "task gan has two networks that hold each other": config.task == "gan",
        "task graph trains on one whole graph, in one process": config.task == "graph",
        "task reconstruction trains an autoencoder in one piece": config.task == "reconstruction",
        "rotate turns whole layers at once": config.rotate is not None,
        "optimizer.name ogd turns whole matrices": "ogd" in config.optimizer.name,
        "hooks.weighted_gradients scales gradients before they are exchanged": (
            "weighted_gradients" in hooks
        ),
        "head.gradient caffe changes the class weights while they are in use": (
            head.get("gradient") == "caffe" and not head.get("sharded")
        ),
    }
    for reason, applies in reasons.items():
        if applies:
            raise RunError(
                f"fabric.strategy fsdp cannot be used here: {reason}. Take --fabric.strategy ddp, "
                "where every process has the whole network (head.sharded: true spreads the classes)"
            )


def spread(loss: Any, mesh: Any = None) -> Any:
    """Spread backbone and head of `loss.net`, a `ClassifierLoss`, over all processes, in place."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    kind = mesh.device_type if mesh is not None else "cpu"
    mesh = init_device_mesh(kind, (dist.get_world_size(),))
    head = loss.net.head
    whole = {p for p in loss.parameters() if p.dim() == 0}
    if getattr(head, "shard", None) is not None:  # these rows are spread already
        whole |= {p for p in (head.weight, head.bias) if p is not None}
    for value in (*whole, *loss.buffers()):
        value.data = value.data.to(kind)  # the process's own device; the rest goes unit by unit
    for root in (loss.net.backbone, head):
        for unit in units(root, whole):
            unit.register_forward_hook(_without_view)
            # Spread again after the forward pass, the root too: hooks that act between forward and
            # backward find every weight alike.
            fully_shard(unit, mesh=mesh, reshard_after_forward=True, ignored_params=whole)
        for method in ("loss", "features_and_penalty"):  # what is called besides forward
            if hasattr(root, method):
                register_fsdp_forward_method(root, method)
    return loss


def _without_view(unit: nn.Module, inputs: Any, output: Any) -> Any:
    """FSDP notes the backward pass at a unit's output, and a view can lose the note."""
    return output.clone() if isinstance(output, Tensor) and output._is_view() else output


def units(root: nn.Module, whole: set[Any] = frozenset()) -> list[nn.Module]:  # type: ignore[assignment]
    """What is brought together at a time, inner ones first: parts of at least `SMALLEST` elements,
    and `root` for all the rest. Nothing, if `root` has no parameter but those in `whole`.

    >>> net = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 8))
    >>> [type(unit).__name__ for unit in units(net)]
    ['Linear', 'Sequential']
    """
    own = [p for p in root.parameters() if p not in whole]
    if not own:
        return []
    every = [p for _, p in root.named_parameters(remove_duplicate=False) if p not in whole]
    if len(every) > len(own):  # tied weights have to be in one unit
        return [root]
    found: list[nn.Module] = []
    taken: set[Any] = set()
    for module in _inner_first(root):
        rest = [p for p in module.parameters() if p not in whole and p not in taken]
        if module is root or sum(p.numel() for p in rest) >= SMALLEST:
            found.append(module)
            taken.update(rest)
    return found


def _inner_first(module: nn.Module) -> Iterator[nn.Module]:
    """Modules that are called, innermost first. What has parameters of its own may read those of
    its children without calling them, so it is not divided.
    """
    divided = not any(True for _ in module.parameters(recurse=False))
    if divided and not parametrize.is_parametrized(module):
        for child in module.children():
            yield from _inner_first(child)
    if type(module).forward is not nn.Module.forward:  # a ModuleList is never called
        yield module
