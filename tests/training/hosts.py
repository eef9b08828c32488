"""Two hosts on one machine: network namespaces with a name and an address each, and a cable.

Their addresses exist inside the namespaces only. Needs Linux, root, `ip` (iproute2) and `unshare`
(util-linux); `missing()` says what is not there.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hypersphere.training.run.lock import is_alive

ADDRESSES = {"host-a": "10.203.71.1", "host-b": "10.203.71.2"}
# A host as Debian sets it up: its own name is a loopback address, so that torch has to be told
# which interface leads to the others (GLOO_SOCKET_IFNAME).
ENTER = 'hostname "$1" && mount --bind "$2" /etc/hosts && shift 2 && exec "$@"'


def missing() -> str | None:
    """Why no hosts can be made here; None if they can."""
    for tool in ("ip", "unshare"):
        if shutil.which(tool) is None:
            return f"needs {tool}, which is not installed (iproute2, util-linux)"
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "needs root, to make network namespaces"
    name = f"hypersphere-{os.getpid()}-try"
    made = _ip("netns", "add", name, check=False)
    if made.returncode:
        return f"cannot make network namespaces: {made.stderr.strip()}"
    try:
        entered = _ip("netns", "exec", name, "unshare", "--uts", "--mount", "true", check=False)
        link = _ip("-n", name, "link", "add", "eth0", "type", "veth", check=False)
    finally:
        _ip("netns", "del", name, check=False)
    for step in (entered, link):
        if step.returncode:
            return f"cannot make hosts: {step.stderr.strip()}"
    return None


class Hosts:
    """host-a and host-b, joined by a cable; a context that leaves nothing behind.

    Args:
        folder: where logs are written, and commands run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spaces = {name: f"hypersphere-{os.getpid()}-{name[-1]}" for name in ADDRESSES}
        self.started: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Hosts:
        _remove_stale()
        try:
            for name, space in self.spaces.items():
                _ip("netns", "add", space)
                _ip("-n", space, "link", "set", "lo", "up")
                others = [f"{a} {n}\n" for n, a in ADDRESSES.items() if n != name]
                own = f"127.0.0.1 localhost\n127.0.1.1 {name}\n"
                (self.folder / f"{name}.hosts").write_text(own + "".join(others))
            first, second = self.spaces.values()
            cable = ["eth0", "netns", first, "type", "veth", "peer", "name", "eth0"]
            _ip("link", "add", *cable, "netns", second)
            for name, space in self.spaces.items():
                _ip("-n", space, "addr", "add", f"{ADDRESSES[name]}/30", "dev", "eth0")
                _ip("-n", space, "link", "set", "eth0", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.spaces:
            for pid in self.pids(name):
                _kill(pid)
        for process in self.started.values():
            process.wait(30)
        for space in self.spaces.values():
            _ip("netns", "del", space, check=False)

    def start(self, name: str, command: Sequence[str]) -> None:
        """Run a command on a host; what it prints goes to the log of the host."""
        enter = ["ip", "netns", "exec", self.spaces[name], "unshare", "--uts", "--mount"]
        enter += ["sh", "-c", ENTER, "sh", name, str(self.folder / f"{name}.hosts")]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}
        with (self.folder / f"{name}.log").open("wb") as log:
            self.started[name] = subprocess.Popen(
                [*enter, *command],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=self.folder,
                env=environment,
                start_new_session=True,
            )

    def log(self, name: str) -> str:
        """What the command of a host has printed so far."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def cut(self, name: str) -> None:
        """Pull the cable out of a host: nothing comes through, and no connection is closed."""
        _ip("-n", self.spaces[name], "link", "set", "eth0", "down")

    def pids(self, name: str) -> list[int]:
        """The processes of a host."""
        found = _ip("netns", "pids", self.spaces[name], check=False).stdout
        return [int(pid) for pid in found.split()]

    def workers(self, name: str) -> list[int]:
        """The processes of a host that train; torchrun itself is none."""
        found = []
        for pid in self.pids(name):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"hypersphere" in words and b"torch.distributed.run" not in words:
                found.append(pid)
        return [pid for pid in found if is_alive(pid)]

    def wait(self, condition: Callable[[], object], seconds: float, what: str) -> None:
        """Wait for a condition; an AssertionError with both logs if it does not come true."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                logs = "\n".join(f"--- {n}\n{self.log(n)[-3000:]}" for n in self.started)
                raise AssertionError(f"after {seconds:g} s still waiting for {what}\n{logs}")
            time.sleep(0.05)

    def ended(self, name: str) -> bool:
        """Whether the command of a host has ended."""
        return self.started[name].poll() is not None


def _ip(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["ip", *words], check=check, capture_output=True, text=True, timeout=30, cwd="/"
    )


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _remove_stale() -> None:
    """Namespaces that a killed test left behind."""
    for name, pid in re.findall(r"^(hypersphere-(\d+)-\w+)", _ip("netns").stdout, re.MULTILINE):
        if not is_alive(int(pid)):
            for left in _ip("netns", "pids", name, check=False).stdout.split():
                _kill(int(left))
            _ip("netns", "del", name, check=False)
