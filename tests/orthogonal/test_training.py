"""A rotated model lives: trains, resumes, compiles, runs on two processes, folds, exports."""

import copy

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F

import hypersphere as hs
from hypersphere import functional as HF
from hypersphere.orthogonal.rotation import rotations
from processes import run_ranks
from tolerances import close

METHODS = ("gram_schmidt", "householder", "loewdin", "cayley", "exponential", "ogd")


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1, groups=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 12),
        nn.ReLU(),
        nn.Linear(12, 4),
    )


def optimizer_for(model: nn.Module, method: str) -> torch.optim.Optimizer:
    groups = hs.orthogonal.parameter_groups(model, weight_decay=5e-4)
    if method == "ogd":
        return hs.orthogonal.OGD(groups, lr=0.05, momentum=0.9)
    return torch.optim.SGD(groups, lr=0.05, momentum=0.9)


def train(model, optimizer, steps, seed=0):
    generator = torch.Generator().manual_seed(seed)
    losses = []
    for _ in range(steps):
        x = torch.randn(16, 1, 8, 8, generator=generator)
        y = (x.mean((1, 2, 3)) > 0).long() + 2 * (x[:, 0, :4].mean((1, 2)) > 0).long()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def grams(model):
    found = {}
    for label, module, name, _ in rotations(model):
        rows = getattr(module, name).detach().flatten(1).double()
        found[label] = rows @ rows.T
    return found


@pytest.mark.parametrize("method", METHODS)
def test_gram_matrix_and_energy_stay_while_the_loss_falls(method):
    torch.manual_seed(1)
    model = hs.orthogonal.rotate(network(), method)
    before, energy = grams(model), hs.orthogonal.energies(model)
    losses = train(model, optimizer_for(model, method), 60)
    assert sum(losses[-10:]) < 0.93 * sum(losses[:10])
    for label, gram in grams(model).items():
        assert (gram - before[label]).abs().max() < 1e-5
    after = hs.orthogonal.energies(model)
    for label in before:
        assert abs(after[label] - energy[label]) < 1e-5
    assert hs.orthogonal.orthogonality_error(model) < 1e-5
    assert after["9"] != energy["9"]  # the output layer is free


@pytest.mark.parametrize("method", METHODS)
def test_weight_decay_cannot_shrink_a_rotated_weight(method):
    layer = hs.orthogonal.rotate(nn.Linear(8, 5, bias=False), method)
    groups = hs.orthogonal.parameter_groups(layer)
    if method == "ogd":
        for group in groups:
            group["weight_decay"] = 0.5
        optimizer = hs.orthogonal.OGD(groups, lr=0.5)
    else:  # even when somebody decays everything
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.5, weight_decay=0.5)
    for _ in range(100):
        optimizer.zero_grad()
        (layer(torch.ones(1, 8)) - 1).square().sum().backward()
        optimizer.step()
    close(layer.weight.norm(dim=1), torch.ones(5), scale=3)
    assert torch.optim.AdamW(layer.parameters()).param_groups  # frozen neurons take no harm


@pytest.mark.parametrize("method", ["loewdin", "cayley", "ogd"])
def test_resume_from_a_checkpoint_is_bit_for_bit(method, tmp_path):
    torch.manual_seed(2)
    model = hs.orthogonal.rotate(network(), method, blocks=2)
    optimizer = optimizer_for(model, method)
    train(model, optimizer, 5)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    assert all(value.is_contiguous() for value in state["model"].values())  # safetensors asks
    torch.save(state, tmp_path / "checkpoint.pt")
    expected = train(model, optimizer, 5, seed=1)
    torch.manual_seed(99)  # another start: all that matters is in the checkpoint
    again = hs.orthogonal.rotate(network(), method, blocks=2)
    restarted = optimizer_for(again, method)
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    again.load_state_dict(state["model"])
    restarted.load_state_dict(state["optimizer"])
    assert train(again, restarted, 5, seed=1) == expected


