"""Layers on several devices: what goes where by which name, what is refused, and a run on two devices."""

import json

import pytest
import torch
from devices import two_devices
from jobs import make_config, same, tensors
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, MixtralConfig, OPTConfig

from grpo_from_scratch.distributed.placement import check, own_names, parse_devices, place
from grpo_from_scratch.distributed.process_group import World
from grpo_from_scratch.distributed.sharding import rows_of
from grpo_from_scratch.policy.heads import GRPOPolicy
from grpo_from_scratch.policy.loading import new_tiny_policy, save_policy
from grpo_from_scratch.policy.shared_prefix import supported
from grpo_from_scratch.training.trainer import RLTrainer

TWO = {"layer_0": "lazy:0", "layer_1": "lazy:1"}
SMALL = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "vocab_size": 32}
MODELS = {
    "llama": LlamaConfig(**SMALL, intermediate_size=16, num_key_value_heads=2),
    "tied": LlamaConfig(**SMALL, intermediate_size=16, num_key_value_heads=2, tie_word_embeddings=True),
    "gpt2": GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=32),
    "opt": OPTConfig(**SMALL, ffn_dim=16, word_embed_proj_dim=8),
    "mixtral": MixtralConfig(**SMALL, intermediate_size=16, num_key_value_heads=2),
}
FIRST = {
    "llama": ["model.embed_tokens", "model.rotary_emb", "model.layers.0"],
    "tied": ["model.embed_tokens", "model.rotary_emb", "lm_head", "model.layers.0"],
    "gpt2": ["transformer.wte", "transformer.wpe", "transformer.drop", "lm_head", "transformer.h.0"],
    "opt": ["model.decoder.embed_tokens", "model.decoder.embed_positions", "lm_head", "model.decoder.layers.0"],
    "mixtral": ["model.embed_tokens", "model.rotary_emb", "model.layers.0"],
}
LAST = {
    "llama": ["model.norm", "lm_head", "model.layers.1"],
    "tied": ["model.norm", "model.layers.1"],
    "gpt2": ["transformer.ln_f", "transformer.h.1"],
    "opt": [f"model.decoder.{name}" for name in ("project_out", "project_in", "final_layer_norm", "layers.1")],
    "mixtral": ["model.norm", "lm_head", "model.layers.1"],
}


def skeleton(name: str) -> torch.nn.Module:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(MODELS[name])


@pytest.mark.parametrize("name", MODELS)
def test_own_names_of_numbered_layers(name):
    """Embeddings, and what is tied to them, go with the first layer; norm and head with the last."""
    found = own_names(skeleton(name), {"layer_1": "cuda:1", "layer_0": "cuda:0"})
    assert found == dict.fromkeys(FIRST[name], "cuda:0") | dict.fromkeys(LAST[name], "cuda:1")


def test_own_names_leaves_what_the_map_names_itself():
    found = own_names(skeleton("llama"), {"layer_0": "cuda:0", "layer_1": "cuda:1", "lm_head": "cuda:2"})
    assert found["lm_head"] == "cuda:2" and found["model.norm"] == "cuda:1"


@pytest.mark.parametrize(
    "device_map, said",
    [
        ({"layer_0": "cpu"}, "has 2 layers, layer_0 to layer_1, and the device map misses layer_1"),
        ({"layer_0": "cpu", "layer_1": "cpu", "layer_2": "cpu"}, "the device map names layer_2"),
        ({"model.layers.2": "cpu"}, "names 'model.layers.2', which the model has not: its layers are model.layers.0 …"),
        ({"model.layers.0": "cpu"}, "no device for model.embed_tokens.weight … lm_head.weight"),
        ({"model": "cuda:7", "lm_head": "cuda:7"}, "names cuda:7, and this machine has no such device"),
        ({"": "meta"}, "names meta, a device that holds no numbers"),
        ({"": "cpu", "model.layers.1": "cpu"}, "names '' and 'model.layers.1', and one is a part of the other"),
        ({"model.layers.0.mlp": "cpu"}, "'model.layers.0.mlp', a part of a layer"),
    ],
)
def test_a_map_that_does_not_fit_is_refused(device_map, said):
    model = AutoModelForCausalLM.from_config(MODELS["llama"])
    before = {name: p.clone() for name, p in model.named_parameters()}
    with pytest.raises(ValueError) as error:
        place(model, parse_devices(device_map))
    assert said in str(error.value) and not hasattr(model, "hf_device_map")
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_tied_weights_on_two_devices_are_refused():
    with two_devices(), pytest.raises(ValueError, match=r"lm_head.weight and model.embed_tokens.weight are one weight"):
        check(skeleton("tied"), {"model": "lazy:0", "lm_head": "lazy:1"})


