"""The warm process of `warm.py`: imports what programs of the tests import, then forks one each.

`python warm_server.py SOCKET`; a request is a JSON object with words, folder, environment and
session, and three streams beside it; the answer is the number of the child.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

MODULES = (
    "hypersphere.cli", "hypersphere.commands._comparing", "hypersphere.commands._training",
    "hypersphere.commands.claims", "hypersphere.commands.compare", "hypersphere.commands.sweep",
    "hypersphere.commands.train", "hypersphere.evaluation", "hypersphere.heads",
    "hypersphere.integrations", "hypersphere.training.baseline", "hypersphere.training.campaign",
    "hypersphere.training.checks", "hypersphere.training.job",
    "hypersphere.training.tasks.classification",
    "PIL.Image", "jsonargparse", "safetensors.torch", "scipy.sparse", "sklearn.datasets",
    "torch._dynamo", "torch.distributed.fsdp",
)  # fmt: skip


def _import_everything() -> None:
    for name in MODULES:
        importlib.import_module(name)
    importlib.import_module("hypersphere.training.distributed").import_fabric()
    gc.collect()
    gc.freeze()  # else every child looks through all that was imported, and copies its pages
    threads = sorted(Path("/proc/self/task").iterdir(), key=lambda place: int(place.name))
    names = [(place / "comm").read_text().strip() for place in threads]
    # The allocator of pyarrow, which comes with scikit-learn, starts its thread anew in a child.
    if lost := [name for name in names[1:] if name != "jemalloc_bg_thd"]:
        sys.exit(f"imports have started threads, which a fork would lose: {', '.join(lost)}")


def _serve(asking: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork a child per request; returns in the child, with what it has to do and its streams."""
    while True:
        message, streams, _, _ = socket.recv_fds(asking, 1 << 20, 3)
        if not message:
            os._exit(0)
        told, tell = os.pipe()
        between = os.fork()
        if not between:
            between, pid = os.getpid(), os.fork()
            if not pid:
                while os.getppid() == between:  # else a program might watch the wrong parent
                    time.sleep(0.0005)
                for end in (told, tell, asking.detach()):
                    os.close(end)
                return json.loads(message), streams
            os.write(tell, b"%d" % pid)
            os._exit(0)
        os.close(tell)
        os.waitpid(between, 0)  # from here on the child is not ours
        asking.send(os.read(told, 64))
        for end in (told, *streams):
            os.close(end)


def _become(request: dict[str, Any], streams: list[int]) -> None:
    """Give this process the streams, folder and environment of a new one."""
    if request["session"]:
        os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for stream in streams:
        os.close(stream)
    sys.stdout.reconfigure(line_buffering=os.isatty(1))
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    importlib.import_module("numpy").random.seed()


def _program(words: list[str], bare: list[str]) -> None:
    """Run what follows the name of the interpreter, as it would."""
    kind, name = words[1], words[2] if words[1] in ("-m", "-c") else words[1]
    first = {"-m": os.getcwd(), "-c": ""}.get(kind, os.path.dirname(os.path.abspath(name)))
    sys.path[:] = [first, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *bare]
    sys.orig_argv, sys.argv = words, ["-m", *words[3:]] if kind == "-m" else words[1:]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if kind == "-m":
        runpy._run_module_as_main(name)
    elif kind == "-c":
        sys.argv = ["-c", *words[3:]]
        exec(compile(name, "<string>", "exec"), vars(main))
    else:
        main.__file__ = name
        exec(compile(Path(name).read_bytes(), name, "exec"), vars(main))


def _run_to_the_end(words: list[str], bare: list[str]) -> None:
    """Run a program and end as the interpreter would, without taking its modules apart: that takes
    a third of a second, and what was frozen before the fork would be reported as leaked.
    """
    code: Any = 0
    interrupted = False
    try:
        _program(words, bare)
    except SystemExit as end:
        code = end.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code, interrupted = 1, isinstance(error, KeyboardInterrupt)
    threading._shutdown()  # waits for threads
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError:
        code = 120  # as the interpreter has it
    sys.stderr.flush()
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 255)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest, which ends this one
    added = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    bare_path = [place for place in sys.path[1:] if place not in added]
    del sys.path[0]
    _import_everything()
    wanted, three_streams = _serve(socket.socket(fileno=int(sys.argv[1])))
    _become(wanted, three_streams)
    _run_to_the_end(wanted["words"], bare_path)
