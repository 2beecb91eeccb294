"""Learning-curve statistics: hand-worked numbers, slow twins that loop, and what comes when nothing can be said."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import trim_mean

from grpo_from_scratch.evaluation.curves import (
    band,
    check_curves,
    convergence,
    efficiency,
    final_reward,
    gain,
    iqm,
    reach,
    stability_components,
)
from grpo_from_scratch.evaluation.intervals import bootstrap

X = np.array([0.0, 10.0, 20.0, 30.0, 40.0])


def rewards(max_runs=6, min_runs=1):
    shapes = st.tuples(st.integers(min_runs, max_runs), st.integers(4, 9))
    return shapes.flatmap(lambda shape: arrays(float, shape, elements=st.floats(-1, 1, width=32)))


# -- averages


@settings(deadline=None, max_examples=40)
@given(arrays(float, st.tuples(st.integers(1, 12), st.integers(1, 3)), elements=st.floats(-5, 5)))
def test_iqm_is_scipys_trimmed_mean(values):
    np.testing.assert_allclose(iqm(values), trim_mean(values, 0.25, axis=0), atol=1e-12)


def test_iqm_hand_numbers():
    assert iqm(np.array([100.0, 2.0, 3.0, -100.0])) == 2.5
    assert iqm(np.array([1.0, 3.0])) == 2.0  # two runs: the plain mean
    assert iqm(np.array([7.0])) == 7.0


def test_final_reward_is_the_mean_of_three_and_never_of_the_first():
    assert final_reward(np.array([9.0, 9.0, 1.0, 2.0, 6.0])) == 3.0
    assert final_reward(np.array([9.0, 1.0, 2.0])) == 1.5
    assert final_reward(np.array([9.0, 1.0])) == 1.0


def test_gain_of_a_flat_curve_is_exactly_nothing():
    """(.4 + .4 + .4)/3 is an ulp above .4, which would be a gain."""
    assert gain(np.full((2, 5), 0.4)) == 0


def test_gain_is_of_the_averaged_curve():
    reward = np.array([[0.0, 1, 1, 1], [0, 3, 3, 3], [0, 100, 100, 100], [0, -50, -50, -50]])
    assert gain(reward) == 2.0


# -- reach and efficiency


def test_reach_interpolates_between_evaluations():
    curve = np.array([0.0, 0.2, 0.1, 0.5, 0.4])
    assert reach(X, curve, 0.1) == pytest.approx(5)  # half way to the second evaluation: the first crossing counts
    assert reach(X, curve, 0.2) == pytest.approx(10)  # exactly at an evaluation
    assert reach(X, curve, 0.3) == pytest.approx(25)
    assert reach(X, curve, -1.0) == 0  # there from the start
    assert np.isnan(reach(X, curve, 0.51))


def test_reach_on_a_flat_curve():
    flat = np.full(5, 0.3)
    assert reach(X, flat, 0.3) == 0
    assert np.isnan(reach(X, flat, 0.3001))


def slow_reach(x, curve, target):
    for i, value in enumerate(curve):
        if value >= target:
            if i == 0:
                return x[0]
            return np.interp(target, [curve[i - 1], value], [x[i - 1], x[i]])
    return math.nan


@settings(deadline=None, max_examples=50)
@given(rewards(), st.floats(-1, 1))
def test_reach_equals_a_loop(curves, target):
    x = np.cumsum(np.abs(curves), axis=1)
    got = reach(x, curves, np.full(len(curves), target))
    slow = [slow_reach(a, b, target) for a, b in zip(x, curves, strict=True)]
    np.testing.assert_allclose(got, slow, atol=1e-9)


PPO = np.array([[0.0, 0.2, 0.4, 0.4, 0.4]])  # final .4; 75 % is .3, reached at 15


def test_efficiency_hand_numbers():
    faster = np.array([[0.0, 0.4, 0.5, 0.5, 0.5]])  # .3 at 7.5
    assert efficiency(X[None], PPO, X[None], faster, fraction=0.75) == pytest.approx((2.0, 2.0))
    # .2 at 10 against 5; .36 at 18 against 9
    assert efficiency(X[None], PPO, X[None], faster, fraction=0.5) == pytest.approx((2.0, 2.0))
    assert efficiency(X[None], PPO, X[None], faster, fraction=0.9)[0] == pytest.approx(2.0)
    # The same curve at three times the computing time is three times less efficient.
    assert efficiency(X[None], PPO, 3 * X[None], PPO, fraction=0.75)[0] == pytest.approx(1 / 3)
    # Its own evaluation grid: .3 at 4 · 3/4 = 3.
    assert efficiency(X[None], PPO, X[None, :2] * 0.4, np.array([[0.0, 0.4]]), fraction=0.75)[0] == pytest.approx(5.0)


def test_efficiency_of_one_that_never_gets_there_is_a_bound():
    slow = np.array([[0.0, 0.1, 0.2, 0.25, 0.29]])
    assert efficiency(X[None], PPO, X[None], slow, fraction=0.75) == (0.0, 15 / 40)
    assert efficiency(X[None], PPO, 2 * X[None], slow, fraction=0.75) == (0.0, 15 / 80)


def test_efficiency_against_a_base_that_gained_nothing_is_open():
    flat = np.full((1, 5), 0.4)
    assert efficiency(X[None], flat, X[None], PPO, fraction=0.75) == (0.0, math.inf)


def test_efficiency_of_one_that_starts_above_the_target_is_open():
    assert efficiency(X[None], PPO, X[None], PPO + 0.5, fraction=0.75) == (0.0, math.inf)


def test_efficiency_reads_the_averaged_curve_and_averaged_costs():
    """Two runs, of which one never reaches .3 alone: the average of both does, and costs average too."""
    reward = np.array([[0.0, 0.8, 0.8, 0.8, 0.8], [0.0, 0.0, 0.0, 0.0, 0.0]])
    x = np.stack([X, 3 * X])
    assert efficiency(X[None], PPO, x, reward, fraction=0.75)[0] == pytest.approx(15 / (20 * 0.75))


@settings(deadline=None, max_examples=50)
@given(rewards(), rewards(), st.sampled_from([0.5, 0.75, 0.9]))
def test_efficiency_equals_a_loop_and_the_base_always_arrives(base, other, fraction):
    def grid(reward):
        return np.arange(1.0, 1 + len(reward)).mean() * np.broadcast_to(np.arange(reward.shape[1]), reward.shape)

    base_x, x = grid(base), grid(other)
    base_curve, curve = trim_mean(base, 0.25), trim_mean(other, 0.25)
    way = base_curve[-3:].mean() - base_curve[0]
    target = base_curve[0] + fraction * way
    least, most = efficiency(base_x, base, x, other, fraction=fraction)
    need, own = slow_reach(base_x[0], base_curve, target), slow_reach(x[0], curve, target)
    if abs(way) < 1e-9 or abs(curve - target).min() < 1e-9:
        return  # a tie that rounding decides
    if way <= 0 or curve[0] >= target:
        assert (least, most) == (0, math.inf)
    elif math.isnan(own):
        assert least == 0
        assert most == pytest.approx(need / x[0, -1])
    else:
        assert least == most == pytest.approx(need / own)
    assert way <= 0 or not math.isnan(need)


def test_efficiency_survives_a_target_an_ulp_above_the_base():
    """All of the way, fraction 1, of a base whose last three evaluations are equal."""
    base = np.array([[0.1, 0.4, 0.4, 0.4]])
    for offset in np.linspace(0, 1, 101):
        x = np.arange(4.0)[None]
        least, most = efficiency(x, base + offset, x, base + offset, fraction=1.0)
        assert (least, most) in [(1.0, 1.0), (0.0, math.inf)]


def test_convergence_is_the_first_crossing_of_its_own_gain():
    assert convergence(X[None], PPO, fraction=0.9) == pytest.approx(18)
    assert np.isnan(convergence(X[None], np.full((1, 5), 0.2)))
    assert np.isnan(convergence(X[None], -PPO))


# -- stability

ONE = np.zeros(2)  # both runs on one initial policy


def test_stability_components_hand_numbers():
    """Run a: 0 .4 .2 .6 .4 .8, run b: 0 .2 .4 .6 .8 1; S = 1.

    Second differences of a: −.6 .6 −.6 .6, quartiles −.6 and .6, IQR 1.2; of b all 0. Mean .6, over √3.
    Drawdowns of a: 0 0 .2 0 .2 0, worst ceil(6/4) = 2: .2; of b 0. Mean .1.
    |a − b| after the first: .2 .2 0 .4 .2, IQR of two numbers is half of that: mean .2 / 2.
    """
    reward = np.array([[0, 0.4, 0.2, 0.6, 0.4, 0.8], [0, 0.2, 0.4, 0.6, 0.8, 1.0]])
    expected = [1 - 0.6 / math.sqrt(3), 0.9, 0.9]
    np.testing.assert_allclose(stability_components(reward, ONE, scale=1.0), expected, atol=1e-12)
    half = [1 - 2 * 0.6 / math.sqrt(3), 0.8, 0.8]
    np.testing.assert_allclose(stability_components(reward, ONE, scale=0.5), half, atol=1e-12)


def test_stability_components_are_clipped():
    wild = np.array([[0.0, 5, -5, 5, -5, 5], [0, -5, 5, -5, 5, -5]])
    np.testing.assert_array_equal(stability_components(wild, ONE, scale=0.1), [0, 0, 0])
    np.testing.assert_array_equal(stability_components(0 * wild, ONE, scale=0.1), [1, 1, 1])


def test_stability_components_do_not_punish_a_fast_start():
    """A smooth saturating curve is steady although its differences fall from large to nothing."""
    t = np.linspace(0, 1, 21)
    smooth = np.stack([1 - np.exp(-t / 0.3)] * 2)
    assert stability_components(smooth, ONE, scale=smooth[0, -1])[0] > 0.99


def test_stability_components_count_white_noise_as_plain_differences_do():
    """Differences of independent noise of deviation σ have the interquartile range 1.349·√2·σ; σ = .1, S = 1."""
    noise = 0.1 * np.random.default_rng(0).standard_normal((400, 200))
    across_time = stability_components(noise, np.zeros(400), scale=1.0)[0]
    assert 1 - across_time == pytest.approx(1.349 * math.sqrt(2) * 0.1, rel=0.02)


def test_stability_components_compare_runs_of_one_initial_policy():
    """Two policies that start .5 apart, no other difference: nothing of that is the algorithm's."""
    curve = np.linspace(0, 1, 6)
    reward = np.stack([curve, curve, curve + 0.5, curve + 0.5])
    strata = np.array([0, 0, 7, 7])
    np.testing.assert_allclose(stability_components(reward, strata, scale=1.0), [1, 1, 1])
    assert stability_components(reward, np.zeros(4), scale=1.0)[2] == pytest.approx(0.5)


