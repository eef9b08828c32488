"""Rotated models in accelerate, Lightning, DDP, FSDP2 and under torch.compile."""

import copy
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import hypersphere as hs
from hypersphere.integrations import rotation_optimizer
from processes import run_ranks
from tolerances import close

WORKER = Path(__file__).parent / "rank_worker.py"


def plain_network() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3))
    model.requires_grad_(False)
    model[4].requires_grad_(True)
    return model


def network(**options) -> nn.Module:
    return hs.orthogonal.rotate(plain_network(), start="identity", **options)


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 16, 8, generator=generator)
    return list(zip(x, x[..., :3].argmax(-1), strict=True))


def train_by_hand(model: nn.Module, steps: int, epochs: int = 1, name: str = "adamw") -> nn.Module:
    optimizer = rotation_optimizer(model, name, lr=0.02, weight_decay=0.1)
    for x, y in epochs * batches(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def same(one: nn.Module, other: nn.Module, scale: float = 10) -> None:
    first, second = one.state_dict(), other.state_dict()
    assert list(first) == list(second)
    for name, value in first.items():
        close(value.float().nan_to_num(), second[name].float().nan_to_num(), scale)


def test_accelerate_trains_saves_and_resumes(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    model = network()
    optimizer = rotation_optimizer(model, lr=0.02, weight_decay=0.1)
    wrapped, optimizer = accelerator.prepare(model, optimizer)
    for number, (x, y) in enumerate(batches(6)):
        if number == 3:
            accelerator.save_state(str(tmp_path / "state"))
        optimizer.zero_grad()
        accelerator.backward(nn.functional.cross_entropy(wrapped(x), y))
        optimizer.step()
    same(accelerator.unwrap_model(wrapped), train_by_hand(network(), 6))
    after = copy.deepcopy(accelerator.unwrap_model(wrapped).state_dict())
    accelerator.load_state(str(tmp_path / "state"))
    for x, y in batches(6)[3:]:
        optimizer.zero_grad()
        accelerator.backward(nn.functional.cross_entropy(wrapped(x), y))
        optimizer.step()
    for name, value in wrapped.state_dict().items():
        assert torch.equal(value.nan_to_num(), after[name].nan_to_num()), name
    hs.orthogonal.save_adapter(wrapped, tmp_path / "adapter")
    plain = hs.orthogonal.load_adapter(hs.orthogonal.fold(network()), tmp_path / "adapter")
    close(plain(batches(1)[0][0]), wrapped(batches(1)[0][0]))


def test_lightning_trains_saves_and_resumes(tmp_path):
    lightning = pytest.importorskip("lightning.pytorch")
    # Not above: the processes of `rank_worker.py` read this file, and need no Lightning.
    from hypersphere.integrations import AdapterCheckpoint

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def training_step(self, batch, number):
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return rotation_optimizer(self.net, lr=0.02, weight_decay=0.1)

    def fit(module, epochs, folder, resume=None, callbacks=()):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loop = lightning.Trainer(
                max_epochs=epochs, accelerator="cpu", devices=1, logger=False, barebones=False,
                enable_progress_bar=False, enable_model_summary=False,
                default_root_dir=folder, callbacks=list(callbacks), enable_checkpointing=False,
            )  # fmt: skip
            data = torch.utils.data.DataLoader(batches(3), batch_size=None)
            loop.fit(module, data, ckpt_path=resume, weights_only=False)
            return loop

    whole = Module()
    fit(whole, 2, tmp_path, callbacks=[AdapterCheckpoint(tmp_path / "adapter", "net")])
    same(whole.net, train_by_hand(network(), 3, epochs=2))
    half = Module()
    fit(half, 1, tmp_path).save_checkpoint(tmp_path / "half.ckpt")
    again = Module()
    fit(again, 2, tmp_path, tmp_path / "half.ckpt")
    same(again.net, whole.net, scale=1)
    plain = hs.orthogonal.load_adapter(hs.orthogonal.fold(network()), tmp_path / "adapter")
    close(plain(batches(1)[0][0]), whole.net(batches(1)[0][0]))
    with pytest.raises(ValueError, match=r"a module in Module\.nett"):
        AdapterCheckpoint(tmp_path, "nett").on_train_epoch_end(None, whole)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp2", "fsdp2_ogd", "sharded", "sharded_task"])
def test_two_processes_train_as_one(tmp_path, kind):
    run_ranks(WORKER, 2, kind, tmp_path)
    plain = hs.orthogonal.load_adapter(hs.orthogonal.fold(network()), tmp_path / "adapter")
    options = {"side": "input"} if kind.startswith("sharded") else {"side": "weight"}
    name = "ogd" if kind == "fsdp2_ogd" else "adamw"
    options |= {"method": "ogd"} if name == "ogd" else {}
    alone = train_by_hand(network(**options), 4, name=name)
    close(plain(batches(1)[0][0]), alone(batches(1)[0][0]), scale=30)


def test_a_compiled_model_computes_and_trains_the_same():
    plain, compiled = network(), torch.compile(network(), backend="aot_eager")
    train_by_hand(plain, 3)
    train_by_hand(compiled, 3)
    same(compiled._orig_mod, plain)


def test_autocast_leaves_rotations_in_float32():
    model = network()
    with torch.autocast("cpu", torch.bfloat16):
        train_by_hand(model, 5)
    assert hs.orthogonal.orthogonality_error(model) < 1e-5
    close(
        model(batches(1)[0][0]).bfloat16(),
        train_by_hand(network(), 5)(batches(1)[0][0]).bfloat16(),
        3,
    )


def test_nothing_is_imported_before_it_is_used():
    import subprocess
    import sys

    code = (
        "import sys, hypersphere as hs; hs.integrations.rotation_optimizer; hs.orthogonal.merge;"
        "print([m for m in ('transformers', 'lightning', 'accelerate') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
    with pytest.raises(AttributeError, match="it has: AdapterCheckpoint"):
        hs.integrations.nothing  # noqa: B018
