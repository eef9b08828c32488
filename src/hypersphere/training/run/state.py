"""A run as a checkpoint, and back: everything needed to go on bit for bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hypersphere.training.distributed import gather_states
from hypersphere.training.run.checkpoint import newest_checkpoint, save_checkpoint
from hypersphere.training.run.packing import rng_state, set_rng_state
from hypersphere.training.run.resume import for_processes
from hypersphere.training.sharding import (
    load_optimizer_state,
    load_state,
    optimizer_state,
    whole_state,
)

if TYPE_CHECKING:
    from hypersphere.training.runtime import Run

__all__ = ["model_state", "restore", "save_run"]


def save_run(run: Run) -> None:
    """Everything needed to go on bit for bit, in one checkpoint."""
    # On every process: what is spread over them (class weights, random states) is brought together.
    tensors, extra = model_state(run)
    generators = gather_states(run.fabric, rng_state())
    sums = gather_states(run.fabric, {name: float(v) for name, v in run.sums.items()})
    state = {
        "world_size": run.fabric.world_size,
        "elapsed": run.elapsed,
        "metrics": run.folder.position(),
        "best": run.best,
        "tested": run.tested,
        "sums": sums,
        "count": run.count,
        "rng": generators,
        "task": run.task.state_dict(),
        "players": [
            {
                "optimizer": optimizer_state(p.rate.optimizer, run.task.model, run.folder.write),
                "rate": p.rate.state_dict(),
            }
            for p in run.task.players
        ],
        "hooks": [hook.state_dict() if hasattr(hook, "state_dict") else None for hook in run.hooks],
        "extra": extra,
    }
    if run.folder.write:
        run.folder.check()
        save_checkpoint(run.folder.checkpoints, run.step, tensors, state, run.settings.keep)


def restore(run: Run) -> None:
    """Go back to the newest whole checkpoint of the folder; stay at the start if there is none."""
    say = print if run.fabric.is_global_zero else lambda message: None
    found = newest_checkpoint(run.folder.checkpoints, say)
    if found is None:
        say("no checkpoint yet: starting from the beginning")
        run.folder.restart()
        return
    run.step, weights, state = found
    load_state(run.task.model, {**weights, **state["extra"]})
    for player, saved in zip(run.task.players, state["players"], strict=True):
        load_optimizer_state(player.rate.optimizer, run.task.model, saved["optimizer"])
        player.rate.load_state_dict(saved["rate"])
    for hook, saved in zip(run.hooks, state["hooks"], strict=True):
        if saved is not None:
            hook.load_state_dict(saved)
    world, rank = run.fabric.world_size, run.fabric.global_rank
    run.task.load_state_dict(for_processes(state["task"], world))
    run.elapsed, run.best, run.tested = state["elapsed"], state["best"], state["tested"]
    run.sums, run.count = state["sums"][rank % state["world_size"]], state["count"]
    metrics = state["metrics"]
    if isinstance(metrics, int):  # a checkpoint of an earlier version: only the length
        metrics = [metrics, None]
    problem = run.folder.rewind(metrics)
    if problem:
        say(problem)
    set_rng_state(state["rng"][rank % state["world_size"]])
    if state["world_size"] != world:
        say(
            f"saved by {state['world_size']} processes, goes on with {world}: the same samples, in "
            "the same batches; sums are rounded differently, and noise is drawn anew"
        )
        run.sums = {k: sum(s[k] for s in state["sums"]) / len(state["sums"]) for k in run.sums}
        torch.manual_seed(torch.initial_seed() + run.step * world + rank)  # not alike on two
    say(f"resumed at step {run.step}")


def model_state(run: Run) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The model's state dict, tensors and the rest apart; complete where it is written."""
    state = whole_state(run.task.model, run.folder.write)
    tensors = {k: v for k, v in state.items() if isinstance(v, Tensor)}
    return tensors, {k: v for k, v in state.items() if not isinstance(v, Tensor)}
