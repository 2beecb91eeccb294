"""From the runs of every row to the table: what `table.json` holds and what each number in it means.

The definitions of the statistics are in ``curves``; this file says which runs they are computed on. The shapes
of what goes in and what comes out are in ``schema``.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from grpo_from_scratch.evaluation import curves
from grpo_from_scratch.evaluation.claims import (
    ARTICLE,
    CLAIMS,
    NAMESAKE,
    NO_GAIN,
    UNDEFINED_BY_SOURCE,
    joint_verdict,
    side_verdict,
)
from grpo_from_scratch.evaluation.intervals import Array, Interval, Sample, bootstrap, rounded
from grpo_from_scratch.evaluation.schema import Claim, CurveJSON, Difficulty, Row, RunResult, Table
from grpo_from_scratch.objective.groups import first_order_noise_ratio

LEARNED_EV = 0.2  # a critic that explains less has not learned


@dataclass(frozen=True)
class Runs:
    """The runs of one row as arrays: strata (R,), the curves (R, E), and final's values (R,)."""

    name: str
    first: RunResult
    strata: Array
    steps: Array
    completions: Array
    cpu_seconds: Array
    reward: Array
    final: dict[str, Array]
    icc: list[float | None] | None
    ev: list[float | None] | None

    @classmethod
    def gather(cls, name: str, results: Sequence[RunResult]) -> "Runs":
        """Raises ValueError where runs differ in their evaluations, final metrics or learning rate."""
        results = sorted(results, key=lambda run: (run["sft_seed"], run["seed"]))
        keys = [(run["sft_seed"], run["seed"]) for run in results]
        if len(set(keys)) < len(keys):
            raise ValueError(f"{name}: two results for the same (sft_seed, seed) among {keys}; keep one of each.")
        for what, seen in (
            ("evaluation steps", {tuple(e["step"] for e in run["evaluations"]) for run in results}),
            ("final metrics", {tuple(sorted(run["final"])) for run in results}),
            ("learning rates", {run["config"]["learning_rate"] for run in results}),
        ):
            if len(seen) > 1:
                raise ValueError(f"{name}: runs differ in their {what}, {sorted(seen)}; they are not one row.")
        if taken := sorted(set(results[0]["final"]) & (set(Row.__annotations__) - {"bleu"})):
            raise ValueError(f"{name}: final has {', '.join(taken)}, which the row computes itself; name it otherwise.")
        for run, key in itertools.product(results, ("icc", "ev")):
            if run[key] is not None and len(run[key]) != len(run["evaluations"]):
                raise ValueError(f"{name}: {len(run[key])} values of {key} for {len(run['evaluations'])} evaluations.")

        def curve(key: str) -> Array:
            return np.array([[e[key] for e in run["evaluations"]] for run in results], dtype=float)

        runs = cls(
            name=name,
            first=results[0],
            strata=np.array([run["sft_seed"] for run in results]),
            steps=curve("step"),
            completions=curve("completions"),
            cpu_seconds=curve("cpu_seconds"),
            reward=curve("reward"),
            final={key: np.array([run["final"][key] for run in results], dtype=float) for key in results[0]["final"]},
            icc=_over_runs([run["icc"] for run in results]),
            ev=_over_runs([run["ev"] for run in results]),
        )
        for x in (runs.steps, runs.completions, runs.cpu_seconds):
            curves.check_curves(runs.reward, x, name=name)
        return runs

    @property
    def trained(self) -> bool:
        return self.reward.shape[1] > 1

    def sample(self, *arrays: Array) -> Sample:
        return self.strata, arrays


def _over_runs(series: Sequence[Sequence[float | None] | None]) -> list[float | None] | None:
    """Mean over runs at each evaluation, of the runs that have a value there; None when no run has any."""
    series = [values for values in series if values is not None]
    if not series:
        return None
    columns = [[v for v in column if v is not None] for column in zip(*series, strict=True)]
    return [rounded(sum(column) / len(column)) if column else None for column in columns]


def last_mean(series: Sequence[float | None] | None) -> float:
    """Mean of the last three evaluations that have a value; NaN without one."""
    values = [v for v in series or [] if v is not None][-curves.LAST :]
    return sum(values) / len(values) if values else math.nan


def first_value(series: Sequence[float | None] | None) -> float:
    """The first evaluation that has a value; NaN without one."""
    return next((v for v in series or [] if v is not None), math.nan)


