"""A training that does not move says so at its log lines, and why; see `heads.diagnose`."""

from __future__ import annotations

import re
from typing import Any

from torch import Tensor

from hypersphere.heads import MarginHead, diagnose
from hypersphere.heads.diagnosis import Start, first_look

__all__ = ["WatchHead"]

# Before so many updates a loss of log C is natural.
FRESH = 30


class WatchHead:
    """`heads.diagnose` on the last batch before each log line; each advice is said once.

    A line of the first updates is compared with the first of all: what is natural there is not
    told, what becomes worse is. The first line that has something to say is also kept in
    diagnosis.json. Nothing happens for heads that are sharded or spread over processes, or not of
    this package.
    """

    def __init__(self) -> None:
        self.said: set[str] = set()
        self.batch: tuple[Tensor, Tensor] | None = None
        self.at_start: Start | None = None

    def terms(self, run: Any, batch: Any, outputs: Any, final: bool) -> dict[str, Tensor]:
        done = run.step + 1
        logs = done % run.settings.log_every == 0 or done == run.settings.steps
        if final and (logs or run.step == 0) and self._watches(run, batch, outputs):
            if run.step == 0:
                self.at_start = first_look(run.model.head, outputs, batch[1])
            self.batch = (outputs.detach(), batch[1]) if logs else None
        return {}

    def log(self, run: Any) -> dict[str, float]:
        if self.batch is None:
            return {}
        (features, labels), self.batch = self.batch, None
        if not bool((labels >= 0).any()):
            return {}
        fresh = run.step < FRESH
        start = self.at_start if fresh else None
        found = diagnose(run.model.head, features, labels, fresh=fresh, start=start)
        new = [text for text in found.advice if _kind(text) not in self.said]
        if new and not self.said:
            content = {"step": run.step, "found": str(found), "advice": found.advice}
            run.folder.json("diagnosis.json", content)
        self.said |= set(map(_kind, new))
        run.notes += [f"diagnosis at step {run.step}: {text}" for text in new]
        return {}

    @staticmethod
    def _watches(run: Any, batch: Any, outputs: Any) -> bool:
        head = getattr(run.model, "head", None)
        if not isinstance(head, MarginHead) or head.shard is not None:
            return False
        whole = type(head.weight.data) is Tensor  # not spread by FSDP
        if not whole or not isinstance(outputs, Tensor) or outputs.ndim != 2 or len(batch) < 2:
            return False
        labels = batch[1]
        fits = isinstance(labels, Tensor) and labels.ndim == 1 and not labels.is_floating_point()
        return fits and len(labels) == len(outputs) and not getattr(head, "detached", False)


def _kind(text: str) -> str:
    """An advice is known by its first words; the numbers in it change."""
    return re.sub(r"-?[0-9][0-9.e+-]*", "#", text)[:30]
