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
`/proc` says of its environment. The other side of the socket is `warm_server.py`.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import inspect
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Variables that act while a program is imported begin with one of these; the library reads its own
# when it needs them.
AT_IMPORT = (
    "PYTHON", "LD_", "MALLOC_", "LANG", "LC_", "TZ", "HOME", "XDG_", "MPL", "CUDA_", "TRITON_",
    "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "ATEN_", "ONEDNN_", "DNNL_", "TORCH", "PYTORCH",
)  # fmt: skip
# But these may differ: places to import from can be added later, and torch, scikit-learn and OpenCV
# set the others themselves, when they are imported.
CHANGING = (
    "PYTHONPATH", "LD_LIBRARY_PATH", "PYTORCH_NVML_BASED_CUDA_CHECK", "TORCHINDUCTOR_CACHE_DIR",
    "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK",
)  # fmt: skip
PR_SET_CHILD_SUBREAPER = 36
SERVER = Path(__file__).with_name("warm_server.py")


class WarmProcess:
    """The process that forks, and the way to ask it."""

    def __init__(self) -> None:
        self.environment = dict(os.environ)
        self.lock = threading.Lock()
        self.socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.complaints = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        with other:
            self.process = subprocess.Popen(
                [sys.executable, str(SERVER), str(other.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self.complaints,
                pass_fds=[other.fileno()],
                # numpy's and scipy's BLAS would start its threads when it is imported.
                env={**self.environment, "OPENBLAS_NUM_THREADS": "1"},
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
