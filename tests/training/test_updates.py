import copy
from dataclasses import replace

import pytest
import torch

from grpo_from_scratch.distributed.process_group import World
from grpo_from_scratch.objective.presets import PRESETS
from grpo_from_scratch.policy.loading import load_policy
from grpo_from_scratch.policy.rollout import given_completions
from grpo_from_scratch.training.algorithm import Algorithm
from grpo_from_scratch.training.experience import Experience
from grpo_from_scratch.training.sft import starting_policy
from grpo_from_scratch.training.trainer import RLTrainer
from grpo_from_scratch.training.updates import Updater, weighted_means


def after_one_step(config, **changes) -> tuple[list[torch.Tensor], dict]:
    """The policy's weights and the metrics after a first step under the config with these changes."""
    experience = Experience(config)
    model, tokenizer = starting_policy(config.model, config.data, experience.train_examples, config.seed)
    collected = experience.collect(model, tokenizer, step=0, first_prompt=0)
    rewards = torch.arange(12.0) % 5
    algorithm = Algorithm(config, model)
    updater = Updater(config, algorithm)
    batch, _ = algorithm.prepare(collected.rollout, rewards)
    metrics = updater.step(batch, 0)
    return [p.detach().clone() for p in model.parameters()], metrics


def gradients(config) -> dict[str, list[torch.Tensor]]:
    """Of the policy and of a separate critic, as the first step's update leaves them (clipping out of the way)."""
    experience = Experience(config)
    model, tokenizer = starting_policy(config.model, config.data, experience.train_examples, config.seed)
    collected = experience.collect(model, tokenizer, step=0, first_prompt=0)
    algorithm = Algorithm(config, model)
    batch, _ = algorithm.prepare(collected.rollout, torch.arange(12.0) % 5)
    Updater(config, algorithm).step(batch, 0)
    parts = {"policy": model}
    if algorithm.critic is not None and not algorithm.shares_body:
        parts["critic"] = algorithm.critic
    return {name: [p.grad.clone() for p in part.parameters()] for name, part in parts.items()}


@pytest.mark.parametrize("limit", [1, 40])
@pytest.mark.parametrize("kind", ["sequence", "token", "constant", "separate", "head"])
def test_microbatches_change_no_gradient(make_config, kind, limit):
    """LOSS-08: one batch, or pieces of it, even uneven ones: the same gradients, of the policy and of the critic."""
    preset = replace(PRESETS["grpo"], aggregate=kind) if kind not in ("separate", "head") else PRESETS["ppo"]
    changes = {"preset": replace(preset, passes=1), "max_grad_norm": 1e9}
    if kind in ("separate", "head"):
        changes["critic"] = kind
    whole = gradients(make_config("a", **changes))
    parts = gradients(make_config("b", **changes, microbatch_tokens=limit))
    assert set(whole) == set(parts) == ({"policy", "critic"} if kind == "separate" else {"policy"})
    for name in whole:
        largest = max(gradient.abs().max() for gradient in whole[name])
        assert largest > 1e-3
        for one, other in zip(whole[name], parts[name], strict=True):
            assert torch.allclose(one, other, rtol=0, atol=1e-6 * max(1, float(largest)))


