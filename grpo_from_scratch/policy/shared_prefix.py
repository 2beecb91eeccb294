"""Whether a model's prompts are computed once per group (packed), or once per completion (padded)."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from grpo_from_scratch.policy.attention import Unsupported, attach, detach
from grpo_from_scratch.policy.modules import evaluating
from grpo_from_scratch.policy.packing import PackedDecoder, PackedRollout
from grpo_from_scratch.policy.rollout import Rollout

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-4}  # mean difference of log-probs; 0.03 for 16-bit weights
PROMPT_LENGTHS = (5, 11, 2)
PROMPT_OF_COMPLETION = (0, 0, 1, 1, 1, 1, 2, 2, 2)
COMPLETION_LENGTHS = (1, 7, 4, 9, 1, 5, 3, 8, 2)

_enabled: ContextVar[bool] = ContextVar("shared_prefix", default=True)
_reasons: WeakKeyDictionary[nn.Module, str | None] = WeakKeyDictionary()  # why not; None: it works


@contextmanager
def shared_prefix(enabled: bool) -> Iterator[None]:
    """Inside, sampling and scoring compute prompts once per group where they can (the default), or never do."""
    token = _enabled.set(enabled)
    try:
        yield
    finally:
        _enabled.reset(token)


def shares_prefix(lm: nn.Module) -> bool:
    """Whether sampling and scoring go the packed way for this model now. Says once why not when the model cannot."""
    return _enabled.get() and supported(lm)


def supported(lm: nn.Module) -> bool:
    """Whether packed forwards give what plain ones give, found out on random tokens once per model object."""
    if lm not in _reasons:
        _reasons[lm] = why_not(lm)
        if _reasons[lm] is not None:
            warnings.warn(
                f"{type(lm).__name__} computes a prompt for each completion, not once per group: {_reasons[lm]}.",
                stacklevel=2,
            )
    return _reasons[lm] is None


@torch.no_grad()
def why_not(lm: nn.Module) -> str | None:
    """Attach the packed attention if it gives what plain, unpadded, one-row forwards give, scoring and decoding.

    Returns:
        None, or why it does not; the model's attention is then what it was.
    """
    config, weights = lm.config.get_text_config(), lm.get_input_embeddings().weight
    if "dynamic" in str(getattr(config, "rope_parameters", "")):
        return "its rotary positions depend on the longest row of the batch"
    rollout = _random_rollout(config.vocab_size, weights.device)
    with evaluating(lm), torch.autocast(weights.device.type, enabled=False):
        try:
            expected = _one_by_one(lm, rollout)
            attach(lm)
            if not torch.equal(_one_by_one(lm, rollout), expected):
                raise Unsupported("its plain forward pass depends on the name of its attention")
            error = max((_packed(lm, rollout) - expected).abs().mean(), (_decoded(lm, rollout) - expected).abs().mean())
            if not error < TOLERANCE.get(weights.dtype, 0.03):
                raise Unsupported(f"log-probs differ by {error:.1e} on average")
        except Exception as error:  # whatever a model that is not made for it may run into
            detach(lm)
            return str(error).partition("\n")[0] or type(error).__name__
    return None


def _random_rollout(vocab_size: int, device: torch.device) -> Rollout:
    generator = torch.Generator().manual_seed(0)
    prompts, completions = torch.tensor(PROMPT_LENGTHS), torch.tensor(COMPLETION_LENGTHS)
    L, T = int(prompts.max()), int(completions.max())
    return Rollout(
        prompt_ids=torch.randint(0, vocab_size, (len(prompts), L), generator=generator).to(device),
        prompt_mask=(torch.arange(L) >= L - prompts[:, None]).to(device),
        prompt_index=torch.tensor(PROMPT_OF_COMPLETION, device=device),
        completion_ids=torch.randint(0, vocab_size, (len(completions), T), generator=generator).to(device),
        completion_mask=(torch.arange(T) < completions[:, None]).to(device),
        logps=torch.zeros(len(completions), T, device=device),
        temperature=1.0,
        texts=[],
        finished=torch.zeros(len(completions), dtype=torch.bool, device=device),
    )


def _chosen(logits: Tensor, ids: Tensor) -> Tensor:
    return logits.float().log_softmax(-1).gather(-1, ids[..., None])[..., 0]


def _one_by_one(lm: nn.Module, rollout: Rollout) -> Tensor:
    """Log-probs of all completion tokens, one after another, each completion in a forward pass of its own."""
    rows = []
    for row, prompt in enumerate(rollout.prompt_index.tolist()):
        before = rollout.prompt_ids[prompt][rollout.prompt_mask[prompt]]
        after = rollout.completion_ids[row][rollout.completion_mask[row]]
        logits = lm(input_ids=torch.cat([before, after])[None], use_cache=False).logits[0]
        rows.append(_chosen(logits[len(before) - 1 : -1], after))
    return torch.cat(rows)


def _packed(lm: nn.Module, rollout: Rollout) -> Tensor:
    packed = PackedRollout(rollout)
    logits = packed.logits(lm)[packed.source]  # (B, T, V)
    return _chosen(logits, rollout.completion_ids)[rollout.completion_mask]


def _decoded(lm: nn.Module, rollout: Rollout) -> Tensor:
    """The completions decoded token by token, each row dropped when it ends."""
    ids, mask, live = rollout.completion_ids, rollout.completion_mask, torch.arange(len(rollout), device=rollout.device)
    decoder = PackedDecoder(lm, rollout.prompt_ids, rollout.prompt_mask, rollout.prompt_index, ids.shape[1])
    logits, logps = decoder.prefill()[rollout.prompt_index], torch.zeros(ids.shape, device=rollout.device)
    if len(decoder.prefix) != lm.config.get_text_config().num_hidden_layers:
        raise Unsupported(f"only {len(decoder.prefix)} of its layers use AttentionInterface")
    for t in range(ids.shape[1]):
        logps[live, t] = _chosen(logits, ids[live, t])
        going_on = mask[:, t + 1 :].any(1)[live]  # (b,)
        if going_on.any():
            decoder.keep(going_on.nonzero()[:, 0])
            live = live[going_on]
            logits = decoder.step(ids[live, t])
    return logps[mask]
