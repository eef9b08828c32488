"""Every file format: where such a file is, the commands that read it, and its own damages."""

from __future__ import annotations

import json
from pathlib import Path

from reliability import lies, oracles
from reliability.judging import Format
from reliability.readers import (
    ALIGN,
    CACHED,
    CALIBRATE,
    CLAIMS,
    COMPARE,
    ENROLL_RUN,
    EVALUATE,
    EVALUATE_BEST,
    EXPORT,
    GALLERY,
    IMAGES,
    INIT,
    INIT_BEST,
    PAIRS,
    RESUME,
    SHARDS,
    SWEPT,
    data,
    features,
    report,
    training,
)
from reliability.worlds import WORLDS

RUN_JSON = lies.json_lies(
    "config", "config.seed", "config.data", "config.data.batch_size", "config.model.name",
    "config.model.widths", "config.head", "config.train", "data", "data.shape", "data.classes",
    "task", "versions", "command", "hardware", "seed",
)  # fmt: skip
SUMMARY = lies.json_lies(
    "last", "best", "last.accuracy", "best.step", "last.step", "seconds", "best.accuracy"
)
LINES = lies.text_lies(
    '{"split": "train", "step": "x", "loss": 1}', '{"split": "train", "loss": NaN, "step": 3}',
    '{"split": "test", "step": 4, "accuracy": {}}', "[]", "null", '{"step": 1e999}',
    '{"split": "train", "step": 2, "energy": {"a": "b", "c": NaN}}',
)  # fmt: skip
SECTIONS = lies.text_lies(
    "model: {name: nothing}", "base: config.yaml", "seed: 7", "task: gan", "data: [1]",
    "train: {steps: 99, lr: 3}", "x: !!python/object/apply:os.system ['touch owned']",
)  # fmt: skip
PAIR_LINES = lies.text_lies(
    "10 300", "ada/0.png ben/0.png 2", "ada/0.png", "../../etc/passwd ada/0.png 0",
    "1000000000 1000000000", "-1 -1", "ada\x1b[2J/0.png ben/0.png 1", "0 0",
)  # fmt: skip
LFW_LINES = lies.text_lies(
    "1000000000 1000000000", "-1 -1", "Ann 1 99999999999999999999", "Ann -1 2", "Ann one two",
    "../Ann 1 2", "Nobody 1 2", "0 0",
)  # fmt: skip
CSV_LINES = lies.text_lies("a0.jpg,", ",n0a", "../../a0.jpg,n0a", "a0.jpg,n0a,x", "filename,label")
MEGAFACE = [
    *lies.json_lies("path", "id", "path.0", "id.0"),
    *lies.text_lies("crowd/0.png ann"),
]
TAR = [{"far": 0.1, "tar": "x"}, {"far": "y"}, 3, None]
RESULTS = [
    *lies.json_lies("kind", "error", "samples"),
    lies.rewrite(
        "points of another type", "lying",
        lambda c: json.dumps({**json.loads(c), "tar_at_far": TAR}).encode(),
    ),
]  # fmt: skip
PLANETOID = "data/Planetoid/CiteSeer/raw/ind.citeseer."
NEWEST = "run/checkpoints/step-00000006/"

