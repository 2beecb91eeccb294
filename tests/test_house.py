"""The promises of the repository's own files."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MODULES = [path for top in ("grpo_from_scratch", "tests", "benchmarks") for path in sorted((ROOT / top).rglob("*.py"))]


def test_environment_yml_says_what_pyproject_and_constraints_say():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    python, pip, lines = environment["dependencies"]
    assert re.fullmatch(r"python=3\.1\d", python) and pip == "pip"
    assert lines == {"pip": ["-c constraints.txt", "-e .[test]"]}


def test_constraints_lock_every_dependency():
    lock = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert "torch==2.13.0" in lock
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lock), "a lock has one exact version a line"
    locked = {line.partition("==")[0].lower().replace("_", "-") for line in lock}
    project = PYPROJECT["project"]
    wanted = [*project["dependencies"], *(d for extra in project["optional-dependencies"].values() for d in extra)]
    names = {re.match(r"[\w-]+", line)[0].lower() for line in wanted} - {"grpo-from-scratch"}
    assert names <= locked


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_is_one_idea(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 350


def test_package_imports_no_pickle_and_evaluates_no_text():
    for path in (ROOT / "grpo_from_scratch").rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        assert not re.search(r"\bimport pickle|torch\.load\(|trust_remote_code=True|(?<![\w.])(eval|exec)\(", source), (
            path
        )


def test_python_m_grpo_from_scratch_is_the_command():
    found = subprocess.run(
        [sys.executable, "-m", "grpo_from_scratch", "--help"], capture_output=True, text=True, check=True
    )
    assert all(command in found.stdout for command in ("table", "sweep", "train", "sft", "evaluate", "diagnose"))
