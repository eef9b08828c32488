"""The theory of chapter 2 against numerical experiments, and the design rule."""

import math

import pytest
import torch

import hypersphere.heads as heads
from hypersphere.functional import Margin
from hypersphere.heads import theory
from tolerances import close


def plane(theta):
    return torch.stack([theta.cos(), theta.sin()], -1)


def region(m, theta_12, points=20_001):
    """Directions in the plane of w_1 (at 0) and w_2 that A-Softmax gives to class 1, and to 2."""
    t = torch.linspace(-math.pi, math.pi, points, dtype=torch.float64)
    w1, w2 = plane(torch.tensor([0.0, theta_12], dtype=torch.float64))
    one = theory.decision_boundary(plane(t), w1, w2, m=m, target=1) > 0
    two = theory.decision_boundary(plane(t), w1, w2, m=m, target=2) > 0
    return t, one, two


@pytest.mark.parametrize("m", [2, 3, 4, 5.5])
@pytest.mark.parametrize("theta_12", [0.4, 1.5, 2.6, math.pi])
def test_margin_and_spread_of_the_region(m, theta_12):
    t, one, two = region(m, theta_12)
    # between the weights: from the last direction of class 1 to the first one of class 2
    between = (t >= 0) & (t <= theta_12)
    gap = t[between & two].min() - t[between & one].max()
    assert gap.item() == pytest.approx(theory.angular_margin(m, theta_12), abs=1e-3)
    assert gap.item() == pytest.approx(theory.inter_class_angle(m, theta_12), abs=1e-3)
    spread = t[one].max() - t[one].min()
    assert spread.item() == pytest.approx(theory.intra_class_angle(m, theta_12), abs=1e-3)


@pytest.mark.parametrize("theta_12", [0.3, 1.0, 2.0, 2.5, 3.0, math.pi])
def test_property_2(theta_12):
    bound = theory.m_min_binary(theta_12)
    assert bound <= theory.m_min_binary() + 1e-12 == pytest.approx(2 + math.sqrt(3))

    def separated(m):
        t, one, _ = region(m, theta_12)
        within = (t[one].max() - t[one].min()).item()
        return within <= theory.angular_margin(m, theta_12)

    assert separated(bound + 0.02) and not separated(bound - 0.02)


@pytest.mark.parametrize("classes", [3, 5, 8])
def test_property_3(classes):
    """Classes spread evenly in the plane: within <= between exactly from m = 3 on."""
    assert theory.m_min_multiclass(classes) == 3
    t = torch.linspace(-math.pi, math.pi, 20_001, dtype=torch.float64)
    w = plane(2 * math.pi / classes * torch.arange(classes, dtype=torch.float64))
    for m, expected in ((2.9, False), (3.1, True)):
        inside = torch.ones_like(t, dtype=torch.bool)
        for j in range(1, classes):
            inside &= theory.decision_boundary(plane(t), w[0], w[j], m=m) > 0
        reach = t[inside].max().item()
        assert (2 * reach <= 2 * math.pi / classes - 2 * reach) == expected


def test_decision_boundaries_are_those_of_table_2_6():
    x, w1, w2 = torch.randn(50, 4), torch.randn(4), torch.randn(4)
    softmax = theory.decision_boundary(x, w1, w2, "softmax", b1=0.3, b2=-0.1)
    torch.testing.assert_close(softmax, x @ (w1 - w2) + 0.4)
    head = heads.WSoftmaxHead(4, 2)
    with torch.no_grad():
        head.weight.copy_(torch.stack([w1, w2]))
    scores = head(x).detach()
    modified = theory.decision_boundary(x, w1, w2, "modified")
    close(modified, scores[:, 0] - scores[:, 1], scale=10)
    margin = heads.ASoftmaxHead(4, 2, m=3)
    margin.load_state_dict(head.state_dict())
    for target in (1, 2):
        y = torch.full((50,), target - 1)
        scores = margin(x, y).detach()
        own, other = scores[:, target - 1], scores[:, 2 - target]
        found = theory.decision_boundary(x, w1, w2, m=3, target=target)
        torch.testing.assert_close(found, own - other, rtol=1e-4, atol=1e-4)
    # on the boundary of class 1 m theta_1 is theta_2
    e1, e2 = torch.eye(2, dtype=torch.float64)
    on = plane(torch.tensor(math.pi / 8, dtype=torch.float64))  # 3 x 22.5 = 67.5 degrees
    assert theory.decision_boundary(on, e1, e2, m=3).item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(("classes", "scale"), [(3, 4.0), (4, 10.0), (5, 1.0)])