def test_layers_are_for_one_process():
    with pytest.raises(ValueError, match="and there are 2 processes: start one, or choose 'ddp' or 'fsdp'"):
        rows_of(World(size=2), "layers")


@pytest.fixture(scope="module")
def run(fields, tmp_path_factory) -> dict:
    """A policy of two layers, whose head is tied to its embeddings, and two short steps."""
    folder = tmp_path_factory.mktemp("two layers")
    words = ["red green blue one two three"]
    save_policy(*new_tiny_policy(words, hidden_size=16, layers=2, heads=2), folder)
    return fields | {"model": str(folder), "steps": 2, "prompts_per_step": 2, "max_new_tokens": 4, "eval_every": 0}


RUNS = {
    "grpo": {"preset": "grpo", "microbatch_tokens": 40, "minibatches": 2},
    "cluster_ema": {"preset": "cluster_ema"},
    "ppo": {"preset": "ppo", "changes": {"passes": 1}},
    "head": {"preset": "ppo", "changes": {"passes": 1}, "critic": "head"},
    "padded": {"preset": "ppo", "changes": {"passes": 1}, "shared_prefix": False},
}


@pytest.mark.parametrize("name", RUNS)
def test_two_devices_train_what_one_trains(run, tmp_path, name):
    """Rollouts, reference, critic, updates and checkpoints, prompts packed and padded; weights to rounding.

    The second device refuses a tensor of the first (see ``devices``), as a second GPU would.
    """
    fields = run | RUNS[name]
    one = RLTrainer(make_config(fields, tmp_path / "one"))
    one.train()
    layers = fields | {"strategy": "layers", "device_map": TWO, "checkpoint_every": 1}
    with two_devices():
        RLTrainer(make_config(layers, tmp_path / "two")).train(until=1)
        two = RLTrainer(make_config(layers, tmp_path / "two"))
        assert two.progress.step == 1
        two.train()
        lms = [two.model, two.algorithm.reference, two.algorithm.critic and two.algorithm.critic.lm]
        for lm in (lm for lm in lms if lm is not None):
            held = {str(p.device): n for n, p in lm.named_parameters()}
            assert held.keys() == {"lazy:0", "lazy:1"} and lm.lm_head.weight is lm.model.embed_tokens.weight
            assert not fields.get("shared_prefix", True) or supported(lm)
        found = {key: tensor.cpu() for key, tensor in tensors(two).items()}
    expected = tensors(one)
    assert found.keys() == expected.keys()
    assert all(torch.allclose(found[key], tensor, rtol=0, atol=1e-5) for key, tensor in expected.items())


@pytest.mark.parametrize("name", ["gpt2", "opt"])
def test_packed_rows_cross_devices_in_other_families(name):
    """``supported`` compares packed log-probs and a packed decoder with plain rows."""
    model = AutoModelForCausalLM.from_config(MODELS[name]).eval()
    with two_devices():
        place(model, TWO)
        assert supported(model)


def test_grpo_policy_on_two_devices():
    """The article's forward: the head stands where the inputs do."""
    model, tokenizer = new_tiny_policy(["red green blue"], hidden_size=16, layers=2, heads=2)
    ids = torch.tensor(tokenizer(["red green", "blue red"])["input_ids"])
    plain = GRPOPolicy(model)
    torch.nn.init.ones_(plain.value_head.weight)
    expected = plain(ids, torch.ones_like(ids)).detach()
    with two_devices():
        place(model, TWO)
        policy = GRPOPolicy(model)
        torch.nn.init.ones_(policy.value_head.weight)
        found = policy(ids.to("lazy:0"), torch.ones_like(ids).to("lazy:0"))
        assert torch.allclose(found.cpu(), expected, atol=1e-6)


def test_layers_on_the_cpu_are_a_plain_run(run, tmp_path):
    """One device needs no hooks: the same bits. The map is kept with the run, and may change with the machine."""
    plain, by_layer = run | {"preset": "cluster_ema"}, {"strategy": "layers", "device_map": {"": "cpu"}}
    trainers = [RLTrainer(make_config(plain | more, tmp_path / str(len(more)))) for more in ({}, by_layer)]
    for trainer in trainers:
        trainer.train()
    assert same(*map(tensors, trainers))
    saved = json.loads((tmp_path / "2" / "config.json").read_text())["config"]
    assert saved["device_map"] == {"": "cpu"} and saved["strategy"] == "layers"
