"""What `hypersphere evaluate` understands on its command line, and where its samples come from."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from ..ranges import Range
from ._numbers import Count, Name, NotNegative, Positive, Seed, read_as
from ._output import output_file
from ._rates import rate

if TYPE_CHECKING:
    from torch import Tensor

    from ..training.run.trained import Samples, TrainedRun

Class = Annotated[int, Range(ge=0)]
Folds = Way = Annotated[int, Range(ge=2)]
Part = Annotated[float, Range(ge=0, lt=1)]

FEATURES_HELP = """arrays in a --features file (.npz or .safetensors), by kind:
  verification    features_a, features_b, same [, fold]; or features, index (pairs), same [, fold]
                  [, video: the video of each frame, whose means are compared]
                  [, group: of each pair, whose errors are compared at one threshold];
                  or features, labels with --all-pairs
  threshold       features, labels, of people who were not trained on
  identification  probes, gallery, probe_ids, gallery_ids [, distractors]; or features, labels
                  (the first of each class is the gallery); unknown probe_ids with --open-set
  classification  logits, labels; imbalance: logits, labels [, train_counts]
  fewshot, geometry, retrieval    features, labels [, weight]
  generative      logits [, features, real_features]
Labels are whole numbers; those that only say who is who may be text in a .npz file.
"""


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line; the run may also stand behind options: `--protocol plain RUN`."""
    top, parts = parsers()
    if not arguments or arguments[0] not in parts:
        return top.parse_args(arguments)
    kind, *rest = arguments
    return parts[kind].parse_intermixed_args(rest, argparse.Namespace(kind=kind))


