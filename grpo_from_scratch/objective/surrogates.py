"""How an advantage becomes a gradient: losses of tokens, and how tokens are averaged."""

import torch
from torch import Tensor

from grpo_from_scratch.objective.kl import limited, log_ratio

AGGREGATES = ("sequence", "token", "constant")


def importance_ratio(logps: Tensor, old_logps: Tensor, mask: Tensor, level: str = "token") -> Tensor:
    """π/π_old of each token, or the geometric mean of a sequence's in all its places (GSPO, arXiv 2507.18071, eq. 7).

    Args:
        logps, old_logps: (B, T) log-probs under the policy and under the one that sampled.
        mask: (B, T) true on real tokens.
        level: "token" or "sequence".

    Returns:
        (B, T), 1 where the mask is false.

    Raises:
        ValueError: an unknown level.
    """
    mask = mask.bool()
    log_ratios = torch.where(mask, log_ratio(logps, old_logps.detach()), 0.0)
    if level == "sequence":
        lengths = mask.sum(1, keepdim=True).clamp(min=1)
        log_ratios = torch.where(mask, log_ratios.sum(1, keepdim=True) / lengths, 0.0)
    elif level != "token":
        raise ValueError(f"level must be token or sequence, not {level!r}")
    return limited(log_ratios).exp()


def clipped_surrogate(
    logps: Tensor,
    old_logps: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    level: str = "token",
) -> Tensor:
    """PPO's clipped objective as a loss: −min(ratio·A, clip(ratio, 1 − low, 1 + high)·A) (arXiv 1707.06347, eq. 7).

    It stops the gradient only where a step would go on in its own direction: above 1 + high for A > 0, below 1 − low
    for A < 0.

    Args:
        logps, old_logps: (B, T) log-probs under the policy and under the one that sampled.
        advantages: (B,) or (B, T).
        mask: (B, T) true on real tokens.
        clip_low, clip_high: how far the ratio may go below and above 1.
        level: "token", or "sequence" for GSPO's ratio.

    Returns:
        (B, T) loss of each token, 0 where the mask is false.
    """
    advantages = per_token(advantages, mask)
    ratio = importance_ratio(logps, old_logps, mask, level)
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages)


def cispo_surrogate(
    logps: Tensor, old_logps: Tensor, advantages: Tensor, mask: Tensor, *, clip_high: float = 4.0
) -> Tensor:
    """−sg(min(ratio, 1 + high))·A·log π: every token keeps a gradient, its weight is capped (arXiv 2506.13585, eq. 4).

    Arguments and result as for ``clipped_surrogate``; the weight has no lower bound.
    """
    weight = importance_ratio(logps, old_logps, mask).clamp(max=1 + clip_high).detach()
    return weight * reinforce_surrogate(logps, advantages, mask)


def sapo_surrogate(
    logps: Tensor,
    old_logps: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    tau_pos: float = 1.0,
    tau_neg: float = 1.05,
) -> Tensor:
    """−(4/τ)·σ(τ·(ratio − 1))·A: a soft gate, whose gradient is the plain one at ratio 1 and fades on both sides.

    Gao et al. 2025, arXiv 2511.20347, section 3. Arguments and result as for ``clipped_surrogate``; τ is ``tau_pos``
    for positive advantages and ``tau_neg`` for the others.
    """
    advantages = per_token(advantages, mask)
    tau = torch.full_like(advantages, tau_neg).masked_fill(advantages > 0, tau_pos)
    gate = torch.sigmoid(tau * (importance_ratio(logps, old_logps, mask) - 1)) * 4 / tau
    return -gate * advantages


def reinforce_surrogate(logps: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """−A·log π (Williams 1992): the value means nothing, the gradient is the policy gradient when on-policy.

    Arguments and result as for ``clipped_surrogate``.
    """
    return -torch.where(mask.bool(), logps, 0.0) * per_token(advantages, mask)


def per_token(advantages: Tensor, mask: Tensor) -> Tensor:
    """Advantages (B,) or (B, T) as (B, T), detached, 0 where the mask is false."""
    advantages = advantages.detach()
    if advantages.dim() == 1:
        advantages = advantages[:, None]
    return torch.where(mask.bool(), advantages, 0.0)


def loss_denominator(mask: Tensor, how: str, *, max_new_tokens: int | None = None) -> Tensor:
    """What ``aggregate`` divides this mask's tokens by; a row without real tokens does not count.

    Sum it over all micro-batches and ranks, and give the sum to each ``aggregate``: then the gradients of the parts add
    up to that of the whole. Divide it by the number of ranks first where DDP averages gradients.

    Args:
        mask: (B, T) true on real tokens.
        how: "sequence": sequences; "token": tokens; "constant": sequences × max_new_tokens.
        max_new_tokens: the length limit, for "constant".

    Returns:
        () int64, 0 when there is nothing to train on.

    Raises:
        ValueError: an unknown ``how``, or "constant" without ``max_new_tokens``.
    """
    mask = mask.bool()
    match how:
        case "sequence":
            return mask.any(1).sum()
        case "token":
            return mask.sum()
        case "constant":
            if max_new_tokens is None:
                raise ValueError("aggregate 'constant' divides by sequences × max_new_tokens: pass max_new_tokens")
            return mask.any(1).sum() * max_new_tokens
        case _:
            raise ValueError(f"how must be one of {', '.join(AGGREGATES)}, not {how!r}")


def aggregate(
    per_token: Tensor,
    mask: Tensor,
    how: str,
    *,
    denominator: Tensor | float | None = None,
    max_new_tokens: int | None = None,
) -> Tensor:
    """One number from the losses of tokens.

    Args:
        per_token: (B, T) losses; what the mask hides may be anything.
        mask: (B, T) true on real tokens.
        how: "sequence": mean of the sequences' means (DeepSeekMath); "token": mean over all tokens (DAPO); "constant":
            sum over sequences × max_new_tokens (Dr. GRPO), the only one in which no sampled length weighs a token.
        denominator: what to divide by instead of this mask's own ``loss_denominator``.
        max_new_tokens: the length limit, for "constant" without a denominator.

    Returns:
        () loss; 0 and attached to the graph when there is nothing to train on.

    Raises:
        ValueError: as ``loss_denominator``.
    """
    mask = mask.bool()
    if how not in AGGREGATES:
        raise ValueError(f"how must be one of {', '.join(AGGREGATES)}, not {how!r}")
    if denominator is None:
        denominator = loss_denominator(mask, how, max_new_tokens=max_new_tokens)
    weighted = torch.where(mask, per_token, 0.0)
    if how == "sequence":
        weighted = weighted / mask.sum(1, keepdim=True).clamp(min=1)
    denominator = torch.as_tensor(denominator, dtype=weighted.dtype, device=weighted.device)
    return weighted.sum() / torch.where(denominator == 0, 1.0, denominator)
