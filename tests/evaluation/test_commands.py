"""`hypersphere evaluate` and `hypersphere gallery` as a user types them."""

import importlib.util
import json
import sys

import numpy as np
import pytest
import torch

import warm
from hypersphere.cli import main
from hypersphere.evaluation import save_tensors


def run(capsys, *words):
    """(exit code, printed, complained)"""
    code = main([str(w) for w in words])
    out = capsys.readouterr()
    return code, out.out, out.err


@pytest.fixture
def labeled(tmp_path):
    labels = torch.arange(12).repeat_interleave(22)
    features = 3 * torch.randn(12, 8)[labels] + torch.randn(264, 8)
    path = tmp_path / "features.safetensors"
    save_tensors(path, {"features": features, "labels": labels, "logits": torch.randn(264, 12)})
    return path


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["verification", "--all-pairs"], "TAR at FAR"),
        (["identification", "--ranks", "1", "3"], "rank-3"),
        (["identification", "--open-set", "--unknown", "0.25"], "DIR at FAR 0.1"),
        (["classification", "--top", "3"], "top-3 error"),
        (["fewshot", "--episodes", "5", "--queries", "5", "--shot", "1"], "5-way 1-shot"),
        (["geometry"], "angular Fisher score"),
        (["retrieval"], "MAP@R"),
        (["imbalance", "--rare", "0", "1"], "rare classes [0, 1]"),
        (["generative", "--splits", "3"], "inception-style score"),
    ],
)
def test_every_kind_from_saved_features(capsys, labeled, tmp_path, words, shown):
    kind, *rest = words
    target = tmp_path / "out" / "result.json"
    code, out, err = run(capsys, "evaluate", kind, "--features", labeled, *rest, "--json", target)
    assert code == 0 and err == "" and shown in out
    assert json.loads(target.read_text())["kind"].endswith("Result")


def test_verification_from_npz_with_pairs(capsys, tmp_path):
    features = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    index = np.random.default_rng(1).integers(0, 40, (60, 2))
    same = np.arange(60) % 2
    np.savez(tmp_path / "table.npz", features=features, index=index, same=same)
    a, b = features[index[:, 0]], features[index[:, 1]]
    np.savez(tmp_path / "rows.npz", features_a=a, features_b=b, same=same)
    results = [
        run(
            capsys, "evaluate", "verification", "--features", tmp_path / name, "--protocol", "plain"
        )
        for name in ("table.npz", "rows.npz")
    ]
    assert results[0] == results[1] and results[0][0] == 0
    grouped = {"features_a": a, "features_b": b, "same": same, "group": np.arange(60) // 30}
    np.savez(tmp_path / "groups.npz", **grouped)
    words = ["--features", tmp_path / "groups.npz", "--protocol", "plain"]
    code, out, _ = run(capsys, "evaluate", "verification", *words)
    assert code == 0 and out.startswith(results[0][1].rstrip()) and "largest / smallest" in out
    # frames of videos: two of each, whose mean is the row of before
    frames, video = np.concatenate([2 * features, 0 * features]), np.tile(np.arange(40), 2)
    np.savez(tmp_path / "ytf.npz", features=frames, video=video, index=index, same=same)
    words = ["--features", tmp_path / "ytf.npz", "--protocol", "plain"]
    assert run(capsys, "evaluate", "verification", *words) == results[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["verification"], "a run folder, or --features"),
        (["verification", "nowhere"], "nowhere is not a run folder"),
        (["verification", "--features", "no.npz"], "no features at no.npz"),
        (["robustness", "--features", "FILE"], "give a run folder"),
        (["verification", "--features", "FILE"], "has no array 'same'; it has: features, labels"),
        (["fewshot", "--features", "FILE", "--queries", "99"], "0 of 12 classes have them"),
    ],
)
def test_mistakes_are_one_line(capsys, labeled, words, message):
    words = [labeled if w == "FILE" else w for w in words]
    code, out, err = run(capsys, "evaluate", *words)
    assert code == (2 if words == ["verification"] else 1)  # nothing to evaluate: wrong usage
    assert out == "" and message in err and err.count("\n") == 1