def test_minimum_loss_is_reached_by_a_simplex(classes, scale):
    simplex = torch.eye(classes, dtype=torch.float64) - 1 / classes
    head = heads.SSoftmaxHead(classes, classes, scale=scale).double()
    with torch.no_grad():
        head.weight.copy_(simplex)
    loss = head.loss(simplex, torch.arange(classes)).item()
    assert theory.minimum_loss(classes, scale) == pytest.approx(loss)
    probability = math.exp(-loss)
    assert theory.minimum_scale(classes, probability) == pytest.approx(scale)
    draw = torch.randn(50, classes, classes, dtype=torch.float64)
    for w in draw:  # nothing random is better
        with torch.no_grad():
            head.weight.copy_(w)
        assert head.loss(w, torch.arange(classes)).item() >= loss


@pytest.mark.parametrize(
    "action",
    [
        lambda: theory.angular_margin(0.5, 1.0),
        lambda: theory.angular_margin(2, 4.0),
        lambda: theory.m_min_binary(0.0),
        lambda: theory.m_min_multiclass(2),
        lambda: theory.decision_boundary(torch.ones(2), torch.ones(2), torch.ones(2), "hinge"),
        lambda: theory.decision_boundary(torch.ones(2), torch.ones(2), torch.ones(2), target=3),
        lambda: theory.minimum_scale(10, 1.0),
    ],
)
def test_wrong_numbers_are_refused(action):
    with pytest.raises(ValueError, match="expected|about|Table|target|direction|probability"):
        action()


# --- the design rule ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["cosine", "linear", "sigmoid", "square_cosine"])
@pytest.mark.parametrize(
    "psi", [Margin(m=2), Margin(m=3.3), Margin(shift=0.5), Margin(subtract=0.4), None]
)
def test_our_margins_obey_the_rule(psi, kind):
    check = heads.check_margin(psi, kind, tolerance=1e-7)
    assert check and check.continuous, str(check)
    assert str(check) == "psi is below g and decreasing on [0, pi]"


@pytest.mark.parametrize(
    ("psi", "below", "decreasing", "continuous", "words"),
    [
        (lambda c: c + 0.1, False, True, True, "psi is 0.1 above g"),
        (lambda c: torch.cos(3 * c.acos()), False, False, True, "psi rises"),
        (lambda c: torch.cos(c.acos() + 0.5), False, False, True, "continue it downwards"),
        (
            lambda c: torch.where(
                c > -math.cos(0.5), (c.acos() + 0.5).cos(), c - 0.5 * math.sin(0.5)
            ),
            True,
            True,
            False,
            "psi jumps by 0.117 at theta = 2.64",
        ),
        (lambda c: c / 0, False, False, False, "not finite"),
    ],
    ids=["too high", "not continued", "arcface as is", "arcface with a jump", "infinite"],
)
def test_the_checker_finds_what_is_wrong(psi, below, decreasing, continuous, words):
    check = heads.check_margin(psi)
    assert (check.below, check.decreasing, check.continuous) == (below, decreasing, continuous)
    assert words in str(check)


def test_margins_are_plotted():
    ax = heads.plot_margins({"A-Softmax": Margin(m=4), "own": lambda c: c - 0.2})
    assert [line.get_label() for line in ax.lines] == ["A-Softmax", "own", "no margin"]
    theta, values = ax.lines[0].get_data()
    assert theta[-1] == pytest.approx(180) and values[-1] == pytest.approx(-7)
    with pytest.raises(ValueError, match="a value for each of its inputs"):
        heads.check_margin(lambda c: c.sum())
