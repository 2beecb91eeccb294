import json

import pytest

from grpo_from_scratch.training.config import TrainConfig


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"preset": "grpoo"}, "nearest is 'grpo'"),
        ({"group_size": 1}, "group_size must be at least 2"),
        ({"preset": "rloo", "group_size": 1}, "group_size must be at least 2"),
        ({"steps": 0}, "steps must be at least 1, not 0"),
        ({"critic": "heads"}, "critic is one of separate, head, not 'heads'"),
        ({"encoder": "bert"}, "encoder is one of"),
        ({"strategy": "zero"}, "strategy is one of ddp, fsdp, tensor, layers, not 'zero'"),
        ({"strategy": "layers"}, "strategy 'layers' needs a device_map"),
        (
            {"device_map": {"layer_0": "cpu"}, "strategy": "tensor"},
            "it is no tensor parallelism, which splits every layer",
        ),
        ({"device_map": {"layer_0": "gpu"}, "strategy": "layers"}, "puts 'layer_0' on 'gpu', which is no device"),
        ({"device_map": {"layer_0": 0, "layer_1": "cpu"}, "strategy": "layers"}, "mixes kinds of devices"),
        ({"device_map": {}, "strategy": "layers"}, "names a device for each layer"),
        ({"precision": "fp8"}, "precision is one of fp32, bf16, fp16, not 'fp8'"),
        ({"warmup": 4}, "share of all updates"),
        ({"temperature": 0}, "temperature must be positive"),
        ({"minibatches": 9}, "groups are never split"),
        ({"microbatch_tokens": -1}, "microbatch_tokens must be at least 1, or 0 for no limit, not -1"),
        ({"lora_rank": -1}, "lora_rank must be at least 1, or 0 to train all weights"),
        ({"lora_rank": 4, "lora_alpha": 0}, "lora_alpha must be positive, not 0"),
        ({"max_grad_norm": -1}, "max_grad_norm must be positive, not -1: .* turn round"),
        ({"max_grad_norm": 0}, "max_grad_norm must be positive"),
        ({"eval_prompts": 0}, "eval_prompts must be at least 1"),
        ({"max_prompt_tokens": 0}, "max_prompt_tokens must be at least 1"),
        ({"eval_every": -1}, "eval_every must be at least 1, or 0 for never"),
        ({"checkpoint_every": -1}, "checkpoint_every must be at least 1, or 0 for never"),
        ({"critic_warmup": -1}, "critic_warmup must be at least 1, or 0 for none"),
        ({"preset": "cluster_ema", "minibatches": 2}, "'reinforce' has no ratio"),
    ],
)
def test_train_config_refuses_before_anything_runs(changes, message):
    with pytest.raises(ValueError, match=message):
        TrainConfig(**changes)


def test_train_config_group_of_one_is_fine_with_a_critic_or_an_ema():
    """ADV-02: one answer a prompt needs something else to be compared with."""
    assert TrainConfig(preset="ppo", group_size=1).uses_critic
    TrainConfig(preset="cluster_ema", group_size=1)


def test_train_config_survives_json():
    config = TrainConfig(preset="dapo", betas=(0.9, 0.99), strategy="layers", device_map={"layer_0": 1})
    assert config.device_map == {"layer_0": "cuda:1"}
    assert TrainConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_train_config_from_dict_names_what_it_does_not_know():
    with pytest.raises(ValueError, match="unknown settings learning_rat;"):
        TrainConfig.from_dict({"learning_rat": 1})


def test_train_config_differences_name_fields_that_make_another_run():
    one, other = TrainConfig(out="a", checkpoint_every=1), TrainConfig(out="b", checkpoint_every=2, seed=5)
    assert one.differences(other) == ["seed: 5 there, 0 here"]


def test_train_config_total_updates_counts_every_optimizer_step():
    """MP-04: the schedule's steps are the optimizer's; critic warm-up makes none."""
    assert TrainConfig(preset="ppo", steps=10, minibatches=2, critic_warmup=3).total_updates == 7 * 4 * 2
