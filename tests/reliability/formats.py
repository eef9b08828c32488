"""Every file format, with the commands that read it; `examine` damages one and judges each command.

A command refuses with a sentence, or it accepts rightly: its answer is that of the undamaged file,
or that of the same content written afresh (`oracles.py`), or it names the damaged file and goes on
with what is whole (`report`, and `train --resume`, whose weights stay the same).
"""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from reliability import lies, oracles
from reliability.calls import Answer, call, limited
from reliability.damage import DAMAGES, Damage, fresh_copy
from reliability.worlds import WORLDS

REFUSED, ACCEPTED, WRONG = "refused", "accepted", "wrong"


class Case(NamedTuple):
    """One damaged file in front of one command."""

    subject: str
    kind: str
    damage: str
    reader: str
    verdict: str
    detail: str = ""


@dataclass(frozen=True)
class Reader:
    """A command that reads a file.

    Args:
        name: of the command.
        run: calls it in a folder.
        result: what it left in the folder, to compare.
        kept: what has to be the same even where it names the damage; None if it may not go on.
        spoken: whether its output is part of the answer, beside what it left.
    """

    name: str
    run: Callable[[Path], Answer]
    result: Callable[[Path], Any] = lambda folder: None
    kept: Callable[[Path], Any] | None = None
    spoken: bool = True


@dataclass(frozen=True)
class Format:
    """A file format.

    Args:
        name: of the format.
        world: the folder that holds such a file, of `worlds.WORLDS`.
        file: the file, or a pattern with exactly one match.
        readers: the commands that read it.
        lies: damages of its own.
        afresh: its oracle; None where a checksum shows every damage.
        spare: whether a set without this file is whole, so that its absence is no damage.
    """

    name: str
    world: str
    file: str
    readers: tuple[Reader, ...]
    lies: Sequence[Damage] = ()
    afresh: Callable[[bytes], bytes | None] | None = None
    spare: bool = False

    @property
    def damages(self) -> list[Damage]:
        """All ways to damage it."""
        absent = ("removed", "a folder") if self.spare else ()
        return [d for d in (*DAMAGES, *self.lies) if d.name not in absent]


def examine(
    form: Format, pristine: Path, share: int | None = None, watch: Callable[[Case], object] = print
) -> list[Case]:
    """Damage the file in every way (or `share` of them per command) and judge every command."""
    (place,) = pristine.glob(form.file)
    relative = place.relative_to(pristine)
    cases = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "world"
        for number, reader in enumerate(form.readers):
            whole = _outcome(reader, reader.run(fresh_copy(pristine, folder)), folder)
            assert whole.answer.fault() == "" and not whole.answer.is_refusal, whole.answer
            for damage in chosen(form.damages, share, number):
                fresh_copy(pristine, folder)
                damage.apply(folder / relative)
                content = _content(folder / relative)
                found = _outcome(reader, reader.run(folder), folder)
                verdict, detail = _judge(form, reader, found, whole, folder)
                if verdict == WRONG and not detail and form.afresh is not None and content:
                    clean = form.afresh(content)
                    if clean is not None:
                        (fresh_copy(pristine, folder) / relative).write_bytes(clean)
                        again = _outcome(reader, reader.run(folder), folder)
                        if again == found:
                            verdict = ACCEPTED
                        else:
                            detail = f"other answer than for the content written afresh: {again}"
                if verdict == WRONG:
                    detail = detail or f"accepted, with another answer: {found.answer.out[-400:]}"
                case = Case(form.name, damage.kind, damage.name, reader.name, verdict, detail)
                watch(case)
                cases.append(case)
    return cases


