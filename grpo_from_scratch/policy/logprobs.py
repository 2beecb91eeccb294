"""Log-probs, entropy and hidden states of given completions: exact whatever the padding."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from grpo_from_scratch.policy.modules import captured_input, evaluating, unwrap
from grpo_from_scratch.policy.rollout import Rollout
from grpo_from_scratch.policy.shared_prefix import arrange


@dataclass
class Scores:
    """What one forward pass says about a rollout; everything is 0 behind the completion mask."""

    logps: Tensor  # (B, T) float32, differentiable
    entropy: Tensor | None  # (B, T) float32, a metric: detached
    hidden: Tensor | None  # (B, T, H) last hidden state where each token is predicted, in the model's dtype


def completion_logps(model: nn.Module, rollout: Rollout) -> tuple[Tensor, Tensor]:
    """Log-probs of the rollout's tokens under ``model`` and the entropy of the distributions they come from.

    Returns:
        (logps, entropy), each (B, T) float32, at ``rollout.temperature``; see ``score_completions``.
    """
    scores = score_completions(model, rollout)
    return scores.logps, scores.entropy


def score_completions(model: nn.Module, rollout: Rollout, *, entropy: bool = True, hidden: bool = False) -> Scores:
    """One forward pass over the rollout, dropout off: log_softmax(logits / rollout.temperature) in float32.

    Backward may follow whenever it likes, under gradient checkpointing too, as long as nobody changes the model's mode
    or attention implementation in between (see ``evaluating`` and ``attention.attach``).

    Args:
        model: a Hugging Face causal LM, or one wrapped in DistributedDataParallel.
        rollout: B completions of T tokens.
        entropy, hidden: what to return beside the log-probs.

    Raises:
        ValueError: the rollout is greedy (temperature 0), which has no log-probs to learn from.
    """
    if rollout.temperature <= 0:
        raise ValueError(
            f"cannot score at temperature {rollout.temperature}: a greedy rollout has no log-probs; "
            "score dataclasses.replace(rollout, temperature=1.0)."
        )
    if len(rollout) == 0:
        scores = score_completions(model, _stand_in(rollout), entropy=entropy, hidden=hidden)
        return Scores(*(None if part is None else part[:0] for part in vars(scores).values()))
    lm = unwrap(model)
    arranged = arrange(lm, rollout)
    with evaluating(lm), captured_input(lm.get_output_embeddings(), hidden) as states:
        log_probs = torch.log_softmax(arranged.logits(model).float() / rollout.temperature, -1)  # (n, V)
    ids = torch.where(rollout.completion_mask, rollout.completion_ids, 0)
    return Scores(
        logps=_masked(log_probs[arranged.source, ids], rollout),
        entropy=_masked(token_entropy(log_probs.detach())[arranged.source], rollout) if entropy else None,
        hidden=_masked(arranged.rows(states[0])[arranged.source], rollout) if hidden else None,
    )


def hidden_states(model: nn.Module, rollout: Rollout) -> Tensor:
    """Last hidden state where each token is predicted, without the LM head: (B, T, H), 0 behind the mask."""
    if len(rollout) == 0:
        return hidden_states(model, _stand_in(rollout))[:0]
    lm = unwrap(model)
    arranged = arrange(lm, rollout)
    with evaluating(lm):
        return _masked(arranged.hidden(lm.base_model)[arranged.source], rollout)


def token_entropy(log_probs: Tensor) -> Tensor:
    """Entropy in nats of normalised log-probs (..., V) -> (...). An impossible token adds 0, also to the gradient."""
    possible = torch.where(log_probs == -torch.inf, 0, log_probs)  # before the product: 0 * -inf is NaN in both passes
    return -(log_probs.exp() * possible).sum(-1)


def _stand_in(rollout: Rollout) -> Rollout:
    """One token after one token, for a rollout without rows: a rank with nothing to score takes part in the forward and
    backward passes all the same, since a sharded model's are of all ranks together."""
    token = torch.zeros(1, 1, dtype=torch.long, device=rollout.device)
    real = torch.ones_like(token, dtype=torch.bool)
    return replace(
        rollout,
        prompt_ids=token,
        prompt_mask=real,
        prompt_index=token[0],
        completion_ids=token,
        completion_mask=real,
        logps=token.float(),
        texts=[""],
        finished=real[0],
    )


def _masked(values: Tensor, rollout: Rollout) -> Tensor:
    """(B, T, ...) with zeros behind the completion mask."""
    mask = rollout.completion_mask
    return torch.where(mask.view(*mask.shape, *[1] * (values.dim() - 2)), values, 0)
