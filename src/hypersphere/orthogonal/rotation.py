"""The parametrization behind `rotate`: weight = neurons, turned by the map of the current task."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ..functional import normalize, row_norm
from ..functional.orthogonalize import solve_each
from .matrices import CONSTRUCTED, FREE, apply, matrix
from .sites import FilterMatrix

DEFAULT_TASK = "default"
# Far above what OGD and rounding leave, 1e-5; a step of another optimizer soon passes it.
_FAR_FROM_ORTHOGONAL = 1e-3


class Matrix(nn.Module):
    """w = R v for all neurons of a layer, R = Diag(R_1, ..., R_k) (Eq. 7.1, F.33, F.34).

    Maps rows (sets * n, d), one neuron per row, to rows of the same shape. A shared block sees each
    sub-neuron as a neuron of its own.

    Args:
        U: (sets, k, d/k, d/k): one matrix per block, or a single one (k stored as 1) where the
            blocks are shared. It becomes the parameter.
        method: how R is made from U, a name of :func:`rotate`.
        blocks: k, the number of blocks.
        bandwidth: of method "banded".
    """

    no_weight_decay = True

    def __init__(self, U: Tensor, method: str, blocks: int = 1, bandwidth: int = 1) -> None:
        super().__init__()
        self.method = method
        self.blocks = blocks
        self.bandwidth = bandwidth
        self.U = nn.Parameter(U)

    # An optimizer sees parameters, not methods: the mark tells OGD which ones to keep orthogonal.
    # torch drops it in copies and pickles, hence __setstate__.
    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        super().register_parameter(name, param)
        if param is not None and self.method == "ogd":
            param.orthogonal = True  # type: ignore[attr-defined]

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.register_parameter("U", self.U)

    # Note [Another optimizer]
    # Only OGD keeps a matrix of method "ogd" orthogonal; another optimizer would leave silently.
    # OGD notes the version of the tensor that it wrote. A version by anyone else (a loaded
    # checkpoint, or that other optimizer) is looked at once, which costs one matrix product.
    def _check_orthogonal(self) -> None:
        """Raise in training if R of method "ogd" is not orthogonal. Note [Another optimizer]."""
        U = self.U
        # Without the mark it is not the parameter itself, but a stand-in of a transformation.
        if self.method != "ogd" or not (self.training and getattr(U, "orthogonal", False)):
            return
        if torch.compiler.is_compiling() or not (torch.is_grad_enabled() and U.requires_grad):
            return
        if getattr(U, "orthogonal_version", None) == U._version:
            return
        with torch.no_grad():
            R = U.to(torch.promote_types(U.dtype, torch.float32))
            gram = R.mT @ R
            gram.diagonal(dim1=-2, dim2=-1).sub_(1.0)
            error = float(gram.abs().amax())
        # Rounding to 16 bits is no alarm, nor are values that are not finite: a loss shows those.
        if max(_FAR_FROM_ORTHOGONAL, 16 * torch.finfo(U.dtype).eps) < error < math.inf:
            raise RuntimeError(
                f"R of method 'ogd' is not orthogonal any more: max |R^T R - I| is {error:.2g}. "
                f"Only hypersphere.orthogonal.OGD keeps it so; for another optimizer, choose "
                f"another method, such as rotate(model, method='cayley')"
            )
        mark_orthogonal(U)

    def forward(self, rows: Tensor) -> Tensor:
        self._check_orthogonal()
        sets, stored, size, _ = self.U.shape
        if sets == stored == 1:  # one matrix: nothing to take apart, which is quicker
            columns = rows.reshape(-1, size).mT
            turned = apply(self.U.view(size, size), columns, self.method, self.bandwidth)
            return turned.mT.reshape(rows.shape)
        columns = rows.reshape(sets, -1, stored, size).permute(0, 2, 3, 1)
        turned = apply(self.U, columns, self.method, self.bandwidth)
        return turned.permute(0, 3, 1, 2).reshape(rows.shape)

    def matrix(self) -> Tensor:
        """R as it is now.

        Returns:
            (sets, stored blocks, d/k, d/k).
        """
        return matrix(self.U, self.method, self.bandwidth)

    def dense(self) -> Tensor:
        """R with its blocks on the diagonal.

        Returns:
            (sets, d, d).
        """
        R = self.matrix().expand(-1, self.blocks, -1, -1)
        return torch.stack([_block_diagonal(list(blocks)) for blocks in R])

    def undo(self, rows: Tensor) -> Tensor:
        """R^{-1} applied to neurons, in float64.

        Args:
            rows: (sets * n, d), one neuron per row.

        Returns:
            (sets * n, d), in the type of the rows.
        """
        sets, stored, size, _ = self.U.shape
        R = matrix(self.U.detach().double(), self.method, self.bandwidth)
        columns = rows.double().reshape(sets, -1, stored, size).permute(0, 2, 3, 1)
        turned = R.mT @ columns if self.method in CONSTRUCTED else solve_each(R, columns)
        return turned.permute(0, 3, 1, 2).reshape(rows.shape).to(rows.dtype)

    def extra_repr(self) -> str:
        return f"method={self.method!r}, U={tuple(self.U.shape)}, blocks={self.blocks}"


def mark_orthogonal(U: Tensor) -> None:
    """Note that U is orthogonal in its present version. Note [Another optimizer]."""
    U.orthogonal_version = U._version  # type: ignore[attr-defined]


def _block_diagonal(blocks: list[Tensor]) -> Tensor:
    result: Tensor = torch.block_diag(*blocks)  # type: ignore[no-untyped-call]
    return result


class Function(nn.Module):
    """A plain function T(v) of the rows, as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, rows: Tensor) -> Tensor:
        return self.function(rows)