def critic_noise_ratios(group: Runs, base: Runs) -> list[float | None] | None:
    """The noise ratio against the base's critic at each evaluation, both after as many completions.

    ICC and EV rise together while the policies are trained, so the one at the start says nothing beside the other at
    the end. None where the rows were evaluated after different numbers of completions, or without a critic.
    """
    if base.ev is None or not np.array_equal(group.completions[0], base.completions[0]):
        return None
    size = group.first["config"]["group_size"]
    return [
        None if icc is None or ev is None else rounded(first_order_noise_ratio(icc, size, explained_variance=ev))
        for icc, ev in zip(group.icc, base.ev, strict=True)
    ]


def efficiency_interval(base: Runs, runs: Runs, *, x: str, fraction: float = curves.HEADLINE_FRACTION) -> Interval:
    """Sample (x = "completions") or compute (x = "cpu_seconds") efficiency; 1 for the headline, by definition."""
    if runs is base:
        return Interval(1.0, 1.0, 1.0)
    return bootstrap(
        lambda *arrays: curves.efficiency(*arrays, fraction=fraction),
        base.sample(getattr(base, x), base.reward),
        runs.sample(getattr(runs, x), runs.reward),
    )


def _components(runs: Runs, scale: float) -> Callable[[Array], Array]:
    return lambda reward: curves.stability_components(reward, runs.strata, scale=scale)


