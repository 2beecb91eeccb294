"""What learning curves say: how fast an algorithm learned, and how steadily.

Arrays have the shape ``(..., runs, evaluations)``: one line for each run of one algorithm, any leading dimensions. The
bootstrap (``intervals``) uses that: it resamples runs into a new leading dimension and calls the same function again.

Runs are averaged first, and the averaged curve is read. A single run may never reach a target, and a mean over those
that do would favour the algorithm whose bad runs drop out; the averaged curve has one answer, or an honest bound.
The average is the interquartile mean (IQM; Agarwal et al. 2021, arXiv 2108.13264).
"""

import math

import numpy as np

from grpo_from_scratch.distributed.randomness import numpy_generator
from grpo_from_scratch.evaluation.intervals import Array, Bounds, has_interval, quantiles, resample

LAST = 3  # evaluations that make the final reward: one alone is noise
FRACTIONS = (0.5, 0.75, 0.9)
HEADLINE_FRACTION = 0.75


def check_curves(reward: Array, x: Array, *, name: str) -> None:
    """Refuse curves that cannot be compared.

    Args:
        reward: (runs, evaluations), finite.
        x: the same shape, finite; never falls along a run.
        name: of the row, for the message.

    Raises:
        ValueError: naming row, run and evaluation.
    """
    if reward.ndim != 2 or x.shape != reward.shape or reward.size == 0:
        raise ValueError(f"{name}: reward {reward.shape} and x {x.shape} must both be (runs, evaluations), not empty.")
    for what, values in (("reward", reward), ("x", x)):
        if not np.isfinite(values).all():
            run, evaluation = np.argwhere(~np.isfinite(values))[0]
            raise ValueError(
                f"{name}: {what} of run {run} is {values[run, evaluation]} at evaluation {evaluation}; "
                "leave the run out or repeat it."
            )
    if (np.diff(x, axis=1) < 0).any():
        run, evaluation = np.argwhere(np.diff(x, axis=1) < 0)[0]
        raise ValueError(f"{name}: x of run {run} falls after evaluation {evaluation}; evaluations must be in order.")


def iqm(values: Array, axis: int = 0) -> Array:
    """Interquartile mean: the mean without the lowest and the highest quarter (rounded down, as scipy's trim_mean)."""
    values = np.sort(values, axis=axis)
    count = values.shape[axis]
    cut = count // 4
    return np.take(values, range(cut, count - cut), axis=axis).mean(axis)


def mean_curve(values: Array) -> Array:
    """The IQM over runs: (..., runs, evaluations) -> (..., evaluations)."""
    return iqm(values, axis=-2)


def final_reward(curve: Array) -> Array:
    """Mean of the last three evaluations, never counting the first: (..., evaluations) -> (...)."""
    return curve[..., -min(LAST, max(curve.shape[-1] - 1, 1)) :].mean(-1)


def curve_gain(curve: Array) -> Array:
    """final − r0: (..., evaluations) -> (...). Subtracted before averaging, so that a flat curve gains exactly 0."""
    return final_reward(curve - curve[..., :1])


def gain(reward: Array) -> Array:
    """What training added to the averaged curve: (..., runs, evaluations) -> (...)."""
    return curve_gain(mean_curve(reward))


def reach(x: Array, curve: Array, target: Array) -> Array:
    """Where a curve first reaches a target, linear between evaluations.

    Args:
        x, curve: (..., evaluations).
        target: (...).

    Returns:
        (...) in the units of x; NaN where the curve never gets there.
    """
    target = np.asarray(target, dtype=float)[..., None]
    reached = curve >= target
    after = reached.argmax(-1)[..., None]
    before = np.maximum(after - 1, 0)
    x0, x1 = np.take_along_axis(x, before, -1), np.take_along_axis(x, after, -1)
    y0, y1 = np.take_along_axis(curve, before, -1), np.take_along_axis(curve, after, -1)
    rise = np.where(after > 0, y1 - y0, 1.0)  # where before == after, x1 − x0 is 0 and any number serves
    where = x0 + (target - y0) / rise * (x1 - x0)
    return np.where(reached.any(-1), where[..., 0], np.nan)


