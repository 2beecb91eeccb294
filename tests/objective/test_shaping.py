"""Rewards before anyone is compared."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_from_scratch.objective.shaping import check_rewards, overlong_penalty, token_rewards


def test_check_rewards_none_and_nan_are_missing():
    """ADV-09: no score is not the score 0."""
    rewards = check_rewards([1, None, 0.5, math.nan])
    assert rewards.dtype == torch.float32
    assert rewards.isnan().tolist() == [False, True, False, True]
    assert rewards[[0, 2]].tolist() == [1.0, 0.5]


@pytest.mark.parametrize("bad", [math.inf, -math.inf])
def test_check_rewards_refuses_inf_naming_rows(bad):
    """ADV-09, with inf in place of None."""
    with pytest.raises(ValueError, match=r"rows \[1, 3\].*None"):
        check_rewards([0.0, bad, None, bad])


@pytest.mark.parametrize(
    "given_dtype, expected",
    [(torch.float16, torch.float32), (torch.int64, torch.float32), (torch.float64, torch.float64)],
)
def test_check_rewards_precision(given_dtype, expected):
    assert check_rewards(torch.ones(2, dtype=given_dtype)).dtype == expected


def test_check_rewards_cuts_the_graph():
    assert not check_rewards(torch.ones(2, requires_grad=True)).requires_grad


def test_check_rewards_refuses_a_table():
    with pytest.raises(ValueError, match=r"shape \(B,\).*\(2, 3\)"):
        check_rewards(torch.zeros(2, 3))


def test_overlong_penalty_dapo_values():
    """The paper's own lengths: 20480 tokens at most, of which the last 4096 are punished."""
    lengths = torch.tensor([1, 16384, 18432, 20480, 20481])
    assert overlong_penalty(lengths, max_new_tokens=20480, buffer=4096).tolist() == [0.0, 0.0, -0.5, -1.0, -1.0]


@pytest.mark.parametrize("buffer", [0, 11])
def test_overlong_penalty_refuses_buffer(buffer):
    with pytest.raises(ValueError, match=rf"buffer.*1\.\.10.*{buffer}"):
        overlong_penalty(torch.tensor([3]), max_new_tokens=10, buffer=buffer)


@given(st.integers(1, 40), st.data())
@settings(deadline=None, max_examples=30)
def test_overlong_penalty_twin(longest, data):
    buffer = data.draw(st.integers(1, longest))
    lengths = data.draw(st.lists(st.integers(0, longest + 5), min_size=1, max_size=6))

    def slow(length):
        if length <= longest - buffer:
            return 0.0
        return ((longest - buffer) - length) / buffer if length <= longest else -1.0

    found = overlong_penalty(torch.tensor(lengths), max_new_tokens=longest, buffer=buffer)
    torch.testing.assert_close(found, torch.tensor([slow(length) for length in lengths]))


def test_token_rewards_score_on_last_real_token():
    """PPO-01: [t, t, EOS, PAD, PAD], and a completion without EOS that fills the row."""
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    assert token_rewards(torch.tensor([2.0, 3.0]), mask).tolist() == [[0, 0, 2, 0, 0], [0, 0, 0, 0, 3]]


def test_token_rewards_kl_in_reward():
    """PPO-06: the KL is in the reward when asked for, and nowhere else."""
    logps, ref_logps = torch.tensor([[0.2, 0.3, -0.1]]) - 1, torch.full((1, 3), -1.0)
    mask, score = torch.ones(1, 3), torch.tensor([2.0])
    with_kl = token_rewards(score, mask, logps=logps, ref_logps=ref_logps, kl_coef=0.1)
    torch.testing.assert_close(with_kl, torch.tensor([[-0.02, -0.03, 2.01]]))
    assert token_rewards(score, mask, logps=logps, ref_logps=ref_logps).tolist() == [[0, 0, 2]]


def test_token_rewards_ignores_what_the_mask_hides():
    """LP-12: NaN behind the mask."""
    nan = math.nan
    logps, ref_logps = torch.tensor([[-1.0, nan]]), torch.tensor([[-2.0, nan]])
    found = token_rewards(torch.tensor([1.0]), torch.tensor([[1, 0]]), logps=logps, ref_logps=ref_logps, kl_coef=0.5)
    assert found.tolist() == [[0.5, 0.0]]


def test_token_rewards_cuts_the_graph():
    """The penalty is a number to learn from, not a way for gradients."""
    logps = torch.zeros(1, 2, requires_grad=True)
    found = token_rewards(torch.tensor([1.0]), torch.ones(1, 2), logps=logps, ref_logps=logps - 1, kl_coef=0.1)
    assert not found.requires_grad


def test_token_rewards_missing_score():
    """ADV-09: a row without score has no reward anywhere, and a mask that says otherwise is refused."""
    scores = torch.tensor([math.nan, 1.0])
    assert token_rewards(scores, torch.tensor([[0, 0], [1, 1]])).tolist() == [[0, 0], [0, 1]]
    with pytest.raises(ValueError, match=r"rows \[0\] have no score"):
        token_rewards(scores, torch.ones(2, 2))


def test_token_rewards_refuses_kl_without_reference():
    with pytest.raises(ValueError, match="needs logps and ref_logps"):
        token_rewards(torch.tensor([1.0]), torch.ones(1, 2), logps=torch.zeros(1, 2), kl_coef=0.1)


@given(st.integers(0, 10_000))
@settings(deadline=None, max_examples=30)
def test_token_rewards_twin(seed):
    generator = torch.Generator().manual_seed(seed)
    rows, width = 4, 5
    mask = torch.rand(rows, width, generator=generator) < 0.6
    logps, ref_logps = torch.randn(2, rows, width, generator=generator, dtype=torch.float64)
    scores = torch.randn(rows, generator=generator, dtype=torch.float64)
    expected = torch.zeros(rows, width, dtype=torch.float64)
    for row in range(rows):
        real = [t for t in range(width) if mask[row, t]]
        for t in real:
            expected[row, t] = -0.3 * (logps[row, t] - ref_logps[row, t])
        if real:
            expected[row, real[-1]] += scores[row]
    found = token_rewards(scores, mask, logps=logps, ref_logps=ref_logps, kl_coef=0.3)
    torch.testing.assert_close(found, expected)
