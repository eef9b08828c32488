import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

import hypersphere as hs
from hypersphere import cli

PARTS = [name for name in hs.__all__ if name not in ("__version__", "register")]
ROOT = Path(__file__).resolve().parent.parent


def fresh(code: str) -> str:
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_import_opens_nothing_until_it_is_used():
    before, after = json.loads(
        fresh(
            "import json, sys, torch; import hypersphere as hs;"
            "before = [m for m in sys.modules if m.startswith('hypersphere.')];"
            "hs.functional.angle;"
            "print(json.dumps([before, 'hypersphere.functional.angles' in sys.modules]))"
        )
    )
    assert before == ["hypersphere._version"]
    assert after


def test_parts_import_no_extra():
    heavy = "scipy sklearn matplotlib plotly lightning jsonargparse yaml optuna h5py PIL faiss cv2"
    loaded = fresh(
        "import sys, torch\n"
        "before = set(sys.modules)\n"
        "import hypersphere as hs\n"
        "for part in hs.__all__[1:]:\n"
        "    getattr(hs, part)\n"
        f"print([m for m in {heavy.split()!r} if m in sys.modules and m not in before])"
    )
    assert loaded.strip() == "[]"


def test_a_run_imports_no_package_for_its_version():
    """lightning_fabric imports torchmetrics whole to compare its version: seconds of every run."""
    if not importlib.util.find_spec("torchmetrics"):
        pytest.skip("torchmetrics is not installed")
    loaded, known = json.loads(
        fresh(
            "import json, sys\n"
            "from hypersphere.training import make_fabric\n"
            "make_fabric(accelerator='cpu')\n"
            "from lightning_fabric.utilities import imports\n"
            "heavy = ('torchmetrics', 'transformers', 'matplotlib')\n"
            "loaded = [m for m in heavy if m in sys.modules]\n"
            "print(json.dumps([loaded, imports._TORCHMETRICS_GREATER_EQUAL_1_0_0]))"
        )
    )
    assert loaded == [] and known


@pytest.mark.parametrize("part", PARTS)
def test_each_part_says_what_it_offers(part):
    module = getattr(hs, part)
    assert module.__all__ == sorted(set(module.__all__), key=module.__all__.index)
    for name in module.__all__:
        assert getattr(module, name) is not None


def test_an_unknown_part_is_refused_with_the_known_ones():
    with pytest.raises(AttributeError, match="no attribute 'layer'; it has: data, distributions"):
        hs.layer  # noqa: B018


@pytest.fixture(scope="module")
def opened():
    """part -> the parts that its import opens, each in a child of one process that has torch."""
    parts = ["functional", "distributions", "layers", "heads", "regularizers", "orthogonal"]
    code = (
        "import importlib, os, sys, torch\n"
        f"for part in {parts!r}:\n"
        "    if not os.fork():\n"
        "        importlib.import_module(f'hypersphere.{part}')\n"
        "        names = [m for m in sys.modules if m.startswith('hypersphere.')]\n"
        "        print(part, *names, flush=True)\n"
        "        os._exit(0)\n"
        "    assert os.wait()[1] == 0, part\n"
    )
    lines = [line.split() for line in fresh(code).splitlines()]
    return {part: {name.split(".")[1] for name in modules} for part, *modules in lines}


@pytest.mark.parametrize(
    ("part", "forbidden"),
    [
        (
            "functional",
            "layers heads regularizers orthogonal models data training evaluation reports "
            "distributions",
        ),
        (
            "distributions",
            "layers heads regularizers orthogonal models data training evaluation reports",
        ),
        ("layers", "heads regularizers orthogonal models data training evaluation reports"),
        ("heads", "layers regularizers orthogonal models data training evaluation reports"),
        ("regularizers", "layers heads orthogonal models data training evaluation reports"),
        ("orthogonal", "layers heads regularizers models data training evaluation reports"),
    ],
)
def test_parts_do_not_know_one_another(opened, part, forbidden):
    assert part in opened[part] and not opened[part] & set(forbidden.split())


def test_command_lists_itself_and_finds_the_nearest_name(capsys):
    assert cli.main([]) == 0
    listing = capsys.readouterr().out
    assert all(name in listing for name in cli.COMMANDS)
    assert cli.main(["trian"]) == 2
    assert "did you mean 'train'?" in capsys.readouterr().err
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"hypersphere {hs.__version__}\n"


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_help(name, capsys):
    try:
        code = cli.main([name, "--help"])
    except SystemExit as leave:  # of argparse
        code = leave.code
    assert code == 0 and "usage" in capsys.readouterr().out.lower()


@pytest.mark.slow
@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_help_in_a_process_of_its_own(name):
    run = subprocess.run(
        [sys.executable, "-m", "hypersphere", name, "--help"], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert "usage" in run.stdout.lower()


def test_a_missing_extra_is_one_kind_line(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    from hypersphere._optional import require

    with pytest.raises(ModuleNotFoundError, match=r"pip install 'torch-hypersphere\[report\]'"):
        require("matplotlib", extra="report")


@pytest.fixture
def dev():
    """dev.py as a module."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("dev", ROOT / "dev.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_copy_without_history_has_a_number_too(dev, monkeypatch, tmp_path):
    monkeypatch.setattr(dev, "ROOT", tmp_path)
    assert int(dev.commit(), 16) == 0
    monkeypatch.setenv("PATH", "")  # nor is there a git
    assert int(dev.commit(), 16) == 0


def test_set_up_refuses_a_python_without_pinned_wheels(dev, monkeypatch):
    monkeypatch.setattr(dev, "PINNED", [(3, 99)])
    with pytest.raises(SystemExit, match="pins wheels for Python 3.99; this is Python 3"):
        dev.check_version()


def test_torch_is_pinned_without_a_local_suffix():
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    assert "torch==2.13.0" in pins
    assert not [pin for pin in pins if "+" in pin]


@pytest.mark.parametrize("folder", PARTS)
def test_folders_are_where_the_design_says(folder):
    assert (ROOT / "src" / "hypersphere" / folder / "__init__.py").exists()
