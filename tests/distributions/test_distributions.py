"""Densities, entropies, divergences, fits and the manners of torch.distributions."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from scipy import stats
from torch import distributions as td

import hypersphere as hs
from hypersphere import functional as HF
from hypersphere.distributions import PowerSpherical, UniformOnSphere, VonMisesFisher

FAMILIES = [VonMisesFisher, PowerSpherical]


def directions(n, dim, seed=0, dtype=torch.float64):
    return HF.uniform_on_sphere(n, dim, torch.Generator().manual_seed(seed), dtype)


def circle(n=4096):
    angle = torch.arange(n, dtype=torch.float64) * (2 * math.pi / n)
    return torch.stack([angle.cos(), angle.sin()], -1), torch.full_like(angle, 2 * math.pi / n)


def sphere(n=200):
    """Points and weights of a product rule on the ordinary sphere."""
    nodes, weights = map(torch.from_numpy, np.polynomial.legendre.leggauss(n))
    ring, _ = circle(2 * n)
    radius = (1 - nodes.square()).sqrt()
    flat = radius[:, None, None] * ring
    points = torch.cat([flat, nodes[:, None, None].expand(-1, 2 * n, 1)], -1).reshape(-1, 3)
    return points, (weights[:, None] * math.pi / n).expand(-1, 2 * n).reshape(-1)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kappa", [0.0, 0.3, 5.0, 100.0])
@pytest.mark.parametrize("rule", [circle, sphere])
def test_density_entropy_and_moments_by_quadrature(family, kappa, rule):
    points, weights = rule()
    mu = directions(1, points.shape[-1])[0]
    distribution = family(mu, kappa)
    log_density = distribution.log_prob(points)
    mass = weights * log_density.exp()
    # a fractional power of the distance to -mu limits the rule, not the density
    tolerance = 1e-5 if family is PowerSpherical and kappa == 0.3 else 1e-9
    assert float(mass.sum()) == pytest.approx(1, abs=tolerance)
    entropy = -(mass * log_density).sum()
    torch.testing.assert_close(distribution.entropy(), entropy, rtol=0, atol=tolerance)
    torch.testing.assert_close(distribution.mean, mass @ points, rtol=0, atol=tolerance)
    centered = points - distribution.mean
    covariance = (mass[:, None] * centered).T @ centered
    torch.testing.assert_close(distribution.covariance_matrix, covariance, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("dim", "kappa"), [(3, 0.5), (4, 30.0), (12, 2.0)])
def test_against_scipy(dim, kappa):
    mu = directions(1, dim)[0]
    x = directions(9, dim, seed=2)
    ours, theirs = VonMisesFisher(mu, kappa), stats.vonmises_fisher(mu.numpy(), kappa)
    want = torch.from_numpy(theirs.logpdf(x.numpy()))
    torch.testing.assert_close(ours.log_prob(x), want, rtol=1e-10, atol=1e-10)
    assert float(ours.entropy()) == pytest.approx(theirs.entropy(), rel=1e-10)


def test_on_the_circle_it_is_the_von_mises_distribution():
    angle = torch.linspace(-3, 3, 20, dtype=torch.float64)
    points = torch.stack([angle.cos(), angle.sin()], -1)
    location = torch.tensor(0.4, dtype=torch.float64)
    mu = torch.stack([location.cos(), location.sin()])
    for kappa in torch.tensor([0.1, 8.0], dtype=torch.float64):
        want = td.VonMises(location, kappa).log_prob(angle)  # whose Bessel function has 7 digits
        got = VonMisesFisher(mu, kappa).log_prob(points)
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_without_concentration_both_are_uniform(family):
    x = directions(5, 8)
    distribution, uniform = family(x[0], 0.0), UniformOnSphere(8, dtype=torch.float64)
    torch.testing.assert_close(distribution.log_prob(x), uniform.log_prob(x), rtol=1e-14, atol=0)
    torch.testing.assert_close(distribution.entropy(), uniform.entropy(), rtol=1e-14, atol=0)
    torch.testing.assert_close(distribution.mean, uniform.mean)
    torch.testing.assert_close(distribution.variance, uniform.variance, rtol=1e-13, atol=0)
    assert distribution.log_prob(-x[0]).isfinite()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("dim", "kappa"), [(2, 1e6), (100, 1e6), (10_000, 1e4), (10_000, 1e6)])
def test_float32_keeps_its_digits_at_large_concentration(family, dim, kappa):
    """kappa (mu.x - 1) by a dot product in float32 would be off by 0.1."""
    mu = directions(1, dim, dtype=torch.float32)[0]
    x = family(mu, kappa).sample((50,))
    single = family(mu, kappa).log_prob(x).double()
    wide = family(mu.double(), kappa).log_prob(HF.normalize(x.double()))
    # the offset alone is of this size, and is rounded to float32
    rounding = 1e-7 * float(wide.abs().max())
    assert (single - wide).abs().max() < 4 * rounding + 2e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_log_prob_gradients(family):
    mu, x = directions(3, 4).requires_grad_(), directions(3, 4, seed=5)
    kappa = torch.tensor([0.0, 2.0, 60.0], dtype=torch.float64, requires_grad=True)

    def log_prob(m, k):
        return family(m, k, validate_args=False).log_prob(x)

    assert torch.autograd.gradcheck(log_prob, (mu, kappa))
    assert torch.autograd.gradgradcheck(log_prob, (mu, kappa))

    def summary(m, k):
        d = family(m, k, validate_args=False)
        return d.entropy(), d.mean, d.variance

    assert torch.autograd.gradcheck(summary, (mu, kappa + 0.1))
    # mu is normalized inside, so its gradient has no radial part
    (slope,) = torch.autograd.grad(log_prob(mu, kappa).sum(), mu)
    assert (slope * mu).sum(-1).abs().max() < 1e-12


def test_the_score_has_mean_zero_at_the_fit():
    x = VonMisesFisher(directions(1, 6)[0], 9.0).sample((500,))
    fitted = VonMisesFisher.fit(x)
    kappa = fitted.concentration.clone().requires_grad_()
    mu = fitted.mean_direction.clone().requires_grad_()
    VonMisesFisher(mu, kappa).log_prob(x).mean().backward()
    assert abs(float(kappa.grad)) < 1e-13 and mu.grad.abs().max() < 1e-12


def test_power_spherical_at_the_antipode():
    mu = directions(1, 3)[0].requires_grad_()
    value = PowerSpherical(mu, 2.0).log_prob(-mu.detach())
    value.backward()
    assert -1e5 < float(value.detach()) < -60 and mu.grad.isfinite().all()


# --- divergences -------------------------------------------------------------------------------

PAIRS = [
    (VonMisesFisher, UniformOnSphere),
    (VonMisesFisher, VonMisesFisher),
    (UniformOnSphere, VonMisesFisher),
    (PowerSpherical, UniformOnSphere),
    (PowerSpherical, VonMisesFisher),
    (UniformOnSphere, PowerSpherical),
    (UniformOnSphere, UniformOnSphere),
]


def make(kind, mu, kappa):
    if kind is UniformOnSphere:
        return UniformOnSphere(mu.shape[-1], dtype=mu.dtype)
    return kind(mu, kappa)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("kappas", [(0.0, 0.0), (0.5, 3.0), (40.0, 2.0), (1.0, 50.0)])
def test_divergence_by_quadrature(pair, kappas):
    points, weights = sphere()
    first, second = directions(2, 3)
    p, q = make(pair[0], first, kappas[0]), make(pair[1], second, kappas[1])
    log_p, log_q = p.log_prob(points), q.log_prob(points)
    want = (weights * log_p.exp() * (log_p - log_q)).sum()
    torch.testing.assert_close(td.kl_divergence(p, q), want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("dim", [2, 17, 10_000])
def test_divergence_is_not_negative_and_broadcasts(pair, dim):
    mu = directions(3, dim)
    kappa = torch.tensor([0.0, 3.0, 1e6], dtype=torch.float64)
    p, q = make(pair[0], mu, kappa), make(pair[1], mu.flip(0), kappa.flip(0))
    p, q = p.expand((3,)), q.expand((2, 3))
    divergence = td.kl_divergence(p, q)
    assert divergence.shape == (2, 3)
    assert divergence.isfinite().all() and (divergence >= -1e-9).all()
    same = td.kl_divergence(p, p) if pair[0] is pair[1] else torch.zeros(3)
    assert same.abs().max() == 0


@pytest.mark.parametrize("pair", PAIRS)
def test_divergence_gradients(pair):
    mu = directions(2, 4).requires_grad_()
    kappa = torch.tensor([1.5, 7.0], dtype=torch.float64, requires_grad=True)

    def divergence(m, k):
        td.Distribution.set_default_validate_args(False)
        value = td.kl_divergence(make(pair[0], m[0], k[0]), make(pair[1], m[1], k[1]))
        td.Distribution.set_default_validate_args(True)
        return value

    if pair[0] is not pair[1] or pair[0] is not UniformOnSphere:
        assert torch.autograd.gradcheck(divergence, (mu, kappa))


def test_divergence_of_close_distributions_keeps_its_digits():
    """To second order it is dmu^2 kappa A / 2 + A' dkappa^2 / 2."""
    mu = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    turned = HF.normalize(torch.tensor([1.0, 1e-6, 0.0], dtype=torch.float64))
    kappa = torch.tensor(50.0, dtype=torch.float64)
    got = td.kl_divergence(VonMisesFisher(mu, kappa), VonMisesFisher(turned, kappa))
    want = 0.5e-12 * 50 * float(HF.vmf_mean_length(kappa, 3))
    assert float(got) == pytest.approx(want, rel=1e-9)
    # in float32 as well
    low = td.kl_divergence(
        VonMisesFisher(mu.float(), kappa.float()), VonMisesFisher(turned.float(), kappa.float())
    )
    assert low.dtype == torch.float32 and float(low) == pytest.approx(want, rel=1e-4)


