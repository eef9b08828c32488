"""The example VAE learns in few steps, with either posterior."""

import importlib.util
from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="module")
def example():
    path = Path(__file__).resolve().parents[2] / "examples" / "hyperspherical_vae.py"
    spec = importlib.util.spec_from_file_location("examples_hyperspherical_vae", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("posterior", ["vmf", "power_spherical"])
def test_the_loss_falls(example, posterior):
    images, _, test_images, _ = example.images_and_labels()
    model = example.HypersphericalVAE(posterior=posterior)
    history = example.train(model, images, steps=100)
    assert sum(history[-10:]) / 10 < 0.75 * sum(history[:5]) / 5
    pixels, divergence = model.loss(test_images)
    (pixels + divergence).backward()
    last = model.encoder[-1].weight.grad
    assert (last.abs().amax(1) > 0).all()  # direction and concentration both learn


def test_prints_and_draws(example, tmp_path, capsys):
    path = tmp_path / "vae.png"
    assert example.main(["--steps", "20", "--draw", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "training loss" in printed and "20 steps in" in printed
    assert path.stat().st_size > 10_000


@pytest.mark.slow
def test_trained_in_full_it_separates_the_digits(example):
    torch.manual_seed(0)
    images, labels, test_images, test_labels = example.images_and_labels()
    model = example.HypersphericalVAE()
    history = example.train(model, images, steps=1500)
    assert sum(history[-50:]) / 50 < 25
    assert example.neighbor_accuracy(model, images, labels, test_images, test_labels) > 0.7
