"""The article's interface is the article's preset on the same trainer."""

import dataclasses

import pytest
import torch

from grpo_from_scratch.objective.presets import PRESETS
from grpo_from_scratch.policy.loading import load_policy
from grpo_from_scratch.training.parallel import ParallelGRPO, evenly
from grpo_from_scratch.training.trainer import RLTrainer


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    pairs = zip(one.named_parameters(), other.named_parameters(), strict=True)
    return all(name == again and torch.equal(p, q) for (name, p), (again, q) in pairs)


@pytest.mark.parametrize("device_map", [None, {"layer_0": "cpu"}])
def test_parallel_grpo_is_the_trainer_bit_for_bit(make_config, policy_folder, device_map):
    preset = dataclasses.replace(PRESETS["cluster_ema"], num_groups=3)
    plain = RLTrainer(make_config("plain", preset=preset, steps=3)).train()
    settings = dataclasses.asdict(make_config("facade", steps=3))
    settings = {name: settings[name] for name in settings if name not in ("preset", "model", "strategy", "device_map")}
    facade = ParallelGRPO(policy_folder, device_map, num_groups=3)
    result = facade.train(**settings)
    assert same(result.model, plain.model) and not same(result.model, load_policy(policy_folder)[0])
    assert facade.config.steps == 3 and facade.config.strategy == ("layers" if device_map else "ddp")
    assert same(load_policy(facade.config.folder / "policy")[0], plain.model)


def test_parallel_grpo_translates_and_checks_before_weights_are_read(policy_folder):
    names = ("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head", "model.layers.0")
    assert ParallelGRPO(policy_folder, {"layer_0": "cpu"}).device_map == dict.fromkeys(names, "cpu")
    assert ParallelGRPO(policy_folder).device_map is None
    with pytest.raises(ValueError, match="has 1 layers, layer_0 to layer_0, and the device map names layer_1"):
        ParallelGRPO(policy_folder, {"layer_0": "cpu", "layer_1": "cpu"})
    with pytest.raises(ValueError, match="there is no folder '/nowhere'"):
        ParallelGRPO("/nowhere", {"layer_0": "cpu"})


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "tensor"])
def test_a_device_map_is_no_tensor_parallelism(strategy):
    with pytest.raises(ValueError, match=f"is strategy 'layers' and not '{strategy}'; it is no tensor parallelism"):
        ParallelGRPO("tiny", {"layer_0": "cpu", "layer_1": "cpu"}, strategy=strategy)


@pytest.mark.parametrize("gpus, expected", [(0, ["cpu"] * 5), (2, ["cuda:0"] * 3 + ["cuda:1"] * 2)])
def test_layers_without_a_map_go_evenly_on_what_is_there(monkeypatch, gpus, expected):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    model = torch.nn.Module()
    model.h, model._no_split_modules = torch.nn.ModuleList(torch.nn.Linear(1, 1) for _ in range(5)), ["Linear"]
    assert list(evenly(model).values()) == expected


@pytest.mark.parametrize("settings", [{"preset": "ppo"}, {"model": "tiny"}, {"strategy": "fsdp"}])
def test_train_is_not_told_what_the_constructor_was(policy_folder, settings):
    with pytest.raises(ValueError, match=r"another one is RLTrainer\(TrainConfig"):
        ParallelGRPO(policy_folder).train(**settings)