def test_stability_components_weigh_policies_by_their_runs():
    """Three identical runs on one policy and two that differ by 1 on another: 1 − (3·0 + 2·½)/5."""
    reward = np.zeros((5, 6))
    reward[4] = 1.0
    assert stability_components(reward, np.array([0, 0, 0, 1, 1]), scale=1.0)[2] == pytest.approx(0.8)


def test_stability_components_that_cannot_be_known_are_nan():
    reward = np.stack([np.linspace(0, 1, 6)] * 2)
    assert np.isnan(stability_components(reward, ONE, scale=0.0)).all()
    assert np.isnan(stability_components(reward, ONE, scale=math.nan)).all()
    assert np.isnan(stability_components(reward[:, :3], ONE, scale=1.0)).all()
    alone = stability_components(reward, np.array([0, 1]), scale=1.0)
    assert not np.isnan(alone[:2]).any()
    assert np.isnan(alone[2])


def slow_stability(reward, strata, scale):
    def iqr(values):
        return np.percentile(values, 75) - np.percentile(values, 25)

    times, falls, spreads = [], [], []
    for run in reward:
        seconds = [run[i + 1] - 2 * run[i] + run[i - 1] for i in range(1, len(run) - 1)]
        times.append(iqr(seconds) / 3**0.5)
        drops = sorted((max(run[: i + 1]) - run[i] for i in range(len(run))), reverse=True)
        worst = drops[: math.ceil(len(run) / 4)]
        falls.append(sum(worst) / len(worst))
    for stratum in strata:  # once for each run, so a policy weighs as many times as it has runs
        spreads.append(np.mean([iqr(reward[strata == stratum, i]) for i in range(1, reward.shape[1])]))
    return [min(1, max(0, 1 - np.mean(v) / scale)) for v in (times, falls, spreads)]


