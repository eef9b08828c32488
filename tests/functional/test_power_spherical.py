"""Normalizer and entropy of the power spherical distribution against mpmath."""

import pytest
import torch

from hypersphere import functional as HF

from reference import von_mises_fisher as reference

KAPPAS = [0.0, *(10.0**k for k in range(-8, 7)), 19.5, 20.5]


@pytest.mark.parametrize("dim", [2, 3, 4, 10, 39, 40, 41, 42, 200, 10_000])
def test_values_against_mpmath(dim):
    kappa = torch.tensor(KAPPAS, dtype=torch.float64)
    log_n = HF.power_spherical_log_normalizer(kappa, dim)
    entropy = HF.sphere_log_area(dim) - HF.power_spherical_kl_uniform(kappa, dim)
    for i, k in enumerate(KAPPAS):
        want = float(reference.power_log_normalizer(k, dim))
        assert abs(float(log_n[i]) - want) <= 1e-15 * max(10, abs(want))
        want = float(reference.power_entropy(k, dim))
        assert abs(float(entropy[i]) - want) <= 1e-14 * max(10, abs(want))


def test_divergence_keeps_its_digits_at_small_concentration():
    kappa = torch.tensor(1e-4, dtype=torch.float64)
    for dim in (2, 30, 10_000):
        want = reference.log_area(dim) - reference.power_entropy(1e-4, dim)
        got = HF.power_spherical_kl_uniform(kappa, dim)
        assert abs(float(got) / float(want) - 1) < 1e-7
        assert HF.power_spherical_kl_uniform(kappa * 0, dim) == 0


@pytest.mark.parametrize(
    "function",
    [
        HF.power_spherical_log_normalizer,
        HF.power_spherical_log_slope,
        HF.power_spherical_kl_uniform,
    ],
)
@pytest.mark.parametrize("dim", [2, 3, 41, 500])
def test_gradients_twice(function, dim):
    kappa = torch.tensor([0.0, 0.2, 5.0, 90.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda k: function(k, dim), kappa)
    assert torch.autograd.gradgradcheck(lambda k: function(k, dim), kappa)
    low = function(kappa.detach().float(), dim)
    assert low.dtype == torch.float32
    torch.testing.assert_close(low, function(kappa.detach(), dim).float())


def test_the_slope_is_the_derivative_of_the_normalizer():
    kappa = torch.tensor([0.0, 3.0, 1e4], dtype=torch.float64, requires_grad=True)
    for dim in (2, 77):
        value = HF.power_spherical_log_normalizer(kappa, dim).sum()
        (slope,) = torch.autograd.grad(value, kappa)
        want = torch.log(torch.tensor(2.0).double()) - HF.power_spherical_log_slope(kappa, dim)
        torch.testing.assert_close(slope, want.detach(), rtol=1e-12, atol=1e-14)


def test_wrong_arguments_are_named():
    with pytest.raises(TypeError, match="expected kappa as a floating-point tensor"):
        HF.power_spherical_log_normalizer(2, 3)
    with pytest.raises(ValueError, match="an integer >= 2; got 1"):
        HF.power_spherical_kl_uniform(torch.ones(2), 1)
