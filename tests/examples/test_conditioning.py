"""Lemmas 1 and 2 of 3.2.3, as numbers."""

import importlib.util
from pathlib import Path

import pytest
import torch

from hypersphere import functional as HF


@pytest.fixture(scope="module")
def conditioning():
    path = Path(__file__).resolve().parents[2] / "examples" / "conditioning.py"
    spec = importlib.util.spec_from_file_location("examples_conditioning", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_lemma_1_the_plain_objective_gets_ill_conditioned(conditioning):
    scales = conditioning.SCALES
    plain = conditioning.condition_numbers()["plain"]
    for c, number in zip(scales, plain, strict=True):
        assert number >= 0.5 * c**2 * plain[0]  # the constant of the proof (B.4.1)


@pytest.mark.parametrize("optimum", [True, False])
def test_lemma_2_the_cosine_operator_does_not(conditioning, optimum):
    """All eigenvalues stay where rows are projected back, at the optimum and anywhere else."""
    u, v, f = conditioning.problem()
    if not optimum:
        u, v, _ = conditioning.problem(seed=1)
    want = conditioning.hessian_eigenvalues(conditioning.hyperspherical, u, v, f)
    for c in conditioning.SCALES:
        projected = HF.normalize(c * u), HF.normalize(v / c)
        got = conditioning.hessian_eigenvalues(conditioning.hyperspherical, *projected, f)
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


def test_without_projection_the_blocks_scale(conditioning):
    """G_S itself does not depend on c; its Hessian in U is that of U over c^2."""
    u, v, f = conditioning.problem()
    g = conditioning.hyperspherical
    torch.testing.assert_close(g(3 * u, v / 3, f), g(u, v, f))
    assert conditioning.condition_numbers()["sphere"][-1] > 1e4
    block = torch.func.jacrev(torch.func.grad(lambda w: g(w, v, f)))(u)
    scaled = torch.func.jacrev(torch.func.grad(lambda w: g(w, v, f)))(3 * u)
    torch.testing.assert_close(scaled, block / 9)


def test_hessian_at_an_optimum_is_the_formula_of_the_proof(conditioning):
    """B.1 at U V^T = F: blocks V^T V x I and U^T U x I on the diagonal."""
    u, v, f = conditioning.problem(n=3, m=4, k=2)
    block = torch.autograd.functional.hessian(lambda w: conditioning.plain(w, v, f), u)
    want = torch.einsum("ij,ab->iajb", torch.eye(3, dtype=torch.float64), v.T @ v)
    torch.testing.assert_close(block, want)


def test_command_prints_and_draws(conditioning, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    assert conditioning.main(["--draw", str(tmp_path / "c.png")]) == 0
    assert "projected" in capsys.readouterr().out
    assert (tmp_path / "c.png").stat().st_size > 5000
