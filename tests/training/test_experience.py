from dataclasses import replace

import torch

from grpo_from_scratch.objective.presets import PRESETS
from grpo_from_scratch.training import experience as module
from grpo_from_scratch.training.experience import MAX_ROUNDS, Experience
from grpo_from_scratch.training.sft import starting_policy


def begin(config):
    experience = Experience(config)
    return experience, *starting_policy(config.model, config.data, experience.train_examples, config.seed)


def test_train_prompts_go_once_through_the_data_in_each_epoch(make_config):
    experience = Experience(make_config())
    n = len(experience.train_examples)
    whole = experience.train_prompts(0, 2 * n)
    first, second = whole[:n], whole[n:]
    assert set(first) == set(second) == set(experience.train_examples)
    assert first != second
    assert experience.train_prompts(n - 2, 5) == whole[n - 2 : n + 3]  # a place is a place, wherever one starts


def test_heldout_shares_nothing_with_training(make_config):
    tuning, report = (Experience(make_config(eval_split=split, eval_prompts=999)) for split in ("tuning", "report"))
    contexts = [{e.turns for e in lot} for lot in (tuning.train_examples, tuning.heldout, report.heldout)]
    assert all(contexts) and not (contexts[0] & contexts[1] or contexts[0] & contexts[2] or contexts[1] & contexts[2])


def test_heldout_reward_uses_the_same_random_numbers_every_time(make_config):
    experience, model, tokenizer = begin(make_config())
    assert experience.heldout_reward(model, tokenizer) == experience.heldout_reward(model, tokenizer)


def test_collect_dynamic_sampling_replaces_silent_groups(make_config, monkeypatch):
    """DAPO: what is kept has signal; prompts, completions and tokens of the groups left out are counted."""
    config = make_config(preset=replace(PRESETS["dapo"], overlong_penalty=0))
    experience, model, tokenizer = begin(config)
    calls = []

    def rewards(rollout):
        calls.append(len(rollout.prompt_ids))
        silent = rollout.prompt_index < (2 if len(calls) == 1 else 0)  # the first round has two silent groups
        return torch.where(silent, 1.0, torch.arange(len(rollout)).float())

    monkeypatch.setattr(experience, "rewards", rewards)
    collected = experience.collect(model, tokenizer, step=0, first_prompt=0)
    assert calls == [4, 2] and collected.prompts == 6 and collected.completions == 18
    assert len(collected.rollout.prompt_ids) == 4 and len(collected.rewards) == 12
    drawn = experience.train_prompts(0, 6)
    assert collected.rollout.examples == drawn[2:]
    assert collected.rollout.prompt_index.tolist() == [i for i in range(4) for _ in range(3)]
    assert len(collected.rollout.texts) == 12


def test_collect_dynamic_sampling_gives_up_in_the_end(make_config, monkeypatch):
    config = make_config(preset=replace(PRESETS["dapo"], overlong_penalty=0))
    experience, model, tokenizer = begin(config)
    monkeypatch.setattr(experience, "rewards", lambda rollout: torch.ones(len(rollout)))
    collected = experience.collect(model, tokenizer, step=0, first_prompt=0)
    assert collected.prompts == 4 * MAX_ROUNDS and len(collected.rewards) == 12


def test_rewards_carry_the_soft_overlong_penalty(make_config, monkeypatch):
    """DAPO eq. 13 with the last 2 of 5 tokens as buffer: lengths 3, 4, 5 cost 0, 0.5, 1."""
    config = make_config(preset=replace(PRESETS["dapo"], overlong_penalty=0.4))
    experience, model, tokenizer = begin(config)
    rollout = experience.collect(model, tokenizer, step=0, first_prompt=0).rollout
    monkeypatch.setattr(module, "score", lambda *_: torch.zeros(12))
    lengths = rollout.completion_mask.sum(1)
    assert torch.allclose(experience.rewards(rollout), -((lengths - 3).clamp(min=0) / 2))
    assert len(set(lengths.tolist())) > 1


def test_collect_reports_all_that_was_sampled(make_config, monkeypatch):
    """The share of silent groups is that of the sampler; those left out are the ones it is about."""
    experience, model, tokenizer = begin(make_config(preset=replace(PRESETS["dapo"], overlong_penalty=0)))
    calls = []

    def rewards(rollout):
        calls.append(1)
        silent = rollout.prompt_index < (2 if len(calls) == 1 else 0)
        return torch.where(silent, 1.0, torch.arange(len(rollout)).float())

    monkeypatch.setattr(experience, "rewards", rewards)
    metrics = experience.collect(model, tokenizer, step=0, first_prompt=0).metrics
    assert metrics["groups_without_signal"] == 2 / 6
    assert metrics["reward_mean"] == (6 * 1 + sum(range(6, 12)) + sum(range(6))) / 18