class Rotation(nn.Module):
    """Parametrization of one weight: its neurons stay, one map per task turns them (F.8).

    Maps the neurons, a tensor of the shape of the weight, to the weight.

    Args:
        layout: how the weight holds its neurons.
        first: the map of the first task, from rows (n, d) to (n, d).
        start_energy: energy of the neurons, for reports.
        trainable: whether the plain weight was, for `fold`.
        learn_lengths: train the length of each neuron, too; the neurons are then kept as unit
            vectors.
    """

    start_energy: Tensor
    current_task: Tensor
    lengths: nn.Parameter | None

    def __init__(
        self,
        layout: FilterMatrix,
        first: nn.Module,
        start_energy: float,
        trainable: bool = True,
        learn_lengths: bool = False,
    ) -> None:
        super().__init__()
        self.layout = layout
        self.trainable = trainable
        self.tasks = nn.ModuleDict({DEFAULT_TASK: first})
        self.task = DEFAULT_TASK
        rows = layout.sets * layout.neurons
        self.lengths = nn.Parameter(torch.ones(rows, 1)) if learn_lengths else None
        self.register_buffer("start_energy", torch.tensor(start_energy))
        self.register_buffer("current_task", torch.tensor(0))

    @property
    def map(self) -> nn.Module:
        """The map of the current task."""
        return self.tasks[self.task]

    @property
    def method(self) -> str:
        """How R is made from its parameter; the class of a map that is no matrix."""
        return self.map.method if isinstance(self.map, Matrix) else type(self.map).__name__

    @property
    def orthogonal(self) -> bool:
        """Whether R is meant to be orthogonal, so that the energy stays (Eq. 7.2)."""
        return self.method in (*CONSTRUCTED, "ogd")

    def forward(self, neurons: Tensor) -> Tensor:
        rows = self.layout.rows(neurons)
        turned = self.map(rows)
        if turned.shape != rows.shape:
            raise ValueError(
                f"T(v) must keep the shape of the neurons, (n, d) = {tuple(rows.shape)}; "
                f"it returned {tuple(turned.shape)}"
            )
        if self.lengths is not None:
            turned = turned * self.lengths
        return self.layout.weight(turned).to(neurons.dtype)

    def right_inverse(self, weight: Tensor) -> Tensor:
        """The neurons that the current map turns into a weight.

        Args:
            weight: the weight.

        Returns:
            The neurons, of the same shape.
        """
        rows = self.layout.rows(weight)
        if self.lengths is not None:
            with torch.no_grad():
                self.lengths.copy_(row_norm(rows, keepdim=True))
            rows = normalize(rows)
        if isinstance(self.map, Matrix):
            rows = self.map.undo(rows)
        return self.layout.weight(rows).contiguous()

    def add_task(self, name: str, source: str | None = None) -> None:
        """Add a map for another task.

        Args:
            name: of the task, not empty and without a dot.
            source: task whose map is copied. Default: the current one.
        """
        source = source or self.task
        if source not in self.tasks:
            raise KeyError(f"no task {source!r}; there are: {', '.join(self.tasks)}")
        if name in self.tasks:
            raise ValueError(f"task {name!r} exists; there are: {', '.join(self.tasks)}")
        if not name or "." in name:
            raise ValueError(f"a task name is not empty and has no dot; got {name!r}")
        self.tasks[name] = copy.deepcopy(self.tasks[source])
        self.use_task(self.task)

    def use_task(self, name: str) -> None:
        """Make a task the current one; only its map is trained.

        Args:
            name: of the task.
        """
        if name not in self.tasks:
            raise KeyError(f"no task {name!r}; there are: {', '.join(self.tasks)}")
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
        super()._load_from_state_dict(state_dict, prefix, *rest)
        if prefix + "current_task" in state_dict:
            self.use_task(sorted(names or self.tasks)[int(self.current_task)])


def rotations(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, Rotation]]:
    """(label, module, parameter name, rotation) of every rotated weight."""
    for name, module in model.named_modules():
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


def matrices(model: nn.Module) -> Iterator[tuple[str, Matrix]]:
    """The matrix of the current task of every layer that has one."""
    for label, _, _, rotation in required_rotations(model):
        if isinstance(rotation.map, Matrix):
            yield label, rotation.map


__all__ = [
    "FREE",
    "Function",
    "Matrix",
    "Rotation",
    "mark_orthogonal",
    "matrices",
    "required_rotations",
    "rotations",
]