FORMATS: list[Format] = [
    Format(
        "checkpoint, weights", "run", NEWEST + "model.safetensors",
        (RESUME, INIT, EVALUATE, ENROLL_RUN, report()), lies.safetensors_lies(),
    ),
    Format(
        "checkpoint, other tensors", "run", NEWEST + "state.safetensors",
        (RESUME, EVALUATE), lies.safetensors_lies(),
    ),
    Format("checkpoint, state.json", "run", NEWEST + "state.json", (RESUME, INIT, EVALUATE)),
    Format(
        "best weights", "run", "run/checkpoints/best/model.safetensors",
        (EVALUATE_BEST, INIT_BEST, RESUME, EXPORT), lies.safetensors_lies(),
    ),
    Format(
        "checksum of the best weights", "run", "run/checkpoints/best/model.safetensors.crc32",
        (EVALUATE_BEST, INIT_BEST),
    ),
    Format(
        "run.json", "run", "run/run.json",
        (RESUME, EVALUATE, ENROLL_RUN, report()), RUN_JSON, oracles.sealed,
    ),
    Format(
        "run.json of a comparison", "run", "several/small-seed0/run.json", (COMPARE,), RUN_JSON,
        oracles.sealed,
    ),
    Format(
        "summary.json", "run", "run/summary.json",
        (EVALUATE_BEST, RESUME, report()), SUMMARY, oracles.sealed,
    ),
    Format(
        "summary.json of a comparison", "run", "several/small-seed0/summary.json", (COMPARE,),
        SUMMARY, oracles.sealed,
    ),
    Format("sweep.db", "sweep", "runs/sweep-small/sweep.db", (SWEPT,)),
    Format("metrics.jsonl", "run", "run/metrics.jsonl", (RESUME, report("curves")), LINES),
    Format(
        "config.yaml of a run", "run", "run/config.yaml", (RESUME, report()), SECTIONS,
    ),
    Format(
        "config.yaml", "run", "small.yaml", (COMPARE, INIT), SECTIONS, oracles.yaml_config
    ),
    Format(
        "features of a run (.npz)", "run", "run/features.npz", (report("features"),),
        lies.npz_lies(),
    ),
    Format(
        "result of evaluate (.json)", "run", "run/classification.json", (report(),), RESULTS,
        oracles.sealed, spare=True,
    ),
    Format(
        "features kept by evaluate", "run", "run/cache/*-*[0-4].safetensors", (CACHED,),
        lies.safetensors_lies(),
    ),
    Format(
        "features (.npz)", "features", "packed.npz", features("packed.npz"), lies.npz_lies(),
        oracles.npz,
    ),
    Format(
        "features (.npz, not packed)", "features", "plain.npz", features("plain.npz"),
        lies.npz_lies(), oracles.npz,
    ),
    Format(
        "features (.safetensors)", "features", "a.safetensors", features("a.safetensors"),
        lies.safetensors_lies(), oracles.safetensors,
    ),
    Format(
        "gallery.json", "gallery", "people/gallery.json", (*GALLERY, CALIBRATE),
        lies.json_lies("format", "model", "flips", "threshold", "features", "names", "names.0"),
    ),
    Format(
        "gallery features", "gallery", "people/features-*.safetensors", GALLERY,
        lies.safetensors_lies(),
    ),
    Format(
        "idx, pictures", "idx", "data/mnist/train-images-idx3-ubyte",
        (data("mnist"), training("mnist")), lies.idx_lies(), oracles.idx,
    ),
    Format(
        "idx, labels", "idx", "data/mnist/train-labels-idx1-ubyte",
        (data("mnist"), training("mnist")), lies.idx_lies(), oracles.idx,
    ),
    Format(
        "idx.gz", "idx", "data/mnist/t10k-images-idx3-ubyte.gz",
        (data("mnist"), training("mnist")), lies.gz_lies(), oracles.idx_gz,
    ),
    Format(
        "CIFAR batch", "cifar", "data/cifar-10-batches-py/data_batch_1",
        (data("cifar10"), training("cifar10")), lies.pickle_lies(), oracles.pickled,
    ),
    Format(
        "CIFAR names", "cifar", "data/cifar-10-batches-py/batches.meta",
        (data("cifar10"),), lies.pickle_lies(), oracles.pickled,
    ),
    Format(
        "Planetoid, features", "graph", PLANETOID + "allx",
        (data("citeseer"), training("citeseer")), lies.pickle_lies(), oracles.pickled,
    ),
    Format(
        "Planetoid, labels", "graph", PLANETOID + "ally", (data("citeseer"),), lies.pickle_lies(),
        oracles.pickled,
    ),
    Format(
        "Planetoid, graph", "graph", PLANETOID + "graph",
        (data("citeseer"), training("citeseer")), lies.pickle_lies(), oracles.pickled,
    ),
    Format(
        "Planetoid, test nodes", "graph", PLANETOID + "test.index", (data("citeseer"),),
        lies.text_lies("1.5", "-1", "99999999999999999999", "540", "1e9"), oracles.numbers,
    ),
    Format(
        "pictures (.png)", "picture", "data/faces/ben/0.png", (training("folder"),),
        lies.picture_lies(), oracles.picture, spare=True,
    ),
    Format(
        "pictures (.jpg)", "picture", "data/faces/ben/1.jpg", (training("folder"),),
        lies.picture_lies(), oracles.picture, spare=True,
    ),
    Format(
        "pictures of people", "run", "pictures/ada/1.png", (ENROLL_RUN, IMAGES, PAIRS),
        lies.picture_lies(), oracles.picture, spare=True,
    ),
    Format(
        "list of pairs", "run", "pictures/pairs.txt", (PAIRS,), PAIR_LINES, oracles.words
    ),
    Format("pairs.txt of LFW", "lfw", "data/lfw/pairs.txt", (data("lfw"),), LFW_LINES, oracles.words),  # noqa: E501
    Format(
        "mini-ImageNet list", "few", "data/mini-imagenet/train.csv", (data("mini-imagenet"),),
        CSV_LINES, oracles.table,
    ),
    Format(
        "MegaFace list", "megaface", "data/megaface/probes.json", (data("megaface"),), MEGAFACE,
        oracles.listing,
    ),
    Format(
        "HDF5", "clouds", "data/modelnet40_ply_hdf5_2048/ply_data_train0.h5",
        (data("modelnet40"),), (), oracles.hdf5,
    ),
    Format(
        "features of unknown people", "gallery", "strangers.npz", (CALIBRATE,), lies.npz_lies(),
        oracles.npz,
    ),
    Format(
        "result of a claim (.json)", "claims", "claims/angles.json", (CLAIMS,),
        lies.json_lies("claim", "comparisons", "comparisons.0", "comparisons.0.mean", "source"),
        oracles.listing,
    ),
    Format(
        "photographs to align", "photos", "photos/1/0.png", (ALIGN,), lies.picture_lies(),
        oracles.picture, spare=True,
    ),
    Format("shards, rows", "shards", "head/classes-*.pt", (SHARDS,)),
    Format("shards, the rest", "shards", "head/common.pt", (SHARDS,)),
]  # fmt: skip


class Worlds:
    """The folders, each made when it is first wanted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __getitem__(self, name: str) -> Path:
        place = self.folder / name
        if not place.exists():
            place.mkdir(parents=True)
            WORLDS[name](place)
        return place
