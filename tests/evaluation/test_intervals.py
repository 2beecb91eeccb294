"""The bootstrap: what it holds fixed, what it resamples, how often it is right, and how its numbers are shown."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from grpo_from_scratch.evaluation.curves import convergence, efficiency
from grpo_from_scratch.evaluation.intervals import Interval, bootstrap, clustered_mean, resample

X = np.array([0.0, 10.0, 20.0, 30.0, 40.0])
PPO = np.array([[0.0, 0.2, 0.4, 0.4, 0.4]])  # final .4; 75 % is .3, reached at 15


def test_resample_stays_within_strata():
    strata = np.array([1, 0, 1, 0, 0])
    drawn = resample(strata, count=500, generator=np.random.default_rng(0))
    assert drawn.shape == (500, 5)
    assert (strata[drawn] == strata).all()
    for position, members in enumerate([(0, 2), (1, 3, 4), (0, 2), (1, 3, 4), (1, 3, 4)]):
        assert set(drawn[:, position]) == set(members)


def mean(values):
    return values.mean(-1)


def test_bootstrap_of_a_mean_is_about_the_normal_interval():
    values = np.random.default_rng(0).standard_normal(200)
    found = bootstrap(mean, (np.zeros(200), (values,)))
    half = 1.96 * values.std() / math.sqrt(200)
    assert found.value == pytest.approx(values.mean())
    assert found.low == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert found.high == pytest.approx(values.mean() + half, abs=0.1 * half)


def test_bootstrap_strata_take_their_difference_out():
    """Two policies 10 apart, hardly any spread on either: the mean is known well, since each resample has both."""
    values = np.array([0.0, 0.01, 10.0, 10.01])
    stratified = bootstrap(mean, (np.array([0, 0, 1, 1]), (values,)))
    pooled = bootstrap(mean, (np.zeros(4), (values,)))
    assert stratified.high - stratified.low <= 0.0101
    assert pooled.high - pooled.low > 5


def test_bootstrap_resamples_each_sample_on_its_own_and_its_arrays_together():
    a, b = np.arange(10.0), np.arange(10.0)
    apart = bootstrap(lambda x, y: mean(x) - mean(y), (np.zeros(10), (a,)), (np.zeros(10), (b,)))
    together = bootstrap(lambda x, y: mean(x) - mean(y), (np.zeros(10), (a, b)))
    assert together == Interval(0, 0, 0)
    # Two independent means of deviation σ/√10 each, σ² = 8.25.
    assert apart.high == pytest.approx(1.96 * math.sqrt(2 * 8.25 / 10), rel=0.1)


def test_bootstrap_two_runs_give_their_range():
    found = bootstrap(mean, (np.zeros(2), (np.array([1.0, 3.0]),)))
    assert found == Interval(2.0, 1.0, 3.0)


@pytest.mark.parametrize("strata", [[0], [0, 1], [0, 0, 1]])
def test_bootstrap_a_stratum_with_one_run_gives_no_interval(strata):
    found = bootstrap(mean, (np.array(strata), (np.arange(1.0, 1 + len(strata)),)))
    assert found.value == (1 + len(strata)) / 2
    assert math.isnan(found.low)
    assert math.isnan(found.high)


def test_bootstrap_is_repeatable_and_seeded():
    sample = (np.zeros(9), (np.random.default_rng(1).standard_normal(9),))
    assert bootstrap(mean, sample) == bootstrap(mean, sample)
    assert bootstrap(mean, sample, count=100) != bootstrap(mean, sample, count=100, seed=1)


def test_bootstrap_not_knowing_widens_the_interval():
    """Of two runs one reaches the target: resamples without it only bound the efficiency from above."""
    other = np.array([[0.0, 0.4, 0.6, 0.6, 0.6], [0.0, 0.1, 0.1, 0.1, 0.1]])
    strata, x = np.zeros(2), np.stack([X, X])
    ppo = (strata, (x, np.concatenate([PPO, PPO])))
    found = bootstrap(lambda *a: efficiency(*a, fraction=0.75), ppo, (strata, (x, other)))
    assert found.bound == ""
    assert found.low == 0  # a quarter of the resamples never gets there
    assert found.high == pytest.approx(2.0)
    never = bootstrap(lambda *a: efficiency(*a, fraction=0.75), ppo, (strata, (x, other * 0.1)))
    assert never == Interval(15 / 40, 0.0, 15 / 40, bound="<")


def test_bootstrap_of_what_is_not_defined():
    flat = np.full((2, 5), 0.4)
    sample = (np.zeros(2), (np.stack([X, X]), flat))
    found = bootstrap(lambda *a: efficiency(*a, fraction=0.75), sample, sample)
    assert math.isnan(found.value)
    assert math.isnan(bootstrap(convergence, sample).value)


def test_bootstrap_undefined_resamples_open_both_ends():
    """The base gains on average, but resamples of its run that loses do not: nothing bounds the efficiency there."""
    base = np.array([[0.0, 0.2, 0.4, 0.4, 0.4], [0.0, -0.1, -0.1, -0.1, -0.1]])
    strata, x = np.zeros(2), np.stack([X, X])
    found = bootstrap(
        lambda *a: efficiency(*a, fraction=0.75), (strata, (x, base)), (strata, (x, base + [0, 1, 1, 1, 1]))
    )
    assert found.value > 1
    assert (found.low, found.high) == (0, math.inf)


def coverage(runs: int, trials: int = 150) -> float:
    """How often the interval of the efficiency holds the truth, runs differing in speed and noise."""
    generator, t = np.random.default_rng(runs), np.linspace(0, 1, 13)

    def draw(count, speed):
        speeds = speed * np.exp(0.15 * generator.standard_normal((count, 1)))
        return 1 - np.exp(-3 * speeds * t) + 0.05 * generator.standard_normal((count, 13)) * (t > 0)

    def measure(*arrays):
        return efficiency(*arrays, fraction=0.75)

    def grid(count):
        return np.broadcast_to(t, (count, 13))

    truth = measure(grid(20000), draw(20000, 1.0), grid(20000), draw(20000, 1.5))[0]
    strata = np.zeros(runs)
    found = [
        bootstrap(measure, (strata, (grid(runs), draw(runs, 1.0))), (strata, (grid(runs), draw(runs, 1.5))), count=300)
        for _ in range(trials)
    ]
    return sum(interval.low <= truth <= interval.high for interval in found) / trials


def test_bootstrap_coverage_is_near_nominal_with_ten_runs_and_poor_with_two():
    assert 0.88 <= coverage(10) <= 1.0
    assert coverage(2) < 0.85


def test_bootstrap_of_a_statistic_that_some_resamples_lack_is_open_below():
    """Half of the averaged gain is there at 5 of 40; resamples of the run that only loses never settle."""
    reward = np.array([[0.0, 1.0, 1.0, 1.0, 1.0], [0.0, -0.1, -0.1, -0.1, -0.1]])
    found = bootstrap(lambda *a: convergence(*a, fraction=0.5), (np.zeros(2), (np.stack([X, X]), reward)))
    assert found == Interval(5.0, -math.inf, math.inf)


def test_clustered_mean_equals_all_resamples_enumerated():
    """Four clusters of 1, 2, 3 and 1 values: their 256 resamples, each weighed by the values it holds."""
    groups = {"a": [1.0], "b": [0.0, 0.5], "c": [1.0, 1.0, 0.5], "d": [0.0]}
    values = [value for group in groups.values() for value in group]
    clusters = [name for name, group in groups.items() for _ in group]
    means = sorted(
        np.mean([value for name in drawn for value in groups[name]]) for drawn in itertools.product(groups, repeat=4)
    )
    found = clustered_mean(values, clusters, least=0, most=1, count=20_000)
    assert found.value == pytest.approx(np.mean(values))
    # the 2.5 % end: no more than 2.5 % of the resamples are below it, give or take the drawing
    for end, share in ((found.low, 0.025), (found.high, 0.975)):
        assert np.mean(means < np.float64(end - 1e-9)) <= share + 0.005
        assert np.mean(means <= np.float64(end + 1e-9)) >= share - 0.005


def test_clustered_mean_of_repeated_values_knows_no_more():
    """Ten raters who see one context alike are not ten contexts."""
    values, clusters = np.random.default_rng(0).random(12), np.arange(12)
    once = clustered_mean(values, clusters, least=0, most=1)
    repeated = clustered_mean(np.repeat(values, 10), np.repeat(clusters, 10), least=0, most=1)
    assert (repeated.low, repeated.high) == pytest.approx((once.low, once.high))
    apart = clustered_mean(np.repeat(values, 10), np.arange(120), least=0, most=1)
    assert apart.high - apart.low < 0.5 * (once.high - once.low)


def test_clustered_mean_where_all_agree_is_not_certain():
    """Of five contexts five won: Clopper and Pearson's 95 % interval is [.478, 1]."""
    found = clustered_mean([1.0] * 10, list("aabbccddee"), least=0, most=1)
    assert (found.low, found.high) == (pytest.approx(stats.binomtest(5, 5).proportion_ci(method="exact").low), 1.0)
    ties = clustered_mean([0.5] * 5, range(5), least=0, most=1)
    assert (ties.low, ties.high) == (pytest.approx(0.5 - 0.522 / 2, abs=1e-3), pytest.approx(0.5 + 0.522 / 2, abs=1e-3))


