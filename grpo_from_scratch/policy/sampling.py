"""Rollouts: G completions for each prompt, whose prompt is forwarded once for the whole group."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from grpo_from_scratch.distributed.randomness import completion_uniforms
from grpo_from_scratch.policy.modules import evaluating, unwrap
from grpo_from_scratch.policy.rollout import Rollout, decode, pad_prompts
from grpo_from_scratch.policy.shared_prefix import decoder_for


@torch.no_grad()
def sample(
    model: nn.Module,
    tokenizer,
    prompts: Sequence[str] | Sequence[list[int]],
    *,
    group_size: int | Sequence[int],
    max_new_tokens: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    seed: int = 0,
    step: int = 0,
    first_index: int = 0,
    examples: Sequence[Any] | None = None,
) -> Rollout:
    """Completions of each prompt, group after group, drawn from softmax(logits / temperature) cut by top_k, then top_p.

    Token t of row b is the inverse of the distribution's CDF at a uniform keyed by (seed, step, first_index + b, t), so
    a completion depends neither on its batch nor on the world size. Dropout is off; the model's mode is restored.

    Args:
        model: a Hugging Face causal LM, or one wrapped in DistributedDataParallel.
        prompts: P texts, or token ids, which are taken as they are.
        group_size: completions for each prompt, or one number for each prompt.
        max_new_tokens: longest completion, its end-of-sequence token included.
        temperature: 0 is greedy; the distribution is then certain, and ``logps`` are 0.
        top_p, top_k: 1.0 and 0 cut nothing. ``logps`` are of the distribution after the cut.
        seed, step, first_index: the key of the randomness; first_index is the global index of row 0.
        examples: P data rows to carry along.

    Raises:
        ValueError: an empty prompt, or an argument outside its range.
    """
    if isinstance(prompts, str):
        raise ValueError("prompts is one text: give a list of prompts.")
    lm = unwrap(model)
    device = lm.get_input_embeddings().weight.device
    _check_range(max_new_tokens=max_new_tokens, temperature=temperature, top_p=top_p, top_k=top_k)
    token_ids = [tokenizer(p)["input_ids"] if isinstance(p, str) else list(p) for p in prompts]
    prompt_ids, prompt_mask = pad_prompts(token_ids, tokenizer.pad_token_id, device)
    sizes = _group_sizes(group_size, len(token_ids))
    if examples is not None and len(examples) != len(token_ids):
        raise ValueError(f"there are {len(examples)} examples for {len(token_ids)} prompts: give one for each.")
    prompt_index = torch.arange(len(token_ids), device=device).repeat_interleave(torch.tensor(sizes, device=device))
    rows = len(prompt_index)
    uniforms = completion_uniforms(seed, step, [first_index + row for row in range(rows)], max_new_tokens).to(device)
    stop = stop_tokens(lm, tokenizer).to(device)

    ids = torch.full((rows, max_new_tokens), tokenizer.pad_token_id, device=device)  # (B, T)
    mask = torch.zeros(rows, max_new_tokens, dtype=torch.bool, device=device)
    logps = torch.zeros(rows, max_new_tokens, device=device)
    live = torch.arange(rows, device=device)
    with evaluating(lm):
        decoder = decoder_for(lm, prompt_ids, prompt_mask, prompt_index, max_new_tokens)
        logits = decoder.prefill()[prompt_index]  # (B, V)
        for t in range(max_new_tokens):
            drawn, logps[live, t] = draw(logits, uniforms[live, t], temperature=temperature, top_p=top_p, top_k=top_k)
            ids[live, t], mask[live, t] = drawn, True
            going_on = ~torch.isin(drawn, stop)
            if t + 1 == max_new_tokens or not going_on.any():
                break
            if not going_on.all():
                decoder.keep(going_on.nonzero()[:, 0])
                live, drawn = live[going_on], drawn[going_on]
            logits = decoder.step(drawn)
    width = t + 1  # the longest completion's
    ids, mask, logps = ids[:, :width], mask[:, :width], logps[:, :width]
    return Rollout(
        prompt_ids=prompt_ids,
        prompt_mask=prompt_mask,
        prompt_index=prompt_index,
        completion_ids=ids,
        completion_mask=mask,
        logps=logps,
        temperature=temperature,
        texts=decode(tokenizer, ids, mask),
        finished=(mask & torch.isin(ids, stop)).any(1),
        examples=list(examples or []),
    )


def draw(
    logits: Tensor, uniforms: Tensor, *, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0
) -> tuple[Tensor, Tensor]:
    """One token for each row by inverse CDF: logits (b, V), uniforms (b,) in [0, 1) -> tokens (b,), log-probs (b,).

    The CDF is summed in float64, where the tail of a large vocabulary is not lost. Rounding cannot carry a uniform
    below 1 up to the CDF's total, so a token of probability 0 is never drawn.
    """
    if temperature == 0:
        return logits.argmax(-1), torch.zeros(len(logits), device=logits.device)
    log_probs = torch.log_softmax(cut(logits.float() / temperature, top_p=top_p, top_k=top_k), -1)
    cdf = log_probs.double().exp().cumsum(-1)
    tokens = torch.searchsorted(cdf, uniforms[:, None] * cdf[:, -1:], right=True)  # (b, 1)
    return tokens[:, 0], log_probs.gather(1, tokens)[:, 0]


def cut(logits: Tensor, *, top_p: float = 1.0, top_k: int = 0) -> Tensor:
    """-inf outside the top_k largest logits, then outside the fewest tokens that hold top_p of what is left."""
    if 0 < top_k < logits.shape[-1]:
        smallest = logits.topk(top_k).values[..., -1:]
        logits = torch.where(logits < smallest, -torch.inf, logits)
    if top_p < 1:
        ordered, order = logits.sort(descending=True, stable=True)
        probs = ordered.softmax(-1)
        outside = probs.cumsum(-1) - probs >= top_p  # what comes before already holds top_p: the first always stays
        logits = torch.where(torch.zeros_like(outside).scatter(-1, order, outside), -torch.inf, logits)
    return logits


def stop_tokens(lm: nn.Module, tokenizer) -> Tensor:
    """Ids that end a completion: the tokenizer's, and those the model's own generation config adds (chat models do)."""
    added = getattr(lm.generation_config, "eos_token_id", None)
    added = added if isinstance(added, list) else [added]
    return torch.tensor(sorted({tokenizer.eos_token_id, *(token for token in added if token is not None)}))


def _group_sizes(group_size: int | Sequence[int], prompts: int) -> list[int]:
    sizes = [group_size] * prompts if isinstance(group_size, int) else list(group_size)
    if len(sizes) != prompts:
        raise ValueError(
            f"group_size lists {len(sizes)} sizes for {prompts} prompts: give one number, or one for each."
        )
    if min(sizes) < 1:
        raise ValueError(f"group_size must be at least 1 for every prompt, not {min(sizes)}.")
    return sizes


def _check_range(*, max_new_tokens: int, temperature: float, top_p: float, top_k: int) -> None:
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens must be at least 1, not {max_new_tokens}.")
    if temperature < 0:
        raise ValueError(f"temperature must be 0 (greedy) or positive, not {temperature}.")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p must lie in (0, 1], not {top_p}.")
    if top_k < 0:
        raise ValueError(f"top_k must be 0 (no limit) or positive, not {top_k}.")
