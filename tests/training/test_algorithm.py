import copy
import math
from dataclasses import replace

import pytest
import torch

from grpo_from_scratch.objective.presets import PRESETS
from grpo_from_scratch.training.algorithm import Algorithm
from grpo_from_scratch.training.experience import Experience
from grpo_from_scratch.training.sft import starting_policy
from grpo_from_scratch.training.updates import Updater


@pytest.fixture
def begin(make_config):
    """(config, algorithm, updater, rollout, rewards) of a run's first step; the rewards are the ones given."""

    def make(rewards: list[float] | None = None, **changes):
        config = make_config(**changes)
        experience = Experience(config)
        model, tokenizer = starting_policy(config.model, config.data, experience.train_examples, config.seed)
        algorithm = Algorithm(config, model)
        collected = experience.collect(model, tokenizer, step=0, first_prompt=0)
        given = collected.rewards if rewards is None else torch.tensor(rewards)
        return config, algorithm, Updater(config, algorithm), collected.rollout, given

    return make


REWARDS = [float(i % 5) for i in range(12)]  # 4 prompts x 3 completions


def plain_logps(model, rollout) -> torch.Tensor:
    """Log-probs (B, T) by one plain forward for each completion, without any padding."""
    logps = torch.zeros(rollout.completion_ids.shape)
    for b in range(len(rollout)):
        prompt = rollout.prompt_ids[rollout.prompt_index[b]][rollout.prompt_mask[rollout.prompt_index[b]]]
        reply = rollout.completion_ids[b][rollout.completion_mask[b]]
        logits = model(input_ids=torch.cat([prompt, reply])[None]).logits[0, len(prompt) - 1 : -1]
        logps[b, : len(reply)] = torch.log_softmax(logits.float(), -1).gather(1, reply[:, None])[:, 0]
    return logps


def test_loss_is_zero_at_the_first_step_but_its_gradient_is_not(begin):
    """LOSS-01: on-policy the ratio is 1 and centred advantages sum to 0; the gradient is that of Σ A·log π."""
    _, algorithm, _, rollout, rewards = begin(REWARDS, preset=replace(PRESETS["grpo"], kl_coef=0.0))
    batch, _ = algorithm.prepare(rollout, rewards)
    loss, metrics = algorithm.loss(batch, denominator=torch.tensor(12), tokens=batch.mask.sum())
    loss.backward()
    got = torch.cat([p.grad.flatten() for p in algorithm.model.parameters()])

    twin = copy.deepcopy(algorithm.model)
    twin.zero_grad()
    groups = torch.tensor(REWARDS).view(4, 3)
    advantages = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).flatten()
    lengths = rollout.completion_mask.sum(1)
    (-(plain_logps(twin, rollout).sum(1) / lengths * advantages).mean()).backward()
    want = torch.cat([p.grad.flatten() for p in twin.parameters()])
    assert abs(loss.item()) < 1e-6 and float(metrics["ratio_mean"]) == 1.0
    assert want.norm() > 1e-3 and torch.allclose(got, want, atol=1e-6)


def test_prepare_keeps_old_logps_while_the_policy_moves(begin):
    """LOSS-11: in pass 1 the ratio is 1, in pass 2 it is not, and the old log-probs are the same bits."""
    config, algorithm, updater, rollout, rewards = begin(
        REWARDS, preset=replace(PRESETS["grpo"], passes=2, kl_coef=0.0), learning_rate=0.1, warmup=0
    )
    batch, _ = algorithm.prepare(rollout, rewards)
    before = batch.old_logps.clone()
    _, first = algorithm.loss(batch, denominator=torch.tensor(12), tokens=batch.mask.sum())
    updater.step(batch, 0)
    _, second = algorithm.loss(batch, denominator=torch.tensor(12), tokens=batch.mask.sum())
    assert updater.updates == 2
    assert abs(float(first["ratio_mean"]) - 1) < 1e-5 < abs(float(second["ratio_mean"]) - 1)
    assert torch.equal(batch.old_logps, before)


