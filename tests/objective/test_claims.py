"""What the course says about baselines, clusters, averaging and KL, by exact enumeration on small softmax policies.

Every expectation here is a sum over all outcomes, weighted by their probabilities; nothing is sampled. The noise of the
gradient and when a group pays are in test_claims_noise.py.
"""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from grpo_from_scratch.objective.advantages import compute_advantages, gae
from grpo_from_scratch.objective.baselines import EMABaseline
from grpo_from_scratch.objective.kl import exact_kl, kl_estimate
from grpo_from_scratch.objective.loss import policy_loss
from grpo_from_scratch.objective.presets import PRESETS
from grpo_from_scratch.objective.shaping import token_rewards
from grpo_from_scratch.objective.surrogates import importance_ratio, reinforce_surrogate

LEAVE_ONE_OUT = replace(PRESETS["rloo"], kl_coef=0.0)
GROUP_MEAN = PRESETS["dr_grpo"]
GROUP_STD = replace(GROUP_MEAN, scale="group")


def cosine(a, b):
    return float((a.flatten() @ b.flatten()) / (a.norm() * b.norm()))


def random_logits(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- Bandits: one prompt is one row of logits, a completion is one token --------------------------------------------


def true_gradient(logits, rewards):
    """∇J of J = Σ_a π(a)·r(a), for one prompt (A,)."""
    logits = logits.clone().requires_grad_()
    return torch.autograd.grad((logits.softmax(-1) * rewards).sum(), logits)[0]


def expected_gradient(preset, logits, rewards, group_size):
    """The gradient that the preset's step follows, averaged over every group of completions one prompt can have."""
    logits = logits.clone().requires_grad_()
    outcomes = torch.cartesian_prod(*[torch.arange(len(logits))] * group_size)  # (n, G) arms
    groups = torch.arange(len(outcomes)).repeat_interleave(group_size)
    advantages = compute_advantages(preset, rewards[outcomes].flatten(), groups)
    probability = logits.softmax(-1).detach()[outcomes].prod(1)[groups]  # (n·G,) of the outcome a row is in
    logps = logits.log_softmax(-1)[outcomes].reshape(-1, 1)
    # The loss is linear in the advantages, so the outcomes' probabilities can go in with them.
    loss, _ = policy_loss(
        replace(preset, dynamic_sampling=False),
        logps=logps,
        old_logps=logps.detach(),
        advantages=advantages * probability,
        mask=torch.ones_like(logps),
        denominator=group_size,
    )
    return -torch.autograd.grad(loss, logits)[0]


LOGITS, REWARDS = torch.tensor([0.8, -0.3, 0.1]).double(), torch.tensor([1.0, 0.2, 0.5]).double()


@pytest.mark.parametrize("group_size", [2, 3, 4])
def test_leave_one_out_is_unbiased(group_size):
    found = expected_gradient(LEAVE_ONE_OUT, LOGITS, REWARDS, group_size)
    torch.testing.assert_close(found, true_gradient(LOGITS, REWARDS))


@pytest.mark.parametrize("group_size", [2, 3, 4])
def test_group_mean_scales_the_gradient(group_size):
    found = expected_gradient(GROUP_MEAN, LOGITS, REWARDS, group_size)
    torch.testing.assert_close(found, true_gradient(LOGITS, REWARDS) * (group_size - 1) / group_size)


@pytest.mark.parametrize("group_size, reweights", [(2, False), (3, False), (4, True), (8, True)])
def test_sample_std_reweights_prompts(group_size, reweights):
    """Binary rewards: each prompt keeps its direction, but from G = 4 on the easier of two weighs more than it should.

    In groups of two or three, every group with both rewards has the same std, so that all prompts scale alike.
    """
    weights = []
    for easiness in (0.0, 3.0):
        logits, rewards = torch.tensor([easiness, 0.0]).double(), torch.tensor([1.0, 0.0]).double()
        found, true = expected_gradient(GROUP_STD, logits, rewards, group_size), true_gradient(logits, rewards)
        assert cosine(found, true) == pytest.approx(1)
        weights.append(float(found.norm() / true.norm()))
    assert (weights[1] > 1.05 * weights[0]) if reweights else weights[1] == pytest.approx(weights[0])


@pytest.mark.parametrize("group_size", [2, 3, 4])
def test_sample_std_turns_the_direction(group_size):
    """Rewards with more than two values: not even one prompt keeps its direction."""
    logits, rewards = torch.tensor([-2.0, 0, 1]).double(), torch.tensor([1.0, 0.0, 0.1]).double()
    true = true_gradient(logits, rewards)
    assert cosine(expected_gradient(GROUP_STD, logits, rewards, group_size), true) < 0.6
    assert cosine(expected_gradient(GROUP_MEAN, logits, rewards, group_size), true) == pytest.approx(1)


def test_dropping_groups_without_signal_reweights_prompts():
    """Why 'nothing filtered' is said: with filtered groups sampled again, a prompt's gradient grows by 1/P(signal)."""
    group_size, rewards = 3, torch.tensor([1.0, 0, 0]).double()
    growth = []
    for easiness in (0.0, 3.0):
        logits = torch.tensor([easiness, 0.2, -0.1]).double()
        success = float(logits.softmax(-1)[0])
        signal = 1 - success**group_size - (1 - success) ** group_size
        # Groups without signal add nothing, so the mean over the others is the whole mean over P(signal).
        given_signal = expected_gradient(LEAVE_ONE_OUT, logits, rewards, group_size) / signal
        growth.append(float(given_signal.norm() / true_gradient(logits, rewards).norm()))
        assert growth[-1] == pytest.approx(1 / signal)
    assert growth[1] > 1.5 * growth[0]


# --- Cluster baselines: the group is known by what was answered -----------------------------------------------------


def cluster_gradient(logits, rewards, clusters, values):
    """E[(r − b_c)·∇log π] under the article's preset with the EMA at ``values``; prompts (P,) are equally likely.

    logits, rewards, clusters: (P, A). Returns (P, A).
    """
    ema = EMABaseline()
    ema.load_state_dict({"ids": torch.arange(len(values)), "values": values})
    advantages = compute_advantages("cluster_ema", rewards.flatten(), clusters.flatten(), ema=ema)
    logits = logits.clone().requires_grad_()
    logps = logits.log_softmax(-1).reshape(-1, 1)
    loss, _ = policy_loss(
        "cluster_ema",
        logps=logps,
        old_logps=logps.detach(),
        advantages=advantages * logps.detach()[:, 0].exp(),
        mask=torch.ones_like(logps),
        denominator=len(logits),
    )
    return -torch.autograd.grad(loss, logits)[0]


def tracked_values(logits, rewards, clusters, count):
    """E[r | cluster] over all prompts: what the moving averages settle at under a fixed policy."""
    probabilities = logits.softmax(-1)
    return torch.stack(
        [(probabilities * rewards)[clusters == c].sum() / probabilities[clusters == c].sum() for c in range(count)]
    )


def test_cluster_baseline_removes_the_gradient_between_clusters():
    """One prompt: ∇J = Σ ∇P(c)·E[Q|c] + Σ P(c)·∇E[Q|c], and the first sum is gone, exactly."""
    logits, rewards = random_logits(1, 6), random_logits(1, 6, seed=1)
    clusters = torch.tensor([[0, 1, 2, 0, 1, 2]])
    values = tracked_values(logits, rewards, clusters, 3)

    variable = logits.clone().requires_grad_()
    probabilities = variable.softmax(-1)
    shares = torch.stack([probabilities[clusters == c].sum() for c in range(3)])
    means = torch.stack([(probabilities * rewards)[clusters == c].sum() for c in range(3)]) / shares
    (between,) = torch.autograd.grad((shares * means.detach()).sum(), variable, retain_graph=True)
    (within,) = torch.autograd.grad((shares.detach() * means).sum(), variable)

    torch.testing.assert_close(between + within, true_gradient(logits, rewards))
    torch.testing.assert_close(cluster_gradient(logits, rewards, clusters, values), within)
    assert between.norm() > 0.5 * within.norm()  # it was something


def test_shared_cluster_baseline_removes_the_average_preference():
    """Clusters shared over prompts: what is removed is Σ b_c·∇P̄(c), for any values b."""
    logits, rewards = random_logits(4, 6, seed=2), random_logits(4, 6, seed=3)
    clusters = torch.stack([torch.randperm(6, generator=torch.Generator().manual_seed(p)) % 3 for p in range(4)])
    for values in (tracked_values(logits, rewards, clusters, 3), random_logits(3, seed=4)):
        variable = logits.clone().requires_grad_()
        probabilities = variable.softmax(-1)
        average_share = torch.stack([probabilities[clusters == c].sum() for c in range(3)]) / 4
        (removed,) = torch.autograd.grad((average_share * values).sum(), variable)
        found = cluster_gradient(logits, rewards, clusters, values)
        torch.testing.assert_close(found, true_gradient(logits, rewards) / 4 - removed)


def test_shared_cluster_baseline_forgets_which_kind_is_better_on_average():
    """Rewards that depend on the kind alone leave no gradient at all."""
    logits, clusters = random_logits(4, 6, seed=5), torch.arange(6).expand(4, 6) % 3
    rewards = torch.tensor([0.0, 0.4, 1.0]).double()[clusters]
    found = cluster_gradient(logits, rewards, clusters, tracked_values(logits, rewards, clusters, 3))
    assert found.abs().max() < 1e-12 and true_gradient(logits, rewards).norm() > 0.1


def test_shared_cluster_baseline_learns_which_kind_suits_the_prompt():
    """Kinds that are equally good on average, and each better for its own prompts, are learnt as if unbiased."""
    logits, clusters = torch.zeros(2, 4).double(), torch.tensor([[0, 0, 1, 1]] * 2)
    rewards = torch.tensor([[1.0, 1, 0, 0], [0, 0, 1, 1]]).double()
    found = cluster_gradient(logits, rewards, clusters, tracked_values(logits, rewards, clusters, 2))
    torch.testing.assert_close(found, true_gradient(logits, rewards) / 2)


@pytest.mark.parametrize(
    "explained, biases",
    [(0.9, {1: 0.0, 2: 0.68, 3: 0.80, 8: 0.96}), (0.0, {1: 0.0, 2: 0.27, 3: 0.41, 8: 0.82})],
)
def test_cluster_bias_on_twelve_arms(explained, biases):
    """Mean of |bias|/|∇J| over 200 random 12-arm bandits, when clusters explain most of the reward and none of it."""
    for count, expected in biases.items():
        found = []
        for seed in range(200):
            draw = np.random.default_rng(seed)
            clusters = np.arange(12) % count
            kind_rewards = draw.normal(0, 1, count)[clusters]
            rewards = explained * kind_rewards + np.sqrt(1 - explained**2) * draw.normal(0, 1, 12)
            probabilities = np.exp(draw.normal(0, 0.5, 12))
            probabilities /= probabilities.sum()
            share = np.array([probabilities[clusters == c].sum() for c in range(count)])
            value = np.array([(probabilities * rewards)[clusters == c].sum() for c in range(count)]) / share
            true = probabilities * (rewards - probabilities @ rewards)
            advantages = rewards - value[clusters]
            biased = probabilities * (advantages - probabilities @ advantages)
            found.append(np.linalg.norm(biased - true) / np.linalg.norm(true))
        assert np.mean(found) == pytest.approx(expected, abs=0.006)


def test_start_at_the_global_mean_hides_the_bias_for_a_while():
    """After t updates the share 1 − αᵗ of the bias is there; started at the groups' own means all of it is, at once."""
    logits, clusters = torch.tensor([[0.3, 0.3, 0.2, 0.2]]).double().log(), torch.tensor([[0, 0, 1, 1]])
    rewards = torch.tensor([[1.0, 0.6, 0.3, 0.1]]).double()
    # One batch with each arm as often as its probability says: its means are the expectations.
    arms = torch.tensor([0] * 3 + [1] * 3 + [2] * 2 + [3] * 2)
    batch = rewards[0, arms], clusters[0, arms]
    true = true_gradient(logits, rewards)
    full_bias = cluster_gradient(logits, rewards, clusters, tracked_values(logits, rewards, clusters, 2)) - true
    averages = {init: EMABaseline(0.99, init) for init in ("global_mean", "group_first")}
    for step in range(50):
        for init, ema in averages.items():
            values = torch.stack([ema(*batch)[batch[1] == c][0] for c in range(2)])  # as used, before the update
            bias = cluster_gradient(logits, rewards, clusters, values) - true
            share = 1 - 0.99**step if init == "global_mean" else 1.0
            torch.testing.assert_close(bias, share * full_bias)
            ema.update(*batch)


# --- Sequences: tokens 0 and 1, end of sequence 2, at most two tokens -----------------------------------------------

PREFIXES = [(), (0,), (1,)]
COMPLETIONS = [(2,), (0, 2), (1, 2), (0, 0), (0, 1), (1, 0), (1, 1)]
MASK = torch.tensor([[t < len(y) for t in range(2)] for y in COMPLETIONS])  # (7, 2)


def sequence_logps(logits):
    """(7, 2) log-prob of each token of each completion; logits (3, 3) of the next token after each prefix."""
    table = logits.log_softmax(-1)
    rows = [
        [table[PREFIXES.index(y[:t]), y[t]] if t < len(y) else table.new_zeros(()) for t in range(2)]
        for y in COMPLETIONS
    ]
    return torch.stack([torch.stack(row) for row in rows])


@pytest.fixture
def tree():
    """Logits with their graph, the completions' log-probs (7, 2) and fixed probabilities (7,)."""
    logits = random_logits(3, 3, seed=1).requires_grad_()
    logps = sequence_logps(logits)
    return logits, logps, logps.detach().sum(1).exp()


def gradient(value, logits):
    return torch.autograd.grad(value, logits, retain_graph=True)[0]


@pytest.mark.parametrize("how, unbiased", [("constant", True), ("sequence", False), ("token", False)])
def test_averaging_by_a_sampled_length_biases(tree, how, unbiased):
    """Leave-one-out over all pairs of completions: only the constant divisor leaves the gradient's direction alone."""
    logits, logps, probabilities = tree
    rewards = torch.tensor([0.1, 1.0, 0.0, 0.4, 0.9, 0.2, 0.6]).double()
    preset, expected = replace(LEAVE_ONE_OUT, aggregate=how), torch.zeros_like(logits)
    assert probabilities.sum().item() == pytest.approx(1)
    for pair in itertools.product(range(7), repeat=2):
        rows = list(pair)
        advantages = compute_advantages(preset, rewards[rows], torch.zeros(2, dtype=torch.int64))
        loss, _ = policy_loss(
            preset,
            logps=logps[rows],
            old_logps=logps[rows].detach(),
            advantages=advantages,
            mask=MASK[rows],
            max_new_tokens=2,
        )
        expected -= probabilities[rows].prod() * gradient(loss, logits)
    true = gradient((logps.sum(1).exp() * rewards).sum(), logits)
    if unbiased:
        torch.testing.assert_close(expected * 2, true)  # 2 = max_new_tokens
    else:
        assert cosine(expected, true) < 0.996


def expected_kl_loss_gradient(kind, tree, ref_logps):
    """Of the estimator used as a loss: summed over tokens, averaged over completions whose probabilities are held."""
    logits, logps, probabilities = tree
    ratio = importance_ratio(logps, logps.detach(), MASK)
    estimate = torch.where(MASK, kl_estimate(logps, ref_logps, kind, ratio=ratio), 0.0).sum(1)
    return gradient((probabilities * estimate).sum(), logits)


def test_kl_losses_have_the_gradients_of_kl_per_token(tree):
    """Given the prefix: k1 nothing, k2 and ratio-weighted k3 KL(π‖ref), k3 KL(ref‖π)."""
    logits, logps, probabilities = tree
    ref = 2 * random_logits(3, 3, seed=7)
    ref_logps = sequence_logps(ref)
    reach = torch.stack([logits.new_ones(()), *logits.softmax(-1)[0, :2]]).detach()  # P(prefix), held
    forward = gradient((reach * exact_kl(logits, ref)).sum(), logits)
    reverse = gradient((reach * exact_kl(ref, logits)).sum(), logits)
    expected = {"k1": torch.zeros_like(forward), "k2": forward, "k3_weighted": forward, "k3": reverse}
    for kind, of_kind in expected.items():
        torch.testing.assert_close(expected_kl_loss_gradient(kind, tree, ref_logps), of_kind)
    assert (forward - reverse).norm() > 0.2 * forward.norm()


def test_only_kl_in_the_reward_sees_later_prefixes(tree):
    """The KL of whole completions: no per-token loss has its gradient, k1 in the reward (γ = λ = 1) does."""
    logits, logps, probabilities = tree
    ref_logps = sequence_logps(2 * random_logits(3, 3, seed=7))
    whole_kl = (logps.sum(1).exp() * (logps - ref_logps).sum(1)).sum()
    true = gradient(whole_kl, logits)
    for kind in ("k1", "k2", "k3", "k3_weighted"):
        assert (expected_kl_loss_gradient(kind, tree, ref_logps) - true).norm() > 0.1 * true.norm()

    penalties = token_rewards(torch.zeros(7).double(), MASK, logps=logps, ref_logps=ref_logps, kl_coef=1.0)
    to_come, _ = gae(penalties, torch.zeros_like(penalties), MASK, gamma=1.0, lam=1.0)
    for advantages in (to_come, penalties.sum(1)):  # with a critic's machinery, and as one penalised reward
        loss = reinforce_surrogate(logps, advantages, MASK).sum(1)
        torch.testing.assert_close(gradient((probabilities * loss).sum(), logits), true)
    shortened, _ = gae(penalties, torch.zeros_like(penalties), MASK, gamma=1.0, lam=0.5)
    loss = reinforce_surrogate(logps, shortened, MASK).sum(1)
    assert (gradient((probabilities * loss).sum(), logits) - true).norm() > 0.05 * true.norm()
