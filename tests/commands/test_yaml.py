"""Config files that are damaged, endless or hostile: one sentence, at once."""

import os
import time

import pytest

from hypersphere.commands import _config, train
from hypersphere.commands._config import ConfigError
from hypersphere.commands._yaml import parse_yaml

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join(['*' + old] * 9)}]\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{new}: &{new} {{<<: [{', '.join(['*' + old] * 9)}]}}\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train: {steps: 1}\nseed: 3\ntrain: {steps: 2}\n", "line 3: the key 'train' stands twice"),
        (
            "train: {steps: 1,\n  steps: 2}\n",
            "line 2: the key 'steps' stands twice (also in line 1)",
        ),
        ("train: {steps: 010}\n", "line 1: 010 is 8 in YAML 1.1: write that, or quote"),
        ("seed: 1\ntrain: {steps: -1:30}\n", "line 2: -1:30 is -90 in YAML 1.1"),
        ("base: 5\n", "base is the path of another config; got 5"),
        ("base: ''\n", "base is the path of another config; got ''"),
        ("base: c.yaml\n", "a base that builds on itself"),
        ("base: .\n", "is a folder, not a config file"),
        ("base: /dev/zero\n", "is a pipe or a device, not a config file"),
        ("base: missing.yaml\n", "there is no config"),
        (f"base: {'x' * 5000}\n", "cannot be read"),
        ("variants: 5\n", "variants is a section of names, each with changes; got 5"),
        ("variants: {a: 5}\n", "the variant 'a' is a set of changes; got 5"),
        ("model: {name: 5}\n", "model.name is the name of a model; got 5"),
        ("model: 5\n", "model is a section with a name and options; got 5"),
        (
            "head: {name: w_softmax, angular: [cosine]}\n",
            "head.angular: expected text, got a list",
        ),
        ("head: {name: null}\n", "head.name is the name of a head; got None"),
        ("train: 5\n", "train is a section of options; got 5"),
        ("rotate: 5\n", "rotate is a section of options; got 5"),
        ("regularizers: {mhe: 5}\n", "regularizers.mhe is a section of options; got 5"),
        ("regularizers: [mhe]\n", "regularizers is a section of names"),
        ("data: {name: 2020-01-02}\n", "2020-01-02 is a date; a config holds text, numbers"),
        ("data: {options: !!set {a, b}}\n", "a value is a set; a config holds"),
        ("data: {name: !!binary aGk=}\n", "aGk= is binary data"),
        ("data: !!python/object/apply:os.system [ls]\n", "is of type tag:yaml.org,2002:python/"),
        ("5: {}\n", "the key '5' is not text; quote it"),
        ("? [a]\n: 1\n", "the key a list or section is not text"),
        ("a: &a [*a]\n", "an alias that contains itself"),
        (BOMB, "values once its aliases are expanded"),
        (MERGES, "values once its aliases are expanded"),
        ("a: " + "[" * 5000, "nested more than 50 levels deep"),
        ("a: 1\n---\nb: 2\n", "is not readable as YAML"),
        ("seed: " + "9" * 5000 + "\n", "is not readable as YAML"),
        ("seed: " + "9" * 30 + "\n", "seed must be a whole number in [0, 4294967296)"),
        ("x" * (1 << 20) + "y", "is larger than 1 MB"),
        ("- a\n", "must hold sections (data, model, ...); got list"),
        ("train: {steps: 5, epochs: 2}\n", "gives both train.steps and train.epochs"),
        ("variants: {a: {train: {steps: 5, epochs: 2}}}\n", "variant 'a' of"),
        ("thesis: {}\ndissertation: {}\n", "thesis is the earlier name of dissertation"),
    ],
)
def test_what_a_config_cannot_be(tmp_path, capsys, text, message):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    began = time.process_time()
    assert train.main([str(path)]) == 2
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error and error.count("\n") == 1
    assert time.process_time() - began < 5


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "p.yaml")
    with pytest.raises(ConfigError, match="is a pipe or a device"):
        _config.read(str(tmp_path / "p.yaml"))


def test_bases_in_a_circle(tmp_path):
    (tmp_path / "a.yaml").write_text("base: b.yaml\n")
    (tmp_path / "b.yaml").write_text(f"base: ./../{tmp_path.name}/a.yaml\n")
    with pytest.raises(
        ConfigError, match=r"a\.yaml -> .*b\.yaml -> .*a base that builds on itself"
    ):
        _config.read(str(tmp_path / "a.yaml"))


