"""The command line of `hypersphere compare`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from hypersphere.commands._numbers import Processes, Seed, read_value
from hypersphere.commands._yaml import ConfigError
from hypersphere.ranges import Range

__all__ = ["Arguments", "read_arguments"]

TAKE_VALUE = ("--folder", "--metric", "--jobs", "--baseline", "--holdout", "--tune")

Part = Annotated[float, Range(ge=0.01, lt=1)]  # of the training samples


@dataclass
class Arguments:
    """The command line of `compare`."""

    specs: list[str]
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    folder: Path = Path("runs/compare")
    metric: str | None = None
    jobs: int = 1
    baseline: str | None = None
    tune: list[str] = field(default_factory=list)
    holdout: float = 0.2
    rest: list[str] = field(default_factory=list)
    plugins: list[str] = field(default_factory=list)
    # Of claims, which name their methods, change some settings of each, and say how to tune.
    names: list[str] = field(default_factory=list)
    options: list[list[str]] = field(default_factory=list)
    tuning_metric: str | None = None
    one_thread: bool = False
    divergence_counts: bool = False


def read_arguments(argv: list[str]) -> Arguments:
    """What the words of a command line ask for."""
    specs: list[str] = []
    while argv and not argv[0].startswith("--"):
        specs.append(argv.pop(0))
    if not specs:
        raise ConfigError(
            "name at least one config, as in `hypersphere compare a.yaml b.yaml --seeds 0 1 2`; "
            "--help tells more"
        )
    found, held_out = Arguments(specs), False
    while argv:
        flag = argv.pop(0)
        if flag == "--seeds":
            found.seeds = []
            while argv and not argv[0].startswith("--"):
                found.seeds.append(_number(argv.pop(0), "--seeds", Seed))
        elif flag in TAKE_VALUE and (not argv or argv[0].startswith("--")):
            raise ConfigError(f"{flag} needs a value")
        elif flag in TAKE_VALUE and not argv[0].strip():
            raise ConfigError(f"{flag} needs a value; got {argv[0]!r}")
        elif flag == "--folder":
            found.folder = Path(argv.pop(0))
        elif flag == "--metric":
            found.metric = argv.pop(0)
        elif flag == "--jobs":
            found.jobs = _number(argv.pop(0), "--jobs", Processes)
        elif flag == "--baseline":
            found.baseline = argv.pop(0)
        elif flag == "--holdout":
            held_out = True
            found.holdout = _number(argv.pop(0), "--holdout", Part)
        elif flag == "--tune":
            found.tune.append(argv.pop(0))
        else:
            found.rest.append(flag)
    if held_out and not found.tune:
        raise ConfigError(
            "--holdout is what tuning holds out of the training samples, and nothing is tuned: "
            "give --tune KEY=V1,V2,... too, or leave --holdout out"
        )
    if not found.seeds:
        raise ConfigError("--seeds takes at least one whole number")
    for number, seed in enumerate(found.seeds):
        if seed in found.seeds[:number]:
            raise ConfigError(f"--seeds names seed {seed} twice: a run counts once; leave one out")
    return found


def _number(text: str, flag: str, hint: Any) -> Any:
    try:
        return read_value(flag, text, hint)
    except ValueError as error:
        raise ConfigError(str(error)) from None