def _ratio(top: Array, bottom: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(bottom > 0, top / bottom, np.nan)


def has_gained(runs: Runs) -> bool:
    """Whether the row's gain is larger than chance: its interval lies above 0. Only then is its steadiness a virtue."""
    return runs.trained and bootstrap(curves.gain, runs.sample(runs.reward)).low > 0


def claim_ratio(metric: str, base: Runs, runs: Runs, scale: float) -> Interval:
    """The algorithm over the headline PPO, which has gained, in a claim's metric."""
    if metric == "sample_efficiency":
        return efficiency_interval(base, runs, x="completions")
    if metric == "bleu":
        return bootstrap(
            lambda b, a: _ratio(curves.iqm(a, -1), curves.iqm(b, -1)),
            base.sample(base.final["bleu"]),
            runs.sample(runs.final["bleu"]),
        )
    if not has_gained(runs):
        return Interval(math.nan)
    of_base, of_runs = _components(base, scale), _components(runs, scale)
    return bootstrap(
        lambda b, a: _ratio(of_runs(a).mean(-1), of_base(b).mean(-1)),
        base.sample(base.reward),
        runs.sample(runs.reward),
    )


def _claims(difficulty: str, rows: Sequence[Runs], base: Runs | None, scale: float) -> list[Claim]:
    claims = []
    learned = base is not None and has_gained(base)
    for metric, before, after in CLAIMS:
        claim = {"metric": metric, "claimed": rounded(after / before), "claimed_from": before, "claimed_to": after}
        for algorithm in (ARTICLE, NAMESAKE):
            runs = next((row for row in rows if row.first["algorithm"] == algorithm), None)
            measured = claim_ratio(metric, base, runs, scale) if learned and runs else Interval(math.nan)
            verdict = side_verdict(metric, measured, after / before)
            if base and not learned and metric not in UNDEFINED_BY_SOURCE:
                verdict = NO_GAIN  # twice nothing is nothing
            claim[algorithm] = measured.to_json() | {"verdict": verdict}
        claim["verdict"] = joint_verdict({(a, difficulty): claim[a]["verdict"] for a in (ARTICLE, NAMESAKE)})
        claims.append(claim)
    return claims


def _row(runs: Runs, base: Runs | None, scale: float) -> Row:
    config = runs.first["config"] if runs.trained else {}
    sample = runs.sample(runs.reward)
    nothing = Interval(math.nan)
    gained = has_gained(runs)
    compared = base is not None and runs.trained
    fractions = {
        f"{f:g}": (efficiency_interval(base, runs, x="completions", fraction=f) if compared else nothing).to_json()
        for f in curves.FRACTIONS
    }
    compute = efficiency_interval(base, runs, x="cpu_seconds") if compared else nothing
    components = _components(runs, scale)
    parts = {
        name: (bootstrap(lambda r, i=i: components(r)[..., i], sample) if gained else nothing).to_json()
        for i, name in enumerate(("across_time", "risk", "across_seeds"))
    }
    steady = bootstrap(lambda r: components(r).mean(-1), sample) if gained else nothing
    settled = bootstrap(curves.convergence, runs.sample(runs.steps, runs.reward)) if gained else nothing
    completions, seconds = (float(curves.iqm(values[:, -1])) for values in (runs.completions, runs.cpu_seconds))
    final = {key: bootstrap(lambda v: curves.iqm(v, -1), runs.sample(v)) for key, v in runs.final.items()}
    return {
        "name": runs.name,
        "algorithm": runs.first["algorithm"],
        "preset": config.get("preset"),
        "prompts": config.get("prompts_per_step"),
        "group_size": config.get("group_size"),
        "learning_rate": config.get("learning_rate"),
        "seeds": len(runs.strata),
        "sft_seeds": len(np.unique(runs.strata)),
        "ev": runs.ev,
        "reward": bootstrap(lambda r: curves.final_reward(curves.mean_curve(r)), sample).to_json(),
        "gain": (bootstrap(curves.gain, sample) if runs.trained else nothing).to_json(),
        "sample_efficiency": {**fractions[f"{curves.HEADLINE_FRACTION:g}"], "fractions": fractions},
        "compute_efficiency": compute.to_json(),
        "stability": {**steady.to_json(), "components": parts},
        "convergence_step": settled.to_json(),
        "completions": rounded(completions),
        "cpu_seconds": rounded(seconds),
        "samples_per_second": rounded(completions / seconds) if seconds > 0 else None,
        **{key: measured.to_json() if key == "bleu" else rounded(measured.value) for key, measured in final.items()},
    }


def _curve(runs: Runs) -> CurveJSON:
    mean, low, high = curves.band(runs.reward, runs.strata)
    return {
        "completions": [rounded(v) for v in curves.mean_curve(runs.completions)],
        "cpu_seconds": [rounded(v) for v in curves.mean_curve(runs.cpu_seconds)],
        "reward": {k: [rounded(v) for v in line] for k, line in (("mean", mean), ("low", low), ("high", high))},
    }


def build_difficulty(difficulty: str, results: Sequence[RunResult]) -> Difficulty:
    """One difficulty's part of the table. Rows keep the order in which their first run comes."""
    named: dict[str, list[RunResult]] = {}
    for run in results:
        config = run["config"]
        shape = "" if run["algorithm"] == "untrained" else f" {config['prompts_per_step']}x{config['group_size']}"
        named.setdefault(run["algorithm"] + shape, []).append(run)
    if not named:
        raise ValueError(f"{difficulty}: no runs to build a table from.")
    rows = [Runs.gather(name, runs) for name, runs in named.items()]
    base = next((r for r in rows if r.first["algorithm"] == "ppo" and r.first["config"]["group_size"] == 1), None)
    trained = [row for row in rows if row.trained]
    best = max(trained, key=lambda row: curves.final_reward(curves.mean_curve(row.reward)), default=None)
    scale = float(curves.gain(best.reward)) if best else math.nan
    grouped = sorted((r for r in rows if r.icc), key=lambda r: r.first["algorithm"] != NAMESAKE)
    group = grouped[0] if grouped else None
    size = group.first["config"]["group_size"] if group else None
    ratios = critic_noise_ratios(group, base) if group and base else None
    known = [ratio for ratio in ratios or [] if ratio is not None]
    return {
        "headline": base.name if base else None,
        "rows": [_row(row, base, scale) for row in rows],
        "claims": _claims(difficulty, rows, base, scale),
        "icc": group.icc if group else None,
        "ev": base.ev if base else None,
        "group_size": size,
        "noise_ratio_to_constant": rounded(first_order_noise_ratio(first_value(group.icc), size)) if group else None,
        "noise_ratios": ratios,
        "first_order_noise_ratio": rounded(float(np.median(known))) if known else None,
        "curves": {row.name: _curve(row) for row in trained},
    }


def build_table(
    results: Mapping[str, Sequence[RunResult]],
    *,
    config: dict[str, Any],
    versions: dict[str, str],
    source_hash: str,
    command: str,
    wall_seconds: float,
    cpu_seconds: float,
) -> Table:
    """The whole table from the runs of every difficulty (for real data: of one, named by its spec).

    Raises:
        ValueError: a row whose runs do not belong together, or a curve with a missing value.
    """
    if not results:
        raise ValueError("No difficulty to build a table from.")
    difficulties = {name: build_difficulty(name, runs) for name, runs in results.items()}
    verdicts = {
        metric: joint_verdict(
            {
                (algorithm, name): claim[algorithm]["verdict"]
                for algorithm in (ARTICLE, NAMESAKE)
                for name, part in difficulties.items()
                for claim in part["claims"]
                if claim["metric"] == metric
            }
        )
        for metric, _, _ in CLAIMS
    }
    return {
        "difficulties": difficulties,
        "verdicts": verdicts,
        "config": config,
        "versions": versions,
        "source_hash": source_hash,
        "command": command,
        "wall_seconds": rounded(wall_seconds),
        "cpu_seconds": rounded(cpu_seconds),
    }
