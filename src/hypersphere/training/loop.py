"""The training loop, top to bottom.

One iteration: draw a batch -> hooks may change it -> loss plus extra terms -> backward -> hooks
see the gradients -> update -> hooks see the weights -> now and then: log, test, save. What differs
between image classification, graphs and GANs is in the task (`tasks.py`, `graph.py`, `gan.py`);
what a method adds is in hooks (`hooks.py`), plain objects of which any of these methods is called
if it is there:

    start(run)                  change_batch(run, batch) -> batch
    before_update(run)          terms(run, batch, outputs, final) -> {name: tensor}
    after_update(run)           log(run) -> {name: value}
    finish(run)
    state_dict()   load_state_dict(state)

A batch may be processed in parts (`accumulate`); `final` tells a hook that this is the last of
them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hypersphere.training.diagnose import NotFinite, explain, is_finite
from hypersphere.training.distributed import Agreement, any_process, share_states
from hypersphere.training.fsdp import in_use
from hypersphere.training.interrupt import Interrupt
from hypersphere.training.progress import Progress
from hypersphere.training.run.checkpoint import save_weights
from hypersphere.training.run.folder import RunFolder
from hypersphere.training.run.state import model_state, restore, save
from hypersphere.training.schedules import LearningRate
from hypersphere.training.sharding import average_gradients, gradient_norm, is_spread

__all__ = ["Player", "Run", "Settings", "Task", "fit"]


@dataclass
class Player:
    """One module, the optimizer that moves it, and its learning rate.

    `module(*batch)` returns (loss, outputs). A classifier is one player; a GAN has two.
    """

    module: nn.Module
    optimizer: Optimizer
    rate: LearningRate
    every: int = 1  # acts in every n-th iteration


class Task(Protocol):
    """What the loop asks of a task; no base class is needed."""

    model: nn.Module  # what is saved
    players: list[Player]  # hooks act on the first
    best: tuple[str, int]  # a name of `test`, and +1 if more of it is better, -1 if less

    def batches(self) -> Iterator[tuple[Tensor, ...]]: ...
    def measure(self, batch: tuple[Tensor, ...], outputs: Any) -> dict[str, Tensor]: ...
    def test(self) -> dict[str, float]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass
class Settings:
    """How long, how often: the numbers of the loop; None means what stands in brackets."""

    steps: int = 1000
    accumulate: int = 1  # split each batch into this many parts; the update sees the whole batch
    clip: float | None = None  # largest gradient norm [no clipping]
    log_every: int = 50
    test_every: int | None = None  # [ten times a run]
    checkpoint_every: int | None = None  # steps [by time: at most 1 % of the run]
    checkpoint_seconds: float = 30.0  # shortest time between two saves chosen by time
    keep: int = 2  # newest checkpoints that stay
    quiet: bool = False

    def __post_init__(self) -> None:
        for name in ("steps", "accumulate", "log_every", "keep"):
            if getattr(self, name) < 1:
                raise ValueError(f"train.{name} must be at least 1; got {getattr(self, name)}")


@dataclass
class Run:
    """What hooks see: where the run is, and everything in it."""

    task: Task
    folder: RunFolder
    fabric: Any
    settings: Settings
    hooks: Sequence[Any] = ()
    step: int = 0  # finished updates
    elapsed: float = 0.0  # seconds of training, over all resumptions
    best: dict[str, Any] = field(default_factory=dict)
    tested: dict[str, Any] = field(default_factory=dict)  # the last test
    measured: dict[str, float] = field(default_factory=dict)  # on the last batch before a log line
    interrupted: int | None = None  # the signal that stopped it
    sums: dict[str, float] = field(default_factory=dict)  # since the last line of the log
    count: int = 0

    @property
    def model(self) -> nn.Module:
        """What hooks act on: the whole model, or the part a task names (a GAN's discriminator)."""
        return getattr(self.task, "hooked", self.task.model)

    @property
    def player(self) -> Player:
        return self.task.players[0]

    def call(self, event: str, *arguments: Any) -> list[Any]:
        """Call `event` of every hook that has it."""
        found = [getattr(hook, event, None) for hook in self.hooks]
        return [method(self, *arguments) for method in found if method is not None]


def fit(
    task: Task,
    folder: RunFolder,
    fabric: Any,
    settings: Settings,
    hooks: Sequence[Any] = (),
    resume: bool = False,
) -> Run:
    """Train `task` for `settings.steps` updates; returns the finished (or interrupted) run."""
    run = Run(task, folder, fabric, settings, list(hooks))
    if resume:
        restore(run)
    run.call("start")
    progress = Progress(settings.steps, run.step, settings.quiet or not fabric.is_global_zero)
    timer = _Timer(run)
    agreement = Agreement(fabric)
    test_every = settings.test_every or max(1, settings.steps // 10)
    batches = task.batches()
    task.model.train()

    with Interrupt() as interrupt:
        try:
            while run.step < settings.steps:
                batch = next(batches)
                for index, player in enumerate(task.players):
                    if run.step % player.every == 0:
                        update(run, player, batch, hooked=index == 0)
                run.step += 1
                samples = len(batch[0]) * fabric.world_size

                shown: dict[str, Any] = {}
                if run.step % settings.log_every == 0 or run.step == settings.steps:
                    shown = log(run, timer.elapsed())
                if run.step % test_every == 0 or run.step == settings.steps:
                    test(run, timer.elapsed(), progress)
                progress.update(run.step, samples, shown)

                stop, due = agreement(run.step, interrupt.signal, timer.save_is_due())
                every = settings.checkpoint_every
                due = run.step % every == 0 if every is not None else due
                if due or stop or run.step == settings.steps:
                    run.elapsed = timer.elapsed()
                    with timer.saving():
                        save(run)
                if stop and run.step < settings.steps:
                    run.interrupted = stop
                    progress.say(f"interrupted: saved at step {run.step}; continue with --resume")
                    break
        finally:
            progress.close()
            folder.close()
    run.elapsed = timer.elapsed()
    run.call("finish")
    return run


def update(run: Run, player: Player, batch: tuple[Tensor, ...], hooked: bool) -> None:
    """One update of one player: gradients of the loss over the whole batch, then a step."""
    parts = _split(batch, run.settings.accumulate)
    player.rate.set(run.step)
    player.optimizer.zero_grad()
    total: dict[str, Tensor] = {}
    for number, part in enumerate(parts):
        final = number == len(parts) - 1
        for change in _methods(run, "change_batch") if hooked else ():
            part = change(run, part)
        # Gradients are exchanged between processes once per update, with the last part.
        with run.fabric.no_backward_sync(player.module, enabled=not final):
            loss, outputs = player.module(*part)
            share = len(part[0]) / len(batch[0])
            terms: dict[str, Tensor] = {}
            for extra in _methods(run, "terms") if hooked else ():
                terms.update(extra(run, part, outputs, final))
            whole = loss * share if len(parts) > 1 else loss
            for value in terms.values():
                whole = whole + value
            if any_process(run.fabric, not _is_finite(whole)):
                raise NotFinite(_diagnosis(run, player, part, terms, _is_finite(whole)))
            run.fabric.backward(whole)
        for name, value in (("loss", loss.detach() * share), *terms.items()):
            total[name] = total.get(name, 0.0) + value.detach()  # type: ignore[assignment]
    if run.fabric.world_size > 1:
        average_gradients(player.module)
    if hooked:
        run.call("before_update")
    if run.settings.clip is not None:
        clip(run, player, run.settings.clip)
    player.optimizer.step()
    if hooked:
        run.call("after_update")
        _count(run, total)
        if (run.step + 1) % run.settings.log_every == 0 or run.step + 1 == run.settings.steps:
            with torch.no_grad():
                run.measured = {k: float(v) for k, v in run.task.measure(part, outputs).items()}


def clip(run: Run, player: Player, largest: float) -> None:
    """Shorten the gradient to `largest`: that of the whole network, wherever its weights are."""
    if not is_spread(run.task.model):
        run.fabric.clip_gradients(player.module, player.optimizer, max_norm=largest)
        return
    run.fabric.strategy.precision.unscale_gradients(player.optimizer)
    norm = gradient_norm(run.task.model)
    if not math.isfinite(norm):
        raise NotFinite(f"the gradient is not finite at step {run.step}, though the loss is")
    factor = min(1.0, largest / (float(norm) + 1e-6))
    for parameter in run.task.model.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(factor)


def log(run: Run, elapsed: float) -> dict[str, Any]:
    """One line of metrics.jsonl: means since the last one, equal on all processes."""
    values = {name: value / run.count for name, value in run.sums.items()}
    values.update(run.measured)
    if run.fabric.world_size > 1:
        stacked = torch.tensor(list(values.values()), dtype=torch.float64)
        values = dict(zip(values, run.fabric.all_reduce(stacked).tolist(), strict=True))
    rate = run.player.optimizer.param_groups[0]["lr"]
    for extra in run.call("log"):
        values.update(extra)
    run.folder.log(step=run.step, time=round(elapsed, 3), split="train", lr=rate, **values)
    run.sums, run.count, run.measured = {}, 0, {}
    return values


def test(run: Run, elapsed: float, progress: Progress) -> None:
    """Measure on the test set, keep the weights if they are the best so far."""
    run.task.model.eval()
    values = run.task.test()
    run.task.model.train()
    if not values:
        return
    run.folder.log(step=run.step, time=round(elapsed, 3), split="test", **values)
    for player in run.task.players:
        player.rate.observe(values.get("loss", values.get("error", math.nan)))
    name, sign = run.task.best
    record = run.tested = {"step": run.step, **values}
    if not run.best or sign * values[name] > sign * run.best[name]:
        run.best = record
        tensors, _ = model_state(run)
        if run.folder.write:
            best = run.folder.checkpoints / "best"
            best.mkdir(exist_ok=True)
            save_weights(best / "model.safetensors", tensors)
    run.folder.json("summary.json", {"last": record, "best": run.best})
    text = "  ".join(f"{k} {v:.4f}" for k, v in values.items() if isinstance(v, float))
    progress.say(f"test at step {run.step}: {text}")


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


def _diagnosis(
    run: Run, player: Player, part: tuple[Tensor, ...], terms: dict[str, Any], innocent: bool
) -> str:
    """Run the part once more and look at every layer: in this process alone, or with FSDP in all
    of them; then an `innocent` process, whose own loss is finite, says what another has found.
    """
    plain = getattr(player.module, "module", player.module)
    if run.fabric.world_size > 1:
        run.model.eval()  # statistics over all processes would wait for the others
    good = not any_process(run.fabric, not is_finite(part))
    found = explain(run.step, run.model, good, lambda: plain(*part), terms.items())
    if not in_use(run.fabric):
        return found
    return next(text for text in share_states(run.fabric, None if innocent else found) if text)


def _methods(run: Run, event: str) -> list[Any]:
    return [getattr(hook, event) for hook in run.hooks if hasattr(hook, event)]


def _split(batch: tuple[Tensor, ...], parts: int) -> list[tuple[Tensor, ...]]:
    if parts == 1:
        return [batch]
    return list(zip(*(value.chunk(parts) for value in batch), strict=True))


def _is_finite(value: Tensor) -> bool:
    return math.isfinite(value.item())


def _count(run: Run, values: dict[str, Tensor]) -> None:
    for name, value in values.items():
        run.sums[name] = run.sums.get(name, 0.0) + float(value)
    run.count += 1
