"""Instruments: numbers whose healthy value is known before the run, so that a bug shows in its log.

A reward that rises proves little: many wrong gradients still point roughly uphill. Each of these asks what the
advantages or the loss *do*, not which formula they came from, and has a value that any correct run has, whatever it
learns.
"""

from dataclasses import replace

import torch
from torch import Tensor

from grpo_from_scratch.objective.groups import group_statistics
from grpo_from_scratch.objective.loss import policy_loss
from grpo_from_scratch.objective.presets import Preset
from grpo_from_scratch.objective.shaping import exact_rewards
from grpo_from_scratch.objective.surrogates import importance_ratio, per_token
from grpo_from_scratch.policy.rollout import Rollout


def advantage_metrics(advantages: Tensor, scores: Tensor, prompts: Tensor) -> dict[str, float]:
    """What the advantages of a batch do, seen prompt by prompt.

    Args:
        advantages: (B,) 0 where the score is missing.
        scores: (B,) what was compared, NaN where missing.
        prompts: (B,) the prompt that each completion answers, whoever it was compared with.

    Returns:
        ``advantage_by_prompt``: root mean square of the prompts' mean advantages, over that of all advantages. 0 when
        the answers to a prompt are compared with each other; NaN when all advantages are 0.
        ``advantage_slope``: by how much an advantage rises with its score, within the prompts (least squares). Without
        division by a std it is 1 for the group's mean, and G/(G−1) for the mean of the others. NaN without any spread.
    """
    advantages, scores = advantages.cpu().double(), exact_rewards(scores)
    stats = group_statistics(scores, prompts.cpu())
    means = stats.mean.new_zeros(len(stats.ids)).index_add(0, stats.position, advantages) / stats.count.clamp(min=1)
    centred = (scores - stats.per_row(stats.mean)).nan_to_num(nan=0.0)
    size = advantages[~scores.isnan()].square().mean().sqrt()
    return {
        "advantage_by_prompt": float(means.square().mean().sqrt() / size),
        "advantage_slope": float((advantages * centred).sum() / centred.square().sum()),
    }


def gradient_metrics(
    preset: Preset,
    *,
    logps: Tensor,
    old_logps: Tensor | None,
    advantages: Tensor,
    mask: Tensor,
    ref_logps: Tensor | None,
) -> dict[str, Tensor]:
    """Where the loss pushes tokens, from its own gradient by their log-probs.

    Args:
        logps, old_logps, ref_logps: (B, T) log-probs under the policy, the sampler and the reference; ``old_logps``
            None: the update is exactly on-policy.
        advantages: (B,) or (B, T).
        mask: (B, T) true on real tokens.

    Returns:
        ``silenced_push``, where a clipped surrogate has a ratio: the share of its gradient that falls on tokens which
        the clip silences. ``kl_away``, with a KL in the loss: the share of the KL's gradient that drives a token
        further from the reference. Both () and 0 in a correct loss.
    """
    mask, logps = mask.bool(), logps.detach()
    parts = {"old_logps": logps if old_logps is None else old_logps, "mask": mask, "ref_logps": ref_logps}
    found = {}
    if preset.surrogate == "clip" and old_logps is not None:
        push = _gradient(replace(preset, kl_coef=0.0), logps, advantages=advantages, **parts)
        ratio = importance_ratio(logps, old_logps, mask, preset.level)
        sign = per_token(advantages, mask)
        silenced = (ratio < 1 - preset.clip_low) & (sign < 0) | (ratio > 1 + preset.clip_high) & (sign > 0)
        found["silenced_push"] = _share(push, silenced)
    if preset.kl_coef > 0 and preset.kl_in == "loss":
        pull = _gradient(preset, logps, advantages=torch.zeros_like(advantages), **parts)
        found["kl_away"] = _share(pull, pull * (logps - ref_logps) < 0)  # descent goes against the gradient
    return found


def ends_trained(rollout: Rollout, mask: Tensor, stop: Tensor) -> Tensor:
    """How many completions ended by themselves and are trained on, and how many of those have their end in the mask.

    Args:
        rollout: B completions.
        mask: (B, T) the tokens that the loss sees.
        stop: ids of the tokens that end a completion.

    Returns:
        (2,) counts.
    """
    finished = rollout.finished & mask.any(1)
    seen = (mask & torch.isin(rollout.completion_ids, stop)).any(1)
    return torch.stack([finished.sum(), (finished & seen).sum()])


def _gradient(preset: Preset, logps: Tensor, **parts) -> Tensor:
    """(B, T) of the preset's loss by log-probs, up to the loss's denominator."""
    with torch.enable_grad():
        leaf = logps.clone().requires_grad_()
        loss, _ = policy_loss(preset, logps=leaf, denominator=1.0, **parts)
        return torch.autograd.grad(loss, leaf)[0]


def _share(gradient: Tensor, where: Tensor) -> Tensor:
    """() of the gradient's absolute values, those where ``where`` is true; 0 without any gradient."""
    size = gradient.abs()
    return torch.where(where, size, 0.0).sum() / size.sum().clamp(min=torch.finfo(size.dtype).tiny)
