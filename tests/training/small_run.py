"""A run that takes a second: a tiny network on the embedded digits, with every kind of state in
it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypersphere.training import Config, make_fabric, train
from hypersphere.training.config import DataConfig, OptimizerConfig, ScheduleConfig, TrainConfig


def small_config(**changes: Any) -> Config:
    """Digits, cnn3 of width 4, annealed A-Softmax, Adam, plateau schedule; `changes` replace
    sections.
    """
    settings: dict[str, Any] = {
        "data": DataConfig(batch_size=32, share=0.3, test_share=0.3),
        "model": {"name": "cnn3", "widths": [4, 4, 4], "features": 8, "operator": "tanh"},
        "head": {"name": "a_softmax", "m": 4, "annealing": {"base": 50.0, "minimum": 1.0}},
        "optimizer": OptimizerConfig(name="adam", lr=3e-3, weight_decay=1e-4),
        "schedule": ScheduleConfig(name="plateau", patience=1, factor=0.5),
        "train": TrainConfig(steps=12, log_every=4, test_every=4, quiet=True),
    }
    settings.update(changes)
    return Config(**settings)


def run(config: Config, folder: Path | str, resume: bool = False) -> Any:
    """Train it on the CPU in this process."""
    fabric = make_fabric(accelerator="cpu", devices=1)
    return train(config, folder, resume=resume, fabric=fabric)
