"""One version, one changelog, one promise about Python: what a release relies on."""

import re
from pathlib import Path

import pytest
import tomllib
import yaml

import hypersphere as hs

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def number(version):
    return tuple(map(int, version.split(".")))


def test_the_version_stands_in_one_place():
    assert re.fullmatch(r"\d+\.\d+\.\d+", hs.__version__)
    assert "version" not in PROJECT["project"] and PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["hatch"]["version"]["path"] == "src/hypersphere/_version.py"
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert str(citation["version"]) == hs.__version__
    written = [p for p in (ROOT / "src").rglob("*.py") if f'"{hs.__version__}"' in p.read_text()]
    assert [p.name for p in written] == ["_version.py"]


def test_the_changelog_has_the_form_of_keep_a_changelog():
    text = (ROOT / "CHANGELOG.md").read_text()
    sections = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert sections[0] == "[Unreleased]"
    released = []
    for section in sections[1:]:
        match = re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - \d{4}-\d{2}-\d{2}", section)
        assert match, f"{section!r}: expected [X.Y.Z] - YYYY-MM-DD"
        released.append(number(match[1]))
    assert released == sorted(released, reverse=True)
    assert not released or released[0] <= number(hs.__version__)
    assert set(re.findall(r"^### (.*)$", text, re.MULTILINE)) <= KINDS


def test_only_tested_versions_of_python_are_promised():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    steps = workflow["jobs"]["run"]["steps"]
    tested = {step["with"]["python-version"] for step in steps if "with" in step}
    classifiers = PROJECT["project"]["classifiers"]
    promised = {c.split(" :: ")[-1] for c in classifiers if "Python :: 3" in c}
    assert promised == tested == {"3.11"}
    assert "untried" in (ROOT / "README.md").read_text()


def test_the_workflow_runs_what_a_clone_runs():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    assert [s["run"] for s in workflow["jobs"]["run"]["steps"] if "run" in s] == ["bash .ci/run"]
    check = (ROOT / ".ci/check").read_text()
    for part in ("functional", "layers", "heads", "regularizers", "orthogonal"):
        assert re.search(rf"mypy --strict .*\b{part}\b", check)


@pytest.mark.parametrize(
    "path", [".pre-commit-config.yaml", ".github/ISSUE_TEMPLATE/bug.yml",
             ".github/ISSUE_TEMPLATE/proposal.yml", ".github/ISSUE_TEMPLATE/config.yml"]
)  # fmt: skip
def test_habits_can_be_read(path):
    assert yaml.safe_load((ROOT / path).read_text())


def test_hooks_run_the_pinned_tools_without_the_network():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [repo["repo"] for repo in hooks] == ["local"]
    for hook in hooks[0]["hooks"]:
        assert hook["language"] == "system" and hook["entry"].startswith("python3 dev.py run ")
