"""Reward minus baseline, scaled; GAE, whitening and explained variance."""

import math
import statistics
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_from_scratch.objective.advantages import (
    compute_advantages,
    explained_variance,
    gae,
    group_relative_advantages,
    masked_whiten,
    scaled_advantages,
)
from grpo_from_scratch.objective.baselines import EMABaseline
from grpo_from_scratch.objective.presets import PRESETS, Preset

TINY = 1e-12  # an eps that stands for none
reward = st.one_of(st.none(), st.floats(-5, 5, width=16))
batches = st.lists(st.tuples(reward, st.integers(-3, 3)), min_size=1, max_size=16)


def advantages(rewards, groups, **options):
    return group_relative_advantages(torch.as_tensor(rewards), torch.tensor(groups), **options).tolist()


def slow_std(values):
    return statistics.stdev(values) if len(values) > 1 else 0.0


@given(batches, st.sampled_from(["group", "batch", "none"]))
@settings(deadline=None, max_examples=50)
def test_group_relative_advantages_twin(batch, scale):
    everything = [r for r, _ in batch if r is not None]
    expected = []
    for own, group in batch:
        members = [r for r, other in batch if other == group and r is not None]
        if own is None:
            expected.append(0.0)
            continue
        divisor = {"group": slow_std(members) + 1e-4, "batch": slow_std(everything) + 1e-4, "none": 1.0}[scale]
        expected.append((own - statistics.fmean(members)) / divisor)
    found = group_relative_advantages([r for r, _ in batch], torch.tensor([g for _, g in batch]), scale=scale)
    assert found.dtype == torch.float32
    assert found.tolist() == pytest.approx(expected, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("value, size", [(0.1, 8), (0.3, 6), (0.0, 4), (1.0, 4)])
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_group_relative_advantages_equal_rewards(value, size, scale):
    """ADV-01: exactly 0, whatever the eps."""
    assert advantages([value] * size, [0] * size, eps=1e-8, scale=scale) == [0.0] * size


def test_group_relative_advantages_group_of_one():
    """ADV-02."""
    assert advantages([3.0], [0]) == [0.0]


def test_group_relative_advantages_unbiased_std():
    """ADV-04: n-1; with two completions any two rewards give the same size."""
    assert advantages([1.0, 0], [0, 0], eps=TINY) == pytest.approx([0.70711, -0.70711], abs=1e-5)
    assert advantages([1.0, 1, 0, 0], [0] * 4, eps=TINY) == pytest.approx([0.86603] * 2 + [-0.86603] * 2, abs=1e-5)
    assert advantages([0.9, 0.2], [0, 0], eps=TINY) == pytest.approx([0.70711, -0.70711], abs=1e-5)


def test_group_relative_advantages_per_group_not_per_batch():
    """ADV-05."""
    expected = [1.1547, -0.5774, -0.5774, 0.5774, 0.5774, -1.1547]
    assert advantages([1.0, 0, 0, 5, 5, 2], [0, 0, 0, 1, 1, 1], eps=TINY) == pytest.approx(expected, abs=1e-4)


def test_group_relative_advantages_by_id_not_by_position():
    """ADV-06: interleaved prompts."""
    assert advantages([1.0, 10, 3, 20], [0, 1, 0, 1], scale="none") == [-1, -5, 1, 5]


@given(st.lists(st.tuples(st.floats(-5, 5, width=16), st.integers(0, 3)), min_size=1, max_size=12), st.data())
@settings(deadline=None, max_examples=30)
def test_group_relative_advantages_follow_a_shuffle(batch, data):
    """ADV-06 in general: shuffling rows and renaming groups shuffles the advantages and changes none."""
    order = data.draw(st.permutations(range(len(batch))))
    rewards, groups = torch.tensor([r for r, _ in batch]), torch.tensor([g for _, g in batch])
    straight = group_relative_advantages(rewards, groups)
    shuffled = group_relative_advantages(rewards[list(order)], 1000 - 7 * groups[list(order)])
    torch.testing.assert_close(shuffled, straight[list(order)])


def test_group_relative_advantages_of_a_group_in_two_parts():
    """ADV-08: over the whole group, not over the half that one rank or micro-batch holds, which sees no difference."""
    whole = advantages([1.0, 1, 0, 0], [0] * 4, eps=TINY)
    assert whole == pytest.approx([0.866, 0.866, -0.866, -0.866], abs=1e-3)
    assert advantages([1.0, 1], [0, 0]) + advantages([0.0, 0], [0, 0]) == [0] * 4


def test_group_relative_advantages_missing_reward():
    """ADV-09: the valid rows are compared among themselves, the missing one gets 0."""
    found = group_relative_advantages([1, None, 0, 1], torch.zeros(4, dtype=torch.int64), eps=TINY)
    assert found.tolist() == pytest.approx([0.5774, 0, -1.1547, 0.5774], abs=1e-4)
    with pytest.raises(ValueError, match=r"rows \[1\] are ±inf"):
        group_relative_advantages([1, math.inf, 0, 1], torch.zeros(4, dtype=torch.int64))


def test_group_relative_advantages_large_offset_and_tiny_spread():
    """ADV-11."""
    expected = [-1.1618, -0.3873, 0.3873, 1.1618]
    near, far = advantages([0.0, 1, 2, 3], [0] * 4), advantages([1e6, 1e6 + 1, 1e6 + 2, 1e6 + 3], [0] * 4)
    assert near == pytest.approx(expected, abs=1e-4) and far == near
    tiny = advantages([1.0, 1.00001, 1.00002, 1.00003], [0] * 4)
    assert tiny == pytest.approx([-0.133, -0.044, 0.044, 0.133], abs=1e-3)
    # An offset at which the mean itself needs more digits than float32 has.
    wide = torch.tensor([1e6, 1e6 + 1, 1e6 + 3])
    for found in (
        group_relative_advantages(wide, torch.zeros_like(wide).long(), scale="none"),
        compute_advantages("dr_grpo", wide, torch.zeros_like(wide).long()),
    ):
        assert found.tolist() == pytest.approx([-4 / 3, -1 / 3, 5 / 3])


def test_group_relative_advantages_precision():
    for dtype in (torch.float32, torch.float64):
        rewards = torch.tensor([1.0, 2, 4], dtype=dtype)
        assert group_relative_advantages(rewards, torch.zeros(3, dtype=torch.int64)).dtype == dtype


@pytest.mark.parametrize("options, named", [({"scale": "std"}, "scale"), ({"eps": 0.0}, "eps")])
def test_group_relative_advantages_refuses(options, named):
    with pytest.raises(ValueError, match=named):
        advantages([1.0, 2], [0, 0], **options)


def test_scaled_advantages_any_baseline():
    rewards, baseline, groups = torch.tensor([3.0, 5, math.nan]), torch.tensor([1.0, 2, 3]), torch.tensor([0, 0, 0])
    assert scaled_advantages(rewards, baseline, groups).tolist() == [2, 3, 0]
    std = math.sqrt(2)
    expected = [2 / std, 3 / std, 0]
    assert scaled_advantages(rewards, baseline, groups, scale="group", eps=TINY).tolist() == pytest.approx(expected)


REWARDS, PROMPTS = torch.tensor([1.0, 3, 2, math.nan, 8, 4]), torch.tensor([0, 0, 1, 1, 1, 2])


def test_compute_advantages_mean_and_leave_one_out():
    assert compute_advantages("dr_grpo", REWARDS, PROMPTS).tolist() == [-1, 1, -3, 0, 3, 0]
    assert compute_advantages("rloo", REWARDS, PROMPTS).tolist() == [-2, 2, -6, 0, 6, 0]
    torch.testing.assert_close(
        compute_advantages("grpo", REWARDS, PROMPTS), group_relative_advantages(REWARDS, PROMPTS)
    )


def test_compute_advantages_batch_and_none():
    """With groups 'batch' the ids do not matter; the mean of the valid rewards is 3.6."""
    whole = Preset(groups="batch", scale="none")
    assert compute_advantages(whole, REWARDS, PROMPTS).tolist() == pytest.approx([-2.6, -0.6, -1.6, 0, 4.4, 0.4])
    assert compute_advantages(replace(whole, baseline="none"), REWARDS, PROMPTS).tolist() == [1, 3, 2, 0, 8, 4]
    lite = Preset(scale="batch")
    std = statistics.stdev([1, 3, 2, 8, 4])
    assert compute_advantages(lite, REWARDS, PROMPTS).tolist() == pytest.approx(
        [a / (std + 1e-4) for a in (-1, 1, -3, 0, 3, 0)]
    )


def test_compute_advantages_ema_uses_and_does_not_update():
    """EMA-02: the trainer updates once the step was taken."""
    ema = EMABaseline(0.95)
    ema.update(torch.tensor([5.0, 1.0]), torch.tensor([0, 1]))
    before = dict(ema.values)
    assert compute_advantages("article", REWARDS, PROMPTS, ema=ema).tolist() == [-4, -2, 1, 0, 7, 0]
    assert ema.values == before
    whole = replace(PRESETS["cluster_ema"], groups="batch")
    assert compute_advantages(whole, REWARDS, PROMPTS, ema=ema).tolist() == [-4, -2, -3, 0, 3, -1]


def test_compute_advantages_refuses():
    with pytest.raises(ValueError, match="token_rewards and gae"):
        compute_advantages("ppo", REWARDS, PROMPTS)
    with pytest.raises(ValueError, match="ema=EMABaseline"):
        compute_advantages("cluster_ema", REWARDS, PROMPTS)


def test_gae_terminated_and_truncated():
    """PPO-02."""
    rewards, values, mask = torch.tensor([[0.0, 0, 1]]), torch.tensor([[0.5, 0.6, 0.7]]), torch.ones(1, 3)
    options = {"gamma": 0.9, "lam": 0.8}
    found, returns = gae(rewards, values, mask, **options)
    torch.testing.assert_close(found, torch.tensor([[0.21712, 0.246, 0.3]]))
    torch.testing.assert_close(returns, torch.tensor([[0.71712, 0.846, 1.0]]))
    found, _ = gae(rewards, values, mask, bootstrap_value=torch.tensor([0.9]), **options)
    torch.testing.assert_close(found, torch.tensor([[0.637024, 0.8292, 1.11]]))
    found, _ = gae(rewards, values, mask, gamma=1.0, lam=1.0)
    torch.testing.assert_close(found, torch.tensor([[0.5, 0.4, 0.3]]))


@given(st.integers(0, 10_000), st.floats(0, 1), st.floats(0, 1), st.booleans())
@settings(deadline=None, max_examples=40)
def test_gae_twin(seed, gamma, lam, bootstrapped):
    """Eq. 16 as a sum over the one-step errors still to come, on the real tokens alone; NaN behind the mask (LP-12)."""
    generator = torch.Generator().manual_seed(seed)
    rewards, values = torch.randn(2, 3, 6, generator=generator, dtype=torch.float64)
    bootstrap = torch.randn(3, generator=generator, dtype=torch.float64) if bootstrapped else None
    mask = torch.rand(3, 6, generator=generator) < 0.7
    expected = torch.zeros(2, 3, 6, dtype=torch.float64)
    for row in range(3):
        real = mask[row].nonzero().flatten().tolist()
        v = values[row, real].tolist() + [float(bootstrap[row]) if bootstrapped else 0.0]
        errors = [float(rewards[row, t]) + gamma * v[i + 1] - v[i] for i, t in enumerate(real)]
        for i, t in enumerate(real):
            expected[0, row, t] = sum((gamma * lam) ** (j - i) * errors[j] for j in range(i, len(real)))
            expected[1, row, t] = expected[0, row, t] + v[i]
    hidden = rewards.masked_fill(~mask, math.nan), values.masked_fill(~mask, math.nan)
    found = gae(*hidden, mask, bootstrap_value=bootstrap, gamma=gamma, lam=lam)
    torch.testing.assert_close(torch.stack(found), expected)


def test_gae_cuts_the_graph():
    values = torch.zeros(1, 2, requires_grad=True)
    assert not any(t.requires_grad for t in gae(torch.ones(1, 2), values, torch.ones(1, 2)))


def test_masked_whiten_over_real_tokens():
    """PPO-05, n-1 as everywhere here."""
    values, mask = torch.tensor([[1.0, 2, 3, 100]]), torch.tensor([[1, 1, 1, 0]])
    torch.testing.assert_close(masked_whiten(values, mask, eps=TINY), torch.tensor([[-1.0, 0, 1, 0]]))
    kept = masked_whiten(values, mask, shift_mean=False, eps=TINY)
    torch.testing.assert_close(kept, torch.tensor([[1.0, 2, 3, 0]]))


@pytest.mark.parametrize("mask", [[[1, 0, 0]], [[0, 0, 0]], [[1, 1, 0]]])
def test_masked_whiten_without_spread(mask):
    """PPO-05: one real token, none, or equal ones give 0, not NaN; NaN behind the mask stays there (LP-12)."""
    values = torch.tensor([[0.1, 0.1, math.nan]])
    assert masked_whiten(values, torch.tensor(mask)).tolist() == [[0, 0, 0]]


@given(st.lists(st.floats(-5, 5, width=16), min_size=2, max_size=12), st.integers(0, 4))
@settings(deadline=None, max_examples=30)
def test_masked_whiten_twin(real, padding):
    values = torch.tensor([real + [99.0] * padding])
    mask = torch.tensor([[1] * len(real) + [0] * padding])
    mean, std = statistics.fmean(real), statistics.stdev(real)
    expected = [(v - mean) / (std + 1e-4) for v in real] + [0.0] * padding
    assert masked_whiten(values, mask)[0].tolist() == pytest.approx(expected, rel=1e-3, abs=1e-3)


def test_explained_variance_values():
    returns, mask = torch.tensor([[1.0, 2, 3, math.nan]]), torch.tensor([[1, 1, 1, 0]])
    assert explained_variance(returns, returns, mask) == 1
    assert explained_variance(torch.full_like(returns, 7.0), returns, mask) == 0
    assert explained_variance(torch.tensor([[3.0, 2, 1, 0]]), returns, mask) == pytest.approx(-3)
    assert explained_variance(torch.tensor([[1.5, 2, 2.5, 0]]), returns, mask) == pytest.approx(0.75)
    assert math.isnan(explained_variance(returns, torch.ones(1, 4), mask))
    assert math.isnan(explained_variance(returns, returns, torch.tensor([[1, 0, 0, 0]])))
