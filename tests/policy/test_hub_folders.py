"""Folders as their publishers lay them out, read by load_policy; and what save_policy leaves, read by anyone."""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import transformers
from families import model_of
from hub_folders import BOS, EOS, TEMPLATE, TEXTS, write_deepseek, write_hub_cache, write_tokenizer
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from grpo_from_scratch.dialogue.dataset import Example, encode_prompt, encode_reply
from grpo_from_scratch.policy.loading import load_policy, save_policy
from grpo_from_scratch.policy.sampling import sample
from grpo_from_scratch.policy.shared_prefix import supported
from grpo_from_scratch.training.config import TrainConfig
from grpo_from_scratch.training.trainer import RLTrainer

IDS = torch.arange(2, 40)[None]
DIALOGUE = Example(("hello", "hi", "how are you?"), ("fine",), background=("I have 12 cats",))
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", params=["bf16", "fp8"])
def deepseek(request, tmp_path_factory):
    """(the folder, the model its weights stand for)."""
    folder = tmp_path_factory.mktemp(request.param)
    return folder, write_deepseek(folder, fp8=request.param == "fp8")


@torch.no_grad()
def test_deepseek_folder(deepseek):
    """config.json with auto_map and fp8 blocks, an index with shards, a layer that only speculative decoding uses:
    the model, in float32, exactly; no code of the folder was run."""
    folder, expected = deepseek
    model, tokenizer = load_policy(folder)
    assert torch.equal(model(IDS).logits, expected(IDS).logits)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    stored = {w.dtype for shard in folder.glob("*.safetensors") for w in load_file(shard).values()}
    assert (torch.float8_e4m3fn in stored) == folder.name.startswith("fp8")
    assert supported(model), "each prompt is computed once a group"
    assert not hasattr(model.config, "auto_map") and not hasattr(model.config, "quantization_config")
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in TEXTS:  # "LlamaTokenizerFast" would split at blanks and lose the bytes
        assert tokenizer(text, add_special_tokens=False).input_ids == backend.encode(text, add_special_tokens=False).ids
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == model.generation_config.eos_token_id


def test_deepseek_template_is_applied_once(deepseek):
    """Its tokenizer adds a BOS and so does its template: there is one, and every marker once a turn."""
    tokenizer = load_policy(deepseek[0])[1]
    prompt = encode_prompt(DIALOGUE, tokenizer)
    messages = [
        {"role": "system", "content": "I have 12 cats"},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "hi"},
        {"role": "user", "content": "how are you?"},
    ]
    assert prompt == tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    text = f"{BOS}I have 12 cats<｜User｜>hello<｜Assistant｜>hi{EOS}<｜User｜>how are you?<｜Assistant｜>"
    assert tokenizer.decode(prompt) == text
    assert encode_reply("fine", tokenizer) == [*tokenizer("fine", add_special_tokens=False).input_ids, 1]


def test_deepseek_hub_cache(deepseek, tmp_path):
    """ "deepseek-ai/…" is found in the cache, without a network."""
    write_hub_cache(tmp_path / "hub", "deepseek-ai/DeepSeek-V3", deepseek[0])
    code = "from grpo_from_scratch.policy.loading import load_policy; import torch\n"
    code += "model, _ = load_policy('deepseek-ai/DeepSeek-V3')\n"
    code += "print(model(torch.arange(2, 40)[None]).logits.double().sum().item())"
    environment = os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    said = plainly(code, env=environment)
    assert float(said) == pytest.approx(deepseek[1](IDS).logits.double().sum().item(), rel=1e-6)


def test_deepseek_is_exported_plain(deepseek, tmp_path):
    """What a chat program does with the folder, with transformers alone: the same greedy reply as ours."""
    model, tokenizer = load_policy(deepseek[0])
    save_policy(model, tokenizer, tmp_path / "policy")
    assert not [file.name for file in (tmp_path / "policy").iterdir() if file.suffix == ".py"]
    code = """
import sys; sys.modules['grpo_from_scratch'] = None
from transformers import AutoModelForCausalLM, AutoTokenizer
model, tokenizer = (auto.from_pretrained(sys.argv[1]) for auto in (AutoModelForCausalLM, AutoTokenizer))
messages = [{'role': 'system', 'content': 'I have 12 cats'}, {'role': 'user', 'content': 'hello'}]
inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors='pt', return_dict=True)
out = model.generate(**inputs, max_new_tokens=12, do_sample=False)[0, inputs['input_ids'].shape[1]:]
print(ascii(tokenizer.decode(out, skip_special_tokens=True)))
print(model.generation_config.eos_token_id, model.generation_config.pad_token_id, hasattr(model.config, 'auto_map'))
"""
    text, ids = plainly(code, str(tmp_path / "policy"), cwd=tmp_path).splitlines()
    prompt = encode_prompt(Example(("hello",), ("x",), background=("I have 12 cats",)), tokenizer)
    ours = sample(model, tokenizer, [prompt], group_size=1, max_new_tokens=12, temperature=0)
    assert text == ascii(ours.texts[0]) and len(ours.texts[0]) > 3
    assert ids == "1 1 False"


