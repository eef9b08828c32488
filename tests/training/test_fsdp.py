"""Weights spread over processes (`fabric.strategy: fsdp`) train the model one process would."""

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from ranks import VARIANTS, metrics
from small_run import run, small_config
from torch import nn

import warm
from hypersphere.training import RunError, TrainConfig, load_net, make_fabric
from hypersphere.training.config import DataConfig, OptimizerConfig, ScheduleConfig
from hypersphere.training.fsdp import refuse, units
from hypersphere.training.run.checkpoint import load_weights
from hypersphere.training.sharding import is_spread, whole_state, with_whole_weights


def processes(name: str, folder: Path, *arguments: str) -> dict:
    """What a function of `ranks.py` answers, with what it wrote to stderr."""
    script = Path(__file__).with_name("ranks.py")
    done = warm.run(
        [sys.executable, str(script), name, str(folder), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return {**json.loads(done.stdout.splitlines()[-1]), "stderr": done.stderr}


def curves(folder: Path) -> dict[str, list[float]]:
    """Every number of the log but accuracies (where rounding may move a sample), by name."""
    found: dict[str, list[float]] = {}
    for line in metrics(folder):
        values = {k: v for k, v in line.items() if isinstance(v, float)}
        values |= (
            {f"energy of {k}": v for k, v in line.get("energy", {}).items()}
            if (line["split"] == "monitor")
            else {}
        )
        for key, value in values.items():
            if "accuracy" not in key and "error" not in key:
                found.setdefault(f"{line['split']} {key}", []).append(value)
    return found


@pytest.fixture(scope="session")  # in any order, once
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("variants")
    processes("variants", folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_spread_weights_have_the_losses_and_energies_of_one_process(trained, name):
    alone, spread = (curves(trained / place / name) for place in ("alone", "spread"))
    assert set(alone) == set(spread)
    assert {"train loss", "test loss", "train mhe"} <= set(alone)
    for key, values in alone.items():
        assert spread[key] == pytest.approx(values, rel=2e-4), key


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_a_checkpoint_of_spread_weights_is_one_of_one_process(trained, name):
    """The same names, shapes and types in both files, near values; anyone can read the network."""
    last = "checkpoints/step-00000004"
    for file in ("model.safetensors", "state.safetensors"):
        alone, spread = (
            {
                k: v
                for k, v in load_weights(trained / d / name / last / file).items()
                if "rng" not in k
            }
            for d in ("alone", "spread")
        )
        assert {k: (v.shape, v.dtype) for k, v in alone.items()} == {
            k: (v.shape, v.dtype) for k, v in spread.items()
        }
        # a number beside spread weights: no joint step, which a GPU would take
        groups = json.loads((trained / "spread" / name / last / "state.json").read_text()[9:])
        if name.startswith("learned k"):
            assert '["foreach", false]' in json.dumps(groups)
        if file == "model.safetensors":
            torch.testing.assert_close(spread, alone, rtol=1e-3, atol=1e-4)
    x = torch.rand(4, 1, 8, 8)
    nets = [load_net(trained / place / name) for place in ("alone", "spread")]
    torch.testing.assert_close(nets[0](x), nets[1](x), rtol=1e-2, atol=1e-3)


CONFIG = """
data: {name: digits, batch_size: 64, share: 0.5}
model: {name: mlp, widths: [512, 512]}
head: {name: a_softmax, m: 3, annealing: {base: 50.0, minimum: 1.0}}
regularizers: {mhe: {}}
hooks: {monitor: {every: 2}}
optimizer: {name: adamw, lr: 0.001, weight_decay: 0.01}
schedule: {name: cosine}
train: {steps: 6, log_every: 1, test_every: 3, accumulate: 2, clip: 1.0, quiet: true}
fabric: {accelerator: cpu, strategy: fsdp}
run: {report: false}
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["torchrun", "fabric.devices"])
def test_the_command(tmp_path, way):
    (tmp_path / "config.yaml").write_text(CONFIG)
    command = ["hypersphere", "train", str(tmp_path / "config.yaml")]
    command += ["--run.folder", str(tmp_path / "run")]
    launch = ["torch.distributed.run", "--nproc-per-node", "2", "-m", *command]
    if way == "fabric.devices":
        launch = [*command, "--fabric.devices", "2"]
    done = warm.run(
        [sys.executable, "-m", *launch],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "everything is in" in done.stdout
    config = small_config(
        data=DataConfig(batch_size=64, share=0.5),
        model={"name": "mlp", "widths": [512, 512]},
        head={"name": "a_softmax", "m": 3, "annealing": {"base": 50.0, "minimum": 1.0}},
        regularizers={"mhe": {}},
        hooks={"monitor": {"every": 2}},
        optimizer=OptimizerConfig(name="adamw", lr=0.001, weight_decay=0.01),
        schedule=ScheduleConfig(name="cosine"),
        train=TrainConfig(steps=6, log_every=1, test_every=3, accumulate=2, clip=1.0, quiet=True),
    )
    run(config, tmp_path / "alone")
    alone, spread = curves(tmp_path / "alone"), curves(tmp_path / "run")
    assert set(alone) == set(spread)
    for key, values in alone.items():
        assert spread[key] == pytest.approx(values, rel=2e-4), key
    assert (tmp_path / "run/features.npz").exists()


@pytest.mark.slow
def test_killed_and_resumed_ends_bit_for_bit_where_the_whole_run_does(tmp_path):
    answer = processes("kills", tmp_path)
    assert any(place != "the start" for place in answer["killed at"])
    assert answer["equal"] == dict.fromkeys(answer["equal"], True)


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_processes(tmp_path):
    """DDP and FSDP, both directions; the line of the log that the change falls into included."""
    ways = processes("counts", tmp_path)["ways"]
    whole = curves(tmp_path / "whole")
    for way in ways:
        changed = curves(tmp_path / way)
        # ten steps, a test and a line of the log came at the end of the first part
        assert len(changed["train loss"]) == len(whole["train loss"]) + 1
        assert changed["test loss"] == pytest.approx(whole["test loss"], rel=1e-3), way
        assert changed["train loss"][-2:] == pytest.approx(whole["train loss"][-2:], rel=1e-3), way


@pytest.mark.slow
def test_what_goes_bad_on_one_process_is_named_by_both(tmp_path):
    answer = processes("spoiled", tmp_path)
    assert answer["codes"] == [0, 0]
    for rank in (0, 1):
        assert "'head.weight' went bad in the update before" in answer["said"][f"weight-{rank}"]
        assert "the batch itself holds NaN" in answer["said"][f"batch-{rank}"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "gan"}, "task gan has two networks"),
        ({"task": "graph"}, "task graph trains on one whole graph"),
        ({"task": "reconstruction"}, "task reconstruction trains an autoencoder"),
        ({"rotate": {"method": "cayley"}}, "rotate turns whole layers"),
        ({"optimizer": OptimizerConfig(name="ogd")}, "optimizer.name ogd"),
        ({"hooks": {"weighted_gradients": {}}}, "hooks.weighted_gradients"),
        ({"head": {"name": "a_softmax", "gradient": "caffe"}}, "head.gradient caffe"),
    ],
)
def test_what_cannot_be_spread_is_refused_before_training(changes, message):
    with pytest.raises(RunError, match=message) as error:
        refuse(small_config(**changes))
    assert "--fabric.strategy ddp" in str(error.value)
    refuse(small_config())


def test_strategies_and_precisions_that_do_not_exist_are_refused():
    with pytest.raises(ValueError, match="take auto, ddp or fsdp"):
        make_fabric("cpu", strategy="fsdp_cpu_offload")
    with pytest.raises(ValueError, match=r"got 16-mixed: choose one .*--fabric\.strategy ddp"):
        make_fabric("cpu", strategy="fsdp", precision="16-mixed")


def test_units_are_large_called_and_hold_every_parameter_once():
    big = nn.Linear(512, 512)
    block = nn.Sequential(nn.Linear(8, 8), nn.ModuleList([nn.Linear(512, 600)]))
    attention = nn.MultiheadAttention(512, 4)  # reads the weights of its parts by itself
    scalar = nn.Parameter(torch.tensor(1.0))
    root = nn.Sequential(big, block, attention)
    root.register_parameter("scalar", None)
    found = units(root, {scalar})
    assert found == [big, block[1][0], attention, root]
    assert units(nn.Linear(2, 2)) != []
    assert units(nn.ReLU()) == []


def test_tied_weights_stay_in_one_unit():
    first, second = nn.Linear(512, 512), nn.Linear(512, 512)
    second.weight = first.weight
    root = nn.Sequential(first, second)
    assert units(root) == [root]


def test_one_process_has_nothing_spread():
    net = nn.Linear(3, 2)
    assert not is_spread(net)
    assert with_whole_weights(net, lambda seen: seen is net)
    assert set(whole_state(net)) == {"weight", "bias"}
