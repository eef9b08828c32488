"""One door for a fresh clone: makes .venv, installs the pinned environment, runs.

    python3 dev.py train [arguments of `hypersphere train`]   the main job
    python3 dev.py test  [--fast] [arguments of pytest]       the tests
    python3 dev.py test  --portable [SETTING] [--slow]        the fast tests as on other processors,
                                                              with --slow all of them
    python3 dev.py check                                      lint, format, types, doctests, wheel
    python3 dev.py docs                                       the pages as a site: build/site
    python3 dev.py run   COMMAND [arguments]                  anything inside the environment

Needs nothing but Python with pip and venv.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
PYTHON = BIN / ("python.exe" if os.name == "nt" else "python")
# The versions that have wheels of everything in constraints.txt. Tests run on 3.11 only.
PINNED = [(3, 11), (3, 12), (3, 13), (3, 14)]

# What differs between processors, set by hand: instruction sets of torch, oneDNN and MKL, threads,
# and the order of the tests. A test that holds under all of these holds on another machine.
PORTABLE = {
    "aten-default": {"ATEN_CPU_CAPABILITY": "default"},
    "aten-avx2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "onednn-avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2"},
    "mkl-compatible": {"MKL_CBWR": "COMPATIBLE"},
    "oldest": {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"},
    "one-thread": {"OMP_NUM_THREADS": "1"},
    # Threads that wait without spinning: the workers already fill the cores.
    "two-threads": {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"},
    "random-order": {"HYPERSPHERE_TEST_ORDER": "random"},
}


def check_version() -> None:
    if sys.version_info[:2] not in PINNED:
        known = ", ".join(f"{major}.{minor}" for major, minor in PINNED)
        sys.exit(
            f"constraints.txt pins wheels for Python {known}; this is Python "
            f"{sys.version_info.major}.{sys.version_info.minor}.\n"
            f"Run this with one of those (best python3.11 dev.py ..., the version that is tested), "
            f"or install the library itself, unpinned and untried, into your own environment "
            f"(Python >= 3.10): pip install '.[train]'"
        )


def set_up(extra: str) -> None:
    """Create .venv and install torch-hypersphere[extra] under constraints.txt, once per change."""
    check_version()
    stamp = VENV / f".installed-{extra}"
    inputs = [ROOT / "constraints.txt", ROOT / "pyproject.toml"]
    state = hashlib.sha256(
        b"".join(p.read_bytes() for p in inputs) + sys.version.encode()
    ).hexdigest()
    if PYTHON.exists() and stamp.exists() and stamp.read_text() == state:
        return
    if VENV.exists() and not PYTHON.exists():
        shutil.rmtree(VENV)  # a half-made environment from an interrupted run
    if not VENV.exists():
        print(f"creating {VENV.name} with Python {sys.version.split()[0]}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    print(f"installing torch-hypersphere[{extra}] as pinned in constraints.txt", flush=True)
    # torch is asked for by its exact version too: a range would make pip look at newer builds.
    torch = next(p for p in inputs[0].read_text().splitlines() if p.startswith("torch=="))
    install = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command = [*install, "-c", "constraints.txt", torch, "-e", f".[{extra}]"]
    if subprocess.run(command, cwd=ROOT).returncode:
        sys.exit("the installation failed: see pip's message above; run the same command to retry")
    stamp.write_text(state)


def run(*command: str, **environment: str) -> int:
    path = os.pathsep.join([str(BIN), os.environ.get("PATH", "")])
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PATH": path, **environment}
    ).returncode


def test(arguments: list[str], **environment: str) -> int:
    selection = ["-m", "not slow"] if "--fast" in arguments else []
    rest = [a for a in arguments if a != "--fast"]
    workers = [] if any(a.startswith("-n") for a in rest) else ["-n", str(os.cpu_count() or 1)]
    # Half of the tests each, in order, and who is done takes from the other: what a module sets up
    # is mostly set up once, and no worker ends early.
    workers += ["--dist", "worksteal"] if workers and "--dist" not in rest else []
    # One thread per worker: the workers already fill the cores.
    threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    kept = ["-o", "tmp_path_retention_policy=failed"]
    command = [str(PYTHON), "-m", "pytest", *selection, *workers, *kept, *rest]
    return run(*command, **{**threads, **in_memory(), **environment})


def in_memory() -> dict[str, str]:
    """Variables with which the files of tests are in memory, unless another place is named.

    A run waits for the disk at each checkpoint, longer than the rest of a small one takes. There
    has to be room, and what tests compile there has to be loaded.
    """
    place = Path("/dev/shm")
    if {"TMPDIR", "PYTEST_DEBUG_TEMPROOT"} & set(os.environ) or not os.access(place, os.W_OK):
        return {}
    found = os.statvfs(place)
    if found.f_bavail * found.f_frsize < 4 << 30 or found.f_flag & os.ST_NOEXEC:
        return {}
    return {"PYTEST_DEBUG_TEMPROOT": str(place)}


def commit() -> str:
    """The number of the commit; a fixed one in a copy without history."""
    command = ["git", "rev-parse", "HEAD"]
    git = shutil.which("git")
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True) if git else None
    return (found.stdout.strip() if found else "") or "0" * 40


def portable(arguments: list[str]) -> int:
    """The fast tests under one setting of PORTABLE, one chosen by the commit, or all of them."""
    chosen, speed = list(PORTABLE), ["--fast"]
    if "--slow" in arguments:
        arguments, speed = [a for a in arguments if a != "--slow"], []
    if arguments and arguments[0] == "by-commit":
        chosen = [chosen[int(commit(), 16) % len(chosen)]]
        arguments = arguments[1:]
    elif arguments and arguments[0] in PORTABLE:
        chosen, arguments = [arguments[0]], arguments[1:]
    elif arguments and not arguments[0].startswith("-"):
        sys.exit(f"dev.py test --portable: expected by-commit or one of {', '.join(PORTABLE)}")
    failed = []
    for name in chosen:
        # Another order for each commit, which the same command repeats.
        setting = {k: commit()[:8] if v == "random" else v for k, v in PORTABLE[name].items()}
        print(f"--- {name}: {setting}", flush=True)
        if test([*speed, *arguments], **setting):
            failed.append(name)
    print(f"portable: {len(chosen) - len(failed)} of {len(chosen)} settings passed", flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}", flush=True)
    return 1 if failed else 0


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] not in ("train", "test", "check", "docs", "run"):
        print(__doc__)
        return 0 if arguments and arguments[0] in ("-h", "--help") else 2
    job, *rest = arguments
    set_up("all" if job == "train" else "dev")
    if job == "train":
        return run(str(PYTHON), "-m", "hypersphere", "train", *rest)
    if job == "test":
        return portable(rest[1:]) if rest[:1] == ["--portable"] else test(rest)
    if job == "docs":
        return run(str(PYTHON), "docs/site.py", *rest)
    if job == "check":
        return run("bash", ".ci/check")
    if not rest:
        sys.exit("dev.py run: give the command to run, e.g. python3 dev.py run hypersphere models")
    return run(*rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
