"""`hypersphere gallery enroll | calibrate | identify | verify | list | remove`: on disk."""

from __future__ import annotations

import argparse
import json
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

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
        gallery.enroll_many(found.names, found.samples)
        gallery.save(options.gallery)
    what = "features" if options.features else "pictures"
    print(
        f"enrolled {len(found.names)} {what} of {len(set(found.names))} people: "
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
        check_strangers(gallery, found, options)
        check_alignment(gallery, found, options)
        threshold = gallery.calibrate(found.samples, found.names, options.far)
        gallery.save(options.gallery)
    print(printable(threshold, newlines=True))
    print(f"\nkept in {printable(options.gallery)}")
    tell_failures("calibrate", found)
    return 0


def identify(options: argparse.Namespace) -> int:
    from ..evaluation.gallery.decision import check_threshold

    if options.strangers and options.far is None:
        raise ValueError("--strangers goes with --far RATE, the rate to fit a threshold at")
    gallery = open_gallery(options)
    found = read_samples(options)
    check_alignment(gallery, found, options)
    threshold = options.threshold
    if options.far is not None:
        if threshold is not None:
            raise ValueError("--far and --threshold both say when to give a name: give one")
        threshold = threshold_at(options, gallery).value
    least = check_threshold(threshold)
    if least is None:
        least = gallery.decision.least(len(gallery.people), len(gallery))
    decided = least is not None
    # Everybody first: how near the nearest is belongs to "unknown", too.
    nearest = gallery.identify_many(found.samples, options.top, threshold=-2.0)
    answers = [[m for m in row if least is None or m.score >= float(least)] for row in nearest]
    told = list(zip(found.sources, nearest, answers, strict=True))
    if options.json:
        record: list[dict[str, Any]] = [
            {
                "source": source,
                "matches": [vars(m) for m in matches],
                "decided": decided,
                "best_score": best.score,
            }
            for source, (best, *_), matches in told
        ]
        print(json.dumps(record + errors(found), indent=1))
    else:
        for source, (best, *_), matches in told:
            shown = "  ".join(f"{printable(m.name)} {m.score:.4f}" for m in matches)
            near = "" if decided else "nearest: "
            print(f"{printable(source)}: {near}{shown or f'unknown {best.score:.4f}'}")
        tell_failures("identify", found)
    return 0 if decided and any(answers) else NOT_THE_SAME


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
    return 0 if all(same for same, _ in answers) and not found.failures else NOT_THE_SAME


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
