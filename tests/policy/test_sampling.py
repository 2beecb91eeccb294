import copy

import numpy as np
import pytest
import torch
from families import EOS, numbered_tokenizer, unpadded
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.nn.parallel import DistributedDataParallel

from grpo_from_scratch.distributed.randomness import completion_uniforms
from grpo_from_scratch.policy.loading import load_policy, new_tiny_policy, save_policy
from grpo_from_scratch.policy.logprobs import completion_logps
from grpo_from_scratch.policy.sampling import cut, draw, sample

pytestmark = pytest.mark.usefixtures("path")

PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [12], [13, 14, 15]]
# Distinct by more than rounding, so that the order in which tokens are cut is certain.
logit_rows = st.lists(st.integers(-48, 48), min_size=2, max_size=8, unique=True).map(lambda row: [x / 8 for x in row])


def slow_probabilities(logits, top_p=1.0, top_k=0):
    """Tokens are taken from the most probable down, for as long as both limits allow."""
    probs = np.exp(np.array(logits, dtype=np.float64) - max(logits))
    kept = sorted(range(len(probs)), key=lambda token: -probs[token])[: top_k or None]
    total, held, nucleus = sum(probs[token] for token in kept), 0.0, []
    for token in kept:
        if held < top_p:
            nucleus.append(token)
        held += probs[token] / total
    return np.array([probs[t] if t in nucleus else 0.0 for t in range(len(probs))]) / sum(probs[t] for t in nucleus)


def slow_sample(model, prompts, sizes, count, *, seed=0, temperature=1.0, top_p=1.0, top_k=0):
    """Every completion alone, everything recomputed for every token."""
    rows, row = [], 0
    for prompt, size in zip(prompts, sizes, strict=True):
        for _ in range(size):
            uniforms, tokens, logps = completion_uniforms(seed, 0, [row], count)[0], [], []
            for uniform in uniforms:
                logits = model(input_ids=torch.tensor([prompt + tokens]), use_cache=False).logits[0, -1]
                probs = slow_probabilities((logits / temperature).tolist(), top_p, top_k)
                tokens.append(int(np.flatnonzero(probs.cumsum() > uniform.item())[0]))
                logps.append(float(np.log(probs[tokens[-1]])))
                if tokens[-1] == EOS:
                    break
            rows.append((tokens, logps))
            row += 1
    return rows


@pytest.mark.parametrize("options", [{}, {"temperature": 0.7, "top_k": 20}, {"temperature": 1.5, "top_p": 0.8}])
@torch.no_grad()
def test_sample_equals_slow_sample(model, options):
    sizes = [2, 1, 4]
    rollout = sample(model, numbered_tokenizer(), PROMPTS, group_size=sizes, max_new_tokens=9, **options)
    expected = slow_sample(model, PROMPTS, sizes, 9, **options)
    owners = [PROMPTS[prompt] for prompt in (0, 0, 1, 2, 2, 2, 2)]
    assert list(unpadded(rollout)) == list(zip(owners, (tokens for tokens, _ in expected), strict=True))
    for row, (tokens, logps) in enumerate(expected):
        torch.testing.assert_close(rollout.logps[row, : len(tokens)], torch.tensor(logps), atol=1e-5, rtol=0)
        assert (rollout.logps[row, len(tokens) :] == 0).all()
        assert rollout.finished[row] == (tokens[-1] == EOS)
    assert rollout.completion_mask.any(0).all()


@torch.no_grad()
def test_sample_drops_finished_rows(llama):
    """A model that ends often: rows that end at different steps are still each row's own."""
    model = copy.deepcopy(llama)
    model.lm_head.weight.data[EOS] = model.lm_head.weight.data[7] * 1.05
    rollout = sample(model, numbered_tokenizer(), PROMPTS, group_size=6, max_new_tokens=20)
    expected = slow_sample(model, PROMPTS, [6, 6, 6], 20)
    assert [completion for _, completion in unpadded(rollout)] == [tokens for tokens, _ in expected]
    assert len({len(tokens) for tokens, _ in expected}) > 3 and rollout.finished.any()


@torch.no_grad()
def test_sample_greedy_equals_generate(model):
    rollout = sample(model, numbered_tokenizer(), PROMPTS, group_size=1, max_new_tokens=8, temperature=0)
    for prompt, completion in unpadded(rollout):
        ids = torch.tensor([prompt])
        generated = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=8)
        assert completion == generated[0, len(prompt) :].tolist()
    assert (rollout.logps == 0).all()


