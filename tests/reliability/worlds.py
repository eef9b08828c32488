"""Small folders with everything that the commands read, each made once by the library itself or
from the published description of a format.
"""

from __future__ import annotations

import collections
import json
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.sparse
import torch
from safetensors.torch import save_file

from face_pictures import draw_face
from reliability.calls import call, compare, warming_up

from reference.data_files import idx_bytes, save_picture

CONFIG = """\
data: {name: digits, batch_size: 32, share: 0.1, test_share: 0.2}
model: {name: mlp, widths: [6], features: 4}
head: {name: softmax}
optimizer: {name: adam, lr: 0.003}
train: {steps: 6, log_every: 2, test_every: 3, checkpoint_every: 4, quiet: true}
run: {report: false}
"""
# A small config of every task, and one with rotations, annealing and more.
TASKS = {
    "classification": CONFIG,
    "few_shot": CONFIG.replace("data: {", "task: few_shot\nfew_shot: {way: 3, shot: 2, queries: 3, "
        "episodes: 4, epochs: 2, methods: [nearest_mean]}\ndata: {holdout: 0.5, "),
    "gan": "task: gan\n"
        "data: {name: digits, batch_size: 16, share: 0.1, test_share: 0.2, normalize: symmetric}\n"
        "model: {name: sngan_discriminator, widths: [4, 8]}\n"
        "optimizer: {name: adam, lr: 0.001, betas: [0.5, 0.999]}\n"
        "gan: {generator: {name: sngan_generator, widths: [8, 4], features: 6}, samples: 20}\n"
        "train: {steps: 2, log_every: 1, test_every: 2, quiet: true}\nrun: {report: false}\n",
    "reconstruction": "task: reconstruction\n"
        "data: {name: digits, batch_size: 16, share: 0.1, test_share: 0.2}\n"
        "model: {name: autoencoder, widths: [4], features: 4}\noptimizer: {name: adam, lr: 0.001}\n"
        "train: {steps: 2, log_every: 1, test_every: 2, quiet: true}\nrun: {report: false}\n",
    "rotated": "data: {name: digits, batch_size: 32, share: 0.1, test_share: 0.2, augment: cifar}\n"
        "model: {name: mlp, widths: [6], features: 4}\nrotate: {method: cayley}\n"
        "head: {name: a_softmax, m: 2, annealing: {base: 10.0, minimum: 1.0}}\n"
        "regularizers: {mhe: {hidden: 0.1, s: 2.0}, orthonormal: {weight: 0.01}}\n"
        "optimizer: {name: sgd, lr: 0.01, momentum: 0.9, weight_decay: 0.0005}\n"
        "schedule: {name: steps, at: [1, 2], factor: 0.5, warmup: 1}\nhooks: {monitor: {every: 1}}\n"  # noqa: E501
        "train: {steps: 2, log_every: 1, test_every: 2, clip: 1.0, quiet: true}\n"
        "run: {report: false}\n",
}  # fmt: skip
SWEEP = ("sweep", "small.yaml", "--trials", "2", "--folds", "2")
SWEEP += ("--search", "optimizer.lr=1e-3:1e-1:log")
TRAIN = "train: {steps: 2, log_every: 1, test_every: 2, quiet: true}\nrun: {report: false}\n"


def must(folder: Path, *arguments: str) -> None:
    """A call that has to work."""
    with warming_up():
        answer = call(arguments, folder)
    assert answer.code == 0, f"{arguments}: {answer.err}{answer.escaped}"


def run_world(folder: Path) -> None:
    """A trained run with its results, the same in a comparison, pictures and pairs of them."""
    (folder / "small.yaml").write_text(CONFIG)
    must(folder, "train", "small.yaml", "--run.folder", "run")
    must(folder, "evaluate", "classification", "run", "--quiet")  # leaves results and a cache
    with warming_up():
        assert compare(folder).code == 0
    for number, name in enumerate(("ada", "ben", "cyd")):
        for i in range(2):
            save_picture(folder / "pictures" / name / f"{i}.png", (8, 8), seed=10 * number + i)
    places = [f"{name}/{i}.png" for name in ("ada", "ben", "cyd") for i in range(2)]
    pairs = [(a, b) for n, a in enumerate(places) for b in places[n + 1 :]]
    lines = [f"{a} {b} {int(a[:3] == b[:3])}" for a, b in pairs]
    (folder / "pictures" / "pairs.txt").write_text("\n".join(lines) + "\n")


