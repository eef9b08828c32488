import pytest
import torch

from hypersphere import functional as HF
from tolerances import close

from reference import energy as reference


@pytest.mark.parametrize("kind", ["gaussian", "hadamard", "count"])
@pytest.mark.parametrize("in_dim", [40, 64])
def test_sketches_preserve_inner_products_on_average(kind, in_dim):
    generator = torch.Generator().manual_seed(0)
    p = HF.sketch(kind, in_dim, 16, 400, generator)
    assert p.shape == (400, 16, in_dim)
    u, v = torch.randn(2, in_dim)
    scale = 1.0 if kind == "count" else 16.0  # E[P^T P] = scale I
    products = ((p @ u) * (p @ v)).sum(-1) / scale
    error = float(products.std()) / 400**0.5
    assert float(products.mean()) == pytest.approx(float(u @ v), abs=4 * error)


def test_hadamard_rows_are_signed_and_orthogonal():
    p = HF.hadamard_projection(32, 12, 2)
    assert set(p.unique().tolist()) == {-1.0, 1.0}
    torch.testing.assert_close(p @ p.mT, 32 * torch.eye(12).expand(2, 12, 12))


def test_project_is_every_set_under_every_projection():
    w, p = torch.randn(2, 5, 7), torch.randn(3, 4, 7)
    images = HF.project(w, p)
    assert images.shape == (6, 5, 4)
    for b in range(2):
        for c in range(3):
            torch.testing.assert_close(images[3 * b + c], w[b] @ p[c].T)


@pytest.mark.parametrize("measure", ["angle", "cosine"])
def test_angle_preserving_loss_is_equation_6_6(measure):
    w = torch.randn(6, 9, dtype=torch.float64, requires_grad=True)
    p = torch.randn(4, 9, dtype=torch.float64, requires_grad=True)
    value = HF.angle_preserving_loss(w, p, measure)
    torch.testing.assert_close(value, reference.angle_distortion(w, p, measure))
    function = lambda a, b: HF.angle_preserving_loss(a, b, measure)  # noqa: E731
    assert torch.autograd.gradcheck(function, (w, p))
    assert torch.autograd.gradgradcheck(function, (w, p))


