"""Configs: typed, complete, and wrong names answered with the right ones."""

import pytest
import torch

from hypersphere.commands import _config, _training, train
from hypersphere.commands._config import ConfigError
from hypersphere.training import Config


def test_the_resolved_config_reads_as_itself(tmp_path):
    arguments = ["--head.name", "ga_softmax", "--head.annealing.base", "10", "--model.angular"]
    arguments += ['{"name": "sigmoid", "k": 0.3}', "--hooks.project_weights.every=3"]
    arguments += ["--regularizers.comhe.dim", "7", "--rotate.method", "cayley", "--data.root", "x"]
    arguments += ["--low_rank.rank", "4", "--init.mean", "0.1", "--optimizer.others", "adam"]
    config = _config.read(None, arguments)
    text = _config.dump(config)
    (tmp_path / "config.yaml").write_text(text)
    again = _config.read(str(tmp_path / "config.yaml"))
    assert _config.dump(again) == text
    assert again.hooks["project_weights"]["every"] == 3 and again.regularizers["comhe"]["dim"] == 7
    assert again.head["annealing"]["base"] == 10 and again.rotate["method"] == "cayley"
    assert again.low_rank["rank"] == 4 and again.init["mean"] == 0.1
    assert again.optimizer.others == "adam"
    assert _config.read(None, [*arguments, "--low_rank", "null"][-2:]).low_rank is None
    assert Config.from_dict(again.to_dict()) == again


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--train.stpes", "3"], "unknown key 'train.stpes'; did you mean 'train.steps'?"),
        (["--head.annealing.bas", "3"], "'bas'"),
        (["--model.width", "[3]"], "did you mean 'model.widths'? (model.name is 'cnn9')"),
        (["--head.m", "3"], "unknown key 'head.m'"),
        (["--head.name", "asoftmax"], "unknown head 'asoftmax'; did you mean 'a_softmax'?"),
        (["--model.name", "cnn8"], "unknown model 'cnn8'; did you mean 'cnn18'?"),
        (["--regularizers.mhee.s", "2"], "unknown regularizer 'mhee'; did you mean 'mhe'?"),
        (["--hooks.monitr.every", "2"], "unknown hook 'monitr'; did you mean 'monitor'?"),
        (["--train.steps", "many"], "train.steps"),
        (["--init.men", "0.1"], "did you mean 'init.mean'?"),
        (["--low_rank.skip", "[a]"], "low_rank.rank"),
        (["--data.augment", "cifr"], "data.augment"),
        (["steps=3"], "expected --section.key value; got 'steps=3'"),
    ],
)
def test_wrong_names_and_values_are_refused(arguments, message):
    with pytest.raises(ConfigError) as error:
        _config.read(None, arguments)
    assert message in str(error.value)


def test_what_is_read_twice_is_not_shared():
    """Values are read once and kept: a config that is changed changes no other."""
    arguments = ["--model.widths", "[3,4,5]", "--data.options", '{"a": [1]}']
    first, second = (_config.read(None, arguments) for _ in range(2))
    first.model["widths"].append(6)  # given
    first.model["hidden"].append(7)  # a default
    first.data.options["a"].append(2)
    first.schedule.at.append(8)
    for config in (second, _config.read(None, arguments)):
        assert config.model["widths"] == [3, 4, 5] and config.model["hidden"] == []
        assert config.data.options == {"a": [1]} and config.schedule.at == []


def test_files_bases_variants_and_removal(tmp_path):
    (tmp_path / "_base.yaml").write_text(
        "train: {steps: 10}\nregularizers: {mhe: {}}\nvariants: {wide: {model: {features: 9}}}\n"
    )
    (tmp_path / "a.yaml").write_text(
        "base: _base.yaml\nhead: {name: a_softmax, m: 3}\n"
        "variants: {plain: {head: {name: softmax}, regularizers: {mhe: null}}, wide: {seed: 4}}\n"
    )
    spec = str(tmp_path / "a.yaml")
    config = _config.read(spec)
    assert config.train.steps == 10 and config.head["m"] == 3 and "mhe" in config.regularizers
    config = _config.read(f"{spec}:plain,wide")
    assert config.head["name"] == "softmax" and "m" not in config.head
    assert config.regularizers == {} and config.model["features"] == 9 and config.seed == 4
    assert _config.read(spec, ["--regularizers.mhe", "null"]).regularizers == {}
    assert _config.read(spec, ["--head.name", "softmax"]).head["name"] == "softmax"
    with pytest.raises(ConfigError, match="unknown variant of a.yaml 'plan'; did you mean 'plain'"):
        _config.read(f"{spec}:plan")
    with pytest.raises(ConfigError, match="there is no config"):
        _config.read(str(tmp_path / "b.yaml"))
    (tmp_path / "c.yaml").write_text("train: [")
    with pytest.raises(ConfigError, match="not readable as YAML"):
        _config.read(str(tmp_path / "c.yaml"))