@pytest.mark.parametrize(("won", "tied"), [(0.4, 0.2), (0.8, 0.2)])
def test_clustered_mean_coverage_of_a_preference(won, tied):
    """Five and ten contexts, as few as people rate: near nominal, where the bootstrap alone has 69 % in one case."""
    for contexts in (5, 10):
        generator, hits = np.random.default_rng(contexts), 0
        for _ in range(200):
            drawn = generator.random(contexts)
            shares = np.where(drawn < won, 1.0, np.where(drawn < won + tied, 0.5, 0.0))
            found = clustered_mean(shares, range(contexts), least=0, most=1, count=400)
            hits += found.low <= won + tied / 2 <= found.high
        assert hits / 200 > 0.86


def test_clustered_mean_of_one_cluster_or_nothing():
    alone = clustered_mean([1.0, 0.0, math.nan], ["a", "a", "b"], least=0, most=1)
    assert alone.value == 0.5 and math.isnan(alone.low)
    assert math.isnan(clustered_mean([math.nan], ["a"], least=0, most=1).value)
    assert math.isnan(clustered_mean([], [], least=0, most=1).value)


@pytest.mark.parametrize(
    ("interval", "text"),
    [
        (Interval(1.314, 1.052, 1.62), "1.31 [1.05, 1.62]"),
        (Interval(0.84, 0.0, 1.1, "<"), "< 0.84 [0.00, 1.10]"),
        (Interval(0.42), "0.42"),
        (Interval(1.0, 1.0, 1.0), "1.00"),
        (Interval(math.nan), "—"),
        (Interval(1.2, 0.0, math.inf), "1.20 [0.00, ∞]"),
        (Interval(-0.001, -math.inf, 0.1), "0.00 [−∞, 0.10]"),
    ],
)
def test_interval_format(interval, text):
    assert interval.format() == text


def test_interval_format_of_a_change():
    assert Interval(31.2, -5.0, 62.0).format(0, sign="+", unit=" %") == "+31 % [−5, +62]"
    assert Interval(-4.0, -8.0, -0.2).format(0, sign="+", unit=" %") == "−4 % [−8, −0]"


@pytest.mark.parametrize(
    "interval",
    [
        Interval(1.5, 1.0, 2.0),
        Interval(0.5, 0.0, 0.75, "<"),
        Interval(1.25, 0.0, math.inf),
        Interval(1.25, -math.inf, 2.0),
    ],
)
def test_interval_json_round_trip(interval):
    assert Interval.from_json(interval.to_json()) == interval


def test_interval_json_has_null_for_what_is_not_a_number():
    assert Interval(math.nan).to_json() == {"value": None, "low": None, "high": None}
    back = Interval.from_json(Interval(2.0).to_json())
    assert (back.value, math.isnan(back.low), math.isnan(back.high)) == (2.0, True, True)
