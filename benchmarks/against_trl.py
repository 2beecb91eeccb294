"""Ours against TRL, side by side in one process: A/B/A/B, medians of completions per process-CPU-second.

    python -m benchmarks.against_trl trained            one case, or several; none: all of them
    python -m benchmarks.against_trl --list

A case's result is written to benchmarks/speed/CASE.json, which ``benchmarks.report`` reads.
"""

import argparse
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch  # noqa: E402
import transformers  # noqa: E402

from benchmarks.grpo_step import rounded  # noqa: E402
from benchmarks.ours import Ours  # noqa: E402
from benchmarks.policies import policy_folder  # noqa: E402
from benchmarks.theirs import Lot, train_in_lots  # noqa: E402
from benchmarks.work import Work  # noqa: E402
from grpo_from_scratch.training.provenance import source_hash, versions  # noqa: E402

SPEED = Path(__file__).parent / "speed"


@dataclass(frozen=True)
class Case:
    """One row of the comparison."""

    says: str
    target: float | None = None  # how many times TRL's rate
    size: str = "2M"
    trained: bool = True
    prompt_tokens: str = "40"
    group_size: int = 8
    prompts: int = 8
    beta: float = 0.0

    def work(self, max_new: int) -> Work:
        folder = policy_folder(self.size, trained=self.trained, prompt_tokens=self.prompt_tokens)
        return Work(folder, self.group_size, self.prompts, max_new, self.beta)


CASES = {
    "trained": Case("trained model, replies end early", 3.0),
    "random": Case("random weights, nearly all tokens used", 2.4, trained=False),
    "long": Case("prompts of about 200 tokens", 4.5, prompt_tokens="200"),
    "kl": Case("KL coefficient 0.04", 2.6, beta=0.04),
    "small": Case("0.3 M parameters", 3.0, size="0.3M"),
    "g4": Case("groups of 4", 2.2, group_size=4),
    "g16": Case("groups of 16", 2.6, group_size=16),
    "g32": Case("groups of 32", 2.8, group_size=32),
} | {f"sweep{g}": Case(f"64 completions in groups of {g}", group_size=g, prompts=64 // g) for g in (2, 4, 8, 16, 32, 64)}


def compare(case: Case, *, rounds: int, steps: int, max_new: int = 32, bf16: bool = True) -> dict:
    """Both sides on the case, in lots of ``steps`` steps by turns; the first lot of each warms up and is left out.

    Raises:
        ValueError: TRL is not installed.
    """
    work = case.work(max_new)
    ours = Ours(work, steps=(rounds + 1) * steps)
    lots: list[tuple[Lot, Lot]] = []  # theirs and ours

    def our_turn(theirs: Lot) -> None:
        measured = [ours.step() for _ in range(steps)]
        cpu = sum(sum(step.cpu.values()) for step in measured)
        length = sum(step.completion_tokens for step in measured) / (steps * work.completions)
        lots.append((theirs, Lot(cpu, length)))

    train_in_lots(work, lots=rounds + 1, steps=steps, bf16=bf16, after=our_turn)
    rates = [[steps * work.completions / lot.cpu for lot in pair] for pair in lots[1:]]
    theirs, mine = (median(side) for side in zip(*rates, strict=True))
    return {
        "says": case.says,
        "target": case.target,
        "ours": rounded(mine),
        "trl": rounded(theirs),
        "times": rounded(median(us / them for them, us in rates)),
        "times_of_rounds": [rounded(us / them) for them, us in rates],
        "mean_length": {
            name: rounded(sum(pair[side].mean_length for pair in lots[1:]) / rounds)
            for side, name in enumerate(("trl", "ours"))
        },
        "size": case.size,
        "groups": case.group_size,
        "prompts": case.prompts,
        "beta": case.beta,
        "max_new": max_new,
        "rounds": rounds,
        "steps": steps,
        "threads": torch.get_num_threads(),
        "trl_precision": "bf16" if bf16 else "fp32",
        "source": source_hash(),
        "versions": versions() | {"trl": _trl_version()},
    }


def _trl_version() -> str:
    from importlib.metadata import version

    return version("trl")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.against_trl", description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="case", help=f"of {', '.join(CASES)}; none: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=6, help="of each side in a round")
    parser.add_argument("--max-new", type=int, default=32)
    parser.add_argument("--trl-precision", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--out", type=Path, default=SPEED, help="folder of the results")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.cases if name not in CASES]:
        sys.exit(f"error: there is no case {unknown[0]}; there are {', '.join(CASES)}")
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.cases or CASES:
        try:
            result = compare(
                CASES[name],
                rounds=options.rounds,
                steps=options.steps,
                max_new=options.max_new,
                bf16=options.trl_precision == "bf16",
            )
        except ValueError as error:
            sys.exit(f"error: {error}")
        (options.out / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print(f"{name}: ours {result['ours']}, TRL {result['trl']}, {result['times']} times", flush=True)


if __name__ == "__main__":
    main()
