"""What the loop works with: players, settings, and the run that hooks see."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from hypersphere.training.run.folder import RunFolder
from hypersphere.training.schedules import LearningRate

__all__ = ["EVENTS", "Objective", "Player", "Run", "Settings", "Task"]

# What a hook may have a method for; see `loop.py`.
EVENTS = (
    "start",
    "change_batch",
    "terms",
    "before_update",
    "after_update",
    "log",
    "finish",
    "summarize",
    "logged",
)


@dataclass
class Objective:
    """One thing that a task trains; `prepare` makes a `Player` of it.

    Args:
        net: the network whose parameters the optimizer moves.
        loss: a module with ``loss(*batch) -> (scalar tensor, outputs)``; what DDP and FSDP wrap.
        every: the player acts in every n-th iteration. Default: 1.
    """

    net: nn.Module
    loss: nn.Module
    every: int = 1


@dataclass
class Player:
    """One module, the optimizer that moves it, and its learning rate.

    A classifier is one player; a GAN has two.

    Args:
        module: ``module(*batch)`` returns (loss, outputs).
        optimizer: moves the parameters of the module.
        rate: sets the learning rate of the optimizer before each update.
        every: the player acts in every n-th iteration. Default: 1.
    """

    module: nn.Module
    optimizer: Optimizer
    rate: LearningRate
    every: int = 1


class Task(Protocol):
    """What the loop asks of a task; no base class is needed.

    Args:
        model: what is saved.
        players: what is trained; hooks act on the first.
        best: a name of `test`, and +1 if more of it is better, -1 if less.
    """

    model: nn.Module
    players: list[Player]
    best: tuple[str, int]

    def batches(self) -> Iterator[tuple[Tensor, ...]]: ...
    def measure(self, batch: tuple[Tensor, ...], outputs: Any) -> dict[str, Tensor]: ...
    def test(self) -> dict[str, float]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass
class Settings:
    """How long and how often: the numbers of the loop.

    Args:
        steps: updates of the whole run.
        accumulate: parts that each batch is split into; the update sees the whole batch.
        clip: largest norm of the gradient. Default: no clipping.
        log_every: updates between two training lines of metrics.jsonl.
        test_every: updates between two tests. Default: ten tests per run.
        checkpoint_every: updates between two checkpoints. Default: by time, at most 1 % of the run.
        checkpoint_seconds: shortest time between two checkpoints made by time, in seconds.
        keep: number of checkpoints that stay on disk, the newest ones.
        quiet: show no progress.
    """

    steps: int = 1000
    accumulate: int = 1
    clip: float | None = None
    log_every: int = 50
    test_every: int | None = None
    checkpoint_every: int | None = None
    checkpoint_seconds: float = 30.0
    keep: int = 2
    quiet: bool = False

    def __post_init__(self) -> None:
        for name in ("steps", "accumulate", "log_every", "keep"):
            if getattr(self, name) < 1:
                raise ValueError(f"train.{name} must be at least 1; got {getattr(self, name)}")


@dataclass
class Run:
    """What hooks see: where the run is, and everything in it.

    Args:
        task: what is trained.
        folder: the record of the run.
        fabric: devices and processes (Lightning Fabric).
        settings: the numbers of the loop.
        hooks: called around each update.
        step: finished updates.
        elapsed: seconds of training, over all resumptions.
        best: values of the best test so far.
        tested: values of the last test.
        measured: values of the last batch before a log line.
        interrupted: the signal that stopped the run.
        sums: losses and terms added up since the last log line; tensors on the device.
        count: number of updates in `sums`.
        notes: what is to be said to the user at the next log line.
    """

    task: Task
    folder: RunFolder
    fabric: Any
    settings: Settings
    hooks: Sequence[Any] = ()
    step: int = 0
    elapsed: float = 0.0
    best: dict[str, Any] = field(default_factory=dict)
    tested: dict[str, Any] = field(default_factory=dict)
    measured: dict[str, Any] = field(default_factory=dict)
    interrupted: int | None = None
    sums: dict[str, Any] = field(default_factory=dict)
    count: int = 0
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Looked up once, not in every update.
        self.listeners: dict[str, list[Any]] = {event: [] for event in EVENTS}
        for hook in self.hooks:
            for event, methods in self.listeners.items():
                methods += [_checked(hook, event)] if hasattr(hook, event) else []

    @property
    def model(self) -> nn.Module:
        """What hooks act on: the whole model, or the part a task names (a GAN's discriminator)."""
        return getattr(self.task, "hooked", self.task.model)

    @property
    def player(self) -> Player:
        """The player that hooks act on."""
        return self.task.players[0]

    def record(self, step: int, split: str, values: Mapping[str, Any], **notes: Any) -> None:
        """Write a line of metrics.jsonl and show it to the hooks.

        Args:
            step: updates so far.
            split: "train", "test" or "monitor".
            values: names and numbers, or further such mappings.
            notes: what belongs to the line but is no measurement, such as its time.
        """
        self.folder.log(step=step, **notes, split=split, **values)
        self.call("logged", step, split, values)

    def call(self, event: str, *arguments: Any) -> list[Any]:
        """Call `event` of every hook that has it.

        Args:
            event: one of `EVENTS`.
            arguments: passed on after the run itself.

        Returns:
            What the hooks returned, in their order.
        """
        return [method(self, *arguments) for method in self.listeners[event]]


# What some of the methods return; the others return nothing.
_RETURNS: dict[str, type] = {
    "change_batch": tuple,
    "terms": Mapping,
    "log": Mapping,
    "summarize": Mapping,
}


def _checked(hook: Any, event: str) -> Callable[..., Any]:
    """A method of a hook; of a user's own hook, what it returns is checked."""
    method: Callable[..., Any] = getattr(hook, event)
    expected = _RETURNS.get(event)
    if expected is None or type(hook).__module__.startswith("hypersphere."):
        return method

    def call(*arguments: Any) -> Any:
        value = method(*arguments)
        if not isinstance(value, expected):
            wanted = "tuple of tensors" if expected is tuple else "dictionary"
            raise ValueError(
                f"{event} of the hook {type(hook).__name__} has to return a {wanted}; got {value!r}"
            )
        return value

    return call
