"""What a run is worth: the same network as plain as it gets, and no network at all, beside it.

The plain twin has the data, the order of the batches, the length, the rate and the seed of the run,
with inner products for layers, the softmax head and no regularizers. Below both stands the cosine
of the inputs themselves: a network that is no better has learned nothing that transfers.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from hypersphere.training.build import make_loaders
from hypersphere.training.config import Config

__all__ = ["FOLDER", "Gain", "gain_over", "plain_twin", "verify_inputs"]

FOLDER = "baseline"  # of the twin's run, inside the folder of the run
# What turns a plain network into one of this library.
_OPTIONS = ("operator", "angular", "weighted", "rescale", "weight_projection")


def plain_twin(config: Config) -> Config:
    """The settings of a run without the parts of this library.

    Args:
        config: the settings of the run.

    Returns:
        The same data, length, optimizer and seed, with a plain network and a softmax head.

    Raises:
        ValueError: if the model is an object, from which no plain one can be made.

    >>> twin = plain_twin(Config(model={"name": "cnn3", "operator": "sphere"}))
    >>> twin.model, twin.head
    ({'name': 'cnn3'}, {'name': 'softmax'})
    """
    twin = copy.deepcopy(config)
    if "name" not in twin.model:
        raise ValueError("run.baseline makes the plain network by name; it cannot for an object")
    twin.model = {k: v for k, v in twin.model.items() if k not in _OPTIONS}
    twin.head = {"name": "softmax"}
    twin.regularizers, twin.hooks, twin.rotate, twin.low_rank = {}, {}, None, None
    twin.run = dataclasses.replace(twin.run, folder=None, report=False, baseline=False)
    return twin


def verify_inputs(config: Config) -> Any:
    """Verification of the pairs of unseen classes by the cosine of the inputs, without a network.

    Args:
        config: the settings of the run; its data have pairs.

    Returns:
        A `VerificationResult`.
    """
    from hypersphere.evaluation import verification

    loaders = make_loaders(config.data, config.seed)
    pairs = loaders.split.pairs
    inputs = torch.cat([x.flatten(1) for x, _ in loaders.over(pairs.dataset)])
    index = torch.stack([pairs.first, pairs.second], 1)
    return verification(inputs, inputs, pairs.same, protocol="plain", index=index, folds=pairs.fold)


@dataclasses.dataclass(frozen=True)
class Gain:
    """A run beside its baselines, over the same pairs of classes that none has seen.

    Args:
        results: `VerificationResult` by name, the run last.
        difference: accuracy of the run less that of the plain twin.
        low: lower end of its 95 % interval, paired over the folds.
        high: upper end.
    """

    results: Mapping[str, Any]
    difference: float
    low: float
    high: float

    def record(self) -> dict[str, Any]:
        """What baseline.json keeps.

        Returns:
            Plain values.
        """
        rows = [
            {"name": name, "accuracy": r.accuracy, "interval": list(r.interval), "eer": r.eer}
            for name, r in self.results.items()
        ]
        run = list(self.results.values())[-1]
        pairs = run.positives + run.negatives
        gain = {"difference": self.difference, "low": self.low, "high": self.high, "pairs": pairs}
        return {**gain, "folds": len(run.fold_accuracies), "rows": rows}

    def sentence(self) -> str:
        """What was gained, in words.

        Returns:
            One sentence.
        """
        record = self.record()
        points, low, high = (100 * v for v in (self.difference, self.low, self.high))
        where = f"over {record['pairs']:,} pairs of classes that no network was trained on"
        interval = f"95 %: {low:+.2f} to {high:+.2f}, paired over {record['folds']} folds"
        if self.low <= 0 <= self.high:
            return (
                f"No difference from the plain network can be told {where}: {points:+.2f} points "
                f"({interval})."
            )
        side = "more" if points > 0 else "fewer"
        return (
            f"This run tells {abs(points):.2f} points {side} of them right than the plain network "
            f"({interval}), {where}."
        )

    def __str__(self) -> str:
        width = max(map(len, self.results))
        lines = [f"{'':<{width}}  accuracy          95 %       EER"]
        for name, r in self.results.items():
            low, high = (100 * bound for bound in r.interval)
            between = f"{low:.1f} to {high:.1f}"
            row = f"{100 * r.accuracy:>6.2f} %  {between:>12}  {100 * r.eer:>5.2f} %"
            lines.append(f"{name:<{width}}  {row}")
        return "\n".join(lines)


def gain_over(config: Config, run: Any, twin: Any) -> Gain:
    """Put a run beside its plain twin and the bare inputs.

    Args:
        config: the settings of the run.
        run: its `VerificationResult`.
        twin: that of the plain twin.

    Returns:
        The comparison.
    """
    from hypersphere.evaluation.paired import paired_difference

    results = {"inputs alone": verify_inputs(config), "plain network, softmax": twin}
    results["this run"] = run
    found = paired_difference(run.fold_accuracies, twin.fold_accuracies)
    return Gain(results, found.mean, found.low, found.high)
