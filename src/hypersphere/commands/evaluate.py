"""`hypersphere evaluate KIND [RUN] [options]`: from a run folder, or from saved features."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._terminal import begin, complain, printable
from ._evaluation import (
    extract,
    features_and_labels,
    open_run,
    parse,
    progress,
    read_samples,
    trained_people,
)
from ._features import tell_zero_rows

if TYPE_CHECKING:
    from torch import Tensor

    from ..evaluation.results import Result
    from ..training.run.trained import TrainedRun


def main(argv: Sequence[str]) -> int:
    options = parse(list(argv))
    if options.run is None and options.features is None:
        complain(f"evaluate {options.kind}", "name a run folder, or --features FILE")
        return 2
    begin(f"opening {options.run or options.features} ...")
    from ..training.run.checkpoint import RunError

    try:
        results = COMMANDS[options.kind](options)
    except (ValueError, OSError, RunError) as error:
        complain(f"evaluate {options.kind}", error)
        return 1
    # Not before: a file that is refused is told in one line.
    tell_zero_rows(f"evaluate {options.kind}", *getattr(options, "compared", ()))
    for number, result in enumerate(results):
        print(("\n" if number else "") + printable(result, newlines=True))
    if options.json or options.run:
        try:
            print(f"\n{printable(keep(results, options))}")
        except OSError as error:
            complain("evaluate", f"the result is not kept: {error}")
            return 1 if options.json else 0
    return 0


def keep(results: Sequence[Result], options: argparse.Namespace) -> str:
    """Write the results to --json, else into the run folder, where `hypersphere report` finds
    them; says where, and which weights they are of.
    """
    path = Path(options.json or Path(options.run) / f"{options.kind}.json")
    run = getattr(options, "opened", None)
    if options.kind == "threshold" and run and not options.json:
        if trained_people(options):
            return f"not kept: {path} is for thresholds from people whom the run has never seen"
        if not options.images and options.part != "calibration":
            return (
                f"not kept: {path} is for thresholds of the part calibration (these are of "
                f"{options.part}), so that nothing is fitted on the people of the others; "
                "--json FILE keeps them elsewhere"
            )
        from ..training.run.kept_thresholds import keep_thresholds

        part = "--images" if options.images else options.part
        path, together = keep_thresholds(run.folder, results[0], run.weights, run.step, part)  # type: ignore[arg-type]
        whole = f"which now holds {len(together.thresholds)}"
        return f"{run.weights} weights (step {run.step}) of {run.folder}; kept in {path}, {whole}"
    notes = {"weights": run.weights, "step": run.step} if run else {}
    if not options.json:  # those of an earlier call with more results
        for old in path.parent.glob(f"{path.stem}-[0-9]*{path.suffix}"):
            old.unlink()
    for number, result in enumerate(results, 1):
        name = path.name if number == 1 else f"{path.stem}-{number}{path.suffix}"
        result.to_json(path.with_name(name), **notes)
    of = f"{run.weights} weights (step {run.step}) of {run.folder}; " if run else ""
    return f"{of}kept in {path}"


def verification(options: argparse.Namespace) -> list[Result]:
    import torch

    from ..evaluation import all_pairs, read_pairs, save_tensors, templates
    from ..evaluation import verification as verify
    from ..evaluation.feature_files import load_features, pick, pick_optional, pick_people

    settings = {"protocol": options.protocol, "pca": options.pca}
    if options.all_pairs:
        features, labels, _ = features_and_labels(options)
        return [all_pairs(features, labels)]
    if options.features:
        arrays, where = load_features(options.features), options.features
        same, folds = pick(arrays, "same", where), pick_optional(arrays, "fold", where)
        folds = options.folds if folds is None else folds
        if arrays.has("features"):
            table = pick(arrays, "features", where)
            index = pick(arrays, "index", where, ["pairs"])
            if arrays.has("video"):  # one template per video, the mean of its frames
                table = templates(table, pick_people(arrays, where, "video")[0])
            a, b = table, table
        else:
            a, b = (pick(arrays, name, where) for name in ("features_a", "features_b"))
            index = None
        result = verify(a, b, same, index=index, folds=folds, **settings)
        group = arrays.texts("group") or pick_optional(arrays, "group", where)
        return [result, *_by_group(a, b, index, same, group, result)]
    run = open_run(options)
    flips = options.protocol != "plain"
    if options.pairs:
        listed = read_pairs(options.pairs, options.images, options.folds)
        images, index, same, fold = run.read(listed.paths), listed.index, listed.same, listed.fold
    else:
        named = options.data is not None
        split = run.load_split(options.data, options.data_root) if named else run.loaders.split
        pairs = split.pairs
        if pairs is None:
            raise ValueError("the data has no list of pairs: give --pairs FILE, or --all-pairs")
        images = run.check(pairs.dataset, options.data or "the run")
        same, fold = pairs.same, pairs.fold
        index = torch.stack([pairs.first, pairs.second], 1)
    features = extract(run, images, options, flips=flips)
    if options.save:
        kept = {"features": features, "index": index, "same": same.to(torch.uint8), "fold": fold}
        save_tensors(options.save, kept)
    return [verify(features, features, same, index=index, folds=fold, **settings)]


def _by_group(
    a: Tensor, b: Tensor, index: Tensor | None, same: Tensor, group: Any, result: Any
) -> list[Result]:
    """Errors of each group of pairs, at the strictest false-accept rate that could be measured."""
    from ..evaluation import error_by_group, fit_threshold
    from ..evaluation.recognition.pair_scores import PairScorer
    from ..evaluation.recognition.protocols import get_protocol

    if group is None:
        return []
    rule = get_protocol(result.protocol)
    # Scores without centering: a threshold of one fold does not fit those of another.
    scores = PairScorer(a, b, index, rule.flips).scores()
    rates = [point.far for point in result.tar_at_far if not point.refused]
    impostors = scores[same == 0]
    return [error_by_group(scores, same, group, fit_threshold(impostors, min(rates, default=0.5)))]


def threshold(options: argparse.Namespace) -> list[Result]:
    from ..evaluation import fit_thresholds

    features, labels, _ = features_and_labels(options)
    found = fit_thresholds(features, labels, options.far, options.gallery_size)
    if not found.thresholds:
        raise ValueError(next(iter(found.refused.values())))
    if seen := trained_people(options):
        complain(
            "evaluate threshold",
            f"the run was trained on {len(seen)} of these people ({seen[0]}, ...), whom it tells "
            "apart better than unknown people: the thresholds come out too low; take --part "
            "calibration, or --images DIR of people whom it has never seen",
        )
    return [found]


def identification(options: argparse.Namespace) -> list[Result]:
    from ..evaluation import identification as identify
    from ..evaluation import load_features, open_set_identification
    from ..evaluation.feature_files import Arrays, pick, pick_optional, pick_people
    from ..evaluation.recognition.identification import divide

    arrays = load_features(options.features) if options.features else Arrays({})
    distractors = pick_optional(arrays, "distractors", options.features)
    run = open_run(options) if options.run else None
    if options.distractors:
        distractors = _distractors(options, run)
    if arrays.has("probes"):
        probes, gallery = (pick(arrays, name, options.features) for name in ("probes", "gallery"))
        probe_ids, gallery_ids = pick_people(arrays, options.features, "probe_ids", "gallery_ids")
        options.compared = [probes, gallery]
    else:
        features, labels, _ = features_and_labels(options)
        probes, gallery, probe_ids, gallery_ids = divide(
            features, labels, options.unknown if options.open_set else 0.0
        )
    if options.open_set:
        return [
            open_set_identification(
                probes, gallery, probe_ids, gallery_ids, backend=options.backend
            )
        ]
    options.compared = [*getattr(options, "compared", ()), distractors]
    # In MegaFace's protocol a probe has one mate among the distractors.
    everyone = 1 if options.protocol == "megaface" else len(gallery)
    everyone += 0 if distractors is None else len(distractors)
    _refuse_beyond("--ranks", options.ranks, everyone)
    return [
        identify(
            probes,
            gallery,
            probe_ids,
            gallery_ids,
            distractors,
            options.ranks or (1, 5, 10),
            sizes=options.sizes,
            protocol=options.protocol,
            backend=options.backend,
        )
    ]


def _distractors(options: argparse.Namespace, run: TrainedRun | None) -> Tensor:
    from ..evaluation.feature_files import load_features, pick

    path = Path(options.distractors)
    if not path.is_dir():
        return pick(load_features(path), "features", path, ["distractors"])
    if run is None:
        raise ValueError("--distractors of pictures needs a RUN to extract their features")
    from ..data.image_files import list_pictures

    pictures = list_pictures(path)
    if not pictures:
        raise FileNotFoundError(f"no pictures in {path}")
    return extract(run, run.read(pictures), options)


def classification(options: argparse.Namespace) -> list[Result]:
    from ..evaluation import class_mean_cosines, confidence_and_hardness, load_features
    from ..evaluation import classification as classify
    from ..evaluation.feature_files import pick

    if options.features:
        arrays = load_features(options.features)
        logits, labels = (pick(arrays, name, options.features) for name in ("logits", "labels"))
        results: list[Result] = [classify(logits, labels, options.top)]
        if arrays.has("features"):
            features = pick(arrays, "features", options.features)
            results.append(class_mean_cosines(features, labels))
        return results
    run = open_run(options)
    samples = read_samples(run, options)
    logits = extract(run, samples.images, options, logits=True)
    features = extract(run, samples.images, options)
    results = [
        classify(logits, samples.labels, options.top, samples.classes),
        class_mean_cosines(features, samples.labels),
    ]
    weight = getattr(run.model.head, "weight", None)
    if weight is not None and weight.shape[1] == features.shape[1]:
        results.append(confidence_and_hardness(features, samples.labels, weight, logits))
    return results


def robustness(options: argparse.Namespace) -> list[Result]:
    from ..evaluation import robustness as attack_all
    from ..evaluation import training_loss
    from ..evaluation.extraction import batches
    from ..evaluation.robustness.attacks import cross_entropy
    from ..training.run.trained import TrainedRun

    if options.run is None:
        raise ValueError("attacks need the model: give a run folder")
    for flag, given in (("--steps", options.steps), ("--step", options.step)):
        if given is not None and not {"bim", "pgd"} & set(options.attacks):
            raise ValueError(
                f"{flag} is of BIM and PGD, and --attacks names neither: leave it out, or name one"
            )
    run = open_run(options)
    source = TrainedRun.open(options.source, options.weights) if options.source else None
    samples = read_samples(run, options)
    show = progress("attacked")
    result = attack_all(
        run.model,
        batches(samples.images, samples.labels, run.transform, options.batch_size),
        options.attacks,
        options.eps / 255,
        source=source.model if source else None,
        source_normalize=source.normalize if source else None,
        normalize=run.normalize,
        step=(options.step or 2.0) / 255,
        steps=options.steps,
        loss=training_loss if options.training_loss else cross_entropy,
        progress=None if options.quiet else lambda done: show(done, len(samples)),
    )
    return [result]


def fewshot(options: argparse.Namespace) -> list[Result]:
    from ..evaluation import fewshot as episodes

    features, labels, _ = features_and_labels(options)
    return [
        episodes(
            features,
            labels,
            method,
            way=options.way,
            shot=shot,
            queries=options.queries,
            episodes=options.episodes,
            scale=options.scale,
            seed=options.seed,
        )
        for method in options.method
        for shot in options.shot
    ]


def geometry(options: argparse.Namespace) -> list[Result]:
    from ..evaluation import geometry as measure

    features, labels, arrays = features_and_labels(options)
    model = open_run(options).model if options.run else None
    return [measure(model, features, labels, arrays.get("weight"))]


def _refuse_beyond(flag: str, given: Sequence[int] | None, searched: int) -> None:
    if given and max(given) > searched:
        raise ValueError(
            f"{flag}: expected whole numbers in [1, {searched}], the number of features that each "
            f"one is compared with; got {max(given)}"
        )


def retrieval(options: argparse.Namespace) -> list[Result]:
    from ..evaluation import retrieval as retrieve

    features, labels, _ = features_and_labels(options)
    _refuse_beyond("--ks", options.ks, len(features) - 1)
    return [retrieve(features, labels, options.ks or (1, 5, 10))]


def imbalance(options: argparse.Namespace) -> list[Result]:
    from ..evaluation import imbalance as measure
    from ..evaluation.feature_files import load_features, pick, pick_optional

    if options.features:
        arrays = load_features(options.features)
        logits, labels = (pick(arrays, name, options.features) for name in ("logits", "labels"))
        counts = pick_optional(arrays, "train_counts", options.features)
        return [measure(logits, labels, options.rare, counts)]
    run = open_run(options)
    samples = read_samples(run, options)
    logits = extract(run, samples.images, options, logits=True)
    counts = run.loaders.split.train.counts()
    return [measure(logits, samples.labels, options.rare, counts)]


def generative(options: argparse.Namespace) -> list[Result]:
    from ..evaluation import frechet_distance, inception_score
    from ..evaluation.feature_files import load_features, pick

    if options.features:
        arrays = load_features(options.features)
        results: list[Result] = [
            inception_score(pick(arrays, "logits", options.features), options.splits)
        ]
        if arrays.has("real_features"):
            names = ("features", "real_features")
            results.append(frechet_distance(*(pick(arrays, n, options.features) for n in names)))
        return results
    if not options.images:
        raise ValueError("give the generated pictures: --images DIR")
    from ..data.image_files import list_pictures

    run = open_run(options)
    pictures = list_pictures(options.images)
    if not pictures:
        raise FileNotFoundError(f"no pictures in {options.images}")
    made, real = run.read(pictures), run.test_samples()
    logits = extract(run, made, options, logits=True)
    return [
        inception_score(logits, min(options.splits, len(logits))),
        frechet_distance(extract(run, made, options), extract(run, real.images, options)),
    ]


COMMANDS: dict[str, Callable[[argparse.Namespace], list[Result]]] = {
    "verification": verification,
    "threshold": threshold,
    "identification": identification,
    "classification": classification,
    "robustness": robustness,
    "fewshot": fewshot,
    "geometry": geometry,
    "retrieval": retrieval,
    "imbalance": imbalance,
    "generative": generative,
}