def efficiency(base_x: Array, base_reward: Array, x: Array, reward: Array, *, fraction: float) -> Bounds:
    """How many times less the algorithm needs than the base to get ``fraction`` of the base's way.

    The target is r0 + fraction·(final − r0) of the base's averaged curve, which the base always reaches when it gained
    at all. With x in completions this is sample efficiency, in CPU seconds compute efficiency.

    Args:
        base_x, base_reward: (..., runs, evaluations) of the base, the headline PPO.
        x, reward: (..., runs', evaluations') of the algorithm; its evaluations may lie elsewhere.
        fraction: of the base's gain, in (0, 1].

    Returns:
        Bounds of base's need / algorithm's need, each (...). An algorithm that never gets there needs more than it
        was given, so its efficiency lies in [0, base's need / all it was given]. Where the base gained nothing, or the
        algorithm starts above the target, there is nothing to compare: [0, inf].
    """
    base_curve, base_x, curve, x = (mean_curve(values) for values in (base_reward, base_x, reward, x))
    way = curve_gain(base_curve)
    target = base_curve[..., 0] + fraction * way
    base_need = reach(base_x, base_curve, target)
    # Rounding can put the target an ulp above all that the base ever reached.
    undefined = (way <= 0) | np.isnan(base_need) | (curve[..., 0] >= target)
    need = reach(x, curve, target)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio, bound = base_need / need, base_need / x[..., -1]
    never = np.isnan(need)
    least = np.where(undefined | never, 0.0, ratio)
    most = np.where(undefined, np.inf, np.where(never, bound, ratio))
    return least, most


def convergence(x: Array, reward: Array, *, fraction: float = 0.9) -> Array:
    """Where the averaged curve first has ``fraction`` of its own gain: (..., runs, evaluations) -> (...).

    With x in updates this is the convergence step. NaN where nothing was gained.
    """
    curve, x = mean_curve(reward), mean_curve(x)
    way = curve_gain(curve)
    return np.where(way > 0, reach(x, curve, curve[..., 0] + fraction * way), np.nan)


def _iqr(values: Array, axis: int) -> Array:
    high, low = np.percentile(values, [75, 25], axis=axis)
    return high - low


def stability_components(reward: Array, strata: Array, *, scale: float) -> Array:
    """Three views of steadiness, each 1 − (a dispersion / scale), clipped to [0, 1] (Chan et al. 2020, 1912.05663).

    - across time: IQR within a run of its detrended first differences, mean over runs. A learning curve rises fast,
      then slowly, and that is no unsteadiness; so each difference is compared with the one before it, which removes any
      trend that is linear over two differences. Divided by √3, so that independent noise at the evaluations counts
      as much as it does in plain differences (variances 6σ² and 2σ²).
    - risk: CVaR (25 %) of drawdown, the mean of the worst quarter of (best so far − now) in a run, mean over runs.
    - across seeds: IQR over the runs that share an initial policy, mean over those policies and over all evaluations
      after the first. Different initial policies start at different rewards, which is not the algorithm's doing.

    Args:
        reward: (..., runs, evaluations).
        strata: (runs,) which initial policy a run started from.
        scale: S, the gain of the best row of the table; fixed, since it is the unit of measurement.

    Returns:
        (..., 3). All NaN when scale <= 0 or there are fewer than 4 evaluations; the last NaN when an initial policy has
        one run.
    """
    lead, (runs, evaluations) = reward.shape[:-2], reward.shape[-2:]
    if scale <= 0 or evaluations < 4:
        return np.full((*lead, 3), np.nan)
    across_time = _iqr(np.diff(reward, n=2, axis=-1), -1).mean(-1) / math.sqrt(3)
    drawdown = np.maximum.accumulate(reward, axis=-1) - reward
    risk = np.sort(drawdown, axis=-1)[..., -math.ceil(0.25 * evaluations) :].mean(-1).mean(-1)
    across_seeds = np.zeros(lead)
    for stratum, count in zip(*np.unique(strata, return_counts=True), strict=True):
        spread = _iqr(reward[..., strata == stratum, 1:], -2).mean(-1) if count > 1 else np.nan
        across_seeds = across_seeds + spread * count / runs
    return np.clip(1 - np.stack([across_time, risk, across_seeds], axis=-1) / scale, 0.0, 1.0)


def band(values: Array, strata: Array, *, count: int = 2000, seed: int = 0) -> tuple[Array, Array, Array]:
    """The averaged curve and its pointwise 95 % band: (runs, evaluations) -> three arrays (evaluations,).

    The band is NaN when a stratum has one run.
    """
    mean = mean_curve(values)
    if not has_interval(strata):
        return mean, np.full_like(mean, np.nan), np.full_like(mean, np.nan)
    draws = resample(strata, count=count, generator=numpy_generator(seed, "bootstrap"))
    curves = mean_curve(values[draws])  # (count, evaluations)
    return mean, *quantiles(curves, curves)
