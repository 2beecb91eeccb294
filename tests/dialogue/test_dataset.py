import functools
import pickle
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerFast

from grpo_from_scratch.dialogue.dataset import (
    IGNORED,
    SPLITS,
    DialogDataset,
    Example,
    collate,
    columns,
    encode_prompt,
    encode_reply,
    split_of,
)

CHATML = (
    "{% for m in messages %}<|{{ m.role }}|> {{ m.content }} <eos> {% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
WITH_BOS = "<bos> " + CHATML
USER_FIRST = (  # as Gemma and Mistral: no system role, and roles alternate from the user on
    "{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "<|{{ m.role }}|> {{ m.content }} {% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
THREE_TURNS = Example(("w1", "w2", "w3 w4"), ("w5 w6",), background=("w7 w8", "w9"))
WORDS = [f"w{i}" for i in range(100)]


def word_tokenizer(chat_template=None, closes_with_eos=False):
    special = ["<pad>", "<bos>", "<eos>", "<unk>", "<user>", "<bot>", "<|system|>", "<|user|>", "<|assistant|>"]
    model = models.WordLevel({word: i for i, word in enumerate([*special, *WORDS])}, unk_token="<unk>")
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>" if closes_with_eos else "<bos> $A", special_tokens=[("<bos>", 1), ("<eos>", 2)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", unk_token="<unk>"
    )
    fast.add_special_tokens({"additional_special_tokens": special[4:]})
    fast.chat_template = chat_template
    return fast


def byte_tokenizer():
    """GPT-2's kind: bytes, one special token, no pad token, no BOS, no chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(special_tokens=["<|end|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(["a b c"], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")


def text_of(ids, tokenizer):
    return " ".join(tokenizer.convert_ids_to_tokens(ids))


def test_encode_prompt_fallback_without_a_chat_template():
    """DT-03: a tokenizer with chat_template None gets the documented format."""
    tokenizer = word_tokenizer()
    prompt = encode_prompt(THREE_TURNS, tokenizer)
    assert text_of(prompt, tokenizer) == "<bos> w7 w8 w9 <user> w1 <bot> w2 <user> w3 w4 <bot>"


def test_encode_prompt_fallback_of_a_tokenizer_that_closes_texts_with_eos():
    tokenizer = word_tokenizer(closes_with_eos=True)
    assert text_of(encode_prompt(THREE_TURNS, tokenizer), tokenizer).endswith("w3 w4 <bot>")


def test_encode_prompt_an_even_number_of_turns_opens_with_the_bot():
    tokenizer = word_tokenizer()
    prompt = encode_prompt(Example(("w1", "w2"), ("w3",)), tokenizer)
    assert text_of(prompt, tokenizer) == "<bos> <bot> w1 <user> w2 <bot>"


def test_encode_prompt_a_given_template_wins():
    """DT-03: a chat template is used where there is one, the background as the system message."""
    tokenizer = word_tokenizer(CHATML)
    prompt = encode_prompt(THREE_TURNS, tokenizer)
    assert text_of(prompt, tokenizer) == (
        "<|system|> w7 w8 w9 <eos> <|user|> w1 <eos> <|assistant|> w2 <eos> <|user|> w3 w4 <eos> <|assistant|>"
    )


def test_encode_prompt_applies_the_template_once():
    """The template's own BOS is the only one, though the tokenizer would add another."""
    tokenizer = word_tokenizer(WITH_BOS)
    tokens = Counter(tokenizer.convert_ids_to_tokens(encode_prompt(THREE_TURNS, tokenizer)))
    assert (tokens["<bos>"], tokens["<|system|>"], tokens["<|user|>"]) == (1, 1, 2)


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        (("w1",), "<|user|> w7 w8 w9 w1 <|assistant|>"),
        (("w1", "w2"), "<|user|> w7 w8 w9 w1 w2 <|assistant|>"),
        (("w1", "w2", "w3"), "<|user|> w7 w8 w9 w1 <|assistant|> w2 <|user|> w3 <|assistant|>"),
    ],
)
def test_encode_prompt_template_that_knows_no_system_and_wants_the_user_first(turns, expected):
    tokenizer = word_tokenizer(USER_FIRST)
    example = Example(turns, ("w5",), background=("w7 w8", "w9"))
    assert text_of(encode_prompt(example, tokenizer), tokenizer) == expected


