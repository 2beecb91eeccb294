from types import SimpleNamespace

import pytest
import torch
from families import model_of, random_rollout
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_from_scratch.policy.attention import Scoring
from grpo_from_scratch.policy.logprobs import score_completions
from grpo_from_scratch.policy.packing import BLOCK, Grid, PackedDecoder, PackedRollout, additive, attend, rank_in_group


def slow_attend(q, k, v, mask, how, prefix):
    """One query at a time: its keys are listed, scored, and their values averaged."""
    P, H, G, T, _ = q.shape
    R = H // k.shape[1]
    out = torch.zeros(P, k.shape[1], G, R, T, v.shape[-1], dtype=q.dtype)
    for p, h, g, t in torch.cartesian_prod(*map(torch.arange, (P, H, G, T))).tolist():
        keys, values = k[p, h // R, g], v[p, h // R, g]
        if prefix:
            keys = torch.cat([prefix[0][p, h // R], keys])
            values = torch.cat([prefix[1][p, h // R], values])
        scores = [how.scaling * (q[p, h, g, t] @ key) for key in keys]
        if how.softcap:
            scores = [how.softcap * torch.tanh(score / how.softcap) for score in scores]
        weights = [score.exp() * seen for score, seen in zip(scores, mask[p, t], strict=True)]
        total = sum(weights) + (how.sinks[h].exp() if how.sinks is not None else 0)
        out[p, h // R, g, h % R, t] = sum(weight / total * value for weight, value in zip(weights, values, strict=True))
    return out


@settings(deadline=None, max_examples=30)
@given(
    st.tuples(*[st.integers(1, 3)] * 5),
    st.sampled_from([0, 4]),
    st.sampled_from([None, 2.0]),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_attend_property(sizes, prompt_length, softcap, with_sinks, seed):
    """Fused, cascade, grouped queries, softcap, sinks, keys wider than values: all are the same sum."""
    P, K, R, G, T = sizes
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    q, k, v = randn(P, K * R, G, T, 6), randn(P, K, G, T, 6), randn(P, K, G, T, 5)
    prefix = (randn(P, K, prompt_length, 6), randn(P, K, prompt_length, 5)) if prompt_length else None
    seen = torch.rand(P, T, prompt_length + T, generator=generator) < 0.7
    seen[:, range(T), range(prompt_length, prompt_length + T)] = True  # a token sees itself
    how = Scoring(0.3, softcap, randn(K * R) if with_sinks else None)
    got = attend(q, k, v, additive(seen, q, k), how, prefix)
    torch.testing.assert_close(got, slow_attend(q, k, v, seen, how, prefix), atol=1e-6, rtol=1e-6)  # float32 weights


@settings(deadline=None, max_examples=30)
@given(st.tuples(*[st.integers(1, 3)] * 3), st.randoms())
def test_grid_property(shape, random):
    """What is spread lies in its cell, empty cells hold nothing of their own, and gathering brings it back."""
    P, G, T = shape
    cells = random.sample(range(P * G * T), random.randint(1, P * G * T))
    grid, heads = Grid(shape, torch.tensor(cells)), torch.randn(len(cells), 4, 5)
    spread = grid.spread(heads)
    assert spread.shape == (P, 4, G, T, 5)
    for token, cell in enumerate(cells):
        p, g, t = cell // (G * T), cell // T % G, cell % T
        assert torch.equal(spread[p, :, g, t], heads[token])
    empty = [cell for cell in range(P * G * T) if cell not in cells]
    for p, g, t in ((cell // (G * T), cell // T % G, cell % T) for cell in empty):
        assert torch.equal(spread[p, :, g, t], heads[0])
    back = grid.gather(spread.unflatten(1, (2, 2)).transpose(2, 3))  # (P, K, G, R, T, X)
    assert torch.equal(back, heads)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=20))
def test_rank_in_group_property(index):
    rank, group = rank_in_group(torch.tensor(index), 5)
    assert rank.tolist() == [index[:row].count(prompt) for row, prompt in enumerate(index)]
    assert group == max(index.count(prompt) for prompt in index)


def test_packed_rollout_by_hand():
    """Prompts, then every completion without its last token; each token predicts what follows it."""
    rollout = random_rollout([3, 1], [[3, 1], [2]])
    ids = [*rollout.prompt_ids[0].tolist(), rollout.prompt_ids[1, 2].item()]
    completions = rollout.completion_ids.tolist()
    packed = PackedRollout(rollout)
    assert packed.ids.tolist() == ids + completions[0][:2] + completions[2][:1]
    assert packed.positions.tolist() == [0, 1, 2, 0, 3, 4, 1]
    assert packed.keep.tolist() == [2, 3, 4, 5, 6]
    assert packed.source.tolist() == [[0, 2, 3], [0, 0, 0], [1, 4, 0]]  # 0 also behind the mask


def test_packed_rollout_any_row_order():
    """Rows of a group need not stand together, and a prompt may have no row at all."""
    model, rollout = model_of("llama"), random_rollout([4, 2, 5], [[3, 5, 2], [4], [6, 1]])
    order = [5, 0, 3, 2, 4, 1]
    expected = score_completions(model, rollout).logps[order]
    shuffled = rollout.select(order)
    assert not torch.equal(shuffled.prompt_index, shuffled.prompt_index.sort().values)
    torch.testing.assert_close(score_completions(model, shuffled).logps, expected, atol=1e-5, rtol=0)
    rollout.prompt_index[3] = 0  # prompt 1 is left alone
    assert score_completions(model, rollout).logps.isfinite().all()


def tokens_computed(model, call) -> int:
    """How many tokens the model's first layer sees."""
    seen = []
    hook = model.model.layers[0].register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[:2].numel()))
    call()
    hook.remove()
    return sum(seen)


def test_scoring_computes_real_tokens_only(llama):
    rollout = random_rollout([7, 3], [[5, 1, 9], [4]])
    score_completions(llama, rollout)
    assert tokens_computed(llama, lambda: score_completions(llama, rollout)) == (7 + 3) + (4 + 0 + 8) + 3


def test_scoring_takes_logits_only_where_a_token_is_predicted(llama):
    """Of 15 tokens that go in, the last ones of both prompts and the five of completions predict something."""
    rollout = random_rollout([7, 3], [[3, 1], [4]])
    score_completions(llama, rollout)
    seen = []
    hook = llama.lm_head.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[:2].numel()))
    score_completions(llama, rollout)
    hook.remove()
    assert seen == [2 + 2 + 0 + 3]


def test_decoder_computes_live_rows_only(llama):
    rollout = random_rollout([7, 3], [[1, 1, 1], [1]])
    decoder = PackedDecoder(llama, rollout.prompt_ids, rollout.prompt_mask, rollout.prompt_index, 9)
    assert tokens_computed(llama, decoder.prefill) == 7 + 3
    assert tokens_computed(llama, lambda: decoder.step(torch.tensor([5, 6, 7, 8]))) == 4
    decoder.keep(torch.tensor([1, 3]))
    assert tokens_computed(llama, lambda: decoder.step(torch.tensor([5, 6]))) == 2
    assert decoder.own[0][0].shape[2] == 1  # the grid holds the live rows: at most one of each prompt


@torch.no_grad()
@pytest.mark.parametrize("steps", [BLOCK - 1, BLOCK, BLOCK + 1])
def test_decoder_across_blocks(steps):
    """Own keys are read in blocks: at their edges too, decoding gives what one forward pass gives."""
    model = model_of("llama")
    tokens = random_rollout([3], [[steps]]).completion_ids[0]
    prompt = SimpleNamespace(ids=torch.tensor([[5, 6, 7]]), mask=torch.ones(1, 3, dtype=torch.bool))
    decoder = PackedDecoder(model, prompt.ids, prompt.mask, torch.tensor([0]), steps)
    decoder.prefill()
    logits = [decoder.step(token[None]) for token in tokens]
    expected = model(input_ids=torch.cat([prompt.ids[0], tokens])[None]).logits[0, 3:]
    torch.testing.assert_close(torch.cat(logits), expected, atol=1e-5, rtol=1e-5)
