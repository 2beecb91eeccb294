"""What a setting changes: a row of the table run again with every combination of some settings' values."""

import dataclasses
import difflib
import itertools
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from grpo_from_scratch.evaluation import curves
from grpo_from_scratch.evaluation.experiment import (
    Experiment,
    Job,
    command_line,
    initial_policies,
    jobs_of,
    placed,
    run_job,
    source_hash,
    swept_settings,
    train_config,
)
from grpo_from_scratch.evaluation.figure import INK, SPARE_STYLES, STYLES
from grpo_from_scratch.evaluation.intervals import Array, bootstrap, rounded
from grpo_from_scratch.evaluation.pool import run_jobs
from grpo_from_scratch.evaluation.schema import RunResult
from grpo_from_scratch.objective.presets import Preset
from grpo_from_scratch.training.config import TrainConfig
from grpo_from_scratch.training.provenance import versions

SHAPE = "shape"  # "32x2": prompts a step x completions of each, which only make sense together
METRICS = ("bleu", "rouge_l", "fact_accuracy", "distinct", "kl")
PRESET_FIELDS = {f.name: f.default for f in dataclasses.fields(Preset) if f.name != "source"}
FIXED = ("preset", "model", "data", "out", "seed", "eval_split", "skip_bad")  # these make the experiment, not a variant
CONFIG_FIELDS = {f.name: f.default for f in dataclasses.fields(TrainConfig) if f.name not in FIXED}
SETTINGS = {SHAPE: "8x8"} | CONFIG_FIELDS | PRESET_FIELDS  # what can be varied, and an example of its values


