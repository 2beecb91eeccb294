"""The sweep: every row of the table gets its own best settings, on tuning seeds and tuning dialogues."""

import dataclasses
import itertools
import json
from pathlib import Path
from statistics import fmean

from grpo_from_scratch.evaluation.experiment import (
    SWEPT,
    Experiment,
    Job,
    command_line,
    initial_policies,
    placed,
    run_job,
    source_hash,
    train_config,
)
from grpo_from_scratch.evaluation.pool import run_jobs

RATES = (2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3)
FIRST_SEED = 1000  # tuning seeds are none of the table's

# Stages of a coordinate search: each tries every combination of its values, the rest as the stages before left it.
START = {"learning_rate": 1e-3, "passes": 1, "critic_learning_rate": 3e-3, "critic_passes": 2, "critic_warmup": 3}
ONE_PASS = ({"learning_rate": RATES},)
GROUP = ({"learning_rate": RATES, "passes": (1, 2)},)
CRITIC = (*GROUP, {"critic_learning_rate": (1e-3, 3e-3), "critic_passes": (2, 4), "critic_warmup": (1, 3)})
STAGES = {"ppo": CRITIC, "ppo_8x8": CRITIC, "grpo": GROUP, "dr_grpo": GROUP, "rloo": ONE_PASS, "cluster_ema": ONE_PASS}


def run_sweep(experiment: Experiment, out: Path, *, workers: int) -> dict:
    """Search each row's settings on each difficulty and write all trials and the best into ``out/sweep.json``.

    A trial's score is the held-out reward averaged over the whole run, then over seeds: it pays for learning fast and
    for ending high, which are what the table measures.
    """
    policies = initial_policies(experiment, workers)
    found = {}
    for difficulty, spec in experiment.specs.items():
        best = {row: {name: START[name] for stage in STAGES[row] for name in stage} for row in experiment.rows}
        trials = {row: [] for row in experiment.rows}
        for number in range(max(len(STAGES[row]) for row in experiment.rows)):
            planned = [(row, settings) for row in experiment.rows for settings in _stage(row, number, best[row])]
            jobs = [
                _job(experiment, policies, out, difficulty, spec, row, settings, seed)
                for row, settings in planned
                for seed in range(experiment.seeds)
            ]
            what = f"{difficulty}, stage {number + 1}: {len(planned)} settings"
            results = run_jobs(run_job, jobs, workers=workers, steps=lambda job: job.config.steps, description=what)
            rewards = [fmean(e["reward"] for e in result["evaluations"]) for result in results]
            for i, (row, settings) in enumerate(planned):
                scores = rewards[i * experiment.seeds : (i + 1) * experiment.seeds]
                trials[row].append({"settings": settings, "scores": scores, "score": fmean(scores)})
            for row in experiment.rows:
                best[row] = max(trials[row], key=lambda trial: trial["score"])["settings"]
        found[difficulty] = {row: {"settings": best[row], "trials": trials[row]} for row in experiment.rows}
    sweep = {
        "difficulties": found,
        "experiment": dataclasses.asdict(experiment),
        "command": command_line(),
        "source_hash": source_hash(),
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / SWEPT.name).write_text(json.dumps(sweep, indent=1) + "\n", encoding="utf-8")
    return sweep


def _stage(row: str, number: int, best: dict) -> list[dict]:
    if number >= len(STAGES[row]):
        return []
    values = STAGES[row][number]
    return [best | dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]


def _job(experiment, policies, out, difficulty, spec, row, settings, seed) -> Job:
    sft_seed = seed % experiment.sft_seeds
    config = train_config(
        experiment, row, settings, data=spec, model=policies[sft_seed], seed=FIRST_SEED + seed, eval_split="tuning"
    )
    return Job(difficulty, row, sft_seed, placed(config, out, f"{difficulty}-{row}-seed{seed}"))
