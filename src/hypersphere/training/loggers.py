"""Where people log: what goes to metrics.jsonl also goes to TensorBoard, Weights & Biases, MLflow.

All three write below the run folder unless told otherwise, and need no network.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from hypersphere._optional import require
from hypersphere.registry import register

__all__ = ["MLflowLog", "TensorBoardLog", "WandbLog", "scalars"]


def scalars(split: str, values: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The numbers of a log line, under one level of names.

    Args:
        split: "train", "test" or "monitor", which begins each name.
        values: names and numbers, or further such mappings (the energy of each layer).
        prefix: what stands before each name after the split.

    Returns:
        Numbers by name.

    >>> scalars("test", {"loss": 0.5, "energy": {"conv1": 1.25}, "note": "text"})
    {'test/loss': 0.5, 'test/energy/conv1': 1.25}
    """
    found: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found.update(scalars(split, value, f"{prefix}{name}/"))
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found[f"{split}/{prefix}{name}"] = float(value)
    return found


def _settings(run: Any) -> dict[str, Any]:
    """The config that run.json holds."""
    from hypersphere.training.run.records import read_record

    record = read_record(run.folder.path / "run.json")
    config = record.get("config")
    return dict(config) if isinstance(config, Mapping) else {}


@register("hook", "tensorboard", source="logging")
class TensorBoardLog:
    """Write scalars for TensorBoard: ``tensorboard --logdir RUN/tensorboard``.

    Needs `pip install 'torch-hypersphere[logging]'`.

    Args:
        folder: below the run folder. Default: "tensorboard".
    """

    def __init__(self, folder: str = "tensorboard") -> None:
        self.folder = folder
        require("tensorboard", extra="logging")
        self._writer: Any = None

    def start(self, run: Any) -> None:
        if run.folder.write:
            module = require("torch.utils.tensorboard", extra="logging")
            # Lines of a resumed run take the place of those after its checkpoint.
            self._writer = module.SummaryWriter(
                str(run.folder.path / self.folder), purge_step=run.step + 1 if run.step else None
            )

    def logged(self, run: Any, step: int, split: str, values: Mapping[str, Any]) -> None:
        if self._writer is not None:
            for name, value in scalars(split, values).items():
                self._writer.add_scalar(name, value, step)

    def finish(self, run: Any) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


@register("hook", "wandb", source="logging")
class WandbLog:
    """Log to Weights & Biases.

    Needs `pip install 'torch-hypersphere[logging]'`. Runs stay below the run folder until
    ``wandb sync`` sends them.

    Args:
        project: name of the project. Default: "hypersphere".
        mode: "offline", or "online" to send while training. Default: "offline".
    """

    def __init__(self, project: str = "hypersphere", mode: str = "offline") -> None:
        if mode not in ("offline", "online"):
            raise ValueError(f"wandb.mode must be 'offline' or 'online'; got {mode!r}")
        self.project, self.mode = project, mode
        require("wandb", extra="logging")
        self._run: Any = None

    def start(self, run: Any) -> None:
        if run.folder.write:
            wandb = require("wandb", extra="logging")
            name = run.folder.path.resolve().name
            self._run = wandb.init(
                project=self.project,
                name=name,
                dir=str(run.folder.path),
                mode=self.mode,
                config=_settings(run),
                settings=wandb.Settings(console="off", silent=True),
            )

    def logged(self, run: Any, step: int, split: str, values: Mapping[str, Any]) -> None:
        if self._run is not None:
            self._run.log(scalars(split, values), step=step)

    def finish(self, run: Any) -> None:
        if self._run is not None:
            self._run.summary.update(scalars("best", run.best))
            self._run.finish()
            self._run = None


@register("hook", "mlflow", source="logging")
class MLflowLog:
    """Log to MLflow, by default into files: ``mlflow ui --backend-store-uri RUN/mlruns``.

    Needs `pip install 'torch-hypersphere[logging]'`.

    Args:
        experiment: name of the experiment. Default: "hypersphere".
        uri: where MLflow keeps runs, a folder or an address. Default: RUN/mlruns.
    """

    def __init__(self, experiment: str = "hypersphere", uri: str | None = None) -> None:
        self.experiment, self.uri = experiment, uri
        require("mlflow", extra="logging")
        self._client: Any = None
        self._id = ""

    def start(self, run: Any) -> None:
        if not run.folder.write:
            return
        tracking = require("mlflow.tracking", extra="logging")
        # MLflow asks for this word before it writes plain files.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        uri = self.uri or (run.folder.path / "mlruns").resolve().as_uri()
        self._client = tracking.MlflowClient(tracking_uri=uri)
        found = self._client.get_experiment_by_name(self.experiment)
        experiment = (
            self._client.create_experiment(self.experiment)
            if found is None
            else found.experiment_id
        )
        name = run.folder.path.resolve().name
        self._id = self._client.create_run(experiment, run_name=name).info.run_id
        for section, value in _settings(run).items():
            self._client.log_param(self._id, section, str(value)[:5000])

    def logged(self, run: Any, step: int, split: str, values: Mapping[str, Any]) -> None:
        if self._client is not None:
            for name, value in scalars(split, values).items():
                self._client.log_metric(self._id, name, value, step=step)

    def finish(self, run: Any) -> None:
        if self._client is not None:
            self._client.set_terminated(self._id)
            self._client = None
