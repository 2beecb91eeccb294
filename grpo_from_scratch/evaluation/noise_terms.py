"""What the noise of a policy gradient is made of, estimated without bias, and what it is under two baselines.

A batch has B prompts with G completions each, N = B·G. Its gradient is the mean of advantage · s, where the score s is
the gradient of the summed log-prob of a completion y of prompt x, so that E[s|x] = 0. A reward is r = µ + δ + ε with
the prompt effect δ(x) and E[ε|x] = 0. The expectations that matter:

    h = E[r·s|x], the prompt's own gradient     H = E‖h‖²            signal = ‖E h‖² = ‖∇J‖²     V = H − signal
    F = E‖s‖²      S_W = E[ε²‖s‖²]      S_B = E[δ²‖s‖²]      S_X = 2·E[δ·ε·‖s‖²]      T = S_W + S_B + S_X
    S_WF = E[σ²·E[‖s‖²|x]], where σ² is the reward variance within the prompt

Without clipping, std or length normalisation, N · trace of the gradient's covariance is then

    global, advantage r − µ:                  G·V + T − H
    group, r − mean of the group's others:    G·V + S_W + S_WF/(G − 1) − H·(G − 2)/(G − 1)

exactly: the second is the variance of a U-statistic with kernel ½(r − r')(s − s') (Hoeffding 1948), the first that of a
mean of groups. Arrays named ``weights`` are (..., P): how often each prompt stands in a resample.
"""

from dataclasses import dataclass

import numpy as np

from grpo_from_scratch.distributed.randomness import numpy_generator
from grpo_from_scratch.evaluation.intervals import Interval, quantiles, resample

Array = np.ndarray
Terms = dict[str, Array]  # each (...), as the weights' leading dimensions
MIN_PROMPTS, MIN_REPLIES = 3, 3  # a prompt needs two others for µ², a completion two others for σ²


@dataclass(frozen=True)
class Pool:
    """P prompts drawn independently, n completions each: what the terms are estimated from."""

    rewards: Array  # (P, n)
    norms: Array  # (P, n) each completion's ‖s‖²
    own: Array  # (P,) unbiased estimate of each prompt's ‖h‖²
    gram: Array  # (P, P) inner products of the prompts' unbiased estimates of h; the diagonal is not used


def prompt_gradient(rewards: Array, scores: Array) -> Array:
    """Unbiased estimate of h from one prompt's rewards (n,) and scores (n, D), the rows' type: (D,)."""
    n = len(rewards)
    return (rewards - rewards.mean()).astype(scores.dtype) @ scores / (n - 1)


def own_norm(rewards: Array, products: Array) -> float:
    """Unbiased estimate of ‖h‖² from one prompt's rewards (n,) and the inner products (n, n) of its scores.

    The mean over pairs of (r − b)(r' − b)·s·s', with the mean b of the n − 2 rewards that are not in the pair.
    """
    n = len(rewards)
    others = (rewards.sum() - rewards[:, None] - rewards) / (n - 2)
    pairs = (rewards[:, None] - others) * (rewards - others) * products
    return float((pairs.sum() - np.trace(pairs)) / (n * (n - 1)))


def terms(pool: Pool, weights: Array | None = None) -> Terms:
    """H, V, F, S_W, S_B, S_X, S_WF, T and the signal, each unbiased, so that single values may be below 0.

    Every product of means is a mean over products of different completions, and of different prompts where two prompts
    are meant. Copies of one prompt in a resample are not different.
    """
    weights = np.ones(len(pool.rewards)) if weights is None else weights
    rewards, norms = pool.rewards, pool.norms
    n = rewards.shape[1]
    others = (rewards.sum(1, keepdims=True) - rewards) / (n - 1)  # (P, n) mean of the prompt's other rewards
    deviations = rewards[:, None, :] - others[:, :, None]  # (P, n, n) of every reward from that mean
    squares = (deviations**2).sum(2) - (rewards - others) ** 2
    variance = squares / (n - 2)  # (P, n) of the others
    of_mean = variance / (n - 1)
    mean, mean_square = _means_of_others(rewards.mean(1), weights)  # (..., P) µ and µ² without the prompt's own rewards

    def per_prompt(values: Array) -> Array:
        return (values * norms).mean(1)  # (P,)

    def average(values: Array) -> Array:
        return (weights * values).sum(-1) / weights.sum(-1)

    within = average(per_prompt((rewards - others) ** 2 - of_mean))
    squared = per_prompt(others**2 - of_mean)
    between = average(squared - 2 * mean * per_prompt(others) + mean_square * norms.mean(1))
    crossed = per_prompt(others * (rewards - others) + of_mean)
    cross = 2 * average(crossed - mean * per_prompt(rewards - others))
    H, signal = average(pool.own), mean_over_pairs(pool.gram, weights)
    return {
        "H": H,
        "V": H - signal,
        "F": average(norms.mean(1)),
        "S_W": within,
        "S_B": between,
        "S_X": cross,
        "S_WF": average(per_prompt(variance)),
        "T": within + between + cross,
        "signal": signal,
    }


