"""The PPO-vs-GRPO experiment: which runs it consists of, each of them, and the table they make."""

import dataclasses
import difflib
import functools
import hashlib
import json
import shlex
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from grpo_from_scratch.dialogue.readers import load_examples
from grpo_from_scratch.evaluation.measure import measure
from grpo_from_scratch.evaluation.pool import Report, run_jobs
from grpo_from_scratch.evaluation.report import write_report
from grpo_from_scratch.evaluation.schema import RunResult, Table
from grpo_from_scratch.evaluation.table import build_table
from grpo_from_scratch.objective.presets import PRESETS, Preset
from grpo_from_scratch.policy.loading import load_policy
from grpo_from_scratch.training.config import TrainConfig
from grpo_from_scratch.training.experience import Experience
from grpo_from_scratch.training.provenance import data_hash, source_hash, versions
from grpo_from_scratch.training.sft import SFTConfig, fine_tuned_policy
from grpo_from_scratch.training.trainer import RLTrainer

KL_COEF = 0.02  # the same for every row, each in its preset's own place
MAX_PROMPT_TOKENS, MAX_NEW_TOKENS = 64, 24
MEASURED = 500  # held-out dialogues for BLEU and its like
SWEPT = Path(__file__).with_name("sweep.json")


@dataclass(frozen=True)
class RowSpec:
    """A row of the table: a preset and the shape of its batch, the same 64 completions in every row."""

    preset: str
    prompts: int = 8
    group_size: int = 8


ROWS = {
    "ppo": RowSpec("ppo", 64, 1),  # PPO's best shape, hence the headline
    "ppo_8x8": RowSpec("ppo"),
    "grpo": RowSpec("grpo"),
    "dr_grpo": RowSpec("dr_grpo"),
    "rloo": RowSpec("rloo"),
    "cluster_ema": RowSpec("cluster_ema"),
}
QUICK_ROWS = ("ppo", "grpo", "cluster_ema")


@dataclass(frozen=True)
class Experiment:
    """What ``grpo table`` measures. Seed s of a row starts from the policy that SFT seed s mod ``sft_seeds`` made."""

    data: str = "embedded"
    difficulties: tuple[str, ...] = ("mixed", "even")  # of the embedded dialogues
    rows: tuple[str, ...] = tuple(ROWS)
    seeds: int = 10
    sft_seeds: int = 2
    steps: int = 40
    eval_every: int = 2
    eval_prompts: int = 256
    quick: bool = False
    skip_bad: bool = False

    def __post_init__(self):
        for row in self.rows:
            if row not in ROWS:
                nearest = difflib.get_close_matches(row, ROWS, 1, 0)[0]
                raise ValueError(
                    f"there is no algorithm {row!r} in the table; nearest is {nearest!r}, all are {', '.join(ROWS)}"
                )
        if len(set(self.rows)) < len(self.rows):
            raise ValueError(f"an algorithm stands twice in {', '.join(self.rows)}; name each once")
        if self.seeds < self.sft_seeds:
            raise ValueError(f"{self.seeds} seeds cannot use {self.sft_seeds} initial policies; take at least as many")

    @property
    def specs(self) -> dict[str, str]:
        """Name in the table -> data spec."""
        if self.data != "embedded":
            return {self.data: self.data}
        return {name: f"embedded:{name}" for name in self.difficulties}


@dataclass(frozen=True)
class Job:
    """One run of the table."""

    difficulty: str
    row: str
    sft_seed: int
    config: TrainConfig


def preset_of(row: str, passes: int = 1) -> Preset:
    """The row's preset as published, but for its passes, which are tuned, and the KL coefficient, which all share."""
    return dataclasses.replace(PRESETS[ROWS[row].preset], kl_coef=KL_COEF, passes=passes)


def swept_settings(difficulty: str, row: str) -> dict[str, float]:
    """What the committed sweep found best for a row."""
    return _swept()[swept_on(difficulty)][row]["settings"]


def swept_on(difficulty: str) -> str:
    """The data that a difficulty's settings were searched on: itself, or ``mixed`` where it was not swept."""
    difficulty = difficulty.removeprefix("embedded:")
    return difficulty if difficulty in _swept() else "mixed"


def _swept() -> dict:
    return json.loads(SWEPT.read_text(encoding="utf-8"))["difficulties"]


