"""Ctrl-C outside of the loop of training: a sentence, and what to do next."""

import signal
import subprocess
import sys
import time

import pytest

from hypersphere import cli
from hypersphere.training import job
from hypersphere.training.run.folder import RunFolder

CONFIG = """
data: {name: digits, batch_size: 32, share: 0.1, test_share: 0.1}
model: {name: mlp, widths: [4]}
train: {steps: 2, quiet: true}
run: {report: false}
"""
SMALL = ["train", "c.yaml"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    (tmp_path / "c.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)


def interrupt(*arguments, **options):
    raise KeyboardInterrupt


@pytest.mark.parametrize("command", ["points", "data", "models"])
def test_a_command(monkeypatch, capsys, command):
    monkeypatch.setattr(f"hypersphere.commands.{command}.main", interrupt)
    assert cli.main([command]) == 130
    said = capsys.readouterr().err
    assert said.startswith(f"hypersphere {command}: interrupted;") and "repeated" in said


def test_before_there_is_a_run_the_command_is_repeated(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(job, "prepare", interrupt)
    assert cli.main([*SMALL, "--run.folder", "run"]) == 130
    assert "hypersphere train: interrupted;" in capsys.readouterr().err
    assert not (tmp_path / "run" / "run.json").exists()


@pytest.mark.parametrize("part", ["fit", "conclude"])
def test_afterwards_the_run_is_resumed(tmp_path, monkeypatch, capsys, part):
    with monkeypatch.context() as during:
        during.setattr(job, part, interrupt)
        assert cli.main([*SMALL, "--run.folder", "run"]) == 130
    assert "continue with: hypersphere train --resume run" in capsys.readouterr().out
    assert cli.main(["train", "--resume", "run"]) == 0
    assert (tmp_path / "run" / "summary.json").exists()


def test_in_the_loop_one_line_says_what_where_and_how_to_go_on(monkeypatch, capsys):
    from hypersphere.training import loop

    original = loop.update

    def update(run, *rest):
        original(run, *rest)
        if run.step == 0:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as during:
        during.setattr(loop, "update", update)
        loud = [*SMALL, "--run.folder", "run", "--train.quiet", "false", "--train.log_every", "9"]
        assert cli.main(loud) == 130
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        "stopped at step 1, saved; continue with: hypersphere train --resume run"
    ]
    assert "interrupted" not in printed.err and "resume" not in printed.err
    assert cli.main(["train", "--resume", "run"]) == 0


def test_a_folder_with_a_record_can_be_resumed(tmp_path, monkeypatch):
    """run.json is what makes a folder one to resume, so config.yaml is written before it."""
    original = RunFolder.json

    def json(self, name, content):
        if name == "run.json":
            assert (self.path / "config.yaml").exists()
            interrupt()
        original(self, name, content)

    with monkeypatch.context() as during:
        during.setattr(RunFolder, "json", json)
        assert cli.main([*SMALL, "--run.folder", "run"]) == 130
    assert cli.main([*SMALL, "--run.folder", "run"]) == 0


def test_inside_a_callback_of_the_interpreter_it_is_not_dropped(tmp_path):
    """Of an object that ends, say: Python would show a traceback and go on."""
    (tmp_path / "interrupted.py").write_text(
        "import signal, time, weakref\n"
        "class Thing: ...\n"
        "thing = Thing()\n"
        "seen = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGINT))\n"
        "del thing\n"
        "time.sleep(30)\n"
    )
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "hypersphere", "heads", "--plugin", "interrupted.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 130 and time.monotonic() - began < 25
    assert "hypersphere heads: interrupted;" in done.stderr and "Traceback" not in done.stderr
