"""What a new user meets: the default run, its baseline, the schema, completion, the bar."""

import fcntl
import io
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import warnings
from pathlib import Path

import fastjsonschema
import pytest
import yaml

import warm
from hypersphere import cli
from hypersphere._terminal import complain
from hypersphere.commands import _config, align, train
from hypersphere.commands._schema import config_schema
from hypersphere.training.baseline import plain_twin
from hypersphere.training.progress import Progress

ROOT = Path(__file__).parents[2]
SHORT = ["--data.options.copies", "1", "--data.options.per_fold", "30", "--train.steps", "12"]
SHORT += ["--train.test_every", "12", "--run.report", "false", "--model.widths", "[4,8,8]"]


def test_the_default_run_prints_three_side_by_side(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", *SHORT]) == 0
    printed = capsys.readouterr()
    assert printed.err.startswith("loading letters ...")
    rows = [line for line in printed.out.splitlines() if re.search(r"\d %  .* to .* %$", line)]
    assert [row.split("  ")[0] for row in rows] == [
        "inputs alone",
        "plain network, softmax",
        "this run",
    ]
    assert "over 600 pairs of classes that no network was trained on" in _joined(printed.out)
    assert "paired over 10 folds" in _joined(printed.out)
    record = json.loads(Path("runs/letters/baseline.json").read_text())
    assert [row["name"] for row in record["rows"]] == [row.split("  ")[0] for row in rows]
    mine, plain = record["rows"][2]["accuracy"], record["rows"][1]["accuracy"]
    assert record["difference"] == pytest.approx(mine - plain, abs=1e-9)
    assert record["low"] <= record["difference"] <= record["high"] and record["pairs"] == 600
    config = json.loads(Path("runs/letters/baseline/run.json").read_text())["config"]
    assert config["head"]["name"] == "softmax" and not config["regularizers"]
    # Once more: both runs are finished, so nothing is trained again.
    assert cli.main(["train", "--resume", "runs/letters"]) == 0
    assert json.loads(Path("runs/letters/baseline.json").read_text()) == record


def test_without_the_baseline(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", *SHORT, "--baseline", "false"]) == 0
    assert "this run" not in capsys.readouterr().out
    assert not Path("runs/letters/baseline").exists()


def test_the_plain_twin_keeps_everything_else():
    arguments = ["--model.operator", "sphere", "--regularizers.mhe", "--rotate", "--seed", "3"]
    config = _config.read(None, arguments, defaults=train.DEFAULT)
    twin = plain_twin(config)
    assert "operator" not in twin.model and twin.model["widths"] == config.model["widths"]
    assert twin.rotate is None and not twin.regularizers and twin.head == {"name": "softmax"}
    for section in ("data", "optimizer", "schedule", "train", "seed"):
        assert getattr(twin, section) == getattr(config, section)


@pytest.fixture(scope="module")
def validate():
    return fastjsonschema.compile(config_schema())


def test_every_recipe_fits_the_schema(validate):
    found = sorted((ROOT / "recipes").rglob("*.yaml"))
    files = [file for file in found if file.parent.name != "claims"]  # these name several configs
    assert len(files) > 50
    for file in files:
        validate(yaml.safe_load(file.read_text()))


@pytest.mark.parametrize(
    "wrong",
    [
        {"head": {"name": "a_softmax", "k": 3}},
        {"head": {"name": "a_softmaxx"}},
        {"train": {"steps": 0}},
        {"train": {"stepz": 10}},
        {"optimizer": {"name": "sdg"}},
        {"data": {"batch_size": "many"}},
        {"regularizers": {"mhee": {}}},
        {"variants": {"cpu": {"train": {"steps": -1}}}},
        {"model": {"name": "cnn9", "widths": "wide"}},
    ],
)
def test_the_schema_refuses(validate, wrong):
    with pytest.raises(fastjsonschema.JsonSchemaValueException):
        validate(wrong)


def test_print_schema(capsys):
    assert cli.main(["train", "--print_schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    steps = schema["properties"]["train"]["properties"]["steps"]
    assert "description" in steps and schema["properties"]["seed"]["default"] == 0


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["tr"], {"train"}),
        (["train", "--head.na"], {"--head.name"}),
        (["train", "--head.name", "a_"], {"a_softmax"}),
        (["train", "--schedule.name", "cos"], {"cosine"}),
        (["heads", "arc"], {"arcface"}),
        (["data", "let"], {"letters"}),
    ],
)
def test_bash_completes(tmp_path, capsys, words, wanted):
    assert cli.main(["completion", "bash"]) == 0
    script = tmp_path / "completion.sh"
    script.write_text(capsys.readouterr().out)
    line = f"COMP_WORDS=(hypersphere {' '.join(words)}); COMP_CWORD={len(words)}"
    ask = f'source {script}; {line}; _hypersphere; printf "%s\\n" "${{COMPREPLY[@]}}"'
    found = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True)
    assert found.stdout.split() and wanted <= set(found.stdout.split())
    assert all(word.startswith(words[-1]) for word in found.stdout.split())


