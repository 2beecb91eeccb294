"""Tiny models of the architectures people train, random weights, and rollouts over their shared 61-word vocabulary."""

from functools import cache
from types import SimpleNamespace

import torch
import transformers

from grpo_from_scratch.policy.rollout import Rollout, given_completions

VOCAB, PAD, BOS, EOS = 61, 0, 1, 2
COMMON = {"vocab_size": VOCAB, "pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS, "initializer_range": 0.2}
WIDTHS = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**WIDTHS, **COMMON, tie_word_embeddings=True),
    "qwen2": lambda: transformers.Qwen2Config(**WIDTHS, **COMMON),
    "gpt2": lambda: transformers.GPT2Config(**COMMON, n_embd=32, n_layer=2, n_head=4, n_positions=64),
    "deepseek_v3": lambda: transformers.DeepseekV3Config(
        **(WIDTHS | {"num_key_value_heads": 4}),
        **COMMON,
        moe_intermediate_size=16,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_rope_head_dim=4,
        qk_nope_head_dim=8,
        v_head_dim=8,
    ),
    "qwen3": lambda: transformers.Qwen3Config(**WIDTHS, **COMMON, head_dim=8),
    "mistral": lambda: transformers.MistralConfig(**WIDTHS, **COMMON, sliding_window=4),
    "gemma2": lambda: transformers.Gemma2Config(**WIDTHS, **COMMON, head_dim=8, sliding_window=4),
    "gemma3_text": lambda: transformers.Gemma3TextConfig(
        **(WIDTHS | {"num_hidden_layers": 6}), **COMMON, head_dim=8, sliding_window=4
    ),
    "phi3": lambda: transformers.Phi3Config(**WIDTHS, **COMMON),
    "mixtral": lambda: transformers.MixtralConfig(**WIDTHS, **COMMON, num_local_experts=4),
    "gpt_oss": lambda: transformers.GptOssConfig(
        **WIDTHS, **COMMON, head_dim=8, sliding_window=4, num_local_experts=4, num_experts_per_tok=2
    ),
}
# Models that no packed forward can serve, and what is said of them.
UNUSUAL = {
    "bloom": "BloomForCausalLM does not use transformers' AttentionInterface",
    "falcon": "FalconForCausalLM does not use transformers' AttentionInterface",
    "mamba": "only 0 of its layers use transformers' AttentionInterface",
    "jamba": "only 2 of its layers use transformers' AttentionInterface",
    "dynamic_rope": "its rotary positions depend on the longest row of the batch",
}
UNUSUAL_CONFIGS = {
    "bloom": lambda: transformers.BloomConfig(**COMMON, hidden_size=32, n_layer=2, n_head=4),
    "falcon": lambda: transformers.FalconConfig(**COMMON, hidden_size=32, num_hidden_layers=2, num_attention_heads=4),
    "mamba": lambda: transformers.MambaConfig(**COMMON, hidden_size=32, num_hidden_layers=2, state_size=8),
    "jamba": lambda: transformers.JambaConfig(
        **(WIDTHS | {"num_hidden_layers": 4}),
        **COMMON,
        attn_layer_period=2,
        attn_layer_offset=1,
        num_experts=2,
        use_mamba_kernels=False,
        mamba_d_state=8,
    ),
    "dynamic_rope": lambda: transformers.LlamaConfig(
        **WIDTHS, **COMMON, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    ),
}
PLAIN = ["llama", "qwen2", "gpt2", "deepseek_v3"]  # grouped queries, biases, learned positions, mixture of experts


@cache
def model_of(family: str):
    """The family's model in float32 and evaluation mode; shared, so tests leave it as they found it."""
    config = (CONFIGS | UNUSUAL_CONFIGS)[family]()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return transformers.AutoModelForCausalLM.from_config(config).eval()


def numbered_tokenizer(pad: int = PAD, eos: int = EOS) -> SimpleNamespace:
    """Stands in for a tokenizer where texts do not matter."""
    return SimpleNamespace(
        pad_token_id=pad, eos_token_id=eos, batch_decode=lambda rows, **_: [" ".join(map(str, row)) for row in rows]
    )


def random_rollout(prompt_lengths, completion_lengths, *, seed: int = 0, temperature: float = 1.0) -> Rollout:
    """Random tokens without EOS; ``completion_lengths[p]`` lists the lengths of prompt p's completions."""
    generator = torch.Generator().manual_seed(seed)

    def draw(length: int) -> list[int]:
        return torch.randint(EOS + 1, VOCAB, (length,), generator=generator).tolist()

    return given_completions(
        numbered_tokenizer(),
        [draw(length) for length in prompt_lengths],
        [[draw(length) for length in group] for group in completion_lengths],
        temperature=temperature,
    )


def unpadded(rollout: Rollout):
    """(prompt ids, completion ids) of every row, as lists."""
    for row, prompt in enumerate(rollout.prompt_index.tolist()):
        yield (
            rollout.prompt_ids[prompt][rollout.prompt_mask[prompt]].tolist(),
            rollout.completion_ids[row][rollout.completion_mask[row]].tolist(),
        )


def plain_scores(model, rollout: Rollout) -> SimpleNamespace:
    """The slow obvious way: every completion alone, without padding, every position scored. Differentiable."""
    width = rollout.completion_ids.shape[1]
    logps, entropy, hidden = [], [], []
    for prompt, completion in unpadded(rollout):
        output = model(input_ids=torch.tensor([prompt + completion]), output_hidden_states=True, use_cache=False)
        before = slice(len(prompt) - 1, len(prompt) + len(completion) - 1)
        distribution = torch.distributions.Categorical(logits=output.logits[0, before].float() / rollout.temperature)
        pad = (0, width - len(completion))
        logps.append(torch.nn.functional.pad(distribution.log_prob(torch.tensor(completion)), pad))
        entropy.append(torch.nn.functional.pad(distribution.entropy(), pad))
        hidden.append(torch.nn.functional.pad(output.hidden_states[-1][0, before], (0, 0, *pad)))
    return SimpleNamespace(logps=torch.stack(logps), entropy=torch.stack(entropy), hidden=torch.stack(hidden))