def _means_of_others(means: Array, weights: Array) -> tuple[Array, Array]:
    """For each prompt, of the other prompts' mean rewards (P,): their mean, and the mean product of two of them."""
    first, second = weights * means, (weights * means) ** 2
    total = weights.sum(-1, keepdims=True) - weights
    pairs = total**2 - (weights**2).sum(-1, keepdims=True) + weights**2
    total_mean = first.sum(-1, keepdims=True) - first
    with np.errstate(invalid="ignore", divide="ignore"):  # a resample without two other prompts knows nothing: NaN
        products = (total_mean**2 - second.sum(-1, keepdims=True) + second) / pairs
        return total_mean / total, products


def mean_over_pairs(values: Array, weights: Array) -> Array:
    """Mean of ``values`` (n, n) over pairs of different rows, weighted: (...). NaN without two different rows."""
    off_diagonal = values - np.diag(np.diag(values))
    with np.errstate(invalid="ignore", divide="ignore"):
        return ((weights @ off_diagonal) * weights).sum(-1) / (weights.sum(-1) ** 2 - (weights**2).sum(-1))


def global_noise(known: Terms, group_size: int) -> Array:
    """N · trace of the gradient's covariance when advantages are r − µ."""
    return group_size * known["V"] + known["T"] - known["H"]


def group_noise(known: Terms, group_size: int) -> Array:
    """N · trace of the gradient's covariance when advantages are r − mean of the group's others."""
    others = group_size - 1
    return group_size * known["V"] + known["S_W"] + (known["S_WF"] - known["H"] * (group_size - 2)) / others


def best_group_size(known: Terms) -> Array:
    """The real number G at which ``group_noise`` is least: 1 + √((S_WF + H)/V); infinite where V is not positive."""
    V = known["V"]
    return 1 + np.sqrt(np.divide(known["S_WF"] + known["H"], V, out=np.full_like(V, np.inf), where=V > 0))


def noise_to_signal(noise: Array, known: Terms, batch: int) -> Array:
    """trCov / ‖∇J‖² of a batch of so many completions; infinite where the pool does not show a signal."""
    signal = batch * known["signal"]
    return np.divide(noise, signal, out=np.full_like(signal, np.inf), where=signal > 0)


def measured_noise(products: Array, weights: Array, batch: int) -> Array:
    """N · trace of the covariance of gradients, from the inner products (M, M) of M independent ones: (...)."""
    norms = np.diag(products)
    return batch * mean_over_pairs((norms[:, None] + norms) / 2 - products, weights)


def resample_weights(count: int, *, resamples: int = 2000) -> Array:
    """(1 + resamples, count): first every row once, then how often a bootstrap resample has each."""
    drawn = resample(np.zeros(count, dtype=int), count=resamples, generator=numpy_generator(0, "noise bootstrap"))
    return np.vstack([np.ones(count), (drawn[:, :, None] == np.arange(count)).sum(1)])


def interval(samples: Array) -> Interval:
    """A number and its 95 % interval from its value (the first) and its resamples; what is unknown widens it."""
    value, draws = float(samples[0]), samples[1:]
    known = ~np.isnan(draws)
    low, high = quantiles(np.where(known, draws, -np.inf), np.where(known, draws, np.inf))
    return Interval(value, float(low), float(high))