def train_config(experiment: Experiment, row: str, settings: dict[str, float], **more) -> TrainConfig:
    """The run of a row with these swept settings."""
    shape = ROWS[row]
    return TrainConfig(
        preset=preset_of(row, int(settings.get("passes", 1))),
        prompts_per_step=shape.prompts,
        group_size=shape.group_size,
        steps=experiment.steps,
        learning_rate=settings["learning_rate"],
        critic_learning_rate=settings.get("critic_learning_rate", TrainConfig.critic_learning_rate),
        critic_passes=int(settings.get("critic_passes", 1)),
        critic_warmup=int(settings.get("critic_warmup", 0)),
        max_prompt_tokens=MAX_PROMPT_TOKENS,
        max_new_tokens=MAX_NEW_TOKENS,
        eval_every=experiment.eval_every,
        eval_prompts=experiment.eval_prompts,
        checkpoint_every=0,  # a run takes seconds; the experiment resumes by runs
        skip_bad=experiment.skip_bad,
        **more,
    )


def sft_config(experiment: Experiment, sft_seed: int) -> SFTConfig:
    """The initial policy. The difficulty changes what is rewarded, not what is imitated, so it is not in here."""
    return SFTConfig(
        data=experiment.data,
        seed=sft_seed,
        max_prompt_tokens=MAX_PROMPT_TOKENS,
        max_new_tokens=MAX_NEW_TOKENS,
        skip_bad=experiment.skip_bad,
    )


def initial_policies(experiment: Experiment, workers: int) -> dict[int, str]:
    """SFT seed -> folder of the fine-tuned policy, trained now where it is not cached."""
    for spec in experiment.specs.values():
        load_examples(spec, "report", skip_bad=experiment.skip_bad)  # unusable data is refused before anything runs
    configs = [sft_config(experiment, seed) for seed in range(experiment.sft_seeds)]
    what = f"fine-tuning {len(configs)} initial polic{'y' if len(configs) == 1 else 'ies'}"
    folders = run_jobs(_fine_tune, configs, workers=workers, steps=lambda c: c.steps, description=what)
    return dict(enumerate(map(str, folders)))


def _fine_tune(config: SFTConfig, report: Report) -> Path:
    left = iter(range(config.steps))
    folder = fine_tuned_policy(config, on_step=lambda *_: (next(left), report()))
    for _ in left:  # it was cached
        report()
    return folder


def jobs_of(experiment: Experiment, policies: dict[int, str], out: Path) -> list[Job]:
    """Every run of the table; rows take turns, so that what else the machine does falls on all of them alike."""
    jobs = []
    for difficulty, spec in experiment.specs.items():
        for seed in range(experiment.seeds):
            sft_seed = seed % experiment.sft_seeds
            for row in experiment.rows:
                settings = swept_settings(difficulty, row)
                config = train_config(
                    experiment, row, settings, data=spec, model=policies[sft_seed], seed=seed, eval_split="report"
                )
                jobs.append(Job(difficulty, row, sft_seed, placed(config, out, f"{difficulty}-{row}-seed{seed}")))
    return jobs


def placed(config: TrainConfig, out: Path, name: str) -> TrainConfig:
    """The config with a folder of its own, named by what the result depends on: settings, source and data."""
    key = json.dumps(config.to_dict() | {"out": ""}, sort_keys=True) + source_hash()
    key += _hash_of(config.data, config.eval_split, config.skip_bad)
    digest = hashlib.blake2b(key.encode(), digest_size=4).hexdigest()
    return dataclasses.replace(config, out=str(out / "runs" / f"{name.replace('/', '_').replace(':', '_')}-{digest}"))


@functools.cache
def _hash_of(data: str, split: str, skip_bad: bool) -> str:
    return data_hash(*(load_examples(data, lot, skip_bad=skip_bad) for lot in ("train", split)))


