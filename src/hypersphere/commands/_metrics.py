"""Which metrics a run will have, as far as its config tells before training."""

from __future__ import annotations

from typing import Any

from hypersphere import registry
from hypersphere.commands._yaml import ConfigError
from hypersphere.training.config import Config

__all__ = ["known_metrics", "refuse_metric", "usual_metric"]

# What the tables of the dissertation report, by the name that a run here has for it.
NAMES_OF_TEXT = {
    "LFW accuracy": "verification_accuracy",
    "inception score": "inception",
    "5-shot accuracy": "baseline_accuracy",
}
ALWAYS_PAIRS = ("letters", "lfw")  # data sets with pairs of classes that are not trained


def known_metrics(config: Config) -> list[str] | None:
    """The metrics that a run may have, the main one first.

    Args:
        config: of the run.

    Returns:
        Their names; None where a task, hook or data set of the user does not say what it measures.
    """
    task = registry.entry("task", config.task).target
    hooks = [registry.entry("hook", name).target for name in config.hooks]
    measures = [getattr(hook, "measures", None) for hook in hooks if hasattr(hook, "summarize")]
    own_data = registry.entry("data", config.data.name).own  # may have pairs, or not
    if own_data or not _says_its_metrics(task) or None in measures:
        return None
    measured = [name for names in measures for name in names or ()]
    return [*task.metrics(config), *measured, *_pair_metrics(config)]


def usual_metric(config: Config, name: str) -> tuple[str, str]:
    """The metric of a recipe, by the name that its runs have for it.

    Args:
        config: of the recipe.
        name: of the method, for what is said.

    Returns:
        The metric, and what a user should read where it is not the one that the recipe names.
    """
    wanted, known = config.dissertation.metric, known_metrics(config)
    if known is None:
        return wanted or "accuracy", ""
    if wanted in known:
        return wanted, ""
    metric = NAMES_OF_TEXT.get(wanted, wanted)
    metric = metric if metric in known else known[0]
    said = f"{name} has no {wanted!r}, the metric of its table: {metric!r} is compared; --metric "
    return metric, f"{said}chooses another ({', '.join(known)})" if wanted else ""


def refuse_metric(metric: str, config: Config, name: str) -> None:
    """Refuse a metric that a run cannot have.

    Args:
        metric: the metric.
        config: of the run.
        name: of the method, for the message.

    Raises:
        ConfigError: with the metrics that there are.
    """
    known = known_metrics(config)
    if known is not None and metric not in known:
        raise ConfigError(f"{name}: {registry.unknown_name('metric', metric, known)}")


def _says_its_metrics(task: Any) -> bool:
    """Whether `metrics` belongs to the `test` that runs: a subclass may change the test alone."""
    owner = next(one for one in task.__mro__ if "test" in vars(one) or "metrics" in vars(one))
    return "metrics" in vars(owner)


def _pair_metrics(config: Config) -> list[str]:
    """Verification follows the training of a classifier whose data set has pairs."""
    held = config.data.holdout > 0  # those samples take the place of the test part and its pairs
    open_set = config.data.options.get("protocol") == "open_set"
    there = config.data.name in ALWAYS_PAIRS or open_set
    if held or not there or config.task not in ("classification", "few_shot"):
        return []
    return [f"verification_{name}" for name in ("accuracy", "eer", "auc")]
