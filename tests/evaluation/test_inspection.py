import json
import math

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import hypersphere as hs
from hypersphere import functional as HF
from hypersphere.cli import main
from hypersphere.evaluation import (
    InspectionLog,
    inspect_features,
    inspect_weights,
    read_checkpoint,
)
from hypersphere.evaluation.geometry.weights import least_energy, random_energy


def layer(weight, name="fc.weight"):
    return inspect_weights({name: weight}).layers[0]


@pytest.mark.parametrize("dim, s", [(3, 1.0), (8, 1.0), (8, 2.0), (64, 1.0)])
def test_random_energy_is_the_mean_over_samples(dim, s):
    generator = torch.Generator().manual_seed(0)
    x, y = (HF.uniform_on_sphere(200_000, dim, generator, torch.float64) for _ in range(2))
    sampled = float((x - y).norm(dim=1).pow(-s).mean())
    assert random_energy(dim, s) == pytest.approx(sampled, rel=0.02)
    assert random_energy(3, 2.0) == math.inf


@pytest.mark.parametrize("n, d", [(3, 5), (6, 5), (12, 3), (40, 5)])
def test_no_configuration_goes_below_the_least_energy(n, d):
    best = HF.minimize_energy(n, d, 1.0, restarts=4)
    energy = float(HF.hyperspherical_energy(best, 1.0))
    assert energy >= least_energy(n) - 1e-9
    if n <= d + 1:
        assert energy == pytest.approx(least_energy(n), abs=1e-7)


def test_relative_energy_is_1_for_random_and_0_for_a_simplex():
    generator = torch.Generator().manual_seed(0)
    random = torch.randn(512, 64, generator=generator)
    assert layer(random).relative == pytest.approx(1, abs=0.05)
    assert layer(HF.simplex_prototypes(10, 16)).relative == pytest.approx(0, abs=1e-5)
    narrow = random[:, :1].abs() + 0.05 * random  # all near one direction
    assert layer(narrow).relative > 1.5


def test_duplicates_zeros_rank_and_lengths_are_told():
    torch.manual_seed(0)
    weight = torch.randn(32, 16)
    weight[5] = 2 * weight[3]
    weight[7] = 0
    found = layer(weight, "conv.weight")
    assert found.duplicates == 2 and found.zeros == 1
    assert found.smallest_angle == pytest.approx(0, abs=1e-5)
    words = " ".join(found.remarks())
    assert "1 of 32 neurons are zero" in words and "2 of 32 neurons have a near duplicate" in words
    flat = torch.outer(torch.rand(32) + 0.5, torch.randn(16)) + 1e-3 * torch.randn(32, 16)
    words = " ".join(layer(flat).remarks())
    assert "effective rank 1." in words and "one direction carries 100 %" in words
    lengths = torch.logspace(-2, 2, 32)[:, None] * torch.randn(32, 16)
    assert "lengths of neurons range" in " ".join(layer(lengths).remarks())


def test_kernels_are_rows_and_the_rest_is_skipped():
    tensors = {
        "conv.weight": torch.randn(8, 3, 3, 3), "conv.bias": torch.randn(8),
        "steps": torch.tensor(3), "one": torch.randn(1, 9), "half": torch.randn(4, 4).bfloat16(),
        "bad": torch.full((4, 4), math.nan),
    }  # fmt: skip
    result = inspect_weights(tensors)
    assert [(x.name, x.neurons, x.dim) for x in result.layers] == [
        ("conv.weight", 8, 27), ("half", 4, 4), ("bad", 4, 4)]  # fmt: skip
    assert result.skipped == ["conv.bias", "steps", "one"]
    assert any("not finite" in remark for remark in result.remarks())
    json.dumps(result.to_dict(), allow_nan=False)


def test_many_neurons_are_sampled():
    torch.manual_seed(0)
    weight = torch.randn(10_000, 4)
    weight[1::2] = 0
    weight[2] *= 1e4
    found = layer(weight)
    assert (found.neurons, found.measured, found.full_rank) == (10_000, 4096, 4)
    assert found.zeros == 5000 and found.norms.largest == pytest.approx(float(weight[2].norm()))
    assert 0 < found.duplicates <= 4096
    words = " ".join(found.remarks())
    assert "5000 of 10000 neurons are zero" in words
    assert f"{found.duplicates} of the 4096 neurons looked at, a sample of 10000, have" in words
    assert layer(weight[:100]).measured == 100


def test_opposite_neurons_are_no_duplicates():
    found = layer(torch.tensor([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]]))
    assert found.duplicates == 0 and found.smallest_angle == pytest.approx(180)
    assert found.relative == pytest.approx(0) and list(found.remarks()) == []


