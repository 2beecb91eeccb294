import copy
import json
import math
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import MambaConfig, MambaForCausalLM

from grpo_from_scratch import rewards
from grpo_from_scratch.dialogue.readers import load_examples
from grpo_from_scratch.objective.presets import PRESETS
from grpo_from_scratch.policy.loading import load_policy, save_policy
from grpo_from_scratch.training.checkpoint import latest_checkpoint
from grpo_from_scratch.training.config import TrainConfig
from grpo_from_scratch.training.provenance import weights_hash
from grpo_from_scratch.training.trainer import RLTrainer

CLOCKS = ("cpu_seconds", "wall_seconds", "per_second", "per_cpu_second")

# Everything that a run can remember between steps, in as few runs as possible.
KINDS = {
    "grpo": {"preset": replace(PRESETS["grpo"], passes=2), "minibatches": 2},
    "dapo": {"preset": "dapo"},
    "ppo": {"preset": replace(PRESETS["ppo"], passes=2), "critic_warmup": 1, "value_clip": 0.2},
    "ppo_head": {"preset": replace(PRESETS["ppo"], passes=2), "critic": "head", "critic_warmup": 2},
    "cluster_ema": {"preset": "cluster_ema"},
    "fp16": {"preset": "grpo", "precision": "fp16"},
    "cluster_ema_tfidf": {"preset": "cluster_ema", "encoder": "tfidf"},
}


def without_clocks(rows: list[dict]) -> list[dict]:
    return [{name: value for name, value in row.items() if not name.endswith(CLOCKS)} for row in rows]


def weights(trainer: RLTrainer) -> dict[str, torch.Tensor]:
    parts = {"model": trainer.model, "critic": trainer.algorithm.critic}
    return {f"{part}.{n}": p for part, m in parts.items() if m is not None for n, p in m.state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def remembered(trainer: RLTrainer) -> dict:
    """What a checkpoint of the trainer as it is now holds."""
    parts = {"model": trainer.model, "algorithm": trainer.algorithm, "updater": trainer.updater}
    state = {name: part.state_dict() for name, part in parts.items()}
    state |= {"processes": 1, "progress": vars(trainer.progress)}
    return copy.deepcopy(state)


@pytest.mark.parametrize("kind", KINDS)
def test_resume_three_and_three_steps_equal_six(make_config, kind):
    """MP-05: bit for bit, in metrics, weights and everything remembered."""
    straight = RLTrainer(make_config("straight", **KINDS[kind]))
    whole = straight.train()
    config = make_config("broken", **KINDS[kind])
    RLTrainer(config).train(until=3)
    resumed = RLTrainer(config)
    assert resumed.progress.step == 3
    parts = resumed.train()
    assert without_clocks(parts.metrics) == without_clocks(whole.metrics)
    assert same(weights(resumed), weights(straight))
    ema, other = resumed.algorithm.ema, straight.algorithm.ema
    assert ema is None or ema.values == other.values


@pytest.mark.parametrize(
    "kind, part",
    [
        ("grpo", ("model",)),
        ("grpo", ("updater", "optimizer", "state")),
        ("grpo", ("updater", "updates")),
        ("grpo", ("progress", "prompts")),
        ("ppo", ("algorithm", "critic")),
        ("ppo", ("updater", "critic_optimizer", "state")),
        ("cluster_ema", ("algorithm", "ema")),
        ("cluster_ema", ("algorithm", "groups")),
    ],
)
def test_resume_needs_every_part_of_the_checkpoint(make_config, kind, part):
    """MP-05: put a run's beginning in the place of one saved part, and the continuation is another one."""
    straight = RLTrainer(make_config("straight", **KINDS[kind]))
    straight.train()
    config = make_config("broken", **KINDS[kind])
    fresh = RLTrainer(config)
    beginning = remembered(fresh)
    fresh.train(until=3)
    resumed = RLTrainer(config)
    state = remembered(resumed)
    holder, source = state, beginning
    for name in part[:-1]:
        holder, source = holder[name], source[name]
    holder[part[-1]] = source[part[-1]]
    resumed._restore(state)
    resumed.train()
    assert not same(weights(resumed), weights(straight))


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_trains(make_config, name):
    result = RLTrainer(make_config(preset=name, steps=2, eval_every=1, checkpoint_every=0)).train()
    assert len(result.evaluations) == 3
    assert all(math.isfinite(row["grad_norm"]) for row in result.metrics[1:])


def test_train_writes_a_folder_that_tells_the_run(make_config):
    config = make_config(steps=2)
    result = RLTrainer(config).train()
    folder = Path(config.out)
    saved = json.loads((folder / "config.json").read_text())
    assert TrainConfig.from_dict(saved["config"]) == config
    assert set(saved["versions"]) >= {"torch", "transformers", "python"} and saved["source_hash"]
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2] and rows == result.metrics
    logged = {"reward_mean", "kl_k1", "kl_k3", "entropy", "clip_fraction_low", "clip_fraction_high", "icc", "grad_norm"}
    logged |= {"groups_without_signal", "length", "truncated", "completions_per_cpu_second", "samples_per_second"}
    assert logged <= set(rows[1])
    assert latest_checkpoint(folder / "checkpoints").name == "step-00000002"


