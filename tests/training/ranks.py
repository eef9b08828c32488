"""Real processes for tests: forked from one that has imported everything, as torchrun would set
them up, so that starting or killing a run of two costs milliseconds.

As a script, with the name of a function below and a folder: calls it and prints its answer as JSON.
"""

from __future__ import annotations

import gc
import json
import os
import random
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

import sklearn.datasets  # noqa: F401 - before the forks, once for all
import torch
import torch.distributed.fsdp
from small_run import small_config

from hypersphere.training import Config, RunError, make_fabric, synchronize, train
from hypersphere.training.config import (
    DataConfig,
    FabricConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainConfig,
)
from hypersphere.training.distributed import import_fabric
from processes import wait_for_work

import_fabric()


def start(count: int, work: Callable[[], Any]) -> list[int]:
    """`work()` in `count` processes that find each other as those of torchrun do; their ids."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found = []
    for rank in range(count):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                place = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0}
                place |= {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_PORT": port}
                os.environ.update({key: str(value) for key, value in place.items()})
                os.environ.update(MASTER_ADDR="127.0.0.1", TORCHELASTIC_RUN_ID="test")
                os.dup2(2, 1)  # stdout is for the answer
                work()
                code = 0
            except BaseException as error:
                print(f"rank {rank}: {type(error).__name__}: {error}", file=sys.stderr)
            finally:
                os._exit(code)
        found.append(pid)
    return found


def wait(pids: list[int]) -> list[int]:
    """Exit codes; negative for the signal that ended a process."""
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def run(
    count: int, config: Config, folder: Path, strategy: str = "auto", resume: bool = False
) -> None:
    """Train with `count` processes to the end."""
    codes = wait(start(count, lambda: _train(config, folder, strategy, resume)))
    if any(codes):
        raise SystemExit(f"{folder} ended with {codes}")


def _train(config: Config, folder: Path, strategy: str, resume: bool) -> None:
    config.fabric = FabricConfig(accelerator="cpu", strategy=strategy)
    torch.manual_seed(random.randrange(1000))  # a resumed run must not depend on this
    train(config, folder, resume=resume, fabric=make_fabric(**vars(config.fabric)))


def metrics(folder: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without what differs from run to run."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "time"} for line in lines]


# --- what is tested ---------------------------------------------------------------------------


def variant(name: str) -> Config:
    """Settings that must train alike in one process and with spread weights."""
    wide = {"name": "mlp", "widths": [512, 512, 512]}  # several units
    tanh = {"name": "cnn3", "widths": [8, 8, 8], "features": 16, "operator": "tanh"}
    sigmoid = {**tanh, "operator": "sphere", "angular": "sigmoid"}
    lines = {"log_every": 1, "test_every": 2, "quiet": True}
    margin = {"name": "margin", "scale": 16.0, "learn_scale": True}
    sgd = OptimizerConfig(lr=0.02, weight_decay=5e-4)
    changes: dict[str, dict[str, Any]] = {
        "units, learned scale, clipping": {
            "model": wide,
            "head": margin,
            "train": TrainConfig(steps=4, clip=0.05, **lines),
        },
        "running patch norms, BatchNorm, accumulation": {
            "model": {**tanh, "norm": "batch"},
            "train": TrainConfig(steps=4, accumulate=2, clip=1.0, **lines),
        },
        "learned k, AdamW, cosine": {
            "model": {**sigmoid, "learn_k": "layer"},
            "optimizer": OptimizerConfig(name="adamw", lr=3e-3, weight_decay=1e-2),
            "schedule": ScheduleConfig(name="cosine", warmup=2),
        },
        "k per filter, Adam, class energy": {
            "model": {**sigmoid, "learn_k": "filter"},
            "optimizer": OptimizerConfig(name="adam", lr=3e-3, weight_decay=1e-3),
            "hooks": {"class_energy": {"weight": 1.0}, "monitor": {"every": 2}},
        },
        "classes spread by the head, clipping": {
            "model": tanh,
            "head": {**margin, "sharded": True},
            "train": TrainConfig(steps=4, clip=0.05, **lines),
        },
        "units, sub-centers": {
            "model": wide,
            "head": {"name": "arcface", "scale": 16.0, "subcenters": 3},
        },
        "sub-centers, a state, projection, clipping": {
            "model": tanh,
            "head": {"name": "adaface", "scale": 16.0, "subcenters": 2},
            "hooks": {"project_weights": {"every": 2}, "monitor": {"every": 2}},
            "train": TrainConfig(steps=4, clip=0.05, **lines),
        },
        "sub-centers spread by the head": {
            "model": tanh,
            "head": {"name": "arcface", "scale": 16.0, "subcenters": 3, "sharded": True},
        },
        "curriculum": {"model": tanh, "head": {"name": "curricularface", "scale": 16.0}},
        "weight projection, center loss": {
            "model": sigmoid,
            "hooks": {"project_weights": {"every": 2}, "metric_loss": {"name": "center"}},
        },
    }
    settings: dict[str, Any] = {
        "data": DataConfig(batch_size=64, share=0.4, test_share=0.3),
        "regularizers": {"mhe": {"half_space": True}},
        "hooks": {"monitor": {"every": 2}},
        "optimizer": sgd,
        "schedule": ScheduleConfig(),
        "train": TrainConfig(steps=4, **lines),
    }
    return small_config(**{**settings, **changes[name]})


VARIANTS = (
    "units, learned scale, clipping",
    "running patch norms, BatchNorm, accumulation",
    "learned k, AdamW, cosine",
    "k per filter, Adam, class energy",
    "classes spread by the head, clipping",
    "units, sub-centers",
    "sub-centers, a state, projection, clipping",
    "sub-centers spread by the head",
    "curriculum",
    "weight projection, center loss",
)


def variants(folder: Path) -> dict[str, Any]:
    """Every variant, alone and with weights spread over two processes."""

    def every(place: str, strategy: str) -> None:
        fabric = make_fabric(accelerator="cpu", strategy=strategy)
        for name in VARIANTS:
            train(variant(name), folder / place / name, fabric=fabric)

    for place, count, strategy in (("alone", 1, "auto"), ("spread", 2, "fsdp")):
        codes = wait(start(count, lambda p=place, s=strategy: every(p, s)))
        if any(codes):
            raise SystemExit(f"{place} ended with {codes}")
    return {"done": True}


def stateful() -> Config:
    """A run with everything that has a state, units included."""
    return small_config(
        data=DataConfig(batch_size=32, share=0.3, test_share=0.3, augment="cifar"),
        model={"name": "cnn3", "widths": [4, 4, 4], "features": 8, "operator": "tanh"},
        regularizers={"comhe": {"projection": "random", "dim": 3, "count": 2}},
        train=TrainConfig(steps=20, log_every=5, test_every=7, checkpoint_every=2, quiet=True),
    )


def kills(folder: Path) -> dict[str, Any]:
    """Two processes with spread weights, killed at random times until they are through."""
    draw = random.Random(3)
    run(2, stateful(), folder / "whole", "fsdp")
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    whole = (usage.ru_utime + usage.ru_stime) / 2
    killed, killed_at = 0, []
    while True:
        pids = start(2, lambda: _train(stateful(), folder / "killed", "fsdp", True))
        if killed < 2:
            wait_for_work(pids[0], draw.uniform(0.4, 0.8) * whole)
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
        codes = wait(pids)
        if codes == [0, 0]:
            break
        if killed >= 2:
            raise SystemExit(f"the resumed run ended with {codes}")
        killed += 1
        saved = sorted(p.name for p in (folder / "killed/checkpoints").glob("step-*"))
        killed_at.append(saved[-1] if saved else "the start")
    last = "checkpoints/step-00000020"
    equal = {
        name: len({(folder / d / last / name).read_bytes() for d in ("whole", "killed")}) == 1
        for name in ("model.safetensors", "state.safetensors")
    }
    equal["metrics"] = metrics(folder / "whole") == metrics(folder / "killed")
    return {"equal": equal, "killed at": killed_at}


def counts(folder: Path) -> dict[str, Any]:
    """A run that goes on with another number of processes, or another strategy."""
    ways = {
        "two to one": ((2, "ddp"), (1, "auto")),
        "one to two": ((1, "auto"), (2, "ddp")),
        "spread to one": ((2, "fsdp"), (1, "auto")),
        "one to spread": ((1, "auto"), (2, "fsdp")),
    }

    def config(steps: int) -> Config:
        return small_config(
            data=DataConfig(batch_size=32, share=0.3, test_share=0.3),
            regularizers={"mhe": {}},
            optimizer=OptimizerConfig(name="adam", lr=1e-3, weight_decay=1e-4),
            train=TrainConfig(steps=steps, log_every=4, test_every=5, quiet=True),
        )

    run(1, config(20), folder / "whole")
    for name, (first, second) in ways.items():
        run(first[0], config(10), folder / name, first[1])
        run(second[0], config(20), folder / name, second[1], resume=True)
    return {"ways": list(ways)}


def spoiled(folder: Path) -> dict[str, Any]:
    """Rows that go bad, a batch that is bad, on the second of two processes: what both say."""
    from hypersphere.training import NotFinite, RunFolder, fit, prepare

    class Spoil:
        def __init__(self, what: str) -> None:
            self.what = what

        def change_batch(self, run: Any, batch: tuple[Any, ...]) -> tuple[Any, ...]:
            bad = self.what == "batch" and run.step == 2 and run.fabric.global_rank == 1
            return (batch[0] * float("nan"), *batch[1:]) if bad else batch

        def after_update(self, run: Any) -> None:
            if self.what == "weight" and run.step == 2 and run.fabric.global_rank == 1:
                run.model.head.weight.detach().to_local().fill_(float("nan"))

    def work() -> None:
        fabric = make_fabric(accelerator="cpu", strategy="fsdp")
        for what in ("weight", "batch"):
            parts = prepare(small_config(), fabric)
            record = RunFolder(folder / what, write=fabric.is_global_zero)
            try:
                fit(parts.task, record, fabric, parts.settings, [Spoil(what)])
            except NotFinite as error:
                (folder / f"{what}-{fabric.global_rank}").write_text(str(error))

    codes = wait(start(2, work))
    files = [f"{what}-{rank}" for what in ("weight", "batch") for rank in (0, 1)]
    return {"codes": codes, "said": {name: (folder / name).read_text() for name in files}}


def one_ends(folder: Path, way: str) -> dict[str, Any]:
    """Two processes under DDP, of which the second ends in the middle: what the others say."""
    from hypersphere.training import finite, job
    from hypersphere.training.run.lock import FolderLock

    class End:
        def change_batch(self, run: Any, batch: tuple[Any, ...]) -> tuple[Any, ...]:
            if run.step == 3 and run.fabric.global_rank == 1:
                if way.startswith("killed"):
                    os.kill(os.getpid(), signal.SIGKILL)
                if way == "stopped":
                    os.kill(os.getpid(), signal.SIGSTOP)
                if way.startswith("bad batch"):
                    return (batch[0] * float("nan"), *batch[1:])
            return batch

    def work() -> None:
        fabric = make_fabric(
            accelerator="cpu", strategy="ddp", silence=10.0 if way == "stopped" else 120.0
        )
        if way == "killed elsewhere":  # as if each process had a machine of its own
            socket.gethostname = lambda: f"host-{fabric.global_rank}"
        original = job.prepare

        def prepare(config: Config, fabric: Any) -> Any:
            parts = original(config, fabric)
            parts.hooks.append(End())
            return parts

        job.prepare = prepare
        if way == "bad batch, told late" and fabric.global_rank == 1:
            explain = finite.explain
            finite.explain = lambda *given: (time.sleep(3.0), explain(*given))[1]
        try:
            train(small_config(), folder / "run", fabric=fabric)
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            (folder / f"said-{fabric.global_rank}").write_text(said)

    lock = FolderLock(folder / "run")
    if way == "lock":
        (folder / "run").mkdir()
        lock.acquire()
    began = time.perf_counter()
    pids = start(2, work)
    codes = wait(pids[:1])
    if way == "stopped":
        os.kill(pids[1], signal.SIGKILL)
    codes += wait(pids[1:])
    seconds = time.perf_counter() - began
    lock.release()
    said = {str(rank): folder / f"said-{rank}" for rank in (0, 1)}
    texts = {rank: path.read_text() for rank, path in said.items() if path.exists()}
    return {"codes": codes, "pids": pids, "said": texts, "seconds": seconds}


def concludes(folder: Path) -> dict[str, Any]:
    """A GAN in two processes to its end; then one of them asks for an exchange on its own."""
    from hypersphere.training.config import GanConfig
    from hypersphere.training.distributed import one_process

    config = Config(
        task="gan",
        data=DataConfig(batch_size=16, share=0.1, test_share=0.2, normalize="symmetric"),
        model={"name": "sngan_discriminator", "widths": [4, 8]},
        gan=GanConfig({"name": "sngan_generator", "widths": [8, 4], "features": 6}, samples=20),
        train=TrainConfig(steps=2, quiet=True),
    )

    def work() -> None:
        fabric = make_fabric(accelerator="cpu", strategy="ddp")
        train(config, folder / "run", fabric=fabric)
        if fabric.is_global_zero:
            statistics = torch.nn.BatchNorm1d(3, track_running_stats=False)
            synchronize(torch.nn.Sequential(statistics))
            said = ""
            try:
                with one_process():
                    statistics(torch.randn(4, 3))
                    torch.distributed.all_reduce(torch.ones(1))
            except RunError as error:
                said = str(error)
            (folder / "said").write_text(said)
        fabric.barrier()

    codes = wait(start(2, work))
    return {"codes": codes, "said": (folder / "said").read_text()}


def noise(folder: Path) -> dict[str, Any]:
    """The first numbers of every z that the generator of a GAN is given in training."""
    from hypersphere.training import RunFolder, fit, prepare
    from hypersphere.training.config import GanConfig

    config = Config(
        task="gan",
        data=DataConfig(batch_size=16, share=0.1, test_share=0.2, normalize="symmetric"),
        model={"name": "sngan_discriminator", "widths": [4, 8]},
        gan=GanConfig({"name": "sngan_generator", "widths": [8, 4], "features": 6}, samples=20),
        train=TrainConfig(steps=3, test_every=4, quiet=True),
    )

    def work() -> None:
        fabric = make_fabric(accelerator="cpu", strategy="ddp")
        parts = prepare(config, fabric)
        generator, seen = parts.task.model["generator"], []

        def look(module: Any, inputs: tuple[Any, ...]) -> None:
            if module.training:  # a test draws the same everywhere
                seen.append(inputs[0].flatten()[:3].tolist())

        handle = generator.register_forward_pre_hook(look)
        fit(
            parts.task,
            RunFolder(folder / "run", write=fabric.is_global_zero),
            fabric,
            parts.settings,
        )
        handle.remove()
        weights = float(sum(p.detach().double().sum() for p in parts.task.model.parameters()))
        found = {"weights": weights, "z": seen}
        (folder / f"drawn-{fabric.global_rank}").write_text(json.dumps(found))
        fabric.barrier()

    codes = wait(start(2, work))
    drawn = [json.loads((folder / f"drawn-{rank}").read_text()) for rank in (0, 1)]
    return {"codes": codes, "drawn": drawn}


if __name__ == "__main__":
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # else every process looks through all that was imported, and copies its pages
    print(json.dumps(globals()[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])))
