"""The `hypersphere` command: finds the subcommand and hands over; each lives in `commands/`."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any

from ._terminal import complain, hanging, plain_log, plain_warnings
from ._version import __version__
from .commands import listing
from .commands.listing import LISTINGS
from .registry import nearest

COMMANDS = {
    "align": "find the faces of pictures, crop and align them",
    "train": "train a model from a config; without one, the example of letters",
    "evaluate": "verification, identification, robustness and more, from a run or from features",
    "compare": "several configs over several seeds: mean and deviation, last and best",
    "claims": "which claims of the dissertation hold: the verdicts, and the runs behind them",
    "sweep": "search over settings by cross-validation",
    "report": "one HTML page for a run or for several side by side",
    "inspect": "the geometry of any checkpoint: energies, duplicates, rank, spectra, features",
    "gallery": "enroll, identify and verify people or things by their features",
    "export": "a trained run as ONNX with preprocessing, threshold, model card and a script",
    "points": "spread points on a sphere: Thomson, Whyte and Tammes configurations",
    "models": "the networks by name",
    "heads": "the heads by name, with their options",
    "regularizers": "the regularizers by name, with their options",
    "activations": "the angular activations g by name, with their options",
    "magnitudes": "the magnitudes h by name, with their options",
    "margins": "the margins psi by name, with their options",
    "hooks": "what can be added to training by name, with its options",
    "tasks": "what can be trained",
    "data": "the data sets: what there is, download, verify",
    "recipes": "the shipped configs, with the dissertation's numbers beside",
    "completion": "a script with which bash or zsh completes commands and options",
}
# Commands that take --plugin themselves, or have no use for it.
TAKE_PLUGINS = ("train", "compare", "sweep", "recipes", "points", "completion")


def usage() -> str:
    """The commands, a line each."""
    width = max(map(len, COMMANDS))
    lines = [hanging(f"  {name:<{width}}  ", what) for name, what in COMMANDS.items()]
    return "\n".join(
        [
            "usage: hypersphere COMMAND [options]",
            "",
            *lines,
            "",
            "`hypersphere COMMAND --help` tells more.",
            "`--plugin MODULE` adds parts of your own, from a module or a .py file.",
        ]
    )


def _run(name: str, arguments: list[str]) -> int:
    if name in LISTINGS:
        return listing.main(name, arguments)
    module = importlib.import_module(f"hypersphere.commands.{name}")
    more = (list(COMMANDS),) if name == "completion" else ()
    return int(module.main(arguments, *more))


def _open_closed_streams() -> None:
    """What is written to a stream that was closed (>&-) goes nowhere, and into no other file."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def _interrupt_again(unraisable: Any) -> None:
    """An interrupt in a callback of the interpreter, which would show it and go on, comes again."""
    if isinstance(unraisable.exc_value, KeyboardInterrupt):
        # From another thread, a moment later: here it would be dropped, too.
        threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(unraisable)


def _show(text: str) -> int:
    try:
        print(text, flush=True)
    except BrokenPipeError:
        sys.stderr.close()
    except OSError as error:
        complain("", error)
        return 1
    return 0


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand.

    Args:
        argv: the command line. Default: that of the process.

    Returns:
        The exit code; 2 if the command line was not understood.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    _open_closed_streams()
    if argv is None:  # this process is ours
        sys.unraisablehook = _interrupt_again
    # torch's warnings of C++ bring a page of addresses when another process of a run is killed.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        return _show(usage())
    if arguments[0] in ("-V", "--version"):
        return _show(f"hypersphere {__version__}")
    for argument in arguments:
        if not _is_utf8(argument):  # neither YAML, JSON nor safetensors has a way to write such
            complain("", f"{argument!r} is not valid UTF-8: rename the file or folder")
            return 2
    name, *rest = arguments
    if name not in COMMANDS:
        near = nearest(name, COMMANDS)
        hint = f"; did you mean {near!r}?" if near else ""
        print(f"hypersphere: unknown command {name!r}{hint}\n\n{usage()}", file=sys.stderr)
        return 2
    try:
        if name not in TAKE_PLUGINS and any(i.partition("=")[0] == "--plugin" for i in rest):
            plugins = importlib.import_module("hypersphere.commands.plugins")
            try:
                rest = plugins.take_plugins(rest)
            except ValueError as error:
                complain(name, error)
                return 2
        with plain_warnings(name), plain_log(name):
            return _run(name, rest)
    except ModuleNotFoundError as error:
        # A missing extra is the user's to install, not a crash: say it in one line.
        complain(name, error)
        return 1
    except KeyboardInterrupt:
        complain(name, "interrupted; every file is whole, and the same command can be repeated")
        return 128 + signal.SIGINT
    except MemoryError as error:
        complain(name, f"not enough memory: {error}")
        return 1
    except BrokenPipeError:  # the reader of our output went away, e.g. `| head`
        sys.stderr.close()
        return 0
    except OSError as error:  # a file that cannot be read, a folder that cannot be written
        complain(name, error)
        return 1
