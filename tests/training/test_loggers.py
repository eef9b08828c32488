"""What goes to metrics.jsonl also arrives where people log, without a network."""

import json

import pytest

from hypersphere.training import Config, DataConfig, TrainConfig, train


def run(folder, steps=4, **hooks):
    config = Config(
        data=DataConfig(name="digits", batch_size=32, share=0.2),
        model={"name": "mlp", "widths": [4]},
        hooks={"monitor": {"every": 2}, **hooks},
        train=TrainConfig(steps=steps, log_every=2, test_every=2, quiet=True),
    )
    train(config, folder)
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    lines = run(tmp_path / "a", tensorboard={})
    events = EventAccumulator(str(tmp_path / "a/tensorboard"))
    events.Reload()
    for split, name in (("train", "loss"), ("test", "accuracy")):
        wanted = [(row["step"], row[name]) for row in lines if row["split"] == split]
        found = [(e.step, e.value) for e in events.Scalars(f"{split}/{name}")]
        assert [step for step, _ in found] == [step for step, _ in wanted] == [2, 4]
        assert [v for _, v in found] == pytest.approx([v for _, v in wanted])
    layers = {k for row in lines if row["split"] == "monitor" for k in row["energy"]}
    assert layers and {f"monitor/energy/{k}" for k in layers} <= set(events.Tags()["scalars"])


def test_mlflow(tmp_path):
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    lines = run(tmp_path / "a", mlflow={})
    client = MlflowClient(tracking_uri=(tmp_path / "a/mlruns").resolve().as_uri())
    experiment = client.get_experiment_by_name("hypersphere")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED" and "mlp" in found.data.params["model"]
    history = client.get_metric_history(found.info.run_id, "test/accuracy")
    wanted = [(row["step"], row["accuracy"]) for row in lines if row["split"] == "test"]
    assert [(m.step, m.value) for m in history] == wanted


@pytest.mark.slow
def test_wandb_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    for key in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(key, str(tmp_path / key))
    lines = run(tmp_path / "a", wandb={"project": "letters"})
    (file,) = (tmp_path / "a/wandb").glob("offline-run-*/run-*.wandb")
    content = file.read_bytes()
    assert b"test/accuracy" in content and b"train/loss" in content
    assert len([row for row in lines if row["split"] == "test"]) == 2


def test_a_logger_of_ones_own(tmp_path):
    class Keep:
        def __init__(self):
            self.lines = []

        def logged(self, run, step, split, values):
            self.lines.append((step, split, dict(values)))

    keep = Keep()
    lines = run(tmp_path / "a", mine=keep)
    assert [(s, p) for s, p, _ in keep.lines] == [(row["step"], row["split"]) for row in lines]
    written = [
        {k: v for k, v in row.items() if k not in ("step", "split", "time")} for row in lines
    ]
    assert [values for _, _, values in keep.lines] == written


def test_wrong_mode():
    pytest.importorskip("wandb")
    from hypersphere.training.loggers import WandbLog

    with pytest.raises(ValueError, match=r"wandb.mode must be 'offline' or 'online'; got 'of'"):
        WandbLog(mode="of")