def test_gallery_of_features(capsys, tmp_path):
    gallery = tmp_path / "g"
    features = np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32)
    np.savez(tmp_path / "f.npz", features=features, names=np.array(list("aabbcc")))
    np.savez(tmp_path / "q.npz", features=features[2:3] + 0.01)
    np.savez(tmp_path / "wide.npz", features=np.ones((1, 9), np.float32))
    words = ["--features", tmp_path / "f.npz", "--threshold", 0.4]
    code, out, _ = run(capsys, "gallery", "enroll", gallery, *words)
    assert code == 0 and out.startswith("enrolled 6 features of 3 people: ")
    assert "now holds 6 features of 3 people" in out
    query = ["--features", tmp_path / "q.npz"]
    code, out, _ = run(capsys, "gallery", "identify", gallery, *query, "--json")
    assert code == 0 and json.loads(out)[0]["matches"][0]["name"] == "b"
    assert run(capsys, "gallery", "identify", gallery, *query, "--threshold", 1.0)[0] == 3
    assert run(capsys, "gallery", "verify", gallery, "b", *query)[:2][0] == 0
    code, out, _ = run(capsys, "gallery", "verify", gallery, "a", *query, "--threshold", 0.9)
    assert code == 3 and ": no, a" in out
    assert run(capsys, "gallery", "list", gallery)[1] == "a  2\nb  2\nc  2\n"
    assert run(capsys, "gallery", "remove", gallery, "b")[1] == "removed 2 features of b\n"
    for words, message in [
        (["verify", gallery, "b", *query], "nobody is enrolled as 'b'"),
        (["identify", gallery, "--features", tmp_path / "wide.npz"], "dimension 8; got 9"),
        (["identify", tmp_path / "none", *query], "no gallery at"),
        (["enroll", gallery, "x.jpg"], "whose pictures are these?"),
        (["enroll", gallery, "--name", "x", "x.jpg"], "pictures need --run"),
    ]:
        code, _, err = run(capsys, "gallery", *words)
        assert code == 1 and message in err


@pytest.fixture
def saved(tmp_path):
    """Writes FILE: 24 features of four classes, with labels and what else is given."""
    rows = np.random.default_rng(0).normal(size=(24, 8)).astype(np.float32)
    numbers = np.arange(24) % 4

    def save(name="f.npz", **arrays):
        np.savez(tmp_path / name, **{"features": rows, "labels": numbers, **arrays})
        return tmp_path / name

    save.rows, save.numbers = rows, numbers
    save.texts = np.array(["ada", "bob", "eve", "zoe"])[numbers]
    return save


NUMBERED = (
    ["retrieval"],
    ["verification", "--all-pairs"],
    ["identification"],
    ["identification", "--open-set"],
    ["geometry"],
    ["threshold", "--far", 0.1],
    ["fewshot", "--way", 2, "--shot", 1, "--queries", 2, "--episodes", 3],
)


@pytest.mark.parametrize("words", NUMBERED, ids=lambda words: " ".join(map(str, words)))
def test_labels_of_text_count_as_numbers_do(capsys, saved, words):
    kind, *rest = words
    for texts in (saved.texts, saved.texts.astype(bytes)):
        files = [saved(), saved("t.npz", labels=texts)]
        found = [run(capsys, "evaluate", kind, "--features", file, *rest) for file in files]
        assert found[0] == found[1] and found[0][0] == 0


