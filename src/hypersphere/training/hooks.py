"""What the methods of this field do around a training step, as plain objects (see `loop.py`)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from hypersphere.heads import MarginSchedule
from hypersphere.registry import register
from hypersphere.training.sections import NotNegative
from hypersphere.training.sharding import with_whole_weights

__all__ = [
    "Anneal",
    "ClassEnergyTerm",
    "OrthogonalityTerm",
    "ProjectWeights",
    "Regularize",
    "WeightGradients",
]


class Anneal:
    """One step of the head's schedules per update: lambda (2.2.7, A.7), and the margin's own.

    They belong to the head and are saved with it; this only moves them on and logs their values.
    """

    def __init__(self) -> None:
        self.margins: list[MarginSchedule] = []

    def start(self, run: Any) -> None:
        head = getattr(run.model, "head", None)
        parts = head.modules() if isinstance(head, nn.Module) else ()
        self.margins = [part for part in parts if isinstance(part, MarginSchedule)]

    def after_update(self, run: Any) -> None:
        annealing = self._schedule(run)
        if annealing is not None:
            annealing.step()
        for margin in self.margins:
            margin.step()

    def log(self, run: Any) -> dict[str, float]:
        annealing = self._schedule(run)
        shown = {} if annealing is None else {"lambda": float(annealing.value)}
        for margin in self.margins:
            shown["margin"] = margin.value
        return shown

    @staticmethod
    def _schedule(run: Any) -> Any:
        return getattr(getattr(run.model, "head", None), "annealing", None)


@register("hook", "project_weights", source="Sec. 4.4.1")
class ProjectWeights:
    """Weight projection (4.4.1): w <- radius w / |w| on decoupled layers, every n updates.

    Args:
        every: updates between two projections. Default: 1.
        radius: length of each neuron after a projection. Default: 1.
    """

    def __init__(self, every: int = 1, radius: float = 1.0) -> None:
        if every < 1:
            raise ValueError(f"project_weights.every must be at least 1; got {every}")
        self.every, self.radius = every, radius

    def start(self, run: Any) -> None:
        if run.step == 0:  # a resumed run continues with the weights it had
            self._project(run)

    def after_update(self, run: Any) -> None:
        if (run.step + 1) % self.every == 0:
            self._project(run)

    def _project(self, run: Any) -> None:
        from hypersphere.layers import project_weights

        project_weights(run.model, radius=self.radius)


@register("hook", "weighted_gradients", source="Sec. 4.4.2")
class WeightGradients:
    """Weighted gradients (4.4.2): the gradient of w is multiplied by |w| on decoupled layers."""

    def __init__(self) -> None:
        self.handle: Any = None

    def check_model(self, model: Any) -> None:
        """ValueError for a model in which it would change nothing.

        Args:
            model: what is trained.
        """
        from hypersphere.layers import weighted_gradients

        handle = weighted_gradients(model)
        if not handle.handles:
            raise ValueError(
                "hooks.weighted_gradients is for decoupled layers without weights, of which the "
                "model has none: leave it out, or choose an operator, such as --model.operator "
                "sphere"
            )
        handle.remove()

    def start(self, run: Any) -> None:
        from hypersphere.layers import weighted_gradients

        self.handle = weighted_gradients(run.model)

    def finish(self, run: Any) -> None:
        self.handle.remove()


class Regularize:
    """A regularizer of the weights with a schedule of its own.

    The loss gets factor(t) x regularizer(model): 0 before update `begin`, rising linearly over
    `ramp` updates, 0 again from `end` on. The regularizer's own state (projections of CoMHE,
    generators) is saved with the run.

    Args:
        name: what the term is called in the log.
        regularizer: called with the model; returns a scalar tensor.
        begin: first update with the term. Default: 0.
        ramp: updates over which its weight rises to 1. Default: 0, at once.
        end: first update without it. Default: never.
    """

    def __init__(
        self, name: str, regularizer: Any, begin: int = 0, ramp: int = 0, end: int | None = None
    ) -> None:
        self.name, self.regularizer = name, regularizer
        if end is not None and end <= begin:
            raise ValueError(
                f"regularizers.{name}.end must be after begin, or the term would never count; got "
                f"begin {begin} and end {end}"
            )
        self.begin, self.ramp, self.end = begin, ramp, end

    def factor(self, t: int) -> float:
        """Weight of the term at update t.

        >>> r = Regularize("mhe", None, begin=10, ramp=10, end=100)
        >>> [r.factor(t) for t in (9, 10, 14, 30, 100)]
        [0.0, 0.1, 0.5, 1.0, 0.0]
        """
        if t < self.begin or (self.end is not None and t >= self.end):
            return 0.0
        return min(1.0, (t - self.begin + 1) / self.ramp) if self.ramp else 1.0

    def terms(self, run: Any, batch: Any, outputs: Any, final: bool) -> dict[str, Tensor]:
        factor = self.factor(run.step)
        if not final or factor == 0.0:  # the weights are the same for every part of a batch: once
            return {}
        value = with_whole_weights(run.model, self.regularizer)
        return {self.name: value if factor == 1.0 else factor * value}

    def state_dict(self) -> Any:
        return self.regularizer.state_dict() if hasattr(self.regularizer, "state_dict") else None

    def load_state_dict(self, state: Any) -> None:
        self.regularizer.load_state_dict(state)


@register("hook", "class_energy", source="Eq. 5.8")
class ClassEnergyTerm:
    """SphereFace+ (Eq. 5.8): energy of the class weights around the classes of the batch.

    Args:
        weight: factor of the term. Default: 1.
        s: exponent of the energy. Default: 2.
    """

    name = "class_energy"
    needs_labels = True

    def __init__(self, weight: NotNegative = 1.0, s: float = 2.0) -> None:
        from hypersphere.regularizers import ClassEnergy

        self.energy = ClassEnergy(weight=weight, s=s)

    def terms(self, run: Any, batch: Any, outputs: Any, final: bool) -> dict[str, Tensor]:
        share = 1.0 / run.settings.accumulate
        value = with_whole_weights(run.model, lambda net: self.energy(net.head.weight, batch[1]))
        return {"class_energy": share * value}


@register("hook", "orthogonality", source="Eq. 7.7")
class OrthogonalityTerm:
    """OR (Eq. 7.7): weight x |R^T R - I|^2 over the rotations of `rotate(method="regularized")`.

    Args:
        weight: factor of the penalty. Default: 1.
    """

    def __init__(self, weight: NotNegative = 1.0) -> None:
        self.weight = weight

    def terms(self, run: Any, batch: Any, outputs: Any, final: bool) -> dict[str, Tensor]:
        from hypersphere.orthogonal import orthogonality_penalty

        if not final:
            return {}
        return {"orthogonality": self.weight * orthogonality_penalty(run.model)}