def parsers() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The whole parser, and one per kind."""
    top = argparse.ArgumentParser(
        prog="hypersphere evaluate",
        description="Evaluate a trained run, or features saved by any program.",
        epilog=FEATURES_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = top.add_subparsers(dest="kind", required=True, metavar="KIND")
    added = {}
    for name, what in KINDS.items():
        p = added[name] = kinds.add_parser(
            name,
            help=what,
            description=what,
            epilog=FEATURES_HELP,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        text = read_as(Name)
        p.add_argument(
            "run", nargs="?", type=text, metavar="RUN", help="run folder of `hypersphere train`"
        )
        p.add_argument(
            "--features", type=text, metavar="FILE", help="saved features instead of a run"
        )
        p.add_argument(
            "--json",
            type=output_file(".json"),
            metavar="FILE",
            help=f"result file, .json (default: RUN/{name}.json)",
        )
        p.add_argument(
            "--weights",
            choices=["last", "best"],
            default="last",
            help="those the run ended with, or those of its best test (default: last)",
        )
        p.add_argument(
            "--data", type=text, metavar="NAME", help="a data set by name (default: the run's own)"
        )
        p.add_argument(
            "--data-root", type=text, metavar="DIR", help="folder that holds the data sets"
        )
        part = "calibration" if name == "threshold" else "test"
        p.add_argument(
            "--part",
            type=text,
            default=part,
            help="train, test, validation; of a split by person also calibration, reserved "
            f"(default: {part})",
        )
        p.add_argument(
            "--images", type=text, metavar="DIR", help="pictures in one folder per class"
        )
        p.add_argument(
            "--limit", type=read_as(Count), help="use so many samples, evenly spread (default: all)"
        )
        p.add_argument(
            "--batch-size", type=read_as(Count), default=128, help="samples per step (default: 128)"
        )
        p.add_argument("--no-cache", action="store_true", help="do not keep features in RUN/cache")
        p.add_argument("--quiet", action="store_true", help="no progress")
        OPTIONS.get(name, lambda _: None)(p)
    return top, added


KINDS = {
    "verification": "same or different? accuracy, ROC, EER, TAR at FAR",
    "threshold": "thresholds at false-accept rates, from people who were not trained on",
    "identification": "who is it? rank-k among growing distractors, or DIR at FAR (--open-set)",
    "classification": "error, per class, confusion, class means, confidence against hardness",
    "robustness": "accuracy under FGSM, BIM, PGD, DeepFool; white box, or from --source RUN",
    "fewshot": "5-way episodes: baseline, baseline++, nearest mean",
    "geometry": "energies, angles, norms and rank of layers; scatter of features",
    "retrieval": "recall@k, R-precision, MAP@R",
    "imbalance": "error on the whole test set and on the rare classes",
    "generative": "inception-style score and Frechet distance of --images by a run's classifier",
}


SCORED = ("classification", "robustness", "imbalance")  # by the run's own classes


def _verification_options(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--pairs",
        type=read_as(Name),
        metavar="FILE",
        help="pairs.txt of LFW, or lines `a.jpg b.jpg 0|1`",
    )
    p.add_argument(
        "--protocol",
        default="sphereface",
        help="sphereface, insightface, opensphere, or plain as `train` prints "
        "(default: sphereface)",
    )
    p.add_argument(
        "--folds", type=read_as(Folds), default=10, help="folds of the pairs (default: 10)"
    )
    p.add_argument(
        "--pca",
        type=read_as(Count),
        help="principal directions of the training folds to keep (default: all)",
    )
    p.add_argument("--all-pairs", action="store_true", help="every pair of the labeled samples")
    p.add_argument(
        "--save",
        type=output_file(".safetensors"),
        metavar="FILE",
        help="keep the features as .safetensors",
    )


def _threshold_options(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--far",
        type=rate,
        nargs="+",
        default=[1e-1, 1e-2, 1e-3, 1e-4],
        help="false-accept rates (default: 0.1 0.01 0.001 0.0001)",
    )
    p.add_argument(
        "--gallery-size",
        type=read_as(Count),
        default=1,
        help="people that will be searched; 1 is verification (default: 1)",
    )


def _identification_options(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--ranks",
        type=read_as(Count),
        nargs="+",
        help="the k of rank-k, at most the features that are searched (default: 1 5 10)",
    )
    p.add_argument(
        "--sizes",
        type=read_as(Count),
        nargs="+",
        help="numbers of distractors (default: 10 100 ... all)",
    )
    p.add_argument(
        "--distractors",
        type=read_as(Name),
        metavar="FILE|DIR",
        help="features, or a folder of pictures",
    )
    p.add_argument(
        "--protocol",
        default="gallery",
        choices=["gallery", "megaface"],
        help="gallery: all people compete; megaface: each mate alone among the distractors "
        "(default: gallery)",
    )
    p.add_argument(
        "--backend", default="torch", choices=["torch", "faiss"], help="search (default: torch)"
    )
    p.add_argument("--open-set", action="store_true", help="reject the unknown: DIR at FAR")
    p.add_argument(
        "--unknown",
        type=read_as(Part),
        default=0.5,
        help="least share of classes kept out of the gallery; those of one sample always are "
        "(default: 0.5)",
    )


def _robustness_options(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--attacks",
        nargs="+",
        default=["none", "fgsm", "bim"],
        help="none fgsm bim pgd deepfool_l2 deepfool_linf (default: none fgsm bim)",
    )
    p.add_argument(
        "--eps", type=read_as(NotNegative), default=8.0, help="in pixels of 255 (default: 8)"
    )
    p.add_argument(
        "--step",
        type=read_as(Positive),
        help="of BIM and PGD, in pixels of 255 (default: 2)",
    )
    p.add_argument("--steps", type=read_as(Count), help="of BIM and PGD (default: 20)")
    p.add_argument(
        "--source",
        type=read_as(Name),
        metavar="RUN",
        help="craft the examples on this run (transfer)",
    )
    p.add_argument("--training-loss", action="store_true", help="raise the head's own loss")


def _fewshot_options(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--method",
        nargs="+",
        default=["baseline", "baseline++"],
        help="baseline, baseline++, nearest_mean (default: baseline baseline++)",
    )
    p.add_argument("--way", type=read_as(Way), default=5, help="classes per episode (default: 5)")
    p.add_argument(
        "--shot",
        type=read_as(Count),
        nargs="+",
        default=[1, 5],
        help="samples to learn from (default: 1 5)",
    )
    p.add_argument(
        "--queries", type=read_as(Count), default=15, help="samples to test on (default: 15)"
    )
    p.add_argument(
        "--episodes", type=read_as(Count), default=600, help="number of episodes (default: 600)"
    )
    p.add_argument(
        "--scale",
        type=read_as(Positive),
        default=2.0,
        help="of the cosine in baseline++ (default: 2)",
    )
    p.add_argument("--seed", type=read_as(Seed), default=0, help="of the episodes (default: 0)")


OPTIONS: dict[str, Callable[[argparse.ArgumentParser], object]] = {
    "verification": _verification_options,
    "threshold": _threshold_options,
    "identification": _identification_options,
    "robustness": _robustness_options,
    "fewshot": _fewshot_options,
    "classification": lambda p: p.add_argument(
        "--top",
        type=read_as(Count),
        nargs="*",
        default=[],
        help="the k of top-k errors (default: none)",
    ),
    "retrieval": lambda p: p.add_argument(
        "--ks",
        type=read_as(Count),
        nargs="+",
        help="of recall@k, at most the samples that each is searched among (default: 1 5 10)",
    ),
    "imbalance": lambda p: p.add_argument(
        "--rare",
        type=read_as(Class),
        nargs="+",
        help="rare classes (default: below half of the largest)",
    ),
    "generative": lambda p: p.add_argument(
        "--splits",
        type=read_as(Count),
        default=10,
        help="of the inception-style score (default: 10)",
    ),
}


def open_run(options: argparse.Namespace) -> TrainedRun:
    from ..training.run.trained import TrainedRun

    if not hasattr(options, "opened"):
        options.opened = TrainedRun.open(options.run, options.weights)
    return options.opened  # type: ignore[no-any-return]


def read_samples(run: TrainedRun, options: argparse.Namespace) -> Samples:
    """Samples of --images, of --data, or of the run's own data."""
    if options.images:
        samples = run.folder_samples(options.images)
    elif options.data or options.part != "test":
        name = options.data or run.config.data.name
        samples = run.dataset_samples(name, options.data_root, options.part)
    else:
        samples = run.test_samples()
    if options.kind in SCORED:
        samples = run.in_its_classes(samples)
    return samples.first(options.limit)


