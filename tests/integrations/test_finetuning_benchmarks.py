"""The benchmarks of fine-tuning run, every method of them, on tiny models."""

import json
import zipfile

import pytest
import torch

pytest.importorskip("peft")
import transformers

import finetuning
import reviews

import harness


def encoder() -> torch.nn.Module:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=64, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=128, max_position_embeddings=16,
    )  # fmt: skip
    return transformers.BertModel(config, add_pooling_layer=False)


def encode(texts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Letters as tokens."""
    tokens = torch.tensor(
        [[ord(letter) % 29 + 1 for letter in text[:6].ljust(6)] for text in texts]
    )
    return tokens, torch.ones_like(tokens)


SAMPLES = [("ab" * 4, 1), ("xy" * 4, 0)] * 20


@pytest.mark.parametrize("method", reviews.METHODS)
@pytest.mark.filterwarnings("ignore")
def test_every_method_learns_a_task_that_is_easy(method):
    model = reviews.prepare(reviews.Classifier(encoder(), 64), method)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    frozen = sum(p.numel() for p in model.parameters() if not p.requires_grad)
    assert (trained > frozen) == (method == "all weights")
    before = {n: p.clone() for n, p in model.encoder.named_parameters() if p.requires_grad}
    reviews.fit(model, encode, SAMPLES, 10 * reviews.METHODS[method][1], seed=0, steps=8)
    moved = [
        n for n, p in model.encoder.named_parameters() if n in before and (p != before[n]).any()
    ]
    assert moved or method == "classifier alone"
    assert reviews.accuracy(model, encode, SAMPLES) == 1.0


def test_oft_and_ours_train_the_same_numbers():
    count = {}
    for method in ("OFT, exact Cayley (PEFT)", "Cayley, weight side", "Cayley, input side"):
        model = reviews.prepare(reviews.Classifier(encoder(), 64), method)
        parts = model.encoder.named_parameters()
        count[method] = sum(p.numel() for n, p in parts if p.requires_grad and "bias" not in n)
    assert len(set(count.values())) == 1


def test_the_table_has_one_row_per_method(tmp_path):
    runs = [
        {"method": m, "seed": s, "lr": 1e-3, "trained": 10, "accuracy": 0.5 + s / 10, "choice": 0.5,
         "seconds": 2.0, "peak_mb": 3.0}
        for m in list(reviews.METHODS)[:2] for s in (0, 1)
    ]  # fmt: skip
    reviews.record(tmp_path / "reviews.json", runs)
    written = json.loads((tmp_path / "reviews.json").read_text())
    assert written["rows"][0] == [
        "classifier alone",
        "10",
        "55.0 ± 7.1",
        "2",
        "3",
        "0.001 of 1",
        "2",
    ]
    assert len(written["rows"]) == 2 and written["runs"] == runs
    better = [{**run, "lr": 1e-2, "choice": 0.6, "accuracy": 0.4} for run in runs]
    assert reviews.summary(runs + better)[0][2:6:3] == ["40.0 ± 0.0", "0.01 of 2"]
    assert reviews.summary(runs + better[:1])[0][5] == "0.001 of 2"  # not run to its end


def test_texts_rated_near_neutral_are_left_out(tmp_path):
    import io
    import tarfile

    lines = "1\t2.5\tA fine\tfilm.\n2\t-3.0\tAwful.\n3\t0.1\tA film.\n"
    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w:gz") as files:
        entry = tarfile.TarInfo("x/movieReviewSnippets_GroundTruth.txt")
        entry.size = len(lines)
        files.addfile(entry, io.BytesIO(lines.encode()))
    with zipfile.ZipFile(tmp_path / "texts.zip", "w") as archive:
        archive.writestr("v/hutto_ICWSM_2014.tar.gz", inner.getvalue())
    found = reviews.load_texts(tmp_path / "texts.zip")
    assert sorted(found) == [("A fine\tfilm.", 1), ("Awful.", 0)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_comparison_with_peft_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    monkeypatch.setattr(finetuning, "LINEAR", ((32, 4), (64, 8)))
    monkeypatch.setattr(finetuning, "ROWS", (4,))
    monkeypatch.setattr(finetuning, "CHANNELS", 8)
    monkeypatch.setattr(finetuning, "BLOCKS", 4)
    monkeypatch.setattr(finetuning, "PICTURES", ((2, 6),))
    monkeypatch.setattr(finetuning, "WRAP", (64, 8))
    assert finetuning.main() in (0, 1)
    (path,) = (tmp_path / "results" / "benchmarks").glob("finetuning.*.json")
    written = json.loads(path.read_text())
    assert len(written["tables"]) == 5
    for rows in written["tables"].values():
        assert any(row["limit"] is not None for row in rows)
