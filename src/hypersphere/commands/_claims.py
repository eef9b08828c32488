"""A claim of the dissertation, as recipes/claims/NAME.yaml declares it, and the record of its test.

The methods of a claim are recipes with their variants. A comparison is a sum over methods, by
default method - baseline: its value per seed gives a mean, a 95 % interval and a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hypersphere.commands._comparison import better, is_share, metric_value
from hypersphere.commands._files import recipe_root
from hypersphere.commands._recorded import is_recorded, stored
from hypersphere.commands._yaml import ConfigError, read_yaml
from hypersphere.evaluation.paired import paired_difference, verdict
from hypersphere.registry import unknown_name
from hypersphere.training.campaign import Ended

ENOUGH = 5  # seeds for a verdict; more make its interval narrower

__all__ = ["Claim", "Contrast", "MethodSpec", "claim_names", "compared", "read_claim"]


@dataclass(frozen=True)
class MethodSpec:
    """One method of a claim.

    Args:
        recipe: the config and its variants.
        options: settings that differ from them, by their dotted names.
    """

    recipe: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Contrast:
    """What is claimed to lie above or below zero: a sum over methods with factors.

    Args:
        label: what it compares, in a few words.
        terms: factor of each method; "method/metric" takes another metric of that method's runs.
        metric: name of the metric.
        claimed: the side of zero on which the text puts the sum.
        text: the sum of the text's numbers, in percent for shares; None where it gives none.
    """

    label: str
    terms: Mapping[str, float]
    metric: str
    claimed: Literal["lower", "higher"]
    text: float | None = None


@dataclass(frozen=True)
class Claim:
    """A claim and how it is tested.

    Args:
        name: of its file.
        claim: the claim, in a sentence.
        source: tables and figures of the dissertation.
        protocol: what is trained, and how that differs from the text.
        methods: the methods by name.
        comparisons: what is compared; the first decides on the claim.
        metric: of the comparisons that name no other.
        seeds: number of paired seeds.
        tune: values of each setting that is tuned for every method, on held-out training samples.
        tune_by: metric that chooses among them. Default: that of the claim.
        minutes: what it takes on one core, about; cheap claims run first.
        not_converged: value of a run that diverges, such as the error of chance. Default: the seed
            is left out.
        found: what was found, for the page of results.
    """

    name: str
    claim: str
    source: str
    protocol: str
    methods: Mapping[str, MethodSpec]
    comparisons: Sequence[Contrast]
    metric: str
    seeds: int = 5
    tune: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    tune_by: str | None = None
    minutes: float = 10.0
    not_converged: float | None = None
    found: str = ""

    @property
    def command(self) -> str:
        """The command that repeats it."""
        return f"hypersphere claims run {self.name}"


def claim_names() -> list[str]:
    """The names of the shipped claims, in alphabetical order."""
    return sorted(path.stem for path in (recipe_root() / "claims").glob("*.yaml"))


def read_claim(name: str | Path) -> Claim:
    """A claim from its file.

    Args:
        name: of a shipped claim, or a file.

    Returns:
        The claim.

    Raises:
        ConfigError: if there is no such claim, or its file has an unknown or missing key.
    """
    path = Path(name) if str(name).endswith(".yaml") else recipe_root() / "claims" / f"{name}.yaml"
    if not path.exists():
        raise ConfigError(str(unknown_name("claim", str(name), claim_names())))
    values = dict(read_yaml(path))
    known = set(Claim.__dataclass_fields__) - {"name"}
    for key in values:
        if key not in known:
            raise ConfigError(f"{path}: {unknown_name('key of a claim', key, sorted(known))}")
    for key in ("claim", "source", "protocol", "methods", "comparisons", "metric"):
        if not values.get(key):
            raise ConfigError(f"{path}: a claim needs {key!r}")
    methods = {
        str(label): MethodSpec(spec) if isinstance(spec, str) else MethodSpec(**spec)
        for label, spec in values.pop("methods").items()
    }
    metric = values["metric"]
    contrasts = [_contrast(given, metric, methods, path) for given in values.pop("comparisons")]
    return Claim(name=path.stem, methods=methods, comparisons=contrasts, **values)


def _contrast(
    given: Mapping[str, Any], metric: str, methods: Mapping[str, Any], path: Path
) -> Contrast:
    values = dict(given)
    metric = values.setdefault("metric", metric)
    if "method" in values:
        method, baseline = values.pop("method"), values.pop("baseline")
        values["terms"] = {method: 1.0, baseline: -1.0}
        values.setdefault("label", f"{method} against {baseline}")
    values.setdefault("claimed", better(metric))
    for term in values.get("terms", {}):
        if str(term).partition("/")[0] not in methods:
            raise ConfigError(f"{path}: {unknown_name('method', str(term), list(methods))}")
    try:
        return Contrast(**values)
    except TypeError as error:
        raise ConfigError(f"{path}: comparison {given}: {error}") from None


def compared(
    claim: Claim, contrast: Contrast, ended: Mapping[tuple[str, int], Ended]
) -> dict[str, Any]:
    """One comparison over the seeds that every one of its methods has.

    Args:
        claim: the claim.
        contrast: one of its comparisons.
        ended: how each run ended, by method and seed.

    Returns:
        Values per seed, mean, interval, verdict ("unfinished" before five seeds are there) and the
        share of the text's gain. Shares of samples are in percent.
    """
    scale = 100.0 if is_share(contrast.metric) else 1.0
    values = {
        seed: _sum(claim, contrast, ended, seed)
        for seed in range(claim.seeds)
        if all((term.partition("/")[0], seed) in ended for term in contrast.terms)
    }
    pairs = {seed: scale * value for seed, value in values.items() if value is not None}
    record: dict[str, Any] = {
        "label": contrast.label,
        "metric": contrast.metric,
        "terms": dict(contrast.terms),
        "claimed": contrast.claimed,
        "text": contrast.text,
        "values": {str(seed): stored(value) for seed, value in pairs.items()},
        "not_converged": len(values) - len(pairs),
        "mean": None,
        "low": None,
        "high": None,
        "verdict": "unfinished",
        "share_of_text": None,
    }
    if pairs:
        found = paired_difference(list(pairs.values()), [0.0] * len(pairs))
        record["mean"] = stored(found.mean)
        if len(pairs) > 1:
            record["low"], record["high"] = stored(found.low), stored(found.high)
        if len(values) >= min(claim.seeds, ENOUGH) and len(pairs) > 2:
            record["verdict"] = verdict(found, contrast.claimed)
        if contrast.text:
            record["share_of_text"] = stored(found.mean / contrast.text)
    return record


def _sum(
    claim: Claim, contrast: Contrast, ended: Mapping[tuple[str, int], Ended], seed: int
) -> float | None:
    parts = []
    for term, factor in contrast.terms.items():
        method, _, metric = term.partition("/")
        value = value_of(claim, ended[method, seed], metric or contrast.metric, method)
        if value is None:
            return None
        parts.append(factor * value)
    return math.fsum(parts)


def value_of(claim: Claim, how: Ended, metric: str, method: str) -> float | None:
    """A metric of a run; of one that diverged, what the claim says."""
    if how.diverged is not None:
        return claim.not_converged
    if is_recorded(how):
        recorded: float = how.summary["recorded"][metric]
        return recorded
    # Of a graph the validation nodes choose the step, as its authors do.
    kind = "best" if "validation_accuracy" in how.summary.get("best", {}) else "last"
    return stored(metric_value(how.summary, kind, metric, method))
