"""`hypersphere compare A.yaml[:variant,...] B.yaml ... --seeds 0 1 2`: methods over seeds."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from hypersphere._terminal import begin, columns_of, complain
from hypersphere.commands._compare_arguments import read_arguments
from hypersphere.commands._yaml import ConfigError
from hypersphere.commands.plugins import import_plugin, split_plugins

USAGE = """usage: hypersphere compare CONFIG.yaml[:VARIANT,...] ... [--seeds 0 1 2]
                           [--folder FOLDER] [--section.key value ...]

Trains every config with every seed (runs that are complete are not repeated)
and prints mean +- deviation of the last and the best test value; a run that
diverges counts as not converged. Table (comparison.txt) and comparison.json
are written after every run, those of tuning too, so it can be stopped at any
moment; the same command goes on.
Further options apply to all configs.

  --seeds N ...         seeds (default: 0 1 2)
  --folder FOLDER       where the runs go (default: runs/compare)
  --metric NAME         of the test: accuracy, error, top5_error, loss, ..., or
                        of unseen classes: verification_accuracy,
                        verification_eer (default: that of the recipes, or what
                        their task has in its place)
  --jobs N              runs at a time, with one thread each (default: 1)
  --baseline NAME       a row of the table, or the variant or file that makes
                        it: differences to it over the same seeds, with 95 %
                        intervals and a verdict
  --tune KEY=V1,V2,...  choose a setting for each config on a part of the
                        training samples (data.holdout), then train with it;
                        repeated for a grid. NAME:KEY=... tunes one config only
  --holdout SHARE       that part (default: 0.2)
  --plugin MODULE       import parts of your own from a module or a .py file;
                        may be repeated

Options of the configs: `hypersphere train CONFIG.yaml --help`.
"""


def main(argv: Sequence[str]) -> int:
    if any(a in ("-h", "--help") for a in argv):
        print(USAGE)
        return 0
    try:
        words, plugins = split_plugins(argv)
        arguments = read_arguments(words)
        if any(word.partition("=")[0] == "--run.folder" for word in arguments.rest):
            raise ConfigError("each run has a folder of its own: name theirs with --folder FOLDER")
    except ConfigError as error:
        complain("compare", error)
        return 2
    count = len(arguments.specs)
    begin(f"reading {count} config{'s' * (count > 1)} ...", everywhere=True)
    from hypersphere.commands._comparing import Comparison
    from hypersphere.commands._comparison import table
    from hypersphere.training.interrupt import Interrupted
    from hypersphere.training.run.checkpoint import RunError

    try:
        for name in plugins:
            import_plugin(name)
        arguments.plugins = [_whole_path(name) for name in plugins]
        comparison = Comparison(arguments, shlex.join(["hypersphere", "compare", *argv]))
        comparison.run()
    except ConfigError as error:
        complain("compare", error)
        return 2
    except Interrupted as stop:
        print(
            "hypersphere compare: interrupted; the same command goes on from here", file=sys.stderr
        )
        return 128 + stop.signal
    except (RunError, ValueError, OSError) as error:
        complain("compare", error)
        return 1
    width = columns_of(sys.stdout) if sys.stdout.isatty() else 80
    print(table(comparison.methods, comparison.metric, comparison.baseline, width))
    print(f"\nruns and comparison.json are in {arguments.folder}; side by side as a page:")
    print(f"  hypersphere report {shlex.quote(str(arguments.folder))}/*-seed*/")
    return 0


def _whole_path(plugin: str) -> str:
    """A plugin as another process finds it: a file by its whole path, a module by its name."""
    path = Path(plugin)
    return str(path.resolve()) if path.is_file() else plugin
