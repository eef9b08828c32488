"""Heads that take a class as a distribution of directions: vMF and CIDER."""

import copy
import math
from pathlib import Path

import pytest
import torch
from scipy.special import ive
from torch.nn import functional as F

from hypersphere import functional as HF
from hypersphere.distributions import VonMisesFisher
from hypersphere.heads import CiderHead, VonMisesFisherHead
from hypersphere.registry import entry
from processes import run_ranks
from tolerances import close


def log_density(x, mean, kappa, d):
    """Straight from the definition, by the Bessel function of scipy."""
    bessel = math.log(ive(d / 2 - 1, kappa)) + kappa
    log_c = (d / 2 - 1) * math.log(kappa) - d / 2 * math.log(2 * math.pi) - bessel
    return log_c + kappa * float(x @ mean)


def test_scores_are_log_densities_of_the_classes():
    torch.manual_seed(0)
    head = VonMisesFisherHead(6, 4).double()
    with torch.no_grad():
        head.raw_concentration.copy_(torch.tensor([0.5, 2.0, 5.0, 20.0]))
    x = torch.randn(5, 6, dtype=torch.float64)
    unit, means = F.normalize(x), F.normalize(head.weight.detach())
    kappa = head.concentration.detach()
    expected = torch.tensor(
        [[log_density(u, m, float(k), 6) for m, k in zip(means, kappa, strict=True)] for u in unit],
        dtype=torch.float64,
    )
    torch.testing.assert_close(head(x).detach(), expected, rtol=1e-6, atol=1e-6)
    y = torch.tensor([0, 1, 2, 3, 0])
    posterior = expected.log_softmax(1).gather(1, y[:, None]).squeeze(1)
    torch.testing.assert_close(
        head.loss(x, y, reduction="none").double(), -posterior, rtol=1e-5, atol=1e-5
    )
    torch.testing.assert_close(head(3.0 * x), head(x))


def test_one_concentration_is_a_softmax_of_scaled_cosines():
    head = VonMisesFisherHead(5, 3, concentration=7.0, per_class=False)
    x, y = torch.randn(4, 5), torch.tensor([0, 1, 2, 0])
    scaled = 7.0 * F.normalize(x) @ F.normalize(head.weight).T
    torch.testing.assert_close(head.loss(x, y), F.cross_entropy(scaled, y))


def test_fit_finds_means_and_concentrations_of_samples():
    torch.manual_seed(0)
    means = HF.simplex_prototypes(3, 8)
    kappa = torch.tensor([10.0, 40.0, 160.0], dtype=torch.float64)
    classes = zip(means, kappa, strict=True)
    x = torch.cat([VonMisesFisher(m, k).sample((4000,)) for m, k in classes])
    y = torch.arange(3).repeat_interleave(4000)
    head = VonMisesFisherHead(8, 3)
    head.fit(x, y)
    torch.testing.assert_close(head.concentration.double().detach(), kappa, rtol=0.05, atol=0)
    assert (F.normalize(head.weight.double()) * means).sum(1).min() > 0.999
    assert (head(x.float()).argmax(1) == y).float().mean() > 0.95
    with pytest.raises(ValueError, match="class 2 has none"):
        head.fit(x[y < 2], y[y < 2])
    again = VonMisesFisherHead(8, 3)
    again.fit(torch.cat([x, -x[:9]]), torch.cat([y, torch.full((9,), -100)]))  # they do not count
    close(again.weight.detach(), head.weight.detach())
    close(again.concentration.detach(), head.concentration.detach())


def test_gradients_reach_means_concentrations_and_features():
    head = VonMisesFisherHead(4, 3)
    x = torch.randn(6, 4, requires_grad=True)
    head.loss(x, torch.tensor([0, 1, 2, 0, 1, -100])).backward()
    assert all(bool(g.isfinite().all()) and float(g.norm()) > 0 for g in
               (x.grad, head.weight.grad, head.raw_concentration.grad))  # fmt: skip
    assert float(x.grad[-1].norm()) == 0


