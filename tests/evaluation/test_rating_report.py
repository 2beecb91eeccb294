"""What ratings say, against counts by hand and scipy."""

import math

import numpy as np
import pytest
from scipy.stats import spearmanr

from grpo_from_scratch.evaluation.agreement import krippendorff_alpha
from grpo_from_scratch.evaluation.rating_report import (
    FEW,
    METRICS,
    metric_correlations,
    policy_means,
    preference,
    share_of_wins,
    spearman,
)
from grpo_from_scratch.evaluation.ratings import ASPECTS, RatingSession, Reply, ratings_matrix
from grpo_from_scratch.rewards import sentence_bleu

GOOD = "the market sells fresh fish every friday"
REPLIES = {  # (policy, context) -> reply; on context 2 both say the same
    ("a", 0): GOOD,
    ("b", 0): "yes",
    ("a", 1): "the market sells fish",
    ("b", 1): "i do not know what you mean",
    ("a", 2): "well , fish",
    ("b", 2): "well , fish",
}


@pytest.fixture
def session(tmp_path):
    made = [
        Reply(policy, (f"context {i} ?",), text, references=(GOOD,), facts=("fish",) if i else ())
        for (policy, i), text in REPLIES.items()
    ]
    return RatingSession.create(tmp_path / "s", made)


def rate(session, rater, ratings):
    """``ratings``: {(policy, context): the three scores}."""
    for (policy, i), values in ratings.items():
        item = next(x for x in session.items if (x.context, x.reply) == ((f"context {i} ?",), REPLIES[policy, i]))
        session.rate(rater, item, dict(zip(ASPECTS, values, strict=True)))


RATINGS = {
    "ann": {("a", 0): (5, 5, 5), ("b", 0): (4, 2, 0), ("a", 1): (4, 4, 4), ("b", 1): (5, 5, 5), ("a", 2): (3, 3, 1)},
    "bo": {("a", 0): (4, 5, 3), ("b", 0): (5, 1, 0), ("a", 1): (2, 2, 2)},  # nothing of b to pair context 1 with
}


@pytest.fixture
def rated(session):
    for rater, ratings in RATINGS.items():
        rate(session, rater, ratings)
    return session


def test_preference_by_hand(rated):
    found = preference(rated, "a", "b")
    # ann: a wins context 0, loses context 1, ties context 2 (one reply of both); bo: a wins context 0
    assert (found.pairs, found.contexts) == (4, 3)
    assert found.share.value == pytest.approx((1 + 0 + 0.5 + 1) / 4)
    assert found.differences["fluency"].value == pytest.approx(((5 - 4) + (4 - 5) + 0 + (4 - 5)) / 4)
    assert found.differences["overall"].value == pytest.approx(((5 - 2) + (4 - 5) + 0 + (4 - 2)) / 4)
    assert found.note.startswith("3 rated contexts: fewer than 10 say little")
    mirrored = preference(rated, "b", "a")
    assert mirrored.share.value == pytest.approx(1 - found.share.value)
    assert mirrored.differences["overall"].low == pytest.approx(-found.differences["overall"].high)


def test_preference_counts_several_replies_to_a_context_as_their_mean(tmp_path):
    made = [Reply(p, ("hi",), f"{p} {i}") for p, i in (("a", 1), ("a", 2), ("b", 1))]
    session = RatingSession.create(tmp_path / "s", made)
    for item in session.items:
        value = {"a 1": 5, "a 2": 0, "b 1": 3}[item.reply]
        session.rate("ann", item, dict.fromkeys(ASPECTS, value))
    found = preference(session, "a", "b")
    assert (found.pairs, found.share.value, found.differences["overall"].value) == (1, 0.0, -0.5)
    assert math.isnan(found.share.low)  # one context: no interval at all


def test_preference_without_pairs(session):
    found = preference(session, "a", "b")
    assert math.isnan(found.share.value) and found.pairs == 0 and found.note.startswith("0 rated contexts")
    with pytest.raises(ValueError, match="no replies of 'c'; it has a, b"):
        preference(session, "a", "c")