def test_aliases_and_merges_of_moderate_size_are_read(tmp_path):
    (tmp_path / "c.yaml").write_text(
        "optimizer: &o {lr: 0.5}\nvariants: {a: {optimizer: {<<: *o, momentum: 0.5}}}\n"
    )
    config = _config.read(f"{tmp_path}/c.yaml:a")
    assert config.optimizer.lr == 0.5 and config.optimizer.momentum == 0.5


def test_the_former_name_of_a_section_is_read(tmp_path):
    (tmp_path / "c.yaml").write_text("thesis: {row: a}\nvariants: {b: {thesis: {value: 2.5}}}\n")
    config = _config.read(f"{tmp_path}/c.yaml:b", ["--thesis.note", "x"])
    assert (config.dissertation.row, config.dissertation.value) == ("a", 2.5)
    assert config.dissertation.note == "x"


def test_steps_and_epochs_replace_each_other_level_by_level(tmp_path):
    (tmp_path / "_base.yaml").write_text("train: {epochs: 5}\n")
    (tmp_path / "c.yaml").write_text(
        "base: _base.yaml\nvariants: {short: {train: {steps: 7}}, long: {train: {epochs: 9}}}\n"
    )
    spec = f"{tmp_path}/c.yaml"
    assert _config.read(spec).train.epochs == 5
    assert _config.read(spec, ["--train.steps", "60"]).train.epochs is None
    assert _config.read(spec, ["--train.steps", "60"]).train.steps == 60
    assert _config.read(f"{spec}:short").train.epochs is None
    assert _config.read(f"{spec}:short,long").train.epochs == 9
    with pytest.raises(ConfigError, match="the command line gives both train.steps and"):
        _config.read(spec, ["--train.steps", "60", "--train.epochs", "2"])
    # What is printed or kept can be read again, also the record of an earlier version.
    text = _config.dump(_config.read(spec))
    (tmp_path / "d.yaml").write_text(text)
    assert "steps:" not in text.partition("train:")[2].partition("few_shot")[0]
    assert _config.dump(_config.read(f"{tmp_path}/d.yaml")) == text
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "config.yaml").write_text("train: {steps: 1000, epochs: 5.0}\n")
    assert _config.read(f"{tmp_path}/config.yaml").train.epochs == 5


def test_numbers_that_are_what_people_read_are_accepted(tmp_path):
    path = tmp_path / "a.yaml"
    text = "a: [0, 007, 0.50, 00.5, !!float 010, -3, 1e-3, '010', '1:30', 2026-a, 1_000]\n"
    found = parse_yaml(text, path)["a"]
    assert found == [0, 7, 0.5, 0.5, 10.0, -3, "1e-3", "010", "1:30", "2026-a", 1000]


@pytest.mark.parametrize(
    "text", ["12:30", "/d/12:30/x", "s3://h:80/a", "12:30 # note", "#1:30", "#"]
)
def test_text_stays_text(text):
    assert _config.read(None, ["--run.folder", text]).run.folder == text


@pytest.mark.parametrize("text", ["{start: 12:30}", '{"start": "12:30"}', "{start: '12:30'}"])
def test_times_are_no_numbers(tmp_path, text):
    assert _config.read(None, ["--data.options", text]).data.options == {"start": "12:30"}
    assert _config.read(None, ["--data.options.start", "12:30"]).data.options["start"] == "12:30"
    numbers = '{a: [1:30, 0x10, 1e3, -2, .5, true, null, "7"], b: 1_000}'
    found = _config.read(None, ["--data.options", numbers]).data.options
    assert found == {"a": ["1:30", 16, 1000.0, -2, 0.5, True, None, "7"], "b": 1000}
    path = tmp_path / "c.yaml"
    path.write_text('data: {name: digits, options: {start: "12:30"}}\n')
    assert _config.read(str(path)).data.options == {"start": "12:30"}


@pytest.mark.parametrize(
    "text",
    ['train: {steps: "1:30"}', 'model: {widths: ["1:30", 16, 16]}', 'optimizer: {lr: "1:30"}'],
)
def test_quoted_times_are_no_numbers_either(tmp_path, text):
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"1:30 is no number \(minutes are not read\)"):
        _config.read(f"{tmp_path}/c.yaml")
