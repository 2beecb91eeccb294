"""Agreement against published worked examples, and against a slow count of every pair of ratings."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from grpo_from_scratch.evaluation.agreement import LEVELS, krippendorff_alpha, weighted_kappa

X = math.nan
# Krippendorff 2011, section C (and D): four observers, twelve units, missing ratings.
FOUR_OBSERVERS = [
    [1, 2, 3, 3, 2, 1, 4, 1, 2, X, X, X],
    [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, X, 3],
    [X, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, X],
    [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, X],
]
# Section A: two observers, ten units, two values.
BINARY = [[0, 1, 0, 0, 0, 0, 0, 0, 1, 0], [1, 1, 1, 0, 0, 1, 0, 0, 0, 0]]
# Section B: Ben and Gerry, twelve units, values a to e.
NOMINAL = [["abcde".index(v) for v in row] for row in ("aabbdcccedda", "babbbccceddd")]
# Wikipedia, "Krippendorff's alpha": three coders, fifteen units.
THREE_CODERS = [
    [X, X, X, X, X, 3, 4, 1, 2, 1, 1, 3, 3, X, 3],
    [1, X, 2, 1, 3, 3, 4, 3, X, X, X, X, X, X, X],
    [X, X, 2, 1, 3, 4, 4, X, 2, 1, 1, 3, 3, X, 4],
]


def alpha_by_pairs(ratings, level: str) -> float:
    """Mean squared difference of two ratings of one unit, over that of any two: the definition, pair by pair."""
    units = [[r for r in unit if not math.isnan(r)] for unit in zip(*ratings, strict=True)]
    units = [unit for unit in units if len(unit) > 1]
    everything = [rating for unit in units for rating in unit]

    def squared(a, b):
        if level == "nominal":
            return float(a != b)
        if level == "interval":
            return (a - b) ** 2
        low, high = min(a, b), max(a, b)
        between = sum(low <= rating <= high for rating in everything)
        return (between - (everything.count(a) + everything.count(b)) / 2) ** 2

    def pairs(values):
        return [(a, b) for i, a in enumerate(values) for j, b in enumerate(values) if i != j]

    n = len(everything)
    observed = sum(squared(a, b) / (len(unit) - 1) for unit in units for a, b in pairs(unit)) / n
    expected = sum(squared(a, b) for a, b in pairs(everything)) / (n * (n - 1))
    return 1 - observed / expected


PUBLISHED = [
    (FOUR_OBSERVERS, "nominal", 0.743),
    (FOUR_OBSERVERS, "ordinal", 0.815),
    (FOUR_OBSERVERS, "interval", 0.849),
    (BINARY, "nominal", 0.095),
    (NOMINAL, "nominal", 0.692),
    (THREE_CODERS, "nominal", 0.691),
    (THREE_CODERS, "interval", 0.811),
]


@pytest.mark.parametrize(("ratings", "level", "published"), PUBLISHED)
def test_alpha_of_published_examples(ratings, level, published):
    assert krippendorff_alpha(ratings, level) == pytest.approx(published, abs=5e-4)
    assert alpha_by_pairs(ratings, level) == pytest.approx(published, abs=5e-4)


def ratings_of(values):
    return arrays(float, st.tuples(st.integers(2, 4), st.integers(1, 6)), elements=st.sampled_from([X, *values]))


@pytest.mark.parametrize("level", LEVELS)
@settings(deadline=None, max_examples=60)
@given(ratings=ratings_of([0, 1, 2, 4, 5]))
def test_alpha_equals_the_count_of_pairs(level, ratings):
    paired = ratings[:, (~np.isnan(ratings)).sum(0) > 1]
    if len(np.unique(paired[~np.isnan(paired)])) < 2:
        with pytest.warns(UserWarning, match="not defined"):
            assert math.isnan(krippendorff_alpha(ratings, level))
    else:
        assert krippendorff_alpha(ratings, level) == pytest.approx(alpha_by_pairs(ratings.tolist(), level), abs=1e-12)


def test_alpha_levels_of_far_and_near_misses():
    """Raters who differ by one step agree more on an ordered scale than raters who differ by five."""
    first = [0, 1, 2, 3, 4, 5]
    near, far = [first, [1, 2, 3, 4, 5, 4]], [first, [5, 4, 3, 2, 1, 0]]
    for level in ("ordinal", "interval"):
        assert krippendorff_alpha(near, level) > 0.7 > -0.5 > krippendorff_alpha(far, level)
    assert krippendorff_alpha(near, "nominal") < 0 and krippendorff_alpha([first, first]) == 1.0


def test_alpha_does_not_depend_on_the_order_of_raters_and_items():
    ratings = np.array(FOUR_OBSERVERS)
    for level in LEVELS:
        assert krippendorff_alpha(ratings[::-1, ::-1], level) == pytest.approx(krippendorff_alpha(ratings, level))


def test_alpha_none_is_missing():
    ratings = [[None if math.isnan(r) else r for r in row] for row in FOUR_OBSERVERS]
    assert krippendorff_alpha(ratings, "nominal") == krippendorff_alpha(FOUR_OBSERVERS, "nominal")


def test_alpha_needs_two_raters():
    """ME-08."""
    with pytest.raises(ValueError, match="needs 2 raters, got 1"):
        krippendorff_alpha([[1, 2, 3]])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("ratings", "reason"),
    [
        ([[2, 2], [2, 2]], "all ratings are 2"),
        ([[2, 2, 1], [2, 2, X]], "all ratings are 2"),
        ([[1, X], [X, 2]], "no item"),
        ([[X, X], [X, X]], "no item"),
        ([[], []], "no item"),
    ],
)
def test_alpha_where_it_is_not_defined(ratings, reason, level):
    """ME-08: NaN and one sentence; no warning of numpy's."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert math.isnan(krippendorff_alpha(ratings, level))
    assert [type(w.message) for w in caught] == [UserWarning]
    assert reason in str(caught[0].message) and caught[0].filename == __file__


