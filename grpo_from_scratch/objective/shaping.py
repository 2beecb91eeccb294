"""Rewards before anyone is compared: checked, lowered for length, spread over tokens with the KL penalty in them."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

Rewards = Sequence[float | None] | Tensor  # (B,), one for each completion; None or NaN where there is no score


def check_rewards(rewards: Rewards) -> Tensor:
    """Rewards as every function of this package takes them.

    Args:
        rewards: (B,), one for each completion; ``None`` or NaN marks one that has no score.

    Returns:
        (B,) detached float32 (float64 stays float64), NaN where the reward is missing.

    Raises:
        ValueError: the rewards are not one-dimensional, or some are ±inf (the message names the rows).
    """
    if not isinstance(rewards, Tensor):
        rewards = torch.tensor([math.nan if reward is None else float(reward) for reward in rewards])
    rewards = rewards.detach()
    if rewards.dtype not in (torch.float32, torch.float64):
        rewards = rewards.float()
    if rewards.dim() != 1:
        raise ValueError(f"rewards must have shape (B,), one for each completion, but have {tuple(rewards.shape)}")
    infinite = rewards.isinf().nonzero().flatten().tolist()
    if infinite:
        raise ValueError(
            f"rewards must be finite, but rows {infinite} are ±inf: give None for a completion without score"
        )
    return rewards


def exact_rewards(rewards: Rewards) -> Tensor:
    """Checked rewards (B,) in float64 on the CPU, for statistics.

    A large offset common to all rewards then costs no digits of their differences, and an accelerator without float64
    (MPS) changes nothing. B numbers are not worth an accelerator.
    """
    return check_rewards(rewards).cpu().double()


def overlong_penalty(lengths: Tensor, *, max_new_tokens: int, buffer: int) -> Tensor:
    """DAPO's soft overlong punishment, to be added to the rewards (arXiv 2503.14476, eq. 13).

    Args:
        lengths: (B,) completion lengths in tokens.
        max_new_tokens: L_max, the length at which sampling stops.
        buffer: L_cache, the last tokens before L_max over which the penalty grows.

    Returns:
        (B,) float32: 0 up to ``max_new_tokens - buffer`` tokens, then linear down to -1 at ``max_new_tokens``.

    Raises:
        ValueError: the buffer is not within 1..max_new_tokens.
    """
    if not 1 <= buffer <= max_new_tokens:
        raise ValueError(f"buffer must be within 1..{max_new_tokens} (max_new_tokens), but is {buffer}")
    return ((max_new_tokens - buffer - lengths.float()) / buffer).clamp(-1.0, 0.0)


def token_rewards(
    scores: Tensor,
    mask: Tensor,
    *,
    logps: Tensor | None = None,
    ref_logps: Tensor | None = None,
    kl_coef: float = 0.0,
) -> Tensor:
    """Each token's reward: the score on the last real token, minus the KL penalty of every real token.

    The penalty is k1, ``kl_coef · (log π − log π_ref)`` (Ziegler et al. 2019, arXiv 1909.08593, eq. 2). Summed over the
    rest of the completion its expectation is the KL to come, so that, unlike a KL in the loss, it also judges a token
    by the prefixes it leads to. Without a critic, ``.sum(1)`` is the completion's penalised reward.

    Args:
        scores: (B,) one score for each completion.
        mask: (B, T) true on real tokens; a row with a missing score has none.
        logps, ref_logps: (B, T) log-probs of the sampling policy and of the reference, needed unless ``kl_coef`` is 0.
        kl_coef: β.

    Returns:
        (B, T), 0 where the mask is false.

    Raises:
        ValueError: a KL penalty without the log-probs, or a missing score in a row that the mask still counts.
    """
    mask = mask.bool()
    orphans = (scores.isnan() & mask.any(1)).nonzero().flatten().tolist()
    if orphans:
        raise ValueError(f"rows {orphans} have no score but real tokens: give a row without score an all-false mask")
    # A token is the last real one if no real token follows it.
    following = mask.flip(1).cumsum(1).flip(1) - mask.long()  # (B, T) real tokens after this one
    last = mask & (following == 0)
    rewards = torch.where(last, scores[:, None], 0.0)  # (B, T)
    if kl_coef != 0:
        if logps is None or ref_logps is None:
            raise ValueError("a KL penalty in the reward needs logps and ref_logps, the reference's log-probs")
        rewards = rewards - torch.where(mask, kl_coef * (logps - ref_logps).detach(), 0.0)
    return rewards