def test_trainer_refuses_the_folder_of_another_run(make_config):
    RLTrainer(make_config(steps=1)).train()
    with pytest.raises(ValueError, match=r"other settings \(learning_rate: 0.01 there, 0.5 here\)"):
        RLTrainer(make_config(steps=1, learning_rate=0.5))


def test_trainer_refuses_to_go_on_with_other_data_or_weights(make_config, data, policy_folder, tmp_path):
    """What a spec or a folder names may change under its name; the run's beginning, its reference, does not."""
    file, folder = tmp_path / "data.jsonl", tmp_path / "policy"
    shutil.copy(data.removeprefix("jsonl:"), file)
    shutil.copytree(policy_folder, folder)
    config = make_config(steps=1, data=f"jsonl:{file}", model=str(folder))
    RLTrainer(config).train()
    file.write_text(file.read_text().replace("red", "rot"), encoding="utf-8")
    with pytest.raises(ValueError, match="the data changed"):
        RLTrainer(config)
    shutil.copy(data.removeprefix("jsonl:"), file)
    weights = load_file(folder / "model.safetensors")
    save_file({name: tensor + 1e-3 for name, tensor in weights.items()}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match="the weights changed"):
        RLTrainer(config)


def test_trainer_refuses_more_tokens_than_the_model_has_positions(make_config):
    with pytest.raises(ValueError, match=r"max_prompt_tokens 250 \+ max_new_tokens 7 is more than the 256 positions"):
        RLTrainer(make_config(max_prompt_tokens=250, max_new_tokens=7))


def test_train_after_a_lost_tail_writes_its_lines_again(make_config):
    """The log may be ahead of the checkpoint: a resumed run replaces those lines, and a line cut short is no line."""
    config = make_config(checkpoint_every=2, steps=3)
    whole = RLTrainer(config).train()
    folder = Path(config.out)
    log = (folder / "metrics.jsonl").read_text()
    shutil.rmtree(folder / "checkpoints")
    RLTrainer(replace(config, out=str(folder))).train(until=2)
    (folder / "metrics.jsonl").write_text(log + '{"step": 3, "rew')
    again = RLTrainer(config).train()
    assert without_clocks(again.metrics) == without_clocks(whole.metrics)


def test_interrupt_finishes_the_step_and_saves(make_config):
    """Ctrl-C in the middle of step 2: the run stops after it and goes on to the same end."""
    whole = RLTrainer(make_config("whole", steps=4)).train()
    config = make_config("stopped", steps=4)
    trainer = RLTrainer(config)
    before = trainer.updater.step

    def step(batch, number):
        if number == 1:
            signal.raise_signal(signal.SIGINT)
        return before(batch, number)

    trainer.updater.step = step
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert latest_checkpoint(Path(config.out) / "checkpoints").name == "step-00000002"
    assert without_clocks(RLTrainer(config).train().metrics) == without_clocks(whole.metrics)


def reward_of(monkeypatch, reward) -> str:
    monkeypatch.setitem(rewards.REWARDS, "test", reward)
    return "test"


def test_a_missing_reward_is_counted_and_the_run_goes_on(make_config, monkeypatch):
    """ADV-09, ADV-14."""

    def sometimes(prompts, completions, **_):
        return [None if i == 1 else float("nan") if i == 2 else float(len(c)) for i, c in enumerate(completions)]

    config = make_config(reward=reward_of(monkeypatch, sometimes), steps=2, eval_prompts=1000)  # more than there are
    rows = RLTrainer(config).train().metrics
    assert [row["reward_missing"] for row in rows[1:]] == pytest.approx([2 / 12] * 2)
    assert all(math.isfinite(row[name]) for row in rows[1:] for name in ("reward_mean", "grad_norm"))
    assert math.isfinite(rows[0]["eval_reward"])
    there_are = len(load_examples(config.data, "tuning"))
    assert [row["eval_replies"] for row in rows if "eval_reward" in row] == [there_are] * 2


