"""Sharded weights: two processes that each hold half of every weight train what one process trains.

``fsdp`` spreads rows as ``ddp`` does, with all its corners; under ``tensor`` both work on all rows.
"""

import importlib.util

import pytest
import torch
from jobs import make_config, trained
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForCausalLM, DeepseekV3Config, LlamaConfig, MixtralConfig

from grpo_from_scratch.distributed.process_group import World
from grpo_from_scratch.distributed.sharding import check_heads, clip_gradients, shard, split_styles
from grpo_from_scratch.policy.loading import load_policy
from grpo_from_scratch.training.trainer import RLTrainer

RUNS = {
    "ppo": {"preset": "ppo", "changes": {"passes": 2}, "minibatches": 2},
    "ppo_head": {"preset": "ppo", "changes": {"passes": 1}, "critic": "head", "critic_warmup": 1, "steps": 3},
    "grpo": {"preset": "grpo", "microbatch_tokens": 50},
    "dapo": {"preset": "dapo", "minibatches": 2},
    "cluster_ema": {"preset": "cluster_ema"},
    "a group that spans ranks": {"preset": "grpo", "prompts_per_step": 1, "group_size": 7},
    "an empty rank": {"preset": "grpo", "prompts_per_step": 2, "minibatches": 2, "eval_prompts": 1},
}
if importlib.util.find_spec("peft"):  # frozen weights and trained ones in one slice; the reference is the policy itself
    RUNS["lora"] = {"preset": "grpo", "lora_rank": 2, "steps": 3}
RESUMED = {"preset": "ppo", "precision": "fp16", "steps": 4, "eval_every": 0}
NAMES = {"fsdp": [*RUNS], "tensor": [*RUNS][:5]}  # rows are not spread under tensor


@pytest.fixture(scope="module")
def one(fields, tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    trained({name: fields | run for name, run in RUNS.items()}, folder)
    return {name: load_file(folder / f"{name}.0") for name in RUNS}


@pytest.fixture(scope="module", params=["fsdp", "tensor"])
def two(request, fields, job):
    """(what each rank found, the folder, the strategy)."""
    strategy = {"strategy": request.param}
    runs = {name: fields | run | strategy for name, run in RUNS.items() if name in NAMES[request.param]}
    return *job("everything", {"trained": runs, "resumed": fields | RESUMED | strategy}), request.param


def test_sharded_processes_train_what_one_trains(one, two):
    """Weights after the last step and its gradients to 1e-5."""
    _, folder, strategy = two
    for name in NAMES[strategy]:
        for rank in (0, 1):
            of_rank = load_file(folder / f"{name}.{rank}")
            assert of_rank.keys() == one[name].keys()
            for key, tensor in one[name].items():
                assert torch.allclose(of_rank[key], tensor, rtol=0, atol=1e-5), (name, key)


def test_sharded_run_resumes_to_the_same_bits(two):
    """Weights, moments and loss scale are saved in full and laid out again."""
    for rank in two[0]:
        assert rank["resumed"]["began"] == 2 and rank["resumed"]["same"]


def test_another_number_of_processes_is_refused(fields, two):
    """A run that two began, in this one process; ``ddp`` takes it (``test_two_processes``)."""
    _, folder, strategy = two
    said = f"whose number of processes was 2, and here it is 1: under '{strategy}' a run goes on with as many"
    with pytest.raises(ValueError, match=said):
        RLTrainer(make_config(fields | RESUMED | {"strategy": strategy}, folder / "broken"))


def test_each_rank_holds_its_part(two):
    """Under ``tensor`` embedding and norms are whole on each."""
    for rank in two[0]:
        held = rank["resumed"]["held"]
        assert max(held.values()) <= 0.55 if two[2] == "fsdp" else held["model.layers.0.mlp.up_proj.weight"] == 0.5


def test_sharded_policy_is_saved_as_a_plain_one(two):
    """MP-11: one folder, as transformers reads it, with no trace of what held the weights."""
    saved, _ = load_policy(two[1] / "policy")
    assert type(saved).__name__ == saved.config.architectures[0] == "LlamaForCausalLM"
    names = load_file(two[1] / "policy" / "model.safetensors").keys()
    assert names <= saved.state_dict().keys() and all(rank["resumed"]["saved"] for rank in two[0])


def test_clip_gradients_is_torchs_own_on_whole_tensors():
    ours, theirs = ([nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2, 2))] for _ in range(2))
    for parameters in (ours, theirs):
        for number, p in enumerate(parameters):
            p.grad = torch.arange(p.numel(), dtype=torch.float32).view_as(p) + number
    norm = clip_gradients(ours, 1.0)
    assert torch.equal(norm, nn.utils.clip_grad_norm_(theirs, 1.0)) and norm > 1
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("kind", [MixtralConfig, DeepseekV3Config])
def test_experts_are_not_split(kind):
    """transformers' plans for mixtures of experts have styles of their own."""
    config = kind(num_hidden_layers=2, hidden_size=16, num_attention_heads=2, num_key_value_heads=2, vocab_size=32)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(ValueError, match=r"strategy 'tensor' cannot take this model.* \([a-z_, ]*experts.*'fsdp'"):
        shard(model, "tensor", World(size=2), blocks=model._no_split_modules, plan=model.tp_plan)


def test_a_model_that_cannot_be_split_is_refused():
    two_ranks = World(size=2)
    with pytest.raises(ValueError, match="3 key heads do not go evenly on 2 processes"):
        check_heads(LlamaConfig(hidden_size=36, num_attention_heads=6, num_key_value_heads=3), two_ranks, "tensor")
    with pytest.raises(ValueError, match=r"not known here \(moe_tp_experts\): choose 'fsdp'"):
        split_styles({"a": "colwise", "b": "moe_tp_experts"})
    with pytest.raises(ValueError, match="says nothing of splitting it"):
        split_styles({"lm_head": "colwise_gather_output"})
