"""Log-probs, entropy and hidden states of given completions: exact whatever the padding."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from grpo_from_scratch.policy.rollout import Rollout


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
    """One forward pass over the rollout, dropout off: of log_softmax(logits / rollout.temperature) in float32.

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
    lm = unwrap(model)
    with evaluating(lm), captured_input(lm.get_output_embeddings(), hidden) as states:
        logits = model(**padded_inputs(lm, rollout), logits_to_keep=rollout.completion_ids.shape[1]).logits
    at = predicting_rows(rollout)
    log_probs = torch.log_softmax(at.rows(logits).float() / rollout.temperature, -1)  # (n, V)
    return Scores(
        logps=at.masked(log_probs[at.source, at.ids]),
        entropy=at.masked(token_entropy(log_probs.detach())[at.source]) if entropy else None,
        hidden=at.masked(at.rows(states[0])[at.source]) if hidden else None,
    )


def hidden_states(model: nn.Module, rollout: Rollout) -> Tensor:
    """Last hidden state where each token is predicted, without the LM head: (B, T, H), 0 behind the mask."""
    lm = unwrap(model)
    with evaluating(lm):
        states = lm.base_model(**padded_inputs(lm, rollout)).last_hidden_state
    at = predicting_rows(rollout)
    return at.masked(at.rows(states)[at.source])


def token_entropy(log_probs: Tensor) -> Tensor:
    """Entropy in nats of normalised log-probs (..., V) -> (...). An impossible token adds 0, also to the gradient."""
    possible = torch.where(log_probs == -torch.inf, 0, log_probs)  # before the product: 0 * -inf is NaN in both passes
    return -(log_probs.exp() * possible).sum(-1)


@dataclass
class PredictingRows:
    """Where the n real predictions stand: packed rows (n, ...) and the way back to (B, T, ...)."""

    mask: Tensor  # (B, T) bool
    ids: Tensor  # (B, T) the predicted tokens, 0 behind the mask
    source: Tensor  # (B, T) row of the packed tensor, any behind the mask

    def rows(self, full: Tensor) -> Tensor:
        """(B, at least T, X) -> (n, X). A model without ``logits_to_keep`` returns more than was asked for."""
        return full[:, -self.mask.shape[1] :][self.mask]

    def masked(self, values: Tensor) -> Tensor:
        """(B, T, ...) with zeros behind the mask."""
        return torch.where(self.mask.view(*self.mask.shape, *[1] * (values.dim() - 2)), values, 0)


def predicting_rows(rollout: Rollout) -> PredictingRows:
    mask = rollout.completion_mask
    source = (mask.flatten().cumsum(0) - 1).clamp(min=0).view(mask.shape)
    return PredictingRows(mask, torch.where(mask, rollout.completion_ids, 0), source)


def padded_inputs(lm: nn.Module, rollout: Rollout) -> dict[str, Tensor | bool]:
    """Forward keywords for prompt | completion rows (B, Tp + T - 1); the last token predicts nothing, so it stays out.

    Positions are given, not left to the model: one with learned positions would count the padding.
    """
    prompt_ids, prompt_mask = rollout.prompt_ids[rollout.prompt_index], rollout.prompt_mask[rollout.prompt_index]
    inputs_mask = torch.cat([prompt_mask, rollout.completion_mask], 1)[:, :-1]  # (B, Tp + T - 1)
    ids = torch.cat([prompt_ids, rollout.completion_ids], 1)[:, :-1]
    inputs = {"input_ids": torch.where(inputs_mask, ids, 0), "attention_mask": inputs_mask.long(), "use_cache": False}
    return inputs | positions(lm, inputs_mask)


def positions(lm: nn.Module, mask: Tensor) -> dict[str, Tensor]:
    """The keyword with each token's place among the real tokens of its row; none if the model takes none (ALiBi)."""
    if "position_ids" not in inspect.signature(lm.forward).parameters:
        return {}
    return {"position_ids": (mask.long().cumsum(1) - 1).clamp(min=0)}


def unwrap(model: nn.Module) -> nn.Module:
    """The causal LM inside DistributedDataParallel and inside PEFT's wrapper (whose adapters live in the LM's layers).

    Attributes are its own; a forward pass whose gradients have to be averaged over ranks goes through the wrapper.
    """
    model = model.module if isinstance(model, DistributedDataParallel) else model
    return model.get_base_model() if hasattr(model, "get_base_model") else model


@contextmanager
def captured_input(module: nn.Module, wanted: bool) -> Iterator[list[Tensor]]:
    """What goes into ``module`` while the context is open, appended to the list it gives, if wanted."""
    inputs: list[Tensor] = []
    if not wanted:
        yield inputs
        return
    handle = module.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    try:
        yield inputs
    finally:
        handle.remove()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Dropout off inside, every module back in its own mode after.

    Hugging Face checkpoints a layer only in training mode, so the checkpointed layer itself keeps that mode, and since
    backward runs it again and must find it unchanged, nothing is put back when gradient checkpointing is at work.
    """
    training = [module for module in model.modules() if module.training]
    checkpointed = [m for m in training if getattr(m, "gradient_checkpointing", False) and torch.is_grad_enabled()]
    model.eval()
    for module in checkpointed:
        module.training = True
    try:
        yield
    finally:
        if not checkpointed:
            for module in training:
                module.training = True