def test_encode_prompt_template_that_refuses_everything():
    tokenizer = word_tokenizer("{{ raise_exception('tools only') }}")
    with pytest.raises(ValueError, match="chat template refuses this conversation: tools only"):
        encode_prompt(THREE_TURNS, tokenizer)


@pytest.mark.parametrize("template", [None, CHATML])
def test_encode_prompt_keeps_the_last_tokens(template):
    tokenizer = word_tokenizer(template)
    whole = encode_prompt(THREE_TURNS, tokenizer)
    for limit in range(1, len(whole) + 3):
        assert encode_prompt(THREE_TURNS, tokenizer, limit) == whole[max(0, len(whole) - limit) :]
    for limit in (0, -3):
        with pytest.raises(ValueError, match="max_tokens must be at least 1"):
            encode_prompt(THREE_TURNS, tokenizer, limit)


def test_encode_reply_has_exactly_one_eos():
    for template in (None, CHATML):
        tokenizer = word_tokenizer(template)
        assert text_of(encode_reply("w1 w2", tokenizer), tokenizer) == "w1 w2 <eos>"
        assert text_of(encode_reply("w1 <eos> w2 <eos>", tokenizer), tokenizer) == "w1 w2 <eos>"


def test_encode_reply_needs_an_eos():
    tokenizer = word_tokenizer()
    tokenizer.eos_token = None
    with pytest.raises(ValueError, match="no eos_token"):
        encode_reply("w1", tokenizer)


def test_encode_reply_follows_the_fallback_prompt_as_text_would():
    """A byte-level tokenizer sees the same tokens as in one text "... <bot> reply"."""
    tokenizer = byte_tokenizer()
    example = Example(("hi",), ("fine 👍你好",))
    ids = encode_prompt(example, tokenizer) + encode_reply("fine 👍你好", tokenizer)
    assert ids == tokenizer("<user> hi <bot> fine 👍你好<|end|>").input_ids


def test_dialog_dataset_labels_cover_the_reply_alone():
    tokenizer = word_tokenizer()
    (item,) = DialogDataset([THREE_TURNS], tokenizer, 64)
    prompt = encode_prompt(THREE_TURNS, tokenizer)
    assert item["input_ids"][: len(prompt)] == prompt
    assert item["labels"][: len(prompt)] == [IGNORED] * len(prompt)
    assert item["labels"][len(prompt) :] == item["input_ids"][len(prompt) :]
    assert text_of(item["labels"][len(prompt) :], tokenizer) == "w5 w6 <eos>"


def test_dialog_dataset_imitates_responses_or_else_references():
    tokenizer = word_tokenizer()
    with_responses = Example(("w1",), ("w2",), responses=("w3", "w4"))
    without = Example(("w1",), ("w5", "w6"))
    dataset = DialogDataset([with_responses, without], tokenizer, 64)
    replies = [text_of([label for label in item["labels"] if label != IGNORED], tokenizer) for item in dataset]
    assert len(dataset) == 4
    assert replies == ["w3 <eos>", "w4 <eos>", "w5 <eos>", "w6 <eos>"]


def test_dialog_dataset_truncation_keeps_the_answer():
    """DT-04: 50 tokens of history, 5 of reply, limit 16: the last 11 of the prompt and the whole reply."""
    tokenizer = word_tokenizer()
    history = Example((" ".join(WORDS[:47]),), ("w90 w91 w92 w93",))  # with <bos>, <user> and <bot>: 50 tokens
    prompt = encode_prompt(history, tokenizer)
    assert len(prompt) == 50
    (item,) = DialogDataset([history], tokenizer, 16)
    assert item["input_ids"][:11] == prompt[-11:]
    assert text_of(item["input_ids"][11:], tokenizer) == "w90 w91 w92 w93 <eos>"
    assert item["labels"] == [IGNORED] * 11 + item["input_ids"][11:]


def test_dialog_dataset_truncation_below_the_reply():
    """DT-04: a limit below the reply cuts its end; a label to learn from always stays."""
    tokenizer = word_tokenizer()
    example = Example((" ".join(WORDS[:47]),), ("w90 w91 w92 w93",))
    (item,) = DialogDataset([example], tokenizer, 4)
    assert text_of(item["input_ids"], tokenizer) == "<bot> w90 w91 w92"
    assert item["labels"] == [IGNORED] + item["input_ids"][1:]
    with pytest.raises(ValueError, match="max_tokens must be at least 2"):
        DialogDataset([example], tokenizer, 1)