@pytest.mark.parametrize("lora_rank", [0, 2])
def test_deepseek_trains(deepseek, tmp_path, lora_rank):
    """Two steps through the trainer, experts and all; what is saved is the policy, without a reference's copy."""
    if lora_rank:
        pytest.importorskip("peft")
    config = TrainConfig(
        model=str(deepseek[0]), data="word_count", reward="chrf", steps=2, prompts_per_step=2, group_size=4,
        max_new_tokens=6, eval_every=0, learning_rate=1e-2, lora_rank=lora_rank, out=str(tmp_path / "run"),
    )  # fmt: skip
    result = RLTrainer(config).train()
    save_policy(result.model, result.tokenizer, tmp_path / "policy")
    began, ended = (load_policy(path)[0].state_dict() for path in (deepseek[0], tmp_path / "policy"))
    moved = {name for name in began if not torch.equal(began[name], ended[name])}
    assert began.keys() == ended.keys() and "model.layers.1.mlp.experts.down_proj" in moved
    assert lora_rank == 0 or "model.embed_tokens.weight" not in moved


def test_every_stop_token_is_exported(tmp_path):
    """A chat model ends its turn with a token of its own; whoever generates with the export stops where we stop."""
    write_tokenizer(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    config = transformers.Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, eos_token_id=3,
    )  # fmt: skip
    save_policy(transformers.Qwen2ForCausalLM(config), tokenizer, tmp_path)
    model, tokenizer = load_policy(tmp_path)
    save_policy(model, tokenizer, tmp_path / "again")
    said = json.loads((tmp_path / "again" / "generation_config.json").read_text())
    assert sorted(said["eos_token_id"]) == [1, 3] and said["pad_token_id"] == 1
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "again").chat_template == TEMPLATE


def test_an_invalid_generation_config_does_not_lose_the_policy(llama, tokenizer, tmp_path):
    """Published ones set a temperature without sampling; transformers loads that and refuses to save it."""
    save_policy(llama, tokenizer, tmp_path)
    (tmp_path / "generation_config.json").write_text('{"do_sample": false, "temperature": 0.6, "eos_token_id": [2, 7]}')
    model, _ = load_policy(tmp_path)
    save_policy(model, tokenizer, tmp_path / "again")
    assert json.loads((tmp_path / "again" / "generation_config.json").read_text())["eos_token_id"] == [2, 7]


def test_a_weight_that_is_missing_is_refused(deepseek, tmp_path):
    """Transformers would draw it at random and go on."""
    for file in deepseek[0].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    shard = tmp_path / "model-00003-of-00007.safetensors"
    tensors = load_file(shard)
    gone = next(name for name in sorted(tensors) if not name.endswith("_scale_inv"))
    save_file({name: weight for name, weight in tensors.items() if name != gone}, shard, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"its files lack \d+ of the model's weights, the first of them model\.layers"):
        load_policy(tmp_path)


def test_weights_that_cannot_be_trained_are_refused(llama, tokenizer, tmp_path):
    save_policy(llama, tokenizer, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="quantised by 'gptq', which cannot be trained; take a version"):
        load_policy(tmp_path)


def test_no_chat_template_is_said_once_and_where(byte_tokenizer, tokenizer, tmp_path):
    """A base model is told of; the embedded tokenizer, made for that format, is not."""
    config = transformers.GPT2Config(vocab_size=len(byte_tokenizer), n_embd=32, n_layer=1, n_head=2, n_positions=64)
    save_policy(transformers.GPT2LMHeadModel(config), byte_tokenizer, tmp_path / "base")
    with pytest.warns(UserWarning, match="base' has no chat template, so its prompts are plain text"):
        load_policy(tmp_path / "base")
    save_policy(model_of("llama"), tokenizer, tmp_path / "embedded")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_policy(tmp_path / "embedded")


def test_save_policy_full_disk_leaves_the_previous_one(llama, tokenizer, tmp_path, monkeypatch):
    save_policy(llama, tokenizer, tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}

    def no_space(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(tokenizer), "save_pretrained", no_space)
    with pytest.raises(OSError, match="No space"):
        save_policy(transformers.LlamaForCausalLM(llama.config), tokenizer, tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()} == before


def test_gguf_file_is_refused_in_a_sentence(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="there is no file '.*model.gguf'"):
        load_policy(tmp_path / "model.gguf")
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'grpo-from-scratch\[gguf\]'"):
        load_policy(tmp_path / "model.gguf")


def plainly(code: str, *arguments: str, **options) -> str:
    """What another Python prints."""
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout
