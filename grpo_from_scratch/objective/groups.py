"""Who is compared with whom: statistics of groups given by ids, and semantic groups found by KMeans."""

import math
import warnings
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import silhouette_score
from torch import Tensor

from grpo_from_scratch.objective.shaping import Rewards, check_rewards, exact_rewards


@dataclass(frozen=True)
class GroupStatistics:
    """Statistics of the valid rewards of n groups; a missing reward counts nowhere.

    Attributes:
        ids: (n,) the groups' ids, ascending.
        position: (B,) where each row's group stands in ``ids``.
        count: (n,) valid rewards.
        mean: (n,) their mean; NaN in a group without any.
        std: (n,) their unbiased (n-1) standard deviation; 0 in a group with fewer than two.
    """

    ids: Tensor
    position: Tensor
    count: Tensor
    mean: Tensor
    std: Tensor

    def per_row(self, per_group: Tensor) -> Tensor:
        """(n,) one value for each group -> (B,) each row's."""
        return per_group[self.position]

    @property
    def without_signal(self) -> Tensor:
        """(n,) true where all valid rewards are equal, so that nobody in the group stands out."""
        return self.std == 0


def group_statistics(rewards: Rewards, groups: Tensor) -> GroupStatistics:
    """Count, mean and std of the rewards of each group, in the rewards' precision.

    Args:
        rewards: (B,), NaN where missing.
        groups: (B,) integer ids: any ids, any order, any sizes.

    Raises:
        ValueError: see ``check_rewards``; groups that are not integers or do not match the rewards.
    """
    rewards = check_rewards(rewards)
    ids, position = torch.unique(check_groups(groups, rewards), return_inverse=True)  # (n,), (B,)
    valid = ~rewards.isnan()
    count = _sum_by_group(valid.long(), position, len(ids))
    # Distances to the group's smallest reward, not the rewards themselves, are averaged: equal rewards then give a mean
    # and a std without any rounding residue, and a large common offset costs no digits.
    low = rewards.new_full((len(ids),), math.inf)
    low = low.scatter_reduce(0, position[valid], rewards[valid], "amin")
    above = torch.where(valid, rewards - low[position], 0.0)
    mean_above = _sum_by_group(above, position, len(ids)) / count.clamp(min=1)
    deviation = torch.where(valid, above - mean_above[position], 0.0)
    variance = _sum_by_group(deviation.square(), position, len(ids)) / (count - 1).clamp(min=1)
    mean = torch.where(count > 0, low + mean_above, math.nan)
    return GroupStatistics(ids=ids, position=position, count=count, mean=mean, std=variance.sqrt())


def check_groups(groups: Tensor, rewards: Tensor) -> Tensor:
    """Group ids as an int64 tensor (B,) on the rewards' device.

    Raises:
        ValueError: the ids are not integers, or not one for each reward.
    """
    groups = torch.as_tensor(groups, device=rewards.device)
    if groups.is_floating_point() or groups.shape != rewards.shape:
        raise ValueError(
            f"groups must be integer ids of shape {tuple(rewards.shape)}, one for each reward, "
            f"but are {groups.dtype} of shape {tuple(groups.shape)}"
        )
    return groups.long()


def _sum_by_group(values: Tensor, position: Tensor, count: int) -> Tensor:
    return values.new_zeros(count).index_add(0, position, values)


def icc(rewards: Rewards, groups: Tensor) -> float:
    """Intraclass correlation: the share of reward variance that lies between groups, by the ANOVA estimator.

    (MSB − MSW) / (MSB + (n₀ − 1)·MSW), with n₀ = (N − Σ nᵢ²/N)/(n − 1), which is the group size when all are equal
    (Donner 1986, Int. Stat. Review 54, section 2). The variance of the group means over the total variance is not it:
    pure noise gives that about 1/G. Can be negative.

    Args:
        rewards: (B,), NaN where missing.
        groups: (B,) integer ids.

    Returns:
        The estimate, at most 1; NaN with fewer than two groups, without any group of two, or without any variance.
    """
    rewards = exact_rewards(rewards)
    stats = group_statistics(rewards, groups)
    some = stats.count > 0
    sizes, means, stds = stats.count[some].double(), stats.mean[some], stats.std[some]
    total, groups_count = sizes.sum(), len(sizes)
    if groups_count < 2 or total == groups_count:
        return math.nan
    grand_mean = (sizes * (means - means[0])).sum() / total + means[0]
    between = (sizes * (means - grand_mean).square()).sum() / (groups_count - 1)
    within = ((sizes - 1) * stds.square()).sum() / (total - groups_count)
    typical_size = (total - sizes.square().sum() / total) / (groups_count - 1)
    spread = between + (typical_size - 1) * within
    return float((between - within) / spread) if spread > 0 else math.nan


def first_order_noise_ratio(icc: float, group_size: int, *, explained_variance: float = 0.0) -> float:
    """Gradient noise (trace of the covariance) of a global constant baseline over that of a group mean, to first order.

    (1 − EV)·(1 − 1/G)/(1 − ICC), where EV is the explained variance of a critic put in the constant's place. Right when
    score norms are unrelated to reward and prompt, noise dominates the differences between prompts, and advantages are
    not divided by a std. A diagnostic of one checkpoint, not a forecast of learning speed.
    """
    within = 1 - icc
    return (1 - explained_variance) * (1 - 1 / group_size) / within if within else math.inf


def reward_metrics(rewards: Rewards, groups: Tensor) -> dict[str, float]:
    """What a log says about rewards (B,) in groups (B,); missing rewards are counted and otherwise left out.

    ``reward_std`` is over the batch and ``reward_std_within`` the mean of the groups' own: only the latter tells
    whether a group-relative advantage has anything to work with.
    """
    rewards = exact_rewards(rewards)
    stats = group_statistics(rewards, groups)
    whole = group_statistics(rewards, torch.zeros_like(stats.position))
    return {
        "reward_mean": float(whole.mean.sum()),
        "reward_std": float(whole.std.sum()),
        "reward_std_within": float(stats.std.mean()),
        "reward_missing": float(rewards.isnan().double().mean()),
        "groups_without_signal": float(stats.without_signal.double().mean()),
        "icc": icc(rewards, groups),
    }


class SemanticGroups:
    """Groups of like-minded replies: KMeans on their embeddings, with ids that mean the same from call to call.

    KMeans numbers its clusters afresh in every fit, but an EMA baseline is kept by id. So every id remembers its last
    centre: a fit starts from the remembered centres when their number fits, and its centres then take the ids of the
    remembered ones by the cheapest one-to-one matching (Hungarian method). Ids that a batch does not need are kept.

    Args:
        num_groups: k; or (low, high), and each call takes the k within it with the best silhouette (Rousseeuw 1987).
        seed: of KMeans' own starts.

    Raises:
        ValueError: ``num_groups`` is not a positive integer or a pair 2 <= low <= high.
    """

    def __init__(self, num_groups: int | tuple[int, int] = 3, seed: int = 0):
        self.low, self.high = group_range(num_groups)
        self.seed = seed
        self.centers = np.empty((0, 0))  # (known, H)
        self.ids = np.empty(0, dtype=np.int64)  # (known,) the id of each remembered centre
        self._warned = False

    def assign(self, embeddings: Tensor | np.ndarray) -> Tensor:
        """Fit the groups to this batch and remember their centres.

        k is lowered to the number of distinct rows, with one warning in this object's life. Fresh ids go to clusters in
        the order of their first row.

        Args:
            embeddings: (N, H); N may be 0.

        Returns:
            (N,) int64 ids within 0..high-1.

        Raises:
            ValueError: a row holds NaN or inf (the message names the rows), or H is not that of the calls before.
        """
        points = torch.as_tensor(embeddings).detach().cpu().double().numpy()
        if len(points) == 0:
            return torch.empty(0, dtype=torch.int64)
        self._check(points)
        labels = self._cluster(points)  # (N,) 0..k-1 in order of first appearance
        centers = np.stack([points[labels == label].mean(0) for label in range(labels.max() + 1)])
        return torch.from_numpy(self._name(centers)[labels])

    def state_dict(self) -> dict[str, Tensor]:
        """The remembered centres (known, H) float64 and their ids (known,) int64."""
        return {"centers": torch.from_numpy(self.centers.copy()), "ids": torch.from_numpy(self.ids.copy())}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take over what ``state_dict`` gave.

        Raises:
            ValueError: the state has ids that ``num_groups`` does not allow.
        """
        ids = state["ids"].numpy().astype(np.int64)
        if len(ids) and ids.max() >= self.high:
            raise ValueError(f"the state has group {ids.max()}, but num_groups allows 0..{self.high - 1}")
        self.centers, self.ids = state["centers"].numpy().astype(np.float64), ids.copy()

    def _check(self, points: np.ndarray) -> None:
        if points.ndim != 2:
            raise ValueError(f"embeddings must have shape (N, H), but have {points.shape}")
        broken = np.flatnonzero(~np.isfinite(points).all(1)).tolist()
        if broken:
            raise ValueError(f"embeddings must be finite, but rows {broken} hold NaN or inf: look at those replies")
        if len(self.ids) and points.shape[1] != self.centers.shape[1]:
            raise ValueError(f"embeddings have size {points.shape[1]}, but those before had {self.centers.shape[1]}")

    def _cluster(self, points: np.ndarray) -> np.ndarray:
        distinct = _count_distinct(points)
        if distinct < self.low and not self._warned:
            warnings.warn(f"only {distinct} distinct embeddings: using {distinct} groups, not {self.low}", stacklevel=3)
            self._warned = True
        # A silhouette needs at least one cluster with two members.
        largest = max(self.low, min(self.high, len(points) - 1))
        candidates = range(min(self.low, distinct), min(largest, distinct) + 1)
        fits = [self._fit(points, k) for k in candidates]
        if len(fits) == 1:
            return fits[0]
        return max(fits, key=lambda labels: silhouette_score(points, labels))

    def _fit(self, points: np.ndarray, k: int) -> np.ndarray:
        """Labels (N,) of one KMeans fit, numbered by first appearance; an empty cluster has no number."""
        if k == len(self.ids):
            kmeans = KMeans(k, init=self.centers, n_init=1, random_state=self.seed)
        else:
            kmeans = KMeans(k, n_init=10, random_state=self.seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # fewer clusters than asked for: said in _cluster
            labels = kmeans.fit_predict(points)
        _, first_row, inverse = np.unique(labels, return_index=True, return_inverse=True)
        return np.argsort(np.argsort(first_row))[inverse]

    def _name(self, centers: np.ndarray) -> np.ndarray:
        """Ids (k,) for these centres (k, H): remembered ones by matching, then fresh ones; remembers the centres."""
        names = np.full(len(centers), -1, dtype=np.int64)
        if len(self.ids):
            distance = np.linalg.norm(centers[:, None] - self.centers[None], axis=2)  # (k, known)
            new, known = linear_sum_assignment(distance)
            names[new] = self.ids[known]
        unused = np.setdiff1d(np.arange(self.high), self.ids)
        names[names < 0] = unused[: (names < 0).sum()]
        memory = dict(zip(self.ids.tolist(), self.centers, strict=True)) | dict(
            zip(names.tolist(), centers, strict=True)
        )
        self.ids = np.array(sorted(memory), dtype=np.int64)
        self.centers = np.stack([memory[name] for name in sorted(memory)])
        return names


def group_range(num_groups: int | tuple[int, int]) -> tuple[int, int]:
    """(low, high) of a number of groups or of a range to choose from.

    Raises:
        ValueError: not a positive integer, nor a pair 2 <= low <= high.
    """
    pair = num_groups if isinstance(num_groups, tuple | list) else (num_groups, num_groups)
    if len(pair) == 2 and all(isinstance(number, int) and not isinstance(number, bool) for number in pair):
        low, high = pair
        if 2 <= low <= high or 1 <= low == high == num_groups:
            return low, high
    raise ValueError(f"num_groups must be a positive integer or (low, high) with 2 <= low <= high, not {num_groups!r}")


def _count_distinct(points: np.ndarray) -> int:
    """Rows that differ by more than float32 noise: one reply, embedded in two batches, must not become two groups."""
    scale = np.abs(points).max() or 1.0
    return len(np.unique(np.round(points / scale, 6), axis=0))
