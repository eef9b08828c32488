"""Samples: where they lie, how they are distributed, and that their gradients are unbiased."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from hypersphere import functional as HF
from hypersphere.distributions import PowerSpherical, UniformOnSphere, VonMisesFisher
from hypersphere.distributions.wood import draw_angle

FAMILIES = [VonMisesFisher, PowerSpherical]


def direction(dim, dtype=torch.float64, seed=1):
    return HF.uniform_on_sphere(1, dim, torch.Generator().manual_seed(seed), dtype)[0]


def angle_distribution(family, kappa, dim):
    """Distribution function of the angle by the trapezoidal rule, as a callable."""

    def log_density(theta):
        power = kappa * np.cos(theta)
        if family is PowerSpherical:
            power = 2 * kappa * np.log(np.cos(theta / 2))
        return power + (dim - 2) * np.log(np.sin(theta))

    coarse = np.linspace(0, math.pi, 20_001)[1:-1]
    mass = coarse[log_density(coarse) > log_density(coarse).max() - 60]
    theta = np.linspace(mass[0], mass[-1], 20_001)
    density = np.exp(log_density(theta) - log_density(theta).max())
    total = integrate.cumulative_trapezoid(density, theta, initial=0)
    return lambda x: np.interp(x, theta, total / total[-1])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("dim", "kappa"),
    [(2, 0.0), (2, 0.5), (2, 1e4), (3, 0.0), (3, 7.0), (10, 100.0), (500, 30.0), (10_000, 1e4)],
)
def test_angles_follow_the_distribution(family, dim, kappa):
    angles = family(direction(dim), kappa)._draw_angle(torch.full((20_000,), kappa).double())
    function = angle_distribution(family, kappa, dim)
    assert stats.kstest(angles.numpy(), function).pvalue > 1e-3


def test_fixed_number_of_proposals_has_the_same_distribution():
    kappa = torch.full((20_000,), 12.0, dtype=torch.float64)
    angles = draw_angle(kappa, 4, synchronize=False)
    assert stats.kstest(angles.numpy(), angle_distribution(VonMisesFisher, 12.0, 4)).pvalue > 1e-3


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kappa", [0.0, 1.0, 1e6])
@pytest.mark.parametrize("dim", [2, 3, 100, 10_000])
def test_samples_are_unit_vectors_with_the_right_mean(family, dtype, kappa, dim):
    mu = direction(dim, dtype)
    distribution = family(mu, kappa)
    x = distribution.sample((400,))
    assert x.shape == (400, dim) and x.dtype == dtype and not x.requires_grad
    assert (x.norm(dim=-1) - 1).abs().max() < 32 * torch.finfo(dtype).eps
    _, along, across = (float(v) for v in distribution._cosine_moments())
    mean = float(distribution.mean @ mu)
    error = 5 * math.sqrt(along / 400) + 20 * torch.finfo(dtype).eps
    assert abs(float((x @ mu).mean()) - mean) < error
    sideways = x.mean(0) - (x.mean(0) @ mu) * mu
    assert (
        abs(float(sideways.norm()) / math.sqrt(across * (dim - 1) / 400) - 1) < 6 / (dim - 1) ** 0.5
    )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_covariance_around_every_axis(family, axis):
    """Also at e_1 and -e_1, where a reflection that takes e_1 to mu has no normal."""
    for sign in (1.0, -1.0):
        mu = torch.zeros(3, dtype=torch.float64)
        mu[axis] = sign
        distribution = family(mu, 3.0)
        x = distribution.sample((200_000,))
        torch.testing.assert_close(x.mean(0), distribution.mean, rtol=0, atol=6e-3)
        covariance = distribution.covariance_matrix
        torch.testing.assert_close(x.T.cov(), covariance, rtol=0, atol=6e-3)
        torch.testing.assert_close(covariance.diagonal(), distribution.variance)
        torch.testing.assert_close(distribution.stddev.square(), distribution.variance)


def test_uniform_samples():
    for dim in (2, 3, 50):
        x = UniformOnSphere(dim, dtype=torch.float64).sample((100_000,))
        torch.testing.assert_close(x.norm(dim=-1), torch.ones(100_000).double())
        torch.testing.assert_close(x.T.cov(), torch.eye(dim).double() / dim, rtol=0, atol=6e-3)
        assert x.mean(0).abs().max() < 1.5e-2


# --- gradients ---------------------------------------------------------------------------------


def second_moment(distribution, matrix):
    """E[x^T M x] in closed form, differentiable in both parameters."""
    mean = distribution.mean
    outer = mean.unsqueeze(-1) * mean.unsqueeze(-2)
    return (matrix * (distribution.covariance_matrix + outer)).sum()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("dim", "kappa"),
    [(2, 0.0), (2, 3.0), (3, 0.3), (3, 20.0), (5, 1e4), (30, 10.0), (300, 1e3)],
)
def test_gradients_are_unbiased(family, dim, kappa):
    """Mean of the gradient over samples, against the derivative of E[a.x + x^T M x], in 5 sigma."""
    n = 40_000 if dim < 100 else 4_000
    generator = torch.Generator().manual_seed(dim)
    a = torch.randn(dim, generator=generator, dtype=torch.float64)
    matrix = torch.randn(dim, dim, generator=generator, dtype=torch.float64) / dim**0.5
    mu = direction(dim).requires_grad_()
    k = torch.tensor(kappa, dtype=torch.float64, requires_grad=True)

    distribution = family(mu, k)
    closed = distribution.mean @ a + second_moment(distribution, matrix)
    want_mu, want_k = torch.autograd.grad(closed, (mu, k))

    # a copy of the parameters per sample, so that the gradient per sample is seen
    each_mu = mu.detach().expand(n, -1).clone().requires_grad_()
    each_k = k.detach().expand(n).clone().requires_grad_()
    x = family(each_mu, each_k).rsample()
    value = x @ a + ((x @ matrix) * x).sum(-1)
    got_mu, got_k = torch.autograd.grad(value.sum(), (each_mu, each_k))

    for got, want in ((got_mu, want_mu), (got_k, want_k)):
        error = got.std(0) / n**0.5
        scale = want.abs().max()
        assert ((got.mean(0) - want).abs() <= 5 * error + 1e-9 * scale).all()


def biased_slope(kappa, dim):
    """d cos(theta) / d kappa through the accepted proposal alone, as if acceptance were fixed."""
    kappa = kappa.requires_grad_()
    b = (dim - 1) / (2 * kappa + torch.hypot(2 * kappa, torch.full_like(kappa, dim - 1)))
    theta = draw_angle(kappa.detach(), dim)
    moved = (theta / 2).tan().square() / b.detach() * b  # tan^2(theta/2) = b G / H
    cosine = (1 - moved) / (1 + moved)
    return torch.autograd.grad(cosine.sum(), kappa)[0]


@pytest.mark.parametrize(("dim", "kappa"), [(2, 2.0), (5, 5.0), (20, 30.0)])
def test_the_gradient_through_a_rejection_sampler_alone_is_biased_and_ours_is_not(dim, kappa):
    n = 100_000
    want = float(HF.vmf_mean_length_slope(torch.tensor(kappa).double(), dim))  # d E[cos] / d kappa
    naive = biased_slope(torch.full((n,), kappa, dtype=torch.float64), dim)
    assert abs(float(naive.mean()) - want) > 20 * float(naive.std()) / n**0.5

    each = torch.full((n,), kappa, dtype=torch.float64, requires_grad=True)
    mu = direction(dim)
    x = VonMisesFisher(mu.expand(n, -1), each).rsample()
    (ours,) = torch.autograd.grad((x @ mu).sum(), each)
    assert abs(float(ours.mean()) - want) < 4 * float(ours.std()) / n**0.5


@pytest.mark.parametrize("family", FAMILIES)
def test_direction_gradients_are_rotations(family):
    """dx = (dmu mu^T - mu dmu^T) x: tangent to the sphere at x, and bounded at every mu."""
    for mu in (torch.tensor([1.0, 0.0, 0.0]), torch.tensor([-1.0, 0.0, 0.0]), torch.randn(3)):
        mu = HF.normalize(mu.double()).requires_grad_()
        state = torch.random.get_rng_state()
        x = family(mu, 2.0).rsample().detach()

        def draw(m, state=state):
            torch.random.set_rng_state(state)
            return family(m, 2.0, validate_args=False).rsample()

        jacobian = torch.autograd.functional.jacobian(draw, mu)
        m = mu.detach()
        tangent = torch.eye(3).double() - m.outer(m)
        rotation = (torch.eye(3).double() * (m @ x) - m.outer(x)) @ tangent
        torch.testing.assert_close(jacobian, rotation, rtol=0, atol=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kappa", [0.0, 1e-3, 10.0, 1e6])
def test_gradients_are_finite_in_float32(family, kappa):
    for dim in (2, 3, 1000):
        mu = direction(dim, torch.float32).requires_grad_()
        k = torch.tensor(kappa, requires_grad=True)
        x = family(mu, k).rsample((50,))
        (x * torch.randn(dim)).sum().backward()
        assert mu.grad.isfinite().all() and k.grad.isfinite()
        assert mu.grad.dtype == k.grad.dtype == torch.float32


def test_second_derivatives_in_the_concentration_are_refused():
    k = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    x = VonMisesFisher(direction(3), k).rsample()
    (slope,) = torch.autograd.grad(x.sum() + k**3, k, create_graph=True)
    with pytest.raises(RuntimeError, match="samples have no second derivatives"):
        torch.autograd.grad(slope, k)  # which must not be that of k^3 alone


@pytest.mark.parametrize("family", FAMILIES)
def test_sampling_never_waits_for_the_device(family):
    """Meta tensors have no values: whatever asked for one would raise."""
    mu = torch.empty(4, 7, device="meta", requires_grad=True)
    k = torch.empty(4, device="meta", requires_grad=True)
    distribution = family(mu, k, validate_args=False)
    x = distribution.rsample((3,))
    assert x.shape == (3, 4, 7) and x.device.type == "meta"
    (distribution.log_prob(x).sum() + distribution.entropy().sum()).backward()
    assert mu.grad.shape == mu.shape and k.grad.shape == k.shape


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_parameters(family, dtype):
    mu = direction(16).to(dtype)
    distribution = family(mu, torch.tensor(20.0, dtype=dtype))
    x = distribution.sample((10,))
    assert x.dtype == dtype and (x.float().norm(dim=-1) - 1).abs().max() < 1e-2
    assert distribution.log_prob(x).isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_traces_into_one_graph(family):
    def loss(mu, kappa):
        distribution = family(HF.normalize(mu), kappa, validate_args=False)
        x = distribution.rsample((3,))
        return (x.sum(-1) + distribution.log_prob(x)).sum() + distribution.entropy().sum()

    mu = torch.randn(4, 5, requires_grad=True)
    kappa = torch.rand(4, requires_grad=True)
    torch.compile(loss, backend="eager", fullgraph=True)(mu, kappa).backward()
    assert mu.grad.isfinite().all() and kappa.grad.isfinite().all()


def test_same_seed_same_samples():
    mu = direction(5)
    draws = []
    for _ in range(2):
        torch.manual_seed(3)
        draws.append(VonMisesFisher(mu, 4.0).sample((6,)))
    assert torch.equal(*draws)
