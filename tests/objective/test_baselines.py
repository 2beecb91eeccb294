"""What a reward is compared with."""

import json
import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_from_scratch.objective.baselines import EMABaseline, batch_mean, group_mean, leave_one_out

reward = st.one_of(st.none(), st.floats(-5, 5, width=32))
batches = st.lists(st.tuples(reward, st.integers(0, 3)), min_size=1, max_size=16)


def columns(batch):
    rewards = torch.tensor([math.nan if r is None else r for r, _ in batch], dtype=torch.float64)
    return rewards, torch.tensor([g for _, g in batch])


def mean(values):
    values = [v for v in values if v is not None]
    return statistics.fmean(values) if values else math.nan


@given(batches)
@settings(deadline=None, max_examples=50)
def test_group_mean_and_batch_mean_twins(batch):
    rewards, groups = columns(batch)
    expected = [mean(r for r, other in batch if other == group) for _, group in batch]
    torch.testing.assert_close(group_mean(rewards, groups), torch.tensor(expected).double(), equal_nan=True)
    torch.testing.assert_close(batch_mean(rewards), torch.full_like(rewards, mean(r for r, _ in batch)), equal_nan=True)


@given(batches)
@settings(deadline=None, max_examples=50)
def test_leave_one_out_twin(batch):
    rewards, groups = columns(batch)
    found = leave_one_out(rewards, groups)
    for i, (own, group) in enumerate(batch):
        others = [r for j, (r, other) in enumerate(batch) if other == group and j != i and r is not None]
        expected = mean(others) if others or own is None else own
        assert float(found[i]) == pytest.approx(expected, abs=1e-9, nan_ok=True)


def test_leave_one_out_alone_has_no_advantage():
    """ADV-02: nobody to be compared with."""
    rewards, groups = torch.tensor([3.0, 1, math.nan]), torch.tensor([0, 1, 1])
    assert (rewards - leave_one_out(rewards, groups))[:2].tolist() == [0, 0]


@pytest.mark.parametrize("baseline", [group_mean, leave_one_out])
@pytest.mark.parametrize("value, size", [(0.1, 8), (0.3, 6)])
def test_baselines_of_equal_rewards_are_that_reward(baseline, value, size):
    """ADV-01."""
    rewards = torch.full((size,), value)
    assert torch.equal(baseline(rewards, torch.zeros(size, dtype=torch.int64)), rewards)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_baselines_keep_the_precision(dtype):
    rewards, groups = torch.tensor([1.0, 2, 4], dtype=dtype), torch.tensor([0, 0, 1])
    assert {f(rewards, groups).dtype for f in (group_mean, leave_one_out, EMABaseline())} == {dtype}


class SlowEMA:
    """The moving averages in plain numbers, one group at a time."""

    def __init__(self, alpha, init):
        self.alpha, self.init, self.values = alpha, init, {}

    def start(self, batch, group):
        of_group = batch if self.init == "global_mean" else [row for row in batch if row[1] == group]
        return self.values.get(group, mean(r for r, _ in of_group))

    def use(self, batch):
        return [self.start(batch, group) for _, group in batch]

    def update(self, batch):
        new = {}
        for group in {group for r, group in batch if r is not None}:
            of_batch = mean(r for r, other in batch if other == group)
            new[group] = self.alpha * self.start(batch, group) + (1 - self.alpha) * of_batch
        self.values |= new


@given(st.lists(batches, min_size=1, max_size=4), st.floats(0, 1), st.sampled_from(["group_first", "global_mean"]))
@settings(deadline=None, max_examples=50)
def test_ema_baseline_twin(steps, alpha, init):
    fast, slow = EMABaseline(alpha, init), SlowEMA(alpha, init)
    for batch in steps:
        rewards, groups = columns(batch)
        used = fast(rewards, groups)
        torch.testing.assert_close(used, torch.tensor(slow.use(batch)).double(), equal_nan=True)
        fast.update(rewards, groups)
        slow.update(batch)
        assert fast.values.keys() == slow.values.keys()
        assert all(fast.values[g] == pytest.approx(slow.values[g], abs=1e-9) for g in slow.values)


