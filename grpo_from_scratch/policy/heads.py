"""GRPOPolicy: a causal LM and a value head on its last hidden state."""

import torch
from torch import Tensor, nn

from grpo_from_scratch.policy.loading import load_policy
from grpo_from_scratch.policy.logprobs import hidden_states
from grpo_from_scratch.policy.modules import evaluating
from grpo_from_scratch.policy.padding import positions
from grpo_from_scratch.policy.rollout import Rollout


class GRPOPolicy(nn.Module):
    """A language model with a value head: what the state (the tokens so far) is worth.

    One object serves as a policy whose head shares its body and, deep-copied, as PPO's separate critic. The head starts
    at zero: an untrained critic says 0 everywhere rather than noise.
    """

    def __init__(self, model: str | nn.Module):
        """model: a Hugging Face causal LM, or anything ``load_policy`` takes."""
        super().__init__()
        self.lm = load_policy(model)[0] if isinstance(model, str) else model
        self.value_head = nn.Linear(self.lm.config.get_text_config().hidden_size, 1)
        nn.init.zeros_(self.value_head.weight)
        nn.init.zeros_(self.value_head.bias)
        self.value_head.to(self.lm.get_input_embeddings().weight.device)  # float32, whatever the body's dtype

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Value at the last real token of each row, whichever side is padded: (B, T), (B, T) -> (B, 1) float32."""
        mask = attention_mask.bool()
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "use_cache": False}
        with evaluating(self.lm):
            states = self.lm.base_model(**inputs, **positions(self.lm, mask)).last_hidden_state.to(mask.device)
        places = torch.arange(mask.shape[1], device=mask.device)
        last = torch.where(mask, places, 0).amax(1)  # (B,)
        return self.value_head(states[torch.arange(len(last), device=mask.device), last].float())

    def token_values(self, rollout: Rollout) -> Tensor:
        """V before each completion token, at the position that predicts it: (B, T) float32, 0 behind the mask.

        Under autocast the head itself still computes in float32.
        """
        hidden = hidden_states(self.lm, rollout).float()
        with torch.autocast(hidden.device.type, enabled=False):
            values = self.value_head(hidden)[..., 0]
        return torch.where(rollout.completion_mask, values, 0)