@pytest.mark.parametrize(
    ("ratings", "level", "message"),
    [
        ([[1, 2], [1, 2]], "ratio", "unknown level 'ratio'"),
        ([1, 2, 3], "ordinal", r"must be \(raters, items\)"),
        ([[1, math.inf], [1, 2]], "ordinal", "infinite"),
        ([[1, 2], [1]], "ordinal", "one row of equal length"),
        ([["good", "bad"], ["good", "good"]], "ordinal", "must be numbers"),
    ],
)
def test_alpha_refuses(ratings, level, message):
    with pytest.raises(ValueError, match=message):
        krippendorff_alpha(ratings, level)


def kappa_by_pairs(first, second, weights) -> float:
    """Mean distance of an item's two ratings, over that of any rating of one with any of the other."""
    distance = {
        None: lambda a, b: float(a != b),
        "linear": lambda a, b: abs(a - b),
        "quadratic": lambda a, b: (a - b) ** 2,
    }
    both = [(a, b) for a, b in zip(first, second, strict=True) if not (math.isnan(a) or math.isnan(b))]
    observed = sum(distance[weights](a, b) for a, b in both) / len(both)
    expected = sum(distance[weights](a, b) for a, _ in both for _, b in both) / len(both) ** 2
    return 1 - observed / expected


@pytest.mark.parametrize("weights", [None, "linear", "quadratic"])
@settings(deadline=None, max_examples=60)
@given(pair=arrays(float, st.tuples(st.just(2), st.integers(1, 8)), elements=st.sampled_from([X, 0, 1, 3, 5])))
def test_kappa_equals_the_count_of_pairs(weights, pair):
    """With values that nobody gives (2 and 4): the distance from 3 to 5 stays 2."""
    both = pair[:, ~np.isnan(pair).any(0)]
    if len(np.unique(both)) < 2:
        with pytest.warns(UserWarning, match="not defined"):
            assert math.isnan(weighted_kappa(*pair, weights))
    else:
        assert weighted_kappa(*pair, weights) == pytest.approx(kappa_by_pairs(*pair.tolist(), weights), abs=1e-12)


def test_kappa_of_cohens_table():
    """The two-by-two table 20, 5, 10, 15: 70 % agree, 50 % would by chance (Wikipedia, "Cohen's kappa")."""
    first, second = [1] * 25 + [0] * 25, [1] * 20 + [0] * 5 + [1] * 10 + [0] * 15
    assert weighted_kappa(first, second, None) == pytest.approx(0.4)


def test_kappa_one_constant_rater_agrees_as_chance_does():
    assert weighted_kappa([3, 3, 3], [1, 3, 5]) == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("first", "second", "reason"), [([2, 2], [2, 2], "all ratings are 2"), ([1, X], [X, 1], "no item")]
)
def test_kappa_where_it_is_not_defined(first, second, reason):
    """ME-08."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert math.isnan(weighted_kappa(first, second))
    assert [type(w.message) for w in caught] == [UserWarning]
    assert reason in str(caught[0].message)


@pytest.mark.parametrize(
    ("first", "second", "weights", "message"),
    [
        ([1, 2], [1, 2, 3], "linear", "one rating for each item"),
        ([1, 6], [1, 2], "linear", "6 is not on the scale"),
        ([1, 2.5], [1, 2], "linear", "2.5 is not on the scale"),
        ([1, 2], [1, 2], "cubic", "unknown weights 'cubic'"),
    ],
)
def test_kappa_refuses(first, second, weights, message):
    with pytest.raises(ValueError, match=message):
        weighted_kappa(first, second, weights)
