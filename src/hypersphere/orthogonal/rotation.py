"""The parametrization behind `rotate`: weight = neurons, turned by the map of the current task."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ..finding import FilterMatrix
from ..functional import normalize, row_norm
from .block_matrix import Matrix, mark_orthogonal, wide_dtype
from .butterfly import Butterfly
from .matrices import FREE, TURNED_START
from .reflections import Reflections
from .two_sided import TwoSided

DEFAULT_TASK = "default"
INPUT_ROTATION = "input_rotation"  # name of the submodule on the input side
# Maps that are matrices; any other is a function or module T(v) of the caller.
MAPS = (Matrix, Reflections, TwoSided)


class Function(nn.Module):
    """A plain function T(v) of the rows, as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, rows: Tensor) -> Tensor:
        return self.function(rows)


class Rotation(nn.Module):
    """What turns one weight: its neurons stay, one map per task turns them (F.8).

    Maps the neurons, a tensor of the shape of the weight, to the weight. On the weight side it is
    a parametrization; on the input side it stands beside the weight and turns the inputs instead.

    Args:
        layout: how the weight holds its neurons.
        first: the map of the first task, from rows (n, d) to (n, d).
        start_energy: energy of the neurons, for reports. Default: found when a report asks.
        trainable: whether the plain weight was, for `fold`.
        learn_lengths: train the length of each neuron, too; the neurons are then kept as unit
            vectors.
        side: "weight" or "input".
    """

    neuron_role = "none"  # no layer of its own: see hypersphere.finding
    start_energy: Tensor
    current_task: Tensor
    moved_neurons: Tensor  # whether they are other ones than the weight before `rotate` had
    lengths: nn.Parameter | None

    def __init__(
        self,
        layout: FilterMatrix,
        first: nn.Module,
        start_energy: float = float("nan"),
        trainable: bool = True,
        learn_lengths: bool = False,
        side: str = "weight",
    ) -> None:
        super().__init__()
        self.layout = layout
        self.trainable = trainable
        self.side = side
        self.tasks = nn.ModuleDict({DEFAULT_TASK: first})
        self.task = DEFAULT_TASK
        # on the meta device, and then without values until some are loaded
        self.unset = any(p.is_meta for p in first.parameters())
        self.holds_neurons = False  # whether right_inverse is given the neurons, not a weight
        rows = layout.sets * layout.neurons
        self.lengths = nn.Parameter(torch.ones(rows, 1)) if learn_lengths else None
        self.register_buffer("start_energy", torch.tensor(start_energy))
        self.register_buffer("current_task", torch.tensor(0))
        self.register_buffer("moved_neurons", torch.tensor(False))

    @property
    def map(self) -> nn.Module:
        """The map of the current task."""
        return self.tasks[self.task]

    @property
    def method(self) -> str:
        """How R is made from its parameter; the class of a map that is no matrix."""
        return str(self.map.method) if isinstance(self.map, MAPS) else type(self.map).__name__

    @property
    def orthogonal(self) -> bool:
        """Whether R is meant to be orthogonal, so that the energy stays (Eq. 7.2)."""
        return isinstance(self.map, MAPS) and bool(self.map.orthogonal)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:  # float32 or wider, as in Matrix
        before = None if self.lengths is None else self.lengths.detach()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if before is not None and self.lengths is not None and self.lengths.dtype.itemsize < 4:
            dtype = wide_dtype(self.lengths.dtype)
            self.lengths.data = before.to(device=self.lengths.device, dtype=dtype)
        return self

    def forward(self, neurons: Tensor) -> Tensor:
        rows = self.layout.rows(neurons)
        turned = self.map(rows)
        if turned.shape != rows.shape:
            raise ValueError(
                f"T(v) must keep the shape of the neurons, (n, d) = {tuple(rows.shape)}; "
                f"it returned {tuple(turned.shape)}"
            )
        if self.lengths is not None:
            # A step may take a length below zero, which would turn the neuron around.
            turned = turned * self.lengths.abs()
        return self.layout.weight(turned).to(neurons.dtype)

    def right_inverse(self, weight: Tensor) -> Tensor:
        """The neurons that the current map turns into a weight.

        Args:
            weight: the weight.

        Returns:
            The neurons, of the same shape.
        """
        if self.holds_neurons:
            return weight
        rows = self.layout.rows(weight)
        if self.lengths is not None:
            rows = self.take_lengths(rows)
        if isinstance(self.map, MAPS):
            rows = self.map.undo(rows)
        return self.layout.weight(rows).contiguous()

    @torch.no_grad()
    def take_lengths(self, rows: Tensor) -> Tensor:
        """Make the lengths of neurons the trained ones.

        Args:
            rows: (sets * n, d).

        Returns:
            The directions, (sets * n, d).
        """
        assert self.lengths is not None
        self.lengths.copy_(row_norm(rows, keepdim=True))
        return normalize(rows)

    def other_neurons(self, neurons: Tensor, weight: Tensor) -> bool:
        """Whether neurons are other ones than an identity start would take from a weight.

        Args:
            neurons: of the shape of the weight.
            weight: the plain weight.

        Returns:
            False also if they differ by the signed permutation with which some methods start.
        """
        own, plain = self.layout.rows(neurons), self.layout.rows(weight)
        plain = plain if self.lengths is None else normalize(plain)
        if self.method in TURNED_START:
            own, plain = own.abs().sort(-1).values, plain.abs().sort(-1).values
        return not torch.equal(own, plain)

    def turn_inputs(self, rows: Tensor) -> Tensor:
        """R^T x, so that W (R^T x) is what the turned weight would give.

        Args:
            rows: (m, d), one input per row.

        Returns:
            (m, d).
        """
        turned: Tensor = self.map.turn_inputs(rows)  # type: ignore[operator]
        return turned

    def add_task(self, name: str, source: str | None = None) -> None:
        """Add a map for another task.

        Args:
            name: of the task, not empty and without a dot.
            source: task whose map is copied. Default: the current one.
        """
        self.check_new_task(name, source)
        self.tasks[name] = copy.deepcopy(self.tasks[source or self.task])
        self.use_task(self.task)

    def check_new_task(self, name: str, source: str | None = None) -> None:
        """Raise unless :meth:`add_task` can add it.

        Args:
            name: of the new task.
            source: task whose map would be copied.
        """
        self.check_task(source or self.task)
        if name in self.tasks:
            raise ValueError(f"task {name!r} exists; there are: {', '.join(self.tasks)}")
        if not name or "." in name:
            raise ValueError(f"a task name is not empty and has no dot; got {name!r}")

    def check_task(self, name: str) -> None:
        """Raise unless there is such a task.

        Args:
            name: of the task.
        """
        if name not in self.tasks:
            raise KeyError(f"no task {name!r}; there are: {', '.join(self.tasks)}")

    def use_task(self, name: str) -> None:
        """Make a task the current one; only its map is trained.

        Args:
            name: of the task.
        """
        self.check_task(name)
        # Optimizers and DDP see the current task only; what was frozen in it stays frozen.
        trained = [p.requires_grad for p in self.map.parameters()]
        self.tasks.requires_grad_(False)
        for p, flag in zip(self.tasks[name].parameters(), trained, strict=True):
            p.requires_grad_(flag)
        self.task = name
        self.current_task.fill_(sorted(self.tasks).index(name))

    # A checkpoint with several tasks brings them along, and says which one is current: by its place
    # among the sorted names, as files need not keep an order of their own.
    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        start = prefix + "tasks."
        names = {key[len(start) :].split(".")[0] for key in state_dict if key.startswith(start)}
        for name in sorted(names - set(self.tasks)):
            self.add_task(name)
        if prefix + "current_task" in state_dict:  # states from before there was this entry
            state_dict.setdefault(prefix + "moved_neurons", self.moved_neurons)
        super()._load_from_state_dict(state_dict, prefix, *rest)
        place = state_dict.get(prefix + "current_task")
        if place is not None and not place.is_meta:
            self.use_task(sorted(names or self.tasks)[int(place)])
            self.unset = False


