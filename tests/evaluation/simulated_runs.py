"""Simulated runs: saturating learning curves of known speed, so that the table can be worked out by hand."""

import numpy as np

from grpo_from_scratch.evaluation.schema import RunResult, Table
from grpo_from_scratch.evaluation.table import build_table

PRESET = {"num_groups": 3, "alpha": 0.95, "ema_init": "group_first"}


def simulate(
    algorithm: str,
    *,
    sft_seed: int = 0,
    seed: int = 0,
    prompts: int = 8,
    group_size: int = 8,
    speed: float = 1.0,
    height: float = 0.1,
    cost: float = 0.01,
    noise: float = 0.0,
    evaluations: int = 9,
    icc: float | None = None,
    ev: float | None = None,
    bleu: float = 0.3,
) -> RunResult:
    """Reward .3 + height·(1 − exp(−3·speed·t)) for t in [0, 1], plus noise, at ``cost`` CPU seconds a completion."""
    generator = np.random.default_rng([sft_seed, seed, prompts, group_size, sum(map(ord, algorithm))])
    t = np.linspace(0, 1, evaluations)
    reward = 0.3 + height * (1 - np.exp(-3 * speed * t)) + noise * generator.standard_normal(evaluations) * (t > 0)
    completions = (2560 * t).astype(int)
    steps = (40 * t).astype(int)
    jitter = 1 + noise * generator.standard_normal()
    return {
        "algorithm": algorithm,
        "sft_seed": sft_seed,
        "seed": seed,
        "evaluations": [
            {"step": int(s), "completions": int(n), "cpu_seconds": float(n * cost * jitter), "reward": float(r)}
            for s, n, r in zip(steps, completions, reward, strict=True)
        ],
        "final": {
            "bleu": bleu + float(noise * generator.standard_normal()),
            "bleu_greedy": bleu + 0.05,
            "rouge_l": 0.5,
            "fact_accuracy": 0.7,
            "distinct": 0.4,
            "kl": 0.2,
        },
        "icc": None if icc is None else [icc + 0.2 * float(v) for v in t],
        "ev": None if ev is None else [None] + [ev] * (evaluations - 1),
        "cpu_seconds": 2.0 * float(completions[-1]) * cost,
        "config": {"prompts_per_step": prompts, "group_size": group_size, "learning_rate": 3e-4, "preset": PRESET},
    }


def untrained(sft_seed: int = 0) -> RunResult:
    run = simulate("untrained", sft_seed=sft_seed, evaluations=2, bleu=0.25)
    return run | {"evaluations": run["evaluations"][:1]}


ROWS = (
    {"algorithm": "ppo", "prompts": 64, "group_size": 1, "ev": 0.6, "cost": 0.02, "bleu": 0.32},
    {"algorithm": "ppo", "ev": 0.1, "speed": 0.7, "height": 0.09, "cost": 0.02, "bleu": 0.31},
    {"algorithm": "grpo", "icc": 0.5, "speed": 1.5, "bleu": 0.33},
    {"algorithm": "dr_grpo", "icc": 0.5, "speed": 1.4, "height": 0.105, "bleu": 0.33},
    {"algorithm": "rloo", "icc": 0.5, "speed": 1.3, "height": 0.1, "bleu": 0.33},
    {"algorithm": "cluster_ema", "icc": 0.5, "speed": 0.6, "height": 0.07, "bleu": 0.29},
)


def all_runs(*, noise: float = 0.01, sft_seeds: int = 2, seeds: int = 5) -> list[RunResult]:
    runs = [untrained(sft) for sft in range(sft_seeds)]
    return runs + [
        simulate(**row, sft_seed=sft, seed=seed, noise=noise)
        for row in ROWS
        for sft in range(sft_seeds)
        for seed in range(seeds)
    ]


def table_of(results: dict[str, list[RunResult]], **config) -> Table:
    return build_table(
        results,
        config={"data": "embedded", "quick": False, "parameters": 271_000, "swept_on": {"mixed": "mixed"}} | config,
        versions={"python": "3.13.1", "torch": "2.13.0"},
        source_hash="0123abcd",
        command="grpo table",
        wall_seconds=1234.0,
        cpu_seconds=2345.0,
    )
