"""Compressive MHE (chapter 6): the energy of neurons projected to a space of few dimensions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from ..functional import (
    adversarial_step,
    angle_preserving_step,
    gaussian_projection,
    project,
    set_energies,
    sketch,
)
from ..registry import register
from .base import Term
from .grouping import channel_groups
from .low_rank import factors
from .mhe import MHE
from .neurons import Neurons
from .options import number, one_of

__all__ = ["CoMHE"]

PROJECTIONS = ("random", "angle_preserving", "adversarial", "group", "bilateral")
LEARNED = ("angle_preserving", "adversarial")
SKETCHED = ("random", "bilateral")  # those that `sketch` draws


@register("regularizer", "comhe", source="Eq. 6.3")
class CoMHE(MHE):
    r"""MHE of projected neurons, Eq. 6.3, by one of five kinds of projection.

    - "random": `count` random matrices, averaged (6.4) or the worst of them (6.5).
    - "angle_preserving": P descends on the distortion of the angles (6.6). mode="unrolled": each
      call takes a step on P and sends the loss's gradient through it, E(W, P - eta dL_P/dP), with
      second derivatives. mode="alternating": P takes `steps` steps every `update_every` calls and
      is a constant otherwise (6.7).
    - "adversarial": P ascends on the energy that the neurons descend on (6.8).
    - "group": each neuron is cut into groups of input channels, fixed or drawn (6.9).
    - "bilateral": projects the neurons, and also mixes them into fewer (E.20-E.22); on layers
      made low-rank by :func:`~hypersphere.regularizers.low_rank` it acts on their two factors.

    In evaluation mode (`.eval()`) projections stand still. `state_dict` holds projections, counter
    and generator.

    Args:
        projection: "random", "angle_preserving", "adversarial", "group" or "bilateral", as above.
        dim: dimension of the projected space, k + 1 in the dissertation, or r of the bilateral
            projection. A layer whose neurons have no more entries than that is not projected.
        count: number of projections. Default: 5, or 1 where they are learned.
        aggregate: "mean" or "max" over projections or groups.
        redraw_every: calls between fresh random projections; 0 draws once. Default: 1, or 200 where
            they are learned.
        sketch: "gaussian", "hadamard" or "count", for the random and bilateral projections (6.5).
        share: use one projection for all layers of equal neuron dimension (6.3.6).
        mode: "unrolled" or "alternating", for the angle-preserving projection.
        measure: "angle" or "cosine", what the angle-preserving projection preserves.
        lr: step of a learned projection. Default: 0.3 (angle-preserving, relative to \|P\|^2) or
            0.01 (adversarial, relative to \|P\|).
        steps: steps on a learned projection per update.
        update_every: calls between updates of a learned projection. Default: 1, or 10 in mode
            "alternating".
        group_channels: input channels per group in a convolution.
        group_features: entries per group in a linear layer; 128 entries are 8 channels of a 4 x 4
            map.
        stochastic: draw the groups anew each `redraw_every` calls instead of taking consecutive
            channels.
        project_first: project the first layer too; the released code does not.
        project_output: project the output layer too; otherwise it gets full-space MHE, as in the
            released code.
        hidden: lambda_h, the weight of the hidden layers; 0 leaves them out.
        output: lambda_o, the weight of the output layer; 0 leaves it out.
        s: power of the Riesz kernel for the hidden layers, >= 0; 0 is the logarithmic energy.
        half_space: whether the hidden layers repel both w and -w (5.3.4).
        distance: "euclidean", or "geodesic" for the angle (Eq. 5.5), in the hidden layers.
        output_s: s of the output layer. Default: as for the hidden layers.
        output_half_space: half_space of the output layer.
        output_distance: distance of the output layer. Default: as for the hidden layers.
        average: divide the hidden term by the number of hidden layers (remark in D.1).
        only: names of layers to take, with wildcards; a name also stands for the layers below it.
            Default: all.
        skip: names of layers to leave out, with wildcards.
        output_layers: names of the output layers. Default: found, see
            :func:`~hypersphere.regularizers.find_neurons`.
        together: compare the filters of different groups of a convolution too.
        seed: seed of the random projections and groups.

    Differs from the released code: an angle-preserving P is either unrolled or alternating, has a
    learning rate of its own, and the squared distortion (6.6) instead of its root.

    >>> from torch import nn
    >>> net = nn.Sequential(nn.Linear(5, 64), nn.Linear(64, 64), nn.Linear(64, 3))
    >>> reg = CoMHE(projection="random", dim=10)
    >>> reg(net).backward()
    >>> list(reg.projections)  # only the middle layer has more than 10 entries and may be projected
    ['64']
    """

    def __init__(
        self,
        projection: str = "random",
        dim: int = 30,
        count: int | None = None,
        aggregate: str = "mean",
        redraw_every: int | None = None,
        sketch: str = "gaussian",
        share: bool = True,
        mode: str = "unrolled",
        measure: str = "angle",
        lr: float | None = None,
        steps: int = 1,
        update_every: int | None = None,
        group_channels: int = 8,
        group_features: int = 128,
        stochastic: bool = False,
        project_first: bool = False,
        project_output: bool = False,
        hidden: float = 1.0,
        output: float = 1.0,
        s: float = 2.0,
        half_space: bool = True,
        distance: str = "euclidean",
        output_s: float | None = None,
        output_half_space: bool = False,
        output_distance: str | None = None,
        average: bool = False,
        only: Sequence[str] | None = None,
        skip: Sequence[str] = (),
        output_layers: Sequence[str] | None = None,
        together: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(
            hidden, output, s, half_space, distance, output_s, output_half_space, output_distance,
            None, average, only, skip, output_layers, together, seed,
        )  # fmt: skip
        one_of("projection", projection, PROJECTIONS)
        one_of("aggregate", aggregate, ("mean", "max"))
        one_of("sketch", sketch, ("gaussian", "hadamard", "count"))
        one_of("mode", mode, ("unrolled", "alternating"))
        one_of("measure", measure, ("angle", "cosine"))
        if sketch != "gaussian" and projection not in SKETCHED:
            raise ValueError(
                f"sketch={sketch!r} is for {' and '.join(SKETCHED)} projections; "
                f"{projection!r} draws none"
            )
        learned = projection in LEARNED
        self.projection, self.dim, self.aggregate = projection, dim, aggregate
        self.count = (1 if learned else 5) if count is None else count
        self.redraw_every = (200 if learned else 1) if redraw_every is None else redraw_every
        number("dim", dim, at_least=2)
        number("count", self.count, at_least=1)
        number("redraw_every", self.redraw_every)
        number("steps", steps, at_least=1)
        number("group_channels", group_channels, at_least=1)
        number("update_every", 1 if update_every is None else update_every, at_least=1)
        number("group_features", group_features, at_least=1)
        number("lr", 0.0 if lr is None else lr)
        self.sketch, self.share = sketch, share
        self.mode, self.measure, self.steps = mode, measure, steps
        self.lr = (0.01 if projection == "adversarial" else 0.3) if lr is None else lr
        alternating = projection == "angle_preserving" and mode == "alternating"
        self.update_every = (10 if alternating else 1) if update_every is None else update_every
        self.group_channels, self.group_features = group_channels, group_features
        self.stochastic = stochastic
        self.project_first, self.project_output = project_first, project_output
        self.calls = 0
        self.projections: dict[str, Tensor] = {}

    def terms(self, layers: list[Neurons]) -> list[Term]:
        """The energy of each layer, projected where it may be, and its weight.

        Args:
            layers: the layers found.

        Returns:
            One term per layer of nonzero weight.
        """
        hidden_layers = sum(layer.role == "hidden" for layer in layers)
        used = [(layer, self.factor(layer, hidden_layers)) for layer in layers]
        used = [(layer, factor) for layer, factor in used if factor]
        weights = [layer.read() for layer, _ in used]
        projected = [i for i, (x, _) in enumerate(used) if self._compresses(x, weights[i])]
        if held := [used[i][0].name for i in projected if used[i][0].name in self.neuron_weights]:
            raise ValueError(f"neuron_weights are not for projected layers, such as {held[0]!r}")
        redraw = self.redraw_every > 0 and self.calls % self.redraw_every == 0
        if self.training and redraw:
            self.projections.clear()
        chosen = {i: (used[i][0], weights[i]) for i in projected}
        values = self._energies(chosen)
        if self.training:
            self.calls += 1
        return [
            Term(x, factor, values[i] if i in values else self.energy(x, weights[i]))
            for i, (x, factor) in enumerate(used)
        ]

    def _compresses(self, layer: Neurons, neurons: Tensor) -> bool:
        if layer.first and not self.project_first:
            return False
        if layer.role == "output" and not self.project_output:
            return False
        if self.projection == "group":
            return self._group_size(layer) < layer.channels
        return neurons.shape[-1] > self.dim or factors(layer.module) is not None

    # --- the five projections ----------------------------------------------------------------

    def _energies(self, chosen: dict[int, tuple[Neurons, Tensor]]) -> dict[int, Tensor]:
        if self.projection == "group":
            return {i: self._group(layer, w) for i, (layer, w) in chosen.items()}
        if self.projection == "bilateral":
            return {i: self._bilateral(layer, w) for i, (layer, w) in chosen.items()}
        # Layers that share a projection are treated together: its steps see all of them.
        shared: dict[str, list[int]] = {}
        for i, (layer, w) in chosen.items():
            shared.setdefault(self._key(layer, w.shape[-1]), []).append(i)
        values: dict[int, Tensor] = {}
        for key, members in shared.items():
            neurons = [chosen[i][1] for i in members]
            p = self._learn(
                key, self._draw(key, self.count, self.dim, neurons[0].shape[-1]), neurons
            )
            for i, w in zip(members, neurons, strict=True):
                values[i] = self._aggregate(project(_wide(w), p.to(_wide(w))), len(w))
        return values

    def _learn(self, key: str, p: Tensor, neurons: list[Tensor]) -> Tensor:
        """The projection to use now; a learned one is stepped and kept."""
        if not self.training or self.projection not in LEARNED or self.calls % self.update_every:
            return p
        wide = [_wide(w) for w in neurons]
        p = p.to(wide[0])
        unrolled = self.projection == "angle_preserving" and self.mode == "unrolled"
        unrolled = unrolled and torch.is_grad_enabled()
        for _ in range(self.steps):
            if self.projection == "adversarial":
                p = self._ascend(p, wide)
            else:
                p = angle_preserving_step(wide, p, self.lr, self.measure, differentiable=unrolled)
        self.projections[key] = p.detach()
        return p

    def _ascend(self, p: Tensor, neurons: list[Tensor]) -> Tensor:
        with torch.enable_grad():
            leaf = p.detach().requires_grad_()
            images = [project(w.detach(), leaf) for w in neurons]
            energy = sum(
                set_energies(y, self.s, self.half_space, self.distance).sum() for y in images
            )
            assert isinstance(energy, Tensor)
            (gradient,) = torch.autograd.grad(energy, leaf)
        return adversarial_step(gradient, p, self.lr)

    def _group(self, layer: Neurons, neurons: Tensor) -> Tensor:
        groups = -(-layer.channels // self._group_size(layer))
        order = None
        if self.stochastic:
            order = self._keep(
                f"order/{self._key(layer, neurons.shape[-1])}",
                lambda: torch.randperm(layer.channels, generator=self.generator),
            )
        pieces = channel_groups(neurons, layer.channels, groups, order)
        return self._aggregate(pieces, len(neurons))

    def _group_size(self, layer: Neurons) -> int:
        return self.group_channels if layer.convolution else self.group_features

    def _bilateral(self, layer: Neurons, neurons: Tensor) -> Tensor:
        """E_s(P_1 W) + E_s(W P_2), one neuron per row: neurons in R^r, and r mixtures."""
        low_rank = factors(layer.module)
        if low_rank is not None:
            if low_rank[1].shape[1] < 2:
                raise ValueError(
                    f"{layer.name} is of rank 1, whose factors have a single direction and no "
                    f"energy: make it low_rank(model, 2) or more, or skip it"
                )
            return self._aggregate(low_rank[0].T[None], 1) + self._aggregate(low_rank[1].T[None], 1)
        w = _wide(neurons)
        sets, n, d = w.shape
        left = self._draw(self._key(layer, d), self.count, self.dim, d).to(w)
        rank = max(2, min(self.dim, n))
        right = self._draw(f"mixture/{self._key(layer, n)}", self.count, rank, n).to(w)
        mixtures = (right[None] @ w[:, None]).flatten(0, 1)  # (sets * C, r, d)
        return self._aggregate(project(w, left), sets) + self._aggregate(mixtures, sets)

    def _aggregate(self, images: Tensor, sets: int) -> Tensor:
        """Energy of (sets * C, N, k), aggregated over C, averaged over sets."""
        energies = set_energies(images, self.s, self.half_space, self.distance).view(sets, -1)
        return (energies.mean(1) if self.aggregate == "mean" else energies.amax(1)).mean()

    # --- state ---------------------------------------------------------------------------------

    def _key(self, layer: Neurons, size: int) -> str:
        return str(size) if self.share else f"{layer.name}:{size}"

    def _draw(self, key: str, count: int, dim: int, in_dim: int) -> Tensor:
        if self.projection in LEARNED:
            return self._keep(key, lambda: gaussian_projection(in_dim, dim, count, self.generator))
        return self._keep(key, lambda: sketch(self.sketch, in_dim, dim, count, self.generator))

    def _keep(self, key: str, make: Callable[[], Tensor]) -> Tensor:
        if key not in self.projections:
            self.projections[key] = make()
        return self.projections[key]

    def tensors(self) -> dict[str, Tensor]:
        """Generator, counter of calls and projections.

        Returns:
            The state by name.
        """
        state = super().tensors() | {"calls": torch.tensor(self.calls)}
        return state | {f"projection/{key}": p for key, p in self.projections.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over a state.

        Args:
            tensors: as :meth:`tensors` returned it.
        """
        super().restore(tensors)
        self.calls = int(tensors["calls"])
        kept = {key: p for key, p in tensors.items() if key.startswith("projection/")}
        self.projections = {key.removeprefix("projection/"): p for key, p in kept.items()}

    def extra_repr(self) -> str:
        return (
            f"projection={self.projection!r}, dim={self.dim}, count={self.count}, "
            + super().extra_repr()
        )


def _wide(w: Tensor) -> Tensor:
    return w.float() if w.dtype.itemsize < 4 else w
