"""The training loop, top to bottom.

One iteration: draw a batch -> hooks may change it -> loss plus extra terms -> backward -> hooks
see the gradients -> update -> hooks see the weights -> now and then: log, test, save. What differs
between image classification, graphs and GANs is in the task (`tasks/`); what a method adds is in
hooks (`hooks.py`), plain objects of which any of these methods is called if it is there:

    check_model(model), before anything is recorded
    start(run)                  change_batch(run, batch) -> batch
    before_update(run)          terms(run, batch, outputs, final) -> {name: tensor}
    after_update(run)           log(run) -> {name: value}
    finish(run)                 summarize(run) -> {name: value} for summary.json
    logged(run, step, split, values), of each line of metrics.jsonl once it is written
    state_dict()   load_state_dict(state)

A batch may be processed in parts (`accumulate`); `final` tells a hook that this is the last of
them. Between two log lines the host never waits for the device: losses are added up there, and the
check that they are finite (`finite.py`) travels to the host while the backward pass runs.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hypersphere.training.diagnose import finite_buffers
from hypersphere.training.distributed import Agreement
from hypersphere.training.finite import LossCheck, check_test, check_weights
from hypersphere.training.interrupt import Interrupt
from hypersphere.training.progress import Progress
from hypersphere.training.run.checkpoint import save_weights
from hypersphere.training.run.folder import RunFolder
from hypersphere.training.run.state import model_state, restore, save_run
from hypersphere.training.runtime import EVENTS, Player, Run, Settings, Task
from hypersphere.training.sharding import average_gradients, clip_gradients

__all__ = ["Player", "Run", "Settings", "Task", "fit"]

_NOBODY: dict[str, list[Any]] = {event: [] for event in EVENTS}
# In double precision, sums over many updates lose nothing; not every device has it.
_WIDE: dict[str, torch.dtype] = defaultdict(lambda: torch.float64, mps=torch.float32)


def fit(
    task: Task,
    folder: RunFolder,
    fabric: Any,
    settings: Settings,
    hooks: Sequence[Any] = (),
    resume: bool = False,
) -> Run:
    """Train a task for `settings.steps` updates.

    Args:
        task: what is trained: its model, players, batches and test.
        folder: where the run is recorded.
        fabric: devices and processes, from `make_fabric`.
        settings: how long and how often.
        hooks: objects with any of the methods listed at the top of this module.
        resume: go on from the newest checkpoint of the folder. Default: False.

    Returns:
        The finished (or interrupted) run.

    Raises:
        NotFinite: if the loss, a weight, a buffer or a test value is NaN or infinite.
        RunError: if the folder cannot be written.
    """
    run = Run(task, folder, fabric, settings, list(hooks))
    if resume:
        restore(run)
    try:
        run.call("start")
    except BaseException:
        folder.close()
        raise
    progress = Progress(settings.steps, run.step, settings.quiet or not fabric.is_global_zero)
    timer = _Timer(run)
    agreement = Agreement(fabric)
    test_every = settings.test_every or max(1, settings.steps // 10)
    batches = task.batches()
    task.model.train()

    check, buffers = LossCheck(fabric), finite_buffers(task.model)

    with Interrupt() as interrupt:
        try:
            while run.step < settings.steps:
                batch = next(batches)
                last = run.step + 1 == settings.steps
                logs = (run.step + 1) % settings.log_every == 0 or last
                for player in task.players:  # a GAN has two; hooks act on the first
                    if run.step % player.every == 0:
                        update(run, player, batch, check, player is run.player, logs)
                run.step += 1

                shown = log(run, timer.elapsed()) if logs else {}
                progress.update(run.step, len(batch[0]) * fabric.world_size, shown)
                while run.notes:
                    progress.say(run.notes.pop(0))
                stop, due = agreement(run.step, interrupt.signal, timer.save_is_due())
                every = settings.checkpoint_every
                tests = run.step % test_every == 0 or last
                saves = (run.step % every == 0 if every else due) or bool(stop) or last
                if not (tests or saves):
                    continue
                check_weights(run, buffers)  # spoiled weights are neither measured nor saved
                if tests:
                    test(run, timer.elapsed(), progress)
                if saves:
                    run.elapsed = timer.elapsed()
                    with timer.saving():
                        save_run(run)
                if stop and not last:
                    run.interrupted = stop  # said by whoever knows how the run goes on
                    break
        finally:
            progress.close()
            folder.close()
    run.elapsed = timer.elapsed()
    run.call("finish")
    return run


def update(
    run: Run,
    player: Player,
    batch: tuple[Tensor, ...],
    check: LossCheck,
    hooked: bool,
    measured: bool,
) -> None:
    """One update of one player: gradients of the loss over the whole batch, then a step."""
    listeners, sums = (run.listeners, run.sums) if hooked else (_NOBODY, {})
    parts = list(zip(*(value.chunk(run.settings.accumulate) for value in batch), strict=True))
    player.rate.set(run.step)
    player.optimizer.zero_grad()
    check.begin(run, player)
    for number, part in enumerate(parts, 1):
        final = number == len(parts)
        for change in listeners["change_batch"]:
            part = change(run, part)
        # Gradients are exchanged between processes once per update, with the last part.
        with run.fabric.no_backward_sync(player.module, enabled=not final):
            check.watch(part)
            loss, outputs = player.module(*part)
            values = {"loss": loss * (len(part[0]) / len(batch[0]))}
            for extra in listeners["terms"]:
                values.update(extra(run, part, outputs, final))
            whole = total(values)
            check.note(whole, values)
            run.fabric.backward(whole)
        for name, value in values.items():
            sums[name] = sums.get(name, 0.0) + value.detach().to(_WIDE[value.device.type])
    check.look()  # before the weights move: a loss that is not finite has spoiled nothing
    average_gradients(player.module)
    for method in listeners["before_update"]:
        method(run)
    if run.settings.clip is not None:
        check.gradient(clip_gradients(run.fabric, run.task.model, player, run.settings.clip))
    player.optimizer.step()
    for method in listeners["after_update"]:
        method(run)
    run.count += hooked
    if hooked and measured:
        with torch.no_grad():
            run.measured = run.task.measure(part, outputs)


def total(values: dict[str, Tensor]) -> Tensor:
    """The sum of the loss and its terms; what is not a scalar tensor is refused by its name."""
    for name, value in values.items():
        if not isinstance(value, Tensor) or value.dim():
            got = f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
            raise ValueError(f"the loss is a sum of scalar tensors; {name!r} is {got}")
    return torch.as_tensor(sum(values.values()))


def log(run: Run, elapsed: float) -> dict[str, Any]:
    """One line of metrics.jsonl: means since the last one, equal on all processes."""
    means = {name: value / run.count for name, value in run.sums.items()}
    values = {**means, **run.measured}
    # The only place between two tests where the host waits for the device.
    numbers = torch.stack([torch.as_tensor(v).detach().cpu().double() for v in values.values()])
    if run.fabric.world_size > 1:
        numbers = run.fabric.all_reduce(numbers)
    values = dict(zip(values, numbers.tolist(), strict=True))
    rate = run.player.optimizer.param_groups[0]["lr"]
    for extra in run.call("log"):
        values.update(extra)
    run.record(run.step, "train", {"lr": rate, **values}, time=round(elapsed, 3))
    run.sums, run.count, run.measured = {}, 0, {}
    return values


def test(run: Run, elapsed: float, progress: Progress) -> None:
    """Measure on the test set, keep the weights if they are the best so far."""
    run.task.model.eval()
    values = run.task.test()
    run.task.model.train()
    if not values:
        return
    check_test(run, values)
    run.record(run.step, "test", values, time=round(elapsed, 3))
    for player in run.task.players:
        player.rate.observe(values.get("loss", values.get("error", math.nan)))
    name, sign = run.task.best
    record = run.tested = {"step": run.step, **values}
    if sign * values[name] > sign * run.best.get(name, -sign * math.inf):  # NaN is never best
        run.best = record
        tensors, _ = model_state(run)
        if run.folder.write:
            save_weights(run.folder.best / "model.safetensors", tensors)
    run.folder.json("summary.json", {"last": record, "best": run.best})
    shown = {k: v for k, v in values.items() if isinstance(v, float)}
    progress.tested(run.step, shown, best=run.best is record)


class _Timer:
    """Seconds of training, and whether a save by time is due: never more than 1 % of the run."""

    def __init__(self, run: Run) -> None:
        self.run, self.offset = run, run.elapsed
        self.began = self.last_save = time.perf_counter()
        self.cost = 0.0

    def elapsed(self) -> float:
        return self.offset + time.perf_counter() - self.began

    def save_is_due(self) -> bool:
        pause = max(self.run.settings.checkpoint_seconds, 100 * self.cost)
        return time.perf_counter() - self.last_save >= pause

    def saving(self) -> _Timer:
        return self

    def __enter__(self) -> None:
        self.last_save = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        now = time.perf_counter()
        self.cost, self.last_save = now - self.last_save, now
