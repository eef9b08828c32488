"""What several processes have to share so that they train the model one process would train.

- gradients: DDP or FSDP (`fsdp.py`), through Fabric;
- batch statistics: `synchronize` makes BatchNorm measure the whole global batch, on CPU and GPU;
- decisions (stop, save): taken together, at the same step.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hypersphere.training.fsdp import is_fsdp, make_strategy
from hypersphere.training.meeting import Meeting
from hypersphere.training.run.checkpoint import RunError

__all__ = ["Agreement", "SyncedBatchNorm", "any_process", "gather_states", "make_fabric"]
__all__ += ["one_process", "share_states", "synchronize"]


def import_fabric() -> Any:
    """The module `lightning_fabric`, without the packages whose version alone it wants."""
    from hypersphere._optional import require, version_alone

    with version_alone("torchmetrics"):
        return require("lightning_fabric", extra="train")


# Fabric's short names of precisions.
SHORT = {"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}


def make_fabric(
    accelerator: str = "auto",
    devices: int | str = "auto",
    num_nodes: int = 1,
    strategy: str = "auto",
    precision: str = "32-true",
    silence: float = 120.0,
) -> Any:
    """Devices and processes of a run: Lightning Fabric, launched.

    Args:
        accelerator: "auto", "cpu", "cuda" or "mps".
        devices: processes per machine; "auto" takes all GPUs, one process on the CPU, or those that
            torchrun or SLURM started.
        num_nodes: number of machines. Default: 1.
        strategy: "auto", "ddp" or "fsdp".
        precision: "32-true", "bf16-mixed" or "16-mixed".
        silence: seconds after which another process counts as gone if it shows no sign of life.
            Default: 120.

    Returns:
        The `Fabric` object.

    >>> make_fabric(accelerator="cpu").world_size
    1
    """
    lightning = import_fabric()
    precision = SHORT.get(precision, precision)
    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun: the processes exist already
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        num_nodes = int(os.environ["WORLD_SIZE"]) // devices
    elif devices == "auto" and not torch.cuda.is_available():
        devices = 1
    if isinstance(devices, str) and devices.lstrip("-").isdigit():
        devices = int(devices)
    if strategy == "auto" and (num_nodes > 1 or (isinstance(devices, int) and devices > 1)):
        strategy = "ddp"
    if "fsdp" in strategy and strategy != "fsdp":
        raise ValueError(f"fabric.strategy {strategy} is not known: take auto, ddp or fsdp")
    fabric = lightning.Fabric(
        accelerator=accelerator,
        devices=devices,
        num_nodes=num_nodes,
        strategy=make_strategy(precision) if strategy == "fsdp" else strategy,
        precision=precision,
    )
    fabric.silence = silence  # this and `meeting` are read by `processes.named_failures`
    fabric.meeting = Meeting(fabric)
    with fabric.meeting.exchange():
        fabric.launch()
    return fabric


class Agreement:
    """Stop and save at the same step everywhere: processes compare notes every `every` steps.

    Clocks and signals differ between processes; whoever acted on its own would leave the others
    waiting.
    """

    def __init__(self, fabric: Any, every: int = 10) -> None:
        self.fabric, self.every = fabric, every

    def __call__(self, step: int, signal: int | None, due: bool) -> tuple[int, bool]:
        """(signal that came to any process, or 0; whether to save now)."""
        if self.fabric.world_size == 1:
            return signal or 0, due
        if step % self.every:
            return 0, False
        note = torch.tensor([signal or 0, int(due)], device=self.fabric.device)
        dist.all_reduce(note, op=dist.ReduceOp.MAX)
        stop, save = note.tolist()
        return stop, bool(save)


def any_process(fabric: Any, value: bool) -> bool:
    """Whether `value` is true on any process, where FSDP makes them act together; else the own.

    >>> any_process(make_fabric(accelerator="cpu"), True)
    True
    """
    if not is_fsdp(fabric):
        return value
    note = torch.tensor(int(value), device=fabric.device)
    dist.all_reduce(note, op=dist.ReduceOp.MAX)
    return bool(note)


@contextmanager
def one_process() -> Iterator[None]:
    """Context in which this process acts as the only one, whatever the others do meanwhile.

    What synchronizes if there are several processes (BatchNorm, running norms) keeps to itself. An
    exchange that cannot do without the others would wait for them forever, and is an error.

    Raises:
        RunError: if something inside exchanges with the other processes.
    """
    if not dist.is_available() or not dist.is_initialized():
        yield
        return
    group = dist.distributed_c10d._get_default_group()
    dist.distributed_c10d._update_default_pg(None)
    try:
        yield
    except ValueError as error:
        if "process group has not been initialized" not in str(error):
            raise
        raise RunError(
            "an exchange between processes was asked for where one acts alone: what is measured "
            "after training must not need the others; do it in one process (fabric.devices 1)"
        ) from error
    finally:
        dist.distributed_c10d._update_default_pg(group)


def gather_states(fabric: Any, state: Any) -> list[Any]:
    """The state of every process, in order of rank (complete on rank 0 only)."""
    if fabric.world_size == 1:
        return [state]
    gathered: list[Any] = [None] * fabric.world_size
    dist.gather_object(state, gathered if fabric.global_rank == 0 else None, dst=0)
    return gathered


def share_states(fabric: Any, state: Any) -> list[Any]:
    """The state of every process, in order of rank, on all of them."""
    if fabric.world_size == 1:
        return [state]
    gathered: list[Any] = [None] * fabric.world_size
    dist.all_gather_object(gathered, state)
    return gathered


class _SumOverProcesses(torch.autograd.Function):
    """y = sum of x over processes; the gradient is the sum of the processes' gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient)
        return gradient