def extract(run: TrainedRun, images: Any, options: argparse.Namespace, **how: Any) -> Tensor:
    show = None if options.quiet else progress("features")
    return run.extract(
        images, batch_size=options.batch_size, cache=not options.no_cache, progress=show, **how
    )


def progress(what: str) -> Callable[[int, int], None]:
    """A line on the terminal that counts; silent where nobody watches."""

    def show(done: int, total: int) -> None:
        if sys.stderr.isatty():
            end = "\n" if done >= total else ""
            print(f"\r{what} {done:,} / {total:,}", end=end, file=sys.stderr, flush=True)

    return show


def features_and_labels(options: argparse.Namespace) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """(features, labels, all arrays) from a file, or from a run's samples."""
    from ..evaluation.feature_files import load_features, pick
    from ._features import read_labels

    if options.features:
        arrays = load_features(options.features)
        features = pick(arrays, "features", options.features)
        labels = read_labels(arrays, options.features)
        options.compared = [features]
        return features, labels, arrays
    run = open_run(options)
    samples = options.samples = read_samples(run, options)
    return extract(run, samples.images, options), samples.labels, {}


def trained_people(options: argparse.Namespace) -> list[str]:
    """The people among the samples of `features_and_labels` whom the run was trained on.

    By their names, which another data set may use for other people: of --data nobody is named.
    """
    run, samples = getattr(options, "opened", None), getattr(options, "samples", None)
    if run is None or samples is None:
        return []
    if not options.images and options.data not in (None, run.config.data.name):
        return []
    names = [str(samples.classes[i]) for i in samples.labels.unique().tolist()]
    return sorted(set(names) & set(run.classes))
