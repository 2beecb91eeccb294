"""Completions per second of one and of two processes that train one policy: ``python -m benchmarks.two_processes``.

The same run (same rollouts, same updates) in one process and in two, by turns, each in a new job. What counts is the
seconds of training that the run itself logs, so that starting Python and loading the model are left out. Two processes
need two idle cores: beside other work the wall clock measures that work.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

TRAIN = ["-m", "grpo_from_scratch", "train", "--model", "tiny"]
SETTINGS = ["--set", "eval_every=0", "--set", "checkpoint_every=0"]  # nothing but training


def completions_per_second(processes: int, arguments: argparse.Namespace) -> tuple[float, float]:
    """By the wall clock, and by the CPU seconds of all processes."""
    with tempfile.TemporaryDirectory() as folder:
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        settings = {"steps": arguments.steps, "prompts": arguments.prompts, "group-size": 8, "out": folder + "/run"}
        settings |= {"preset": arguments.preset}
        options = [text for name, value in settings.items() for text in (f"--{name}", str(value))]
        subprocess.run([*launch, *TRAIN, *SETTINGS, *options], check=True, capture_output=True)
        rows = list(map(json.loads, Path(folder, "run", "metrics.jsonl").read_text().splitlines()))
    first, last = rows[0], rows[-1]  # the first step also warms up caches
    counted = last["completions"] - first["completions"]
    return tuple(counted / (last[clock] - first[clock]) for clock in ("wall_seconds", "cpu_seconds"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--preset", default="grpo")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    speeds: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
    for _ in range(arguments.rounds):
        for processes, found in speeds.items():
            found.append(completions_per_second(processes, arguments))
    print(f"{arguments.preset}, {arguments.prompts} prompts x 8, median of {arguments.rounds} rounds")
    print("processes  completions/s  completions/CPU-s")
    for processes, found in speeds.items():
        wall, cpu = (median(column) for column in zip(*found, strict=True))
        print(f"{processes:9}  {wall:13.1f}  {cpu:17.1f}")
    ratios = [two[0] / one[0] for one, two in zip(speeds[1], speeds[2], strict=True)]
    print(f"two over one: {median(ratios):.2f} (of rounds: {', '.join(f'{ratio:.2f}' for ratio in ratios)})")


if __name__ == "__main__":
    main()
