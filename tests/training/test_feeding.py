"""How batches reach the network, and the network torch.compile."""

import contextlib
import json
import os
import signal

import pytest
import torch
from small_run import run, small_config
from torch.profiler import ProfilerActivity, profile

import hypersphere as hs
from hypersphere.data import ArrayDataset, BatchLoader
from hypersphere.data.feeding import Decoders, copied_ahead
from hypersphere.training.config import DataConfig, OptimizerConfig, TrainConfig


def losses(folder) -> list[float]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["split"] == "train"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_run_has_the_same_losses(tmp_path):
    common = {"steps": 6, "log_every": 1, "test_every": 6, "quiet": True}
    model = {"name": "cnn3", "widths": [4, 4, 4], "features": 8, "operator": "sphere"}
    for name, compiled in (("plain", False), ("compiled", True)):
        config = small_config(train=TrainConfig(**common, compile=compiled), model=model)
        run(config, tmp_path / name)
    assert losses(tmp_path / "compiled") == pytest.approx(losses(tmp_path / "plain"), rel=1e-3)
    # The names in the checkpoint are those of the plain network.
    trained = hs.training.load_net(tmp_path / "compiled")
    assert not any("_orig_mod" in key for key in trained.state_dict())


PARTS = {
    "a_softmax": {},
    "arcface": {"head": {"name": "arcface"}},
    "cayley": {"rotate": {"method": "cayley"}},
    "comhe": {"regularizers": {"comhe": {"projection": "random", "dim": 4}}},
}


@pytest.mark.parametrize("name", PARTS)
def test_steps_between_log_lines_wait_for_nothing(tmp_path, monkeypatch, name):
    """A whole run under the profiler: values reach the host with log lines and tests alone."""
    from hypersphere.training import loop

    seen: list[int] = []
    plain = loop.update

    def watched(*arguments):
        with profile(activities=[ProfilerActivity.CPU]) as events:
            plain(*arguments)
        waits = [e.name for e in events.events() if e.name == "aten::_local_scalar_dense"]
        seen.append(len(waits))

    monkeypatch.setattr(loop, "update", watched)
    parts = {"regularizers": {"mhe": {"half_space": True}}, **PARTS[name]}
    config = small_config(
        train=TrainConfig(steps=4, log_every=4, test_every=4, quiet=True),
        # Adam keeps its number of steps on the host, whatever the device, and reads it there.
        optimizer=OptimizerConfig(name="sgd", lr=0.01, momentum=0.9),
        **parts,
    )
    run(config, tmp_path / "run")
    assert seen == [0, 0, 0, 0]


@pytest.mark.slow
def test_processes_decode_the_same_batches():
    images = torch.randint(0, 255, (23, 1, 4, 4), dtype=torch.uint8)
    data = ArrayDataset(images, torch.arange(23) % 3, ["a", "b", "c"])
    plain, spread = BatchLoader(data, 4, seed=2), BatchLoader(data, 4, seed=2, workers=2)
    try:
        for _ in range(2):
            for (x, y), (a, b) in zip(plain, spread, strict=True):
                assert torch.equal(x, a) and torch.equal(y, b)
        # A terminal and `timeout` signal the whole group: the trainer still wants batches then.
        for pid in spread._decoders.pool._processes:
            os.kill(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGINT)
        served = iter(spread)
        next(served)
        state = spread.state_dict()  # batches that are decoded ahead do not count
        assert state["batch"] == 1
    finally:
        spread.close()


class CardTensor:
    """What `copied_ahead` does with a tensor, written down: no test has a graphics card."""

    def __init__(self, name, log, device="host"):
        self.name, self.log, self.device = name, log, device

    def pin_memory(self):
        self.log.append(f"pin {self.name}")
        return CardTensor(self.name, self.log, "pinned")

    def to(self, device, non_blocking):
        assert self.device == "pinned" and non_blocking  # else the host would wait
        self.log.append(f"copy {self.name}")
        return CardTensor(self.name, self.log, device)

    def record_stream(self, stream):
        self.log.append(f"keep {self.name}")


class CardStream:
    def __init__(self, log):
        self.log, self.copies = log, 0

    def record_event(self):
        self.copies += 1
        return self.copies

    def wait_event(self, event):
        self.log.append(f"wait for copy {event}")


def test_batches_are_pinned_and_copied_one_ahead(monkeypatch):
    log = []
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: CardStream(log))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: CardStream(log))
    batches = ((CardTensor(f"x{n}", log), CardTensor(f"y{n}", log)) for n in (1, 2, 3))
    for number, batch in enumerate(copied_ahead(batches, "card"), 1):
        assert [value.name for value in batch] == [f"x{number}", f"y{number}"]
        assert all(value.device == "card" for value in batch)
        log.append(f"compute {number}")
    # The copy of the next batch is under way before this one is computed with, which waits for its
    # own copy alone.
    assert [line for line in log if line[:3] in ("cop", "wai", "com")] == [
        *("copy x1", "copy y1", "copy x2", "copy y2", "wait for copy 1", "compute 1"),
        *("copy x3", "copy y3", "wait for copy 2", "compute 2", "wait for copy 3", "compute 3"),
    ]
    assert log.count("keep x2") == 1 and log.index("pin y1") < log.index("copy y1")


def test_a_data_set_that_cannot_be_sent_is_refused():
    class Own:
        def __init__(self):
            self.read = lambda index: index

    with pytest.raises(ValueError, match=r"data.workers=2 .* Own cannot be pickled .*workers 0"):
        Decoders(Own(), 2)


def test_settings():
    assert DataConfig().workers == 0 and TrainConfig().compile is False
    with pytest.raises(ValueError, match="data.workers"):
        DataConfig(workers=-1)
