"""Stop at the first NaN or infinity, without making the host wait for the device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hypersphere.training.diagnose import (
    ADVICE,
    WENT_BAD_BEFORE,
    NotFinite,
    bad_buffers,
    bad_parameters,
    explain,
    is_finite,
    spoiled_buffer,
)
from hypersphere.training.distributed import any_process, one_process, share_states
from hypersphere.training.fsdp import is_fsdp
from hypersphere.training.runtime import Player, Run
from hypersphere.training.sharding import is_spread

__all__ = ["LossCheck", "check_test", "check_weights"]


@dataclass
class _Part:
    """One forward pass, with what it takes to repeat it."""

    batch: tuple[Tensor, ...]
    generators: list[Tensor]
    values: Mapping[str, Tensor] = field(default_factory=dict)
    loss: Tensor | None = None
    finite: Tensor | None = None  # on the CPU, once it has `arrived`
    arrived: Any = None


class LossCheck:
    """Whether the losses of an update are finite.

    On the CPU the answer is there at once. On a GPU it is copied to the host behind the forward
    pass, and read when the backward pass has been queued: the device has work to do meanwhile, and
    the weights have not moved, so that what went bad can still be found.
    """

    def __init__(self, fabric: Any) -> None:
        self.device = fabric.device
        self.together = is_fsdp(fabric)
        self.on_its_way: list[_Part] = []
        self.updates = 0  # that have begun, of all players

    def begin(self, run: Run, player: Player) -> None:
        """Before an update of `player`."""
        self.run, self.player = run, player
        self.updates += 1

    def watch(self, batch: tuple[Tensor, ...]) -> None:
        """Before a forward pass on `batch`."""
        self.part = _Part(batch, _generators(self.device))

    @torch.no_grad()
    def note(self, loss: Tensor, values: Mapping[str, Tensor]) -> None:
        """After the forward pass: its loss, and the values that it is the sum of."""
        part, part.loss, part.values = self.part, loss.detach(), values
        finite = torch.isfinite(part.loss)
        if self.together:  # the processes act together, so they stop together
            finite = finite.int()
            dist.all_reduce(finite, op=dist.ReduceOp.MIN)
        if self.device.type == "cuda":
            part.finite = finite.to("cpu", non_blocking=True)
            part.arrived = torch.cuda.Event()
            part.arrived.record()
            self.on_its_way.append(part)
        elif not finite.cpu().numpy():
            raise NotFinite(self._diagnosis(part))

    def look(self) -> None:
        """Raise `NotFinite` for the first part whose loss is not finite."""
        for part in self.on_its_way:
            part.arrived.synchronize()
            if part.finite is not None and not part.finite.numpy():
                raise NotFinite(self._diagnosis(part))
        self.on_its_way = []

    def gradient(self, norm: Tensor | None) -> None:
        """Look at the gradient's norm where that takes no wait; elsewhere the next loss tells."""
        if norm is None or norm.device.type != "cpu" or math.isfinite(norm.detach().numpy()):
            return
        raise NotFinite(
            f"the gradient is not finite at step {self.run.step}, though the loss is" + ADVICE
        )

    def _diagnosis(self, part: _Part) -> str:
        """Run the part once more and look at every layer: in this process alone, or with FSDP in
        all of them; then a process whose own loss is finite says what another has found.
        """
        run = self.run
        plain = getattr(self.player.module, "module", self.player.module)
        own_loss_is_finite = is_finite(part.loss)
        if run.fabric.world_size > 1:
            run.task.model.eval()  # statistics over all processes would wait for the others
        good_batch = not any_process(run.fabric, not is_finite(part.batch))

        def again() -> None:
            _set_generators(run.fabric.device, part.generators)
            plain(*part.batch)

        terms = [(name, value) for name, value in part.values.items() if name != "loss"]
        # Where each process holds a part of the network, all of them are here.
        with nullcontext() if is_spread(run.task.model) else one_process():
            updated = run.step > 0 or self.updates > 1
            found = explain(run.step, run.task.model, good_batch, again, terms, updated)
        if not is_fsdp(run.fabric):
            return found
        notes = share_states(run.fabric, None if own_loss_is_finite else found)
        return next(text for text in notes if text)


def check_weights(run: Run, start: dict[str, torch.Size]) -> None:
    """Before each test and checkpoint: `NotFinite` if the last update has spoiled a weight, or if a
    buffer of `start`, from `finite_buffers`, went bad.

    In training no loss depends on running statistics, so theirs is the only check of them.
    """
    bad = bad_parameters(run.task.model)
    if bad:
        raise NotFinite(
            f"the weights are not finite after step {run.step}: '{bad[0]}'{_and_more(bad)} "
            f"{WENT_BAD_BEFORE}" + ADVICE
        )
    # Processes may have buffers of their own, and they end together.
    notes = share_states(run.fabric, bad_buffers(run.task.model, start))
    bad = next((names for names in notes if names), [])
    if bad:
        raise NotFinite(
            f"the buffers are not finite after step {run.step}: '{bad[0]}'{_and_more(bad)} was "
            f"finite at the start" + ADVICE
        )


def _and_more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


def check_test(run: Run, values: Mapping[str, Any]) -> None:
    """After the last test: `NotFinite` if a value is NaN or infinite, since no loss follows that
    would say so and name the layer.
    """
    if run.step < run.settings.steps:
        return
    for name, value in values.items():
        if isinstance(value, float) and not math.isfinite(value):
            buffer = spoiled_buffer(run.task.model)
            raise NotFinite(
                f"the test after step {run.step} gives {name} {value}: the network's output is not "
                f"finite" + (buffer or ", though its weights are" + ADVICE)
            )


def _generators(device: torch.device) -> list[Tensor]:
    """States of the generators that a forward pass draws from (dropout, the noise of a GAN)."""
    own = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.get_rng_state(), *own]


def _set_generators(device: torch.device, states: list[Tensor]) -> None:
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state(states[1], device)
