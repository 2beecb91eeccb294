"""The noise study: how much noisier a global baseline is than a group's, predicted and measured.

For every difficulty of the embedded dialogues, before and after some GRPO updates, the ratio of the two noises is found
three times: to first order from the rewards alone, by the exact formula from a pool of per-completion gradients, and as
measured on batches that share no completion with the pool.
"""

import dataclasses
import hashlib
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_from_scratch.evaluation.experiment import (
    Experiment,
    command_line,
    initial_policies,
    placed,
    swept_settings,
    train_config,
)
from grpo_from_scratch.evaluation.intervals import rounded
from grpo_from_scratch.evaluation.noise_cell import POLICIES, NoiseStudy, noise_cell, summary
from grpo_from_scratch.evaluation.noise_figure import noise_to_signal_figure, ratio_figure
from grpo_from_scratch.evaluation.noise_gradients import batch_products, gradient_pool
from grpo_from_scratch.evaluation.noise_terms import MIN_PROMPTS, MIN_REPLIES
from grpo_from_scratch.evaluation.pool import Report, run_jobs
from grpo_from_scratch.policy.loading import load_policy
from grpo_from_scratch.training.config import TrainConfig
from grpo_from_scratch.training.experience import Experience
from grpo_from_scratch.training.provenance import source_hash, versions
from grpo_from_scratch.training.trainer import RLTrainer

DIAL = ("even", "0.25", "mixed", "hidden", "0.75")


@dataclass(frozen=True)
class NoiseSettings:
    """What ``grpo noise`` measures."""

    difficulties: tuple[str, ...] = DIAL
    updates: int = 15  # of GRPO, before the second look
    prompts: int = 160  # of a pool
    replies: int = 16  # to each of them
    batch: int = 64  # completions of a measured batch
    batches: int = 56  # for each group size
    group_sizes: tuple[int, ...] = (2, 4, 8, 16)
    seed: int = 0
    quick: bool = False

    def __post_init__(self):
        least = {"prompts": MIN_PROMPTS, "replies": MIN_REPLIES, "batches": 2, "updates": 1}
        for name, smallest in least.items():
            if getattr(self, name) < smallest:
                raise ValueError(f"the noise study needs at least {smallest} {name}, not {getattr(self, name)}")
        if len(set(self.difficulties)) < len(self.difficulties):
            raise ValueError(f"a difficulty stands twice in {', '.join(self.difficulties)}; name each once")
        for size in self.group_sizes:
            if size < 2 or self.batch % size:
                raise ValueError(
                    f"a group of {size} does not fit a batch of {self.batch} completions; take group sizes from 2 on "
                    "that divide it"
                )

    @property
    def key(self) -> str:
        """What a cell depends on, the difficulty aside, as a short name."""
        chosen = dataclasses.replace(self, difficulties=(), quick=False)
        return hashlib.blake2b(json.dumps(dataclasses.asdict(chosen)).encode(), digest_size=4).hexdigest()


@dataclass(frozen=True)
class NoiseJob:
    """One cell: its difficulty and policy, and the GRPO run that the policy is, or is the start of."""

    settings: NoiseSettings
    difficulty: str
    policy: str
    config: TrainConfig

    @property
    def updates(self) -> int:
        return self.settings.updates if self.policy == "trained" else 0

    @property
    def steps(self) -> int:
        return self.updates + self.settings.prompts + self.settings.batches * len(self.settings.group_sizes)


def noise_jobs(settings: NoiseSettings, experiment: Experiment, policy: str, out: Path) -> list[NoiseJob]:
    """Every cell. A trained policy is the table's GRPO run with one pass a step, stopped after ``updates`` steps.

    All cells have the same prompts. At the fine-tuned policy they have the same completions too, and only the rewards
    differ, so that luck in what was drawn is no difference between difficulties.
    """
    jobs = []
    for difficulty, spec in experiment.specs.items():
        swept = swept_settings(difficulty, "grpo") | {"passes": 1}
        config = train_config(
            experiment, "grpo", swept, data=spec, model=policy, seed=settings.seed, eval_split="tuning"
        )
        for name in POLICIES:
            jobs.append(
                NoiseJob(settings, difficulty, name, placed(config, out, f"{difficulty}-{name}-{settings.key}"))
            )
    return jobs


def run_cell(job: NoiseJob, report: Report) -> dict[str, Any]:
    """Measure one cell, or read the result of an earlier run from its folder: {"cell", "cpu_seconds"}."""
    saved = Path(job.config.out) / "cell.json"
    if saved.is_file():
        for _ in range(job.steps):
            report()
        return json.loads(saved.read_text(encoding="utf-8"))
    cpu, settings = time.process_time(), job.settings
    if job.policy == "trained":
        trainer = RLTrainer(job.config, on_step=lambda _: report())
        trainer.train(until=settings.updates)
        model, tokenizer, experience = trainer.model, trainer.tokenizer, trainer.experience
    else:
        model, tokenizer = load_policy(job.config.model)
        experience = Experience(job.config)
    pool = gradient_pool(
        model,
        tokenizer,
        experience,
        prompts=settings.prompts,
        replies=settings.replies,
        seed=settings.seed,
        report=report,
    )
    products = {
        size: batch_products(
            model,
            tokenizer,
            experience,
            constant=float(pool.rewards.mean()),
            group_size=size,
            batch=settings.batch,
            batches=settings.batches,
            seed=settings.seed,
            report=report,
        )
        for size in settings.group_sizes
    }
    cell = noise_cell(job.difficulty, job.policy, job.updates, pool=pool, products=products, batch=settings.batch)
    result = {"cell": cell, "cpu_seconds": time.process_time() - cpu}
    saved.parent.mkdir(parents=True, exist_ok=True)
    partial = saved.with_suffix(".partial")
    partial.write_text(json.dumps(result), encoding="utf-8")
    partial.replace(saved)
    return result


def run_noise(settings: NoiseSettings, out: Path, *, workers: int) -> NoiseStudy:
    """Measure what is not yet measured, then write noise.json, ratio.png and noise_to_signal.png into ``out``."""
    wall = time.perf_counter()
    experiment = Experiment(difficulties=settings.difficulties, rows=("grpo",), seeds=1, sft_seeds=1, eval_every=0)
    policy = initial_policies(experiment, workers)[0]
    jobs = noise_jobs(settings, experiment, policy, out)
    results = run_jobs(run_cell, jobs, workers=workers, steps=lambda job: job.steps, description="measuring noise")
    cells = [result["cell"] for result in results]
    model, _ = load_policy(policy)
    study: NoiseStudy = {
        "command": command_line(),
        "versions": versions(),
        "source_hash": source_hash(),
        "wall_seconds": rounded(time.perf_counter() - wall),
        "cpu_seconds": rounded(sum(result["cpu_seconds"] for result in results)),
        "config": dataclasses.asdict(settings) | {"parameters": sum(p.numel() for p in model.parameters())},
        "cells": cells,
        "summary": summary(cells),
    }
    write_noise(study, out)
    return study


def write_noise(study: NoiseStudy, out: Path) -> None:
    """noise.json, and the figures drawn from it."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "noise.json").write_text(json.dumps(study, indent=1) + "\n", encoding="utf-8")
    written = read_noise(out / "noise.json")
    ratio_figure(written).savefig(out / "ratio.png", dpi=110)
    noise_to_signal_figure(written).savefig(out / "noise_to_signal.png", dpi=110)


def read_noise(path: Path) -> NoiseStudy:
    """The study that ``grpo noise`` wrote."""
    return json.loads(path.read_text(encoding="utf-8"))
