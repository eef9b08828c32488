"""Means of rotations: against the definition, and what makes them a mean on the group."""

import math

import pytest
import torch

from hypersphere import functional as HF
from tolerances import close

from reference import rotation_mean as reference


def rotations(count: int, d: int, angle: float, *batch: int) -> torch.Tensor:
    """exp of random skew matrices whose spectral norm is `angle`."""
    W = torch.randn(count, *batch, d, d, dtype=torch.float64)
    W = W - W.mT
    W = W * angle / torch.linalg.matrix_norm(W, ord=2).clamp_min(1e-30)[..., None, None]
    return torch.linalg.matrix_exp(W)


@pytest.mark.parametrize("d", [1, 2, 3, 4, 7, 16])
@pytest.mark.parametrize("angle", [1e-8, 0.3, 3.0])
def test_the_logarithm_is_that_of_the_definition(d, angle):
    R = rotations(1, d, angle)[0]
    close(HF.rotation_logarithm(R), reference.rotation_logarithm(R), scale=10)
    close(torch.linalg.matrix_exp(HF.rotation_logarithm(R)), R)


def test_the_logarithm_of_equal_and_mixed_angles():
    """Repeated angles, and angles with one value of a cos + b sin for the first pair (a, b)."""
    block = lambda t: torch.tensor([[math.cos(t), -math.sin(t)], [math.sin(t), math.cos(t)]])  # noqa: E731
    for angles in ([0.5, 0.5, 0.0], [0.4, 1.0], [0.2, 1.2, 0.7]):
        R = torch.block_diag(*[block(t) for t in angles]).double()
        R = HF.orthogonalize(R, "loewdin")
        basis = HF.random_rotation(len(R), dtype=torch.float64)
        W = HF.rotation_logarithm(basis @ R @ basis.mT)
        close(torch.linalg.matrix_exp(W), basis @ R @ basis.mT)
        found = torch.linalg.eigvals(W).imag.sort().values
        close(found, torch.tensor(sorted([*angles, *[-t for t in angles]])).double(), scale=100)


@pytest.mark.parametrize("d", [2, 3, 4])
def test_the_mean_is_that_of_the_definition(d):
    R = rotations(3, d, 1.0)
    weights = [0.5, 0.3, 0.2]
    mean = HF.rotation_mean(R, weights)
    # a general-purpose optimizer finds the minimum of a square to the root of its precision
    torch.testing.assert_close(mean, reference.karcher_mean(list(R), weights), rtol=0, atol=1e-5)
    best = reference.karcher_cost(mean, list(R), weights)
    for near in rotations(5, d, 1e-3):
        assert reference.karcher_cost(near @ mean, list(R), weights) > best


def test_the_mean_of_two_lies_on_the_path_between_them():
    A, B = rotations(2, 6, 1.2)
    path = torch.linalg.matrix_exp(0.25 * reference.rotation_logarithm(A.T @ B))
    close(HF.rotation_mean(torch.stack([A, B]), [3, 1]), A @ path, scale=10)


def test_the_mean_does_not_depend_on_order_coordinates_or_the_scale_of_weights():
    R = rotations(4, 5, 1.0, 2)  # a batch of two blocks
    A, B = rotations(2, 5, 3.0)
    mean = HF.rotation_mean(R)
    close(HF.rotation_mean(R.flip(0)), mean, scale=10)
    close(HF.rotation_mean(A @ R @ B), A @ mean @ B, scale=10)
    close(HF.rotation_mean(R, [7.0] * 4), mean)
    close(HF.rotation_mean(R, [0, 1, 0, 0]), R[1])
    close(mean.mT @ mean, torch.eye(5, dtype=torch.float64).expand(2, 5, 5))


def test_rotations_that_commute_have_the_log_euclidean_mean():
    W = rotations(1, 6, 0.7)[0]
    W = W - W.mT
    R = torch.linalg.matrix_exp(torch.stack([0.3 * W, -0.5 * W, 0.1 * W]))
    weights = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    total = 0.2 * 0.3 - 0.3 * 0.5 + 0.5 * 0.1
    close(HF.rotation_mean(R, weights.tolist()), torch.linalg.matrix_exp(total * W), scale=10)


def test_matrices_of_determinant_minus_one_have_a_mean_too():
    R = rotations(2, 4, 0.8)
    flip = torch.diag(torch.tensor([-1.0, 1, 1, 1], dtype=torch.float64))
    close(HF.rotation_mean(flip @ R), flip @ HF.rotation_mean(R), scale=10)


def test_single_precision_and_bfloat16_are_averaged_in_float64():
    R = rotations(2, 8, 0.5)
    close(HF.rotation_mean(R.float()).float(), HF.rotation_mean(R).float(), scale=3)
    close(HF.rotation_mean(R.bfloat16()).bfloat16(), HF.rotation_mean(R).bfloat16(), scale=3)


def test_the_cayley_transform_is_inverted():
    U = torch.randn(3, 6, 6, dtype=torch.float64).triu(1)
    close(HF.inverse_cayley(HF.orthogonalize(U, "cayley")).triu(1), U, scale=100)


def test_what_has_no_mean_says_so():
    R = rotations(2, 4, 0.8)
    half_turn = torch.diag(torch.tensor([-1.0, -1, 1, 1], dtype=torch.float64))
    eye = torch.eye(4, dtype=torch.float64)
    with pytest.raises(ValueError, match="half a turn"):
        HF.rotation_mean(torch.stack([eye, half_turn]))
    with pytest.raises(ValueError, match="half a turn"):
        HF.inverse_cayley(half_turn)
    with pytest.raises(ValueError, match="determinants of both signs"):
        HF.rotation_mean(torch.stack([eye, torch.diag(torch.tensor([-1.0, 1, 1, 1])).double()]))
    with pytest.raises(ValueError, match=r"orthogonal matrices; max .R\^T R - I. is 3"):
        HF.rotation_mean(2 * R)
    with pytest.raises(ValueError, match="square matrices"):
        HF.rotation_logarithm(torch.randn(3, 4))
    with pytest.raises(ValueError, match="floating type"):
        HF.rotation_logarithm(torch.eye(3, dtype=torch.int64))
    with pytest.raises(ValueError, match="expected 2 weights"):
        HF.rotation_mean(R, [1.0])
    with pytest.raises(ValueError, match="not negative"):
        HF.rotation_mean(R, [1.0, -1.0])
    with pytest.raises(ValueError, match=r"expects \(m, ..., d, d\)"):
        HF.rotation_mean(eye)
