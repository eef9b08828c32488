"""How the angle of a sample moves with the concentration, against its definition."""

import math

import pytest
import torch

from hypersphere import functional as HF

from reference import von_mises_fisher as reference

SLOPES = {"vmf": HF.vmf_angle_slope, "power": HF.power_spherical_angle_slope}


@pytest.mark.parametrize("family", SLOPES)
@pytest.mark.parametrize(
    ("dim", "kappa", "theta"),
    [
        (2, 0.0, 0.1),
        (2, 0.0, 3.1),
        (2, 0.3, 1.0),
        (2, 30.0, 0.02),
        (2, 30.0, 0.9),
        (2, 1e6, 1e-3),
        (3, 0.5, 2.9),
        (3, 60.0, 0.3),
        (5, 4.0, 0.4),
        (6, 0.0, 1.3),
        (7, 0.1, 2.0),
        (40, 100.0, 0.5),
        (40, 100.0, 1.0),
        (1000, 10.0, 1.5),
        (1000, 1e4, 0.31),
        (10_000, 0.0, 1.56),
        (10_000, 1e6, 0.099),
    ],
)
def test_against_the_definition(family, dim, kappa, theta):
    got = SLOPES[family](torch.tensor(theta).double(), torch.tensor(kappa).double(), dim)
    # the reference sees the same float64 numbers
    theta, kappa = float(torch.tensor(theta).double()), float(torch.tensor(kappa).double())
    want = float(reference.angle_slope(theta, kappa, dim, family))
    assert float(got) == pytest.approx(want, rel=1e-10)


def test_against_the_inverse_distribution_function_on_the_ordinary_sphere():
    """In R^3, cos(theta) = 1 + log(r + (1 - r) exp(-2 kappa)) / kappa has the rank 1 - r."""
    kappa = torch.tensor([[0.1], [2.0], [40.0], [1000.0]], dtype=torch.float64)
    rank = torch.linspace(0.01, 0.99, 25, dtype=torch.float64)

    def angle(k):
        return torch.acos(1 + torch.log(rank + (1 - rank) * torch.exp(-2 * k)) / k)

    theta = angle(kappa)
    step = 1e-5 * kappa
    slope = (angle(kappa + step) - angle(kappa - step)) / (2 * step)
    torch.testing.assert_close(HF.vmf_angle_slope(theta, kappa, 3), slope, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("family", SLOPES)
@pytest.mark.parametrize("dim", [2, 3, 8, 500])
def test_poles_and_types(family, dim):
    slope = SLOPES[family]
    theta = torch.tensor([0.0, 1e-30, 0.5, 3.0, math.pi], dtype=torch.float64)
    kappa = torch.tensor([[0.0], [1.0], [30.0]], dtype=torch.float64)
    value = slope(theta, kappa, dim)
    assert value.shape == (3, 5) and value.isfinite().all() and (value <= 0).all()
    single = slope(theta.float(), kappa.float(), dim)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single, value.float(), rtol=1e-4, atol=1e-6)
    assert slope(torch.empty(0), torch.tensor(1.0), dim).shape == (0,)


def test_wrong_arguments_are_named():
    with pytest.raises(TypeError, match="expected theta as a floating-point tensor"):
        HF.vmf_angle_slope(1.0, torch.tensor(1.0), 3)
    with pytest.raises(ValueError, match="an integer >= 2"):
        HF.power_spherical_angle_slope(torch.tensor(1.0), torch.tensor(1.0), 0)
