"""Text metrics against sacrebleu's own layout, hand counts and Hugging Face's loss."""

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU
from transformers import LlamaConfig, LlamaForCausalLM

from grpo_from_scratch.evaluation.text import corpus_bleu, corpus_rouge_l, distinct_n, perplexity

TEXTS = st.lists(st.sampled_from("abcde"), min_size=0, max_size=8).map(" ".join)


def test_corpus_bleu_matches_sacrebleu_with_equal_counts():
    hypotheses = ["the cat sat on the mat", "a dog runs in the park today"]
    references = [
        ["the cat is on the mat", "there is a cat on the mat"],
        ["a dog ran in the park today", "the dog runs today"],
    ]
    streams = [[texts[k] for texts in references] for k in range(2)]
    expected = BLEU().corpus_score(hypotheses, streams).score / 100
    assert corpus_bleu(hypotheses, references) == pytest.approx(expected, abs=1e-12)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(TEXTS, st.lists(TEXTS, min_size=1, max_size=3)), min_size=1, max_size=4))
def test_corpus_bleu_unequal_counts_equal_repeated_references(rows):
    """Repeating a text's last reference changes nothing, so unequal counts must score as padded equal ones do."""
    hypotheses, references = [h for h, _ in rows], [r for _, r in rows]
    width = max(map(len, references))
    padded = [texts + [texts[-1]] * (width - len(texts)) for texts in references]
    streams = [[texts[k] for texts in padded] for k in range(width)]
    expected = BLEU(force=True).corpus_score(hypotheses, streams).score / 100
    assert corpus_bleu(hypotheses, references) == pytest.approx(min(expected, 1.0), abs=1e-12)


def test_corpus_bleu_short_text_has_no_four_grams():
    """ME-01: the corpus score, without effective order, is 0 for one- and two-word corpora, as its docstring says."""
    assert corpus_bleu(["hello"], [["hello"]]) == 0.0
    assert corpus_bleu(["good morning"], [["good morning"]]) == 0.0
    assert corpus_bleu(["good morning my dear friend", "hello"], [["good morning my dear friend"], ["hello"]]) == 1.0


@pytest.mark.parametrize(("hypothesis", "reference"), [("", "a b c d"), ("a", ""), ("", "")])
def test_corpus_bleu_empty_text_scores_0(hypothesis, reference):
    """ME-02."""
    assert corpus_bleu([hypothesis], [[reference]]) == 0.0


def test_corpus_bleu_empty_text_costs_brevity():
    """ME-02: an empty hypothesis among others lowers the score: here lengths 4 against 8, exp(1 − 8/4)."""
    score = corpus_bleu(["a b c d", ""], [["a b c d"], ["e f g h"]])
    assert score == pytest.approx(math.exp(-1))


def test_corpus_bleu_refuses_nothing_to_score():
    """ME-02: an empty list is an error, not a score."""
    with pytest.raises(ValueError, match="No hypotheses"):
        corpus_bleu([], [])


def test_corpus_bleu_chinese_needs_its_tokenizer():
    """ME-03."""
    reference = [["我喜欢学习机器学习"]]
    assert corpus_bleu(["我喜欢机器学习"], reference, tokenize="zh") == pytest.approx(0.4468, abs=5e-5)
    assert corpus_bleu(reference[0], reference, tokenize="zh") == 1.0
    assert corpus_bleu(["我喜欢机器学习"], reference) == 0.0
    assert corpus_bleu(reference[0], reference) == 0.0