def sweep_world(folder: Path) -> None:
    """A sweep of two trials."""
    (folder / "small.yaml").write_text(CONFIG.replace("steps: 6", "steps: 2"))
    must(folder, *SWEEP)


def features_world(folder: Path) -> None:
    """Features of 4 people as .npz and .safetensors, and probes."""
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 3)
    features = (random.normal(size=(4, 6))[labels] + 0.2 * random.normal(size=(12, 6))).astype("f4")
    names = np.array([f"person {c}" for c in labels])
    np.savez(folder / "plain.npz", features=features, labels=labels, names=names)
    np.savez_compressed(folder / "packed.npz", features=features, labels=labels, names=names)
    tensors = {"features": torch.from_numpy(features), "labels": torch.from_numpy(labels)}
    save_file(tensors, folder / "a.safetensors")


def gallery_world(folder: Path) -> None:
    """A gallery, and probes for it."""
    features_world(folder)
    must(folder, "gallery", "enroll", "people", "--features", "packed.npz", "--threshold", "0.5")
    random = np.random.default_rng(1)
    features = random.normal(size=(20, 6)).astype("f4")
    names = np.array([f"stranger {c}" for c in range(20)])
    np.savez(folder / "strangers.npz", features=features, names=names)


def claims_world(folder: Path) -> None:
    """The result of one claim, as it is shipped."""
    (folder / "claims").mkdir()
    shipped = Path(__file__).parents[2] / "results" / "claims" / "angles.json"
    (folder / "claims" / "angles.json").write_bytes(shipped.read_bytes())


def photos_world(folder: Path) -> None:
    """Pictures with one face each."""
    for person in range(3):
        for i in range(2):
            place = folder / "photos" / str(person) / f"{i}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            draw_face(person, i).save(place)