@settings(deadline=None, max_examples=40)
@given(rewards(min_runs=6), st.floats(0.1, 5), st.sampled_from([[0] * 6, [0, 0, 1, 1, 1, 1], [2, 1, 2, 1, 2, 1]]))
def test_stability_components_equal_a_loop_also_in_a_stack(reward, scale, strata):
    strata = np.array(strata)
    got = stability_components(np.stack([reward, reward[:, ::-1]]), strata, scale=scale)
    np.testing.assert_allclose(got[0], slow_stability(reward, strata, scale), atol=1e-9)
    np.testing.assert_allclose(got[1], slow_stability(reward[:, ::-1], strata, scale), atol=1e-9)


def test_band_is_the_pointwise_interval():
    values = np.random.default_rng(0).standard_normal((10, 3))
    strata = np.repeat([0, 1], 5)
    middle, low, high = band(values, strata)
    for i in range(3):
        found = bootstrap(lambda v: iqm(v, -1), (strata, (values[:, i],)))
        assert (middle[i], low[i], high[i]) == pytest.approx((found.value, found.low, found.high))
    middle, low, high = band(values[:1], strata[:1])
    np.testing.assert_array_equal(middle, values[0])
    assert np.isnan([low, high]).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_check_curves_names_row_run_and_evaluation(bad):
    reward = np.zeros((3, 4))
    reward[1, 2] = bad
    with pytest.raises(ValueError, match=rf"ppo 64x1: reward of run 1 is {bad} at evaluation 2"):
        check_curves(reward, np.zeros((3, 4)), name="ppo 64x1")


def test_check_curves_refuses_costs_that_fall_and_shapes_that_differ():
    with pytest.raises(ValueError, match="grpo: x of run 0 falls after evaluation 1"):
        check_curves(np.zeros((1, 3)), np.array([[0.0, 2, 1]]), name="grpo")
    with pytest.raises(ValueError, match=r"\(runs, evaluations\)"):
        check_curves(np.zeros((1, 3)), np.zeros(3), name="grpo")
    check_curves(np.zeros((1, 3)), np.array([[0.0, 1, 1]]), name="grpo")
