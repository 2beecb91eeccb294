import copy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from families import model_of, plain_scores, random_rollout, unpadded
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from grpo_from_scratch.policy.logprobs import (
    completion_logps,
    hidden_states,
    score_completions,
    token_entropy,
)
from grpo_from_scratch.policy.modules import evaluating
from grpo_from_scratch.policy.sampling import sample
from grpo_from_scratch.policy.shared_prefix import shared_prefix, supported

pytestmark = pytest.mark.usefixtures("path")


class Bigram(nn.Module):
    """A model whose logits depend on the current token only; ``keeps``: whether it obeys logits_to_keep."""

    def __init__(self, table: torch.Tensor, *, keeps: bool = True):
        super().__init__()
        self.table, self.keeps = nn.Parameter(table), keeps

    def get_output_embeddings(self):
        return None

    def forward(self, input_ids, attention_mask, use_cache, logits_to_keep=0):
        logits = self.table[input_ids]
        return SimpleNamespace(logits=logits[:, -logits_to_keep:] if self.keeps else logits)


def padded_logps(model, rollout):
    """A toy is no Hugging Face model with an attention to pack."""
    with shared_prefix(False):
        return completion_logps(model, rollout)


@pytest.fixture(scope="module")
def ragged():
    return random_rollout([7, 3, 1], [[5, 1, 9], [4], [2, 8]])


def test_score_completions_equals_plain_forward(model, ragged):
    """LP-01, LP-07: whatever the padding, what a row alone without padding gives."""
    got, expected = score_completions(model, ragged, hidden=True), plain_scores(model, ragged)
    torch.testing.assert_close(got.logps, expected.logps, atol=1e-5, rtol=0)
    torch.testing.assert_close(got.entropy, expected.entropy, atol=1e-5, rtol=0)
    torch.testing.assert_close(got.hidden, expected.hidden, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(hidden_states(model, ragged), expected.hidden, atol=1e-5, rtol=1e-5)


def test_score_completions_teeth():
    """LP-01: the same batch without position ids is far off, so the comparison above can fail."""
    model, rollout = model_of("gpt2"), random_rollout([7, 3], [[4], [4]])
    rows = torch.cat([rollout.prompt_ids, rollout.completion_ids], 1)
    mask = torch.cat([rollout.prompt_mask, rollout.completion_mask], 1)
    logits = model(input_ids=rows, attention_mask=mask.long()).logits[:, 6:-1]
    naive = logits.log_softmax(-1).gather(-1, rollout.completion_ids[..., None])[..., 0]
    assert (naive - plain_scores(model, rollout).logps)[1].abs().max() > 0.05


def test_score_completions_gradient_equals_plain_forward(model, ragged):
    weights = torch.linspace(-1, 1, ragged.completion_ids.numel()).view(ragged.completion_ids.shape)
    gradients = []
    for score in (score_completions, plain_scores):
        twin = copy.deepcopy(model)
        (score(twin, ragged).logps * weights).sum().backward()
        gradients.append({name: p.grad for name, p in twin.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], atol=1e-5, rtol=1e-4, msg=name)


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.tuples(st.integers(1, 6), st.lists(st.integers(1, 6), min_size=1, max_size=3)), min_size=1, max_size=3)
)
def test_completion_logps_property(groups):
    model = model_of("gpt2")
    rollout = random_rollout([length for length, _ in groups], [lengths for _, lengths in groups], temperature=0.7)
    with torch.no_grad():
        expected = plain_scores(model, rollout)
        logps, entropy = completion_logps(model, rollout)
    torch.testing.assert_close(logps, expected.logps, atol=1e-5, rtol=0)
    torch.testing.assert_close(entropy, expected.entropy, atol=1e-5, rtol=0)


@pytest.mark.parametrize("keeps", [True, False])
def test_completion_logps_bigram(keeps):
    """LP-07: exactly [log P(2|1), log P(3|2)], with and without logits_to_keep."""
    table = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    rollout = replace(
        random_rollout([2], [[2]]), prompt_ids=torch.tensor([[0, 1]]), completion_ids=torch.tensor([[2, 3]])
    )
    logps, _ = padded_logps(Bigram(table, keeps=keeps), rollout)
    expected = table.log_softmax(-1)
    torch.testing.assert_close(logps, torch.stack([expected[1, 2], expected[2, 3]])[None], atol=1e-6, rtol=0)


def test_completion_logps_temperature():
    """LP-02: log-probs of logits / temperature."""
    rollout = replace(
        random_rollout([1], [[1, 1, 1]], temperature=0.5),
        prompt_ids=torch.tensor([[0]]),
        completion_ids=torch.tensor([[0], [1], [2]]),
    )
    logps, _ = padded_logps(Bigram(torch.tensor([[2.0, 1.0, 0.0]])), rollout)
    torch.testing.assert_close(logps[:, 0], torch.tensor([-0.1429, -2.1429, -4.1429]), atol=5e-5, rtol=0)


