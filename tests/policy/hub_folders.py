"""Tiny models laid out on disk as their publishers lay out theirs, written here rather than downloaded."""

import json
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

BOS, EOS, USER, ASSISTANT = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"
TEXTS = ["hello there, how are you today?", "I have 12 cats, don't I?", "  naïve   café 你好 🙂", "<｜User｜> \n\n x"]
TEMPLATE = (
    "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"
    "{{ bos_token }}{% for m in messages %}"
    "{% if m['role'] == 'system' %}{{ m['content'] }}{% elif m['role'] == 'user' %}{{ '<｜User｜>' + m['content'] }}"
    "{% else %}{{ '<｜Assistant｜>' + m['content'] + '<｜end▁of▁sentence｜>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}"
)
# The published config.json of DeepSeek-V3 with every field it has, and every size made small.
DEEPSEEK_V3 = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "auto_map": {
        "AutoConfig": "configuration_deepseek.DeepseekV3Config",
        "AutoModel": "modeling_deepseek.DeepseekV3Model",
        "AutoModelForCausalLM": "modeling_deepseek.DeepseekV3ForCausalLM",
    },
    "aux_loss_alpha": 0.001,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "ep_size": 1,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 32,
    "initializer_range": 0.2,
    "intermediate_size": 160,  # more than one block of 128
    "kv_lora_rank": 16,
    "max_position_embeddings": 256,
    "model_type": "deepseek_v3",
    "moe_intermediate_size": 16,
    "moe_layer_freq": 1,
    "n_group": 2,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 4,
    "num_nextn_predict_layers": 1,
    "pretraining_tp": 1,
    "q_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 4,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 64,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "seq_aux": True,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "transformers_version": "4.33.1",
    "use_cache": True,
    "v_head_dim": 8,
}
FP8 = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]}
LARGEST = 448.0  # that e4m3 holds


def write_deepseek(folder: Path, *, fp8: bool = False) -> torch.nn.Module:
    """A folder in the layout of the hub's deepseek-ai/DeepSeek-V3; returns the model that its weights stand for."""
    tokenizer = write_tokenizer(folder)
    published = DEEPSEEK_V3 | {"vocab_size": tokenizer.get_vocab_size()}
    plain = {name: value for name, value in published.items() if name not in ("auto_map", "torch_dtype")}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.DeepseekV3ForCausalLM(transformers.DeepseekV3Config(**plain)).eval()
    for name, parameter in model.named_parameters():  # published in 16 bits, so these are weights that 16 bits hold
        parameter.data = _rounded(name, parameter.data) if fp8 else parameter.data.bfloat16().float()
    model.save_pretrained(folder, max_shard_size="40KB")
    for shard in folder.glob("*.safetensors"):
        save_file(dict(_stored(load_file(shard), fp8)), shard, metadata={"format": "pt"})
    _add_prediction_layer(folder)
    (folder / "config.json").write_text(json.dumps(published | ({"quantization_config": FP8} if fp8 else {})))
    (folder / "generation_config.json").write_text(
        '{"_from_model_config": true, "bos_token_id": 0, "eos_token_id": 1, "do_sample": true, "temperature": 0.6, '
        '"top_p": 0.95, "transformers_version": "4.39.3"}'
    )
    for part in ("configuration", "modeling"):
        (folder / f"{part}_deepseek.py").write_text("raise SystemExit('code of a stranger')\n")
    return model


def write_tokenizer(folder: Path) -> Tokenizer:
    """Byte-level BPE that calls itself a LlamaTokenizerFast, as DeepSeek's files do."""
    backend = Tokenizer(models.BPE())
    splits = [Regex(r"\p{N}{1,3}"), Regex(r"[一-龥぀-ゟ゠-ヿ]+"), Regex(r"[\r\n]+|\s?\p{L}+|\s+")]
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(split, "isolated") for split in splits]
        + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder, backend.post_processor = decoders.ByteLevel(), processors.ByteLevel(trim_offsets=False)
    special = [AddedToken(token, normalized=False, special=True) for token in (BOS, EOS, USER, ASSISTANT)]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=special, initial_alphabet=alphabet)
    backend.train_from_iterator(TEXTS * 3, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    flags = {"__type": "AddedToken", "lstrip": False, "normalized": True, "rstrip": False, "single_word": False}
    settings = {
        "add_bos_token": True,
        "add_eos_token": False,
        "bos_token": flags | {"content": BOS},
        "clean_up_tokenization_spaces": False,
        "eos_token": flags | {"content": EOS},
        "legacy": True,
        "model_max_length": 131072,
        "pad_token": flags | {"content": EOS},
        "sp_model_kwargs": {},
        "unk_token": None,
        "tokenizer_class": "LlamaTokenizerFast",
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return backend


def write_hub_cache(cache: Path, repository: str, folder: Path) -> None:
    """The folder as the hub's own client keeps it: blobs, and a snapshot that links to them."""
    home, commit = cache / f"models--{repository.replace('/', '--')}", "0123456789abcdef0123456789abcdef01234567"
    snapshot = home / "snapshots" / commit
    for part in (home / "blobs", home / "refs", snapshot):
        part.mkdir(parents=True)
    (home / "refs" / "main").write_text(commit)
    for number, file in enumerate(sorted(folder.iterdir())):
        blob = home / "blobs" / f"{number:064x}"
        blob.write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(Path("..") / ".." / "blobs" / blob.name)


def _packed(name: str) -> bool:
    return "_proj" in name and name.endswith("weight") or "experts." in name


def _rounded(name: str, weight: torch.Tensor) -> torch.Tensor:
    """What is left of a weight in blocks of 8 bits; experts lie along a first dimension."""
    if not _packed(name):
        return weight.bfloat16().float()
    if weight.dim() == 3:
        return torch.stack([_rounded(name, expert) for expert in weight])
    quantised, scales = quantise(weight)
    return quantised.float() * _spread(scales, weight.shape)


def quantise(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, in) -> e4m3 of that shape, and a scale for each block of 128 x 128."""
    rows, columns = (range(0, size, 128) for size in weight.shape)
    scales = torch.tensor([[float(weight[r : r + 128, c : c + 128].abs().max()) for c in columns] for r in rows])
    scales = (scales / LARGEST).log2().ceil().exp2()  # powers of two, so that 16 bits hold every product exactly
    return (weight / _spread(scales, weight.shape)).to(torch.float8_e4m3fn), scales


def _spread(scales: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    return scales.repeat_interleave(128, 0)[: shape[0]].repeat_interleave(128, 1)[:, : shape[1]]


def _stored(tensors: dict[str, torch.Tensor], fp8: bool):
    for name, weight in tensors.items():
        if fp8 and _packed(name):
            quantised, scales = quantise(weight)
            yield name, quantised
            yield f"{name}_scale_inv", scales
        else:
            yield name, weight if name.endswith("e_score_correction_bias") else weight.bfloat16()


def _add_prediction_layer(folder: Path) -> None:
    """V3 ships one more layer, for predicting two tokens at once, and an index that names all shards."""
    extra = {f"model.layers.2.{name}.weight": torch.ones(32, dtype=torch.bfloat16) for name in ("enorm", "hnorm")}
    save_file(extra, folder / "model-extra.safetensors", metadata={"format": "pt"})
    shards = sorted(folder.glob("*.safetensors"))
    index = {name: shard.name for shard in shards for name in load_file(shard)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
