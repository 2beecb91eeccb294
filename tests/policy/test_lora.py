import copy
import sys

import pytest
import torch
from families import model_of

from grpo_from_scratch.policy.lora import ADAPTER, add_lora, lora_layers, merged, without_lora
from grpo_from_scratch.training.config import TrainConfig

IDS = torch.tensor([[1, 5, 9, 7, 3]])


def with_lora(family: str, rank: int = 3) -> torch.nn.Module:
    """A copy of the family's model whose additions are not 0."""
    model = copy.deepcopy(model_of(family))
    add_lora(model, rank, alpha=4.0)
    for layer in lora_layers(model).values():
        torch.nn.init.normal_(layer.lora_B[ADAPTER].weight, std=0.3)
    return model


@pytest.fixture(autouse=True)
def peft(request):
    return None if "absent" in request.node.name else pytest.importorskip("peft")


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2", "deepseek_v3"])
@torch.no_grad()
def test_merged_computes_the_same(family):
    """GPT-2 keeps its weights transposed; Qwen2 has biases beside them; DeepSeek has experts in one tensor."""
    plain, model = copy.deepcopy(model_of(family)), with_lora(family)
    weights = merged(model)
    assert weights.keys() == plain.state_dict().keys()
    plain.load_state_dict(weights)
    torch.testing.assert_close(plain(IDS).logits, model(IDS).logits, rtol=1e-4, atol=1e-5)
    assert (plain(IDS).logits - model_of(family)(IDS).logits).abs().max() > 0.1


@torch.no_grad()
def test_merged_is_what_peft_merges(peft):
    model = with_lora("llama")
    config = peft.LoraConfig(r=3, lora_alpha=4.0, target_modules="all-linear")
    theirs = peft.get_peft_model(copy.deepcopy(model_of("llama")), config)
    own = {name: p for name, p in model.named_parameters() if "lora_" in name}
    for name, p in theirs.named_parameters():
        if "lora_" in name:
            p.copy_(own[name.removeprefix("base_model.model.")])
    for name, weight in theirs.merge_and_unload().state_dict().items():
        torch.testing.assert_close(merged(model)[name], weight, msg=name)


@torch.no_grad()
def test_without_lora_is_the_model_as_it_was(llama):
    model = with_lora("llama")
    trainable = [p.requires_grad for p in model.parameters()]
    with without_lora(model):
        assert torch.equal(model(IDS).logits, llama(IDS).logits)
    assert not torch.allclose(model(IDS).logits, llama(IDS).logits, atol=0.1)
    assert [p.requires_grad for p in model.parameters()] == trainable and any(trainable)


@torch.no_grad()
def test_add_lora_begins_with_nothing_added(llama):
    """Its random numbers are the seed's alone."""
    state = torch.get_rng_state()
    model = copy.deepcopy(llama)
    add_lora(model, 2, alpha=32.0)
    assert torch.equal(model(IDS).logits, llama(IDS).logits)
    assert torch.equal(torch.get_rng_state(), state)
    layer = next(iter(lora_layers(model).values()))
    assert layer.lora_A[ADAPTER].weight.shape[0] == 2 and layer.scaling[ADAPTER] == 16


def test_merged_leaves_a_plain_model_alone(llama):
    assert merged(llama).keys() == llama.state_dict().keys()


def test_absent_peft_is_said(llama, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ImportError, match=r"pip install 'grpo-from-scratch\[peft\]'"):
        add_lora(copy.deepcopy(llama), 2, alpha=1.0)


def test_absent_or_not_config_refuses():
    with pytest.raises(ValueError, match="lora_rank must be at least 1, or 0"):
        TrainConfig(lora_rank=-1)
    with pytest.raises(ValueError, match="'tensor' cannot split the layers that LoRA puts in"):
        TrainConfig(lora_rank=2, strategy="tensor")
