"""The first words of a command come before torch is imported, which takes seconds."""

import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hypersphere import cli

# Runs the command; if it asks for torch, tells how long that took and ends.
PROBE = """
import sys, time
began = time.process_time()
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            sys.stderr.write(f"torch after {time.process_time() - began:.3f}\\n")
            sys.stderr.flush()
            raise SystemExit(99)
sys.meta_path.insert(0, NoTorch())
from hypersphere.cli import main
sys.exit(main(sys.argv[1:]))
"""


def before_torch(folder, *words):
    """(exit code, what was printed, what was said) until torch is asked for."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *words], cwd=folder, capture_output=True, text=True
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.yaml").write_text("data: {name: mnist}\nvariants: {other: {data: {name: svhn}}}")
    (tmp_path / "quiet.yaml").write_text("train: {quiet: true}\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("data: {name: cifar10}\n")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("train", "loading letters ..."),
        ("train --data.name digits --head.m 3", "loading digits ..."),
        ("train --data.name=digits", "loading digits ..."),
        ("train a.yaml", "loading mnist ..."),
        ("train a.yaml:other", "loading svhn ..."),
        ("train a.yaml --variant other", "loading svhn ..."),
        ("train --resume run", "loading cifar10 ..."),
        ("train --resume", "loading letters ..."),
        ("compare a.yaml quiet.yaml --seeds 0 1", "reading 2 configs ..."),
        ("sweep a.yaml --search head.m=1:4", "reading a.yaml ..."),
    ],
)
def test_a_command_speaks_before_it_imports_torch(folder, words, said):
    code, _, err = before_torch(folder, *words.split())
    first, last = err.splitlines()
    assert code == 99 and first == said
    assert float(last.removeprefix("torch after ")) < 1.5  # seconds of the processor; 0.05 here


@pytest.mark.parametrize(
    "words",
    [
        "train quiet.yaml",
        "train --train.quiet true",
        "train --print_config",
        "train --print_schema",
        "train --help head",
        "evaluate verification run",
        "report run",
    ],
)
def test_and_says_nothing_where_nothing_was_asked_for(folder, words):
    code, out, err = before_torch(folder, *words.split())
    assert code == 99 and out == "" and err.startswith("torch after")


@pytest.mark.parametrize("command", [*cli.COMMANDS])
def test_help_comes_without_torch(folder, command):
    slow = ("points", "data", "recipes", "claims", "completion")  # a second more, all of it torch
    code, out, _ = before_torch(folder, command, "--help")
    assert code == (99 if command in (*slow, "train") else 0)
    assert ("usage: hypersphere" in out) is (command not in slow)


def test_a_file_that_cannot_be_read_is_told_at_once(folder):
    code, _, err = before_torch(folder, "train", "b.yaml")
    assert code == 2 and err == "hypersphere train: there is no config b.yaml\n"


def test_the_first_words_of_a_real_run(folder):
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "hypersphere", "train", "--head.m", "-1"],
        cwd=folder, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr.readline() == "loading letters ...\n"
    assert time.monotonic() - began < 20  # 0.1 s on a quiet machine
    _, err = process.communicate(timeout=120)
    assert process.returncode == 2 and err.startswith("hypersphere train: head: ")
    assert err.count("\n") == 1 and not Path(folder, "runs").exists()


def test_processes_that_train_keep_their_memory():
    """Where the C library is glibc, it takes both limits, and memory that was freed stays."""
    script = """
import resource, torch
from hypersphere.commands._memory import keep_memory
print(keep_memory())
for _ in range(3):
    x = torch.empty(1 << 21).fill_(1); del x
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    x = torch.empty(1 << 21).fill_(1); del x
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    taken, faults = run.stdout.split()
    if taken == "True":
        assert int(faults) < 2048 * 10  # 2048 pages each time, were they handed back


def test_closed_and_full_streams_are_no_tracebacks(folder):
    hypersphere = f"{shlex.quote(sys.executable)} -m hypersphere"
    for words, code, said in (
        ("heads >&-", 0, ""),
        ("--help >&-", 0, ""),
        ("--help 2>&-", 0, "usage: hypersphere"),
        ("--help >/dev/full", 1, "hypersphere: [Errno 28]"),
    ):
        done = subprocess.run(
            ["bash", "-c", f"{hypersphere} {words}"], cwd=folder, capture_output=True, text=True
        )
        assert done.returncode == code and said in done.stdout + done.stderr, words
        assert "Traceback" not in done.stderr


def test_a_name_that_is_not_utf8_is_refused(capsys):
    assert cli.main(["train", "n\udcff.yaml"]) == 2
    assert "is not valid UTF-8: rename the file or folder" in capsys.readouterr().err