def chosen(damages: Sequence[Damage], share: int | None, number: int) -> list[Damage]:
    """`share` of the damages, evenly spread, others for each command; all without a share."""
    if share is None or share >= len(damages):
        return list(damages)
    return [damages[(number + i * len(damages) // share) % len(damages)] for i in range(share)]


@dataclass
class Outcome:
    """An answer and what the command left; equal if a user could not tell them apart."""

    answer: Answer
    result: Any
    kept: Any
    spoken: bool = True

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Outcome)
        return self._shown() == other._shown()

    def _shown(self) -> Any:
        return self.answer.code, self.spoken and _timeless(self.answer.out), self.result


def _outcome(reader: Reader, answer: Answer, folder: Path) -> Outcome:
    if answer.code not in (0, 3) or answer.is_refusal:
        return Outcome(answer, None, None)
    kept = reader.kept(folder) if reader.kept else None
    return Outcome(answer, reader.result(folder), kept, reader.spoken)


def _judge(
    form: Format, reader: Reader, found: Outcome, whole: Outcome, folder: Path
) -> tuple[str, str]:
    answer = found.answer
    if (folder / "owned").exists():
        return WRONG, "it ran a command that stood in the file"
    if fault := answer.fault():
        return WRONG, fault
    if answer.is_refusal:
        return REFUSED, ""
    if found == whole:
        return ACCEPTED, ""
    if reader.kept is not None and found.kept == whole.kept:
        place = Path(form.file)
        said = f"{answer.out}\n{answer.err}\n{_notes(found.result)}"
        names = [place.name, place.parent.name] if place.parent.name != "run" else [place.name]
        if any(name in said for name in names):
            return ACCEPTED, ""
    return WRONG, ""


def _notes(result: Any) -> str:
    """What a report says that it could not read."""
    found = re.search(r'<section class="missing">.*?</section>', str(result), re.DOTALL)
    return found[0] if found else ""


def _timeless(text: str) -> str:
    return re.sub(r"\b\d+\.\d s\b", "... s", text)


def _content(path: Path) -> bytes | None:
    if not path.is_file() or path.stat().st_size > 1 << 26:
        return None
    return path.read_bytes()


# --- what commands leave ------------------------------------------------------------------------


def _weights(name: str) -> Callable[[Path], Any]:
    def read(folder: Path) -> Any:
        saved = sorted((folder / name / "checkpoints").glob("step-*"))
        return saved[-1].name, (saved[-1] / "model.safetensors").read_bytes()

    return read


def _record(name: str) -> Callable[[Path], Any]:
    """Weights, curves and summary of a run, without its times."""

    def read(folder: Path) -> Any:
        metrics = folder / name / "metrics.jsonl"
        text = metrics.read_text(errors="replace") if metrics.exists() else ""
        curves = [re.sub(r'"time": [\d.]+', "", line) for line in text.splitlines()]
        summary = json.loads((folder / name / "summary.json").read_text())
        timeless = {k: v for k, v in summary.items() if k in ("last", "best", "verification")}
        return _weights(name)(folder), curves, timeless

    return read


def _file(name: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).read_text()


def _comparison(folder: Path) -> Any:
    return json.loads((folder / "several" / "comparison.json").read_text())["rows"]


def _gallery(folder: Path) -> Any:
    record = json.loads((folder / "people" / "gallery.json").read_text())
    return record["names"], record["features"], record["threshold"]


# --- commands -----------------------------------------------------------------------------------


def command(name: str, *arguments: str, **how: Any) -> Reader:
    """A reader that is a call of the command."""
    return Reader(name, lambda folder: call(arguments, folder), **how)


def report(figures: bool) -> Reader:
    """`hypersphere report`; without its still figures, which take seconds, where nothing of the
    damaged file is drawn.
    """

    def run(folder: Path) -> Answer:
        without = mock.patch("hypersphere.reports.page._stills", lambda run, folder: ())
        with contextlib.nullcontext() if figures else without:
            return call(["report", "run", "-o", "page.html"], folder)

    return Reader("report", run, _file("page.html"), kept=lambda folder: None)


def data(name: str) -> Reader:
    """`hypersphere data NAME`."""
    return command(f"data {name}", "data", name, "--root", "data")


def training(name: str) -> Reader:
    """`hypersphere train` on a data set."""
    return command(
        f"train on {name}", "train", f"{name}.yaml", "--run.folder", "run", result=_record("run")
    )


def _shards(folder: Path) -> Answer:
    """`load_shards`: a head changes completely, or not at all."""
    import torch

    import hypersphere as hs

    torch.manual_seed(1)
    head = hs.heads.ArcFaceHead(6, 9)
    before = head.weight.detach().clone()
    answer = Answer(["load_shards"])
    try:
        with limited():
            hs.heads.load_shards(head, folder / "head")
        answer.out = str(head.weight.tolist())
    except (ValueError, FileNotFoundError) as error:
        answer.code, answer.err = 1, f"hypersphere heads: {str(error).splitlines()[0]}"
        if not torch.equal(before, head.weight):
            answer.escaped = "refused, but the head was changed\n"
    except BaseException as error:
        answer.code, answer.escaped = -1, f"{type(error).__name__}: {error}\n"
    return answer


RESUME = command(
    "train --resume",
    "train",
    "--resume",
    "run",
    result=_record("run"),
    kept=_weights("run"),
)
INIT = command(
    "train --train.init_from",
    *("train", "small.yaml", "--train.init_from", "run", "--train.steps", "1"),
    *("--run.folder", "new"),
    result=_record("new"),
)
INIT_BEST = command(
    "train --train.init_from",
    *("train", "small.yaml", "--train.init_from", "run/checkpoints/best", "--train.steps", "1"),
    *("--run.folder", "new"),
    result=_record("new"),
)
EVALUATE = command(
    "evaluate",
    *("evaluate", "classification", "run", "--quiet", "--no-cache", "--json", "out.json"),
    result=_file("out.json"),
)
EVALUATE_BEST = command(
    "evaluate --weights best",
    *("evaluate", "retrieval", "run", "--quiet", "--no-cache", "--json", "out.json"),
    *("--weights", "best"),
    result=_file("out.json"),
)
CACHED = command(
    "evaluate", "evaluate", "classification", "run", "--quiet", "--json", "out.json",
    result=_file("out.json"),
)  # fmt: skip
PAIRS = command(
    "evaluate --pairs",
    *("evaluate", "verification", "run", "--quiet", "--no-cache", "--protocol", "plain"),
    *("--pairs", "pictures/pairs.txt", "--folds", "3", "--json", "out.json"),
    result=_file("out.json"),
)
IMAGES = command(
    "evaluate --images",
    *("evaluate", "retrieval", "run", "--quiet", "--no-cache", "--images", "pictures"),
    *("--json", "out.json"),
    result=_file("out.json"),
)
ENROLL_RUN = command(
    "gallery enroll --run",
    *("gallery", "enroll", "people", "--run", "run", "--images", "pictures"),
    result=_gallery,
)
COMPARE = command(
    "compare",
    *("compare", "small.yaml", "--seeds", "0", "--folder", "several"),
    result=_comparison,
    spoken=False,  # it may say that a run goes on
)
GALLERY = (
    command("gallery list", "gallery", "list", "people"),
    command("gallery identify", "gallery", "identify", "people", "--features", "packed.npz"),
    command(
        "gallery verify", "gallery", "verify", "people", "person 1", "--features", "packed.npz"
    ),
    command(
        "gallery enroll",
        *("gallery", "enroll", "people", "--features", "plain.npz"),
        result=_gallery,
    ),
    command("gallery remove", "gallery", "remove", "people", "person 2", result=_gallery),
)


def _features(file: str) -> tuple[Reader, ...]:
    return (
        command("evaluate retrieval", "evaluate", "retrieval", "--features", file, "--ks", "1"),
        command(
            "evaluate identification", "evaluate", "identification", "--features", file,
            "--ranks", "1",
        ),
        command(
            "gallery enroll", "gallery", "enroll", "people", "--features", file, result=_gallery
        ),
    )  # fmt: skip


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
        (RESUME, INIT, EVALUATE, ENROLL_RUN, report(False)), lies.safetensors_lies(),
    ),
    Format(
        "checkpoint, other tensors", "run", NEWEST + "state.safetensors",
        (RESUME, EVALUATE), lies.safetensors_lies(),
    ),
    Format("checkpoint, state.json", "run", NEWEST + "state.json", (RESUME, INIT, EVALUATE)),
    Format(
        "best weights", "run", "run/checkpoints/best/model.safetensors",
        (EVALUATE_BEST, INIT_BEST, RESUME), lies.safetensors_lies(),
    ),
    Format(
        "checksum of the best weights", "run", "run/checkpoints/best/model.safetensors.crc32",
        (EVALUATE_BEST, INIT_BEST),
    ),
    Format(
        "run.json", "run", "run/run.json",
        (RESUME, EVALUATE, ENROLL_RUN, report(False)), RUN_JSON, oracles.sealed,
    ),
    Format(
        "run.json of a comparison", "run", "several/small-seed0/run.json", (COMPARE,), RUN_JSON,
        oracles.sealed,
    ),
    Format(
        "summary.json", "run", "run/summary.json",
        (EVALUATE_BEST, RESUME, report(False)), SUMMARY, oracles.sealed,
    ),
    Format(
        "summary.json of a comparison", "run", "several/small-seed0/summary.json", (COMPARE,),
        SUMMARY, oracles.sealed,
    ),
    Format("metrics.jsonl", "run", "run/metrics.jsonl", (RESUME, report(True)), LINES),
    Format(
        "config.yaml of a run", "run", "run/config.yaml", (RESUME, report(False)), SECTIONS,
    ),
    Format(
        "config.yaml", "run", "small.yaml", (COMPARE, INIT), SECTIONS, oracles.yaml_config
    ),
    Format("features of a run (.npz)", "run", "run/features.npz", (report(True),), lies.npz_lies()),
    Format(
        "result of evaluate (.json)", "run", "run/classification.json", (report(False),), RESULTS,
        oracles.sealed, spare=True,
    ),
    Format(
        "features kept by evaluate", "run", "run/cache/*-*[0-4].safetensors", (CACHED,),
        lies.safetensors_lies(),
    ),
    Format(
        "features (.npz)", "features", "packed.npz", _features("packed.npz"), lies.npz_lies(),
        oracles.npz,
    ),
    Format(
        "features (.npz, not packed)", "features", "plain.npz", _features("plain.npz"),
        lies.npz_lies(), oracles.npz,
    ),
    Format(
        "features (.safetensors)", "features", "a.safetensors", _features("a.safetensors"),
        lies.safetensors_lies(), oracles.safetensors,
    ),
    Format(
        "gallery.json", "gallery", "people/gallery.json", GALLERY,
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
        "pictures of people", "pairs", "pictures/ada/1.png", (ENROLL_RUN, IMAGES, PAIRS),
        lies.picture_lies(), oracles.picture, spare=True,
    ),
    Format(
        "list of pairs", "pairs", "pictures/pairs.txt", (PAIRS,), PAIR_LINES, oracles.words
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
    Format("shards, rows", "shards", "head/classes-*.pt", (Reader("load_shards", _shards),)),
    Format("shards, the rest", "shards", "head/common.pt", (Reader("load_shards", _shards),)),
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


def wrong(cases: Sequence[Case]) -> Iterator[str]:
    """A line per fault."""
    for case in cases:
        if case.verdict == WRONG:
            yield f"{case.subject}, {case.damage}, {case.reader}: {case.detail}"
