"""Learning rates over iterations, against torch's own schedules and the text's numbers."""

import pytest
import torch

from hypersphere.training import NotFinite
from hypersphere.training import schedules as S


def rates(factor, steps, warmup=0, lr=0.1):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    rate = S.LearningRate(optimizer, factor, warmup)
    return [rate.set(t) for t in range(steps)]


def torch_rates(make, steps, lr=0.1):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    schedule, found = make(optimizer), []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


@pytest.mark.parametrize(
    "ours, theirs",
    [
        (S.steps([5, 8]), lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [5, 8])),
        (S.every(4, 0.7), lambda o: torch.optim.lr_scheduler.StepLR(o, 4, 0.7)),
        (S.half_cosine(20), lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 20)),
    ],
)
def test_equal_to_torch(ours, theirs):
    assert rates(ours, 15) == pytest.approx(torch_rates(theirs, 15), rel=1e-9)


def test_text_of_3_4():
    """0.001, divided by 10 at 34K and 54K iterations."""
    factor = S.steps([34_000, 54_000])
    assert [
        0.001 * factor(t) for t in (0, 33_999, 34_000, 53_999, 54_000, 64_000)
    ] == pytest.approx([1e-3, 1e-3, 1e-4, 1e-4, 1e-5, 1e-5])


def test_warmup_ends_at_the_base_rate():
    found = rates(S.constant(), 6, warmup=4)
    assert found == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1, 0.1])


def test_groups_keep_their_ratio():
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": lr} for lr in (0.1, 0.01)]
    optimizer = torch.optim.SGD(groups, lr=1.0)
    S.LearningRate(optimizer, S.steps([1])).set(1)
    assert [g["lr"] for g in optimizer.param_groups] == pytest.approx([0.01, 0.001])


@pytest.mark.parametrize("lr", [0.1, 0.0])
def test_a_rate_that_no_number_holds_is_refused(lr):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    rate = S.LearningRate(optimizer, S.every(1, 1e10))
    rate.set(2)
    with pytest.raises(NotFinite, match=r"the learning rate of step 40 is (inf|nan); expected at"):
        rate.set(40)
    assert optimizer.param_groups[0]["lr"] == lr * 1e20


def test_plateau_waits_divides_and_resumes():
    plateau = S.Plateau(patience=2)
    for loss in (1.0, 0.5, 0.5):
        plateau.observe(loss)
    again = S.Plateau(patience=2)
    again.load_state_dict(plateau.state_dict())
    for p in (plateau, again):
        p.observe(0.5)
        assert p(0) == pytest.approx(0.1)
    for _ in range(20):
        plateau.observe(1.0)
    assert plateau(0) == plateau.minimum
