"""What the noise study finds: the numbers of one difficulty and policy with their intervals, and a summary."""

import math
from typing import Any, TypedDict

import numpy as np

from grpo_from_scratch.evaluation.intervals import Interval, rounded
from grpo_from_scratch.evaluation.noise_terms import (
    Pool,
    best_group_size,
    global_noise,
    group_noise,
    interval,
    measured_noise,
    noise_to_signal,
    resample_weights,
    terms,
)
from grpo_from_scratch.evaluation.schema import IntervalJSON
from grpo_from_scratch.objective.groups import first_order_noise_ratio, icc

POLICIES = ("fine-tuned", "trained")
Products = tuple[np.ndarray, np.ndarray]  # of batch gradients, (M, M) each: global, group


class NoiseGroup(TypedDict):
    """One group size of a cell. ``noise`` is N · trace of the batch gradient's covariance."""

    group_size: int
    first_order: IntervalJSON
    exact: IntervalJSON
    measured: IntervalJSON
    break_even_ev: IntervalJSON  # the explained variance with which a critic has the group's noise, to first order
    noise: dict[str, dict[str, IntervalJSON]]  # global, group -> exact, measured


class NoiseCell(TypedDict):
    """One difficulty and policy."""

    difficulty: str
    policy: str
    updates: int
    reward: IntervalJSON
    icc: IntervalJSON
    terms: dict[str, IntervalJSON]  # noise_terms' letters, signal, and S_X_over_T
    best_group_size: IntervalJSON
    groups: list[NoiseGroup]
    noise_to_signal: dict[str, list]  # group_sizes; global and group: an IntervalJSON for each; null for a group of 1
    best_shapes: IntervalJSON  # global at its best shape, G = 1, over group at its best one


class NoiseStudy(TypedDict):
    """``noise.json``."""

    command: str
    versions: dict[str, str]
    source_hash: str
    wall_seconds: float
    cpu_seconds: float
    config: dict[str, Any]  # NoiseSettings, and the number of parameters
    cells: list[NoiseCell]
    summary: dict[str, dict[str, Any]]  # policy -> how far the predictions were off


def noise_cell(
    difficulty: str, policy: str, updates: int, *, pool: Pool, products: dict[int, Products], batch: int
) -> NoiseCell:
    """All numbers of a cell from its pool and, for each group size, the batches of ``batch`` completions."""
    weights = resample_weights(len(pool.rewards))  # (1 + resamples, P), the prompts as they are first
    known = terms(pool, weights)
    correlation = resampled_icc(pool.rewards, weights)
    reward = (weights @ pool.rewards.mean(1)) / weights.sum(1)
    shapes = [1 << power for power in range(batch.bit_length()) if batch % (1 << power) == 0]
    least = np.min([group_noise(known, size) for size in shapes[1:]], axis=0)
    ratio = {
        "global": [noise_to_signal(global_noise(known, size), known, batch) for size in shapes],
        "group": [noise_to_signal(group_noise(known, size), known, batch) for size in shapes[1:]],
    }
    shown = {name: [_json(values) for values in of_size] for name, of_size in ratio.items()}
    return {
        "difficulty": difficulty,
        "policy": policy,
        "updates": updates,
        "reward": _json(reward),
        "icc": _json(correlation),
        "terms": {name: _json(values) for name, values in known.items()}
        | {"S_X_over_T": _json(known["S_X"] / known["T"])},
        "best_group_size": _json(best_group_size(known)),
        "groups": [_group(size, correlation, known, of_batches, batch) for size, of_batches in products.items()],
        "noise_to_signal": {"group_sizes": shapes, "global": shown["global"], "group": [None, *shown["group"]]},
        "best_shapes": _json(global_noise(known, 1) / least),
    }


def _group(size: int, correlation: np.ndarray, known: dict, products: Products, batch: int) -> NoiseGroup:
    weights = resample_weights(len(products[0]))  # the batches'
    exact = {"global": global_noise(known, size), "group": group_noise(known, size)}
    measured = {
        name: measured_noise(of_baseline, weights, batch) for name, of_baseline in zip(exact, products, strict=True)
    }
    first_order = np.array([first_order_noise_ratio(value, size) for value in correlation])
    return {
        "group_size": size,
        "first_order": _json(first_order),
        "exact": _json(exact["global"] / exact["group"]),
        "measured": _json(measured["global"] / measured["group"]),
        "break_even_ev": _json(1 - 1 / first_order),
        "noise": {name: {"exact": _json(exact[name]), "measured": _json(measured[name])} for name in exact},
    }


def resampled_icc(rewards: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The intraclass correlation of rewards (P, n) in each resample (R, P) of the prompts: (R,)."""
    groups = np.repeat(np.arange(len(rewards)), rewards.shape[1])
    repeats = weights.astype(int)
    return np.array([icc(np.repeat(rewards, often, axis=0).flatten(), groups) for often in repeats])


def _json(samples: np.ndarray) -> IntervalJSON:
    return interval(samples).to_json()


def summary(cells: list[NoiseCell]) -> dict[str, dict[str, Any]]:
    """For each policy, over cells and group sizes, how far predictions were from what was measured (luck included).

    A sign is clear where the measured interval excludes 1, and right where ICC > 1/G says on which side it lies.
    """
    result = {}
    for policy in POLICIES:
        pairs = [(c, g) for c in cells if c["policy"] == policy for g in c["groups"] if _known(g)]
        groups = [group for _, group in pairs]
        clear = [(c["icc"]["value"], g) for c, g in pairs if not _inside(1.0, g)]
        right = [(share > 1 / g["group_size"]) == (g["measured"]["value"] > 1) for share, g in clear]
        result[policy] = {
            "ratios": len(groups),
            "first_order": _errors(groups, "first_order"),
            "exact": _errors(groups, "exact"),
            "sign": {"clear": len(clear), "right": sum(right)},
        }
    return result


def _known(group: NoiseGroup) -> bool:
    return all(group[name]["value"] for name in ("first_order", "exact", "measured"))


def _errors(groups: list[NoiseGroup], prediction: str) -> dict[str, float | None]:
    """|ln(predicted/measured)|, and in how many cases the prediction is inside the measured interval."""
    errors = np.array([abs(math.log(group[prediction]["value"] / group["measured"]["value"])) for group in groups])
    return {
        "rms": rounded(float(np.sqrt(np.mean(errors**2)))) if groups else None,
        "max": rounded(errors.max(initial=0.0)),
        "inside": sum(_inside(group[prediction]["value"], group) for group in groups),
    }


def _inside(value: float, group: NoiseGroup) -> bool:
    measured = Interval.from_json(group["measured"])
    return measured.low <= value <= measured.high
