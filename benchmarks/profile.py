"""Where a step's CPU time goes: linear layers, attention, backward, and what is left between them.

python -m benchmarks.profile
"""

import argparse
import functools
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from statistics import median

import torch
from torch import nn

from benchmarks import ours as ours_module
from benchmarks.grpo_step import WARMUP
from benchmarks.ours import Ours, timed
from benchmarks.policies import policy_folder
from benchmarks.work import Work
from grpo_from_scratch.policy import packing, sampling
from grpo_from_scratch.training.updates import Updater

PHASES = {"sample": (ours_module, "sample"), "update": (Updater, "step")}  # what runs them
PARTS = {
    "sample": {
        "linear layers": (nn.Linear, "forward"),
        "attention": (packing, "attend"),
        "drawing tokens": (sampling, "draw"),
        "decoding texts": (sampling, "decode"),
    },
    "update": {
        "linear layers, forward": (nn.Linear, "forward"),
        "attention, forward": (packing, "attend"),
        "backward": (torch.Tensor, "backward"),
        "optimizer": (torch.optim.AdamW, "step"),
    },
}


@contextmanager
def wrapped(owner, name: str, context: Callable[[], AbstractContextManager]) -> Iterator[None]:
    """Inside, every call of ``owner.name`` runs in a context of its own."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*args, **options):
        with context():
            return original(*args, **options)

    setattr(owner, name, call)
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextmanager
def clocked(parts: dict[str, tuple], cpu: dict[str, float]) -> Iterator[None]:
    """Inside, the CPU time of each part's calls adds up in ``cpu[part]``."""
    with ExitStack() as stack:
        for part, (owner, name) in parts.items():
            stack.enter_context(wrapped(owner, name, functools.partial(timed, cpu, part)))
        yield


def profile(work: Work, steps: int) -> dict[str, dict[str, float]]:
    """Milliseconds of each part and of what is left, by phase: medians over the steps."""
    ours, found = Ours(work, steps=len(PARTS) * (WARMUP + steps)), {}
    for phase, parts in PARTS.items():
        rows = []
        for _ in range(WARMUP + steps):
            cpu: dict[str, float] = defaultdict(float)
            with wrapped(*PHASES[phase], functools.partial(clocked, parts, cpu)):
                whole = ours.step().cpu[phase]
            rows.append([*(cpu[part] for part in parts), whole - sum(cpu.values())])
        medians = [1e3 * median(column) for column in zip(*rows[WARMUP:], strict=True)]
        found[phase] = dict(zip([*parts, "everything between"], medians, strict=True))
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile", description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="folder with a Hugging Face model, its tokenizer and data.jsonl")
    parser.add_argument("--steps", type=int, default=6)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    folder = Path(options.model or policy_folder("2M", trained=True, prompt_tokens="40"))
    for phase, parts in profile(Work(folder), options.steps).items():
        whole = sum(parts.values())
        print(f"{phase}: {whole:.0f} ms")
        for part, milliseconds in parts.items():
            print(f"  {part:24} {milliseconds:6.1f} ms {100 * milliseconds / whole:5.1f} %")


if __name__ == "__main__":
    main()