@settings(deadline=None, max_examples=50)
@given(history=st.integers(1, 40), reply=st.integers(1, 20), limit=st.integers(2, 40))
def test_dialog_dataset_property(history, reply, limit):
    tokenizer = _shared_tokenizer()
    example = Example((" ".join(WORDS[:history]),), (" ".join(WORDS[50 : 50 + reply]),))
    (item,) = DialogDataset([example], tokenizer, limit)
    ids, labels = item["input_ids"], item["labels"]
    whole = encode_prompt(example, tokenizer), encode_reply(example.references[0], tokenizer)
    assert len(ids) == len(labels) == min(limit, len(whole[0]) + len(whole[1]))
    learned = [label for label in labels[1:] if label != IGNORED]  # cross-entropy predicts label t from token t - 1
    assert learned == whole[1][: len(learned)]
    assert learned
    assert ids.count(tokenizer.eos_token_id) == (1 if limit > len(whole[1]) else 0)


@functools.cache
def _shared_tokenizer():
    return word_tokenizer()


def test_collate_pads_on_the_right_by_position():
    batch = [{"input_ids": [5, 2], "labels": [IGNORED, 2]}, {"input_ids": [1, 5, 6, 2], "labels": [IGNORED, 5, 6, 2]}]
    out = collate(batch, pad_id=2)  # the pad is EOS, as in GPT-2
    assert out["input_ids"].tolist() == [[5, 2, 2, 2], [1, 5, 6, 2]]
    assert out["attention_mask"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    assert out["labels"].tolist() == [[IGNORED, 2, IGNORED, IGNORED], [IGNORED, 5, 6, 2]]
    assert {tensor.dtype for tensor in out.values()} == {torch.int64}


def test_collate_of_one_item_keeps_its_shape():
    """DT-01: batch of one, and of one item of a single token; equal to row 0 of a batch of two."""
    item, longer = {"input_ids": [7], "labels": [7]}, {"input_ids": [7, 8], "labels": [IGNORED, 8]}
    assert {name: tuple(tensor.shape) for name, tensor in collate([item], pad_id=0).items()} == {
        "input_ids": (1, 1),
        "attention_mask": (1, 1),
        "labels": (1, 1),
    }
    both = collate([longer, item], pad_id=0)
    assert all(torch.equal(tensor[0], both[name][0]) for name, tensor in collate([longer], pad_id=0).items())


def test_dialog_dataset_in_spawned_workers():
    """NB-04: dataset and collate pickle, so a DataLoader works with 0 workers and with spawned ones."""
    tokenizer = word_tokenizer()
    dataset = DialogDataset([THREE_TURNS, Example(("w1",), ("w2",))], tokenizer, 64)
    pad = functools.partial(collate, pad_id=tokenizer.pad_token_id)
    assert pickle.loads(pickle.dumps(dataset))[1] == dataset[1]
    loader = functools.partial(DataLoader, dataset, batch_size=2, collate_fn=pad)
    (here,) = loader()
    (there,) = loader(num_workers=1, multiprocessing_context="spawn")
    assert all(torch.equal(here[name], there[name]) for name in here)


def test_columns_one_entry_an_example():
    examples = [THREE_TURNS, Example(("hi",), ("a", "b"), facts=("f",), kind="fact", topic="job")]
    data = columns(examples)
    assert data["references"] == [("w5 w6",), ("a", "b")]
    assert data["facts"] == [(), ("f",)]
    assert data["kind"] == ["", "fact"]
    assert set(data) == {"turns", "references", "background", "responses", "facts", "kind", "topic", "item"}
    assert all(len(values) == 2 for values in data.values())


@pytest.mark.parametrize("wrong", [{"turns": ()}, {"references": ()}, {"turns": "hi"}, {"references": "hi"}])
def test_example_needs_turns_and_references(wrong):
    (name,) = wrong
    with pytest.raises(ValueError, match=f"an example's {name} must be a tuple of at least one text"):
        Example(**({"turns": ("a",), "references": ("b",)} | wrong))


def test_split_of_is_fixed_and_in_proportion():
    shares = Counter(split_of(f"context {i}") for i in range(5000))
    assert {split: shares[split] / 5000 for split in SPLITS} == pytest.approx(
        {"train": 0.8, "tuning": 0.1, "report": 0.1}, abs=0.015
    )
    # Fixed for good: what a stored model was trained on must stay out of the held-out halves.
    assert [split_of(text) for text in ("hello", "你好", "a", "seven")] == ["train", "train", "tuning", "report"]
