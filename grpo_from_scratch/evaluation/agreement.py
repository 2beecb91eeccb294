"""Do raters agree? Krippendorff's alpha for any number of raters, weighted kappa for two.

Both are 1 − observed / expected disagreement: 1 is perfect, 0 what raters who judge at random would reach, below 0
worse than that. When everybody gives everything the same rating, chance would agree as well: the coefficient is 0 / 0,
and NaN here, with a warning that says so. It is never 1.
"""

import math
import warnings
from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike
from sklearn.metrics import cohen_kappa_score

LEVELS = ("nominal", "ordinal", "interval")
SCALE = range(6)  # what a rating may be: 0, the worst, to 5, the best
ALL_THE_SAME = "all ratings are {:g}, so chance would agree as well: agreement is not defined"
NO_PAIR = "no item has ratings of two raters: agreement is not defined"


def krippendorff_alpha(ratings: ArrayLike, level: str = "ordinal") -> float:
    """Krippendorff's alpha, by the coincidence matrix (Krippendorff 2011, "Computing Krippendorff's
    Alpha-Reliability"; Hayes & Krippendorff 2007).

    Args:
        ratings: (raters, items), numbers; NaN or None where a rater did not rate an item. An item with a single rating
            has nothing to agree with and is left out.
        level: what a difference between two ratings counts. "nominal": different is different; "interval": the squared
            difference; "ordinal": the squared number of ratings that lie between them, by rank.

    Returns:
        alpha, at most 1; NaN with a warning where it is not defined (the module says when).

    Raises:
        ValueError: fewer than two raters, ratings that are not a (raters, items) array of finite numbers, or an unknown
            level.
    """
    if level not in LEVELS:
        raise ValueError(f"unknown level {level!r}; there are {', '.join(LEVELS)}")
    ratings = _as_floats(ratings, "ratings")
    if ratings.ndim != 2:
        raise ValueError(f"ratings must be (raters, items), got an array of shape {ratings.shape}")
    if len(ratings) < 2:
        raise ValueError(f"agreement needs 2 raters, got {len(ratings)}: have a second person rate the same items")
    paired = ratings[:, (~np.isnan(ratings)).sum(0) >= 2]  # (raters, units)
    if not paired.size:
        return _undefined(NO_PAIR)
    values = np.unique(paired[~np.isnan(paired)])  # (V,)
    counts = (paired[:, :, None] == values).sum(0)  # (units, V): how many raters gave this unit this value
    within = counts[:, :, None] * counts[:, None, :] - counts[:, :, None] * np.eye(len(values))  # ordered pairs
    coincidences = (within / (counts.sum(1) - 1)[:, None, None]).sum(0)  # (V, V): each unit weighs as its ratings
    totals = coincidences.sum(0)  # (V,)
    difference = _squared_difference(values, totals, level)  # (V, V)
    expected = (np.outer(totals, totals) * difference).sum() / (totals.sum() - 1)
    if expected == 0:
        return _undefined(ALL_THE_SAME.format(values[0]))
    return float(1 - (coincidences * difference).sum() / expected)


def _squared_difference(values: np.ndarray, totals: np.ndarray, level: str) -> np.ndarray:
    if level == "nominal":
        return 1.0 - np.eye(len(values))
    # The ratings between c and k, half of c's and of k's own included, are the distance between their mean ranks.
    positions = values if level == "interval" else np.cumsum(totals) - totals / 2
    return (positions[:, None] - positions) ** 2


def weighted_kappa(
    first: ArrayLike, second: ArrayLike, weights: str | None = "quadratic", *, labels: Iterable[int] = SCALE
) -> float:
    """Cohen's kappa of two raters (Cohen 1968), by scikit-learn.

    Args:
        first, second: (items,) ratings, NaN or None where missing; items that both rated count.
        weights: "linear" or "quadratic" in the distance of two ratings on the scale; None: different is different.
        labels: the whole scale, in order. Without it a rating that nobody gave would bring its neighbours closer.

    Returns:
        kappa; NaN with a warning where it is not defined (the module says when).

    Raises:
        ValueError: raters with unequal numbers of items, a rating that is not on the scale, unknown weights.
    """
    first, second = _as_floats(first, "first"), _as_floats(second, "second")
    if first.ndim != 1 or first.shape != second.shape:
        raise ValueError(f"each rater must have one rating for each item, got shapes {first.shape} and {second.shape}")
    if weights not in ("linear", "quadratic", None):
        raise ValueError(f"unknown weights {weights!r}; there are linear, quadratic and None")
    labels = list(labels)
    both = ~np.isnan(first) & ~np.isnan(second)
    pair = np.stack([first[both], second[both]])  # (2, items)
    strange = np.setdiff1d(pair, labels)
    if strange.size:
        raise ValueError(f"{strange[0]:g} is not on the scale, {labels}")
    if not pair.size:
        return _undefined(NO_PAIR)
    if (pair == pair[0, 0]).all():
        return _undefined(ALL_THE_SAME.format(pair[0, 0]))
    return float(cohen_kappa_score(*pair.astype(int), labels=labels, weights=weights))


def _as_floats(ratings: ArrayLike, name: str) -> np.ndarray:
    try:
        array = np.asarray(ratings, dtype=float)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be numbers, one row of equal length for each rater ({error})") from None
    if np.isinf(array).any():
        raise ValueError(f"{name} holds an infinite number; a missing rating is NaN")
    return array


def _undefined(reason: str) -> float:
    warnings.warn(reason, stacklevel=3)
    return math.nan
