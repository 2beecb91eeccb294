"""Whole runs in half precision, on the CPU."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from grpo_from_scratch.distributed.precision import autocast
from grpo_from_scratch.objective.presets import PRESETS
from grpo_from_scratch.policy.logprobs import completion_logps
from grpo_from_scratch.training.algorithm import Algorithm
from grpo_from_scratch.training.checkpoint import latest_checkpoint, load_checkpoint
from grpo_from_scratch.training.experience import Experience
from grpo_from_scratch.training.sft import starting_policy
from grpo_from_scratch.training.trainer import RLTrainer

HUGE = 2.0**40  # every gradient overflows


def begin(config):
    experience = Experience(config)
    model, tokenizer = starting_policy(config.model, config.data, experience.train_examples, config.seed)
    return model, experience.collect(model, tokenizer, step=0, first_prompt=0)


def with_scale(trainer: RLTrainer, scale: float) -> RLTrainer:
    scaler = trainer.updater.scaler
    scaler.load_state_dict(scaler.state_dict() | {"scale": scale})
    return trainer


def test_fp16_run_overflows_recovers_and_learns(make_config):
    """The first updates overflow and count nowhere; then the scale is low enough, and the reward grows as in fp32."""
    changes = {"steps": 30, "eval_every": 30, "eval_prompts": 30, "learning_rate": 0.02, "group_size": 6}
    exact = RLTrainer(make_config("fp32", **changes)).train().evaluations
    trainer = with_scale(RLTrainer(make_config("fp16", precision="fp16", **changes)), 2.0**26)
    result = trainer.train()
    rows = result.metrics[1:]
    skipped = [row["updates_skipped"] for row in rows]
    assert skipped[0] == 1 and sum(skipped) < 15 and sum(skipped[-15:]) <= 2
    assert rows[0]["loss_scale"] == 2.0**25 and rows[-1]["loss_scale"] == 2.0 ** (26 - sum(skipped))
    assert trainer.updater.updates == 30 - sum(skipped)
    gains = [found[-1]["eval_reward"] - found[0]["eval_reward"] for found in (exact, result.evaluations)]
    assert gains[0] > 0.1 and gains[1] > 0.5 * gains[0]


def test_a_skipped_update_advances_nothing(make_config):
    """MP-01: neither weights, moments, schedule nor moving averages; it is counted, and the rollout was used."""
    trainer = with_scale(RLTrainer(make_config(precision="fp16", preset="cluster_ema", warmup=1.0)), HUGE)
    before = [p.detach().clone() for p in trainer.model.parameters()]
    first, second = trainer.train(until=2).metrics[1:]
    assert all(torch.equal(p, q) for p, q in zip(trainer.model.parameters(), before, strict=True))
    assert not trainer.updater.optimizer.state and trainer.updater.updates == 0 and not trainer.algorithm.ema.values
    assert first["updates_skipped"] == second["updates_skipped"] == 1
    assert first["learning_rate"] == second["learning_rate"] == pytest.approx(0.01 / 6)
    assert first["grad_norm"] is None and second["loss_scale"] == HUGE / 4 and second["completions"] == 24


def test_the_loss_scale_is_in_the_checkpoint(make_config):
    config = make_config(precision="fp16")
    with_scale(RLTrainer(config), HUGE).train(until=2)
    saved = load_checkpoint(latest_checkpoint(Path(config.out) / "checkpoints"))
    assert saved["updater"]["scaler"]["scale"] == RLTrainer(config).updater.scaler.scale == HUGE / 4


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("preset", ["grpo", "ppo"])
def test_weights_moments_and_log_probs_stay_float32(make_config, preset, precision):
    trainer = RLTrainer(make_config(precision=precision, preset=preset, steps=1))
    trainer.train()
    optimizers = [o for o in (trainer.updater.optimizer, trainer.updater.critic_optimizer) if o is not None]
    moments = [m for o in optimizers for state in o.state.values() for m in state.values()]
    assert {t.dtype for t in (*trainer.model.parameters(), *moments)} == {torch.float32}


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_log_softmax_is_float32(make_config, precision):
    """Log-probs of half-precision logits, but normalised in float32: those of each token sum to 1 to 1e-6."""
    model, collected = begin(make_config())
    rollout = collected.rollout
    first = rollout.completion_ids[:, 0]
    with torch.no_grad(), autocast(precision, rollout.device):
        assert model(input_ids=rollout.prompt_ids[:1]).logits.dtype != torch.float32
        total = 0.0
        for token in range(model.config.vocab_size):
            rollout.completion_ids[:, 0] = token
            total = total + completion_logps(model, rollout)[0][:, 0].exp().double()
    rollout.completion_ids[:, 0] = first
    assert torch.allclose(total, torch.ones_like(total), rtol=0, atol=1e-6)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_first_ratio_is_one_in_every_precision(make_config, precision):
    """The sampler's float32 log-probs are not what updates in half precision divide by."""
    config = make_config(precision=precision, preset=replace(PRESETS["grpo"], passes=2))
    model, collected = begin(config)
    algorithm = Algorithm(config, model)
    batch, _ = algorithm.prepare(collected.rollout, collected.rewards)
    _, metrics = algorithm.loss(batch, denominator=torch.tensor(12), tokens=batch.mask.sum())
    assert float(metrics["ratio_mean"]) == pytest.approx(1.0, abs=1e-6)
    assert abs(float(metrics["kl_k1"])) < 1e-6


def test_a_policy_in_half_precision_is_refused(make_config):
    """MP-03."""
    config = make_config(precision="fp16")
    model, _ = begin(config)
    with pytest.raises(ValueError, match="an optimizer needs float32 weights"):
        Algorithm(config, model.half())
