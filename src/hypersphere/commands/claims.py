"""`hypersphere claims`: the table of verdicts; `hypersphere claims run`: the runs behind it."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypersphere._reading import sealed_text
from hypersphere._terminal import complain
from hypersphere.commands._claims import Claim, claim_names, compared, read_claim, value_of
from hypersphere.commands._compare_arguments import Arguments
from hypersphere.commands._comparing import Comparison, seeded
from hypersphere.commands._comparison import Method, is_share
from hypersphere.commands._recorded import earlier_record, recorded_trials, recorded_values
from hypersphere.commands._yaml import ConfigError
from hypersphere.reports.claims import claims_folder, read_claims, terminal_table
from hypersphere.training.config import Config
from hypersphere.training.interrupt import Interrupted
from hypersphere.training.run.checkpoint import RunError, write_atomically
from hypersphere.training.run.folder import describe_run

USAGE = """usage: hypersphere claims [--results FOLDER]
       hypersphere claims run [NAME ...] [--jobs N] [--folder FOLDER]
                              [--results FOLDER] [--seeds N]

Which claims of the dissertation hold, at a scale that two cores can carry:
without further words, the verdicts of the tests that were run. `run` trains
what is missing of the named claims (default: all, cheap ones first), with one
thread for each run. It can be stopped at any moment; the same command goes on,
also on another machine: what NAME.json holds is not trained again.
A claim is a file in recipes/claims: methods, tuning, seeds and comparisons.

  --jobs N           runs at a time (default: 1)
  --folder FOLDER    where the runs go (default: runs/claims)
  --results FOLDER   where NAME.json is written after every run (default:
                     results/claims), or read (default: those that are shipped)
  --seeds N          another number of seeds than the claims say