@pytest.mark.parametrize("method", [*METHODS, "none", "spd"])
def test_fold_gives_the_plain_model(method):
    model = network()
    keys = {k: v.shape for k, v in model.state_dict().items()}
    names = [type(m) for m in model.modules()]
    hs.orthogonal.rotate(model, method)
    train(model, optimizer_for(model, method), 3)
    model.eval()
    x = torch.randn(4, 1, 8, 8)
    expected = model(x)
    weights = {label: module.weight.detach().clone() for label, module, _, _ in rotations(model)}
    assert hs.orthogonal.fold(model) is model
    # The same weights bit for bit; a product may be summed in another order where they lie
    # differently in memory.
    assert len(weights) == 3
    assert all(torch.equal(model.get_submodule(n).weight, w) for n, w in weights.items())
    close(model(x), expected)
    assert {k: v.shape for k, v in model.state_dict().items()} == keys
    assert list(model.state_dict()) == list(keys)
    assert [type(m) for m in model.modules()] == names
    assert all(p.requires_grad and p.is_leaf for p in model.parameters())
    fresh = network()
    fresh.load_state_dict(model.state_dict())
    close(fresh.eval()(x), expected)
    with pytest.raises(ValueError, match="no rotated layer; call rotate"):
        hs.orthogonal.fold(model)


def test_export_after_fold(tmp_path):
    model = hs.orthogonal.fold(hs.orthogonal.rotate(network())).eval()
    x = torch.randn(4, 1, 8, 8)
    program = torch.export.export(model, (x,))
    close(program.module()(x), model(x))


def test_progressive_training():
    """F.8: fold what was learned, rotate the result again from the identity."""
    model = hs.orthogonal.rotate(network(), "cayley")
    before = grams(model)
    train(model, optimizer_for(model, "cayley"), 5)
    hs.orthogonal.fold(model)
    hs.orthogonal.rotate(model, "gram_schmidt", start="identity")
    train(model, optimizer_for(model, "gram_schmidt"), 5)
    for label, gram in grams(model).items():
        assert (gram - before[label]).abs().max() < 1e-5


@pytest.mark.parametrize("method", METHODS)
def test_fine_tuning_starts_from_the_pretrained_output(method):
    model = network().eval()  # 3x3, grouped and linear layers
    x = torch.randn(8, 1, 8, 8)
    expected = model(x)
    hs.orthogonal.rotate(model, method, start="identity")
    close(model(x), expected)
    before = grams(model)
    train(model, optimizer_for(model, method), 5)
    for label, gram in grams(model).items():
        assert (gram - before[label]).abs().max() < 1e-5


def test_tasks_share_neurons_and_own_their_rotation():
    model = hs.orthogonal.rotate(network(), "cayley").eval()
    x = torch.randn(4, 1, 8, 8)
    first = model(x)
    hs.orthogonal.add_task(model, "birds")
    assert torch.equal(model(x), first)
    hs.orthogonal.use_task(model, "birds")
    assert torch.equal(model(x), first)  # starts as a copy
    neurons = [m.parametrizations.weight.original.clone() for _, m, _, _ in rotations(model)]
    trained = hs.orthogonal.parameter_groups(model)[0]["params"]
    optimizer = torch.optim.SGD(trained, lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()
    second = model(x)
    assert not torch.allclose(second, first, atol=1e-3)
    hs.orthogonal.use_task(model, "default")
    assert torch.equal(model(x), first)
    for kept, (_, module, _, _) in zip(neurons, rotations(model), strict=True):
        assert torch.equal(module.parametrizations.weight.original, kept)
    # A checkpoint brings the tasks and the current one to a model that knows only "default".
    hs.orthogonal.use_task(model, "birds")
    other = hs.orthogonal.rotate(network(), "cayley").eval()
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(x), second)
    assert torch.equal(hs.orthogonal.use_task(other, "default")(x), first)
    close(hs.orthogonal.fold(hs.orthogonal.use_task(other, "birds"))(x), second)
    with pytest.raises(KeyError, match="no task 'cats'; there are: default, birds"):
        hs.orthogonal.use_task(model, "cats")
    with pytest.raises(ValueError, match="task 'birds' exists"):
        hs.orthogonal.add_task(model, "birds")
    with pytest.raises(ValueError, match="has no dot"):
        hs.orthogonal.add_task(model, "a.b")


def test_current_task_survives_a_file_and_another_order(tmp_path):
    def build(*tasks):
        layer = hs.orthogonal.rotate(nn.Linear(6, 4), "cayley")
        for name in tasks:
            hs.orthogonal.add_task(layer, name)
        return layer

    layer, x = build("zebras", "ants", "birds"), torch.randn(2, 6)
    with torch.no_grad():
        for name, p in layer.named_parameters():
            if name.endswith(".U"):
                p += torch.randn_like(p)
    for task in ("zebras", "ants", "default"):
        hs.orthogonal.use_task(layer, task)
        save_file(layer.state_dict(), tmp_path / "model.safetensors")
        for other in (build(), build("birds", "ants", "zebras"), build("ants", "a surplus")):
            other.load_state_dict(load_file(tmp_path / "model.safetensors"), strict=False)
            assert other.parametrizations.weight[0].task == task
            assert torch.equal(other(x), layer(x))