def test_ids_groups_and_videos_may_be_text(capsys, saved):
    rows, texts = saved.rows, saved.texts
    parts = {"probes": rows[4:8], "gallery": rows[:4], "gallery_ids": texts[:4]}
    words = ["identification", "--ranks", 1, "--features"]
    assert run(capsys, "evaluate", *words, saved(**parts, probe_ids=texts[4:8]))[0] == 0
    mixed = saved(**parts, probe_ids=np.arange(4))
    assert "all names or numbers, not both" in run(capsys, "evaluate", *words, mixed)[2]
    pairs = {"same": np.arange(24) % 2, "index": np.arange(48).reshape(24, 2) % 24}
    words = ["verification", "--protocol", "plain", "--folds", 2, "--features"]
    code, out, _ = run(capsys, "evaluate", *words, saved(**pairs, group=np.repeat(["a", "b"], 12)))
    assert code == 0 and "largest / smallest" in out
    pairs["index"] %= 4
    found = [
        run(capsys, "evaluate", *words, saved(**pairs, video=video))
        for video in (saved.numbers, texts)
    ]
    assert found[0] == found[1] and found[0][0] == 0
    parts["distractors"] = np.concatenate([rows[8:], 0 * rows[:2]])
    words = ["identification", "--ranks", 1, "--features"]
    code, _, err = run(capsys, "evaluate", *words, saved(**parts, probe_ids=texts[4:8]))
    assert code == 0 and "2 of 26 features are zero" in err


@pytest.mark.parametrize(
    ("words", "arrays", "message"),
    [
        ("evaluate classification", "logits,labels:text", "labels: expected numbers; got text,"),
        ("evaluate geometry", "weight,labels:text", "labels: expected numbers; got text, such as"),
        ("evaluate retrieval", "features:complex", "expected real numbers of at most 64 bits; got"),
        ("evaluate verification", "same,features:complex", "features: expected real numbers"),
        ("evaluate verification", "same,index,fold:text", "fold: expected numbers; got text"),
        ("evaluate retrieval", "labels:float", "labels: expected whole numbers; got torch.float64"),
        ("gallery enroll g", "labels:float", "labels: expected whole numbers; got torch.float64"),
        ("gallery enroll g", "names:float", "names: expected whole numbers; got torch.float64"),
        ("gallery enroll g", "names:complex", "names: expected real numbers"),
        ("gallery enroll g", "features:complex", "features: expected real numbers"),
    ],
)
def test_arrays_of_another_kind_are_told(
    capsys, saved, tmp_path, monkeypatch, words, arrays, message
):
    monkeypatch.chdir(tmp_path)
    kinds = {
        "text": saved.texts,
        "float": np.linspace(0.5, 3, 24),
        "complex": saved.rows.astype(complex),
        "": saved.rows[:, 0] > 0,
    }
    given = {name: kinds[kind] for name, _, kind in (a.partition(":") for a in arrays.split(","))}
    code, out, err = run(capsys, *words.split(), "--features", saved(**given))
    assert code == 1 and out == "" and message in err and err.count("\n") == 1
    assert not (tmp_path / "g").exists()


def test_labels_of_text_are_the_names_of_a_gallery(capsys, saved, tmp_path):
    for i, texts in enumerate((saved.texts, saved.texts.astype(bytes))):
        gallery = tmp_path / f"g{i}"
        words = ["gallery", "enroll", gallery, "--features", saved(labels=texts)]
        assert run(capsys, *words)[0] == 0
        assert run(capsys, "gallery", "list", gallery)[1] == "ada  6\nbob  6\neve  6\nzoe  6\n"


@pytest.mark.parametrize("shape", [(2, 12), (12, 2)], ids=str)
@pytest.mark.parametrize("name", ["names", "labels"])
def test_names_in_a_table_are_refused(capsys, saved, tmp_path, name, shape):
    for names in (saved.texts, saved.numbers):
        file = saved(**{name: names.reshape(shape)})
        code, out, err = run(capsys, "gallery", "enroll", tmp_path / "g", "--features", file)
        assert code == 1 and out == "" and err.count("\n") == 1
        assert f"{name}: expected " in err and f"shape {shape}" in err
        assert not (tmp_path / "g").exists()


@pytest.mark.parametrize("words", NUMBERED, ids=lambda words: " ".join(map(str, words)))
def test_huge_labels_count_as_small_ones_do(capsys, saved, words):
    kind, *rest = words
    found = [
        run(capsys, "evaluate", kind, "--features", saved(labels=labels), *rest)
        for labels in (saved.numbers, saved.numbers * 10**8, saved.numbers + 2**62)
    ]
    assert found[0] == found[1] == found[2] and found[0][0] == 0
    unsigned = saved(labels=saved.numbers.astype(np.uint64) + np.uint64(2**63))
    code, _, err = run(capsys, "evaluate", kind, "--features", unsigned, *rest)
    assert code == 1 and "labels: expected numbers below 2**63; got" in err