def test_microbatches_change_no_metric(make_config):
    """MP-08: means over pieces of different sizes are weighted by their tokens."""
    _, whole = after_one_step(make_config("a"))
    _, parts = after_one_step(make_config("b", microbatch_tokens=40))
    assert parts == pytest.approx(whole, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("limit, groups", [(1, [1, 1, 1, 1]), (20, [1, 2, 1]), (21, [2, 2]), (1000, [4]), (0, [4])])
def test_microbatches_hold_whole_groups_and_no_more_tokens(make_config, limit, groups):
    """Four groups of 12, 9, 8 and 4 tokens; a group alone may be over the limit."""
    config = make_config(microbatch_tokens=limit)
    model, tokenizer = load_policy(config.model)
    lengths = [(3, [3, 3, 3]), (2, [1, 2, 4]), (5, [1, 1, 1]), (1, [1, 1, 1])]
    prompts, completions = zip(*(([7] * n, [[8] * m for m in group]) for n, group in lengths), strict=True)
    rollout = given_completions(tokenizer, list(prompts), list(completions))
    algorithm = Algorithm(config, model)
    batch, _ = algorithm.prepare(rollout, torch.arange(12.0))
    pieces = Updater(config, algorithm)._pieces(batch, torch.arange(12))
    assert [len(piece.rollout.prompt_ids) for piece in pieces] == groups
    assert torch.cat([piece.mask.sum(1) for piece in pieces]).tolist() == [m for _, group in lengths for m in group]


@pytest.mark.parametrize("prompts, minibatches", [(5, 4), (9, 4), (4, 3)])
def test_minibatches_are_as_many_as_configured(make_config, prompts, minibatches):
    """The schedule counts on it: 5 prompts in 4 lots are lots of 2, 1, 1 and 1."""
    config = make_config(prompts_per_step=prompts, minibatches=minibatches, steps=1, eval_every=0)
    trainer = RLTrainer(config)
    trainer.train()
    assert trainer.updater.updates == config.total_updates == minibatches


def test_minibatches_use_every_completion_once_and_keep_groups_whole(make_config):
    config = make_config(preset=replace(PRESETS["grpo"], passes=2), minibatches=3)
    experience = Experience(config)
    model, tokenizer = starting_policy(config.model, config.data, experience.train_examples, config.seed)
    algorithm = Algorithm(config, model)
    collected = experience.collect(model, tokenizer, step=0, first_prompt=0)
    batch, _ = algorithm.prepare(collected.rollout, collected.rewards)
    updater = Updater(config, algorithm)
    first, second = (updater._minibatches(batch, "minibatches", 0, number) for number in (0, 1))
    for lots in (first, second):
        assert sorted(torch.cat(lots).tolist()) == list(range(12))
        prompts = [set(batch.rollout.prompt_index[rows].tolist()) for rows in lots]
        assert sum(map(len, prompts)) == 4  # no prompt in two lots
    assert [lot.tolist() for lot in first] != [lot.tolist() for lot in second]
    again = updater._minibatches(batch, "minibatches", 0, 0)
    assert [lot.tolist() for lot in again] == [lot.tolist() for lot in first]


def test_step_clips_the_whole_gradient(make_config):
    """MP-02: the logged norm is the unclipped one; the update is that of the scaled gradient."""
    config = make_config(max_grad_norm=0.01)
    experience = Experience(config)
    model, tokenizer = starting_policy(config.model, config.data, experience.train_examples, config.seed)
    algorithm = Algorithm(config, model)
    updater = Updater(config, algorithm)
    collected = experience.collect(model, tokenizer, step=0, first_prompt=0)
    batch, _ = algorithm.prepare(collected.rollout, torch.arange(12.0) % 5)
    norm = updater.step(batch, 0)["grad_norm"]
    kept = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
    assert norm > 0.01 and float(kept) == pytest.approx(0.01, rel=1e-3)


def test_step_refuses_a_gradient_that_is_not_finite(make_config):
    config = make_config()
    experience = Experience(config)
    model, tokenizer = starting_policy(config.model, config.data, experience.train_examples, config.seed)
    algorithm = Algorithm(config, model)
    updater = Updater(config, algorithm)
    collected = experience.collect(model, tokenizer, step=0, first_prompt=0)
    batch, _ = algorithm.prepare(collected.rollout, collected.rewards)
    batch.advantages = torch.full_like(batch.advantages, float("inf"))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(FloatingPointError, match="step 5: the gradient is not finite"):
        updater.step(batch, 4)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_learning_rate_of_the_first_update_is_not_zero(make_config):
    """MP-04."""
    _, metrics = after_one_step(make_config(warmup=0.5))
    assert metrics["learning_rate"] == pytest.approx(0.01 / 3)


def test_weighted_means_are_not_means_of_means():
    """LOSS-08, MP-08: 4 tokens of mean 1 and 1 token of mean 5 have mean 1.8."""
    parts = [(4.0, {"x": torch.tensor(1.0)}), (1.0, {"x": torch.tensor(5.0)})]
    assert weighted_means(parts, World()) == {"x": 1.8}
