import json

import huggingface_hub.constants
import pytest
import torch
import transformers
from families import CONFIGS, model_of

from grpo_from_scratch.dialogue.corpus import vocabulary
from grpo_from_scratch.policy.loading import SPECIAL_TOKENS, load_policy, new_tiny_policy, save_policy
from grpo_from_scratch.policy.sampling import sample

TEXTS = ["Hello there, how are you?", "I don't know the well-known cat.", "the cat"]


def test_load_policy_saved_folder(model, tokenizer, tmp_path):
    """Every family comes back from its folder, in float32, and plain transformers reads the folder too."""
    save_policy(model, tokenizer, tmp_path)
    loaded, loaded_tokenizer = load_policy(tmp_path)
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    for (name, expected), (_, got), (_, seen) in zip(
        model.named_parameters(), loaded.named_parameters(), plain.named_parameters(), strict=True
    ):
        assert got.dtype == torch.float32 and torch.equal(expected, got) and torch.equal(expected, seen), name
    assert loaded_tokenizer.get_vocab() == tokenizer.get_vocab()
    assert loaded_tokenizer("word3 <user>")["input_ids"] == tokenizer("word3 <user>")["input_ids"]
    assert not [path.name for path in tmp_path.iterdir() if path.suffix in {".bin", ".pt", ".pkl", ".py"}]


def test_load_policy_dtype(llama, tokenizer, tmp_path):
    """MP-03: float16 weights become float32 unless asked for; an optimizer cannot work with less."""
    save_policy(transformers.LlamaForCausalLM(llama.config).half(), tokenizer, tmp_path)
    assert load_policy(tmp_path)[0].dtype == torch.float32
    assert load_policy(tmp_path, dtype=torch.bfloat16)[0].dtype == torch.bfloat16


def test_load_policy_tiny():
    model, tokenizer = load_policy("tiny")
    words = vocabulary()
    assert tokenizer.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == [0, 1, 2, 3, 4, 5]
    assert [tokenizer.tokenize(word) for word in words] == [[word] for word in words]
    assert len(tokenizer) == len(words) + 6 == model.config.vocab_size
    assert 200_000 < model.num_parameters() < 350_000


def test_load_policy_no_pad_token(byte_tokenizer, tmp_path):
    """DT-02: pad := eos; prompts of unequal length sample within the vocabulary, and no pad inside a completion."""
    config = transformers.GPT2Config(vocab_size=len(byte_tokenizer), n_embd=32, n_layer=2, n_head=4, n_positions=64)
    assert byte_tokenizer.pad_token is None
    save_policy(transformers.GPT2LMHeadModel(config), byte_tokenizer, tmp_path)
    model, tokenizer = load_policy(tmp_path)
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == 256
    model.transformer.wte.weight.data[256] *= 0
    model.transformer.wte.weight.data[256, :] += 0.2  # ends often
    rollout = sample(model, tokenizer, ["a longer prompt", "hi"], group_size=8, max_new_tokens=12)
    assert rollout.completion_ids.max() < config.vocab_size
    for row, mask in zip(rollout.completion_ids, rollout.completion_mask, strict=True):
        assert 256 not in row[mask][:-1]
        assert (row[~mask] == 256).all()


def test_load_policy_no_eos(llama, tokenizer, tmp_path):
    save_policy(llama, tokenizer, tmp_path)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "eos_token"}))
    with pytest.raises(ValueError, match="no end-of-sequence token"):
        load_policy(tmp_path)


def test_load_policy_vocabulary_mismatch(llama, tmp_path):
    """DT-02: a tokenizer that knows more tokens than the model embeds is refused, not left to an IndexError."""
    save_policy(llama, new_tiny_policy([f"w{i}" for i in range(70)])[1], tmp_path)
    with pytest.raises(ValueError, match="has 76 tokens but its model embeds only 61"):
        load_policy(tmp_path)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("./nowhere", "there is no folder 'nowhere'"),
        ("a/b/c", "there is no folder"),
        ("nobody/nothing", "not in the cache"),
    ],
)
def test_load_policy_not_there(name, reason, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match=reason) as caught:
        load_policy(name)
    assert "\n" not in str(caught.value)


def test_load_policy_not_a_model(tmp_path):
    with pytest.raises(ValueError, match=r"no config\.json"):
        load_policy(tmp_path)


def test_load_policy_foreign_code(llama, tokenizer, tmp_path):
    """Code that comes with a model is never run."""
    save_policy(llama, tokenizer, tmp_path)
    marker = tmp_path / "ran"
    (tmp_path / "own.py").write_text(f"open({str(marker)!r}, 'w')\nclass Own: pass\n")
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="needs code of its own"):
        load_policy(tmp_path)
    assert not marker.exists()


def test_load_policy_pickled_weights(llama, tokenizer, tmp_path):
    """Weights are safetensors, never a pickle."""
    save_policy(llama, tokenizer, tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(llama.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="safetensors"):
        load_policy(tmp_path)


def test_new_tiny_policy_tokenizer():
    _, tokenizer = new_tiny_policy(TEXTS)
    ids = tokenizer("Hello THERE, I don't know <user> zebra")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == (
        ["<bos>", "hello", "there", ",", "i", "don't", "know", "<user>", "<unk>"]
    )
    assert tokenizer.decode(ids, skip_special_tokens=True) == "hello there , i don't know"
    assert tokenizer("hi", add_special_tokens=False)["input_ids"] == [tokenizer.unk_token_id]


def test_new_tiny_policy_max_vocab():
    """The most frequent words stay; the rest are unknown."""
    model, tokenizer = new_tiny_policy(TEXTS, max_vocab=8)
    assert set(tokenizer.get_vocab()) == {*SPECIAL_TOKENS, "the", "cat"}
    assert model.config.vocab_size == 8


def test_new_tiny_policy_seed():
    """Weights depend on the seed alone, and drawing them leaves the global generator where it was."""
    state = torch.get_rng_state()
    weights = [new_tiny_policy(TEXTS, seed=seed)[0].lm_head.weight for seed in (0, 0, 1)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
    assert torch.equal(torch.get_rng_state(), state)


def test_families_are_the_architectures_named():
    assert [model_of(name).config.model_type for name in CONFIGS] == list(CONFIGS)