def idx_world(folder: Path) -> None:
    """MNIST's four files with a few small pictures, packed and not."""
    random = np.random.default_rng(0)
    place = folder / "data" / "mnist"
    place.mkdir(parents=True)
    import gzip

    for part, count in (("train", 64), ("t10k", 32)):
        images = random.integers(0, 256, (count, 8, 8), np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        content = {"images-idx3": idx_bytes(images), "labels-idx1": idx_bytes(labels)}
        for kind, body in content.items():
            if part == "train":
                (place / f"{part}-{kind}-ubyte").write_bytes(body)
            else:
                (place / f"{part}-{kind}-ubyte.gz").write_bytes(gzip.compress(body, mtime=0))
    _config(folder, "mnist")


def cifar_world(folder: Path) -> None:
    """CIFAR-10 with a few pictures in each batch."""
    place = folder / "data" / "cifar-10-batches-py"
    place.mkdir(parents=True)
    random = np.random.default_rng(0)
    for name in [*(f"data_batch_{b}" for b in range(1, 6)), "test_batch"]:
        data = random.integers(0, 256, (16, 3072), np.uint8)
        content = {"data": data, "labels": [int(i) for i in np.arange(16) % 10]}
        (place / name).write_bytes(pickle.dumps(content, protocol=2))
    names = {"label_names": [f"name{c}" for c in range(10)]}
    (place / "batches.meta").write_bytes(pickle.dumps(names, protocol=2))
    _config(folder, "cifar10")


def graph_world(folder: Path, nodes: int = 560, width: int = 12) -> None:
    """A citation graph of three communities in Planetoid's eight files, and its config."""
    place = folder / "data" / "Planetoid" / "CiteSeer" / "raw"
    place.mkdir(parents=True)
    random = np.random.default_rng(0)
    known, labeled = nodes - 20, 24
    classes = random.integers(0, 3, nodes)
    words = random.random((nodes, width)) < 0.15 + 0.5 * (np.arange(width) % 3 == classes[:, None])
    words, one_hot = words.astype(np.float32), np.eye(3, dtype=np.int32)[classes]
    graph = collections.defaultdict(list)
    for a, b in random.integers(0, nodes, (6 * nodes, 2)):
        if classes[a] == classes[b] or random.random() < 0.1:
            graph[int(a)].append(int(b))
    test = random.permutation(np.arange(known, nodes))
    sparse = scipy.sparse.csr_matrix
    content = {
        "x": sparse(words[:labeled]),
        "allx": sparse(words[:known]),
        "tx": sparse(words[test]),
        "y": one_hot[:labeled],
        "ally": one_hot[:known],
        "ty": one_hot[test],
        "graph": graph,
    }
    for key, value in content.items():
        (place / f"ind.citeseer.{key}").write_bytes(pickle.dumps(value, protocol=2))
    (place / "ind.citeseer.test.index").write_text("".join(f"{i}\n" for i in test))
    (folder / "citeseer.yaml").write_text(
        "task: graph\ndata: {name: citeseer, root: data}\nmodel: {name: gcn, widths: [4]}\n"
        "head: {name: softmax, bias: false}\noptimizer: {name: adam, lr: 0.01}\n" + TRAIN
    )


def picture_world(folder: Path) -> None:
    """Pictures in a folder per class, of several formats."""
    seed = 0
    for name in ("ada", "ben", "cyd"):
        for i, ending in enumerate(("png", "jpg", "bmp", "png")):
            seed += 1
            save_picture(folder / "data" / "faces" / name / f"{i}.{ending}", (8, 8), seed)
    (folder / "folder.yaml").write_text(
        "data: {name: folder, root: data, batch_size: 4, options: {path: faces, size: 8}}\n"
        "model: {name: mlp, widths: [4, 3]}\nhead: {name: softmax}\n" + TRAIN
    )


def lfw_world(folder: Path) -> None:
    """LFW's layout with a few people."""
    seed = 0
    for name, count in (("Ann", 3), ("Bob", 3), ("Cyd_Elf", 1), ("Dee", 2), ("Eve", 1)):
        for i in range(1, count + 1):
            seed += 1
            save_picture(folder / "data" / "lfw" / name / f"{name}_{i:04d}.png", (6, 5), seed)
    lines = ["2\t2", "Ann\t1\t2", "Bob\t1\t3", "Ann\t1\tBob\t2", "Bob\t1\tCyd_Elf\t1"]
    lines += ["Ann\t2\t3", "Bob\t2\t3", "Cyd_Elf\t1\tAnn\t3", "Ann\t1\tBob\t3"]
    (folder / "data" / "lfw" / "pairs.txt").write_text("\n".join(lines) + "\n")


def few_world(folder: Path) -> None:
    """mini-ImageNet's csv files with a few pictures."""
    place = folder / "data" / "mini-imagenet"
    for p, (part, classes) in enumerate({"train": "ab", "val": "c", "test": "de"}.items()):
        rows = ["filename,label"]
        for c in classes:
            for i in range(3):
                save_picture(place / "images" / f"{c}{i}.jpg", (9, 8, 3), seed=10 * p + i)
                rows.append(f"{c}{i}.jpg,n0{c}")
        place.joinpath(f"{part}.csv").write_text("\n".join(rows) + "\n")


def megaface_world(folder: Path) -> None:
    """Lists of probes and distractors, and their pictures."""
    place = folder / "data" / "megaface"
    names = ["ann/1.png", "ann/2.png", "bob/1.png", "bob/2.png", "bob/3.png", "cyd/1.png"]
    for i, name in enumerate(names):
        save_picture(place / name, (6, 5, 3), i)
    crowd = [f"crowd/{i}.png" for i in range(5)]
    for i, name in enumerate(crowd):
        save_picture(place / name, (6, 5, 3), 50 + i)
    content = {"path": names, "id": [n.split("/")[0] for n in names]}
    (place / "probes.json").write_text(json.dumps(content))
    (place / "distractors.json").write_text(json.dumps({"path": crowd}))


def clouds_world(folder: Path) -> None:
    """ModelNet40's HDF5 files with a few clouds."""
    import h5py

    place = folder / "data" / "modelnet40_ply_hdf5_2048"
    place.mkdir(parents=True)
    random = np.random.default_rng(0)
    for name, count in (("train0", 4), ("train1", 4), ("test0", 3)):
        with h5py.File(place / f"ply_data_{name}.h5", "w") as file:
            file["data"] = random.random((count, 16, 3), np.float32)
            file["label"] = random.integers(0, 4, (count, 1), np.uint8)
    (place / "shape_names.txt").write_text("airplane\nbathtub\nbed\nbench\n")


def shards_world(folder: Path) -> None:
    """A head in a folder of shards."""
    import hypersphere as hs

    torch.manual_seed(0)
    hs.heads.save_shards(hs.heads.ArcFaceHead(6, 9), folder / "head")


def _config(folder: Path, name: str) -> None:
    (folder / f"{name}.yaml").write_text(
        f"data: {{name: {name}, root: data, batch_size: 16}}\n"
        "model: {name: mlp, widths: [4, 3]}\nhead: {name: softmax}\n" + TRAIN
    )


WORLDS: dict[str, Callable[[Path], None]] = {
    name.removesuffix("_world"): value
    for name, value in list(globals().items())
    if name.endswith("_world")
}
