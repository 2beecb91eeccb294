"""How much better than expected: reward minus baseline, scaled; GAE and whitening for PPO."""

import math

import torch
from torch import Tensor

from grpo_from_scratch.objective.baselines import EMABaseline, group_mean, leave_one_out
from grpo_from_scratch.objective.groups import check_groups, group_statistics
from grpo_from_scratch.objective.presets import Preset, get_preset
from grpo_from_scratch.objective.shaping import Rewards, check_rewards, exact_rewards

EPS = 1e-4  # outside the root, and far above the rounding noise of a float32 mean


def group_relative_advantages(rewards: Rewards, groups: Tensor, *, scale: str = "group", eps: float = EPS) -> Tensor:
    """(r − mean of its group) / (std + eps), DeepSeekMath's advantage (arXiv 2402.03300, section 4.1.2).

    A group whose valid rewards are all equal, or that has only one, gets exactly 0.

    Args:
        rewards: (B,), ``None`` or NaN where missing.
        groups: (B,) integer ids: any ids, any order, any sizes.
        scale: see ``scaled_advantages``.
        eps: added to the std.

    Returns:
        (B,) in the rewards' precision; 0 where the reward is missing.

    Raises:
        ValueError: an infinite reward, groups that do not match, an unknown scale, an eps that is not positive.
    """
    rewards, exact = check_rewards(rewards), exact_rewards(rewards)
    return scaled_advantages(exact, group_mean(exact, groups), groups, scale=scale, eps=eps).to(rewards)


def scaled_advantages(
    rewards: Tensor, baseline: Tensor, groups: Tensor, *, scale: str = "none", eps: float = EPS
) -> Tensor:
    """(reward − baseline) / (std + eps).

    Args:
        rewards: (B,), NaN where missing.
        baseline: (B,) what each reward is compared with.
        groups: (B,) integer ids.
        scale: whose unbiased std divides: that of the row's "group", that of the whole "batch" of rewards (arXiv
            2508.08221), or "none" (Dr. GRPO, arXiv 2503.20783), which alone leaves the gradient's direction as it is.
        eps: added to the std.

    Returns:
        (B,), 0 where the reward is missing.

    Raises:
        ValueError: an infinite reward, groups that do not match, an unknown scale, an eps that is not positive.
    """
    rewards = check_rewards(rewards)
    if scale not in ("group", "batch", "none"):
        raise ValueError(f"scale must be group, batch or none, not {scale!r}")
    if not eps > 0:
        raise ValueError(f"eps must be positive, or a group of equal rewards divides 0 by 0; it is {eps}")
    advantages = torch.where(rewards.isnan(), 0.0, rewards - baseline)
    if scale == "none":
        return advantages
    groups = check_groups(groups, rewards)
    stats = group_statistics(rewards, groups if scale == "group" else torch.zeros_like(groups))
    return advantages / (stats.per_row(stats.std) + eps)


def compute_advantages(
    preset: str | Preset, rewards: Rewards, groups: Tensor, *, ema: EMABaseline | None = None
) -> Tensor:
    """The advantages of one batch of completions under a preset without a critic.

    Args:
        preset: a preset or its name.
        rewards: (B,) over all ranks, ``None`` or NaN where missing.
        groups: (B,) integer ids: of the prompt, or of the semantic group; with groups "batch" all rows are one group
            whatever the ids.
        ema: the moving averages, for baseline "ema". They are used and not updated: do that once the step was taken.

    Returns:
        (B,) in the rewards' precision; 0 where the reward is missing.

    Raises:
        ValueError: a preset with a critic, an EMA that is missing, and what ``group_relative_advantages`` refuses.
    """
    preset = get_preset(preset)
    rewards, exact = check_rewards(rewards), exact_rewards(rewards)
    groups = check_groups(groups, exact)
    if preset.groups == "batch":
        groups = torch.zeros_like(groups)
    match preset.baseline:
        case "mean":
            baseline = group_mean(exact, groups)
        case "leave_one_out":
            baseline = leave_one_out(exact, groups)
        case "none":
            baseline = torch.zeros_like(exact)
        case "ema":
            if ema is None:
                raise ValueError("baseline 'ema' needs the moving averages: pass ema=EMABaseline(alpha, init)")
            baseline = ema(exact, groups)
        case "critic":
            raise ValueError("a preset with a critic has an advantage for each token: use token_rewards and gae")
    return scaled_advantages(exact, baseline, groups, scale=preset.scale).to(rewards)


def gae(
    rewards: Tensor,
    values: Tensor,
    mask: Tensor,
    *,
    bootstrap_value: Tensor | None = None,
    gamma: float = 1.0,
    lam: float = 0.95,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation over real tokens (Schulman et al. 2015, arXiv 1506.02438, eq. 16).

    Args:
        rewards: (B, T) each token's reward.
        values: (B, T) the critic's value before each token.
        mask: (B, T) true on real tokens; the others are stepped over.
        bootstrap_value: (B,) the value after the last real token, for a rollout that goes on. ``None``: the rollout is
            over and nothing follows, also when it was cut at its length limit and its score is paid.
        gamma: discount per token.
        lam: λ; 1 gives returns minus values, 0 one-step errors.

    Returns:
        advantages (B, T) and returns (B, T) = advantages + values, both 0 where the mask is false.
    """
    mask, values = mask.bool(), values.detach()
    next_value = torch.zeros_like(values[:, 0]) if bootstrap_value is None else bootstrap_value
    running = torch.zeros_like(values[:, 0])  # (B,) the advantage of the real token that follows
    columns = []
    for t in reversed(range(values.shape[1])):
        real = mask[:, t]
        error = rewards[:, t] + gamma * next_value - values[:, t]
        running = torch.where(real, error + gamma * lam * running, running)
        next_value = torch.where(real, values[:, t], next_value)
        columns.append(running)
    advantages = torch.where(mask, torch.stack(columns[::-1], dim=1), 0.0)  # (B, T)
    return advantages, torch.where(mask, advantages + values, 0.0)


def masked_whiten(values: Tensor, mask: Tensor, *, shift_mean: bool = True, eps: float = EPS) -> Tensor:
    """Values (B, T) shifted and scaled to mean 0 and unbiased std 1 over the real tokens; 0 elsewhere.

    Args:
        values: (B, T).
        mask: (B, T) true on real tokens.
        shift_mean: False keeps the mean where it was and scales around it.
        eps: added to the std.
    """
    mask = mask.bool()
    real = values[mask]
    stats = group_statistics(real, torch.zeros_like(real, dtype=torch.int64))
    mean, std = stats.mean.sum(), stats.std.sum()  # one number each, or 0 without any real token
    whitened = (values - mean) / (std + eps)
    return torch.where(mask, whitened if shift_mean else whitened + mean, 0.0)


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> float:
    """1 − Var(returns − values)/Var(returns) over the real tokens: what a critic knows beyond a constant.

    Args:
        values, returns: (B, T), or (B,) of whole completions.
        mask: of the same shape, true on what counts.

    Returns:
        At most 1, below 0 when a constant would do better; NaN when the returns do not vary.
    """
    mask = mask.bool()
    values, returns = values[mask].cpu().double(), returns[mask].cpu().double()
    if len(returns) < 2 or returns.min() == returns.max():
        return math.nan
    return float(1 - (returns - values).var() / returns.var())