def rotations(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, Rotation]]:
    """(label, module, parameter name, rotation) of every rotated weight, on either side."""
    for name, module in model.named_modules():
        beside = module._modules.get(INPUT_ROTATION)
        if isinstance(beside, Rotation):
            yield name or type(module).__name__, module, "weight", beside
        if not parametrize.is_parametrized(module):
            continue
        for parameter, chain in _parametrizations(module).items():
            for item in chain.children():
                if isinstance(item, Rotation):
                    label = name if parameter == "weight" else f"{name}.{parameter}"
                    yield label.lstrip(".") or type(module).__name__, module, parameter, item


def _parametrizations(module: nn.Module) -> nn.ModuleDict:
    found = module.parametrizations
    assert isinstance(found, nn.ModuleDict)
    return found


def required_rotations(model: nn.Module) -> list[tuple[str, nn.Module, str, Rotation]]:
    """:func:`rotations`, of which there must be some."""
    found = list(rotations(model))
    if not found:
        raise ValueError(f"{type(model).__name__} has no rotated layer; call rotate(model) first")
    return found


def matrices(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The map of the current task of every layer where that is a matrix."""
    for label, _, _, rotation in required_rotations(model):
        if isinstance(rotation.map, MAPS):
            yield label, rotation.map


__all__ = [
    "FREE",
    "INPUT_ROTATION",
    "MAPS",
    "Butterfly",
    "Function",
    "Matrix",
    "Reflections",
    "Rotation",
    "TwoSided",
    "mark_orthogonal",
    "matrices",
    "required_rotations",
    "rotations",
    "wide_dtype",
]