@pytest.mark.parametrize("init", ["group_first", "global_mean"])
@pytest.mark.parametrize("value", [4.0, 1.3, 1.7])
def test_ema_baseline_starts_at_a_mean_not_at_zero(init, value):
    """EMA-01: three rewards of 4 have the baselines 4, 4, 4, and no other reward leaves a residue either (ADV-01)."""
    ema, group = EMABaseline(alpha=0.95, init=init), torch.tensor([0])
    for _ in range(3):
        reward = torch.tensor([value], dtype=torch.float64)
        assert ema(reward, group) == reward
        ema.update(reward, group)


def test_ema_baseline_is_used_before_it_is_updated():
    """EMA-02: baseline 5, reward 7: the advantage is 2, then the baseline 6."""
    ema, group = EMABaseline(alpha=0.5), torch.tensor([0])
    ema.update(torch.tensor([5.0]), group)
    reward = torch.tensor([7.0])
    assert reward - ema(reward, group) == 2
    assert ema(reward, group) == 5  # asking changes nothing
    ema.update(reward, group)
    assert ema(reward, group) == 6


@given(st.permutations(range(6)))
@settings(deadline=None, max_examples=25)
def test_ema_baseline_does_not_depend_on_the_row_order(order):
    """EMA-02: within a batch."""
    rewards, groups = torch.tensor([1.0, 7, 2, 9, 4, 3]).double(), torch.tensor([0, 1, 0, 1, 0, 2])
    straight, shuffled = EMABaseline(0.5), EMABaseline(0.5)
    for ema, rows in ((straight, list(range(6))), (shuffled, order)):
        ema.update(torch.tensor([0.0, 1]), torch.tensor([0, 1]))
        ema.update(rewards[rows], groups[rows])
    assert straight.values == pytest.approx(shuffled.values)


def test_ema_baseline_absent_groups_keep_theirs():
    ema = EMABaseline(0.5)
    ema.update(torch.tensor([2.0, 8]), torch.tensor([0, 1]))
    ema.update(torch.tensor([4.0, math.nan]), torch.tensor([0, 1]))  # group 1 has no valid reward here
    assert ema.values == {0: 3.0, 1: 8.0}


def test_ema_baseline_counts_a_group_once_per_batch():
    """Eight rows of one batch decay the old value once, not eight times."""
    ema = EMABaseline(0.9)
    ema.update(torch.tensor([0.0]), torch.tensor([0]))
    ema.update(torch.ones(8), torch.zeros(8, dtype=torch.int64))
    assert ema.values[0] == pytest.approx(0.1)


def test_ema_baseline_is_kept_in_float64():
    """A small 1 − α times a float32 difference would be lost in the value it is added to."""
    ema, batches = EMABaseline(0.99), torch.rand(200, 3, generator=torch.Generator().manual_seed(0))
    expected = None
    for batch in batches:
        of_batch = statistics.fmean(batch.tolist())
        expected = of_batch if expected is None else expected + 0.01 * (of_batch - expected)
        ema.update(batch, torch.zeros(3, dtype=torch.int64))
    assert ema.values[0] == pytest.approx(expected, abs=1e-12)


def test_ema_baseline_state_dict_resumes_exactly():
    """MP-05 for the averages."""
    ema = EMABaseline(0.95)
    ema.update(torch.tensor([0.1, 0.7]), torch.tensor([5, 2]))
    ema.update(torch.tensor([0.3, 0.9]), torch.tensor([5, 2]))
    again = EMABaseline(0.95)
    again.load_state_dict(ema.state_dict())
    assert again.values == ema.values and len(ema.values) == 2
    json.dumps({name: tensor.tolist() for name, tensor in ema.state_dict().items()})


@pytest.mark.parametrize(
    "arguments, named", [({"alpha": 1.1}, "alpha"), ({"alpha": -0.1}, "alpha"), ({"init": "0"}, "init")]
)
def test_ema_baseline_refuses(arguments, named):
    with pytest.raises(ValueError, match=named):
        EMABaseline(**arguments)
