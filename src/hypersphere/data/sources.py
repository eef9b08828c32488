"""Where each data set is available: address, usual folders, and the publisher's checksums."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Remote:
    """A file to fetch: `url`, stored at `path` below the root, unpacked there if an archive.

    `unpack` is the folder below the root that receives the content of a .tar.gz or .zip.
    """

    url: str
    path: str
    checksum: str | None = None
    unpack: str | None = None


@dataclass(frozen=True)
class Source:
    """A data set's `title`, usual `folders` below the root, and `where` it is published.

    `checksums` are of single files as they lie in the folder, by file name.
    """

    name: str
    title: str
    folders: tuple[str, ...]
    where: str
    remotes: tuple[Remote, ...] = ()
    checksums: dict[str, str] = field(default_factory=dict)

    def how(self, root: Path) -> str:
        """Where to get it, with the command that fetches it if there is a public address."""
        if not self.remotes:
            return self.where
        return f"{self.where}, or: hypersphere data {self.name} --download --root {root}"


def _idx(name: str, title: str, folder: str, base: str, page: str, md5: dict[str, str]) -> Source:
    files = {f"{stem}-ubyte.gz": f"md5:{value}" for stem, value in md5.items()}
    return Source(
        name,
        title,
        (f"{folder}/raw", folder, name, "."),
        page,
        tuple(Remote(base + file, f"{folder}/raw/{file}", value) for file, value in files.items()),
        files,
    )


def _cifar(name: str, title: str, folder: str, archive: str, md5: dict[str, str]) -> Source:
    url = f"https://www.cs.toronto.edu/~kriz/{archive}"
    return Source(
        name,
        title,
        (folder, f"{name}/{folder}", name, "."),
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        (Remote(url, archive, f"md5:{md5[archive]}", unpack="."),),
        {file: f"md5:{value}" for file, value in md5.items()},
    )


def _planetoid(name: str, folder: str) -> Source:
    parts = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
    base = "https://github.com/kimiyoung/planetoid/raw/master/data/"
    return Source(
        name,
        f"Planetoid {folder}",
        (f"Planetoid/{folder}/raw", f"{folder}/raw", f"{name}/raw", name, "planetoid", "."),
        "https://github.com/kimiyoung/planetoid",
        tuple(
            Remote(f"{base}ind.{name}.{p}", f"Planetoid/{folder}/raw/ind.{name}.{p}") for p in parts
        ),
    )


_FIGSHARE = "https://ndownloader.figshare.com/files/"
_OMNIGLOT = "https://github.com/brendenlake/omniglot/raw/master/python/"

_ALL = (
    _idx(
        "mnist", "MNIST", "MNIST",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://ossci-datasets.s3.amazonaws.com/mnist/ (the four *-ubyte.gz files)",
        {
            "train-images-idx3": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1": "ec29112dd5afa0611ce80d1b7f02629c",
        },
    ),
    _idx(
        "fashion-mnist", "Fashion-MNIST", "FashionMNIST",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://github.com/zalandoresearch/fashion-mnist",
        {
            "train-images-idx3": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1": "bb300cfdad3c16e7a12a480ee83cd310",
        },
    ),
    _cifar(
        "cifar10", "CIFAR-10", "cifar-10-batches-py", "cifar-10-python.tar.gz",
        {
            "cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a",
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "40351d587109b95175f43aff81a1287e",
            "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
        },
    ),
    _cifar(
        "cifar100", "CIFAR-100", "cifar-100-python", "cifar-100-python.tar.gz",
        {
            "cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85",
            "train": "16019d7e3df5f24257cddd939b257f8d",
            "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
            "meta": "7973b15100ade9c7d40fb424638fde48",
        },
    ),
    Source(
        "lfw", "LFW", ("lfw", "LFW", "lfw-funneled", "lfw_funneled", "."),
        "https://figshare.com/articles/dataset/sklearn_lfw/1321091 (lfw.tgz, pairs.txt)",
        (
            Remote(
                f"{_FIGSHARE}5976018", "lfw.tgz",
                "sha256:055f7d9c632d7370e6fb4afc7468d40f970c34a80d4c6f50ffec63f5a8d536c0",
                unpack=".",
            ),
            Remote(
                f"{_FIGSHARE}5976006", "lfw/pairs.txt",
                "sha256:ea42330c62c92989f9d7c03237ed5d591365e89b3e649747777b70e692dc1592",
            ),
        ),
        {"pairs.txt": "sha256:ea42330c62c92989f9d7c03237ed5d591365e89b3e649747777b70e692dc1592"},
    ),
    Source(
        "omniglot", "Omniglot", ("omniglot", "Omniglot", "omniglot-py", "."),
        "https://github.com/brendenlake/omniglot (python/images_*.zip)",
        (
            Remote(
                f"{_OMNIGLOT}images_background.zip", "omniglot/images_background.zip",
                "md5:68d2efa1b9178cc56df9314c21c6e718", unpack="omniglot",
            ),
            Remote(
                f"{_OMNIGLOT}images_evaluation.zip", "omniglot/images_evaluation.zip",
                "md5:6b91aef0f799c5bb55b94e3f2daec811", unpack="omniglot",
            ),
        ),
    ),
    Source(
        "modelnet40", "ModelNet40",
        ("modelnet40", "ModelNet40", "modelnet40_ply_hdf5_2048", "."),
        "https://shapenet.cs.stanford.edu/media/modelnet40_ply_hdf5_2048.zip",
        (
            Remote(
                "https://shapenet.cs.stanford.edu/media/modelnet40_ply_hdf5_2048.zip",
                "modelnet40_ply_hdf5_2048.zip", unpack=".",
            ),
        ),
    ),
    _planetoid("cora", "Cora"),
    _planetoid("citeseer", "CiteSeer"),
    _planetoid("pubmed", "PubMed"),
    Source(
        "mini-imagenet", "mini-ImageNet",
        ("mini-imagenet", "miniImagenet", "miniimagenet", "mini_imagenet", "."),
        "https://github.com/twitter-research/meta-learning-lstm/tree/master/data/miniImagenet "
        "(train.csv, val.csv, test.csv); the pictures are of ImageNet, https://image-net.org",
    ),
    Source(
        "megaface", "a MegaFace-style set", ("megaface", "MegaFace", "."),
        "the MegaFace challenge, whose site no longer hands it out: "
        "bring your own lists in its format (see docs/data.md)",
    ),
    Source(
        "folder", "the image folder", (".",),
        "wherever your pictures are: one folder per class, NAME/*.jpg",
    ),
    Source(
        "rec", "an insightface record file", (".",),
        "insightface's list of data sets: train.rec and train.idx",
    ),
    Source(
        "webdataset", "WebDataset shards", (".",),
        "wherever your shards are: train-*.tar, test-*.tar",
    ),
    Source(
        "arrow", "a data set of the library `datasets`", (".",),
        "wherever datasets.save_to_disk wrote it",
    ),
)  # fmt: skip

SOURCES: dict[str, Source] = {source.name: source for source in _ALL}