def run_job(job: Job, report: Report) -> RunResult:
    """Train and measure one run, or read the result of an earlier one from its folder."""
    config = job.config
    saved = Path(config.out) / "result.json"
    if saved.is_file():
        for _ in range(config.steps):
            report()
        return json.loads(saved.read_text(encoding="utf-8"))
    cpu = time.process_time()
    trained = RLTrainer(config, on_step=lambda row: report() if row["step"] else None).train()
    result: RunResult = {
        "algorithm": ROWS[job.row].preset,
        "sft_seed": job.sft_seed,
        "seed": config.seed,
        "evaluations": [_evaluation(row) for row in trained.evaluations],
        "final": _final(config, trained.model, trained.tokenizer),
        "icc": _between_evaluations(trained.metrics, "icc"),
        "ev": _between_evaluations(trained.metrics, "ev"),
        "config": config.to_dict(),
        "cpu_seconds": time.process_time() - cpu,
    }
    partial = saved.with_suffix(".partial")
    partial.write_text(json.dumps(result), encoding="utf-8")
    partial.replace(saved)
    return result


def untrained_result(difficulty: str, policy: str, sft_seed: int, like: TrainConfig) -> RunResult:
    """The row of the policy before training, measured as the others are."""
    config = dataclasses.replace(like, model=policy)
    model, tokenizer = load_policy(policy)
    reward = Experience(config).heldout_reward(model, tokenizer)
    return {
        "algorithm": "untrained",
        "sft_seed": sft_seed,
        "seed": 0,
        "evaluations": [{"step": 0, "completions": 0, "cpu_seconds": 0.0, "reward": reward}],
        "final": _final(config, model, tokenizer),
        "icc": None,
        "ev": None,
        "config": config.to_dict(),
        "cpu_seconds": 0.0,
    }


def _final(config: TrainConfig, model, tokenizer) -> dict[str, float | None]:
    reference, _ = load_policy(config.model)
    return measure(
        model,
        tokenizer,
        load_examples(config.data, config.eval_split, skip_bad=config.skip_bad)[:MEASURED],
        max_new_tokens=config.max_new_tokens,
        max_prompt_tokens=config.max_prompt_tokens,
        seed=config.seed,
        reference=reference,
    )


def _evaluation(row: dict) -> dict:
    return {name: row[name] for name in ("step", "completions", "cpu_seconds")} | {"reward": row["eval_reward"]}


def _between_evaluations(metrics: list[dict], name: str) -> list[float | None] | None:
    """For each evaluation the mean of a metric over the steps since the one before; None where it was not measured."""
    series, since = [], []
    for row in metrics:
        if row.get(name) is not None:
            since.append(row[name])
        if row.get("eval_reward") is not None:
            series.append(fmean(since) if since else None)
            since = []
    return series if any(value is not None for value in series) else None


def run_experiment(experiment: Experiment, out: Path, *, workers: int) -> Table:
    """Run what is not yet done, then write table.json, report.md and curves.png into ``out``."""
    wall = time.perf_counter()
    policies = initial_policies(experiment, workers)
    jobs = jobs_of(experiment, policies, out)
    kept = sum((Path(job.config.out) / "result.json").is_file() for job in jobs)
    results = run_jobs(run_job, jobs, workers=workers, steps=lambda job: job.config.steps, description="training")
    cpu = time.process_time()  # what the jobs took, here or in workers, is in their results
    by_difficulty: dict[str, list[RunResult]] = defaultdict(list)
    for name in experiment.specs:
        like = next(job.config for job in jobs if job.difficulty == name)
        for sft_seed, policy in policies.items():
            by_difficulty[name].append(untrained_result(name, policy, sft_seed, like))
    for job, result in zip(jobs, results, strict=True):
        by_difficulty[job.difficulty].append(result)
    model, _ = load_policy(policies[0])
    table = build_table(
        by_difficulty,
        config=dataclasses.asdict(experiment)
        | {
            "kl_coef": KL_COEF,
            "swept_on": {name: swept_on(name) for name in experiment.specs},
            "parameters": sum(p.numel() for p in model.parameters()),
            "kept_runs": kept,
        },
        versions=versions(),
        source_hash=source_hash(),
        command=command_line(),
        wall_seconds=time.perf_counter() - wall,
        cpu_seconds=time.process_time()
        - cpu
        + sum(result["cpu_seconds"] for result in results)
        + sum(json.loads((Path(folder) / "sft.json").read_text())["cpu_seconds"] for folder in policies.values()),
    )
    write_report(table, out)
    return table


def command_line() -> str:
    """The command as one would type it again."""
    return shlex.join(["grpo", *sys.argv[1:]])
