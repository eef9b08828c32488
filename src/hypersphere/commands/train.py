"""`hypersphere train [CONFIG.yaml[:variant,...]] [--section.key value ...] [--resume [FOLDER]]`.

Importing torch takes seconds. This file reads the command line and says the first words without it;
`_training.py` does the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypersphere._terminal import begin, complain
from hypersphere.commands._train_arguments import (
    first_words,
    is_first_process,
    read_train_arguments,
)
from hypersphere.commands._yaml import ConfigError

USAGE = """usage: hypersphere train [CONFIG.yaml[:VARIANT,...]] [--section.key value ...]

Without a config: letters of three alphabets, drawn with matplotlib's fonts, and
a small network with an annealed A-Softmax head; then verification of letters of
two alphabets that it has never seen, beside the same network with a softmax
head and beside the bare pixels. About a minute on two cores.

  --variant NAME     a variant of the config, e.g. cpu; as CONFIG.yaml:NAME
  --resume [FOLDER]  continue the newest run of this config, or the run in
                     FOLDER; length, intervals, threads, data.root and fabric
                     may change (docs/training.md has the list)
  --plugin MODULE    import parts of your own from a module or a .py file; may
                     be repeated
  --baseline [true]  train the plain network too, and print both side by side;
                     on without a config, --baseline false skips it
  --print_config     show the resolved config and stop
  --print_schema     show the JSON schema of configs, with which editors
                     complete them, and stop
  --help [TOPIC]     this, and every option of the parts that the config names;
                     TOPIC is a section (optimizer), an option (train.steps) or
                     a part (head.arcface)

A hook or a regularizer with its defaults: --hooks.monitor; without one that the
config names: --regularizers.mhe null.
several processes: --fabric.devices 2, or
                   torchrun --nproc-per-node 2 -m hypersphere train ...
"""

# The example of the README: about a minute on two cores, the plain network included.
DEFAULT: dict[str, Any] = {
    "data": {"name": "letters", "batch_size": 128},
    "model": {"name": "cnn3", "widths": [16, 32, 64], "depths": [1, 1, 1], "features": 64},
    "head": {
        "name": "a_softmax",
        "m": 4,
        "annealing": {"base": 100.0, "gamma": 0.05, "power": 1.0, "minimum": 2.0},
    },
    "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4},
    "schedule": {"name": "cosine"},
    "hooks": {"monitor": {"every": 50}},
    "train": {"steps": 600, "log_every": 20},
    "run": {"baseline": True},
}


def main(argv: Sequence[str]) -> int:
    try:
        arguments = read_train_arguments(argv)
        words = first_words(arguments, DEFAULT) if is_first_process() else ""
    except ConfigError as error:
        complain("train", error)
        return 2
    if arguments.topic is True:
        print(USAGE, flush=True)
    begun = bool(words) and begin(words, everywhere=True)
    from hypersphere.commands._training import run

    return run(arguments, DEFAULT, begun)