def test_share_of_wins_is_not_certain_of_few():
    found = share_of_wins([5, 5, 5], [1, 2, 3], ["x", "y", "z"])
    assert found.value == 1.0 and found.low == pytest.approx(0.025 ** (1 / 3))
    many = share_of_wins([5] * 100, [1] * 100, range(100))
    assert many.low > 0.95
    assert share_of_wins([1, 2, math.nan], [1, 1, 1], range(3)).value == 0.75


def test_share_of_wins_takes_equal_means_for_a_tie():
    """Three thirds add up to another last bit in another order; nobody rated either reply higher."""
    first, second = np.mean([1 / 3, 2 / 3, 4 / 3]), np.mean([2 / 3, 4 / 3, 1 / 3])
    assert first != second
    assert share_of_wins([first] * 2, [second] * 2, ["a", "b"]).value == 0.5


def test_few_is_said_up_to_ten(tmp_path):
    for count in (FEW - 1, FEW):
        made = [Reply(p, (f"c{i}",), f"{p} {i}") for p in "ab" for i in range(count)]
        session = RatingSession.create(tmp_path / str(count), made)
        for item in session.items:
            session.rate("ann", item, dict.fromkeys(ASPECTS, 5 if item.reply[0] == "a" else int(item.reply[-1]) % 5))
        assert bool(preference(session, "a", "b").note) == (count < FEW)


def test_policy_means_by_hand(rated):
    found = policy_means(rated)
    assert found["a"]["fluency"].value == pytest.approx((5 + 4 + 3 + 4 + 2) / 5)
    assert found["b"]["informativeness"].value == pytest.approx((0 + 5 + 1 + 0) / 4)
    assert found["b"]["overall"].value == pytest.approx((2 + 5 + 7 / 3 + 2) / 4)
    assert 0 <= found["a"]["fluency"].low <= found["a"]["fluency"].value <= found["a"]["fluency"].high <= 5


def test_agreement_of_a_session(rated):
    matrix = ratings_matrix(rated, "fluency")
    assert matrix.shape == (2, 5)
    assert krippendorff_alpha(matrix) == pytest.approx(krippendorff_alpha([[5, 4, 4], [4, 5, 2]]))


def test_metric_correlations_equal_scipys(rated):
    found = metric_correlations(rated)
    means = {  # of (policy, context): the mean over raters of relevance
        ("a", 0): 5,
        ("b", 0): 1.5,
        ("a", 1): 3,
        ("b", 1): 5,
        ("a", 2): 3,
    }
    bleu = [sentence_bleu(REPLIES[key], [GOOD]) for key in means]
    assert found["BLEU"]["relevance"].value == pytest.approx(spearmanr(bleu, list(means.values())).statistic)
    length = [7, 1, 4, 7, 2]
    assert found["words"]["relevance"].value == pytest.approx(spearmanr(length, list(means.values())).statistic)
    # facts: contexts 1 and 2 have some; (a, 1) and (a, 2) name theirs, (b, 1) does not
    assert found["facts"]["relevance"].value == pytest.approx(spearmanr([1, 0, 1], [3, 5, 3]).statistic)
    for row in found.values():
        assert all(-1 <= i.low <= i.value <= i.high <= 1 for i in row.values())


def test_metric_correlations_without_spread_or_references(tmp_path):
    session = RatingSession.create(tmp_path / "s", [Reply("a", (f"c{i}",), "same words") for i in range(4)])
    assert all(math.isnan(i.value) for row in metric_correlations(session).values() for i in row.values())
    for item in session.items:
        session.rate("ann", item, dict.fromkeys(ASPECTS, int(item.context[0][-1])))
    found = metric_correlations(session)
    assert list(found) == list(METRICS)
    assert all(math.isnan(i.value) for row in found.values() for i in row.values())


def test_spearman_equals_scipys_with_ties_and_gaps():
    generator = np.random.default_rng(0)
    x, y = (generator.integers(0, 4, (50, 6, 2)).astype(float) for _ in range(2))
    x[generator.random(x.shape) < 0.2] = math.nan
    found = spearman(x, y)
    assert found.shape == (50,)
    for value, a, b in zip(found, x.reshape(50, -1), y.reshape(50, -1), strict=True):
        assert value == pytest.approx(spearmanr(a, b, nan_policy="omit").statistic)
    assert math.isnan(spearman(np.ones((3, 1)), np.arange(3.0)[:, None]))
