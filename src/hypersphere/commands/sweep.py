"""`hypersphere sweep CONFIG.yaml --search head.m=1:4 ...`: settings by cross-validation, with
Optuna.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hypersphere._optional import require
from hypersphere.commands import _config

USAGE = """usage: hypersphere sweep CONFIG.yaml[:VARIANT,...] --search KEY=SPACE ... [--trials 20]
[--folds 3]
                         [--storage URL] [--study NAME] [--section.key value ...]

SPACE is what may stand for the option KEY:
  1:4           whole numbers from 1 to 4           0.1:0.9       numbers from 0.1 to 0.9
  1e-4:1e-1:log the same on a logarithmic scale     a,b,c         one of these

  hypersphere sweep my.yaml --search head.m=1:4 --search model.angular=linear,cosine,sigmoid \\
      --search regularizers.mhe.hidden=0.01:100:log

Each trial trains --folds times on all but one part of the training set and is scored on that part;
the test set is never touched. Trials are kept in SQLite (runs/NAME/sweep.db); any Optuna storage
works, and several processes or machines that name the same --storage and --study share the work.

  --trials N      trials of this process (default: 20)
  --folds N       parts of the cross-validation (default: 3)
  --metric NAME   of the test, default: accuracy, to be maximized; --minimize if less is better
"""


def main(argv: Sequence[str]) -> int:
    if not argv or any(a in ("-h", "--help") for a in argv):
        print(USAGE)
        return 0
    from hypersphere.training.checkpoints import RunError

    try:
        return _run(list(argv))
    except _config.ConfigError as error:
        print(f"hypersphere sweep: {error}", file=sys.stderr)
        return 2
    except (RunError, ValueError, FileNotFoundError) as error:
        print(f"hypersphere sweep: {error}", file=sys.stderr)
        return 1


def parse_space(text: str) -> Callable[[Any, str], Any]:
    """'1:4', '1e-3:1:log' or 'a,b' -> a function that asks an Optuna trial for a value."""
    parts = text.split(":")
    if len(parts) in (2, 3) and parts[2:] in ([], ["log"]):
        log = len(parts) == 3
        try:
            if all(p.lstrip("-").isdigit() for p in parts[:2]):
                low, high = int(parts[0]), int(parts[1])
                return lambda trial, key: trial.suggest_int(key, low, high, log=log)
            bounds = float(parts[0]), float(parts[1])
            return lambda trial, key: trial.suggest_float(key, *bounds, log=log)
        except ValueError:
            pass
    if "," in text:
        choices = text.split(",")
        return lambda trial, key: trial.suggest_categorical(key, choices)
    raise _config.ConfigError(f"{text!r} is no space: give low:high, low:high:log, or a,b,c")


def _run(argv: list[str]) -> int:
    optuna = require("optuna", extra="sweep")
    spec = argv.pop(0) if not argv[0].startswith("--") else None
    if spec is None:
        raise _config.ConfigError("name a config")
    own: dict[str, Any] = {"trials": "20", "folds": "3", "metric": "accuracy"}
    space: dict[str, Callable[[Any, str], Any]] = {}
    rest: list[str] = []
    while argv:
        flag = argv.pop(0)
        name = flag.removeprefix("--")
        if flag == "--search" and argv:
            key, _, text = argv.pop(0).partition("=")
            space[key] = parse_space(text)
        elif flag == "--minimize":
            own["minimize"] = True
        elif name in ("trials", "folds", "metric", "storage", "study") and argv:
            own[name] = argv.pop(0)
        else:
            rest.append(flag)
    if not space:
        raise _config.ConfigError("name at least one --search KEY=SPACE")
    path, variants = _config.split_spec(spec)
    study_name = own.get("study", "-".join([path.stem, *variants]))
    folder = Path("runs") / f"sweep-{study_name}"
    folder.mkdir(parents=True, exist_ok=True)
    storage = own.get("storage", f"sqlite:///{folder / 'sweep.db'}")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        study_name=study_name,
        storage=storage,
        direction="minimize" if "minimize" in own else "maximize",
        sampler=optuna.samplers.TPESampler(seed=None if "storage" in own else 0),
        load_if_exists=True,
    )

    def objective(trial: Any) -> float:
        values = {key: ask(trial, key) for key, ask in space.items()}
        arguments = [*rest, *(f"--{k}={v}" for k, v in values.items())]
        value = cross_validate(spec, arguments, int(own["folds"]), own["metric"], folder / "runs")
        shown = "  ".join(f"{k} {v}" for k, v in values.items())
        print(f"trial {trial.number}: {own['metric']} {value:.4f}  {shown}", flush=True)
        return value

    # Wrong names and values are refused here, before the first trial.
    _config.read(spec, [*rest, *(f"--{k}={_example(ask)}" for k, ask in space.items())])
    from hypersphere.training.diagnose import NotFinite

    study.optimize(objective, n_trials=int(own["trials"]), catch=(NotFinite,))
    best = {"value": study.best_value, "parameters": study.best_params, "metric": own["metric"]}
    (folder / "best.json").write_text(json.dumps(best, indent=2) + "\n")
    print(f"\nbest {own['metric']} {study.best_value:.4f} over {own['folds']} folds, with")
    print("  " + " ".join(f"--{k} {v}" for k, v in study.best_params.items()))
    print(f"all trials: {storage}")
    return 0


def _example(ask: Callable[[Any, str], Any]) -> Any:
    """One value of a space, without a study."""

    class First:
        suggest_int = suggest_float = staticmethod(lambda key, low, high, log=False: low)
        suggest_categorical = staticmethod(lambda key, choices: choices[0])

    return ask(First, "")


def cross_validate(
    spec: str, arguments: Sequence[str], folds: int, metric: str, folder: Path
) -> float:
    """Mean of the last test value over folds of the training part."""
    from hypersphere.training.crossval import cross_validated

    config = _config.read(spec, [*arguments, "--run.report", "false", "--train.quiet", "true"])
    values = cross_validated(config, folds, folder)
    if metric not in values[0]:
        known = ", ".join(k for k in values[0] if k != "step")
        raise ValueError(f"the test has no {metric!r}; it has: {known}")
    return sum(v[metric] for v in values) / len(values)
