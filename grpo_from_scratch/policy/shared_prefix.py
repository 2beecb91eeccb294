"""Whether a model's prompts are computed once per group (packed), or once per completion (padded).

The packed way serves most models, and which ones is found out rather than listed: each model object is tried once, on
random tokens, against plain forward passes of one unpadded row.
"""

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
from grpo_from_scratch.policy.padding import PaddedDecoder, PaddedRollout
from grpo_from_scratch.policy.rollout import Rollout

# Mean difference of log-probs. 16-bit rounding may send a token to other experts, so it is given room.
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.1}
PROMPT_LENGTHS = (5, 11, 2)
PROMPT_OF_COMPLETION = (0, 0, 1, 1, 1, 1, 2, 2, 2)
COMPLETION_LENGTHS = (1, 7, 4, 9, 1, 5, 3, 8, 2)

_enabled: ContextVar[bool] = ContextVar("shared_prefix", default=True)
_reasons: WeakKeyDictionary[nn.Module, str | None] = WeakKeyDictionary()  # why a model is not packed; None: it is


@contextmanager
def shared_prefix(enabled: bool) -> Iterator[None]:
    """Inside, sampling and scoring compute prompts once per group where they can (the default), or never do."""
    token = _enabled.set(enabled)
    try:
        yield
    finally:
        _enabled.reset(token)


def arrange(lm: nn.Module, rollout: Rollout) -> PackedRollout | PaddedRollout:
    """The rollout laid out for one forward pass of n predictions; ``source`` (B, T) says which of them is whose."""
    return PackedRollout(rollout) if _enabled.get() and supported(lm) else PaddedRollout(lm, rollout)


def decoder_for(
    lm: nn.Module, prompt_ids: Tensor, prompt_mask: Tensor, prompt_index: Tensor, max_new_tokens: int
) -> PackedDecoder | PaddedDecoder:
    """Next-token logits of the rows that answer these prompts, the packed way if it can be gone."""
    decoder = PackedDecoder if _enabled.get() and supported(lm) else PaddedDecoder
    return decoder(lm, prompt_ids, prompt_mask, prompt_index, max_new_tokens)


def supported(lm: nn.Module) -> bool:
    """Whether packed forwards give what plain ones give. Found out once per model object; why not is said once.

    Raises:
        ValueError: not even padded batches do.
    """
    if lm not in _reasons:
        reason = _try(lm)
        if reason:
            name = type(lm).__name__
            warnings.warn(f"{name} computes a prompt for each completion, not once per group: {reason}.", stacklevel=2)
        _reasons[lm] = reason
    return _reasons[lm] is None


@torch.no_grad()
def _try(lm: nn.Module) -> str | None:
    """Attach the packed attention if it works; otherwise say why not, and leave the model's attention as it was."""
    config, weights = lm.config.get_text_config(), lm.get_input_embeddings().weight
    tolerance = TOLERANCE[weights.dtype]
    rollout = _random_rollout(config.vocab_size, weights.device)
    detach(lm)  # a copy of a model that was tried comes with its attention
    with evaluating(lm), torch.autocast(weights.device.type, enabled=False):
        expected = _one_by_one(lm, rollout)
        try:
            if "dynamic" in str(getattr(config, "rope_parameters", "")):
                raise Unsupported("its rotary positions depend on the longest row of the batch")
            attach(lm)
            if not torch.equal(_one_by_one(lm, rollout), expected):
                raise Unsupported("its plain forward pass depends on the name of its attention")
            decoder = PackedDecoder(lm, *_prompts(rollout))
            error = _difference(lm, PackedRollout(rollout), decoder, rollout, expected)
            if len(decoder.prefix) != config.num_hidden_layers:
                raise Unsupported(f"only {len(decoder.prefix)} of its layers use transformers' AttentionInterface")
            if not error < tolerance:
                raise Unsupported(f"packed log-probs differ by {error:.1e} on average")
            return None
        except Exception as error:  # whatever a model runs into that was not made for it
            detach(lm)
            reason = str(error).partition("\n")[0]
        decoder = PaddedDecoder(lm, *_prompts(rollout))
        error = _difference(lm, PaddedRollout(lm, rollout), decoder, rollout, expected)
        if not error < tolerance:
            raise ValueError(
                f"{type(lm).__name__} cannot be used in batches: with padding, its log-probs differ from those of each "
                f"row alone by {error:.1e} on average."
            )
    return reason


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


def _prompts(rollout: Rollout) -> tuple[Tensor, Tensor, Tensor, int]:
    return rollout.prompt_ids, rollout.prompt_mask, rollout.prompt_index, rollout.completion_ids.shape[1]


def _one_by_one(lm: nn.Module, rollout: Rollout) -> Tensor:
    """Log-probs of all completion tokens, one after another, each completion in a forward pass of its own."""
    rows = []
    for row, prompt in enumerate(rollout.prompt_index.tolist()):
        before = rollout.prompt_ids[prompt][rollout.prompt_mask[prompt]]
        after = rollout.completion_ids[row][rollout.completion_mask[row]]
        logits = lm(input_ids=torch.cat([before, after])[None], use_cache=False).logits[0]
        rows.append(_chosen(logits[len(before) - 1 : -1], after))
    return torch.cat(rows)


def _difference(lm: nn.Module, arranged, decoder, rollout: Rollout, expected: Tensor) -> float:
    """Mean error of the log-probs, scored at once and decoded token by token; the larger of the two."""
    ids, mask = rollout.completion_ids, rollout.completion_mask
    scored = _chosen(arranged.logits(lm)[arranged.source], ids)
    decoded, live = torch.zeros_like(scored), torch.arange(len(rollout), device=rollout.device)
    logits = decoder.prefill()[rollout.prompt_index]
    for t in range(ids.shape[1]):
        decoded[live, t] = _chosen(logits, ids[live, t])
        going_on = mask[:, t + 1 :].any(1)[live]  # (b,)
        if going_on.any():
            decoder.keep(going_on.nonzero()[:, 0])
            live = live[going_on]
            logits = decoder.step(ids[live, t])
    return max(float((logps[mask] - expected).abs().mean()) for logps in (scored, decoded))


def _chosen(logits: Tensor, ids: Tensor) -> Tensor:
    return logits.float().log_softmax(-1).gather(-1, ids[..., None])[..., 0]