@pytest.mark.parametrize("spread", [1.0, 0.1])
def test_in_the_plane_nothing_is_said_of_the_energy(spread):
    """The mean energy of random directions is infinite there: no scale to compare with."""
    angles = spread * torch.linspace(0, 5.5, 9)
    result = inspect_weights({"w": torch.stack([angles.cos(), angles.sin()], 1)})
    assert math.isnan(result.layers[0].relative)
    assert not any("random directions" in remark for remark in result.remarks())
    json.dumps(result.to_dict(), allow_nan=False)


def test_features_with_the_bias_of_the_classifier():
    labels = torch.arange(40) % 2
    features = torch.eye(2)[labels] + 0.01 * torch.randn(40, 2)
    bias = torch.tensor([9.0, 0.0])  # all are taken for class 0
    assert inspect_features(features, labels, torch.eye(2)).collapse.disagreement == 0
    assert inspect_features(features, labels, torch.eye(2), bias).collapse.disagreement == 0.5


def test_features_in_words():
    torch.manual_seed(0)
    labels = torch.arange(40) % 4
    means = torch.eye(8)[:4]
    found = inspect_features(means[labels] + 1e-3 * torch.randn(40, 8), labels, means)
    assert found.collapse.within_class < 1e-3 and found.smallest_class_angle > 85
    assert any("collapsed" in remark for remark in found.remarks())
    alone = inspect_features(torch.ones(10, 8) + 0.01 * torch.randn(10, 8))
    assert alone.collapse is None and any("little of the sphere" in r for r in alone.remarks())