"""


def main(argv: Sequence[str]) -> int:
    words = list(argv)
    if any(word in ("-h", "--help") for word in words):
        print(USAGE)
        return 0
    try:
        if words[:1] == ["run"]:
            return _run(words[1:])
        folder = claims_folder()
        if words[:1] == ["--results"] and len(words) == 2:
            folder, words = Path(words[1]), []
        if words:
            raise ConfigError(f"`hypersphere claims` takes `run` or --results; got {words[0]!r}")
        records = read_claims(folder)
        if not records:
            raise ValueError(f"{folder} has no results of claims: hypersphere claims run")
    except ConfigError as error:
        complain("claims", error)
        return 2
    except Interrupted as stop:
        print(
            "hypersphere claims: interrupted; the same command goes on from here", file=sys.stderr
        )
        return 128 + stop.signal
    except (RunError, ValueError, OSError) as error:
        complain("claims", error)
        return 1
    print(terminal_table(records))
    return 0


def _run(words: list[str]) -> int:
    options = {"--jobs": "1", "--folder": "runs/claims", "--results": "results/claims"}
    options["--seeds"] = ""
    names = []
    while words:
        word = words.pop(0)
        if word in options and words:
            options[word] = words.pop(0)
        elif word.startswith("--"):
            raise ConfigError(f"`hypersphere claims run` takes {', '.join(options)}; got {word!r}")
        else:
            names.append(word)
    for flag in ("--jobs", "--seeds"):
        if options[flag] and not (options[flag].isdigit() and int(options[flag]) > 0):
            raise ConfigError(f"{flag} takes a whole number from 1 on; got {options[flag]!r}")
    claims = [read_claim(name) for name in names or claim_names()]
    os.environ["OMP_NUM_THREADS"] = "1"  # of the runs, which are processes of their own
    for claim in sorted(claims, key=lambda claim: claim.minutes):
        print(f"{claim.name}: {claim.claim}", file=sys.stderr, flush=True)
        test = ClaimTest(
            claim,
            Path(options["--folder"]) / claim.name,
            Path(options["--results"]) / f"{claim.name}.json",
            jobs=int(options["--jobs"]),
            seeds=int(options["--seeds"] or claim.seeds),
        )
        test.run()
        main_one = test.record()["comparisons"][0]
        print(f"{claim.name}: {main_one['verdict']}", file=sys.stderr, flush=True)
    return 0


class ClaimTest(Comparison):
    """The runs of a claim; its result file is whole after every run."""

    def __init__(
        self, claim: Claim, folder: Path, result: Path, jobs: int = 1, seeds: int = 5
    ) -> None:
        self.claim, self.result = claim, result
        tune = [f"{key}={','.join(map(str, values))}" for key, values in claim.tune.items()]
        methods = claim.methods.values()
        arguments = Arguments(
            specs=[method.recipe for method in methods],
            seeds=list(range(seeds)),
            folder=folder,
            metric=claim.metric,
            jobs=jobs,
            tune=tune,
            names=list(claim.methods),
            options=[_flags(method.options) for method in methods],
            tuning_metric=claim.tune_by,
            one_thread=True,
            divergence_counts=claim.not_converged is not None,
        )
        super().__init__(arguments, claim.command)
        self._reuse(earlier_record(result, claim.tune))

    def _reuse(self, record: dict[str, Any]) -> None:
        """Take over the runs of an earlier record that had the settings of today."""
        rows = {row["name"]: row for row in record.get("methods", [])}
        self.recorded: set[tuple[str, int]] = set()
        self.processor = record.get("hardware", {}).get("processor", "")
        trials = sum(len(row["tuning"]) for row in rows.values())
        spent = 60 * record.get("minutes", 0.0)
        spent -= sum(sum(row["seconds"].values()) for row in rows.values())
        settings, changes = self._all_settings()
        if not record or _outcome(record["config"]) != _outcome(settings):
            return
        for method, config in zip(self.methods, self.configs, strict=True):
            row = rows.get(method.name)
            if row is None or record["changes"].get(method.name) != changes[method.name]:
                continue
            for values, how in recorded_trials(row, spent / max(trials, 1)):
                self.known[self._place(Path(), self._trial(config, values, method.name))] = how
            for seed, how in recorded_values(row, [self.metric, *self._metrics(method)]):
                run = seeded(config, row["chosen"], method.name, seed)
                self.known[self._place(Path(), run)] = how
                if seed in self.arguments.seeds:
                    self.recorded.add((method.name, seed))

    def _place(self, place: Path, config: Config) -> Path:
        """A folder that the settings name: claims share the runs that they have in common."""
        return self.arguments.folder.parent / "runs" / _fingerprint(config)

    def _record(self) -> None:
        super()._record()
        if not self.recorded <= self.ended.keys():
            return  # the file holds runs that are still to be taken over from it
        self.result.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.result, sealed_text(self.record(), indent=1))

    def record(self) -> dict[str, Any]:
        """Everything about the test of the claim, as results/claims keeps it."""
        claim = self.claim
        seconds = sum(sum(method.seconds.values()) for method in self.methods)
        about = describe_run(0)
        settings, changes = self._all_settings()
        return {
            "name": claim.name,
            "claim": claim.claim,
            "source": claim.source,
            "protocol": " ".join(claim.protocol.split()),
            "found": " ".join(claim.found.split()),
            "metric": claim.metric,
            "seeds": claim.seeds,
            "tune": {key: list(values) for key, values in claim.tune.items()},
            "command": claim.command,
            "minutes": round((seconds + self.tuning_seconds) / 60, 1),
            "comparisons": [compared(claim, one, self.ended) for one in claim.comparisons],
            "methods": [self._row(number) for number in range(len(self.methods))],
            "config": settings,
            "changes": changes,
            "versions": about["versions"],
            "commit": about["commit"],
            "hardware": {**about["hardware"], "processor": self._processors(about), "threads": 1},
        }

    def _all_settings(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The first method's settings in full, and of every method what differs from it."""
        first, *_ = settings = [_settings(config.to_dict()) for config in self.configs]
        changes = {
            method.name: _difference(first, own)
            for method, own in zip(self.methods, settings, strict=True)
        }
        return first, changes

    def _processors(self, about: dict[str, Any]) -> str:
        """The processor, after that of the runs that were taken over if it is another."""
        used = self.processor.split(" and ") if self.known else []
        return " and ".join(dict.fromkeys([*used, about["hardware"]["processor"]]))

    def _metrics(self, method: Method) -> list[str]:
        """The metrics of a method that the comparisons ask for."""
        return list(
            dict.fromkeys(
                term.partition("/")[2] or contrast.metric
                for contrast in self.claim.comparisons
                for term in contrast.terms
                if term.partition("/")[0] == method.name
            )
        )

    def _row(self, number: int) -> dict[str, Any]:
        method, claim = self.methods[number], self.claim
        values = {
            metric: {
                str(seed): _scaled(value_of(claim, how, metric, method.name), metric)
                for (name, seed), how in sorted(self.ended.items())
                if name == method.name
            }
            for metric in self._metrics(method)
        }
        return {
            "name": method.name,
            "recipe": method.spec,
            "options": dict(claim.methods[method.name].options),
            "text": method.recipe.get("value"),
            "differs": method.recipe.get("note") or "",
            "values": values,
            "seconds": {str(seed): round(s, 1) for seed, s in sorted(method.seconds.items())},
            "tuning": method.tuning,
            "chosen": method.chosen,
        }


def _fingerprint(config: Config) -> str:
    """A name for the settings that decide on the outcome of a run."""
    text = json.dumps(_outcome(_settings(config.to_dict())), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _outcome(values: dict[str, Any]) -> dict[str, Any]:
    """The settings that decide on the outcome of a run."""
    for section, keys in (("train", ("threads", "quiet", "compile")), ("data", ("workers",))):
        kept = values.get(section, {})
        values = {**values, section: {k: v for k, v in kept.items() if k not in keys}}
    if values["schedule"]["name"] == "cosine":  # the other settings are of other schedules
        values["schedule"] = {k: values["schedule"][k] for k in ("name", "warmup", "end")}
    return values


def _flags(options: Any) -> list[str]:
    words = [
        (f"--{key}", "null" if value is None else str(value)) for key, value in options.items()
    ]
    return [word for pair in words for word in pair]


def _scaled(value: float | None, metric: str) -> float | None:
    return value if value is None else round(value * (100 if is_share(metric) else 1), 4)


def _settings(values: dict[str, Any]) -> dict[str, Any]:
    """Settings without places, and without what says where the text's number stands."""
    kept = {k: v for k, v in values.items() if k not in ("run", "fabric", "dissertation", "parts")}
    kept["data"] = {k: v for k, v in kept["data"].items() if k != "root"}
    plain: dict[str, Any] = json.loads(json.dumps(kept))
    return plain


def _difference(base: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in dict.fromkeys([*base, *other]):
        one, two = base.get(key), other.get(key)
        if isinstance(one, dict) and isinstance(two, dict):
            inner = _difference(one, two)
            if inner:
                found[key] = inner
        elif one != two:
            found[key] = two
    return found
