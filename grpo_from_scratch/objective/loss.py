"""The loss that a preset minimises, and the critic's."""

import torch
from torch import Tensor

from grpo_from_scratch.objective.kl import kl_estimate
from grpo_from_scratch.objective.presets import Preset, get_preset
from grpo_from_scratch.objective.surrogates import (
    aggregate,
    cispo_surrogate,
    clipped_surrogate,
    importance_ratio,
    per_token,
    reinforce_surrogate,
    sapo_surrogate,
)


def policy_loss(
    preset: str | Preset,
    *,
    logps: Tensor,
    old_logps: Tensor,
    advantages: Tensor,
    mask: Tensor,
    ref_logps: Tensor | None = None,
    max_new_tokens: int | None = None,
    denominator: Tensor | float | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """A preset's loss on one (micro-)batch of completions.

    Args:
        preset: a preset or its name.
        logps: (B, T) log-probs of the sampled tokens under the policy, with their graph.
        old_logps: (B, T) under the policy that sampled them; ``logps.detach()`` when that is the same one.
        advantages: (B,) or (B, T).
        mask: (B, T) true on real tokens. A row whose reward is missing has none, so it leaves every denominator.
        ref_logps: (B, T) under the reference; needed for a KL in the loss, otherwise only for the metrics.
        max_new_tokens: the length limit, for aggregate "constant" without a denominator.
        denominator: see ``aggregate``; give the global one when this is a part of a batch.

    Returns:
        The loss (), and metrics: means over this mask's tokens, () and detached, to be weighted by the tokens when
        parts are put together. ``clip_fraction_low`` is the share of tokens with A < 0 stopped at the lower bound,
        ``clip_fraction_high`` of those with A > 0 at the upper one (CISPO: of all whose weight is capped),
        ``ratio_mean`` is π/π_old, ``kl_k1`` and ``kl_k3`` appear with a reference.

    Raises:
        ValueError: shapes that do not match, or a KL in the loss without a reference.
    """
    preset = get_preset(preset)
    in_loss = preset.kl_in == "loss" and preset.kl_coef > 0
    if in_loss and ref_logps is None:
        raise ValueError(f"a KL in the loss (kl_coef={preset.kl_coef}) needs ref_logps, the reference's log-probs")
    _check_shapes(logps, old_logps=old_logps, mask=mask, ref_logps=ref_logps, advantages=advantages)
    mask = mask.bool()
    # Whatever stands behind the mask, NaN included, must not reach a gradient: 0·NaN in a backward pass is NaN.
    logps = torch.where(mask, logps, 0.0)
    losses = _surrogate(preset, logps, old_logps, advantages, mask)  # (B, T)
    if in_loss:
        ratio = importance_ratio(logps, old_logps, mask)
        losses = losses + preset.kl_coef * kl_estimate(logps, ref_logps.detach(), preset.kl_estimator, ratio=ratio)
    loss = aggregate(losses, mask, preset.aggregate, denominator=denominator, max_new_tokens=max_new_tokens)
    with torch.no_grad():
        return loss, _metrics(preset, logps, old_logps, advantages, mask, ref_logps)


def value_loss(
    values: Tensor,
    returns: Tensor,
    mask: Tensor,
    *,
    old_values: Tensor | None = None,
    clip: float | None = None,
    denominator: Tensor | float | None = None,
) -> Tensor:
    """Half the mean squared error of the critic over real tokens.

    With ``clip`` the error of a token is the larger of two: that of its value, and that of its value kept within
    ``clip`` of the old one. The maximum is pessimistic, as PPO's minimum is: it takes the gradient from a value that
    has already moved by more than ``clip`` towards its target.

    Args:
        values: (B, T) with their graph.
        returns: (B, T) targets.
        mask: (B, T) true on real tokens.
        old_values: (B, T) the critic's values when the completions were sampled, for ``clip``.
        clip: in units of reward; ``None`` does not clip.
        denominator: real tokens of the whole batch; ``None``: of this mask.

    Raises:
        ValueError: ``clip`` without ``old_values``.
    """
    mask, returns = mask.bool(), returns.detach()
    errors = torch.where(mask, values - returns, 0.0).square()
    if clip is not None:
        if old_values is None:
            raise ValueError("clipping the value needs old_values, the critic's values when sampling")
        old_values = old_values.detach()
        near = old_values + (values - old_values).clamp(-clip, clip)
        errors = torch.maximum(errors, torch.where(mask, near - returns, 0.0).square())
    return aggregate(errors, mask, "token", denominator=denominator) / 2


def _surrogate(preset: Preset, logps: Tensor, old_logps: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    match preset.surrogate:
        case "clip":
            bounds = {"clip_low": preset.clip_low, "clip_high": preset.clip_high}
            return clipped_surrogate(logps, old_logps, advantages, mask, level=preset.level, **bounds)
        case "cispo":
            return cispo_surrogate(logps, old_logps, advantages, mask, clip_high=preset.clip_high)
        case "sapo":
            taus = {"tau_pos": preset.tau_pos, "tau_neg": preset.tau_neg}
            return sapo_surrogate(logps, old_logps, advantages, mask, **taus)
        case "reinforce":
            return reinforce_surrogate(logps, advantages, mask)


def _metrics(preset, logps, old_logps, advantages, mask, ref_logps) -> dict[str, Tensor]:
    ratio, advantages = importance_ratio(logps, old_logps, mask, preset.level), per_token(advantages, mask)
    below, above = torch.zeros_like(mask), torch.zeros_like(mask)
    if preset.surrogate == "clip":
        below = (ratio < 1 - preset.clip_low) & (advantages < 0)
        above = (ratio > 1 + preset.clip_high) & (advantages > 0)
    elif preset.surrogate == "cispo":
        above = ratio > 1 + preset.clip_high
    of_tokens = {"clip_fraction_low": below.float(), "clip_fraction_high": above.float(), "ratio_mean": ratio}
    if ref_logps is not None:
        of_tokens |= {f"kl_{kind}": kl_estimate(logps, ref_logps, kind) for kind in ("k1", "k3")}
    return {name: aggregate(values, mask, "token") for name, values in of_tokens.items()}


def _check_shapes(logps: Tensor, *, advantages: Tensor, **others: Tensor | None) -> None:
    for name, tensor in others.items():
        if tensor is not None and tensor.shape != logps.shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, but logps has {tuple(logps.shape)} (B, T)")
    if advantages.shape not in (logps.shape, logps.shape[:1]):
        raise ValueError(
            f"advantages has shape {tuple(advantages.shape)}, but must be {tuple(logps.shape[:1])} (B,) or "
            f"{tuple(logps.shape)} (B, T)"
        )
