"""When a group pays: the noise of the gradient under a global and under a per-prompt baseline, on enumerable bandits.

Prompts are equally likely, completions are arms of one softmax policy over features; N = B·G completions a step.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from grpo_from_scratch.objective.advantages import compute_advantages, explained_variance
from grpo_from_scratch.objective.groups import first_order_noise_ratio, icc
from grpo_from_scratch.objective.presets import PRESETS

LEAVE_ONE_OUT = replace(PRESETS["rloo"], kl_coef=0.0)


def bandit(seed, prompts=3, arms=3, features=4, offset=1.0):
    """probabilities (X, A), scores ∇log π (X, A, D) and rewards (X, A); ``offset`` is the size of the prompt effect."""
    draw = np.random.default_rng(seed)
    phi = draw.normal(size=(prompts, arms, features))
    logits = phi @ draw.normal(size=features)
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    scores = phi - np.einsum("xa,xad->xd", probabilities, phi)[:, None]
    return probabilities, scores, draw.normal(size=(prompts, arms)) + offset * draw.normal(size=(prompts, 1))


def uniform_bandit(offset, arms=256, prompts=400):
    """The form's conditions: all score norms equal, and so many arms that noise dominates."""
    draw = np.random.default_rng(0)
    scores = np.broadcast_to(np.eye(arms) - 1 / arms, (prompts, arms, arms))
    rewards = draw.normal(size=(prompts, arms)) + offset * draw.normal(size=(prompts, 1))
    return np.full((prompts, arms), 1 / arms), scores, rewards


def moments(probabilities, scores, rewards):
    """The expectations that the exact formula is made of."""
    mean = (probabilities * rewards).sum(1, keepdims=True)  # (X, 1) of each prompt
    delta, epsilon = mean - mean.mean(), rewards - mean
    norm = (scores**2).sum(-1)
    of_prompt = np.einsum("xa,xa,xad->xd", probabilities, epsilon, scores)  # each prompt's true gradient

    def expect(values):
        return float((probabilities * values).sum(1).mean())

    within = (probabilities * epsilon**2).sum(1)
    H = float((of_prompt**2).sum(1).mean())
    return {
        "H": H,
        "V": H - float((of_prompt.mean(0) ** 2).sum()),
        "S_W": expect(epsilon**2 * norm),
        "T": expect((delta + epsilon) ** 2 * norm),
        "S_WF": float((within * (probabilities * norm).sum(1)).mean()),
        "icc": float((delta**2).mean() / ((delta**2).mean() + within.mean())),
    }


def exact_noise(m, group_size):
    """N·tr Cov of the gradient: (under the global mean of all rewards, under leave-one-out)."""
    between = group_size * m["V"]
    leave_one_out = m["S_W"] + m["S_WF"] / (group_size - 1) - m["H"] * (group_size - 2) / (group_size - 1)
    return between + m["T"] - m["H"], between + leave_one_out


def enumerated_noise(probabilities, scores, rewards, group_size):
    """The same two numbers from every prompt and every group of completions, with the package's advantages."""
    prompts, arms = probabilities.shape
    outcomes = torch.cartesian_prod(*[torch.arange(arms)] * group_size).numpy()  # (n, G)
    weight = probabilities[:, outcomes].prod(2) / prompts  # (X, n)
    sampled = rewards[:, outcomes]  # (X, n, G)
    groups = torch.arange(prompts * len(outcomes)).repeat_interleave(group_size)
    leave_one_out = compute_advantages(LEAVE_ONE_OUT, torch.from_numpy(sampled.flatten()), groups)
    noise = []
    for advantages in (sampled - (probabilities * rewards).sum(1).mean(), leave_one_out.numpy().reshape(sampled.shape)):
        estimates = np.einsum("xng,xngd->xnd", advantages, scores[:, outcomes]) / group_size
        mean = np.einsum("xn,xnd->d", weight, estimates)
        noise.append(group_size * float((weight * ((estimates - mean) ** 2).sum(-1)).sum()))
    return tuple(noise)


@pytest.mark.parametrize("group_size", [2, 3, 4])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_exact_noise_formula(seed, group_size):
    setting = bandit(seed)
    assert exact_noise(moments(*setting), group_size) == pytest.approx(enumerated_noise(*setting, group_size))


@pytest.mark.parametrize("group_size", [2, 4, 8])
@pytest.mark.parametrize("offset", [0.0, 0.5, 1.0, 2.0])
def test_first_order_noise_ratio_under_its_conditions(offset, group_size):
    m = moments(*uniform_bandit(offset))
    global_mean, group = exact_noise(m, group_size)
    assert first_order_noise_ratio(m["icc"], group_size) == pytest.approx(global_mean / group, rel=0.05)


@pytest.mark.parametrize("known", [0.0, 0.5, 0.9])
def test_first_order_noise_ratio_of_a_critic(known):
    """A critic that knows a part of the prompt effect has 1 − EV of the constant's noise."""
    group_size, (probabilities, scores, rewards) = 4, uniform_bandit(1.5)
    mean = rewards.mean(1, keepdims=True)
    values = np.broadcast_to(mean.mean() + known * (mean - mean.mean()), rewards.shape)
    everything = torch.ones(rewards.shape)
    ev = explained_variance(torch.from_numpy(values.copy()), torch.from_numpy(rewards), everything)
    critic, _ = exact_noise(moments(probabilities, scores, rewards - values), group_size)
    m = moments(probabilities, scores, rewards)
    _, group = exact_noise(m, group_size)
    assert (ev > 0.3) == (known > 0)
    assert first_order_noise_ratio(m["icc"], group_size, explained_variance=ev) == pytest.approx(
        critic / group, rel=0.05
    )


def test_first_order_noise_ratio_is_not_a_law():
    """Surprising answers that carry large scores and deviate against the prompt effect make it promise too much."""
    probabilities = np.array([[0.95, 0.05], [0.95, 0.05]])
    rewards = np.array([[1.0, 0.2], [-1.0, -0.2]])
    phi = np.broadcast_to(np.eye(2), (2, 2, 2))
    scores = phi - np.einsum("xa,xad->xd", probabilities, phi)[:, None]
    m = moments(probabilities, scores, rewards)
    global_mean, group = exact_noise(m, 8)
    assert first_order_noise_ratio(m["icc"], 8) > 2 * global_mean / group


def test_group_mean_has_the_noise_to_signal_of_leave_one_out():
    """Without a std, each group's estimate is (G−1)/G of leave-one-out's, noise and signal alike."""
    rewards, groups = torch.randn(12, generator=torch.Generator().manual_seed(0)).double(), torch.arange(3).repeat(4)
    group_mean, leave_one_out = (compute_advantages(name, rewards, groups) for name in ("dr_grpo", LEAVE_ONE_OUT))
    torch.testing.assert_close(group_mean, leave_one_out * 3 / 4)


@pytest.mark.parametrize("group_size", [2, 4, 8])
def test_icc_estimates_the_share_between_prompts(group_size):
    """Whatever the group size; 20,000 prompts of a bandit whose share is known."""
    probabilities, _, rewards = bandit(3)
    draw = np.random.default_rng(1)
    prompts = draw.integers(0, len(rewards), 20_000)
    uniforms = draw.random((20_000, group_size, 1))
    arms = (uniforms > probabilities.cumsum(1)[prompts][:, None, :]).sum(-1).clip(max=2)  # (M, G)
    sampled = torch.from_numpy(rewards[prompts[:, None], arms].flatten())
    groups = torch.arange(20_000).repeat_interleave(group_size)
    assert icc(sampled, groups) == pytest.approx(moments(*bandit(3))["icc"], abs=0.02)
