"""Training LoRA's additions: what moves, what is compared with, what is kept."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from grpo_from_scratch.objective.presets import PRESETS
from grpo_from_scratch.policy.loading import load_policy, save_policy
from grpo_from_scratch.policy.logprobs import completion_logps
from grpo_from_scratch.policy.lora import lora_layers
from grpo_from_scratch.training.checkpoint import latest_checkpoint
from grpo_from_scratch.training.trainer import RLTrainer

pytest.importorskip("peft")

KINDS = {
    "grpo": {"preset": replace(PRESETS["grpo"], passes=2), "minibatches": 2},
    "ppo": {"preset": "ppo"},
    "ppo_head": {"preset": "ppo", "critic": "head", "critic_warmup": 1},
    "cluster_ema": {"preset": "cluster_ema"},
    "checkpointed": {"preset": "grpo", "gradient_checkpointing": True},
    "fp16": {"preset": "grpo", "precision": "fp16"},
    "padded": {"preset": "grpo", "shared_prefix": False},
}


def trained(trainer: RLTrainer) -> dict[str, torch.Tensor]:
    parts = [trainer.model, *([trainer.algorithm.critic] if trainer.algorithm.critic else [])]
    return {f"{i}.{n}": p for i, part in enumerate(parts) for n, p in part.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("kind", KINDS)
def test_lora_resume_three_and_three_steps_equal_six(make_config, kind):
    """MP-05: bit for bit, from a checkpoint that holds no weight that is not trained."""
    changes = KINDS[kind] | {"lora_rank": 2}
    straight = RLTrainer(make_config("straight", **changes))
    straight.train()
    RLTrainer(make_config("broken", **changes)).train(until=3)
    resumed = RLTrainer(make_config("broken", **changes))
    assert resumed.progress.step == 3
    saved = load_file(latest_checkpoint(resumed.folder / "checkpoints") / "state.safetensors")
    of_policy = [name for name in saved if name.startswith("/model/")]
    assert len(of_policy) == 14 and all("lora_" in name for name in of_policy)
    assert not [name for name in saved if "base_layer" in name or "embed" in name]
    resumed.train()
    ours, theirs = trained(resumed), trained(straight)
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("kind", ["grpo", "ppo_head"])
def test_lora_trains_the_additions_alone(make_config, policy_folder, kind):
    trainer = RLTrainer(make_config(lora_rank=2, **KINDS[kind]))
    before = {name: p.clone() for name, p in trained(trainer).items()}
    trainer.train()
    began, _ = load_policy(policy_folder)
    layers = lora_layers(trainer.model)
    assert len(layers) == 7 and not any("head" in name or "embed" in name for name in layers)
    weights = {n.replace(".base_layer", ""): w for n, w in trainer.model.state_dict().items() if "lora_" not in n}
    assert all(torch.equal(weights[name], weight) for name, weight in began.state_dict().items())
    assert all(not torch.equal(p, before[name]) for name, p in trained(trainer).items())


def test_lora_reference_is_what_the_run_began_with(make_config, policy_folder):
    """No second copy: the policy without its additions, after training as before it. LP: KL begins at exactly 0."""
    trainer = RLTrainer(make_config(lora_rank=2))
    assert trainer.algorithm.reference is trainer.model
    metrics = trainer.train().metrics
    assert metrics[1]["kl_k3"] == 0 and metrics[-1]["kl_k3"] > 0
    collected = trainer.experience.collect(trainer.model, trainer.tokenizer, step=9, first_prompt=0)
    batch, _ = trainer.algorithm.prepare(collected.rollout, collected.rewards)
    began, _ = load_policy(policy_folder)
    torch.testing.assert_close(batch.ref_logps, completion_logps(began, collected.rollout)[0], rtol=0, atol=1e-6)
    now = completion_logps(trainer.model, collected.rollout)[0]
    assert (now - batch.ref_logps).abs().max() > 1e-3 and now.requires_grad
    assert all(p.requires_grad for name, p in trainer.model.named_parameters() if "lora_" in name)


def test_lora_embeddings_are_the_references(make_config):
    """Semantic groups see the frozen reference, which does not drift with the policy."""
    trainer = RLTrainer(make_config(preset="cluster_ema", lora_rank=2))
    collected = trainer.experience.collect(trainer.model, trainer.tokenizer, step=0, first_prompt=0)
    seen = []
    trainer.algorithm._assign = lambda embeddings: seen.append(embeddings) or torch.zeros(len(embeddings)).long()
    trainer.algorithm.prepare(collected.rollout, collected.rewards)
    for layer in lora_layers(trainer.model).values():
        torch.nn.init.normal_(layer.lora_B["default"].weight)
    trainer.algorithm.prepare(collected.rollout, collected.rewards)
    assert torch.equal(*seen)


def test_lora_policy_is_saved_merged(make_config, tmp_path):
    """A plain folder that transformers reads without PEFT, with the policy's own log-probs."""
    trainer = RLTrainer(make_config(lora_rank=2))
    trainer.train()
    save_policy(trainer.model, trainer.tokenizer, tmp_path / "policy")
    code = "import sys; sys.modules['peft'] = None; from transformers import AutoModelForCausalLM as A; import torch\n"
    code += "print(A.from_pretrained(sys.argv[1])(torch.arange(8)[None]).logits.double().sum().item())"
    said = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "policy")], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert float(said.stdout) == pytest.approx(
        trainer.model(torch.arange(8)[None]).logits.double().sum().item(), abs=1e-3
    )
    assert not [
        name for name in load_file(tmp_path / "policy" / "model.safetensors") if "lora" in name or "base" in name
    ]
    assert lora_layers(trainer.model), "saving leaves the policy as it is"


def test_lora_seed_and_rank_are_part_of_the_run(make_config):
    hashes = []
    for out, changes in {"a": {}, "b": {"seed": 1}, "c": {}}.items():
        trainer = RLTrainer(make_config(out, lora_rank=2, **changes))
        hashes.append(torch.cat([p.flatten() for p in trained(trainer).values()]))
    assert torch.equal(hashes[0], hashes[2]) and not torch.equal(hashes[0], hashes[1])
    with pytest.raises(ValueError, match="lora_rank: 2 there, 3 here"):
        RLTrainer(make_config("a", lora_rank=3))
