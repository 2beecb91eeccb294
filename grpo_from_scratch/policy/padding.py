"""Prompt | completion rows, padded to one width: what any causal LM takes, at the price of a prompt for each row."""

import inspect

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from grpo_from_scratch.policy.rollout import Rollout


class PaddedRollout:
    """A rollout as prompt | completion rows (B, Tp + T - 1), for a model that ``PackedRollout`` cannot serve.

    The last token predicts nothing, so it stays out. Positions are given, not left to the model: one with learned
    positions would count the padding.
    """

    def __init__(self, lm: nn.Module, rollout: Rollout):
        prompts = rollout.prompt_index
        mask = torch.cat([rollout.prompt_mask[prompts], rollout.completion_mask], 1)[:, :-1]
        ids = torch.cat([rollout.prompt_ids[prompts], rollout.completion_ids], 1)[:, :-1]
        self.inputs = {"input_ids": torch.where(mask, ids, 0), "attention_mask": mask.long(), "use_cache": False}
        self.inputs |= positions(lm, mask)
        self.predicted = rollout.completion_mask
        self.source = (self.predicted.flatten().cumsum(0) - 1).clamp(min=0).view(self.predicted.shape)  # (B, T)

    def logits(self, model: nn.Module) -> Tensor:
        """(n, V), differentiable."""
        return self.rows(model(**self.inputs, logits_to_keep=self.predicted.shape[1]).logits)

    def hidden(self, body: nn.Module) -> Tensor:
        """(n, X) last hidden states of the model's body."""
        return self.rows(body(**self.inputs).last_hidden_state)

    def rows(self, full: Tensor) -> Tensor:
        """(B, at least T, X) -> (n, X), where the inputs are: not every module is given ``logits_to_keep``."""
        return full.to(self.predicted.device)[:, -self.predicted.shape[1] :][self.predicted]


class PaddedDecoder:
    """Next-token logits through the model's own key/value cache: prompts once, their cache repeated for the group."""

    def __init__(
        self, lm: nn.Module, prompt_ids: Tensor, prompt_mask: Tensor, prompt_index: Tensor, max_new_tokens: int
    ):
        self.lm, self.prompt_ids, self.mask, self.prompt_index = lm, prompt_ids, prompt_mask, prompt_index
        self.cache = DynamicCache(config=lm.config)
        self.sees_past = any(hasattr(layer, "keys") for layer in self.cache.layers)  # no layer does in Mamba

    def prefill(self) -> Tensor:
        """Logits after each prompt (P, V)."""
        logits = self._next_logits(self.prompt_ids)
        self.keep(self.prompt_index)
        return logits

    def step(self, tokens: Tensor) -> Tensor:
        """Append one token to each live row: (b,) -> logits of the next one (b, V)."""
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(tokens), 1)], 1)
        return self._next_logits(tokens[:, None])

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows of the current ones only."""
        self.cache.reorder_cache(rows)
        self.mask = self.mask[rows]

    def _next_logits(self, ids: Tensor) -> Tensor:
        mask = self.mask if self.sees_past else self.mask[:, -ids.shape[1] :]
        inputs = {"input_ids": ids, "attention_mask": mask.long(), "cache": self.cache, "use_cache": True}
        inputs |= {name: places[:, -ids.shape[1] :] for name, places in positions(self.lm, self.mask).items()}
        return self.lm(**inputs, logits_to_keep=1).logits[:, -1]


def positions(lm: nn.Module, mask: Tensor) -> dict[str, Tensor]:
    """The keyword with each token's place among the real tokens of its row; none if the model takes none (ALiBi)."""
    if "position_ids" not in inspect.signature(lm.forward).parameters:
        return {}
    return {"position_ids": (mask.long().cumsum(1) - 1).clamp(min=0)}