@pytest.mark.parametrize("make", [VonMisesFisherHead, CiderHead])
def test_both_are_registered_and_take_half_precision(make):
    name = "von_mises_fisher" if make is VonMisesFisherHead else "cider"
    assert entry("head", name).target is make
    x = torch.randn(1, 4, dtype=torch.bfloat16)
    head = make(4, 3)
    scores = torch.float32 if make is VonMisesFisherHead else torch.bfloat16
    assert head(x).shape == (1, 3) and head(x).dtype == scores
    assert bool(head.loss(x, torch.tensor([1])).isfinite())
    assert bool(head.loss(torch.zeros(2, 4), torch.tensor([1, 0])).isfinite())
    with pytest.raises(ValueError):
        head.loss(torch.randn(2, 5), torch.tensor([0, 1]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bits_tell_the_classes_apart_at_usual_dimensions(dtype):
    torch.manual_seed(0)
    head = VonMisesFisherHead(512, 100)
    x, y = torch.randn(16, 512).to(dtype), torch.arange(16)
    expected = head(x.float()), head.loss(x.float(), y)
    torch.testing.assert_close((head(x), head.loss(x, y)), expected)
    with torch.autocast("cpu", dtype):
        torch.testing.assert_close((head(x), head.loss(x, y)), expected)
    narrow = head.to(dtype)
    assert narrow(x).dtype == torch.float32 and narrow(x).std(1).min() > 0.1
    assert narrow.double()(x.double()).dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_cider_trains_in_every_precision(dtype):
    torch.manual_seed(0)
    plain = CiderHead(4, 3)
    head = copy.deepcopy(plain).to(dtype)
    x, y = torch.randn(5, 4), torch.tensor([0, 0, 1, 1, -100])
    rough = {"rtol": 0.02, "atol": 0.02}
    for given in (x, x.to(dtype)):
        expected, found = plain.loss(x, y), head.loss(given, y)
        torch.testing.assert_close(found.float(), expected, **rough)
        torch.testing.assert_close(head.weight, plain.weight.to(dtype), **rough)
    assert bool(head.eval().loss(x.to(dtype), y).isfinite())


def test_cider_is_compactness_plus_dispersion_of_moved_prototypes():
    torch.manual_seed(1)
    head = CiderHead(4, 3, temperature=0.5, decay=0.9, compactness=2.0)
    before = head.weight.clone()
    x, y = torch.randn(5, 4), torch.tensor([0, 0, 1, 1, 1])
    unit = F.normalize(x)
    moved = before.clone()
    for c in (0, 1):
        moved[c] = F.normalize(0.9 * before[c] + 0.1 * unit[y == c].mean(0), dim=0)
    compact = sum(
        -float((unit[i] @ moved[y[i]] / 0.5) - torch.logsumexp(unit[i] @ moved.T / 0.5, 0))
        for i in range(5)
    ) / 5  # fmt: skip
    spread = 0.0
    for i in range(3):
        terms = [math.exp(float(moved[i] @ moved[j]) / 0.5) for j in range(3) if j != i]
        spread += math.log(sum(terms) / 2) / 3
    assert float(head.loss(x, y)) == pytest.approx(spread + 2.0 * compact, abs=1e-5)
    torch.testing.assert_close(head.weight, moved)
    head.eval()
    kept = head.weight.clone()
    head.loss(x, y)
    assert torch.equal(head.weight, kept)  # a test moves nothing


@pytest.mark.slow
def test_cider_on_two_processes_is_that_of_the_joined_batch(tmp_path):
    for world in (1, 2):
        run_ranks(Path(__file__).with_name("shard_worker.py"), world, "prototypes", tmp_path)


def test_cider_disperses_the_prototypes():
    torch.manual_seed(0)
    head = CiderHead(3, 4, decay=0.5)
    x = torch.nn.Parameter(torch.randn(64, 3))
    y = torch.arange(64) % 4
    optimizer = torch.optim.SGD([x], lr=2.0)
    for _ in range(200):
        optimizer.zero_grad()
        head.loss(x, y).backward()
        optimizer.step()
    cos = head.weight @ head.weight.T - 2 * torch.eye(4)
    assert float(cos.max()) < -0.25  # towards the tetrahedron, -1/3
    assert head(x).argmax(1).eq(y).all()


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: VonMisesFisherHead(1, 3), "in_features >= 2"),
        (lambda: VonMisesFisherHead(4, 3, concentration=-1.0), "above 0"),
        (lambda: CiderHead(4, 1), "num_classes >= 2"),
        (lambda: CiderHead(4, 3, temperature=0.0), "temperature > 0"),
    ],
)
def test_wrong_settings_are_told(make, message):
    with pytest.raises(ValueError, match=message):
        make()