def test_sample_logps_are_the_scores(model):
    """LP-02: at a temperature other than 1, what the sampler records is what scoring gives: the ratio is 1."""
    rollout = sample(model, numbered_tokenizer(), PROMPTS, group_size=4, max_new_tokens=9, temperature=0.6)
    torch.testing.assert_close(completion_logps(model, rollout)[0], rollout.logps, atol=1e-5, rtol=0)


def test_sample_independent_of_batch(model):
    """MP-07: a completion depends on its key alone, so ranks draw their share of what one process draws."""
    whole = sample(model, numbered_tokenizer(), PROMPTS, group_size=3, max_new_tokens=9, seed=4, step=2)
    last = sample(
        model, numbered_tokenizer(), PROMPTS[2:], group_size=3, max_new_tokens=9, seed=4, step=2, first_index=6
    )
    assert list(unpadded(last)) == list(unpadded(whole))[6:]
    other = sample(
        model, numbered_tokenizer(), PROMPTS[2:], group_size=3, max_new_tokens=9, seed=4, step=3, first_index=6
    )
    assert list(unpadded(other)) != list(unpadded(last))


def test_sample_one_of_everything(model):
    """DT-01: one prompt, one completion, one token."""
    rollout = sample(model, numbered_tokenizer(), PROMPTS[:1], group_size=1, max_new_tokens=1)
    assert rollout.completion_ids.shape == rollout.logps.shape == rollout.completion_mask.shape == (1, 1)
    assert rollout.finished.shape == (1,)


def test_sample_texts_and_examples():
    model, tokenizer = new_tiny_policy(["good morning to you"])
    rollout = sample(model, tokenizer, ["Good morning"], group_size=3, max_new_tokens=4, examples=["row"])
    assert rollout.prompt_ids.tolist() == [tokenizer("good morning")["input_ids"]]
    assert rollout.examples == ["row"]
    special = set(tokenizer.all_special_tokens)
    for row, text in enumerate(rollout.texts):
        kept = tokenizer.convert_ids_to_tokens(rollout.completion_ids[row][rollout.completion_mask[row]])
        assert text.split() == [token for token in kept if token not in special]


def test_sample_restores_mode(llama):
    """LP-03: dropout is off while sampling, and a model in training comes back in training."""
    model = copy.deepcopy(llama).train()
    seen = []
    model.model.layers[0].register_forward_pre_hook(lambda module, _: seen.append(module.training))
    sample(model, numbered_tokenizer(), PROMPTS, group_size=2, max_new_tokens=3)
    assert seen and not any(seen)
    assert all(module.training for module in model.modules())


def test_sample_pad_is_eos(llama):
    """LP-04: with pad == eos, a completion's own EOS stays in the mask."""
    rollout = sample(llama, numbered_tokenizer(pad=EOS), PROMPTS, group_size=16, max_new_tokens=24)
    ended = rollout.completion_ids[rollout.finished]
    assert len(ended) > 2
    lengths = rollout.completion_mask.sum(1)
    for row in range(len(rollout)):
        ids = rollout.completion_ids[row].tolist()
        assert lengths[row] == (ids.index(EOS) + 1 if EOS in ids else len(ids))


def test_sample_every_stop_token(llama):
    """PPO-01: chat models end with more tokens than the tokenizer's; a reply is finished by any of them."""
    model = copy.deepcopy(llama)
    model.generation_config.eos_token_id = [EOS, *range(30, 61)]
    rollout = sample(model, numbered_tokenizer(), PROMPTS, group_size=8, max_new_tokens=12)
    for row in range(len(rollout)):
        completion = rollout.completion_ids[row][rollout.completion_mask[row]]
        ends = (completion >= 30) | (completion == EOS)
        assert not ends[:-1].any() and ends[-1] == rollout.finished[row]


