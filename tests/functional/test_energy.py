import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hypersphere import functional as HF
from hypersphere.functional._kernels.energy import pair_energy as module
from tolerances import close

from edges import EDGE_IDS, EDGES, LOW_PRECISION
from reference import energy as reference

OPTIONS = [
    (s, half, distance, weighted, reduction)
    for s in (0.0, 1.0, 2.0, 3.5)
    for half in (False, True)
    for distance, weighted in (("euclidean", False), ("euclidean", True), ("geodesic", False))
    for reduction in ("sum", "mean")
]


def call(s, half, distance, weighted, reduction, n=6):
    beta = torch.linspace(0.5, 3, n, dtype=torch.float64) if weighted else None
    return lambda w: HF.hyperspherical_energy(w, s, half, distance, beta, reduction), beta


@pytest.mark.parametrize("shape", [(6, 2, 2), (6, 2, 4)], ids=["short", "long"])
@pytest.mark.parametrize("options", OPTIONS)
def test_value_and_gradient_are_those_of_the_double_loop(options, shape, monkeypatch):
    s, half, distance, _, reduction = options
    function, beta = call(*options)
    w = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    expected = reference.energy(w, s, half, distance, beta, reduction)
    (slope,) = torch.autograd.grad(expected, w)
    for entries in (module.BLOCK_ENTRIES, 13):  # whole, and in blocks of two rows
        monkeypatch.setattr(module, "BLOCK_ENTRIES", entries)
        value = function(w)
        torch.testing.assert_close(value, expected, rtol=1e-12, atol=0)
        torch.testing.assert_close(torch.autograd.grad(value, w)[0], slope, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(
        function(w.detach().float()).double(), expected.detach(), rtol=1e-4, atol=0
    )


@pytest.mark.parametrize("options", OPTIONS[::2])
def test_gradients_of_first_and_second_order(options):
    function, _ = call(*options, n=4)
    for dim in (3, 5):  # fewer and more entries than neurons: two ways to the gradient
        w = torch.randn(4, dim, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(function, w)
        assert torch.autograd.gradgradcheck(function, w)


@pytest.mark.parametrize("s", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("distance", ["euclidean", "geodesic"])
def test_half_space_is_full_space_on_both_signs(s, distance):
    w = torch.randn(7, 5, dtype=torch.float64)
    w[3] = 0
    both = HF.hyperspherical_energy(torch.cat([w, -w]), s, False, distance)
    torch.testing.assert_close(
        HF.hyperspherical_energy(w, s, True, distance), both, rtol=1e-7, atol=0
    )


@given(st.integers(0, 10_000), st.sampled_from([0.0, 1.0, 2.0]), st.booleans())
def test_rotation_and_positive_scaling_change_nothing(seed, s, half):
    generator = torch.Generator().manual_seed(seed)
    w = torch.randn(8, 4, dtype=torch.float64, generator=generator)
    rotation = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64, generator=generator)).Q
    lengths = torch.rand(8, 1, dtype=torch.float64, generator=generator) * 1e6 + 1e-6
    before = HF.hyperspherical_energy(w, s, half)
    torch.testing.assert_close(HF.hyperspherical_energy(lengths * w @ rotation, s, half), before)


@pytest.mark.parametrize("s", [0.0, 1.0, 2.0, 5.0])
def test_energies_of_regular_bodies_in_closed_form(s):
    def kernel(d: float) -> float:
        return d**-s if s else -math.log(d)

    def total(points):
        return float(HF.hyperspherical_energy(points.double(), s, reduction="sum"))

    d = 4
    simplex = torch.eye(d + 1) - 1 / (d + 1)  # d + 1 points at cosine -1/d
    assert total(simplex) == pytest.approx(d * (d + 1) * kernel(math.sqrt(2 + 2 / d)))
    cross = torch.cat([torch.eye(d), -torch.eye(d)])
    assert total(cross) == pytest.approx(
        2 * d * (2 * d - 2) * kernel(math.sqrt(2)) + 2 * d * kernel(2)
    )
    golden = (1 + math.sqrt(5)) / 2
    half = torch.tensor([[0, 1, golden], [0, 1, -golden]], dtype=torch.float64)
    icosahedron = torch.cat([half.roll(k, 1) for k in range(3)])
    icosahedron = torch.cat([icosahedron, -icosahedron])
    near, far = math.sqrt(2 - 2 / math.sqrt(5)), math.sqrt(2 + 2 / math.sqrt(5))
    expected = 12 * (5 * kernel(near) + 5 * kernel(far) + kernel(2))
    assert total(icosahedron) == pytest.approx(expected)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("distance", ["euclidean", "geodesic"])
@pytest.mark.parametrize("s", [0.0, 2.0, 40.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [5, 9])
def test_duplicate_opposite_zero_and_tiny_neurons_stay_finite(half, distance, s, dtype, dim):
    w = torch.randn(8, dim, dtype=dtype)
    w[1], w[2] = 3 * w[0], -w[0]
    for zeros in (False, True):
        if zeros:
            w[3], w[4], w[5] = 0, 0, 1e-25 * w[5]
        x = w.clone().requires_grad_()
        energy = HF.hyperspherical_energy(x, s, half, distance)
        energy.backward()
        assert energy.isfinite() and x.grad.isfinite().all()
        assert not zeros or (x.grad[3:5] == 0).all()
        again = HF.hyperspherical_energy(1e3 * w, s, half, distance)  # the floor ignores |w|
        torch.testing.assert_close(again, energy.detach(), rtol=1e-2, atol=0)


@pytest.mark.parametrize("name, x, y, angle", EDGES, ids=EDGE_IDS)
def test_edge_table(name, x, y, angle):
    floor = HF.distance_floor(2.0, torch.float64)
    expected = max(2 * math.sin(angle / 2), floor) ** -2
    value = HF.hyperspherical_energy(torch.stack([x, y]), 2.0)
    assert float(value) == pytest.approx(expected, rel=1e-2 if name == "tiny angle" else 1e-9)
    geodesic = HF.hyperspherical_energy(torch.stack([x, y]), 1.0, distance="geodesic")
    floor = HF.distance_floor(1.0, torch.float64)
    assert float(geodesic) == pytest.approx(1 / max(angle, floor), rel=1e-3)


@pytest.mark.parametrize("dtype", LOW_PRECISION)
def test_low_precision_is_computed_in_float32(dtype):
    w = torch.randn(10, 6).to(dtype)
    for half in (False, True):
        value = HF.hyperspherical_energy(w, 2.0, half)
        torch.testing.assert_close(value, HF.hyperspherical_energy(w.float(), 2.0, half))
    same = torch.ones(3, 4, dtype=dtype)  # the energy of coinciding neurons is beyond float16
    assert HF.hyperspherical_energy(same).isfinite()


def test_autocast_does_not_touch_the_energy():
    w = torch.randn(10, 6)
    expected = HF.hyperspherical_energy(w)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(HF.hyperspherical_energy(w), expected, rtol=0, atol=0)


def test_log_energy_is_a_lower_bound_and_a_multiple_of_e0():
    w = torch.randn(9, 4, dtype=torch.float64)
    for s in (0.5, 1.0, 3.0):
        bound = HF.log_energy(w, s)
        assert float(bound.exp()) <= float(HF.hyperspherical_energy(w, s))
        torch.testing.assert_close(bound, s * HF.hyperspherical_energy(w, 0.0))


def test_a_large_weight_holds_its_neuron():
    w = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    moved = []
    for beta in (1.0, 10.0):
        weights = torch.tensor([beta, 1, 1, 1, 1], dtype=torch.float64)
        (g,) = torch.autograd.grad(HF.hyperspherical_energy(w, weights=weights), w)
        moved.append(float(g[0].norm()))
    assert moved[1] < 0.1 * moved[0]


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("s", [0.0, 1.0, 2.0])
def test_a_very_large_weight_does_not_hide_the_other_neurons(s, half):
    w, beta = torch.randn(6, 4), torch.tensor([1000.0, 1, 1, 1, 1, 1])
    slopes = []
    for energy, x in (
        (HF.hyperspherical_energy, w.clone().requires_grad_()),
        (reference.energy, w.double().requires_grad_()),
    ):
        value = energy(x, s, half, weights=beta, reduction="sum")
        slopes.append(torch.autograd.grad(value, x)[0])
        slopes.append(value.detach())
    close(slopes[:2], slopes[2:], scale=10)


def test_weighted_duplicates_stay_finite():
    w = torch.ones(3, 4, requires_grad=True)
    value = HF.hyperspherical_energy(w, weights=torch.tensor([1000.0, 1000.0, 1.0]))
    value.backward()
    floor = 1000 * HF.distance_floor(2.0)
    assert float(value.detach()) == pytest.approx(floor**-2 / 3, rel=1e-3)
    assert w.grad.isfinite().all()


def test_four_neurons_descend_to_the_regular_tetrahedron():
    w = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=3.0)
    for _ in range(300):
        optimizer.zero_grad()
        HF.hyperspherical_energy(w).backward()
        optimizer.step()
    cos = HF.pairwise_cosine(w.detach())[~torch.eye(4, dtype=torch.bool)]
    torch.testing.assert_close(cos, torch.full_like(cos, -1 / 3), rtol=0, atol=1e-6)


@pytest.mark.parametrize("dim", [3, 8])
def test_function_transforms_and_the_compiler_take_it(dim):
    w = torch.randn(6, dim, dtype=torch.float64)
    leaf = w.clone().requires_grad_()
    energy = lambda x: HF.hyperspherical_energy(x, 2.0, half_space=True)  # noqa: E731
    (expected,) = torch.autograd.grad(energy(leaf), leaf)
    torch.testing.assert_close(torch.func.grad(energy)(w), expected)
    compiled = torch.compile(energy, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(torch.autograd.grad(compiled(leaf), leaf)[0], expected)


def test_memory_stays_far_below_the_square(monkeypatch):
    monkeypatch.setattr(module, "BLOCK_ENTRIES", 2**14)
    largest = 0
    original = torch.bmm

    def watched(a, b):
        nonlocal largest
        product = original(a, b)
        largest = max(largest, product.numel())
        return product

    monkeypatch.setattr(torch, "bmm", watched)
    w = torch.randn(600, 8, requires_grad=True)
    HF.hyperspherical_energy(w, half_space=True).backward()
    assert largest <= 2**14


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"weight": torch.zeros(5)}, "one neuron per row"),
        ({"weight": torch.zeros(1, 5)}, "N >= 2"),
        ({"weight": torch.zeros(3, 0)}, "N >= 2"),
        ({"weight": torch.eye(3), "s": -1.0}, "0 <= s"),
        ({"weight": torch.eye(3), "s": math.inf}, "s=inf"),
        ({"weight": torch.eye(3), "distance": "angle"}, "'euclidean' or 'geodesic'"),
        ({"weight": torch.eye(3), "reduction": "none"}, "'sum' or 'mean'"),
        ({"weight": torch.eye(3), "weights": torch.ones(2)}, "3 positive numbers"),
        ({"weight": torch.eye(3), "weights": -torch.ones(3)}, "smallest -1"),
        (
            {"weight": torch.eye(3), "weights": torch.ones(3), "distance": "geodesic"},
            "leaves angles as they are",
        ),
    ],
)
def test_wrong_arguments_are_told(arguments, message):
    with pytest.raises(ValueError, match=message):
        HF.hyperspherical_energy(**arguments)


def test_integers_are_refused():
    with pytest.raises(TypeError, match="int64"):
        HF.hyperspherical_energy(torch.ones(3, 3, dtype=torch.int64))


@pytest.mark.parametrize("beta", [1e-20, 1e-38, 1e20, 1e38])
@pytest.mark.parametrize("half_space", [False, True])
@pytest.mark.parametrize("s", [0.0, 1.0, 2.0, 6.0])
def test_weights_of_any_size_have_finite_gradients(s, half_space, beta):
    for weights in (torch.full((5,), beta), torch.tensor([beta, beta, 1.0, 1.0, 2.0])):
        w = torch.randn(5, 3)
        w[1] = w[0]
        w.requires_grad_()
        value = HF.hyperspherical_energy(w, s, half_space, weights=weights)
        value.backward()
        assert value.isfinite() and w.grad.isfinite().all()
