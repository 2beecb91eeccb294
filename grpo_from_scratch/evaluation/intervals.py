"""How sure we are: a number and its interval, by a stratified bootstrap over runs (Agarwal et al. 2021, 2108.13264), or
over clusters of values that belong together."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from grpo_from_scratch.distributed.randomness import numpy_generator

Array = np.ndarray
# What is known of a number: the least and the most it can be. Equal when it was observed.
Bounds = tuple[Array, Array]


@dataclass(frozen=True)
class Interval:
    """A measured number with its 95 % interval.

    Attributes:
        value: NaN when it is not defined; prints as "—".
        low, high: both NaN when there is no interval; −inf or inf when resamples may lie anywhere on that side.
        bound: "<" when ``value`` is only an upper bound, because the algorithm never got there.
    """

    value: float
    low: float = math.nan
    high: float = math.nan
    bound: str = ""

    def format(self, digits: int = 2, *, sign: str = "", unit: str = "") -> str:
        """For people: "1.31 [1.05, 1.62]", "< 0.84 [0.00, 1.10]", "—" without a value.

        Brackets only around an interval wider than nothing. ``sign="+"`` shows a plus; ``unit`` follows the value.
        """

        def show(number: float) -> str:
            number = number if sign else round(number, digits) + 0.0  # −0.00 means something only where signs are shown
            return f"{number:{sign}.{digits}f}".replace("inf", "∞").replace("-", "−")

        if math.isnan(self.value):
            return "—"
        text = f"{self.bound} {show(self.value)}{unit}".lstrip()
        return (
            text if math.isnan(self.low) or self.low == self.high else f"{text} [{show(self.low)}, {show(self.high)}]"
        )

    def to_json(self) -> dict[str, float | str | None]:
        """{"value", "low", "high"} and "bound" where there is one; null for what is not a finite number."""
        fields = {name: rounded(getattr(self, name)) for name in ("value", "low", "high")}
        return fields | ({"bound": self.bound} if self.bound else {})

    @classmethod
    def from_json(cls, fields: dict[str, float | str | None]) -> "Interval":
        """The inverse. One end null and the other not: that side is open. Both null: no interval."""
        low, high = fields["low"], fields["high"]
        if (low is None) != (high is None):
            low, high = (-math.inf if low is None else low), (math.inf if high is None else high)
        value, low, high = (math.nan if v is None else v for v in (fields["value"], low, high))
        return cls(value, low, high, fields.get("bound", ""))


def rounded(value: float) -> float | None:
    """Six significant digits, for a file people read; None for NaN and infinities, which JSON does not have."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


Sample = tuple[Array, Sequence[Array]]  # strata (runs,), and arrays (runs, ...) that are resampled together


def resample(strata: Array, *, count: int, generator: np.random.Generator) -> Array:
    """Draw runs with replacement within each stratum: (count, runs) indices, position i always of run i's stratum."""
    drawn = np.empty((count, len(strata)), dtype=np.int64)
    for stratum in np.unique(strata):
        members = np.flatnonzero(strata == stratum)
        drawn[:, members] = generator.choice(members, size=(count, len(members)))
    return drawn


def has_interval(strata: Array) -> bool:
    """A stratum with one run shows nothing of its spread: every resample would repeat it, and look certain."""
    return bool(np.unique(strata, return_counts=True)[1].min() > 1)


def quantiles(least: Array, most: Array) -> Bounds:
    """The 95 % interval of resamples in the first dimension: of their least from below, of their most from above."""
    # inverted_cdf takes one of the resamples, so no inf − inf between two of them.
    low = np.quantile(least, 0.025, axis=0, method="inverted_cdf")
    return low, np.quantile(most, 0.975, axis=0, method="inverted_cdf")


def bootstrap(statistic: Callable[..., Array | Bounds], *samples: Sample, count: int = 2000, seed: int = 0) -> Interval:
    """A statistic with its 95 % percentile interval from a stratified bootstrap over runs.

    Strata are the initial policies: they are given, the runs on each are drawn. Each sample (PPO's runs, the
    algorithm's runs) is resampled on its own, so both sides' luck is in the interval.

    Args:
        statistic: takes the samples' arrays in order, each (..., runs, …), and returns (...) or Bounds of it.
        samples: pairs (strata, arrays).
        count: resamples.
        seed: of the resamples.

    Returns:
        The value on the runs as they are, and an interval. A resample that only bounds the statistic pulls the low
        end down to its least and the high end up to its most, so that not knowing widens the interval. No interval when
        a stratum has one run.
    """

    def bounds(indices: Sequence[Array | slice]) -> Bounds:
        arrays = [array[index] for (_, values), index in zip(samples, indices, strict=True) for array in values]
        result = statistic(*arrays)
        if isinstance(result, tuple):
            return result
        known = ~np.isnan(result)
        return np.where(known, result, -np.inf), np.where(known, result, np.inf)

    least, most = (float(end) for end in bounds([slice(None)] * len(samples)))
    if math.isinf(most):
        return Interval(math.nan)
    bound = "<" if least < most else ""
    if not all(has_interval(strata) for strata, _ in samples):
        return Interval(most, bound=bound)
    draws = [
        resample(strata, count=count, generator=numpy_generator(seed, "bootstrap", item=item))
        for item, (strata, _) in enumerate(samples)
    ]
    low, high = (float(end) for end in quantiles(*bounds(draws)))
    return Interval(most, low, high, bound)


def clustered_mean(
    values: ArrayLike, clusters: Sequence, *, least: float, most: float, count: int = 2000, seed: int = 0
) -> Interval:
    """The mean of values within known bounds, and its 95 % interval from a bootstrap over their clusters.

    Values of one cluster (ratings of replies to one context) say much the same, so whole clusters are drawn. Where all
    n clusters have the same mean, every resample has it too and would look certain. But a share of up to
    1 − 0.025^(1/n) of other clusters could go unseen this often (Clopper & Pearson 1934), with the worst or the best
    values: the interval is then as wide as that allows.

    Args:
        values: (n,) numbers; NaN is left out.
        clusters: (n,) what cluster each value is of, anything hashable.
        least, most: what a value can be.
        count, seed: the resamples, and their seed.

    Returns:
        NaN without a value; no interval from a single cluster.
    """
    values = np.asarray(values, dtype=float)
    known = ~np.isnan(values)
    if not known.any():
        return Interval(math.nan)
    names = {cluster: i for i, cluster in enumerate(dict.fromkeys(itertools.compress(clusters, known)))}
    of = np.array([names[cluster] for cluster in itertools.compress(clusters, known)])
    totals, sizes = np.bincount(of, values[known]), np.bincount(of)  # (clusters,)
    found = bootstrap(
        lambda totals, sizes: totals.sum(-1) / sizes.sum(-1),
        (np.zeros(len(names)), (totals, sizes)),
        count=count,
        seed=seed,
    )
    if len(names) > 1 and np.ptp(totals / sizes) < 1e-9:
        unseen = 1 - 0.025 ** (1 / len(names))
        low, high = (found.value + unseen * (end - found.value) for end in (least, most))
        return Interval(found.value, low, high)
    return found
