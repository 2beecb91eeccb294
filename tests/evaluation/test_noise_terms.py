"""The noise terms: every estimator against enumeration of a bandit, gradients against a plain loop."""

import itertools

import numpy as np
import pytest
import torch

from grpo_from_scratch.evaluation import noise_terms
from grpo_from_scratch.evaluation.intervals import Interval
from grpo_from_scratch.evaluation.noise_cell import noise_cell, resampled_icc
from grpo_from_scratch.evaluation.noise_gradients import inner_products, policy_gradients, scores
from grpo_from_scratch.evaluation.noise_terms import (
    Pool,
    global_noise,
    group_noise,
    interval,
    measured_noise,
    own_norm,
    prompt_gradient,
    resample_weights,
    terms,
)
from grpo_from_scratch.objective.advantages import compute_advantages
from grpo_from_scratch.objective.groups import icc
from grpo_from_scratch.policy.loading import new_tiny_policy
from grpo_from_scratch.policy.sampling import sample


class Bandit:
    """Equally likely prompts, whose completions are arms of one softmax policy over features: all is enumerable."""

    def __init__(self, seed: int, *, prompts: int = 3, arms: int = 3, features: int = 4, offset: float = 1.0):
        draw = np.random.default_rng(seed)
        phi = draw.normal(size=(prompts, arms, features))
        logits = phi @ draw.normal(size=features)
        self.probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)  # (X, A)
        self.scores = phi - np.einsum("xa,xad->xd", self.probabilities, phi)[:, None]  # (X, A, D)
        self.rewards = draw.normal(size=(prompts, arms)) + offset * draw.normal(size=(prompts, 1))

    def expect(self, values: np.ndarray) -> float:
        return float((self.probabilities * values).sum(1).mean())

    def true_terms(self) -> dict[str, float]:
        """The letters by their definitions."""
        p, s, r = self.probabilities, self.scores, self.rewards
        mean = (p * r).sum(1, keepdims=True)
        delta, epsilon, norm = mean - mean.mean(), r - mean, (s**2).sum(-1)
        h = np.einsum("xa,xa,xad->xd", p, r, s)
        H, signal = float((h**2).sum(1).mean()), float((h.mean(0) ** 2).sum())
        return {
            "H": H,
            "V": H - signal,
            "F": self.expect(norm),
            "S_W": self.expect(epsilon**2 * norm),
            "S_B": self.expect(delta**2 * norm),
            "S_X": 2 * self.expect(delta * epsilon * norm),
            "S_WF": float(((p * epsilon**2).sum(1) * (p * norm).sum(1)).mean()),
            "T": self.expect((r - mean.mean()) ** 2 * norm),
            "signal": signal,
        }

    def true_noise(self, group_size: int) -> tuple[float, float]:
        """N · trCov by enumerating every prompt and group of completions, with the package's advantages."""
        prompts, arms = self.probabilities.shape
        outcomes = np.array(list(itertools.product(range(arms), repeat=group_size)))  # (n, G)
        weight = self.probabilities[:, outcomes].prod(2) / prompts  # (X, n)
        sampled = self.rewards[:, outcomes]  # (X, n, G)
        groups = torch.arange(prompts * len(outcomes)).repeat_interleave(group_size)
        others = compute_advantages("rloo", torch.from_numpy(sampled.flatten()), groups).numpy()
        found = []
        for advantages in (sampled - self.expect(self.rewards), others.reshape(sampled.shape)):
            gradients = np.einsum("xng,xngd->xnd", advantages, self.scores[:, outcomes]) / group_size
            mean = np.einsum("xn,xnd->d", weight, gradients)
            found.append(group_size * float((weight * ((gradients - mean) ** 2).sum(-1)).sum()))
        return tuple(found)

    def pool(self, prompts: list[int], arms: np.ndarray) -> Pool:
        """The pool of these prompts (P,) and their completions (P, n)."""
        rewards = np.array([self.rewards[x, a] for x, a in zip(prompts, arms, strict=True)])
        score = np.array([self.scores[x, a] for x, a in zip(prompts, arms, strict=True)])  # (P, n, D)
        estimates = np.array([prompt_gradient(r, s) for r, s in zip(rewards, score, strict=True)])
        own = np.array([own_norm(r, s @ s.T) for r, s in zip(rewards, score, strict=True)])
        return Pool(rewards, (score**2).sum(-1), own, estimates @ estimates.T)

    def draw(self, prompts: int, completions: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        x = generator.integers(len(self.rewards), size=prompts)
        uniforms = generator.random((prompts, completions, 1))
        return x, (uniforms > self.probabilities.cumsum(1)[x][:, None]).sum(-1)


@pytest.mark.parametrize("seed", [0, 1])
def test_terms_have_the_right_expectation(seed):
    """Over all 4096 pools of three prompts with three completions each."""
    bandit = Bandit(seed, prompts=2, arms=2, features=3)
    replies = list(itertools.product(range(2), repeat=3))
    expected = dict.fromkeys(bandit.true_terms(), 0.0)
    for prompts in itertools.product(range(2), repeat=3):
        for arms in itertools.product(replies, repeat=3):
            chosen = [bandit.probabilities[x, list(a)].prod() for x, a in zip(prompts, arms, strict=True)]
            found = terms(bandit.pool(list(prompts), np.array(arms)))
            for name in expected:
                expected[name] += np.prod(chosen) / 2**3 * float(found[name])
    assert expected == pytest.approx(bandit.true_terms(), abs=1e-9)


@pytest.mark.parametrize("group_size", [2, 3, 4])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_exact_formula_is_the_enumerated_covariance(seed, group_size):
    bandit = Bandit(seed)
    known = {name: np.array(value) for name, value in bandit.true_terms().items()}
    found = float(global_noise(known, group_size)), float(group_noise(known, group_size))
    assert found == pytest.approx(bandit.true_noise(group_size), abs=1e-9)


def test_terms_of_weights_are_those_of_the_repeated_prompts_without_pairs_of_copies():
    bandit = Bandit(0)
    pool = bandit.pool(*bandit.draw(6, 4, np.random.default_rng(0)))
    weights = np.array([[1, 1, 1, 1, 1, 1], [2, 0, 1, 1, 2, 0], [0, 1, 1, 1, 0, 0]])
    found = terms(pool, weights)
    plain = terms(pool)
    few = slice(1, 4)
    cut = terms(Pool(pool.rewards[few], pool.norms[few], pool.own[few], pool.gram[few, few]))
    for name in plain:
        assert found[name][0] == pytest.approx(plain[name])
        assert found[name][2] == pytest.approx(cut[name]), "a prompt of weight 0 is not there"
    signal = [pool.gram[i, j] for i, j in itertools.permutations(np.repeat(np.arange(6), weights[1]), 2) if i != j]
    assert found["signal"][1] == pytest.approx(np.mean(signal))
    assert found["H"][1] == pytest.approx(np.repeat(pool.own, weights[1]).mean())


def test_terms_do_not_depend_on_where_rewards_begin():
    bandit = Bandit(1)
    prompts, arms = bandit.draw(5, 4, np.random.default_rng(0))
    before = terms(bandit.pool(prompts, arms))
    bandit.rewards = bandit.rewards + 10
    after = terms(bandit.pool(prompts, arms))
    assert {n: float(v) for n, v in after.items()} == pytest.approx({n: float(v) for n, v in before.items()})


def test_best_group_size_is_the_least_noise():
    known = {name: np.array(value) for name, value in Bandit(2).true_terms().items()}
    sizes = np.linspace(1.01, 60, 100_000)
    least = sizes[np.argmin([float(group_noise(known, size)) for size in sizes])]
    assert float(noise_terms.best_group_size(known)) == pytest.approx(least, abs=1e-2)
    none = noise_terms.best_group_size(known | {"V": np.array(-1.0)})
    assert np.isinf(none)


def bandit_batches(bandit: Bandit, group_size: int, *, batch: int, batches: int) -> tuple[np.ndarray, np.ndarray]:
    """Inner products of batch gradients under both baselines, by numpy alone."""
    prompts, arms = bandit.draw(batch // group_size * batches, group_size, np.random.default_rng(group_size))
    rewards, score = bandit.rewards[prompts[:, None], arms], bandit.scores[prompts[:, None], arms]
    others = (rewards.sum(1, keepdims=True) - rewards) / (group_size - 1)
    products = []
    for advantages in (rewards - bandit.expect(bandit.rewards), rewards - others):
        gradients = (advantages[..., None] * score).reshape(batches, batch, -1).mean(1)
        products.append(gradients @ gradients.T)
    return tuple(products)


@pytest.mark.parametrize("group_size", [2, 8])
def test_measured_ratio_and_pool_agree_with_the_enumerated_one(group_size):
    bandit = Bandit(0, prompts=6, arms=4, features=6)
    truth = bandit.true_terms()
    known = {name: np.array(value) for name, value in truth.items()}
    exact = float(global_noise(known, group_size) / group_noise(known, group_size))
    products = {group_size: bandit_batches(bandit, group_size, batch=64, batches=300)}
    pool = bandit.pool(*bandit.draw(300, 16, np.random.default_rng(5)))
    cell = noise_cell("bandit", "fine-tuned", 0, pool=pool, products=products, batch=64)
    (group,) = cell["groups"]
    for name in ("exact", "measured"):
        found = Interval.from_json(group[name])
        assert found.low < exact < found.high and found.high / found.low < 2, name
    assert cell["terms"]["T"]["low"] < truth["T"] < cell["terms"]["T"]["high"]
    assert cell["terms"]["signal"]["value"] == pytest.approx(truth["signal"], rel=0.3)
    assert cell["best_shapes"]["value"] == pytest.approx(
        float(global_noise(known, 1) / min(group_noise(known, size) for size in (2, 4, 8, 16, 32, 64))), rel=0.2
    )


def test_measured_noise_is_the_trace_of_the_covariance():
    gradients = np.random.default_rng(0).normal(size=(7, 5))
    found = measured_noise(gradients @ gradients.T, resample_weights(7, resamples=3), 64)
    assert found[0] == pytest.approx(64 * np.trace(np.cov(gradients.T)))
    assert found.shape == (4,)


def test_resample_weights_count_what_was_drawn():
    weights = resample_weights(9, resamples=50)
    assert (weights[0] == 1).all() and (weights.sum(1) == 9).all() and weights[1:].var() > 0.5


def test_resampled_icc_is_the_packages():
    rewards = np.random.default_rng(0).normal(size=(5, 4)) + np.arange(5)[:, None]
    weights = np.array([np.ones(5), [2, 0, 1, 1, 1]])
    copies = rewards[[0, 0, 2, 3, 4]]
    expected = [icc(torch.from_numpy(r).flatten(), torch.arange(5).repeat_interleave(4)) for r in (rewards, copies)]
    assert resampled_icc(rewards, weights) == pytest.approx(expected)


def test_interval_widens_with_what_is_unknown():
    draws = np.arange(100.0)
    assert interval(np.array([50.0, *draws])) == Interval(50.0, 2.0, 97.0)
    assert interval(np.array([50.0, *draws, *[np.nan] * 10])) == Interval(50.0, -np.inf, np.inf)


@pytest.fixture(scope="module")
def tiny():
    model, tokenizer = new_tiny_policy(["red green blue one two three"], hidden_size=16, layers=2, heads=2)
    model = model.double()
    rollout = sample(model, tokenizer, ["red green", "one two three"], group_size=3, max_new_tokens=6, seed=1)
    return model, rollout


def plain_score(model, rollout, row: int) -> torch.Tensor:
    """One completion's score by a plain forward pass over its own tokens, and backward."""
    prompt = rollout.prompt_index[row]
    question = rollout.prompt_ids[prompt][rollout.prompt_mask[prompt]]
    answer = rollout.completion_ids[row][rollout.completion_mask[row]]
    logits = model(input_ids=torch.cat([question, answer])[None]).logits[0]
    logps = torch.log_softmax(logits[len(question) - 1 : -1], -1).gather(1, answer[:, None])
    model.zero_grad()
    logps.sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def test_scores_are_those_of_a_plain_loop(tiny):
    model, rollout = tiny
    assert rollout.completion_mask.sum(1).unique().numel() > 1  # padding is there to go wrong
    expected = torch.stack([plain_score(model, rollout, row) for row in range(len(rollout))])
    found = scores(model, rollout)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)  # log-probs are float32
    advantages = torch.tensor([[1.0, -2.0, 0.5, 0.0, 3.0, -1.0], [1.0] * 6])
    mixed = policy_gradients(model, rollout, advantages)
    torch.testing.assert_close(mixed, advantages.double() @ expected / 6, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(torch.from_numpy(inner_products(found)), expected @ expected.T, atol=1e-3, rtol=1e-5)