@pytest.mark.parametrize("size", [1e300, 1e-300])
@pytest.mark.parametrize(
    "words", [words for words in NUMBERED if words[0] not in ("geometry", "fewshot")], ids=str
)
def test_features_of_any_size_give_the_same(capsys, saved, words, size):
    kind, *rest = words
    found = [
        run(capsys, "evaluate", kind, "--features", saved(features=scale * saved.rows), *rest)
        for scale in (np.float64(1), np.float64(size))
    ]
    assert found[0] == found[1] and found[0][0] == 0


def test_features_out_of_range_are_a_sentence_or_right(capsys, saved):
    rows = saved.rows.astype(np.float64)
    pairs = {"same": saved.numbers % 2, "index": np.arange(48).reshape(24, 2) % 24}
    words = ["evaluate", "verification", "--folds", 2, "--pca", 3, "--features"]
    found = [
        run(capsys, *words, saved(features=size * rows, **pairs)) for size in (1, 1e300, 1e-300)
    ]
    assert found[0] == found[1] == found[2] and found[0][0] == 0
    lines = [
        run(capsys, "evaluate", "geometry", "--features", saved(features=size * rows))[1]
        for size in (1, 1e300)
    ]
    plain, huge = (text[text.index("features:") :].splitlines() for text in lines)
    different = [b.split() for a, b in zip(plain, huge, strict=True) if a.split() != b.split()]
    assert len(different) == 1 and different[0][0] == "norm" and "inf" not in lines[1]
    assert len(max(lines[1].splitlines(), key=len)) < 200
    real = {"logits": rows, "real_features": rows[::-1] + 1}
    words = ["evaluate", "generative", "--splits", 2, "--features"]
    assert run(capsys, *words, saved(**real))[0] == 0
    huge = {name: 1e300 * array for name, array in real.items()}
    code, out, err = run(capsys, *words, saved(features=1e300 * rows, **huge))
    assert code == 1 and out == "" and "whose squared distance is below 1.8e308" in err
    words = ["evaluate", *NUMBERED[-1], "--features"]
    for size in (1e300, 1e-300):
        code, out, err = run(capsys, *words, saved(features=size * rows))
        assert code == 1 and out == "" and "features: expected lengths near 1" in err
    for kind in ("classification", "imbalance"):
        words = ["evaluate", kind, "--features", saved(logits=saved.numbers * 10**17)]
        code, out, err = run(capsys, *words)
        assert code == 1 and "expected numbers of classes below 16,384; got 3" in err


@pytest.mark.parametrize("words", NUMBERED, ids=lambda words: " ".join(map(str, words)))
def test_features_without_a_direction_are_told(capsys, saved, words):
    kind, *rest = words
    rows = saved.rows.copy()
    rows[:3] = 0
    code, out, err = run(capsys, "evaluate", kind, "--features", saved(features=rows), *rest)
    told = "3 of 24 features are zero and have no direction: their cosines count as 0"
    assert code == 0 and out and err == f"hypersphere evaluate {kind}: {told}\n"


def test_a_file_that_is_refused_is_told_in_one_line(capsys, saved):
    file = saved(features=0 * saved.rows, labels=saved.numbers[:5])
    code, out, err = run(capsys, "evaluate", "retrieval", "--features", file)
    assert code == 1 and out == "" and err.count("\n") == 1 and "one label for each" in err


