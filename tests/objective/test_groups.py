"""Statistics of groups given by ids."""

import math
import statistics

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_from_scratch.objective.groups import (
    check_groups,
    first_order_noise_ratio,
    group_statistics,
    icc,
    reward_metrics,
)

reward = st.one_of(st.none(), st.floats(-5, 5, width=32))
batches = st.lists(st.tuples(reward, st.integers(-3, 3)), min_size=1, max_size=20)


def columns(batch):
    rewards = torch.tensor([math.nan if r is None else r for r, _ in batch], dtype=torch.float64)
    return rewards, torch.tensor([g for _, g in batch])


@given(batches)
@settings(deadline=None, max_examples=50)
def test_group_statistics_twin(batch):
    rewards, groups = columns(batch)
    stats = group_statistics(rewards, groups)
    assert stats.ids.tolist() == sorted({g for _, g in batch})
    for i, id in enumerate(stats.ids.tolist()):
        valid = [r for r, g in batch if g == id and r is not None]
        assert stats.count[i] == len(valid)
        if valid:
            assert float(stats.mean[i]) == pytest.approx(statistics.fmean(valid), abs=1e-12)
            assert bool(stats.without_signal[i]) == (len(set(valid)) == 1)
        else:
            assert stats.mean[i].isnan() and stats.without_signal[i]
        std = statistics.stdev(valid) if len(valid) > 1 else 0.0
        assert float(stats.std[i]) == pytest.approx(std, abs=1e-7)
    assert stats.per_row(stats.ids).tolist() == groups.tolist()


@pytest.mark.parametrize("value, size", [(0.1, 8), (0.3, 6), (0.0, 4), (1.0, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_group_statistics_equal_rewards_leave_no_residue(value, size, dtype):
    """ADV-01 at its root: the mean of equal numbers is that number, and the std is exactly 0."""
    rewards = torch.full((size,), value, dtype=dtype)
    stats = group_statistics(rewards, torch.zeros(size, dtype=torch.int64))
    assert stats.mean[0] == rewards[0] and stats.std[0] == 0 and stats.without_signal[0]


def test_group_statistics_large_offset():
    """ADV-11: a common offset of a million changes no digit of the std."""
    rewards, one_group = torch.tensor([0.0, 1, 2, 3]), torch.zeros(4, dtype=torch.int64)
    near, far = group_statistics(rewards, one_group), group_statistics(rewards + 1_000_000, one_group)
    assert near.std.dtype == torch.float32
    assert far.std == near.std and far.mean - 1_000_000 == near.mean


def test_group_statistics_names_both_kinds_of_bad_groups():
    rewards = torch.zeros(3)
    for groups in (torch.zeros(3), torch.zeros(2, dtype=torch.int64)):
        with pytest.raises(ValueError, match=r"integer ids of shape \(3,\)"):
            group_statistics(rewards, groups)
    assert check_groups([2, 0, 2], rewards).tolist() == [2, 0, 2]


def test_group_statistics_of_nothing():
    stats = group_statistics(torch.empty(0), torch.empty(0, dtype=torch.int64))
    assert stats.ids.numel() == stats.mean.numel() == 0


def slow_icc(groups: list[list[float]]) -> float:
    """One-way analysis of variance, by the textbook: sums of squares within and between groups of any sizes."""
    everything = [r for group in groups for r in group]
    total, count = len(everything), len(groups)
    grand = sum(everything) / total
    within = sum((r - sum(g) / len(g)) ** 2 for g in groups for r in g) / (total - count)
    between = sum(len(g) * (sum(g) / len(g) - grand) ** 2 for g in groups) / (count - 1)
    size = (total - sum(len(g) ** 2 for g in groups) / total) / (count - 1)
    return (between - within) / (between + (size - 1) * within)


@given(st.lists(st.lists(st.floats(-3, 3, width=16), min_size=1, max_size=5), min_size=2, max_size=5))
@settings(deadline=None, max_examples=50)
def test_icc_twin_with_unequal_sizes(groups):
    rewards = torch.tensor([r for group in groups for r in group])
    ids = torch.tensor([i for i, group in enumerate(groups) for _ in group])
    found = icc(rewards, ids)
    if all(len(group) == 1 for group in groups) or len(set(rewards.tolist())) == 1:
        assert math.isnan(found)
    else:
        assert found == pytest.approx(slow_icc(groups), abs=1e-6)
        assert found <= 1 + 1e-9


def test_icc_ignores_missing_rewards():
    rewards, groups = torch.tensor([1.0, 2, math.nan, 4, 6, math.nan]), torch.tensor([0, 0, 0, 1, 1, 2])
    assert icc(rewards, groups) == pytest.approx(slow_icc([[1, 2], [4, 6]]))


def test_icc_is_not_the_variance_of_the_means():
    """Pure noise has ICC 0; var(means)/var calls 1/G of it prompt effect."""
    rewards = torch.from_numpy(np.random.default_rng(0).normal(size=(4000, 4)))
    groups = torch.arange(4000).repeat_interleave(4)
    assert abs(icc(rewards.flatten(), groups)) < 0.02
    assert float(rewards.mean(1).var() / rewards.var()) == pytest.approx(1 / 4, abs=0.02)


@pytest.mark.parametrize("groups", [[0, 0, 0], [0, 1, 2]])
def test_icc_undefined(groups):
    assert math.isnan(icc(torch.tensor([0.0, 1, 2]), torch.tensor(groups)))


def test_first_order_noise_ratio_values():
    assert first_order_noise_ratio(0.5, 8) == pytest.approx(1.75)
    assert first_order_noise_ratio(0.125, 8) == pytest.approx(1.0)  # a group starts to help at ICC = 1/G
    assert first_order_noise_ratio(0.5, 8, explained_variance=0.5) == pytest.approx(0.875)
    assert first_order_noise_ratio(1.0, 8) == math.inf


def test_reward_metrics_tell_two_stds_apart():
    """ADV-13: a batch std above 2 beside groups without any spread."""
    metrics = reward_metrics(torch.tensor([3.0, 3, -1, -1]), torch.tensor([0, 0, 1, 1]))
    assert metrics["reward_std"] == pytest.approx(2.3094, abs=1e-4)
    assert metrics["reward_std_within"] == 0
    assert metrics["groups_without_signal"] == 1
    assert metrics["icc"] == 1


def test_reward_metrics_count_missing_rewards():
    """ADV-14: one NaN does not ruin the mean."""
    metrics = reward_metrics(torch.tensor([0.5, math.nan, 0.8]), torch.tensor([0, 0, 0]))
    assert metrics["reward_mean"] == pytest.approx(0.65)
    assert metrics["reward_missing"] == pytest.approx(1 / 3)