@pytest.mark.parametrize("cut", [{"top_k": 3}, {"top_p": 0.5}])
def test_prepare_scores_again_what_was_sampled_from_a_cut_distribution(begin, cut):
    """The sampler's log-probs are of the cut distribution; the ratio needs the policy's own."""
    _, algorithm, _, rollout, rewards = begin(REWARDS, preset=replace(PRESETS["grpo"], passes=2), **cut)
    batch, _ = algorithm.prepare(rollout, rewards)
    mask = rollout.completion_mask
    assert torch.allclose(batch.old_logps[mask], plain_logps(algorithm.model, rollout)[mask], atol=1e-5)
    assert not torch.allclose(batch.old_logps[mask], rollout.logps[mask], atol=1e-2)


def test_reference_is_a_frozen_copy(begin):
    """LOSS-12: KL is 0 before a step and more after; the reference keeps its bits and takes no gradient."""
    _, algorithm, updater, rollout, rewards = begin(REWARDS, preset="grpo", learning_rate=0.1, warmup=0)
    start = {name: p.clone() for name, p in algorithm.reference.named_parameters()}
    batch, _ = algorithm.prepare(rollout, rewards)
    denominator = torch.tensor(12)
    _, before = algorithm.loss(batch, denominator=denominator, tokens=batch.mask.sum())
    updater.step(batch, 0)
    _, after = algorithm.loss(batch, denominator=denominator, tokens=batch.mask.sum())
    assert float(before["kl_k3"]) < 1e-6 < 1e-3 < float(after["kl_k3"])
    assert all(
        torch.equal(p, start[name]) and not p.requires_grad for name, p in algorithm.reference.named_parameters()
    )
    trained = {id(p) for group in updater.optimizer.param_groups for p in group["params"]}
    assert trained == {id(p) for p in algorithm.model.parameters()}


@pytest.mark.parametrize("name, wanted", [("dr_grpo", False), ("grpo", True), ("cluster_ema", True), ("ppo", True)])
def test_reference_exists_only_where_something_reads_it(begin, name, wanted):
    _, algorithm, *_ = begin(preset=name)
    assert (algorithm.reference is not None) == wanted


def test_prepare_kl_is_in_the_reward_or_in_the_loss(begin):
    """PPO-06: RLOO's scores are the rewards minus β·(log π − log π_ref) of the reply, and its loss adds nothing."""
    _, algorithm, _, rollout, rewards = begin(REWARDS, preset=replace(PRESETS["rloo"], kl_coef=0.5))
    with torch.no_grad():
        for p in algorithm.reference.parameters():
            p.mul_(1.1)
    batch, _ = algorithm.prepare(rollout, rewards)
    with torch.no_grad():
        ref = plain_logps(algorithm.reference, rollout)
        own = plain_logps(algorithm.model, rollout)
    want = rewards - 0.5 * (own - ref).sum(1)
    assert torch.allclose(batch.scores, want, atol=1e-4) and not torch.allclose(want, rewards, atol=1e-2)
    loss, _ = algorithm.loss(batch, denominator=torch.tensor(12.0), tokens=batch.mask.sum())
    assert loss.item() == pytest.approx(-(own.sum(1) * batch.advantages).sum().item() / 12, rel=1e-4, abs=1e-5)


def test_prepare_missing_reward_trains_nothing(begin):
    """ADV-09: the row leaves the mask, the group's statistics and the denominator."""
    rewards = [math.nan, *REWARDS[1:]]
    _, algorithm, updater, rollout, given = begin(rewards, preset="dr_grpo")
    batch, _ = algorithm.prepare(rollout, given)
    assert not batch.mask[0].any() and batch.advantages[0] == 0
    assert batch.advantages[1:3].tolist() == pytest.approx([-0.5, 0.5])  # rewards 1 and 2 of the first group
    assert math.isfinite(updater.step(batch, 0)["grad_norm"])


@pytest.mark.parametrize("preset", ["grpo", "ppo", "rloo", "cluster_ema"])
def test_step_without_any_reward_changes_no_direction(begin, preset):
    """LP-05: nothing to train on is loss 0 and finite weights, not NaN."""
    config, algorithm, updater, rollout, rewards = begin([math.nan] * 12, preset=replace(PRESETS[preset], kl_coef=0.0))
    before = [p.clone() for p in algorithm.model.parameters()]
    batch, _ = algorithm.prepare(rollout, rewards)
    updater.step(batch, 0)
    assert all(torch.equal(p, q) for p, q in zip(algorithm.model.parameters(), before, strict=True))


