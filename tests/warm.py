"""Python programs for tests without the seconds that their imports take.

A new interpreter that imports torch, the library, jsonargparse and lightning-fabric takes about
four seconds of the processor; most commands of the tests then work for a third of a second. So each
pytest process has, from its first use on, one warm process that has imported all of that, has
computed nothing and has one thread. It forks a child per program: `warm.run` and `warm.Popen` are
those of `subprocess`, for `[sys.executable, "-m", MODULE, ...]`, a script, or `-c CODE`.

- The child is a child of whoever asked: it is forked twice, and when the process between them ends,
  the kernel hands it to the nearest ancestor that takes orphans (PR_SET_CHILD_SUBREAPER). So its
  number, its exit code, waiting for it and killing it are the ordinary ones of `subprocess.Popen`.
- The program ends as any other: exit codes, signals, threads, `atexit`, flushing.
- What acts before a program begins cannot be set afterwards: with other variables that act at
  import, flags of the interpreter, a `preexec_fn` and the like, and where there is no Linux, a new
  interpreter starts.
- The warm process ends with the pytest process: it reads the end of their socket.

Not for tests of what a new interpreter does: what it imports, how soon it speaks, hash seeds, what
`/proc` says of its environment.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import importlib
import inspect
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Sequence
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
# Variables that act while a program is imported begin with one of these; the library reads its own
# when it needs them.
AT_IMPORT = (
    "PYTHON", "LD_", "MALLOC_", "LANG", "LC_", "TZ", "HOME", "XDG_", "MPL", "CUDA_", "TRITON_",
    "OMP_", "GOMP_", "KMP_", "MKL_", "ATEN_", "ONEDNN_", "DNNL_", "TORCH", "PYTORCH",
)  # fmt: skip
# But these may differ: places to import from can be added later, and torch sets the others itself.
CHANGING = ("PYTHONPATH", "PYTORCH_NVML_BASED_CUDA_CHECK", "TORCHINDUCTOR_CACHE_DIR")
PR_SET_CHILD_SUBREAPER = 36


# --- in the process of pytest -------------------------------------------------------------------


class WarmProcess:
    """The process that forks, and the way to ask it."""

    def __init__(self) -> None:
        self.environment = dict(os.environ)
        self.lock = threading.Lock()
        self.socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.complaints = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        with other:
            self.process = subprocess.Popen(
                [sys.executable, __file__, str(other.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self.complaints,
                pass_fds=[other.fileno()],
            )
        atexit.register(self.close)
        atexit.register(self.complaints.close)

    def close(self) -> None:
        """End it."""
        self.socket.close()
        self.process.kill()  # its children are not its own
        self.process.wait()

    def fits(self, asked: dict[str, Any]) -> bool:
        """Whether a fork is what `subprocess` would have started for these arguments."""
        words = asked["args"]
        if isinstance(words, str) or str(words[0]) != sys.executable or len(words) < 2:
            return False
        if str(words[1]).startswith("-") and words[1] not in ("-m", "-c"):
            return False
        if words[1:3] == ["-m", "torch.distributed.run"]:  # torchrun is tested as people start it
            return False
        unusual = ("executable", "preexec_fn", "pass_fds", "shell", "uid", "gid", "gids")
        if any(asked[name] for name in unusual) or asked["umask"] != -1:
            return False
        given = dict(os.environ if asked["env"] is None else asked["env"])
        path, ours = given.get("PYTHONPATH", ""), self.environment.get("PYTHONPATH", "")
        different = {name for name, _ in given.items() ^ self.environment.items()}
        late = not any(name.startswith(AT_IMPORT) for name in different.difference(CHANGING))
        return late and path.endswith(ours)

    def fork(self, asked: dict[str, Any], streams: list[int]) -> int:
        """A new child of this process that runs a program; its number."""
        request = {
            "words": [os.fspath(word) for word in asked["args"]],
            "folder": os.path.abspath(asked["cwd"] or os.curdir),
            "environment": dict(os.environ if asked["env"] is None else asked["env"]),
            "session": asked["start_new_session"],
        }
        with self.lock:
            _take_orphans(True)
            try:
                socket.send_fds(self.socket, [json.dumps(request).encode()], streams)
                pid = self.socket.recv(64)
            except OSError:
                pid = b""
            except BaseException:  # a timeout: the answer, unread, would be that of the next
                self.close()
                raise
            finally:
                _take_orphans(False)
        if not pid:
            self.complaints.seek(0)
            said = self.complaints.read().decode(errors="replace")[-3000:].strip()
            raise RuntimeError(f"the warm process of the tests has ended: {said or 'no word'}")
        return int(pid)


@functools.cache
def warm_process() -> WarmProcess:
    """The one of this process, begun when it is first wanted."""
    return WarmProcess()


def _take_orphans(really: bool) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, int(really), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


class Popen(subprocess.Popen):
    """As in `subprocess`; its child is forked from the warm process if that makes no difference."""

    def _execute_child(self, *given: Any) -> None:
        asked = inspect.signature(super()._execute_child).bind(*given).arguments
        if sys.platform != "linux" or not warm_process().fits(asked):
            super()._execute_child(*given)
            return
        ends = [asked[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        streams = [number if end == -1 else end for number, end in enumerate(ends)]
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        try:
            self.pid = warm_process().fork(asked, streams)
            self._child_created = True
        finally:
            self._close_pipe_fds(*(asked[name] for name in pipes))


def run(
    words: Sequence[Any],
    *,
    capture_output: bool = False,
    timeout: float | None = None,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """`subprocess.run` with a warm process; it has to end within `timeout` seconds."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(words, **options) as process:
        try:
            said = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(words, process.returncode, *said)


# --- in the warm process ------------------------------------------------------------------------


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
