"""`hypersphere claims`: the table of verdicts; `hypersphere claims run`: the runs behind it."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypersphere._reading import sealed_text
from hypersphere._terminal import complain
from hypersphere.commands._claim_settings import difference, fingerprint, outcome, settings_of
from hypersphere.commands._claims import (
    Claim,
    Contrast,
    claim_names,
    compared,
    read_claim,
    value_of,
)
from hypersphere.commands._compare_arguments import Arguments
from hypersphere.commands._comparing import Comparison, make_folder, seeded
from hypersphere.commands._comparison import Method
from hypersphere.commands._numbers import Count, Processes, read_value
from hypersphere.commands._origin import merged, origin, run_origin
from hypersphere.commands._recorded import (
    ADVICE,
    as_recorded,
    earlier_record,
    has_own,
    is_recorded,
    keep_aside,
    kept_numbers,
    recorded_trials,
    recorded_values,
)
from hypersphere.commands._yaml import ConfigError
from hypersphere.registry import unknown_name
from hypersphere.reports.claims import (
    claims_folder,
    interval,
    readable_claims,
    seeds_text,
    terminal_claim,
    terminal_table,
)
from hypersphere.training.campaign import Ended, PlannedRun
from hypersphere.training.config import Config
from hypersphere.training.interrupt import Interrupted
from hypersphere.training.run.checkpoint import RunError, write_atomically
from hypersphere.training.run.folder import describe_run
from hypersphere.training.run.lock import FolderLock

USAGE = """usage: hypersphere claims [NAME ...] [--results FOLDER]
       hypersphere claims run [NAME ...] [--jobs N] [--folder FOLDER]
                              [--results FOLDER] [--seeds N]

Which claims of the dissertation hold, at a scale that two cores can carry:
without further words, the verdicts of the tests that were run; with names, all
comparisons of these claims, and what was found. `run` trains what is missing
of the named claims (default: all, cheap ones first), with one thread for each
run. It can be stopped at any moment; the same command goes on, also on another
machine: what NAME.json holds is not trained again. A NAME.json of other
settings is kept as before/NAME.json.
A claim is a file in recipes/claims: methods, tuning, seeds and comparisons.

  --jobs N           runs at a time (default: 1)
  --folder FOLDER    where the runs go (default: runs/claims)
  --results FOLDER   where NAME.json is written after every run (default:
                     results/claims), or read (default: those that are shipped)
  --seeds N          another number of seeds than the claims say; those that
                     NAME.json holds stay in it