class SyncedBatchNorm(nn.modules.batchnorm._BatchNorm):
    """BatchNorm over the global batch: the mean and variance are those of all processes together.

    torch's SyncBatchNorm does the same on GPUs only. Same parameters, same state dict as BatchNorm.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected input (B, C, ...); got {tuple(input.shape)}")

    def forward(self, input: Tensor) -> Tensor:
        alone = not dist.is_initialized() or dist.get_world_size() == 1
        if alone or not (self.training or self.running_mean is None):
            return super().forward(input)
        self._check_input_dim(input)
        axes = [0, *range(2, input.dim())]
        wide = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        count = wide.new_tensor([wide.numel() / wide.shape[1]])
        # Two passes (mean, then squared distances from it): E[x^2] - E[x]^2 would cancel.
        n = _SumOverProcesses.apply(count)
        mean = _SumOverProcesses.apply(wide.sum(axes)) / n
        shape = [1, -1] + [1] * (input.dim() - 2)
        centered = wide - mean.view(shape)
        variance = _SumOverProcesses.apply(centered.square().sum(axes)) / n
        self._track(mean.detach(), variance.detach(), n.detach())
        y = centered * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            y = y * self.weight.view(shape) + self.bias.view(shape)
        return y.to(input.dtype)

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor, n: Tensor) -> None:
        if self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        momentum = self.momentum
        if momentum is None:
            momentum = 1.0 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        unbiased = variance * n / (n - 1)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), momentum)


def synchronize(model: nn.Module) -> nn.Module:
    """Make statistics those of the global batch, in place: BatchNorm's, running patch norms, and
    what a head remembers of its batches.

    Args:
        model: the network; the same on every process.

    Returns:
        The network itself.

    >>> synchronize(nn.Sequential(nn.BatchNorm2d(3)))[0].num_features
    3
    """
    for module in model.children():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)):
            # The same object with another class keeps parameters, buffers, hooks and references.
            module.__class__ = SyncedBatchNorm  # type: ignore[assignment]
        elif getattr(module, "shard", None) is not None:
            pass  # such a head joins the batches of all processes itself
        elif hasattr(module, "sync"):
            module.sync = True  # type: ignore[assignment]
        else:
            synchronize(module)
    return model
