"""Each finding of `grpo doctor`, on a machine made to have what it looks for."""

import errno
import importlib.metadata
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from grpo_from_scratch.cli import doctor
from grpo_from_scratch.cli.app import app

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"


def levels(check):
    return {finding.about: finding.level for finding in check()}


def test_this_machine_is_well():
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 0, done.output
    assert f"torch {torch.__version__}" in done.output
    for about in ("python", "packages", "torch", "torchrun", "threads", "kernel", "runs", "cache"):
        assert f"  {about} " in done.output


def test_old_python(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 9, 1))
    assert levels(doctor.python) == {"python": "bad"}


def test_an_old_and_an_absent_package(monkeypatch):
    real = importlib.metadata.version
    versions = {"transformers": "4.30", "sacrebleu": None}

    def version(name):
        if name in versions and versions[name] is None:
            raise importlib.metadata.PackageNotFoundError
        return versions.get(name) or real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    (bad,) = [finding for finding in doctor.packages() if finding.level == "bad"]
    assert "transformers>=5.24 (here: 4.30)" in bad.what
    assert "sacrebleu (here: absent)" in bad.what
    assert "torch" not in bad.what.replace("pytorch", "")


def test_a_package_that_only_lies_in_the_folder(monkeypatch):
    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", absent)
    assert levels(doctor.packages) == {"packages": "bad"}


def test_every_extra_that_is_absent_is_named(monkeypatch):
    """All of pyproject.toml's but those of the tests, under the names that are imported."""
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    (note,) = [finding for finding in doctor.packages() if finding.level == "note"]
    declared = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    names = [name for extra, names in declared.items() if extra not in ("test", "extras") for name in names]
    assert len(names) > 8
    for name in names:
        assert name.replace("-", "_") in note.what, name


@pytest.mark.parametrize("build, word", [(None, "without CUDA"), ("12.8", "sees no GPU")])
def test_a_gpu_that_torch_does_not_use(monkeypatch, build, word):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", build)
    monkeypatch.setattr(doctor.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    (finding,) = doctor.torch_build()
    assert finding.level == "bad"
    assert word in finding.what


def test_gpus_without_nccl(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    assert levels(doctor.processes) == {"torchrun": "bad"}


@pytest.mark.parametrize("asked, level", [("1", "good"), ("8", "note"), (None, "note")])
def test_threads(monkeypatch, asked, level):
    monkeypatch.setattr(doctor, "CORES", 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if asked:
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert levels(doctor.threads) == {"threads": level}


@pytest.mark.parametrize("command, level", [("/other/bin/python", "bad"), (sys.executable, "good"), ("python", "good")])
def test_a_kernel_of_another_python(monkeypatch, tmp_path, command, level):
    if command == "/other/bin/python":
        (tmp_path / "python").touch()
        command = str(tmp_path / "python")
    spec = type("Spec", (), {"argv": [command]})
    monkeypatch.setattr(doctor.KernelSpecManager, "get_kernel_spec", lambda self, name: spec)
    assert levels(doctor.kernel) == {"kernel": level}


def test_no_kernel(monkeypatch):
    def absent(self, name):
        raise doctor.NoSuchKernel(name)

    monkeypatch.setattr(doctor.KernelSpecManager, "get_kernel_spec", absent)
    assert levels(doctor.kernel) == {"kernel": "bad"}


def test_a_folder_that_cannot_be_written(monkeypatch):
    def refuse(dir):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    assert levels(doctor.disk) == {"runs": "bad", "cache": "bad"}


def test_a_full_disk(monkeypatch):
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 1e9}))
    assert levels(doctor.disk) == {"runs": "note", "cache": "note"}


def test_something_bad_is_the_exit_code(monkeypatch):
    monkeypatch.setattr(doctor, "CHECKS", (lambda: [doctor.Finding("bad", "python", "3.9", "install a newer one")],))
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 1
    assert "-> install a newer one" in done.output
