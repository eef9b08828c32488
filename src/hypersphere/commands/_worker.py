"""`python -m hypersphere.commands._worker`: one run of `train` after the other in one process.

A campaign has many short runs, and starting Python and torch takes as long as some of them. Each
line of the input is a JSON object {"arguments": [...], "log": FILE}; its exit code is the answer.
A run that a signal has stopped ends the worker.
"""

from __future__ import annotations

import gc
import json
import os
import sys

from hypersphere.commands.train import main


def work() -> int:
    """Train what the input asks for; what the runs print goes to their logs."""
    with os.fdopen(os.dup(1), "w") as answers:
        for line in sys.stdin:
            code = _train(**json.loads(line))
            if code >= 128:
                return code
            # Objects of a run refer to one another: unless collected, its data stays beside the
            # next run's.
            gc.collect()
            print(code, file=answers, flush=True)
    return 0


def _train(arguments: list[str], log: str) -> int:
    with open(log, "ab") as target:
        for stream in (1, 2):
            os.dup2(target.fileno(), stream)
    sys.argv = ["hypersphere", "train", *arguments]  # what the run's record quotes
    try:
        code = main(arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    sys.exit(work())
