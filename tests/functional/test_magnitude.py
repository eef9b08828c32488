"""Magnitudes against Eq. 4.4-4.10, with their slopes."""

import pytest
import torch

from hypersphere import functional as HF

from kinds import MAGNITUDE_KINDS
from reference import decoupled as reference

NORMS = torch.tensor([1e-6, 0.3, 0.9, 1.7, 4.0], dtype=torch.float64)
BETAS = {"segmented": 0.4, "mixed": 0.7}


@pytest.mark.parametrize("kind", MAGNITUDE_KINDS)
@pytest.mark.parametrize("rho", [0.5, 1.3])
def test_equation_ratio_and_slope(kind, rho):
    beta = BETAS.get(kind)
    want = [reference.magnitude(n, kind, 1.2, beta, rho) for n in NORMS.tolist()]
    n = NORMS.clone().requires_grad_()
    h = HF.magnitude(n, kind, 1.2, beta, rho)
    torch.testing.assert_close(h, torch.tensor(want, dtype=torch.float64))
    ratio = HF.magnitude_ratio(NORMS, kind, 1.2, beta, rho)
    torch.testing.assert_close(ratio, h.detach() / NORMS)
    (slope,) = torch.autograd.grad(h.sum(), n)
    torch.testing.assert_close(HF.magnitude_slope(NORMS, kind, 1.2, beta, rho), slope)


@pytest.mark.parametrize("kind", MAGNITUDE_KINDS)
def test_gradients_in_norm_and_radius(kind):
    n = NORMS.clone().requires_grad_()
    radius = torch.tensor([0.5, 1.0, 2.0, 1.0, 3.0], dtype=torch.float64, requires_grad=True)
    for function in (HF.magnitude, HF.magnitude_ratio):
        assert torch.autograd.gradcheck(
            lambda n, r, f=function: f(n, kind, radius=r), (n[1:], radius[1:])
        )


@pytest.mark.parametrize("kind", MAGNITUDE_KINDS)
def test_zero_norm(kind):
    zero = torch.zeros(1, requires_grad=True)
    ratio = HF.magnitude_ratio(zero, kind, radius=2.0)
    h = HF.magnitude(zero, kind, radius=2.0)
    assert h.item() == 0
    slope = {"sphere": 0, "ball": 0.5, "tanh": 0.5, "mixed": 2}.get(kind, 1)
    assert ratio.item() == pytest.approx(slope)
    (h + ratio).sum().backward() if h.requires_grad else None
    assert zero.grad is None or zero.grad.isfinite().all()


def test_special_cases_of_segmented():
    torch.testing.assert_close(
        HF.magnitude(NORMS, "segmented", 2.0, 2.0, 1.3), HF.magnitude(NORMS, "linear", 2.0)
    )
    torch.testing.assert_close(
        HF.magnitude(NORMS, "segmented", 1.5 / 1.3, 0.0, 1.3),
        HF.magnitude(NORMS, "ball", 1.5, radius=1.3),
    )


def test_messages():
    with pytest.raises(ValueError, match=r"'spher'.*sphere, ball"):
        HF.magnitude(NORMS, "spher")
    with pytest.raises(ValueError, match="alpha > 0"):
        HF.magnitude(NORMS, "sphere", alpha=-1.0)
    with pytest.raises(ValueError, match="no beta"):
        HF.magnitude(NORMS, "ball", beta=1.0)
    with pytest.raises(ValueError, match="radius > 0"):
        HF.magnitude(NORMS, "ball", radius=0.0)
