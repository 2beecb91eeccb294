"""Ours against TRL, side by side in one process: A/B/A/B, medians of completions per process-CPU-second.

    python -m benchmarks.against_trl trained            one case, or several; none: all of them

A case's result is written to benchmarks/speed/CASE.json, which ``benchmarks.report`` reads.
"""

import argparse
import importlib.metadata
import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch  # noqa: E402
import transformers  # noqa: E402

from benchmarks.grpo_step import mean_of, rounded  # noqa: E402
from benchmarks.ours import Ours  # noqa: E402
from benchmarks.policies import policy_folder  # noqa: E402
from benchmarks.theirs import Lot, check_installed, train_in_lots  # noqa: E402
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
}
SWEEP = (2, 4, 16, 32, 64)  # groups of 8 are the case "trained"
CASES |= {f"sweep{g}": Case(f"64 completions in groups of {g}", group_size=g, prompts=64 // g) for g in SWEEP}


def compare(work: Work, *, rounds: int, steps: int, trl_bf16: bool = True) -> dict:
    """Both sides on the same work, in lots of ``steps`` steps by turns; the first lot of each warms up and is left out.

    Raises:
        ValueError: TRL is not installed.
    """
    check_installed()
    ours = Ours(work, steps=(rounds + 1) * steps)
    lots: list[tuple[Lot, Lot]] = []  # TRL's and ours

    def our_turn(theirs: Lot) -> None:
        measured = [ours.step() for _ in range(steps)]
        cpu = sum(sum(step.cpu.values()) for step in measured)
        lots.append((theirs, Lot(cpu, mean_of(measured, "completion_tokens") / work.completions)))

    train_in_lots(work, lots=rounds + 1, steps=steps, bf16=trl_bf16, after=our_turn)
    theirs, mine = ([pair[side] for pair in lots[1:]] for side in (0, 1))
    times = [them.cpu / us.cpu for them, us in zip(theirs, mine, strict=True)]
    return {
        "ours": rounded(median(steps * work.completions / lot.cpu for lot in mine)),
        "trl": rounded(median(steps * work.completions / lot.cpu for lot in theirs)),
        "times": rounded(median(times)),
        "times_of_rounds": [rounded(ratio) for ratio in times],
        "mean_length": {
            name: rounded(sum(lot.mean_length for lot in side) / rounds)
            for name, side in (("ours", mine), ("trl", theirs))
        },
        "rounds": rounds,
        "steps": steps,
        "max_new": work.max_new,
        "threads": torch.get_num_threads(),
        "trl_precision": "bf16" if trl_bf16 else "fp32",
        "source": source_hash(),
        "versions": versions() | {"trl": importlib.metadata.version("trl")},
    }


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
    try:
        check_installed()
    except ValueError as error:
        sys.exit(f"error: {error}")
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.cases or CASES:
        case = CASES[name]
        work, bf16 = case.work(options.max_new), options.trl_precision == "bf16"
        result = asdict(case) | compare(work, rounds=options.rounds, steps=options.steps, trl_bf16=bf16)
        (options.out / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print(f"{name}: ours {result['ours']}, TRL {result['trl']}, {result['times']} times", flush=True)


if __name__ == "__main__":
    main()