def test_ema_judges_a_batch_before_it_learns_from_it(begin):
    """EMA-02: prepare uses the old baseline; only finish moves it."""
    preset = replace(PRESETS["cluster_ema"], groups="batch", kl_coef=0.0)
    _, algorithm, updater, rollout, rewards = begin(REWARDS, preset=preset)
    algorithm.ema.values = {0: 1.0}
    batch, _ = algorithm.prepare(rollout, rewards)
    assert algorithm.ema.values == {0: 1.0}
    assert torch.allclose(batch.advantages, rewards - 1.0)
    updater.step(batch, 0)
    assert algorithm.ema.values[0] == pytest.approx(0.95 * 1.0 + 0.05 * float(rewards.mean()))


def test_separate_critic_learns_and_the_policy_waits_in_warmup(begin):
    changes = {"critic_warmup": 1, "critic_passes": 30, "critic_learning_rate": 0.02}
    of_prompt = [float(i // 3) for i in range(12)]  # all that a critic needs is in the prompt
    _, algorithm, updater, rollout, rewards = begin(of_prompt, preset=replace(PRESETS["ppo"], kl_coef=0.0), **changes)
    policy = [p.clone() for p in algorithm.model.parameters()]
    batch, first = algorithm.prepare(rollout, rewards)
    assert torch.equal(batch.values, torch.zeros_like(batch.values))  # the head starts at zero
    assert updater.step(batch, 0) == {} and updater.updates == 0
    assert all(torch.equal(p, q) for p, q in zip(algorithm.model.parameters(), policy, strict=True))
    _, second = algorithm.prepare(rollout, rewards)
    assert first["ev"] == 0 and second["ev"] > 0.3
    updater.step(batch, 1)
    assert not all(torch.equal(p, q) for p, q in zip(algorithm.model.parameters(), policy, strict=True))


def test_head_on_the_policy_warms_up_without_moving_it(begin):
    changes = {"critic": "head", "critic_warmup": 1, "critic_learning_rate": 0.1}
    _, algorithm, updater, rollout, rewards = begin(REWARDS, preset=replace(PRESETS["ppo"], kl_coef=0.0), **changes)
    policy = [p.clone() for p in algorithm.model.parameters()]
    batch, _ = algorithm.prepare(rollout, rewards)
    updater.step(batch, 0)
    assert all(torch.equal(p, q) for p, q in zip(algorithm.model.parameters(), policy, strict=True))
    assert algorithm.critic.value_head.weight.abs().sum() > 0
    head = algorithm.critic.value_head.weight.clone()
    updater.step(batch, 1)
    assert not torch.equal(head, algorithm.critic.value_head.weight)


def test_critic_advantages_are_whitened_gae(begin):
    """PPO-01, PPO-05: with values 0 and γ = λ = 1 each token's advantage is the score, whitened over real tokens."""
    preset = replace(PRESETS["ppo"], kl_coef=0.0, lam=1.0)
    _, algorithm, _, rollout, rewards = begin(REWARDS, preset=preset)
    batch, _ = algorithm.prepare(rollout, rewards)
    lengths = rollout.completion_mask.sum(1)
    flat = rewards.repeat_interleave(lengths)
    want = (flat - flat.mean()) / (flat.std() + 1e-4)
    assert torch.allclose(batch.advantages[batch.mask], want, atol=1e-5)
    assert torch.equal(batch.advantages[~batch.mask], torch.zeros(int((~batch.mask).sum())))


@pytest.mark.parametrize("encoder", ["hidden", "tfidf"])
def test_semantic_groups_come_from_the_replies(begin, encoder):
    _, algorithm, _, rollout, rewards = begin(REWARDS, preset="cluster_ema", encoder=encoder)
    batch, metrics = algorithm.prepare(rollout, rewards)
    assert 1 <= metrics["semantic_groups"] <= 3
    same = {}
    if encoder == "tfidf":  # equal texts are in one group
        for text, group in zip(rollout.texts, batch.groups.tolist(), strict=True):
            assert same.setdefault(text, group) == group