@pytest.mark.parametrize("measure", ["angle", "cosine"])
@pytest.mark.parametrize("sets, count", [(1, 1), (2, 3)])
def test_the_gradient_in_p_and_its_derivatives(measure, sets, count):
    w = torch.randn(sets, 5, 6, dtype=torch.float64, requires_grad=True)
    p = torch.randn(count, 3, 6, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(HF.angle_preserving_loss(w, p, measure), p)

    def gradient(w, p):  # p minus the step, over lr |p|^2
        step = HF.angle_preserving_step(w, p, 0.3, measure, differentiable=True)
        return (p - step) / (0.3 * p.square().sum((-2, -1), keepdim=True))

    torch.testing.assert_close(gradient(w, p), expected)
    assert torch.autograd.gradcheck(gradient, (w, p))
    assert torch.autograd.gradgradcheck(gradient, (w, p))


@pytest.mark.parametrize("steps, measure", [(1, "cosine"), (2, "cosine"), (2, "angle")])
def test_unrolled_step_differentiates_through_the_gradient(steps, measure):
    p0 = torch.randn(1, 3, 6, dtype=torch.float64)

    def unrolled(w):
        p = p0
        for _ in range(steps):
            p = HF.angle_preserving_step(w, p, 0.3, measure, differentiable=True)
        return HF.set_energies(HF.project(w[None], p)).sum()

    w = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(unrolled, w)
    held = HF.angle_preserving_step(w, p0, 0.3, measure)
    assert not held.requires_grad
    first_order = torch.autograd.grad(HF.set_energies(HF.project(w[None], held)).sum(), w)[0]
    assert not torch.allclose(first_order, torch.autograd.grad(unrolled(w), w)[0])


def test_the_step_lowers_the_loss_whatever_the_scale_of_p():
    w, p = torch.randn(30, 50), HF.gaussian_projection(50, 10)[0]
    before = HF.angle_preserving_loss(w, p)
    reached = [
        HF.angle_preserving_loss(w, HF.angle_preserving_step(w, scale * p))
        for scale in (0.1, 1, 10)
    ]
    assert all(float(value) < 0.8 * float(before) for value in reached)
    torch.testing.assert_close(reached[0], reached[2], rtol=1e-3, atol=0)


def test_solver_beats_random_projection_by_far():
    w = torch.randn(24, 60)
    p = HF.angle_preserving_projection(w, 12, steps=60)
    random = [
        float(HF.angle_preserving_loss(w, HF.gaussian_projection(60, 12)[0])) for _ in range(5)
    ]
    assert float(HF.angle_preserving_loss(w, p)) < 0.3 * min(random)


def test_coinciding_neurons_do_not_break_the_loss():
    w = torch.randn(5, 8)
    w[1], w[2], w[3] = w[0], -w[0], 0
    w.requires_grad_()
    p = HF.angle_preserving_step(w, torch.randn(1, 3, 8), differentiable=True)
    HF.set_energies(HF.project(w[None], p)).sum().backward()
    assert w.grad.isfinite().all()


def test_adversarial_step_raises_the_energy():
    w = torch.randn(1, 20, 40)
    p = HF.gaussian_projection(40, 5).requires_grad_()
    energy = HF.set_energies(HF.project(w, p)).sum()
    (g,) = torch.autograd.grad(energy, p)
    new = HF.adversarial_step(g, p.detach(), 0.01)
    assert float(HF.set_energies(HF.project(w, new)).sum()) > energy.item()
    assert float((new - p).detach().norm() / p.detach().norm()) == pytest.approx(0.01, rel=1e-3)


def test_bilateral_form_restores_a_matrix_of_its_rank():
    w = torch.randn(12, 3, dtype=torch.float64) @ torch.randn(3, 10, dtype=torch.float64)
    p1, p2 = torch.randn(3, 12, dtype=torch.float64), torch.randn(10, 3, dtype=torch.float64)
    torch.testing.assert_close(HF.bilateral_low_rank(p1 @ w, w @ p2, p1), w)
    y1, y2 = (p1 @ w).float(), (w @ p2).float()
    expected = HF.bilateral_low_rank(y1, y2, p1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(HF.bilateral_low_rank(y1, y2, p1), expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: HF.sketch("fourier", 8, 2), "gaussian"),
        (lambda: HF.sketch("gaussian", 8, 0), "dim"),
        (lambda: HF.hadamard_projection(5, 9), "at most 8 rows"),
        (lambda: HF.project(torch.ones(2, 3), torch.ones(1, 2, 3)), r"\(B, N, d\)"),
        (lambda: HF.angle_preserving_loss(torch.eye(3), torch.eye(3), "sine"), "'cosine'"),
        (lambda: HF.angle_preserving_loss(torch.ones(1, 3), torch.eye(3)), "two neurons"),
        (lambda: HF.bilateral_low_rank(torch.eye(2), torch.eye(3), torch.ones(2, 3)), "square"),
    ],
)
def test_wrong_arguments_are_told(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("lengths", [1e-25, 1e25, "one short", "one long"])
@pytest.mark.parametrize("measure", ["angle", "cosine"])
def test_angles_do_not_see_lengths(lengths, measure):
    w, p = torch.randn(6, 9), torch.randn(4, 9)
    long = w.clone()
    if isinstance(lengths, float):
        long *= lengths
    else:
        long[1] *= {"one short": 1e-30, "one long": 1e30}[lengths]
    close(
        HF.angle_preserving_loss(long, p, measure), HF.angle_preserving_loss(w, p, measure), scale=3
    )
    close(
        HF.angle_preserving_step(long, p, measure=measure),
        HF.angle_preserving_step(w, p, measure=measure),
        scale=30,
    )