def test_every_kind_of_checkpoint_is_read(tmp_path):
    weights = {"a.weight": torch.randn(6, 4), "b.weight": torch.randn(5, 6)}
    save_file(weights, tmp_path / "x.safetensors")
    torch.save(weights, tmp_path / "x.pt")
    torch.save({"epoch": 3, "state_dict": weights}, tmp_path / "x.ckpt")
    folder = tmp_path / "hub"
    folder.mkdir()
    for name in weights:
        save_file({name: weights[name]}, folder / f"{name[0]}.safetensors")
    index = {"weight_map": {name: f"{name[0]}.safetensors" for name in weights}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for path in ("x.safetensors", "x.pt", "x.ckpt", "hub"):
        found = read_checkpoint(tmp_path / path)
        assert list(found) == list(weights)
        assert all(torch.equal(found[name], weights[name]) for name in weights)


def test_untrusted_files_run_nothing_and_errors_help(tmp_path):
    torch.save(nn.Linear(3, 2), tmp_path / "whole.pt")  # a module, not a state dict
    with pytest.raises(ValueError, match="weights_only=True"):
        read_checkpoint(tmp_path / "whole.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(ValueError, match="holds a list"):
        read_checkpoint(tmp_path / "list.pt")
    torch.save({"epoch": 3}, tmp_path / "none.pt")
    with pytest.raises(ValueError, match="no tensors"):
        read_checkpoint(tmp_path / "none.pt")
    (tmp_path / "x.txt").write_text("x")
    with pytest.raises(ValueError, match="no checkpoint"):
        read_checkpoint(tmp_path / "x.txt")
    with pytest.raises(ValueError, match="holds no weights"):
        read_checkpoint(tmp_path)
    with pytest.raises(ValueError, match="no file or folder"):
        read_checkpoint(tmp_path / "absent.pt")
    index = {"weight_map": {"a": "../x.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="not a plain name"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize("content", [b"email", b"", b"\x80\x02}q\x00.", b"e" * 500])
def test_bytes_that_are_no_checkpoint(tmp_path, content, capsys):
    from hypersphere.cli import main

    (tmp_path / "a.pt").write_bytes(content)
    assert main(["inspect", str(tmp_path / "a.pt")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("hypersphere inspect:") and "a.pt" in error and "\x1b" not in error


def test_nothing_to_inspect_is_said(tmp_path, capsys):
    from hypersphere.cli import main

    torch.save({"a": torch.ones(4, dtype=torch.int8)}, tmp_path / "a.pt")
    assert main(["inspect", str(tmp_path / "a.pt")]) == 0
    assert "No weight was inspected" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["inspect", str(tmp_path / "a.pt"), "-o", str(tmp_path / "no" / "a.html")])
    assert "there is no folder" in capsys.readouterr().err


def test_command_writes_page_and_json(tmp_path, capsys):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    with torch.no_grad():
        model[0].weight[1] = model[0].weight[0]
    torch.save(model.state_dict(), tmp_path / "net.pt")
    save_file(
        {"features": torch.randn(50, 8), "labels": torch.arange(50) % 5}, tmp_path / "f.safetensors"
    )
    page, figures = tmp_path / "page.html", tmp_path / "all.json"
    words = ["inspect", str(tmp_path / "net.pt"), "--features", str(tmp_path / "f.safetensors")]
    assert main([*words, "-o", str(page), "--json", str(figures)]) == 0
    out = capsys.readouterr().out
    assert "near duplicate" in out and "NC1" in out and "uniformity" in out
    text = page.read_text()
    assert "What stands out" in text and "<svg" in text and page.stat().st_size < 200_000
    assert "http://" not in text.replace("http://www.w3.org", "") and "<script" not in text
    content = json.loads(figures.read_text())
    assert content["weights"]["layers"][0]["duplicates"] == 2 and content["remarks"]
    assert main(["inspect", str(tmp_path / "absent.pt")]) == 1
    assert "no file or folder" in capsys.readouterr().err


def test_command_takes_the_bias_and_refuses_what_is_no_classifier(tmp_path, capsys):
    torch.save({"w": torch.randn(4, 3)}, tmp_path / "net.pt")
    labels = torch.arange(40) % 2
    known = {"features": torch.eye(2)[labels] + 0.01 * torch.randn(40, 2), "labels": labels}
    file, figures = tmp_path / "f.safetensors", tmp_path / "all.json"
    words = ["inspect", str(tmp_path / "net.pt"), "--features", str(file), "--json", str(figures)]
    save_file({**known, "weight": torch.eye(2), "bias": torch.tensor([9.0, 0.0])}, file)
    assert main(words) == 0
    assert json.loads(figures.read_text())["features"]["collapse"]["disagreement"] == 0.5
    save_file({**known, "weight": torch.ones(2)}, file)
    capsys.readouterr()
    assert main(words) == 1
    assert "weight: expected (C, 2), a row per class; got (2,)" in capsys.readouterr().err


def test_neurons_of_other_peoples_layers(tmp_path):
    """GPT-2 keeps weights (in, out): its neurons are columns, in a file as in a model."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=20, n_positions=8)
    model = transformers.GPT2Model(config)
    model.save_pretrained(tmp_path / "gpt2")
    ours = {layer.name: layer for layer in InspectionLog(model)(0).layers}
    assert (ours["h.0.mlp.c_fc"].neurons, ours["h.0.mlp.c_fc"].dim) == (32, 8)
    assert ours["wte"].neurons == 20
    files = {
        layer.name: layer for layer in inspect_weights(read_checkpoint(tmp_path / "gpt2")).layers
    }
    name = next(name for name in files if name.endswith("h.0.mlp.c_fc.weight"))
    assert files[name].energy == pytest.approx(ours["h.0.mlp.c_fc"].energy)


def test_callback_for_any_loop(tmp_path):
    model = nn.Linear(6, 5)
    log = InspectionLog(model, tmp_path / "log.jsonl", every=10)
    for step in range(25):
        log(step)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 10, 20] and len(log.results) == 3
    assert lines[0]["layers"][0]["name"] == "Linear"
    with pytest.raises(ValueError, match="at least 1"):
        hs.evaluation.InspectionLog(model, every=0)


def test_a_checksum_beside_the_weights_is_compared(tmp_path):
    from hypersphere.training.run.checkpoint import save_weights

    path = tmp_path / "model.safetensors"
    save_weights(path, {"a": torch.ones(4, 4)})
    assert "a" in read_checkpoint(path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 128  # a sign
    path.write_bytes(bytes(content))
    with pytest.raises(ValueError, match="its checksum differs from that in model.safetensors.crc"):
        read_checkpoint(path)


@pytest.mark.parametrize("damaged", ["model.safetensors", "state.json"])
def test_the_checksums_of_a_checkpoint_of_a_run_are_compared(tmp_path, capsys, damaged):
    from hypersphere.training.run.checkpoint import save_checkpoint

    step = save_checkpoint(tmp_path, 30, {"fc.weight": torch.randn(8, 4)}, {"seed": torch.ones(1)})
    assert "fc.weight" in read_checkpoint(step) and "seed" not in read_checkpoint(step)
    content = bytearray((step / damaged).read_bytes())
    content[-3] ^= 128 if damaged == "model.safetensors" else 1
    content[-1] ^= 128 if damaged == "model.safetensors" else 0  # a sign
    (step / damaged).write_bytes(bytes(content))
    for path in (step, step / "model.safetensors"):
        assert main(["inspect", str(path)]) == 1
        told = capsys.readouterr()
        assert told.out == "" and "is damaged" in told.err and damaged in told.err


@pytest.mark.parametrize(
    "content",
    [b'{"step": 3}', b' \n{"checksums": {}}', b"[1, 2]", b"", b"\xef\xbb\xbf{}", b"\xff\xfe"],
)
def test_a_state_of_another_program_says_nothing_of_the_weights(tmp_path, content):
    save_file({"a": torch.ones(4, 4)}, tmp_path / "model.safetensors")
    (tmp_path / "state.json").write_bytes(content)
    assert "a" in read_checkpoint(tmp_path)
