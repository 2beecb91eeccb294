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
LEAST = {"passes": 1, "critic_passes": 1}  # below, a setting means nothing
ONE_PASS = ({"learning_rate": RATES},)
GROUP = ({"learning_rate": RATES, "passes": (1, 2)},)
CRITIC = (*GROUP, {"critic_learning_rate": (1e-3, 3e-3), "critic_passes": (2, 4), "critic_warmup": (1, 3)})
STAGES = {"ppo": CRITIC, "ppo_8x8": CRITIC, "grpo": GROUP, "dr_grpo": GROUP, "rloo": ONE_PASS, "cluster_ema": ONE_PASS}


def run_sweep(experiment: Experiment, out: Path, *, workers: int) -> dict:
    """Search each row's settings on each difficulty and write all trials and the best into ``out/sweep.json``.

    After the stages, a setting whose best value is the end of what was tried is tried beyond it, until no best value is
    an end. A trial's score is the held-out reward averaged over the whole run, then over seeds: it pays for learning
    fast and for ending high, which are what the table measures.
    """
    policies = initial_policies(experiment, workers)
    searches = [Search(experiment, name, policies, out, workers) for name in experiment.specs]
    sweep = {
        "difficulties": {search.difficulty: search.run() for search in searches},
        "experiment": dataclasses.asdict(experiment),
        "command": command_line(),
        "source_hash": source_hash(),
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / SWEPT.name).write_text(json.dumps(sweep, indent=1) + "\n", encoding="utf-8")
    return sweep


class Search:
    """The search of all rows on one difficulty: what was tried, and the best of it."""

    def __init__(self, experiment: Experiment, difficulty: str, policies: dict[int, str], out: Path, workers: int):
        self.experiment, self.difficulty, self.policies = experiment, difficulty, policies
        self.out, self.workers = out, workers
        self.best = {row: {name: START[name] for stage in STAGES[row] for name in stage} for row in experiment.rows}
        self.trials: dict[str, list[dict]] = {row: [] for row in experiment.rows}

    def run(self) -> dict[str, dict]:
        """Each row's best settings and all its trials."""
        rows = self.experiment.rows
        for number in range(max(len(STAGES[row]) for row in rows)):
            planned = [(row, settings) for row in rows for settings in _stage(row, number, self.best[row])]
            self._attempt(f"stage {number + 1}", planned)
        while planned := [(row, s) for row in rows for s in beyond_the_ends(self.best[row], self.trials[row])]:
            self._attempt("beyond the ends", planned)
        return {row: {"settings": self.best[row], "trials": self.trials[row]} for row in rows}

    def _attempt(self, what: str, planned: list[tuple[str, dict]]) -> None:
        seeds = self.experiment.seeds
        jobs = [self._job(row, settings, seed) for row, settings in planned for seed in range(seeds)]
        what = f"{self.difficulty}, {what}: {len(planned)} settings"
        results = run_jobs(run_job, jobs, workers=self.workers, steps=lambda job: job.config.steps, description=what)
        rewards = [fmean(e["reward"] for e in result["evaluations"]) for result in results]
        for i, (row, settings) in enumerate(planned):
            scores = rewards[i * seeds : (i + 1) * seeds]
            self.trials[row].append({"settings": settings, "scores": scores, "score": fmean(scores)})
        for row, trials in self.trials.items():
            self.best[row] = max(trials, key=lambda trial: trial["score"])["settings"]

    def _job(self, row: str, settings: dict, seed: int) -> Job:
        sft_seed = seed % self.experiment.sft_seeds
        config = train_config(
            self.experiment,
            row,
            settings,
            data=self.experiment.specs[self.difficulty],
            model=self.policies[sft_seed],
            seed=FIRST_SEED + seed,
            eval_split="tuning",
        )
        return Job(self.difficulty, row, sft_seed, placed(config, self.out, f"{self.difficulty}-{row}-seed{seed}"))


def beyond_the_ends(best: dict, trials: list[dict]) -> list[dict]:
    """For every setting whose best value is the smallest or largest tried: the best settings with half or twice it."""
    proposals = []
    for name, value in best.items():
        tried = {trial["settings"][name] for trial in trials}
        whole = isinstance(value, int)
        smaller, larger = (value // 2, max(2 * value, 1)) if whole else (value / 2, 2 * value)
        if value == min(tried) and smaller != value and smaller >= LEAST.get(name, 0):
            proposals.append(best | {name: smaller})
        if value == max(tried):
            proposals.append(best | {name: larger})
    return proposals


def _stage(row: str, number: int, best: dict) -> list[dict]:
    if number >= len(STAGES[row]):
        return []
    values = STAGES[row][number]
    return [best | dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]