def test_corpus_bleu_brevity_penalty_on_the_hypothesis():
    """ME-10: exp(1 − 6/4) for the short hypothesis; none for the long one, whose 4-gram precision is what it loses."""
    assert corpus_bleu(["a b c d"], [["a b c d e f"]]) == pytest.approx(math.exp(-0.5))
    swapped = (4 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25
    assert corpus_bleu(["a b c d e f"], [["a b c d"]]) == pytest.approx(swapped)


@pytest.mark.parametrize(
    ("hypotheses", "references", "message"),
    [
        (["a"], ["a b"], "one text"),  # ME-10: a flat list of references
        ([["a b"]], [["a"]], "hypotheses come first"),  # ME-10: swapped
        (["a", "b"], [["a"]], "2 hypotheses but 1"),
        (["a", "b"], [["a"], []], r"references\[1\]"),
    ],
)
def test_corpus_bleu_refuses_wrong_nesting(hypotheses, references, message):
    with pytest.raises(ValueError, match=message):
        corpus_bleu(hypotheses, references)


def test_corpus_bleu_refuses_unknown_tokenizer():
    with pytest.raises(ValueError, match="13a"):
        corpus_bleu(["a"], [["a"]], tokenize="chinese")


def test_corpus_bleu_is_silent_about_tokenized_periods(caplog):
    """Generated text ends in " ."; sacrebleu warns from the hundredth on."""
    corpus_bleu(["a b c d ."] * 200, [["a b c d ."]] * 200)
    assert not caplog.records


def test_corpus_rouge_l_takes_the_best_reference():
    # LCS "a c" of "a b c": P = R = 2/3 against "a x c", 1 against itself; the second hypothesis shares nothing.
    assert corpus_rouge_l(["a b c", "q"], [["a x c", "z"], ["r"]]) == pytest.approx((2 / 3 + 0) / 2)
    assert corpus_rouge_l(["a b c", "q"], [["a x c", "a b c"], ["q"]]) == pytest.approx(1.0)


def test_corpus_rouge_l_other_scripts():
    """ME-05: 我喜欢 are three of four and three of five characters, F = 2·(3/4·3/5)/(3/4 + 3/5)."""
    assert corpus_rouge_l(["我喜欢学习"], [["我喜欢学习"]]) == 1.0
    assert corpus_rouge_l(["我喜欢猫"], [["我喜欢学习"]]) == pytest.approx(0.6667, abs=5e-5)
    assert corpus_rouge_l([""], [["我"]]) == 0.0


def test_distinct_n_hand_count():
    texts = ["a b a b", "b c"]  # bigrams ab ba ab | bc: three different of four; no bigram spans two texts
    assert distinct_n(texts, 2) == 3 / 4
    assert distinct_n(texts, 1) == 3 / 6
    assert distinct_n(texts, 3) == 2 / 2
    assert distinct_n(texts, 5) == 0.0
    assert distinct_n([], 1) == 0.0
    assert distinct_n(["我喜欢我喜欢"], 2) == 3 / 5


def test_distinct_n_refuses_0():
    with pytest.raises(ValueError, match="at least one token"):
        distinct_n(["a"], 0)


class GivenLosses(torch.nn.Module):
    """Predicts token t with the negative log-likelihood written in its id: nll = id / 10, over a vocabulary of 32."""

    def __init__(self):
        super().__init__()
        self.anchor = torch.nn.Parameter(torch.zeros(()))

    def forward(self, input_ids, attention_mask):
        following = torch.nn.functional.pad(input_ids[:, 1:], (0, 1))
        probability = torch.exp(-following / 10).double().clamp(max=1 - 1e-12)
        rest = ((1 - probability) / 31)[..., None].expand(*input_ids.shape, 32).clone()
        rest.scatter_(-1, following[..., None], probability[..., None])
        return SimpleNamespace(logits=rest.log())


class Ids:
    """A tokenizer whose text is its ids; 0 begins every text."""

    def __call__(self, text):
        return {"input_ids": [0, *map(int, text.split())]}


@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_perplexity_weighs_tokens_alike(batch_size):
    """ME-06: token losses [.1, .2, .3, .4] and [2.0] give exp(3/5) whatever the batch."""
    model = GivenLosses()
    assert perplexity(model, Ids(), ["1 2 3 4", "20"], batch_size=batch_size) == pytest.approx(1.8221, abs=5e-5)
    assert perplexity(model, Ids(), ["20", "1 2 3 4"], batch_size=batch_size) == pytest.approx(1.8221, abs=5e-5)


def tiny_llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        attention_dropout=0.5,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def test_perplexity_equals_hugging_face_one_text_at_a_time():
    """ME-06: padding changes nothing: the token-weighted mean of Hugging Face's own losses of single unpadded texts."""
    model, texts = tiny_llama().eval(), ["1 2 3 4 5 6 7", "8", "9 10 11", "0 0 5"]
    total, count = 0.0, 0
    for text in texts:
        ids = torch.tensor([Ids()(text)["input_ids"]])
        with torch.no_grad():
            total += model(input_ids=ids, labels=ids).loss.item() * (ids.numel() - 1)
        count += ids.numel() - 1
    for batch_size in (1, 3, 8):
        assert perplexity(model, Ids(), texts, batch_size=batch_size) == pytest.approx(
            math.exp(total / count), rel=1e-5
        )


def test_perplexity_turns_dropout_off_and_restores_the_mode():
    model = tiny_llama().train()
    values = {perplexity(model, Ids(), ["1 2 3 4 5 6 7"]) for _ in range(3)}
    assert len(values) == 1
    assert model.training


def test_perplexity_leaves_out_texts_without_a_prediction():
    model = GivenLosses()
    assert perplexity(model, Ids(), ["", "20"]) == pytest.approx(math.exp(2.0))
    with pytest.raises(ValueError, match="nothing to predict"):
        perplexity(model, Ids(), ["", ""])
    with pytest.raises(ValueError, match="batch_size is 0"):
        perplexity(model, Ids(), ["1"], batch_size=0)
