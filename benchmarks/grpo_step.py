"""How fast a GRPO step is here: one JSON line.

    python -m benchmarks.grpo_step --model DIR --groups 8 --prompts 8 --max-new 32 --beta 0 --steps 12

DIR holds a Hugging Face model, its tokenizer and data.jsonl (prompt, reference); without --model, the 2 M Llama of
``benchmarks.policies``. The reward is the word F1 against the reference.
"""

import argparse
import json
import resource
import sys
from pathlib import Path
from statistics import median

import torch

from benchmarks.floor import floor_flops, matmul_peak, multiplied_parameters
from benchmarks.ours import Ours, Step
from benchmarks.policies import policy_folder
from benchmarks.work import Work
from grpo_from_scratch.training.provenance import source_hash, versions

WARMUP = 2  # first steps, which also allocate: not measured


def main(arguments: list[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    torch.set_num_threads(options.threads)
    folder = options.model or policy_folder("2M", trained=True, prompt_tokens="40")
    work = Work(Path(folder), options.groups, options.prompts, options.max_new, options.beta)
    try:
        print(json.dumps(measure(work, options.steps, bf16=options.precision == "bf16", packed=options.shared_prefix)))
    except ValueError as error:
        sys.exit(f"error: {error}")


def measure(work: Work, steps: int, *, bf16: bool, packed: bool) -> dict:
    """Medians over ``steps`` steps. The machine's peak is measured again before each: others may be busy on it."""
    ours = Ours(work, steps=steps + WARMUP, bf16=bf16, packed=packed)
    matmul_peak()  # its matrices are not the step's memory
    before = peak_memory()
    for _ in range(WARMUP):
        ours.step()
    peaks, measured = [], []
    for _ in range(steps):
        peaks.append(matmul_peak())
        measured.append(ours.step())
    memory = peak_memory() - before
    totals = [sum(step.cpu.values()) for step in measured]
    parameters = multiplied_parameters(ours.model)
    floors = [floor_flops(parameters, step, work.completions, reference=work.beta > 0) for step in measured]
    fractions = [floor / peak / total for floor, peak, total in zip(floors, peaks, totals, strict=True)]
    return {
        "samples_per_cpu_s": rounded(work.completions / median(totals)),
        "phases_cpu_ms": {name: rounded(1e3 * median(s.cpu[name] for s in measured)) for name in measured[0].cpu},
        "mean_prompt_tokens": rounded(mean_of(measured, "prompt_tokens") / work.prompts),
        "mean_length": rounded(mean_of(measured, "completion_tokens") / work.completions),
        "floor": {
            "parameters": parameters,
            "gflop": rounded(median(floors) / 1e9),
            "float32_gflop_per_cpu_s": rounded(median(peaks) / 1e9),
            "fraction_reached": rounded(median(fractions)),
        },
        "peak_mb": rounded(memory),
        "metrics": {name: rounded(value) for name, value in measured[-1].metrics.items()},
        "model": Path(work.folder).name,
        "groups": work.group_size,
        "prompts": work.prompts,
        "max_new": work.max_new,
        "beta": work.beta,
        "steps": steps,
        "precision": "bf16" if bf16 else "fp32",
        "shared_prefix": packed,
        "threads": torch.get_num_threads(),
        "source": source_hash(),
        "versions": versions(),
    }


def mean_of(steps: list[Step], name: str) -> float:
    return sum(getattr(step, name) for step in steps) / len(steps)


def peak_memory() -> float:
    """The most memory this process has held so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # Linux counts in KB


def rounded(value: float) -> float:
    """To four significant digits: the rest is noise."""
    return float(f"{value:.4g}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.grpo_step", description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="folder with a Hugging Face model, its tokenizer and data.jsonl")
    parser.add_argument("--groups", type=int, default=8, help="completions of each prompt")
    parser.add_argument("--prompts", type=int, default=8, help="prompts a step")
    parser.add_argument("--max-new", type=int, default=32, help="longest completion, in tokens")
    parser.add_argument("--beta", type=float, default=0.0, help="coefficient of the KL term")
    parser.add_argument("--steps", type=int, default=12, help="steps that are measured")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument(
        "--precision", choices=["bf16", "fp32"], default="bf16", help="of scoring and training; sampling is float32"
    )
    parser.add_argument(
        "--no-shared-prefix", dest="shared_prefix", action="store_false", help="a prompt for every completion"
    )
    return parser


if __name__ == "__main__":
    main()