def test_completion_logps_greedy_refused():
    with pytest.raises(ValueError, match="temperature 0"):
        completion_logps(model_of("llama"), random_rollout([2], [[2]], temperature=0.0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_completion_logps_half_precision(dtype):
    """LP-09: float32 log-softmax of 16-bit logits over a large vocabulary."""
    stored = (3 * torch.randn(1, 50257, generator=torch.Generator().manual_seed(0))).to(dtype)
    rollout = random_rollout([1], [[1]])
    rollout = replace(rollout, prompt_ids=torch.zeros_like(rollout.prompt_ids))
    logps, entropy = padded_logps(Bigram(stored), rollout)
    expected = stored.float().log_softmax(-1)[0, rollout.completion_ids[0, 0]]
    assert logps.dtype == entropy.dtype == torch.float32
    assert (logps[0, 0] - expected).abs() < 1e-5


@pytest.mark.parametrize(
    ("logits", "expected"),
    [(torch.tensor([0.0, -torch.inf, 0.0]), 0.693147), (torch.tensor([60000.0, -60000.0, 0.0]).half(), 0.0)],
)
def test_token_entropy_impossible_token(logits, expected):
    """LP-10: finite, value and gradient."""
    logits = logits.requires_grad_()
    entropy = token_entropy(logits.float().log_softmax(-1))
    assert entropy.item() == pytest.approx(expected, abs=1e-6)
    entropy.backward()
    assert logits.grad.isfinite().all()


def test_score_completions_garbage_behind_mask(model, ragged):
    """LP-12: ids that no vocabulary has, behind the mask, change nothing; what comes back is 0 there."""
    mask = ragged.completion_mask
    garbage = replace(
        ragged,
        completion_ids=torch.where(mask, ragged.completion_ids, 10**6),
        prompt_ids=torch.where(ragged.prompt_mask, ragged.prompt_ids, -100),
    )
    clean, dirty = score_completions(model, ragged, hidden=True), score_completions(model, garbage, hidden=True)
    for name in ("logps", "entropy", "hidden"):
        assert torch.equal(getattr(clean, name), getattr(dirty, name))
        assert (getattr(dirty, name)[~mask] == 0).all()


def test_score_completions_nan_behind_mask():
    """LP-12: a NaN that a padded position computes, or an impossible token, reaches neither a value nor a gradient."""
    table = torch.zeros(4, 4)
    table[0] = torch.nan  # behind the mask, tokens read as id 0,
    table[:, 0] = -torch.inf  # which is impossible
    rollout = random_rollout([1, 1], [[3], [1]])
    rollout = replace(
        rollout, prompt_ids=torch.ones(2, 1, dtype=torch.long), completion_ids=torch.ones(2, 3, dtype=torch.long)
    )
    bigram = Bigram(table)
    logps, _ = padded_logps(bigram, rollout)
    logps.sum().backward()
    torch.testing.assert_close(logps, torch.where(rollout.completion_mask, -torch.tensor(3.0).log(), 0))
    assert bigram.table.grad[1:].isfinite().all()


def test_score_completions_one_row_one_token(model):
    """DT-01: shapes keep their dimensions of size one, and a row alone is the row in a batch."""
    both = random_rollout([3, 5], [[1], [1]])
    alone, batch = score_completions(model, both.select([0]), hidden=True), score_completions(model, both, hidden=True)
    assert alone.logps.shape == alone.entropy.shape == (1, 1)
    assert alone.hidden.shape[:2] == (1, 1)
    torch.testing.assert_close(alone.logps[0], batch.logps[0], atol=1e-5, rtol=0)


@pytest.fixture
def dropped_out():
    """GPT-2 with dropout 0.1, in training mode."""
    model = copy.deepcopy(model_of("gpt2"))
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.1
    return model.train()


def test_completion_logps_dropout_off(dropped_out, tokenizer, ragged):
    """LP-03: in training mode too, the ratio on-policy is 1 and the KL to a copy is 0; the mode is left as it was."""
    rollout = sample(dropped_out, tokenizer, [[5, 6, 7], [8]], group_size=3, max_new_tokens=6)
    reference = copy.deepcopy(dropped_out)
    logps, ref_logps = completion_logps(dropped_out, rollout)[0], completion_logps(reference, rollout)[0]
    torch.testing.assert_close(logps, rollout.logps, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(logps, ref_logps, atol=1e-6, rtol=0)
    assert all(module.training for module in dropped_out.modules())


def test_evaluating_mixed_modes(dropped_out):
    dropped_out.transformer.h[0].eval()
    before = [module.training for module in dropped_out.modules()]
    with evaluating(dropped_out):
        assert not any(module.training for module in dropped_out.modules())
    assert [module.training for module in dropped_out.modules()] == before


@pytest.mark.parametrize("reentrant", [True, False])
def test_completion_logps_gradient_checkpointing(dropped_out, ragged, reentrant):
    """LP-03 under checkpointing: layers are recomputed, without dropout in the recomputation either."""
    plain = copy.deepcopy(dropped_out)
    dropped_out.activation_checkpointing_enable({"use_reentrant": reentrant})
    dropped_out.enable_input_require_grads()
    assert supported(dropped_out)  # found out by forward passes of its own, which are not to be counted
    forwards = []
    dropped_out.transformer.h[0].mlp.register_forward_pre_hook(lambda *_: forwards.append(1))
    for model in (dropped_out, plain):
        completion_logps(model, ragged)[0].sum().backward()
    assert len(forwards) == 2  # forward, then again in backward
    for (name, got), (_, expected) in zip(dropped_out.named_parameters(), plain.named_parameters(), strict=True):
        torch.testing.assert_close(got.grad, expected.grad, atol=1e-6, rtol=1e-5, msg=name)


def test_score_completions_select_is_a_slice(llama, ragged):
    """Micro-batches see what the whole batch sees."""
    logps, _ = completion_logps(llama, ragged)
    for rows in ([4], [0, 2], [5, 1, 3]):
        part, _ = completion_logps(llama, ragged.select(rows))
        torch.testing.assert_close(part, logps[rows, : part.shape[1]], atol=1e-5, rtol=0)
    assert len(list(unpadded(ragged))) == len(ragged)
