"""lambda: its formula, its presets, and that it survives save, load and resume."""

import pytest
import torch

import hypersphere.heads as heads
from hypersphere.heads import LambdaAnnealing


def advance(annealing, steps):
    for _ in range(steps):
        annealing.step()


@pytest.mark.parametrize(
    ("preset", "numbers"),
    [("sphereface", (1000.0, 0.12, 1.0, 5.0)), ("lsoftmax_mnist", (1000.0, 2.5e-5, 35.0, 0.0))],
)
def test_presets_are_those_of_their_source(preset, numbers):
    annealing = getattr(LambdaAnnealing, preset)()
    assert (annealing.base, annealing.gamma, annealing.power, annealing.minimum) == numbers
    base, gamma, power, minimum = numbers
    for t in (0, 1, 100, 5000):
        expected = max(minimum, base * (1 + gamma * t) ** -power)
        assert annealing.at(t) == pytest.approx(expected)
        annealing.iteration.fill_(t)
        assert annealing.value == pytest.approx(expected)
        assert annealing().item() == pytest.approx(expected, rel=1e-4)


def test_it_reaches_its_minimum_when_it_says():
    annealing = LambdaAnnealing.sphereface()
    t = annealing.steps_to_minimum()
    assert annealing.at(t) == 5.0 < annealing.at(t - 1)
    assert LambdaAnnealing.lsoftmax_mnist().steps_to_minimum() is None


@pytest.mark.parametrize("through_file", [False, True])
def test_saved_with_the_head(tmp_path, through_file):
    head = heads.ASoftmaxHead(4, 3)
    head.annealing = LambdaAnnealing(base=100.0, gamma=0.5, power=2.0, minimum=1.0)
    advance(head.annealing, 7)
    state = head.state_dict()
    if through_file:
        from safetensors.torch import load_file, save_file

        save_file(state, tmp_path / "head.safetensors")
        state = load_file(tmp_path / "head.safetensors")
    other = heads.ASoftmaxHead(4, 3)
    other.annealing = LambdaAnnealing()  # other numbers: what is loaded wins
    other.load_state_dict(state)
    assert repr(other.annealing) == repr(head.annealing)
    advance(head.annealing, 3)
    advance(other.annealing, 3)
    assert other.annealing.value == head.annealing.value == pytest.approx(100 * 6.0**-2)


def test_a_fresh_head_gets_the_saved_schedule_and_loses_none():
    head = heads.ASoftmaxHead(4, 3)
    head.annealing = LambdaAnnealing(base=100.0, gamma=0.5)
    advance(head.annealing, 7)
    net, fresh = (torch.nn.Sequential(torch.nn.Linear(2, 4), h) for h in (head, None))
    fresh[1] = heads.ASoftmaxHead(4, 3)
    fresh.load_state_dict(net.state_dict())
    assert repr(fresh[1].annealing) == repr(head.annealing)
    advance(fresh[1].annealing, 1)
    assert int(head.annealing.iteration) == 7  # its own

    head.load_state_dict(heads.ASoftmaxHead(4, 3).state_dict())  # saved without a schedule
    assert head.annealing.base == 100 and int(head.annealing.iteration) == 7
    state = heads.ASoftmaxHead(4, 3).state_dict()
    with pytest.raises(RuntimeError, match="annealing.other"):  # strict all the same
        head.load_state_dict({**state, "annealing.other": torch.ones(1)})


def test_resumed_training_is_the_same_training():
    def start():
        torch.manual_seed(0)
        head = heads.ASoftmaxHead(4, 3)
        head.annealing = LambdaAnnealing(base=50.0, gamma=1.0, minimum=0.5)
        return head, torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)

    def train(head, optimizer, steps, first=0):
        for t in range(first, first + steps):
            draw = torch.Generator().manual_seed(t)
            x, y = torch.randn(8, 4, generator=draw), torch.randint(3, (8,), generator=draw)
            optimizer.zero_grad()
            head.loss(x, y).backward()
            optimizer.step()
            head.annealing.step()

    head, optimizer = start()
    train(head, optimizer, 6)
    first, first_optimizer = start()
    train(first, first_optimizer, 3)
    second, second_optimizer = start()
    second.load_state_dict(first.state_dict())
    second_optimizer.load_state_dict(first_optimizer.state_dict())
    train(second, second_optimizer, 3, first=3)
    assert torch.equal(head.weight, second.weight)


def test_casts_and_moves_leave_it_alone():
    head = heads.ASoftmaxHead(4, 3)
    head.annealing = LambdaAnnealing(gamma=0.123456789)
    head.bfloat16()
    assert head.annealing.gamma == 0.123456789 and head.annealing.iteration.dtype == torch.int64
    assert "annealing" in repr(head) and "iteration=0" in repr(head)


def test_plot_shows_the_schedule():
    annealing = LambdaAnnealing.sphereface()
    advance(annealing, 10)
    ax = annealing.plot(steps=3000)
    times, values = ax.lines[0].get_data()
    assert times[0] == 0 and times[-1] == 3000
    assert values[0] == 1000 and values[-1] == 5
    assert ax.lines[1].get_xdata()[0] == 10  # now


def test_negative_numbers_are_refused():
    with pytest.raises(ValueError, match="gamma >= 0, got -1"):
        LambdaAnnealing(gamma=-1)
