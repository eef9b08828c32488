"""Unknown people on LFW: how many are named at a threshold fitted for the size of the gallery.

python benchmarks/open_set.py [--heads softmax arcface ...] [--seeds 0 1 2] [--root DATA]

The 158 people with ten or more pictures are trained on. Of those with four to nine, 100 make the
gallery (two pictures are enrolled, the others are asked about), and the others are trained on as
well. Half of the people with fewer pictures are the unknown people that the threshold is fitted
with, and the other half are used for nothing but the count.

Every head has its defaults, and all have the same network, steps and rate. Defaults and steps were
chosen with people of ten or more pictures alone (48 of them held out for verification), who are
never in a gallery and never unknown. A-Softmax has the annealing that its docs ask for.

Results are added to results/open-set.json one by one.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import hypersphere as hs
from hypersphere.data import ArrayDataset, Split
from hypersphere.evaluation import Gallery
from hypersphere.evaluation.results import wilson_interval
from hypersphere.training.config import (
    Config,
    DataConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainConfig,
)

from harness import environment

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results" / "open-set.json"
HEADS: dict[str, dict[str, Any]] = {
    "softmax": {"name": "softmax"},
    "A-Softmax": {"name": "a_softmax", "m": 4, "annealing": {"base": 1000.0, "minimum": 5.0}},
    "ArcFace": {"name": "arcface"},
    "AdaFace": {"name": "adaface"},
    "SphereFace2": {"name": "sphereface2"},
}
SETTINGS = {
    "size": [42, 36],
    "always_trained_from": 10,
    "trained_from": 4,
    "gallery_people": 100,
    "enrolled": 2,
    "far": 0.01,
    "steps": 800,
    "batch_size": 64,
    "lr": 0.05,
    "model": {"name": "cnn3", "widths": [16, 32, 64], "depths": [1, 1, 1], "features": 128},
}


def divide(faces: ArrayDataset, seed: int) -> dict[str, list[int]]:
    """People by what they are used for; nobody is used twice."""
    counts = faces.counts().tolist()
    order = torch.randperm(len(counts), generator=torch.Generator().manual_seed(seed)).tolist()
    many, few = SETTINGS["always_trained_from"], SETTINGS["trained_from"]
    between = [p for p in order if few <= counts[p] < many]
    gallery, trained = between[: SETTINGS["gallery_people"]], between[SETTINGS["gallery_people"] :]
    train = trained + [p for p in order if counts[p] >= many]
    unknown = [p for p in order if counts[p] < few]
    return {"train": train, "gallery": gallery, "fit": unknown[0::2], "count": unknown[1::2]}


def train_network(faces: ArrayDataset, people: list[int], head: str, seed: int, folder: Path):
    """The trained classifier, and its preprocessing."""
    chosen = faces.only(people)
    split = Split(chosen, chosen.subset(torch.arange(0, len(chosen), 10)), name="lfw")
    config = Config(
        seed=seed,
        data=DataConfig(
            name=split, batch_size=SETTINGS["batch_size"], normalize="symmetric", augment="flip"
        ),
        model=dict(SETTINGS["model"]),
        head=dict(HEADS[head]),
        optimizer=OptimizerConfig(name="sgd", lr=SETTINGS["lr"], weight_decay=5e-4),
        schedule=ScheduleConfig(name="cosine", warmup=50),
        train=TrainConfig(steps=SETTINGS["steps"], quiet=True, test_every=SETTINGS["steps"]),
    )
    outcome = hs.training.train(config, folder)
    net = hs.training.load_net(folder)
    return net, hs.data.Normalize.named("symmetric"), float(outcome.last["accuracy"])


def judge(net: Any, normalize: Any, faces: ArrayDataset, people: dict[str, list[int]]) -> dict:
    """Fit the threshold with some unknown people, count how many others are named."""
    enrolled = SETTINGS["enrolled"]
    gallery = Gallery(net, transform=normalize, flips="concatenate")
    probes, whose = [], []
    for person in people["gallery"]:
        rows = (faces.labels == person).nonzero().flatten()
        gallery.enroll_many([str(person)] * enrolled, faces.take(rows[:enrolled]))
        probes.append(rows[enrolled:])
        whose += [str(person)] * len(rows[enrolled:])
    fit, count = (faces.only(people[part]) for part in ("fit", "count"))
    threshold = gallery.calibrate(fit, [str(-1 - i) for i in fit.labels.tolist()], SETTINGS["far"])
    named = [bool(matches) for matches in gallery.identify_many(count)]
    asked = faces.take(torch.cat(probes))
    accepted = gallery.identify_many(asked, top=1)
    nearest = gallery.identify_many(asked, top=1, threshold=-1.0)
    right = [bool(m) and m[0].name == name for m, name in zip(accepted, whose, strict=True)]
    first = [m[0].name == name for m, name in zip(nearest, whose, strict=True)]
    return {
        "named": sum(named) / len(named),
        "named_interval": wilson_interval(sum(named), len(named)),
        "unknown_pictures": len(named),
        "unknown_people": len(people["count"]),
        "found": sum(right) / len(right),
        "wrong_name": sum(bool(m) for m in accepted) / len(accepted) - sum(right) / len(right),
        "rank_1": sum(first) / len(first),
        "known_pictures": len(right),
        "threshold": threshold.to_dict(),
    }


def keep(row: dict[str, Any]) -> None:
    """Put a row into the results in place of an older one of the same head and seed."""
    record = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"rows": []}
    rows = [r for r in record["rows"] if (r["head"], r["seed"]) != (row["head"], row["seed"])]
    order = list(HEADS)
    rows = sorted([*rows, row], key=lambda r: (order.index(r["head"]), r["seed"]))
    record = {
        "study": "open_set",
        "command": "python benchmarks/open_set.py",
        "settings": SETTINGS,
        "heads": HEADS,
        "environment": environment(),
        "rows": rows,
    }
    partial = RESULTS.with_suffix(f".{os.getpid()}.partial")
    partial.write_text(json.dumps(record, indent=1) + "\n")
    os.replace(partial, RESULTS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--heads", nargs="+", choices=list(HEADS), default=list(HEADS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--root", help="data folder (default: HYPERSPHERE_DATA)")
    options = parser.parse_args()
    root = hs.data.data_root(options.root)
    paths, labels, names = hs.data.image_folder.list_classes(root / "lfw")
    images = hs.data.read_images(paths, tuple(SETTINGS["size"]), "L")
    faces = ArrayDataset(images, torch.tensor(labels), names)
    for seed in options.seeds:
        people = divide(faces, seed)
        for head in options.heads:
            began = time.perf_counter()
            with tempfile.TemporaryDirectory() as scratch:
                net, normalize, accuracy = train_network(
                    faces, people["train"], head, seed, Path(scratch) / "run"
                )
                row = {"head": head, "seed": seed, **judge(net, normalize, faces, people)}
            row |= {"train_accuracy": accuracy, "seconds": time.perf_counter() - began}
            keep(row)
            shown = " ".join(f"{k} {100 * row[k]:.2f} %" for k in ("named", "found", "rank_1"))
            print(f"{head}, seed {seed}: {shown}, {row['seconds']:.0f} s", flush=True)


if __name__ == "__main__":
    main()
