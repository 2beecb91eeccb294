"""Losses of tokens, and how tokens are averaged."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from grpo_from_scratch.objective.surrogates import (
    aggregate,
    cispo_surrogate,
    clipped_surrogate,
    importance_ratio,
    loss_denominator,
    reinforce_surrogate,
    sapo_surrogate,
)

ROWS, WIDTH = 3, 4


def batch(seed, spread=0.5):
    """logps, old_logps, advantages (B, T), mask with at least one real token a row: float64."""
    generator = torch.Generator().manual_seed(seed)
    logps = -torch.rand(ROWS, WIDTH, generator=generator, dtype=torch.float64) - 0.1
    old_logps = logps + spread * torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64)
    advantages = torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64)
    lengths = torch.randint(1, WIDTH + 1, (ROWS, 1), generator=generator)
    return logps, old_logps, advantages, torch.arange(WIDTH) < lengths


def slow_ratio(logps, old_logps, mask, level):
    """{(row, t): ratio} over real tokens."""
    ratios = {}
    for row in range(ROWS):
        real = [t for t in range(WIDTH) if mask[row, t]]
        logs = [float(logps[row, t] - old_logps[row, t]) for t in real]
        for t, log in zip(real, logs, strict=True):
            ratios[row, t] = math.exp(sum(logs) / len(logs) if level == "sequence" else log)
    return ratios


def clip(x, low, high):
    return min(max(x, low), high)


# Each surrogate, and the same thing in plain numbers: (ratio, advantage, log-prob) -> loss.
SURROGATES = {
    "clip": (
        lambda lp, old, a, m: clipped_surrogate(lp, old, a, m, clip_low=0.1, clip_high=0.3),
        lambda r, a, lp: -min(r * a, clip(r, 0.9, 1.3) * a),
    ),
    "clip_sequence": (
        lambda lp, old, a, m: clipped_surrogate(lp, old, a, m, clip_low=0.1, clip_high=0.3, level="sequence"),
        lambda r, a, lp: -min(r * a, clip(r, 0.9, 1.3) * a),
    ),
    "cispo": (
        lambda lp, old, a, m: cispo_surrogate(lp, old, a, m, clip_high=0.2),
        lambda r, a, lp: -min(r, 1.2) * a * lp,
    ),
    "sapo": (
        lambda lp, old, a, m: sapo_surrogate(lp, old, a, m, tau_pos=1.0, tau_neg=2.0),
        lambda r, a, lp: -a * (4 / (1.0 if a > 0 else 2.0)) / (1 + math.exp(-(1.0 if a > 0 else 2.0) * (r - 1))),
    ),
    "reinforce": (
        lambda lp, old, a, m: reinforce_surrogate(lp, a, m),
        lambda r, a, lp: -a * lp,
    ),
}


@pytest.mark.parametrize("name", SURROGATES)
@given(st.integers(0, 10_000))
@settings(deadline=None, max_examples=25)
def test_surrogate_twin(name, seed):
    fast, slow = SURROGATES[name]
    logps, old_logps, advantages, mask = batch(seed)
    ratios = slow_ratio(logps, old_logps, mask, "sequence" if name == "clip_sequence" else "token")
    expected = torch.zeros(ROWS, WIDTH, dtype=torch.float64)
    for (row, t), ratio in ratios.items():
        expected[row, t] = slow(ratio, float(advantages[row, t]), float(logps[row, t]))
    torch.testing.assert_close(fast(logps, old_logps, advantages, mask), expected)


@pytest.mark.parametrize("name", [name for name in SURROGATES if name != "cispo"])
@given(st.integers(0, 10_000))
@settings(deadline=None, max_examples=25)
def test_surrogate_gradient(name, seed):
    """Finite differences in float64; a random point is never within 1e-6 of a kink."""
    logps, old_logps, advantages, mask = batch(seed)
    loss = SURROGATES[name][0]
    assert gradcheck(lambda lp: loss(lp, old_logps, advantages, mask), logps.requires_grad_())


@given(st.integers(0, 10_000))
@settings(deadline=None, max_examples=25)
def test_cispo_gradient_holds_the_weight_still(seed):
    """Finite differences cannot see a stop-gradient: the weight is computed once and held."""
    logps, old_logps, advantages, mask = batch(seed)
    weight = (logps - old_logps).exp().clamp(max=5.0)

    def held(lp):
        return torch.where(mask, -weight * advantages * lp, 0.0).sum()

    step, slopes = 1e-6, torch.zeros(ROWS, WIDTH, dtype=torch.float64)
    for row in range(ROWS):
        for t in range(WIDTH):
            moved = torch.zeros(ROWS, WIDTH, dtype=torch.float64)
            moved[row, t] = step
            slopes[row, t] = (held(logps + moved) - held(logps - moved)) / (2 * step)
    logps.requires_grad_()
    cispo_surrogate(logps, old_logps, advantages, mask).sum().backward()
    torch.testing.assert_close(logps.grad, slopes, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", SURROGATES)
def test_surrogate_gradients_agree_on_policy(name):
    """At ratio 1 every surrogate has the plain policy gradient −A, for a sequence ratio spread over its tokens."""
    logps, _, advantages, mask = batch(0)
    advantages = advantages[:, :1].expand(ROWS, WIDTH)  # one for each completion
    logps.requires_grad_()
    SURROGATES[name][0](logps, logps.detach(), advantages, mask).sum().backward()
    torch.testing.assert_close(logps.grad, torch.where(mask, -advantages, 0.0))


@pytest.mark.parametrize("name", SURROGATES)
def test_surrogate_takes_one_advantage_for_each_completion(name):
    logps, old_logps, advantages, mask = batch(1)
    loss = SURROGATES[name][0]
    spread_out = loss(logps, old_logps, advantages[:, :1].expand(ROWS, WIDTH), mask)
    assert torch.equal(loss(logps, old_logps, advantages[:, 0], mask), spread_out)


@pytest.mark.parametrize("name", SURROGATES)
@pytest.mark.parametrize("garbage", [math.nan, math.inf, -1e30])
def test_surrogate_ignores_what_the_mask_hides(name, garbage):
    """LP-12: value and gradient, for garbage in each of the inputs."""
    logps, old_logps, advantages, mask = batch(2)
    clean, dirty = logps.clone().requires_grad_(), logps.masked_fill(~mask, garbage).requires_grad_()
    loss = SURROGATES[name][0]
    expected = loss(clean, old_logps, advantages, mask)
    found = loss(dirty, old_logps.masked_fill(~mask, garbage), advantages.masked_fill(~mask, garbage), mask.long())
    expected.sum().backward()
    found.sum().backward()
    assert torch.equal(found, expected) and torch.equal(dirty.grad, clean.grad)
    assert (found[~mask] == 0).all()


@pytest.mark.parametrize("name", SURROGATES)
def test_surrogate_sends_no_gradient_into_advantages(name):
    logps, old_logps, advantages, mask = batch(5)
    loss = SURROGATES[name][0](logps.requires_grad_(), old_logps.requires_grad_(), advantages.requires_grad_(), mask)
    loss.sum().backward()
    assert advantages.grad is None and old_logps.grad is None and logps.grad is not None


def test_clipped_surrogate_branch_table():
    """LOSS-09."""
    ratios = torch.tensor([[0.5, 0.9, 1.1, 1.5, 10.0]])
    for advantage, losses, slopes in (
        (1.0, [-0.5, -0.9, -1.1, -1.2, -1.2], [1, 1, 1, 0, 0]),
        (-1.0, [0.8, 0.9, 1.1, 1.5, 10.0], [0, 1, 1, 1, 1]),
    ):
        logps = ratios.log().requires_grad_()
        loss = clipped_surrogate(logps, torch.zeros(1, 5), torch.tensor([advantage]), torch.ones(1, 5))
        loss.sum().backward()
        torch.testing.assert_close(loss, torch.tensor([losses]))
        assert ((logps.grad != 0).long()[0]).tolist() == slopes


def test_cispo_keeps_a_gradient_where_clip_has_none():
    logps = torch.tensor([[math.log(10.0)]], requires_grad=True)
    cispo_surrogate(logps, torch.zeros(1, 1), torch.tensor([1.0]), torch.ones(1, 1)).sum().backward()
    assert logps.grad == -5  # the cap, 1 + 4
    logps = torch.tensor([[math.log(0.01)]], requires_grad=True)
    cispo_surrogate(logps, torch.zeros(1, 1), torch.tensor([1.0]), torch.ones(1, 1)).sum().backward()
    assert float(logps.grad) == pytest.approx(-0.01)  # no lower bound


def test_importance_ratio_levels():
    logps, old = torch.tensor([[0.0, -1, -2, 9]]), torch.tensor([[-1.0, -1, -1, 0]])
    mask = torch.tensor([[1, 1, 1, 0]])
    torch.testing.assert_close(importance_ratio(logps, old, mask), torch.tensor([[math.e, 1, 1 / math.e, 1]]))
    torch.testing.assert_close(importance_ratio(logps, old, mask, "sequence"), torch.ones(1, 4))
    with pytest.raises(ValueError, match="level"):
        importance_ratio(logps, old, mask, "word")


@pytest.mark.parametrize("name", SURROGATES)
@pytest.mark.parametrize("gap", [100.0, -100.0])
def test_surrogate_gradient_is_finite_at_extreme_ratios(name, gap):
    """LOSS-05 for ratios: no 0·inf in the backward pass."""
    logps = torch.full((1, 2), gap, requires_grad=True)
    for advantage in (1.0, -1.0):
        SURROGATES[name][0](logps, torch.zeros(1, 2), torch.tensor([advantage]), torch.ones(1, 2)).sum().backward()
    assert logps.grad.isfinite().all()


HOWS = ("sequence", "token", "constant")


@pytest.mark.parametrize("how", HOWS)
@given(st.lists(st.integers(0, WIDTH), min_size=1, max_size=5), st.integers(0, 10_000))
@settings(deadline=None, max_examples=30)
def test_aggregate_twin(how, lengths, seed):
    per_token = torch.randn(len(lengths), WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    mask = torch.arange(WIDTH) < torch.tensor(lengths)[:, None]
    rows = [per_token[i, :n].tolist() for i, n in enumerate(lengths) if n]
    slow = {
        "sequence": lambda: sum(sum(row) / len(row) for row in rows) / len(rows),
        "token": lambda: sum(sum(row) for row in rows) / sum(len(row) for row in rows),
        "constant": lambda: sum(sum(row) for row in rows) / (len(rows) * 7),
    }[how]
    found = aggregate(per_token.masked_fill(~mask, math.nan), mask, how, max_new_tokens=7)
    assert float(found) == pytest.approx(slow() if rows else 0.0, abs=1e-12)


@pytest.mark.parametrize("how", HOWS)
def test_aggregate_gradient(how):
    per_token, _, _, mask = batch(3)
    mask[1] = False  # a row without reward
    assert gradcheck(lambda x: aggregate(x, mask, how, max_new_tokens=6), per_token.requires_grad_())


@pytest.mark.parametrize("how, expected", [("sequence", 0.0), ("token", -0.6), ("constant", -0.1875)])
def test_aggregate_names(how, expected):
    """LOSS-02: lengths 4 and 1, advantages +1 and −1, ratios 1."""
    mask = torch.arange(4) < torch.tensor([[4], [1]])
    loss = clipped_surrogate(torch.zeros(2, 4), torch.zeros(2, 4), torch.tensor([1.0, -1.0]), mask)
    assert float(aggregate(loss, mask, how, max_new_tokens=8)) == pytest.approx(expected)


@pytest.mark.parametrize(
    "how, weights", [("sequence", (0.25, 0.025)), ("token", (1 / 22, 1 / 22)), ("constant", (1 / 50, 1 / 50))]
)
def test_aggregate_length_bias(how, weights):
    """LOSS-13: wrong answers of 2 and 20 tokens; only 'sequence' lets the long one off."""
    mask = torch.arange(20) < torch.tensor([[2], [20]])
    per_token = torch.ones(2, 20, requires_grad=True)
    aggregate(per_token, mask, how, max_new_tokens=25).backward()
    assert (float(per_token.grad[0, 0]), float(per_token.grad[1, 0])) == pytest.approx(weights)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("parts", [[[0], [1], [2]], [[0, 1], [2]], [[0, 1, 2]]])
def test_aggregate_in_parts_equals_the_whole(how, parts):
    """LOSS-08, MP-08: with the summed denominator the gradients of micro-batches add up to that of the batch."""
    per_token, _, _, mask = batch(4)
    mask[1] = False
    whole = per_token.clone().requires_grad_()
    aggregate(whole, mask, how, max_new_tokens=6).backward()
    total = sum(loss_denominator(mask[rows], how, max_new_tokens=6) for rows in parts)
    split = per_token.clone().requires_grad_()
    for rows in parts:
        aggregate(split[rows], mask[rows], how, denominator=total).backward()
    torch.testing.assert_close(split.grad, whole.grad)


def test_aggregate_is_not_a_mean_of_means():
    """LOSS-08: token losses [1, 1, 1, 1] and [5] have the mean 1.8."""
    first, second = torch.ones(1, 4), torch.tensor([[5.0, 0, 0, 0]])
    masks = torch.ones(1, 4), torch.tensor([[1, 0, 0, 0]])
    parts = [aggregate(x, mask, "token", denominator=5) for x, mask in zip((first, second), masks, strict=True)]
    assert float(sum(parts)) == pytest.approx(1.8)


def test_aggregate_takes_a_denominator_below_one():
    """One sequence on two ranks, whose gradients DDP averages: each divides by half a sequence."""
    assert aggregate(torch.tensor([[3.0]]), torch.ones(1, 1), "sequence", denominator=0.5) == 6


def test_aggregate_kl_does_not_depend_on_padding():
    """LOSS-07."""
    for padding in (2, 4):
        kl, mask = torch.tensor([[0.2, 0.4] + [0.0] * padding]), torch.tensor([[1, 1] + [0] * padding])
        assert float(aggregate(kl, mask, "token")) == pytest.approx(0.3)


def test_aggregate_masks_without_multiplying():
    """LP-12: values [1, NaN] under the mask [1, 0]."""
    per_token = torch.tensor([[1.0, math.nan]], requires_grad=True)
    total = aggregate(per_token, torch.tensor([[1, 0]]), "token")
    total.backward()
    assert total == 1 and per_token.grad.tolist() == [[1, 0]]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("denominator", [None, 0, torch.tensor(0.0)])
def test_aggregate_nothing_to_train_on(how, denominator):
    """LP-05: the loss is 0, finite, and backward works."""
    per_token = torch.full((2, 3), math.nan, requires_grad=True)
    loss = aggregate(per_token, torch.zeros(2, 3), how, max_new_tokens=3, denominator=denominator)
    loss.backward()
    assert loss == 0 and per_token.grad.abs().sum() == 0


def test_aggregate_refuses():
    with pytest.raises(ValueError, match="how must be one of"):
        aggregate(torch.ones(1, 1), torch.ones(1, 1), "mean", denominator=3)
    with pytest.raises(ValueError, match="how must be one of"):
        loss_denominator(torch.ones(1, 1), "mean")
    with pytest.raises(ValueError, match="pass max_new_tokens"):
        aggregate(torch.ones(1, 1), torch.ones(1, 1), "constant")
