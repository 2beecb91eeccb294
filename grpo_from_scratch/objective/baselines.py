"""With what a reward is compared: the group's mean, the others' mean, a group's moving average."""

import torch
from torch import Tensor

from grpo_from_scratch.objective.groups import GroupStatistics, group_statistics
from grpo_from_scratch.objective.shaping import Rewards, check_rewards, exact_rewards

EMA_INITS = ("group_first", "global_mean")


def group_mean(rewards: Rewards, groups: Tensor) -> Tensor:
    """Each row's group mean (B,) over valid rewards, NaN where there is none (DeepSeekMath, arXiv 2402.03300).

    It contains the row's own reward, which scales the expected gradient by (G-1)/G and does nothing else to it.
    """
    stats = group_statistics(rewards, groups)
    return stats.per_row(stats.mean)


def leave_one_out(rewards: Rewards, groups: Tensor) -> Tensor:
    """The mean of the other valid rewards of each row's group (B,): unbiased (Kool et al. 2019; arXiv 2402.14740).

    A row with no others to be compared with gets its own reward, hence the advantage 0.
    """
    rewards = check_rewards(rewards)
    stats = group_statistics(rewards, groups)
    mean, count = stats.per_row(stats.mean), stats.per_row(stats.count)
    others_mean = mean - (rewards - mean) / (count - 1).clamp(min=1)
    return torch.where((count > 1) & ~rewards.isnan(), others_mean, mean)


def batch_mean(rewards: Rewards) -> Tensor:
    """The mean of all valid rewards, for each row (B,)."""
    rewards = check_rewards(rewards)
    return group_mean(rewards, torch.zeros_like(rewards, dtype=torch.int64))


class EMABaseline:
    """An exponential moving average of each group's reward: b ← α·b + (1−α)·(the group's mean in this batch).

    Call it *before* ``update``: a baseline that already contains the rewards it judges shrinks every advantage by α.
    The batch's mean counts once, however many rows the group has, so the result does not depend on the order of the
    rows. A group that a batch lacks keeps its value.

    Args:
        alpha: the weight of the old value, within [0, 1].
        init: where a group starts that has not been seen. "group_first": at its own mean in the first batch that has
            it; "global_mean": at the mean of that whole batch.

    Raises:
        ValueError: ``alpha`` or ``init`` is not one of these.
    """

    def __init__(self, alpha: float = 0.95, init: str = "group_first"):
        if not 0 <= alpha <= 1:
            raise ValueError(f"alpha, the weight of the old value, must be within [0, 1], but is {alpha}")
        if init not in EMA_INITS:
            raise ValueError(f"init must be one of {EMA_INITS}, not {init!r}")
        self.alpha = alpha
        self.init = init
        self.values: dict[int, float] = {}

    def __call__(self, rewards: Rewards, groups: Tensor) -> Tensor:
        """Each row's baseline (B,) before this batch; a group not seen before gets the value it would start at.

        Args:
            rewards: (B,), NaN where missing.
            groups: (B,) integer ids that mean the same in every batch.
        """
        stats, current = self._current(rewards, groups)
        return stats.per_row(current).to(check_rewards(rewards))

    def update(self, rewards: Rewards, groups: Tensor) -> None:
        """Take the batch's group means in, once for each group that has a valid reward."""
        stats, current = self._current(rewards, groups)
        # b + (1−α)(mean − b), since α·b + (1−α)·b need not round to b.
        moved = current + (1 - self.alpha) * (stats.mean - current)
        seen = stats.count > 0
        self.values.update(zip(stats.ids[seen].tolist(), moved[seen].tolist(), strict=True))

    def state_dict(self) -> dict[str, Tensor]:
        """The groups' ids (n,) int64 and values (n,) float64."""
        return {
            "ids": torch.tensor(list(self.values), dtype=torch.int64),
            "values": torch.tensor(list(self.values.values()), dtype=torch.float64),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take over what ``state_dict`` gave."""
        self.values = dict(zip(state["ids"].tolist(), state["values"].tolist(), strict=True))

    def _current(self, rewards: Rewards, groups: Tensor) -> tuple[GroupStatistics, Tensor]:
        """The batch's statistics and, in float64, each of its groups' value (n,) before it."""
        rewards = exact_rewards(rewards)
        stats = group_statistics(rewards, groups)
        start = stats.mean if self.init == "group_first" else batch_mean(rewards)[:1].expand(len(stats.ids))
        known = [self.values.get(id, float("nan")) for id in stats.ids.tolist()]
        known = torch.tensor(known, dtype=torch.float64)
        return stats, torch.where(known.isnan(), start, known)
