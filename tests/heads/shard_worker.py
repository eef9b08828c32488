"""One process of a sharded head: `python shard_worker.py RANK WORLD JOB FOLDER`.

Everything is drawn from seeds, so each process also knows the whole problem and compares its part
with what a single process computes on the joined batch.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hypersphere.heads as heads
from hypersphere.heads import LambdaAnnealing, MarginHead
from processes import leave
from tolerances import close

CLASSES, DIM = 11, 6


def annealed(head):
    head.annealing = LambdaAnnealing(base=3.0, minimum=1.0)
    head.annealing.step()
    return head


HEADS = {
    "softmax": lambda: heads.SoftmaxHead(DIM, CLASSES),
    "l_softmax": lambda: heads.LSoftmaxHead(DIM, CLASSES, m=2),
    "a_softmax": lambda: annealed(heads.ASoftmaxHead(DIM, CLASSES, m=4)),
    "detached": lambda: heads.ASoftmaxHead(DIM, CLASSES, m=3, gradient="detached"),
    "caffe": lambda: heads.ASoftmaxHead(DIM, CLASSES, m=4, gradient="caffe"),
    "arcface": lambda: heads.ArcFaceHead(DIM, CLASSES, scale=16.0, learn_scale=True),
    "sigmoid": lambda: heads.GASoftmaxHead(DIM, CLASSES, 3, "sigmoid", k=0.4, learn_k=True),
    "subcenters": lambda: heads.ArcFaceHead(DIM, CLASSES, scale=16.0, subcenters=3),
    "per class": lambda: heads.ArcFaceHead(DIM, CLASSES, m=torch.linspace(0, 0.8, CLASSES)),
    "schedule": lambda: heads.AMSoftmaxHead(DIM, CLASSES, m=heads.MarginSchedule(0.1, 0.4)),
    "adaface": lambda: heads.AdaFaceHead(DIM, CLASSES, scale=16.0, momentum=0.5),
    "magface": lambda: heads.MagFaceHead(DIM, CLASSES, shortest=0.5, longest=3.0, scale=16.0),
    "curricularface": lambda: heads.CurricularFaceHead(DIM, CLASSES, momentum=0.5),
    "sphereface2": lambda: heads.SphereFace2Head(DIM, CLASSES),
    "sphereface2 per class": lambda: heads.SphereFace2Head(
        DIM, CLASSES, m=torch.linspace(0, 0.4, CLASSES), sample=1.0
    ),
    "sphereface_r v1": lambda: heads.SphereFaceRHead(DIM, CLASSES),
    "sphereface_r v2": lambda: heads.SphereFaceRHead(DIM, CLASSES, version="v2"),
    "sphereface_r soft": lambda: heads.SphereFaceRHead(DIM, CLASSES, scale=2.0, soft=0.1),
    "all classes drawn": lambda: heads.AMSoftmaxHead(DIM, CLASSES, sample=1.0),
}
OPTIONS = {
    "plain": {},
    "sum": {"reduction": "sum"},
    "smooth": {
        "label_smoothing": 0.2,
        "class_weight": torch.linspace(0.5, 2, CLASSES, dtype=torch.float64),
    },
}
SIZES = {1: [7], 2: [5, 2], 3: [0, 4, 3]}


def batch(seed=0, ignored=True):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(7, DIM, generator=draw, dtype=torch.float64)
    y = torch.randint(CLASSES, (7,), generator=draw)
    if ignored:
        y[3] = -100
    return x, y


def draw(seed):
    return torch.Generator().manual_seed(seed)


def own(tensor, rank, world):
    return tensor.split(SIZES[world])[rank]


def build(name):
    torch.manual_seed(1)
    head = HEADS[name]().double()
    if getattr(head, "bias", None) is not None:
        nn.init.normal_(head.bias)
    return head


def near(got, expected, what):
    try:
        close(got, expected)
    except AssertionError as error:
        raise AssertionError(f"{what}: {error}") from None


def agree(rank, world, folder):
    """Loss and every gradient are those of one process, in each head and with each option."""
    x, y = batch()
    for name in HEADS:
        for option, arguments in OPTIONS.items():
            binary = name.startswith("sphereface2")
            if (binary or HEADS[name]().sample) and "label_smoothing" in arguments:
                continue
            what = f"{name}, {option}"
            alone, head = build(name), heads.shard(build(name), averaged=False)
            whole = x.clone().requires_grad_()
            part = own(x, rank, world).clone().requires_grad_()
            expected = alone.loss(whole, y, **arguments)
            loss = head.loss(part, own(y, rank, world), **arguments)
            near(loss, expected, what)
            expected.backward()
            loss.backward()
            near(part.grad, own(whole.grad, rank, world), f"{what}, features")
            rows = slice(head.shard.start, head.shard.stop)
            for key, parameter in alone.named_parameters():
                gradient = parameter.grad[rows] if key in ("weight", "bias") else parameter.grad
                near(dict(head.named_parameters())[key].grad, gradient, f"{what}, {key}")
            near(head(part), alone(own(x, rank, world)), f"{what}, scores")
            for key, value in alone.named_buffers():
                near(dict(head.named_buffers())[key].double(), value.double(), f"{what}, {key}")
            near(
                head(part, own(y, rank, world)),
                alone(own(x, rank, world), own(y, rank, world)),
                f"{what}, scores with labels",
            )
            labels, shares = torch.stack([y, y.roll(1)], 1), torch.rand(7, 2, generator=draw(5))
            mixed = {"labels": own(labels, rank, world), "shares": own(shares, rank, world)}
            near(
                head.eval().loss(part, reduction="none", **mixed),
                own(alone.eval().loss(x, labels, "none", shares=shares), rank, world),
                f"{what}, several labels",
            )

    # one loss per own sample, and DDP's way of averaging
    head, alone = heads.shard(build("a_softmax")), build("a_softmax")
    whole, part = x.clone().requires_grad_(), own(x, rank, world).clone().requires_grad_()
    losses = head.loss(part, own(y, rank, world), reduction="none")
    each = alone.loss(whole, y, reduction="none")
    near(losses, own(each, rank, world), "none")
    losses.sum().backward()
    (each.sum() / world).backward()  # what DDP makes of sums
    near(part.grad, world * own(whole.grad, rank, world), "none, features")
    near(head.weight.grad, alone.weight.grad[head.shard.start : head.shard.stop], "none, weight")

    # a share of the classes: only drawn rows move, the own labels always do
    torch.manual_seed(rank)
    head = build("arcface")
    head.sample = 0.5
    heads.shard(head)
    x, y = batch(ignored=False)
    head.loss(own(x, rank, world), own(y, rank, world)).backward()
    moved = head.weight.grad.abs().sum(1) > 0
    mine = {int(c) - head.shard.start for c in y if head.shard.start <= c < head.shard.stop}
    assert mine <= set(moved.nonzero().flatten().tolist()), (mine, moved)
    assert int(moved.sum()) <= len(mine) + -(-(len(moved) - len(mine)) // 2)

    # a head that was never whole anywhere
    with torch.device("meta"):
        head = heads.ArcFaceHead(DIM, CLASSES, scale=64.0, learn_scale=True)
    heads.shard(head)
    assert head.loss(own(x, rank, world).float(), own(y, rank, world)).isfinite()
    assert abs(float(head.scale.detach()) - 64) < 1e-4
    assert heads.unshard(head).weight.shape == (CLASSES, DIM)


class Net(nn.Module):
    def __init__(self, head="a_softmax"):
        super().__init__()
        torch.manual_seed(2)
        self.backbone = nn.Linear(DIM, DIM).double()
        self.head = build(head)

    def forward(self, x, y):
        return self.head.loss(self.backbone(x), y)


def optimizer_of(net):
    return torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)


def steps(model, net, optimizer, rank, world, start=0, count=3, most=CLASSES):
    for seed in range(start, start + count):
        x, y = batch(seed)
        y = y.clamp_max(most - 1)
        optimizer.zero_grad()
        loss = model(own(x, rank, world), own(y, rank, world))
        loss.backward()
        optimizer.step()
        net.head.annealing.step()
    return float(loss)


def train(rank, world, folder):
    """Three updates with DDP and uneven batches, as one process makes them; then save."""
    net = Net()
    heads.shard(net.head)
    optimizer = optimizer_of(net)
    model = DistributedDataParallel(heads.ignore_in_ddp(net))
    steps(model, net, optimizer, rank, world)
    alone = Net()
    steps(alone, alone, optimizer_of(alone), 0, 1)
    near(net.backbone.weight, alone.backbone.weight, "backbone")
    rows = slice(net.head.shard.start, net.head.shard.stop)
    near(net.head.weight, alone.head.weight[rows], "rows")
    state = net.state_dict()
    assert state.keys() == alone.state_dict().keys()
    if rank == 0:
        torch.save(state, folder / "net.pt")
    heads.save_shards(net.head, folder / "shards", optimizer)
    del model  # before the group that it holds


def wrapped(rank, world, folder):
    """DDP without `ignore_in_ddp`: around equal and unequal shards, and around a head alone."""
    for classes in (10, 11):
        HEADS["counted"] = lambda classes=classes: annealed(heads.ASoftmaxHead(DIM, classes))
        net, alone = Net("counted"), Net("counted")
        heads.shard(net.head)
        rows = slice(net.head.shard.start, net.head.shard.stop)
        model = DistributedDataParallel(net)
        near(net.head.weight, alone.head.weight[rows], f"rows of {classes} after wrapping")
        steps(model, net, optimizer_of(net), rank, world, most=classes)
        steps(alone, alone, optimizer_of(alone), 0, 1, most=classes)
        near(net.backbone.weight, alone.backbone.weight, f"backbone of {classes}")
        near(net.head.weight, alone.head.weight[rows], f"rows of {classes}")
        del model
    head = heads.shard(MarginHead(DIM, 10))
    try:
        DistributedDataParallel(head)
    except RuntimeError as error:
        assert "Wrap the backbone alone" in str(error), error
    else:
        raise AssertionError("nothing to do, and no word of it")
    net = Net("counted")
    model = DistributedDataParallel(net)
    heads.shard(net.head)
    try:
        steps(model, net, optimizer_of(net), rank, world, most=10)
    except RuntimeError as error:
        assert "wrap in DDP after shard(head)" in str(error), error
    else:
        raise AssertionError("DDP before shard, and no word of it")
    del model
    plain = DistributedDataParallel(nn.Linear(3, 3))  # others are wrapped as ever
    plain(torch.randn(2, 3)).sum().backward()
    del plain


def prototypes(rank, world, folder):
    """CIDER is not sharded: its prototypes follow the samples of all processes, alike on all.

    One process writes what it found, two compare themselves with that.
    """
    HEADS["cider"] = lambda: heads.CiderHead(DIM, CLASSES, decay=0.5)
    net = Net("cider")
    model = DistributedDataParallel(net) if world > 1 else net
    optimizer, found = optimizer_of(net), []
    for seed in range(3):
        x, y = (part[:6] for part in batch(seed, ignored=False))  # equal parts: DDP averages means
        optimizer.zero_grad()
        model(x.chunk(world)[rank], y.chunk(world)[rank]).backward()
        optimizer.step()
        found += [net.head.weight.clone(), net.backbone.weight.detach().clone()]
    net.eval()
    net(x[: rank + 1], y[: rank + 1])  # nothing is exchanged, nothing moves
    near(net.head.weight, found[-2], "prototypes after a test")
    if world == 1:
        torch.save(found, folder / "alone.pt")
        return
    for number, expected in enumerate(torch.load(folder / "alone.pt")):
        near(found[number], expected, ("prototypes", "backbone")[number % 2] + f" {number // 2}")
    del model


def files(rank, world, folder):
    """A process that cannot write or read stops all, and the folder keeps what it held."""
    torch.manual_seed(0)
    head = heads.shard(MarginHead(DIM, CLASSES))
    before = head.weight.detach().clone()
    place = folder / "kept"
    heads.save_shards(head, place)
    with torch.no_grad():
        head.weight.add_(1)
    save = torch.save
    if rank == world - 1:
        torch.save = refuse
    try:
        heads.save_shards(head, place)
    except (OSError, ValueError) as error:
        assert ("no space" if rank == world - 1 else f"process {world - 1}") in str(error), error
    else:
        raise AssertionError("one process could not write")
    torch.save = save
    heads.load_shards(head, place)
    near(head.weight, before, "the save before")
    changed = head.weight.detach().clone()
    dist.barrier()
    if rank == 0:
        sorted(place.glob("classes-*-1.pt"))[-1].unlink()
    dist.barrier()
    try:
        heads.load_shards(head, place)
    except (FileNotFoundError, ValueError) as error:
        assert "lacks classes-" in str(error) or "process" in str(error), error
    else:
        raise AssertionError("a file is missing")
    near(head.weight, changed, "untouched")


def refuse(*_):
    raise OSError("no space left")


def resume(rank, world, folder):
    """Go on with what two processes saved, as one process that never stopped."""
    alone = Net()
    alone_optimizer = optimizer_of(alone)
    steps(alone, alone, alone_optimizer, 0, 1)
    expected = steps(alone, alone, alone_optimizer, 0, 1, start=3, count=1)

    net = Net()
    if world > 1:
        heads.shard(net.head)
    optimizer = optimizer_of(net)
    net.load_state_dict(torch.load(folder / "net.pt", weights_only=True))
    rows = net.head.weight.detach().clone()
    with torch.no_grad():
        net.head.weight.zero_()
    heads.load_shards(net.head, folder / "shards", optimizer)
    near(net.head.weight, rows, "both ways of saving")
    assert int(net.head.annealing.iteration) == 4
    loss = steps(net, net, optimizer, rank, world, start=3, count=1)
    assert abs(loss - expected) < 1e-9, (loss, expected)
    part = net.head.shard
    rows = slice(part.start, part.stop) if part else slice(None)
    near(net.head.weight, alone.head.weight[rows], "rows after one more update")


def misuse(rank, world, folder):
    head = heads.shard(MarginHead(DIM, CLASSES))
    x, good = torch.randn(2, DIM), torch.tensor([0])
    bad = torch.tensor([CLASSES, 0] if rank == 0 else [0, 0])
    for action, message in [
        (lambda: heads.shard(head), "sharded already"),
        (lambda: heads.shard(MarginHead(DIM, 1)), "cannot be spread"),
        (lambda: head.loss(torch.randn(1, DIM), torch.tensor([CLASSES])), f"C = {CLASSES}"),
        (lambda: head.loss(torch.randn(1, DIM), torch.rand(1, CLASSES)), "soft targets"),
        # a bad batch on one process: it says why, the others say who, and nobody waits
        (lambda: head.loss(x, bad), f"C = {CLASSES}" if rank == 0 else "process 0"),
        (lambda: head(x, bad), f"C = {CLASSES}" if rank == 0 else "process 0"),
        (lambda: head.loss(x[: 1 + rank], good), "shape (2,)" if rank == 1 else "process 1"),
        (lambda: heads.diagnose(head, torch.randn(1, DIM), torch.tensor([0])), "before shard"),
    ]:
        try:
            action()
        except ValueError as error:
            assert message in str(error), error
        else:
            raise AssertionError(f"no error: {message}")


if __name__ == "__main__":
    rank, world, jobs, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
    torch.set_num_threads(1)
    if world > 1:
        meeting = f"file://{folder}/meeting-{jobs}-{world}"
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world)
    for job in jobs.split(","):
        globals()[job](rank, world, folder)
    if world > 1:
        leave()
