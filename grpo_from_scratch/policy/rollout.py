"""Rollout: prompts, the completions sampled for them, and nothing that depends on how they were computed."""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn


@dataclass
class Rollout:
    """G completions for each prompt, P prompts and B completions in all; a prompt is stored once for its whole group.

    Masks are by position, never by ``ids == pad``: the end-of-sequence token may be the pad token, and its first one is
    part of the completion.
    """

    prompt_ids: Tensor  # (P, Tp) int64, left-padded, so that prompt | completion is one row without a hole
    prompt_mask: Tensor  # (P, Tp) bool
    prompt_index: Tensor  # (B,) int64: row b answers prompt prompt_index[b]
    completion_ids: Tensor  # (B, T) int64, right-padded
    completion_mask: Tensor  # (B, T) bool, true up to and including the first end-of-sequence token
    logps: Tensor  # (B, T) float32 under the distribution the token was drawn from, 0 behind the mask
    temperature: float  # that distribution's; scoring uses the same
    texts: list[str]  # B completions, decoded whole, special tokens left out
    finished: Tensor  # (B,) bool: ended by itself rather than cut at max_new_tokens
    examples: list[Any] = field(default_factory=list)  # P data rows, one for each prompt; empty when none were given

    def __len__(self) -> int:
        return len(self.completion_ids)

    @property
    def device(self) -> torch.device:
        return self.completion_ids.device

    def select(self, rows: Tensor | list[int]) -> "Rollout":
        """These completions, in this order, with the prompts they answer and no more padding than they need.

        Args:
            rows: completion indices, or a boolean mask of shape (B,). None gives an ``empty_rollout``.
        """
        rows = torch.as_tensor(rows, device=self.device)
        rows = rows.nonzero()[:, 0] if rows.dtype == torch.bool else rows.long()
        if len(rows) == 0:
            return empty_rollout(self.temperature, self.device)
        prompts, prompt_index = self.prompt_index[rows].unique(return_inverse=True)
        tokens = int(self.completion_mask[rows].sum(1).max())
        hidden = self.prompt_ids.shape[1] - int(self.prompt_mask[prompts].sum(1).max())  # columns that are all padding
        return replace(
            self,
            prompt_ids=self.prompt_ids[prompts, hidden:],
            prompt_mask=self.prompt_mask[prompts, hidden:],
            prompt_index=prompt_index,
            completion_ids=self.completion_ids[rows, :tokens],
            completion_mask=self.completion_mask[rows, :tokens],
            logps=self.logps[rows, :tokens],
            texts=[self.texts[row] for row in rows.tolist()],
            finished=self.finished[rows],
            examples=[self.examples[prompt] for prompt in prompts.tolist()] if self.examples else [],
        )


def given_completions(
    tokenizer, prompts: list[list[int]], completions: list[list[list[int]]], *, temperature: float = 1.0, device=None
) -> Rollout:
    """A rollout of completions that were not sampled here, to be scored: ``completions[p]`` answer ``prompts[p]``.

    A completion is read up to its first end-of-sequence token. ``logps`` are zeros: no distribution drew them.

    Raises:
        ValueError: a prompt or a completion without tokens.
    """
    prompt_index = torch.tensor([p for p, group in enumerate(completions) for _ in group], device=device)
    prompt_ids, prompt_mask = pad_prompts(prompts, tokenizer.pad_token_id, device)
    rows = [row for group in completions for row in group]
    for index, row in enumerate(rows):
        if len(row) == 0:
            raise ValueError(f"completion {index} has no tokens: nothing of it can be scored.")
    width = max(len(row) for row in rows)
    ids = torch.tensor([row + [tokenizer.pad_token_id] * (width - len(row)) for row in rows], device=device)  # (B, T)
    mask = torch.arange(width, device=device) < torch.tensor([len(row) for row in rows], device=device)[:, None]
    is_end = mask & (ids == tokenizer.eos_token_id)
    mask &= is_end.cumsum(1) - is_end.long() == 0  # nothing ended before this token
    return Rollout(
        prompt_ids=prompt_ids,
        prompt_mask=prompt_mask,
        prompt_index=prompt_index,
        completion_ids=ids,
        completion_mask=mask,
        logps=torch.zeros(ids.shape, device=device),
        temperature=temperature,
        texts=decode(tokenizer, ids, mask),
        finished=(is_end & mask).any(1),
    )


def empty_rollout(temperature: float, device=None) -> Rollout:
    """No completions, as a rank may have none: (0, 1) each. Scoring it gives (0, 1) tensors with a graph."""
    nothing = torch.zeros(0, 1, dtype=torch.long, device=device)
    return Rollout(
        prompt_ids=nothing,
        prompt_mask=nothing.bool(),
        prompt_index=nothing[:, 0],
        completion_ids=nothing,
        completion_mask=nothing.bool(),
        logps=nothing.float(),
        temperature=temperature,
        texts=[],
        finished=nothing[:, 0].bool(),
    )


def concatenate(rollouts: list[Rollout]) -> Rollout:
    """Several rollouts of one temperature as one, in this order."""
    if len(rollouts) == 1:
        return rollouts[0]
    width = max(r.prompt_ids.shape[1] for r in rollouts), max(r.completion_ids.shape[1] for r in rollouts)
    first_prompt = [sum(len(earlier.prompt_ids) for earlier in rollouts[:i]) for i in range(len(rollouts))]

    def padded(name: str, *, left: int = 0, right: int = 0) -> Tensor:
        """Rows of every rollout, filled up to ``left`` or ``right`` columns: what stands there is masked."""
        tensors = [getattr(r, name) for r in rollouts]
        pads = [(left - t.shape[1], 0) if left else (0, right - t.shape[1]) for t in tensors]
        return torch.cat([nn.functional.pad(t, pad) for t, pad in zip(tensors, pads, strict=True)])

    return replace(
        rollouts[0],
        prompt_ids=padded("prompt_ids", left=width[0]),
        prompt_mask=padded("prompt_mask", left=width[0]),
        prompt_index=torch.cat([r.prompt_index + first for r, first in zip(rollouts, first_prompt, strict=True)]),
        completion_ids=padded("completion_ids", right=width[1]),
        completion_mask=padded("completion_mask", right=width[1]),
        logps=padded("logps", right=width[1]),
        texts=[text for r in rollouts for text in r.texts],
        finished=torch.cat([r.finished for r in rollouts]),
        examples=[example for r in rollouts for example in r.examples],
    )


def pad_prompts(prompts: list[list[int]], pad_id: int, device=None) -> tuple[Tensor, Tensor]:
    """Token ids of P prompts -> left-padded ids (P, Tp) int64 and their mask (P, Tp) bool.

    Raises:
        ValueError: no prompts, or a prompt without tokens.
    """
    if len(prompts) == 0:
        raise ValueError("there are no prompts to answer.")
    for index, prompt in enumerate(prompts):
        if len(prompt) == 0:
            raise ValueError(f"prompt {index} has no tokens: the first token of a reply needs something to follow.")
    width = max(len(prompt) for prompt in prompts)
    ids = torch.tensor([[pad_id] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=device)
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    return ids, torch.arange(width, device=device) >= width - lengths[:, None]


def decode(tokenizer, ids: Tensor, mask: Tensor) -> list[str]:
    """Each row decoded whole: tokens decoded one by one break characters that span several (emoji, Chinese)."""
    rows = [row[keep].tolist() for row, keep in zip(ids.cpu(), mask.cpu(), strict=True)]
    return tokenizer.batch_decode(rows, skip_special_tokens=True)