"""


def main(argv: Sequence[str]) -> int:
    words = list(argv)
    if any(word in ("-h", "--help") for word in words):
        print(USAGE)
        return 0
    try:
        return _run(words[1:]) if words[:1] == ["run"] else _show(words)
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


def _show(words: list[str]) -> int:
    """Print the table, or single claims; 1 if a file cannot be read or a claim has no record."""
    options, names = _split(words, {"--results": str(claims_folder())}, "claims")
    folder = Path(options["--results"])
    records, problems = readable_claims(folder)
    for problem in problems:
        complain("claims", f"{problem}; {ADVICE}")
    by_name = {record["name"]: record for record in records}
    missing = [name for name in claim_names() if name not in by_name]
    for name in names:
        if name not in by_name and name not in missing:
            raise ConfigError(str(unknown_name("claim", name, sorted([*by_name, *missing]))))
    if not records:
        if problems:
            return 1
        raise ValueError(f"{folder} has no results of claims: hypersphere claims run")
    shown = [by_name[name] for name in names if name in by_name]
    if shown:
        print("\n\n\n".join(map(terminal_claim, shown)))
    for name in names:
        if name not in by_name:
            complain("claims", f"{name} has no record in {folder}: hypersphere claims run {name}")
    if not names:
        print(terminal_table(records))
        if missing:
            told = f"Claims without a record yet: {', '.join(missing)}."
            print(textwrap.fill(told, 80, break_on_hyphens=False))
    return int(bool(problems) or len(shown) < len(names))


def _split(
    words: list[str], options: dict[str, str], command: str
) -> tuple[dict[str, str], list[str]]:
    """(options with their values, names of claims)."""
    found, names = dict(options), []
    while words:
        word = words.pop(0)
        if word not in options and word.startswith("--"):
            unknown = unknown_name(f"option of `hypersphere {command}`", word, options)
            raise ConfigError(str(unknown))
        if word not in options:
            names.append(word)
        elif not words or words[0].startswith("--") or not words[0].strip():
            raise ConfigError(f"{word} needs a value")
        else:
            found[word] = words.pop(0)
    return found, names


def _run(words: list[str]) -> int:
    options = {"--jobs": "1", "--folder": "runs/claims", "--results": "results/claims"}
    options["--seeds"] = ""
    options, names = _split(words, options, "claims run")
    try:
        jobs = read_value("--jobs", options["--jobs"], Processes)
        seeds = read_value("--seeds", options["--seeds"], Count) if options["--seeds"] else None
    except ValueError as error:
        raise ConfigError(str(error)) from None
    claims = [read_claim(name) for name in names or claim_names()]
    os.environ["OMP_NUM_THREADS"] = "1"  # of the runs, which are processes of their own
    for claim in sorted(claims, key=lambda claim: claim.minutes):
        print(f"{claim.name}: {claim.claim}", file=sys.stderr, flush=True)
        results, file = Path(options["--results"]), f"{claim.name}.json"
        make_folder(results, "--results")
        # Two that read the file before either writes it would lose the runs of one.
        with FolderLock(results, "name another folder (--results)", file):
            test = ClaimTest(
                claim,
                Path(options["--folder"]) / claim.name,
                results / file,
                jobs=jobs,
                seeds=seeds or claim.seeds,
            )
            test.run()
            record = test.record()
        first = record["comparisons"][0]
        seeds = seeds_text(record, first)
        told = f"{first['verdict']} ({seeds} seeds): {first['label']} {interval(first)}"
        print(f"{claim.name}: {told}", file=sys.stderr, flush=True)
    return 0


class ClaimTest(Comparison):
    """The runs of a claim; its result file is whole after every run."""

    def __init__(
        self, claim: Claim, folder: Path, result: Path, jobs: int = 1, seeds: int = 5
    ) -> None:
        self.claim, self.result = claim, result
        # Text that YAML 1.1 takes for no number (1e-3) is read as one, as on the command line.
        tune = [f"{key}={json.dumps(list(v))[1:-1]}" for key, v in claim.tune.items()]
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
        self.file = earlier_record(result)
        self.recorded: dict[str, list[int]] = {}  # seeds of a method that may be taken over
        self.trained_at: dict[str, Any] = {}  # commits, versions and hardware of runs beside those
        self.taken = False  # whether a run of the file counts
        self.replaces = False  # whether one does not, so that the file is kept before it goes
        self._reuse(self.file)

    def _reuse(self, record: dict[str, Any]) -> None:
        try:
            self._reuse_runs(record)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{self.result} is damaged: it has no runs of a claim as they are recorded "
                f"({type(error).__name__}: {error}); {ADVICE}"
            ) from None

    def _reuse_runs(self, record: dict[str, Any]) -> None:
        """Know the runs of an earlier record that had the settings of today."""
        rows = {row["name"]: row for row in record.get("methods", [])}
        trials = sum(len(row["tuning"]) for row in rows.values())
        spent = 60 * record.get("minutes", 0.0)
        spent -= sum(sum(row["seconds"].values()) for row in rows.values())
        settings, changes = self._all_settings()
        if not record or record.get("tune") != _tuned(self.claim):
            return
        if outcome(record["config"]) != outcome(settings):
            return
        for method, config in zip(self.methods, self.configs, strict=True):
            row = rows.get(method.name)
            if row is None or record["changes"].get(method.name) != changes[method.name]:
                continue
            metric = self._tuning_metric(config)
            for values, how in recorded_trials(row, metric, spent / max(trials, 1)):
                self.known[self._place(Path(), self._trial(config, values, method.name))] = how
            for seed, how in recorded_values(row, self._metrics(method)):
                run = seeded(config, row["chosen"], method.name, seed)
                self.known[self._place(Path(), run)] = how
                self.recorded.setdefault(method.name, []).append(seed)

    def _tune(self) -> None:
        """Tune; then all runs of the file with the chosen settings count, whatever is trained."""
        super()._tune()
        for method, config in zip(self.methods, self.configs, strict=True):
            for seed in self.recorded.get(method.name, []):
                run = seeded(config, method.chosen, method.name, seed)
                how = self.known.get(self._place(Path(), run))
                if how is not None:
                    self.taken = True
                    self._take(method, seed, how)
        rows = self.file.get("methods", [])
        there = {(row["name"], int(seed)) for row in rows for seed in row["seconds"]}
        tried = {row["name"]: row["tuning"] for row in rows}
        measured = {row["name"]: row["values"].keys() for row in rows}
        self.replaces = not there <= self.ended.keys() or any(
            tried.get(method.name, []) not in ([], method.tuning)
            or not measured.get(method.name, set()) <= set(self._metrics(method))
            for method in self.methods
        )

    def _see(self, run: PlannedRun, how: Ended) -> None:
        if is_recorded(how):
            self.taken = True
        else:
            found = run_origin(run.folder) or origin(describe_run(0))
            self.trained_at = merged(self.trained_at, found)

    def _place(self, place: Path, config: Config) -> Path:
        """A folder that the settings name: claims share the runs that they have in common."""
        return self.arguments.folder.parent / "runs" / fingerprint(config)

    def _record(self) -> None:
        super()._record()
        self.result.parent.mkdir(parents=True, exist_ok=True)
        if self.replaces:
            self.replaces = False
            told = (
                f"{self.claim.name}: {self.result} has runs of other settings, methods or metrics "
                f"than the claim has now; it is kept as {keep_aside(self.result)}"
            )
            print(told, file=sys.stderr, flush=True)
        write_atomically(self.result, sealed_text(self.record(), indent=1))

    def record(self) -> dict[str, Any]:
        """Everything about the test of the claim, as results/claims keeps it."""
        claim = self.claim
        seconds = sum(sum(method.seconds.values()) for method in self.methods)
        about = self._origin()
        settings, changes = self._all_settings()
        return {
            "name": claim.name,
            "claim": claim.claim,
            "source": claim.source,
            "protocol": " ".join(claim.protocol.split()),
            "found": " ".join(claim.found.split()),
            "metric": claim.metric,
            "seeds": claim.seeds,
            "tune": _tuned(claim),
            "command": claim.command,
            "minutes": round((seconds + self.tuning_seconds) / 60, 1),
            "comparisons": [self._compared(contrast) for contrast in claim.comparisons],
            "methods": [self._row(number) for number in range(len(self.methods))],
            "config": settings,
            "changes": changes,
            "versions": about["versions"],
            "commit": about["commit"],
            "hardware": {**about["hardware"], "threads": 1},
        }

    def _all_settings(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The first method's settings in full, and of every method what differs from it."""
        first, *_ = settings = [settings_of(config.to_dict()) for config in self.configs]
        changes = {
            method.name: difference(first, own)
            for method, own in zip(self.methods, settings, strict=True)
        }
        return first, changes

    def _origin(self) -> dict[str, Any]:
        """Commits, versions and hardware: of the file if runs are from there, then of others."""
        taken = origin(self.file) if self.taken else {}
        found: dict[str, Any] = merged(taken, self.trained_at)
        return found or origin(describe_run(0))

    def _compared(self, contrast: Contrast) -> dict[str, Any]:
        """One comparison; of runs that are all from the file, with its numbers."""
        new = compared(self.claim, contrast, self.ended)
        names = {term.partition("/")[0] for term in contrast.terms}
        if not all(is_recorded(how) for (name, _), how in self.ended.items() if name in names):
            return new
        old = {one["label"]: one for one in self.file.get("comparisons", [])}
        return kept_numbers(new, old.get(contrast.label))

    def _metrics(self, method: Method) -> list[str]:
        """The claim's own metric, then those of a method that the comparisons ask for."""
        asked = [
            term.partition("/")[2] or contrast.metric
            for contrast in self.claim.comparisons
            for term in contrast.terms
            if term.partition("/")[0] == method.name
        ]
        return list(dict.fromkeys([self.metric, *asked]))

    def _row(self, number: int) -> dict[str, Any]:
        method, claim = self.methods[number], self.claim
        own = sorted(key for key in self.ended if key[0] == method.name)
        runs = {seed: self.ended[name, seed] for name, seed in own}
        values = {
            metric: {
                str(seed): as_recorded(value_of(claim, how, metric, method.name), metric)
                for seed, how in runs.items()
            }
            for metric in self._metrics(method)
        }
        last, best = (
            {
                str(seed): as_recorded(found[seed], self.metric)
                for seed, how in runs.items()
                if has_own(how, kind)
            }
            for kind, found in (("last", method.last), ("best", method.best))
        )
        return {
            "name": method.name,
            "recipe": method.spec,
            "options": dict(claim.methods[method.name].options),
            "text": method.recipe.get("value"),
            "differs": method.recipe.get("note") or "",
            "values": values,
            "diverged": {str(seed): how.diverged for seed, how in runs.items() if how.diverged},
            "last": last,
            "best": best,
            "seconds": {str(seed): round(s, 1) for seed, s in sorted(method.seconds.items())},
            "tuning": method.tuning,
            "chosen": method.chosen,
        }


def _flags(options: Any) -> list[str]:
    words = [
        (f"--{key}", "null" if value is None else str(value)) for key, value in options.items()
    ]
    return [word for pair in words for word in pair]


def _tuned(claim: Claim) -> dict[str, Any]:
    return {key: list(values) for key, values in claim.tune.items()}