def test_inspect_tells_of_features_without_a_direction(capsys, saved, tmp_path):
    weights, rows = tmp_path / "w.safetensors", saved.rows.copy()
    save_tensors(weights, {"fc.weight": torch.randn(8, 8)})
    plain = run(capsys, "inspect", weights, "--features", saved())
    assert plain == run(capsys, "inspect", weights, "--features", saved(labels=saved.texts))
    assert plain[0] == 0 and plain[2] == ""
    rows[0] = 0
    code, _, err = run(capsys, "inspect", weights, "--features", saved(features=rows))
    assert code == 0 and "1 of 24 features is zero and has no direction: its cosines" in err


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A real run of a few steps on the embedded digits."""
    if not importlib.util.find_spec("lightning_fabric"):
        pytest.skip("needs the extra train")
    folder = tmp_path_factory.mktemp("runs") / "digits"
    words = ["--run.folder", folder, "--train.steps", 8, "--train.quiet", "true"]
    words += [
        "--run.report",
        "false",
        "--train.test_every",
        4,
        "--model.widths",
        "[8, 8, 8]",
        "--model.features",
        16,
    ]
    command = [sys.executable, "-m", "hypersphere", "train", *map(str, words)]
    done = warm.run(command, capture_output=True, text=True, timeout=300)
    found = [path.parent for path in folder.parent.rglob("run.json")]
    assert done.returncode == 0 and found, done.stderr
    return found[0]


@pytest.mark.slow
def test_evaluation_gives_the_number_of_training(capsys, trained, tmp_path):
    import shutil

    from hypersphere.training.run.checkpoint import load_weights, save_weights

    folder = shutil.copytree(trained, tmp_path / "run")
    ours = json.loads((folder / "summary.json").read_text())
    best = folder / "checkpoints/best/model.safetensors"  # surely others than the last
    noisy = {
        k: v + torch.randn_like(v) if v.dim() > 1 else v for k, v in load_weights(best).items()
    }
    save_weights(best, noisy)
    words = ["evaluate", "verification", folder, "--protocol", "plain"]
    for weights, same in (("last", True), ("best", False)):
        target = tmp_path / f"{weights}.json"
        code, out, _ = run(capsys, *words, "--weights", weights, "--json", target)
        found = json.loads(target.read_text())
        assert code == 0 and f"{weights} weights (step {found['step']})" in out
        assert found["step"] == ours[weights]["step"]
        agree = [found[k] == pytest.approx(v, abs=1e-4) for k, v in ours["verification"].items()]
        assert all(agree) == same


@pytest.mark.slow
def test_a_trained_run_through_every_kind(capsys, trained, tmp_path):
    for words, shown in [
        (["verification"], "sphereface"),
        (["verification", "--protocol", "plain", trained], "plain"),
        (["identification"], "rank-10"),
        (["classification"], "hardness (AVH)"),
        (["robustness", "--limit", 20, "--attacks", "none", "fgsm", "deepfool_l2"], "white box"),
        (["robustness", "--limit", 20, "--source", trained], "black box"),
        (["fewshot", "--episodes", 4, "--shot", 1, "--queries", 5], "baseline++"),
        (["geometry"], "half space"),
        (["retrieval"], "recall@5"),
        (["imbalance", "--rare", 1], "rare classes [1]"),
    ]:
        place = [] if trained in words and words[0] == "verification" else [trained]
        code, out, err = run(capsys, "evaluate", words[0], *place, *words[1:], "--quiet")
        assert (code, err) == (0, "") and shown in out, words
        kept = trained / f"{words[0]}.json"
        assert f"last weights (step 8) of {trained}; kept in {kept}" in out
        record = json.loads(kept.read_text())
        assert (record["weights"], record["step"]) == ("last", 8)
    assert (trained / "fewshot-2.json").exists() and not (trained / "fewshot-3.json").exists()
    code, _, err = run(capsys, "evaluate", "imbalance", trained)
    assert code == 1 and "no class is rare" in err and "--rare" in err
    # extracted once: a second look comes from the cache
    kept = sorted((trained / "cache").iterdir())
    times = [p.stat().st_mtime_ns for p in kept]
    assert run(capsys, "evaluate", "retrieval", trained)[0] == 0
    assert [p.stat().st_mtime_ns for p in sorted((trained / "cache").iterdir())] == times


@pytest.mark.slow
def test_pictures_of_people_with_a_trained_run(capsys, trained, tmp_path):
    image = pytest.importorskip("PIL.Image", reason="needs the extra data")
    from hypersphere.data import load

    test, faces = load("digits").test, tmp_path / "faces"
    for digit in range(4):
        name = f"d{digit}"
        (faces / name).mkdir(parents=True)
        for i, row in enumerate((test.labels == digit).nonzero().flatten()[:4].tolist(), 1):
            pixels = test.images[row, 0]
            pixels = pixels if pixels.dtype == torch.uint8 else (255 * pixels).round().byte()
            image.fromarray(pixels.numpy()).save(faces / name / f"{name}_{i:04d}.png")
    pairs = "".join(f"d{k} 1 2\nd{k} 1 d{(k + 1) % 4} 1\n" for k in range(4))
    (tmp_path / "pairs.txt").write_text("2 2\n" + pairs)
    words = [
        "--pairs",
        tmp_path / "pairs.txt",
        "--images",
        faces,
        "--save",
        tmp_path / "f.safetensors",
    ]
    code, out, err = run(capsys, "evaluate", "verification", trained, *words)
    assert (code, err) == (0, "") and "4 same, 4 different" in out
    again = run(capsys, "evaluate", "verification", "--features", tmp_path / "f.safetensors")
    assert out.startswith(again[1])
    (tmp_path / "pairs.txt").write_text("1 1\nd0 1 9\nd0 1 d1 1\n")
    code, _, err = run(capsys, "evaluate", "verification", trained, *words[:4])
    assert code == 1 and "d0_0009" in err

    episodes = ["--episodes", 3, "--way", 3, "--shot", 1, "--queries", 2]
    for kind, *rest in (
        ["retrieval"],
        ["identification", "--distractors", faces / "d3"],
        ["generative"],
        ["fewshot", *episodes],
    ):
        code, _, err = run(capsys, "evaluate", kind, trained, "--images", faces, *rest)
        assert (code, err) == (0, ""), kind

    gallery, person = tmp_path / "g", faces / "d2" / "d2_0001.png"
    source = ["--run", trained]
    enroll = ["gallery", "enroll", gallery, *source, "--images", faces, "--threshold", 0.4]
    assert run(capsys, *enroll)[0] == 0
    code, out, _ = run(
        capsys, "gallery", "enroll", gallery, *source, "--name", "me", person, person
    )
    assert code == 0 and "1 more were there already" in out and "17 features of 5 people" in out
    code, out, _ = run(capsys, "gallery", "identify", gallery, person, *source, "--top", 1)
    assert code == 0 and ("d2 1.0000" in out or "me 1.0000" in out)
    assert run(capsys, "gallery", "verify", gallery, "me", person, *source)[0] == 0
    code, _, err = run(capsys, "gallery", "verify", gallery, "me", tmp_path / "no.png", *source)
    assert code == 1 and "no picture at" in err
    # another model: refused
    record = json.loads((gallery / "gallery.json").read_text()) | {"model": "0123456789abcdef"}
    (gallery / "gallery.json").write_text(json.dumps(record))
    code, _, err = run(capsys, "gallery", "identify", gallery, person, *source)
    assert code == 1 and "come from model 0123456789abcdef" in err


def every_option():
    import argparse

    from hypersphere.commands import _evaluation, gallery, points

    for name, (top, parts) in {
        "evaluate": _evaluation.parsers(),
        "gallery": gallery.parsers(),
        "points": (points._parser(), {}),
    }.items():
        for part in (top, *parts.values()):
            for action in part._actions:
                if not isinstance(action, argparse._SubParsersAction):
                    yield name, part.prog, action


def test_every_option_has_a_text_and_says_its_default():
    silent = [(prog, a.dest) for _, prog, a in every_option() if not a.help]
    assert silent == []
    unsaid = [
        (prog, a.dest)
        for _, prog, a in every_option()
        if a.option_strings and a.default not in (None, False, "==SUPPRESS==")
        and "default" not in a.help
    ]  # fmt: skip
    assert unsaid == []
