"""Training: one readable loop, hooks, schedules, checkpoints, and the record of every run.

`train(config, folder)` is a whole run; `fit(task, ...)` is the loop alone.
"""

from __future__ import annotations

# Hooks and tasks enter the register where they are defined.
import hypersphere.training.adversarial
import hypersphere.training.hooks
import hypersphere.training.loggers
import hypersphere.training.metric_losses
import hypersphere.training.mixup
import hypersphere.training.tasks  # noqa: F401
from hypersphere.training.config import (
    Config,
    DataConfig,
    DissertationConfig,
    FabricConfig,
    OptimizerConfig,
    RunConfig,
    ScheduleConfig,
    ThesisConfig,
    TrainConfig,
)
from hypersphere.training.diagnose import NotFinite
from hypersphere.training.distributed import make_fabric, synchronize
from hypersphere.training.job import Outcome, train
from hypersphere.training.loop import fit
from hypersphere.training.monitors import Monitor, layer_angles, layer_energies
from hypersphere.training.optimizers import make_optimizer, optimizer_groups
from hypersphere.training.prepare import prepare
from hypersphere.training.run.checkpoint import RunError, load_checkpoint, save_checkpoint
from hypersphere.training.run.folder import RunFolder
from hypersphere.training.run.load import load_net
from hypersphere.training.runtime import Objective, Player, Run, Settings
from hypersphere.training.tasks.classification import (
    Classification,
    ClassifierLoss,
    extract_features,
)

parameter_groups = optimizer_groups  # the name until version 0.2

__all__ = [
    "Classification",
    "ClassifierLoss",
    "Config",
    "DataConfig",
    "DissertationConfig",
    "FabricConfig",
    "Monitor",
    "NotFinite",
    "Objective",
    "OptimizerConfig",
    "Outcome",
    "Player",
    "Run",
    "RunConfig",
    "RunError",
    "RunFolder",
    "ScheduleConfig",
    "Settings",
    "ThesisConfig",
    "TrainConfig",
    "extract_features",
    "fit",
    "layer_angles",
    "layer_energies",
    "load_checkpoint",
    "load_net",
    "make_fabric",
    "make_optimizer",
    "optimizer_groups",
    "parameter_groups",
    "prepare",
    "save_checkpoint",
    "synchronize",
    "train",
]