class _Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
def test_the_bar_fits_and_leaves_no_trace(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = _Terminal()
    bar = Progress(10_000, stream=terminal)
    bar.interval = 0.0
    for step in (5, 9_999):
        bar.update(step, 50_000, {"loss": 123.4567, "accuracy": 0.25, "energy": 1.5})
    bar.close()
    drawn = terminal.getvalue().split("\r\033[K")
    assert drawn[0] == "" and drawn[-1] == ""  # the last thing is to clear the line
    for text in drawn[1:-1]:
        assert len(text) < columns and "\n" not in text
        assert "/10000" in text and text.endswith(" left")
    assert ("energy" in drawn[1]) == (columns >= 80)


@pytest.mark.slow
def test_a_real_terminal_sees_colors_unless_told_otherwise(tmp_path):
    def run(**environment):
        master, slave = pty.openpty()
        command = [sys.executable, "-m", "hypersphere", "train", *SHORT, "--baseline", "false"]
        shown = b""
        env = {**os.environ, "COLUMNS": "80", "TERM": "xterm", **environment}
        env.pop("NO_COLOR", None) if "NO_COLOR" not in environment else None
        process = warm.Popen(
            command, stderr=slave, stdout=slave, cwd=tmp_path, env=env, close_fds=True
        )
        os.close(slave)
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            shown += part
        os.close(master)
        assert process.wait(60) == 0
        return shown.decode()

    colored, plain = run(), run(NO_COLOR="1")
    assert "\033[1m" in colored and "\033[1m" not in plain
    for text in (colored, plain):  # no line of the bar stays: what is drawn is cleared
        for line in text.replace("\r\n", "\n").split("\n"):
            assert "] step" not in line.rpartition("\r\033[K")[2]


def test_tests_stand_in_aligned_columns():
    stream = io.StringIO()
    progress = Progress(10, stream=stream)
    progress.tested(5, {"loss": 1.25, "accuracy": 0.5}, best=True)
    progress.tested(10, {"loss": 11.25, "accuracy": 0.25}, best=False)
    header, first, second = stream.getvalue().splitlines()
    assert header.index("accuracy") + len("accuracy") == first.index("50.00%") + len("50.00%")
    assert first.endswith("best") and second.endswith("25.00%")
    assert second.index("25.00%") == first.index("50.00%")


@pytest.mark.parametrize(
    "words",
    [
        "compare",
        "sweep",
        "evaluate verification",
        "sweep a.yaml",
        "compare a.yaml --folder",
        "compare a.yaml --seeds",
        "compare --seeds 0",
        "sweep a.yaml --search --trials 3",
    ],
)
def test_what_is_missing_is_an_error_that_says_so(capsys, words):
    assert cli.main(words.split()) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith(f"hypersphere {words.split()[0]}")
    assert "name " in printed.err or "needs a value" in printed.err or "takes" in printed.err


@pytest.mark.parametrize(
    "words",
    ["align", "evaluate", "report", "inspect", "gallery", "export", "points", "completion"],
)
def test_so_do_the_other_commands(capsys, words):
    with pytest.raises(SystemExit) as end:
        cli.main(words.split())
    assert end.value.code == 2 and "required" in capsys.readouterr().err


def test_help_in_a_pipe_fits_the_terminal_behind_it(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "70")
    assert cli.main(["train", "--help", "head"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) < 70
    monkeypatch.delenv("COLUMNS")
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 64, 0, 0))
    with open(slave, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        assert cli.main(["train", "--help", "head"]) == 0
        monkeypatch.undo()
    os.close(master)
    shown = capsys.readouterr().out.splitlines()
    assert shown and max(map(len, shown)) < 64
    assert "base 100, gamma 0.05" in _joined(" ".join(shown))


def test_messages_fit_the_terminal_and_stay_whole_elsewhere(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    message = (
        "runs/a folder with a long name/and another one was started with other settings: leave "
        "that out, or read `hypersphere train --help`; continue with: hypersphere train --resume "
        "'runs/a folder with a long name/and another one'"
    )
    complain("train", message)
    assert capsys.readouterr().err == f"hypersphere train: {message}\n"
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    complain("train", message)
    lines = terminal.getvalue().splitlines()
    assert _joined(terminal.getvalue()) == f"hypersphere train: {message}"
    assert all(len(line) < 60 for line in lines[:-1]) and len(lines) > 3
    assert lines[-1].startswith("hypersphere train --resume 'runs/a folder")  # copied in one piece
    assert any("`hypersphere train --help`" in line for line in lines)


def _joined(text):
    return " ".join(text.split())


def test_warnings_are_sentences(monkeypatch, capsys):
    """`train` showed the line of code that had found two pictures unreadable."""

    def command(arguments):
        for kind in (UserWarning, DeprecationWarning):
            print(warnings.formatwarning(kind("two\nlines"), kind, "some/file.py", 3, "code()"))
        return 0

    before = warnings.formatwarning
    monkeypatch.setattr(align, "main", command)
    assert cli.main(["align"]) == 0
    assert capsys.readouterr().out == (
        "hypersphere align: two\nlines\n\n"
        "some/file.py:3: DeprecationWarning: two\nlines\n  code()\n\n"
    )
    assert warnings.formatwarning is before
