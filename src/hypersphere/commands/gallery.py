"""`hypersphere gallery enroll | calibrate | identify | verify | list | remove`: on disk."""

from __future__ import annotations

import argparse
import json
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .._terminal import complain, printable
from ._gallery import (
    Gathered,
    check_alignment,
    check_strangers,
    open_gallery,
    parsers,
    read_samples,
    tell_failures,
    threshold_at,
    unknown_people,
)

if TYPE_CHECKING:
    from ..evaluation import Threshold

__all__ = ["main", "parsers"]

NOT_THE_SAME = 3  # exit code of `verify` and `identify` when the answer is no, or none


def main(argv: Sequence[str]) -> int:
    options = parse(list(argv))
    from ..training.run.checkpoint import RunError

    try:
        with spoken(f"gallery {options.what}"):
            return COMMANDS[options.what](options)
    except (ValueError, OSError, RunError) as error:
        complain(f"gallery {options.what}", error)
        return 1


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line, where pictures may also stand behind options: `--name ada a.jpg`."""
    top, parts = parsers()
    if not arguments or arguments[0] not in parts:
        return top.parse_args(arguments)
    what, *rest = arguments
    return parts[what].parse_intermixed_args(rest, argparse.Namespace(what=what))


@contextmanager
def spoken(command: str) -> Iterator[None]:
    """Warnings of the gallery as lines of the command."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            yield
        finally:
            for warning in caught:
                complain(command, warning.message)


def enroll(options: argparse.Namespace) -> int:
    from ..evaluation.gallery.store import locked

    if options.pictures and not options.name:
        raise ValueError("whose pictures are these? give --name NAME, or --images DIR")
    found = read_samples(options)
    with locked(options.gallery):
        gallery = open_gallery(options, create=True)
        check_alignment(gallery, found, options)
        added = gallery.enroll_many(found.names, found.samples)
        gallery.save(options.gallery)
    what = "features" if options.features else "pictures"
    there = len(found.names) - added
    print(
        f"enrolled {added} {what} of {len(set(found.names))} people"
        f"{f' ({there} more were there already)' if there else ''}: "
        f"{printable(options.gallery)} now holds {len(gallery)} features of "
        f"{len(gallery.people)} people"
    )
    tell_failures("enroll", found)
    return 0


def calibrate(options: argparse.Namespace) -> int:
    from ..evaluation.gallery.store import locked

    found = unknown_people(options)
    with locked(options.gallery):
        gallery = open_gallery(options)
        check_strangers(found, options)
        check_alignment(gallery, found, options)
        threshold = gallery.calibrate(found.samples, found.names, options.far)
        gallery.save(options.gallery)
    print(printable(threshold, newlines=True))
    print(f"\nkept in {printable(options.gallery)}")
    tell_failures("calibrate", found)
    return 0


def identify(options: argparse.Namespace) -> int:
    from ..evaluation.gallery.decision import optional_threshold

    if options.strangers and options.far is None:
        raise ValueError("--strangers goes with --far RATE, the rate to fit a threshold at")
    gallery = open_gallery(options)
    found = read_samples(options)
    check_alignment(gallery, found, options)
    rule: float | Threshold | None = optional_threshold(options.threshold)
    if options.far is not None:
        if rule is not None:
            raise ValueError("--far and --threshold both say when to give a name: give one")
        rule = threshold_at(options, gallery)
    if rule is None:
        gallery.decision.least(len(gallery.people), len(gallery))  # warns
        rule = gallery.threshold
    decided, least = rule is not None, -2.0 if rule is None else float(rule)
    # Everybody first: how near the nearest is belongs to "unknown", too.
    nearest = gallery.identify_many(found.samples, options.top, threshold=-2.0)
    answers = [[m for m in row if m.score >= least] for row in nearest]
    told = list(zip(found.sources, nearest, answers, strict=True))
    if options.json:
        record: list[dict[str, Any]] = [
            {
                "source": source,
                "matches": [vars(m) for m in matches],
                "decided": decided,
                "best_score": best.score,
                **rule_record(rule),
            }
            for source, (best, *_), matches in told
        ]
        print(json.dumps(record + errors(found), indent=1))
    else:
        for source, (best, *_), matches in told:
            shown = "  ".join(f"{printable(m.name)} {m.score:.4f}" for m in matches)
            near = "" if decided else "nearest: "
            print(f"{printable(source)}: {near}{shown or f'unknown {best.score:.4f}'}")
        if rule is not None:
            print(rule_text(rule))
        tell_failures("identify", found)
    return exit_code(decided and all(answers), found)


def verify(options: argparse.Namespace) -> int:
    gallery = open_gallery(options)
    found = read_samples(options)
    check_alignment(gallery, found, options)
    answers = [gallery.verify(options.name, s, options.threshold) for s in found.samples]
    if options.json:
        record: list[dict[str, Any]] = [
            {"source": source, "name": options.name, "same": same, "score": score}
            for source, (same, score) in zip(found.sources, answers, strict=True)
        ]
        print(json.dumps(record + errors(found), indent=1))
    else:
        for source, (same, score) in zip(found.sources, answers, strict=True):
            answer = "yes" if same else "no"
            print(f"{printable(source)}: {answer}, {printable(options.name)} {score:.4f}")
        tell_failures("verify", found)
    return exit_code(all(same for same, _ in answers), found)


def exit_code(everybody: bool, found: Gathered) -> int:
    """0 if every picture is somebody, 3 if one is nobody, 1 if one could not be read."""
    return 1 if found.failures else 0 if everybody else NOT_THE_SAME


def rule_record(rule: float | Threshold | None) -> dict[str, Any]:
    """What was decided by, in types that JSON knows."""
    record: dict[str, Any] = {"threshold": None if rule is None else float(rule)}
    kept = {} if rule is None or isinstance(rule, float) else rule.to_dict()
    names = {"far": "far", "low": "low", "high": "high", "impostors": "negatives"}
    return record | {name: kept.get(key) for name, key in names.items()}


def rule_text(rule: float | Threshold) -> str:
    """What was decided by, in a line."""
    if isinstance(rule, float):
        return f"accepted from {rule:.4f} on, chosen by hand"
    among = f" of a search among {rule.gallery_size:,} people" if rule.gallery_size > 1 else ""
    return (
        f"accepted from {rule.value:.4f} on (95 %: {rule.interval()}): false-accept rate "
        f"{100 * rule.far:g} %{among}, fitted on {rule.negatives:,} impostors"
    )


def errors(found: Gathered) -> list[dict[str, Any]]:
    """The pictures that could not be used, as they go to JSON."""
    return [{"source": source, "error": why} for source, why in found.failures.items()]


def list_people(options: argparse.Namespace) -> int:
    gallery = open_gallery(options)
    for person, count in Counter(gallery.names).items():  # in the order of enrollment
        print(f"{printable(person)}  {count}")
    return 0


def remove(options: argparse.Namespace) -> int:
    from ..evaluation.gallery.store import locked

    with locked(options.gallery):
        gallery = open_gallery(options)
        gone = gallery.remove(options.name)
        gallery.save(options.gallery)
    print(f"removed {gone} feature{'s' if gone > 1 else ''} of {printable(options.name)}")
    return 0


COMMANDS = {
    "enroll": enroll,
    "calibrate": calibrate,
    "identify": identify,
    "verify": verify,
    "list": list_people,
    "remove": remove,
}
