"""Kills a training run at random times until it is through, then compares it with one left alone.

A process of its own: it imports once and forks a fresh child for every attempt, so that a kill
costs milliseconds. Arguments: folder, seed, number of kills. Prints a JSON line with what
happened.
"""

import json
import os
import random
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

import torch
from small_run import run, small_config

from hypersphere.training.config import DataConfig, TrainConfig
from processes import wait_for_work


def config():
    """Everything that has a state: dropout-like noise, augmentation, annealing, projections,
    plateau.
    """
    train = TrainConfig(steps=40, log_every=5, test_every=7, checkpoint_every=2, quiet=True)
    return small_config(
        data=DataConfig(batch_size=32, share=0.3, test_share=0.3, augment="cifar"),
        regularizers={"comhe": {"projection": "random", "dim": 3, "count": 2}},
        train=train,
    )


def child(folder: Path) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            torch.manual_seed(random.randrange(1000))  # a resumed run must not depend on this
            run(config(), folder, resume=True)
            code = 0
        finally:
            os._exit(code)
    return pid


def main(folder: Path, seed: int, kills: int) -> None:
    draw = random.Random(seed)
    usage = os.wait4(child(folder / "whole"), 0)[2]
    whole = usage.ru_utime + usage.ru_stime
    killed = finished = 0
    while not finished:
        pid = child(folder / "killed")
        if killed < kills:
            wait_for_work(pid, draw.uniform(0.1, 0.6) * whole)
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            killed += 1
        elif os.WEXITSTATUS(status) == 0:
            finished = 1
        else:
            raise SystemExit(f"a run failed with {os.WEXITSTATUS(status)}")
    equal = {}
    for name in ("model.safetensors", "state.safetensors"):
        parts = [folder / d / "checkpoints/step-00000040" / name for d in ("whole", "killed")]
        equal[name] = parts[0].read_bytes() == parts[1].read_bytes()
    lines = []
    for d in ("whole", "killed"):
        text = (folder / d / "metrics.jsonl").read_text().splitlines()
        lines.append([{**json.loads(x), "time": 0} for x in text])
    equal["metrics"] = lines[0] == lines[1]
    print(json.dumps({"kills": killed, "equal": equal}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
