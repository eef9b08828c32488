"""Where a loader stands in its epochs, kept by checkpoints and taken up again."""

from __future__ import annotations

from typing import Any

__all__ = ["KeepsPlace"]


class KeepsPlace:
    """A loader that goes on where it stopped.

    It has ``dataset``, ``batch_size``, ``seed`` and ``world_size``, which a resumed one has to
    share, and `__len__`, the batches of an epoch. Its `__iter__` begins with `_begin` and counts
    the batches in `_served`.
    """

    dataset: Any
    batch_size: int
    seed: int
    world_size: int
    epoch = 0
    _served = 0  # batches of this epoch that the caller has received
    _resume = False

    def __len__(self) -> int:
        raise NotImplementedError

    def state_dict(self) -> dict[str, int]:
        """Where the loader stands; everything else is given by its arguments.

        The place is that after the last batch received, also once the `for` loop was left with
        `break`: a run that stops in the middle of an epoch is resumed there. The loader itself
        would begin that epoch again; give it its own state (`load_state_dict`) to go on instead.

        Returns:
            Epoch, batch, and the arguments that a resumed loader has to share.
        """
        done = self._served == len(self)
        return {
            "epoch": self.epoch + done,
            "batch": 0 if done else self._served,
            "seed": self.seed,
            "samples": len(self.dataset),
            "batch_size": self.batch_size,
            "world_size": self.world_size,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a state was taken; the next `for` loop serves the rest of that epoch.

        Args:
            state: what `state_dict` returned.

        Raises:
            ValueError: if it is of a loader whose batches would be others.
        """
        for key, own in self.state_dict().items():
            if key not in state:
                raise ValueError(f"the loader state has no {key!r}; it has {sorted(state)}")
            if key not in ("epoch", "batch") and state[key] != own:
                raise ValueError(
                    f"the state is of a loader with {key}={state[key]}, this one has {key}={own}: "
                    f"its batches would be others. Use the same {key} to resume"
                )
        self.epoch, self._served, self._resume = int(state["epoch"]), int(state["batch"]), True

    def _begin(self) -> int:
        """The first batch of this `for` loop."""
        self._served = self._served if self._resume else 0
        self._resume = False
        return self._served

    def _end(self) -> None:
        """An epoch was served whole."""
        self.epoch += 1
        self._served = 0