def test_a_reward_that_raises_names_the_completion(make_config, monkeypatch):
    def broken(prompts, completions, **_):
        return [1 / len(text.replace("red", "")) for text in completions]  # fails on "red" and on nothing

    reward = reward_of(monkeypatch, broken)
    trainer = RLTrainer(make_config(reward=reward, eval_every=0, group_size=20, max_new_tokens=2, top_k=20))
    with pytest.raises(RuntimeError, match=r"failed on completion \d+, '(red)?': ZeroDivisionError"):
        trainer.train()


def test_an_infinite_reward_is_refused(make_config, monkeypatch):
    def infinite(prompts, completions, **_):
        return [math.inf if i == 5 else 1.0 for i, _ in enumerate(completions)]

    trainer = RLTrainer(make_config(reward=reward_of(monkeypatch, infinite), eval_every=0))
    with pytest.raises(ValueError, match=r"infinite score for completions \[5\]"):
        trainer.train()


def test_two_runs_are_equal_and_another_seed_is_not(make_config):
    one, two = (RLTrainer(make_config(name, steps=2)).train() for name in "ab")
    other = RLTrainer(make_config("c", steps=2, seed=1)).train()
    assert without_clocks(one.metrics) == without_clocks(two.metrics) != without_clocks(other.metrics)


def test_shared_prefix_changes_no_number_but_by_rounding(make_config):
    """The prompt computed once for its group, or again for every completion: the same replies and the same run."""
    shared, again = (
        RLTrainer(make_config(str(on), steps=3, shared_prefix=on, preset="ppo")).train().metrics for on in (True, False)
    )
    for one, other in zip(without_clocks(shared), without_clocks(again), strict=True):
        assert one == pytest.approx(other, rel=1e-3, abs=1e-5, nan_ok=True)


@pytest.mark.parametrize("preset", ["grpo", "ppo"])
def test_a_model_without_attention_trains(make_config, policy_folder, tmp_path, preset):
    """Mamba has no attention heads to spread and takes the padded path."""
    _, tokenizer = load_policy(policy_folder)
    special = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    config = MambaConfig(vocab_size=len(tokenizer), hidden_size=16, state_size=4, num_hidden_layers=1, **special)
    save_policy(MambaForCausalLM(config), tokenizer, tmp_path / "mamba")
    trainer = RLTrainer(make_config(model=str(tmp_path / "mamba"), preset=preset, steps=2))
    before = weights_hash(trainer.model)
    trainer.train()
    assert weights_hash(trainer.model) != before


@pytest.mark.parametrize("preset", ["grpo", "ppo"])
def test_gradient_checkpointing_changes_no_bit(make_config, preset):
    """Layers are run again for backward: the weights, the critic's too, end as without it."""
    ends, runs = [], []
    for checkpointing in (False, True):
        trainer = RLTrainer(make_config(str(checkpointing), preset=preset, gradient_checkpointing=checkpointing))
        ran = []
        trainer.model.model.layers[0].mlp.register_forward_pre_hook(
            lambda *_, ran=ran: ran.append(torch.is_grad_enabled())
        )
        trainer.train()
        ends.append(weights(trainer))
        runs.append(sum(ran))
    assert same(*ends)
    assert runs[1] == 2 * runs[0] > 0, "each update ran the layer once, and once more"


def test_gradient_checkpointing_of_a_model_without_it_is_refused(make_config, monkeypatch):
    monkeypatch.setattr("transformers.LlamaForCausalLM.supports_gradient_checkpointing", False)
    with pytest.raises(ValueError, match="does not support"):
        RLTrainer(make_config(gradient_checkpointing=True))


def test_result_prints_as_a_line(make_config):
    result = RLTrainer(make_config(steps=2, eval_every=1)).train()
    first, _, last = (f"{row['eval_reward']:.3f}" for row in result.evaluations)
    assert repr(result) == f"RunResult(2 steps, held-out reward {first} -> {last})"
    unjudged = RLTrainer(make_config("unjudged", steps=1, eval_every=0)).train()
    assert repr(unjudged) == "RunResult(1 steps, held-out reward not measured)"