def test_frozen_stays_frozen():
    layer = hs.orthogonal.add_task(hs.orthogonal.rotate(nn.Linear(6, 4)), "birds")
    layer.requires_grad_(False)
    hs.orthogonal.use_task(layer, "birds")
    assert not any(p.requires_grad for p in layer.parameters())
    assert not hs.orthogonal.fold(layer).weight.requires_grad
    hs.orthogonal.rotate(layer)  # frozen weights, learned rotation: fine-tuning
    assert layer.parametrizations.weight[0].map.U.requires_grad
    assert not hs.orthogonal.fold(layer).weight.requires_grad
    layer.requires_grad_()
    still = hs.orthogonal.rotate(layer, lambda rows: -rows)  # nothing to learn, nothing frozen
    assert hs.orthogonal.fold(still).weight.requires_grad


def test_folding_a_copy_leaves_the_original_rotated():
    model = hs.orthogonal.rotate(network(), "cayley").eval()
    x = torch.randn(2, 1, 8, 8)
    expected = model(x)
    folded = hs.orthogonal.fold(copy.deepcopy(model))
    close(folded(x), expected)
    assert torch.equal(folded[0].weight, model[0].weight) and torch.equal(model(x), expected)
    assert type(folded[0]) is nn.Conv2d
    again = copy.deepcopy(model)
    train(again, optimizer_for(again, "cayley"), 1)
    hs.orthogonal.fold(model)
    assert again[0].weight.grad_fn is not None and not torch.equal(again[0].weight, model[0].weight)


def test_deepcopy_and_device_moves():
    model = hs.orthogonal.rotate(network(), "loewdin").eval()
    x = torch.randn(2, 1, 8, 8)
    assert torch.equal(copy.deepcopy(model)(x), model(x))
    close(model.double()(x.double()).float(), model.float()(x), scale=3)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS[1:])
def test_compile(method):
    torch._dynamo.reset()
    torch.manual_seed(3)
    model = hs.orthogonal.rotate(network(), method).eval()
    twin = copy.deepcopy(model)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    x = torch.randn(4, 1, 8, 8)
    for net in (compiled, twin):
        net(x).square().sum().backward()
    close(compiled(x), twin(x), scale=3)
    for (name, p), (_, q) in zip(model.named_parameters(), twin.named_parameters(), strict=True):
        if q.grad is not None:
            assert torch.allclose(p.grad, q.grad, atol=1e-4), name


SCRIPT = """
import os, sys, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import hypersphere as hs
from processes import leave
torch.set_num_threads(1)
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[3], rank=rank, world_size=2)
torch.manual_seed(rank)  # different starts: DDP makes them one
model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(16, 6), nn.Linear(6, 3))
hs.orthogonal.rotate(model, sys.argv[4])
hs.orthogonal.use_task(hs.orthogonal.add_task(model, "second"), "second")
net = DistributedDataParallel(model)
groups = hs.orthogonal.parameter_groups(model)
if sys.argv[4] == "ogd":
    optimizer = hs.orthogonal.OGD(groups, lr=0.1, momentum=0.9)
else:
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
for step in range(5):
    optimizer.zero_grad()
    net(torch.randn(4, 2, 4, 4)).square().mean().backward()
    optimizer.step()
mine = torch.cat([p.detach().flatten() for p in model.parameters()])
both = [torch.zeros_like(mine) for _ in range(2)]
dist.all_gather(both, mine)
assert torch.equal(both[0], both[1]), (both[0] - both[1]).abs().max()
assert hs.orthogonal.orthogonality_error(model) < 1e-5
del net
leave()
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["cayley", "ogd"])
def test_two_processes(method, tmp_path):
    (tmp_path / "run.py").write_text(SCRIPT)
    run_ranks(tmp_path / "run.py", 2, tmp_path / "rendezvous", method)


def test_energy_of_a_convolution_is_that_of_its_neurons():
    layer = nn.Conv2d(3, 8, 3)
    expected = HF.hyperspherical_energy(layer.weight, s=1.0)
    assert abs(hs.orthogonal.energies(layer)["Conv2d"] - expected) < 1e-6