def test_divergence_without_closed_form_is_not_offered():
    mu = directions(1, 3)[0]
    for kind in FAMILIES:
        with pytest.raises(NotImplementedError):
            td.kl_divergence(kind(mu, 1.0), PowerSpherical(mu, 1.0))


def test_divergence_between_different_spheres_is_refused():
    with pytest.raises(ValueError, match="VonMisesFisher in dimension 3 and UniformOnSphere in"):
        td.kl_divergence(VonMisesFisher(directions(1, 3)[0], 1.0), UniformOnSphere(4))


# --- fits --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [2, 3, 50, 2000])
@pytest.mark.parametrize("kappa", [0.5, 20.0, 1e4, 1e6])
def test_fit_solves_its_equation(dim, kappa):
    x = VonMisesFisher(directions(1, dim)[0], kappa).sample((60,))
    fitted = VonMisesFisher.fit(x)
    length = HF.row_norm(x.mean(0))
    assert abs(HF.vmf_mean_length(fitted.concentration, dim) - length) < 1e-14
    torch.testing.assert_close(fitted.mean, x.mean(0), rtol=0, atol=1e-13)
    single = VonMisesFisher.fit(x.float())
    assert single.concentration.dtype == torch.float32
    # float32 coordinates blur angles of size sqrt(d / kappa)
    torch.testing.assert_close(
        single.concentration.double(), fitted.concentration, rtol=1e-3, atol=1e-3
    )
    power = PowerSpherical.fit(x)
    torch.testing.assert_close(power.mean, x.mean(0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
def test_fit_recovers_the_parameters_in_batches(family):
    truth = family(directions(2, 5), torch.tensor([4.0, 60.0]).double())
    x = truth.sample((40_000,)).transpose(0, 1)  # (2, n, 5)
    fitted = family.fit(x)
    assert fitted.batch_shape == (2,)
    torch.testing.assert_close(fitted.concentration, truth.concentration, rtol=3e-2, atol=0)
    torch.testing.assert_close(fitted.mean_direction, truth.mean_direction, rtol=0, atol=2e-2)


@pytest.mark.parametrize("family", FAMILIES)
def test_fit_with_weights_is_fit_of_repeated_rows(family):
    x = directions(4, 3)
    counts = torch.tensor([3, 0, 1, 2])
    weighted = family.fit(2.5 * x, counts / 7.0)
    repeated = family.fit(x.repeat_interleave(counts, 0))
    torch.testing.assert_close(weighted.concentration, repeated.concentration, rtol=1e-6, atol=0)
    torch.testing.assert_close(weighted.mean_direction, repeated.mean_direction)


@pytest.mark.parametrize("family", FAMILIES)
def test_fit_of_balanced_directions_is_uniform(family):
    x = torch.cat([torch.eye(3), -torch.eye(3)])
    fitted = family.fit(x)
    assert float(fitted.concentration) == 0 and fitted.mean_direction.norm() == 1


def test_fit_is_differentiable():
    x = directions(6, 3).requires_grad_()
    weights = torch.rand(6, dtype=torch.float64).add(0.1).requires_grad_()
    for family in FAMILIES:

        def parameters(points, w, family=family):
            fitted = family.fit(points, w)
            return fitted.concentration, fitted.mean_direction

        assert torch.autograd.gradcheck(parameters, (x, weights))


@pytest.mark.parametrize("family", FAMILIES)
def test_fit_refuses_what_has_no_answer(family):
    x = directions(4, 3)
    with pytest.raises(ValueError, match="holds NaN or infinity"):
        VonMisesFisher.fit(torch.full((4, 3), math.nan))
    with pytest.raises(ValueError, match="these coincide"):
        family.fit(x[:1])
    with pytest.raises(ValueError, match="these coincide"):
        family.fit(x[:1].float().repeat(10, 1))
    with pytest.raises(ValueError, match=r"shape \(..., n, d\), n >= 1 and d >= 2; got \(3,\)"):
        family.fit(x[0])
    with pytest.raises(ValueError, match="rows that are zero"):
        family.fit(torch.cat([x, torch.zeros(1, 3).double()]))
    with pytest.raises(ValueError, match=r"a weight per direction, of shape \(4,\); got \(3,\)"):
        family.fit(x, torch.ones(3))
    for bad in (torch.zeros(4), torch.tensor([1.0, -1.0, 1.0, 1.0])):
        with pytest.raises(ValueError, match="weights >= 0 that are not all zero"):
            family.fit(x, bad)


# --- manners -----------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_shapes_broadcast_and_expand(family):
    mu = directions(3, 4)
    distribution = family(mu, torch.ones(2, 1))
    assert distribution.batch_shape == (2, 3) and distribution.event_shape == (4,)
    assert distribution.dim == 4
    assert distribution.rsample((5, 6)).shape == (5, 6, 2, 3, 4)
    assert distribution.log_prob(mu).shape == (2, 3)
    assert distribution.entropy().shape == (2, 3)
    assert distribution.mean.shape == distribution.variance.shape == (2, 3, 4)
    assert distribution.covariance_matrix.shape == (2, 3, 4, 4)
    assert torch.equal(distribution.mode[0], distribution.mean_direction[0])
    wider = distribution.expand((7, 2, 3))
    assert isinstance(wider, family) and wider.sample().shape == (7, 2, 3, 4)
    assert wider.concentration.dtype == torch.float64  # promoted with the directions
    whole = td.Independent(wider, 1)
    assert whole.log_prob(whole.sample()).shape == (7, 2)
    assert family(mu[:0], 1.0).sample((2,)).shape == (2, 0, 4)
    assert family(mu, 1.0).sample((0,)).shape == (0, 3, 4)


def test_uniform_shapes():
    uniform = UniformOnSphere(4).expand((2, 3))
    assert uniform.batch_shape == (2, 3) and uniform.dim == 4
    assert repr(uniform) == "UniformOnSphere(dim: 4, batch_shape: torch.Size([2, 3]))"
    x = uniform.rsample((5,))
    assert x.shape == (5, 2, 3, 4) and uniform.log_prob(x).shape == (5, 2, 3)
    assert uniform.entropy().shape == (2, 3) and uniform.covariance_matrix.shape == (2, 3, 4, 4)
    assert uniform.mean.shape == uniform.variance.shape == uniform.mode.shape == (2, 3, 4)
    assert uniform.mode.isnan().all()
    assert UniformOnSphere(3, dtype=torch.float64).sample().dtype == torch.float64
    assert float(UniformOnSphere(10_000).entropy()) == pytest.approx(-31858.2837, abs=0.01)


@pytest.mark.parametrize("family", FAMILIES)
def test_copies_and_words(family):
    distribution = family(directions(2, 3), 4.0)
    for twin in (copy.deepcopy(distribution), pickle.loads(pickle.dumps(distribution))):
        torch.testing.assert_close(twin.entropy(), distribution.entropy())
    assert repr(distribution).startswith(family.__name__ + "(mean_direction: torch.Size([2, 3])")


@pytest.mark.parametrize("family", FAMILIES)
def test_wrong_parameters_are_named(family):
    mu = directions(2, 3)
    name = family.__name__
    with pytest.raises(TypeError, match=f"{name} expects mean_direction as a floating-point"):
        family([1.0, 0.0], 1.0)
    with pytest.raises(TypeError, match="got torch.int64"):
        family(torch.tensor([1, 0]), 1.0)
    for shape in ((), (3, 1)):
        with pytest.raises(ValueError, match=r"of shape \(..., d\) with d >= 2; got"):
            family(torch.ones(shape), 1.0)
    with pytest.raises(ValueError, match=r"broadcasts with \(2,\), the batch shape.*got \(3,\)"):
        family(mu, torch.ones(3))
    with pytest.raises(ValueError, match="unit vectors along the last dimension .*normalize"):
        family(2 * mu, 1.0)
    for bad in (-1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="finite concentrations >= 0"):
            family(mu, bad)
    family(2 * mu, -1.0, validate_args=False)  # unchecked on request


@pytest.mark.parametrize("kind", [*FAMILIES, UniformOnSphere])
def test_wrong_values_are_named(kind):
    distribution = make(kind, directions(1, 3)[0], 1.0)
    with pytest.raises(ValueError, match="unit vectors along the last dimension"):
        distribution.log_prob(torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64))
    with pytest.raises(ValueError, match="event_shape"):
        distribution.log_prob(torch.tensor([1.0, 0.0]))


@pytest.mark.parametrize("kind", [*FAMILIES, UniformOnSphere])
def test_checks_can_be_asked_for_where_torch_has_turned_them_off(kind):
    """As torch.compile does, for the whole process."""
    td.Distribution.set_default_validate_args(False)
    mu, wrong = directions(1, 3)[0], torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
    arguments = (3, torch.float64) if kind is UniformOnSphere else (mu, 1.0)
    assert kind(*arguments).log_prob(wrong).isfinite()
    with pytest.raises(ValueError, match="unit vectors along the last dimension"):
        kind(*arguments, validate_args=True).log_prob(wrong)


@pytest.mark.parametrize("dim", [1, 0, 2.5, True])
def test_wrong_dimension_of_the_uniform_distribution(dim):
    with pytest.raises(ValueError, match="as an integer >= 2; got"):
        UniformOnSphere(dim)


def test_the_contract():
    """Calls of design.md."""
    mu = directions(1, 3)[0]
    posterior = hs.distributions.VonMisesFisher(mu, 10.0)
    prior = hs.distributions.UniformOnSphere(3)
    x = posterior.rsample()
    assert posterior.log_prob(x).isfinite() and posterior.entropy().isfinite()
    assert td.kl_divergence(posterior, prior) > 0
    assert hs.distributions.PowerSpherical(mu, 10.0).rsample().shape == (3,)


@pytest.mark.parametrize("kind", [VonMisesFisher, PowerSpherical])
def test_each_result_of_a_distribution_has_a_graph_of_its_own(kind):
    mu = torch.nn.functional.normalize(torch.randn(4, 3), dim=-1).requires_grad_()
    kappa = torch.ones(4, requires_grad=True)
    q = kind(mu, kappa)
    for result in (q.rsample(), q.log_prob(q.sample()), q.mean, q.entropy(), q.rsample()):
        result.sum().backward()
    assert mu.grad.isfinite().all() and (mu.grad != 0).any()