def run_variation(experiment: Experiment, changes: Mapping[str, Sequence[Any]], out: Path, *, workers: int) -> dict:
    """Run ``experiment.rows[0]`` with every combination of ``changes`` and write vary.json and vary.png into ``out``.

    All else is the table's: initial policies, seeds, swept settings of the row. A seed draws the same prompts under
    every combination with the same batch shape, so runs may be compared in pairs.

    Args:
        changes: values by the name of a field of TrainConfig or Preset, or by "shape".

    Raises:
        ValueError: a combination that makes no run, before anything runs.
    """
    (row,) = experiment.rows
    combinations = [dict(zip(changes, values, strict=True)) for values in itertools.product(*changes.values())]
    for difficulty, settings in itertools.product(experiment.specs, combinations):
        varied(train_config(experiment, row, swept_settings(difficulty, row)), settings)
    wall = time.perf_counter()
    policies = initial_policies(experiment, workers)
    # Combinations take turns, so that what else the machine does falls on all alike.
    jobs = [placed_anew(job, settings, out) for job in jobs_of(experiment, policies, out) for settings in combinations]
    results = run_jobs(run_job, jobs, workers=workers, steps=lambda job: job.config.steps, description=f"varying {row}")
    difficulties = {}
    for name in experiment.specs:
        of_name = [result for job, result in zip(jobs, results, strict=True) if job.difficulty == name]
        difficulties[name] = [
            {"settings": settings} | summary(of_name[number :: len(combinations)])
            for number, settings in enumerate(combinations)
        ]
    found = {
        "row": row,
        "changes": {name: list(values) for name, values in changes.items()},
        "difficulties": difficulties,
        "experiment": dataclasses.asdict(experiment),
        "command": command_line(),
        "versions": versions(),
        "source_hash": source_hash(),
        "wall_seconds": rounded(time.perf_counter() - wall),
        "cpu_seconds": rounded(sum(result["cpu_seconds"] for result in results)),
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "vary.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    variation_figure(found).savefig(out / "vary.png", dpi=100)
    return found


def placed_anew(job: Job, settings: Mapping[str, Any], out: Path) -> Job:
    """The table's job with these settings, in a folder of its own."""
    config = varied(job.config, settings)
    name = f"{job.difficulty}-{job.row}-seed{config.seed}"
    return dataclasses.replace(job, config=placed(config, out, name))


def varied(config: TrainConfig, settings: Mapping[str, Any]) -> TrainConfig:
    """The config with these settings, each where it belongs: in the config, its preset, or in both shape fields.

    Raises:
        ValueError: an unknown name, or values that do not fit together.
    """
    settings = dict(settings)
    if unknown := sorted(set(settings) - set(SETTINGS)):
        nearest = difflib.get_close_matches(unknown[0], SETTINGS, 1, 0)[0]
        raise ValueError(f"{unknown[0]!r} is no setting to vary; nearest is {nearest!r}, all are {', '.join(SETTINGS)}")
    if SHAPE in settings:
        settings |= zip(("prompts_per_step", "group_size"), shape_of(settings.pop(SHAPE)), strict=True)
    preset = dataclasses.replace(config.preset, **{k: v for k, v in settings.items() if k in PRESET_FIELDS})
    return dataclasses.replace(config, preset=preset, **{k: v for k, v in settings.items() if k not in PRESET_FIELDS})


def shape_of(text: str) -> tuple[int, int]:
    """ "32x2" -> (32, 2)."""
    prompts, times, size = text.partition("x")
    if not (times and prompts.isdecimal() and size.isdecimal()):
        raise ValueError(f"a shape is PROMPTSxCOMPLETIONS, such as 32x2, not {text!r}")
    return int(prompts), int(size)


def summary(results: Sequence[RunResult]) -> dict[str, Any]:
    """One combination's runs: rewards, metrics and curves over them, with 95 % intervals."""
    strata = np.array([run["sft_seed"] for run in results])
    reward = np.array([[e["reward"] for e in run["evaluations"]] for run in results])  # (runs, evaluations)

    def interval(values: Array) -> dict:
        return bootstrap(lambda drawn: curves.iqm(drawn, axis=-1), (strata, (values,))).to_json()

    finals = {name: [run["final"].get(name) for run in results] for name in METRICS}
    mean, low, high = curves.band(reward, strata)
    return {
        "seeds": [run["seed"] for run in results],
        "final_rewards": [rounded(value) for value in curves.final_reward(reward)],  # one for each run
        "reward": interval(curves.final_reward(reward)),  # mean of the last three evaluations
        "average": interval(reward.mean(-1)),  # over the whole curve: it pays for learning fast, too
        "final": {name: interval(np.array(v)) for name, v in finals.items() if None not in v},
        "completions": [e["completions"] for e in results[0]["evaluations"]],
        "curve": {
            name: [rounded(value) for value in values]
            for name, values in (("mean", mean), ("low", low), ("high", high))
        },
        "icc": [run["icc"] and run["icc"][-1] for run in results],
        "ev": [run["ev"] and run["ev"][-1] for run in results],
    }


def variation_figure(found: dict) -> Figure:
    """Final reward with its interval against the first setting, a panel for each difficulty.

    Lines are combinations of the other settings. Values of a setting stand at equal distances: the steps between them
    are a choice, not a scale.
    """
    first, *others = found["changes"]
    panels = found["difficulties"]
    figure = Figure(figsize=(3.6 * len(panels) + 0.6, 3.6), layout="constrained", facecolor="white")
    for axes, (difficulty, cells) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
    ):
        lines: dict[str, list[dict]] = {}
        for cell in cells:
            name = ", ".join(f"{other} {cell['settings'][other]}" for other in others)
            lines.setdefault(name, []).append(cell)
        styles = itertools.cycle((*STYLES.values(), *SPARE_STYLES))
        for number, ((name, points), (colour, dashes)) in enumerate(zip(lines.items(), styles, strict=False)):
            x = np.arange(len(points)) + 0.06 * (number - (len(lines) - 1) / 2)  # beside each other, not over
            rewards = [point["reward"] for point in points]
            value, low, high = (np.array([r[key] for r in rewards], dtype=float) for key in ("value", "low", "high"))
            look = {"color": colour, "linestyle": dashes, "marker": "o", "capsize": 2}
            axes.errorbar(x, value, (value - low, high - value), label=name, **look)
        axes.set_xticks(range(len(found["changes"][first])), [str(value) for value in found["changes"][first]])
        axes.set_xlabel(first, color=INK)
        axes.set_title(difficulty, loc="left", color=INK)
        axes.grid(color="#d0d7de", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("held-out reward at the end", color=INK)
    if others:
        figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=4, frameon=False)
    return figure