def test_another_data_set_starts_its_options_afresh():
    start = {"data": {"name": "digits", "batch_size": 64, "options": {"protocol": "open_set"}}}
    assert _config.read(None, [], defaults=start).data.options == {"protocol": "open_set"}
    arguments = ["--data.name", "mnist", "--data.options.verify", "true"]
    data = _config.read(None, arguments, defaults=start).data
    assert data.options == {"verify": True} and data.batch_size == 64


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data.options.unsen", "[1,2]"], "data set 'letters' has no option 'unsen'"),
        (["--model.widths", "[-4,4,4]"], "model.widths must be a whole number >= 1"),
        (["--fabric.accelerator", "mps" if torch.cuda.is_available() else "cuda"], "fabric: "),
    ],
)
def test_settings_that_cannot_be_built_are_one_line(
    capsys, tmp_path, monkeypatch, arguments, message
):
    monkeypatch.chdir(tmp_path)
    assert train.main(arguments) == 2
    err = capsys.readouterr().err
    assert message in err and "Traceback" not in err
    assert not list(tmp_path.rglob("run.json"))


def test_a_bug_in_training_keeps_its_traceback(tmp_path, monkeypatch):
    def bug(*_):
        raise TypeError("a bug")

    monkeypatch.setattr("hypersphere.training.job.fit", bug)
    with pytest.raises(TypeError, match="a bug"):
        train.main(["--run.folder", str(tmp_path / "a"), "--train.quiet", "true"])


def test_train_prints_its_config_and_refuses_in_one_line(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert train.main(["--print_config", "--train.steps", "7"]) == 0
    printed = capsys.readouterr().out
    assert "a_softmax" in printed and "steps: 7" in printed
    assert train.main(["--trian.steps", "7"]) == 2
    assert "did you mean 'train.steps'?" in capsys.readouterr().err
    assert train.main(["--resume"]) == 1
    assert "nothing to resume" in capsys.readouterr().err
    assert train.main(["--help"]) == 0
    assert "--head.m" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()


def test_folders_are_never_overwritten(tmp_path, monkeypatch):
    from hypersphere.training.run.folder import new_folder, newest_folder

    monkeypatch.chdir(tmp_path)
    base = tmp_path / "runs" / "a"
    for name in ("a", "a-2"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "run.json").write_text("{}")
    assert new_folder(base).name == "a-3" and newest_folder(base).name == "a-2"
    config = _config.read(None, ["--run.folder", str(base)])
    with pytest.raises(ValueError, match="holds a run"):
        _training.choose_folder(config, None, None)


def test_variants_need_a_file():
    with pytest.raises(ConfigError, match="--variant cpu lays changes over a file"):
        _config.read(None, [], variants=["cpu"])


def test_ogd_goes_with_its_optimizer():
    from torch import nn

    from hypersphere.training.build import make_player_optimizer

    config = _config.read(None, ["--rotate.method", "ogd"])
    with pytest.raises(ValueError, match="only optimizer.name=ogd keeps orthogonal"):
        make_player_optimizer(config, nn.Linear(2, 2))
    config = _config.read(None, ["--optimizer.others", "adam"])
    with pytest.raises(ValueError, match="optimizer.others='adam' goes with optimizer.name=ogd"):
        make_player_optimizer(config, nn.Linear(2, 2))


def test_weights_of_another_network_are_refused(tmp_path):
    from safetensors.torch import save_file
    from torch import nn

    from hypersphere.training.run.load import initialize_from

    save_file(nn.Linear(4, 3).state_dict(), tmp_path / "w.safetensors")  # its bias would fit
    with pytest.raises(ValueError, match=r"weight is \(3, 4\) there and \(3, 5\) here"):
        initialize_from(nn.Linear(5, 3), tmp_path / "w.safetensors")


@pytest.mark.parametrize("content", [b"junk", b"", bytes(100)])
def test_damaged_weights_are_told_in_one_line(tmp_path, monkeypatch, capsys, content):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w.safetensors").write_bytes(content)
    assert train.main(["--train.init_from", "w.safetensors"]) == 1
    error = capsys.readouterr().err
    assert "w.safetensors is damaged, or no .safetensors file" in error
    assert "Traceback" not in error
    assert train.main(["--train.init_from", "/dev/null"]) == 1
    assert "no weights in /dev/null" in capsys.readouterr().err


def test_wrong_values_are_told_in_plain_words():
    with pytest.raises(ConfigError, match="unknown optimizer.name 'sdg'; did you mean 'sgd'"):
        _config.read(None, ["--optimizer.name", "sdg"])
    with pytest.raises(ConfigError, match="train.steps must be a whole number >= 1; got 'ten'"):
        _config.read(None, ["--train.steps", "ten"])


def test_a_task_for_graphs_refuses_pictures(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text("task: graph\ndata: {name: digits}\nmodel: {name: gcn}\n")
    assert train.main(["c.yaml"]) == 1
    error = capsys.readouterr().err
    assert "task graph trains on a graph, which 'digits' is not" in error
    assert train.main(["--task", "grap"]) == 2
    assert "unknown task 'grap'; did you mean 'graph'?" in capsys.readouterr().err


def test_run_folders_of_earlier_versions_are_read():
    values = Config(seed=3).to_dict()
    values["thesis"] = {**values.pop("dissertation"), "row": "a"}
    assert Config.from_dict(values).dissertation.row == "a"
    with pytest.raises(ValueError, match="unknown section 'modle'; did you mean 'model'"):
        Config.from_dict({"modle": {}})
    with pytest.raises(ValueError, match="unknown key of train 'stpes'; did you mean 'steps'"):
        Config.from_dict({"train": {"stpes": 3}})