def test_sample_wrapped(llama, tokenizer, tmp_path):
    """MP-11: rollout, scoring and saving take a DistributedDataParallel model as they take the model itself."""
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        wrapped = DistributedDataParallel(copy.deepcopy(llama))
        rollout = sample(wrapped, tokenizer, PROMPTS, group_size=2, max_new_tokens=5)
        plain = sample(llama, tokenizer, PROMPTS, group_size=2, max_new_tokens=5)
        assert torch.equal(rollout.completion_ids, plain.completion_ids)
        alone = copy.deepcopy(llama)
        for model in (wrapped, alone):
            completion_logps(model, rollout)[0].sum().backward()
        for parameter, expected in zip(wrapped.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad, expected.grad)
        save_policy(wrapped, tokenizer, tmp_path / "saved")
        assert torch.equal(load_policy(tmp_path / "saved")[0].lm_head.weight, llama.lm_head.weight)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"group_size": 0}, "group_size must be at least 1"),
        ({"group_size": [1, 2]}, "2 sizes for 3 prompts"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"examples": ["one"]}, "1 examples for 3 prompts"),
        ({"prompts": []}, "no prompts"),
        ({"prompts": "one text"}, "a list of prompts"),
        ({"prompts": [[5], []]}, "prompt 1 has no tokens"),
    ],
)
def test_sample_refuses(llama, options, reason):
    arguments = {"prompts": PROMPTS, "group_size": 2, "max_new_tokens": 3} | options
    with pytest.raises(ValueError, match=reason):
        sample(llama, numbered_tokenizer(), **arguments)


@settings(deadline=None, max_examples=50)
@given(logit_rows, st.floats(0, 1, exclude_max=True), st.integers(0, 9), st.floats(0.05, 1))
def test_draw_property(logits, uniform, top_k, top_p):
    held = np.sort(slow_probabilities(logits, top_k=top_k))[::-1].cumsum()
    assume(np.abs(held - top_p).min() > 1e-5)  # whether the next token is still needed is not left to rounding
    expected = slow_probabilities(logits, top_p, top_k)
    token, logp = draw(torch.tensor([logits]), torch.tensor([uniform], dtype=torch.float64), top_p=top_p, top_k=top_k)
    assert logp.item() == pytest.approx(np.log(expected[token]), abs=1e-5)
    edges = np.concatenate([[0], expected.cumsum()])
    assert edges[token] - 1e-6 <= uniform <= edges[token + 1] + 1e-6


def test_draw_frequencies():
    """Evenly spread uniforms hit each token as often as it is probable."""
    logits = torch.randn(1, 40, generator=torch.Generator().manual_seed(0))
    count = 20000
    uniforms = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    tokens, _ = draw(logits.expand(count, -1), uniforms)
    assert (tokens.bincount(minlength=40) / count - logits.softmax(-1)[0]).abs().max() < 2 / count


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_draw_impossible_token(uniform):
    """A token without probability is never drawn, not even at the ends of the uniform."""
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 1.0, -torch.inf]])
    token, _ = draw(logits, torch.tensor([uniform], dtype=torch.float64))
    assert token.item() == (1 if uniform == 0 else 3)


def test_draw_impossible_last_token():
    """Nor does rounding carry the largest uniform past the last possible token, whatever the CDF sums up to."""
    logits = torch.randn(500, 20, generator=torch.Generator().manual_seed(0))
    logits[:, -1] = -torch.inf
    tokens, logps = draw(logits, torch.full((500,), 1 - 2**-53, dtype=torch.float64))
    assert (tokens == 18).all() and logps.isfinite().all()


def test_draw_tail():
    """A thousand tokens of probability 1e-9 behind a nearly certain one: in float32 the CDF would stand still there."""
    logits = torch.tensor([[0.0] + [np.log(1e-9)] * 1000])
    tokens = [draw(logits, torch.tensor([1 - (k + 0.5) * 1e-9], dtype=torch.float64))[0].item() for k in range(5)]
    assert tokens == [1000, 999, 998, 997, 996]


def test_cut_keeps_the_most_probable():
    """However small top_p is, one token stays; top_k comes before top_p."""
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0]])
    assert cut(logits, top_p=0.01).isfinite().tolist() == [[True, False, False, False]]
    assert cut(logits, top_k=2, top_p=0.74).isfinite().tolist() == [[True, True, False, False]]
    assert cut(logits, top_k=2, top_p=0.73).isfinite().tolist() == [[True, False, False, False]]  # 1/(1+1/e) = .731
    assert torch.equal(cut(logits), logits)
    assert torch.equal(cut(logits, top_k=9), logits)
