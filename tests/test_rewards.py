import math

import pytest
import sacrebleu
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer

from grpo_from_scratch.dialogue.corpus import embedded_dialogues
from grpo_from_scratch.dialogue.dataset import columns
from grpo_from_scratch.rewards import (
    REWARDS,
    WeightedSum,
    chrf,
    distinct_reward,
    facts_reward,
    length_reward,
    parse_reward,
    rouge_l,
    score,
    sentence_bleu,
    sort_digits_reward,
)

ROUGE = RougeScorer(["rougeL"])
CHINESE = "我喜欢学习机器学习"
sentences = st.lists(st.sampled_from(["a", "b", "c", ".", ",", "don't", "3.5", "&amp;", "-"]), max_size=14).map(
    " ".join
)

BY_TEXT = [name for name in REWARDS if not name.startswith("reasoning")]  # a reasoning task judges its own questions


@settings(deadline=None, max_examples=50)
@given(sentences, st.lists(sentences, min_size=1, max_size=12), st.sampled_from(["13a", "zh", "char", "none"]))
def test_sentence_bleu_is_sacrebleus(hypothesis, references, tokenize):
    expected = sacrebleu.sentence_bleu(hypothesis, references, tokenize=tokenize, use_effective_order=True).score
    assert sentence_bleu(hypothesis, references, tokenize=tokenize) == pytest.approx(expected / 100, abs=1e-12)


def test_sentence_bleu_of_short_replies():
    """ME-01: with effective order, an identical reply of one or two words has the highest score."""
    for text in ("hello", "good morning", "a b c d e"):
        assert sentence_bleu(text, [text]) == 1.0
        assert sentence_bleu(text, ["something else", text]) == 1.0


def test_sentence_bleu_of_empty_texts():
    """ME-02: 0, never NaN; an empty reference list is refused."""
    for hypothesis, reference in (("", "a b c d"), ("a", ""), ("", ""), (" \n", "a"), ("a", " ")):
        assert sentence_bleu(hypothesis, [reference]) == 0.0
    assert sentence_bleu("a b", ["", "a b"]) == 1.0
    for wrong in ([], (), "a b"):
        with pytest.raises(ValueError, match="at least one reference"):
            sentence_bleu("a b", wrong)


def test_sentence_bleu_of_chinese():
    """ME-03: 13a takes a Chinese sentence for one word; zh and char do not."""
    for tokenize in ("zh", "char"):
        assert sentence_bleu("我喜欢机器学习", [CHINESE], tokenize=tokenize) == pytest.approx(0.4468, abs=5e-5)
        assert sentence_bleu(CHINESE, [CHINESE], tokenize=tokenize) == 1.0
    assert sentence_bleu("我喜欢机器学习", [CHINESE]) == 0.0
    assert REWARDS["bleu_zh"]([""], ["我喜欢机器学习"], references=[[CHINESE]]) == [pytest.approx(0.4468, abs=5e-5)]


def test_sentence_bleu_brevity_penalty():
    """ME-10: the hypothesis is the short one: exp(1 - 6/4); swapped, there is no penalty."""
    assert sentence_bleu("a b c d", ["a b c d e f"]) == pytest.approx(0.6065, abs=5e-5)
    assert sentence_bleu("a b c d e f", ["a b c d"]) == pytest.approx((4 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)
    # 4 words lie as close to 3 as to 5: the shorter reference counts, so nothing is taken off.
    assert sentence_bleu("a b c d", ["a b c d e", "a b c"]) == 1.0


def test_sentence_bleu_clips_repeats_over_references():
    """A word counts as often as the one reference that has it most often, not as often as in all together."""
    only_words = sentence_bleu("a a a", ["a b", "c a a"])
    assert only_words == pytest.approx((2 / 3 * 1 / 2 * (1 / 2) / 1) ** (1 / 3))


def test_sentence_bleu_unknown_tokenizer():
    with pytest.raises(ValueError, match="unknown tokenizer 'klingon'; sacrebleu has .*13a"):
        sentence_bleu("a", ["a"], tokenize="klingon")


@settings(deadline=None, max_examples=25)
@given(sentences, st.lists(sentences, min_size=1, max_size=3))
def test_chrf_is_sacrebleus(hypothesis, references):
    expected = sacrebleu.sentence_chrf(hypothesis, references).score if hypothesis.strip() else 0.0
    assert chrf(hypothesis, references) == pytest.approx(expected / 100, abs=1e-12)
    assert 0 <= chrf(hypothesis, references) <= 1


def test_chrf_edges():
    assert chrf("", ["a"]) == chrf(" ", [""]) == chrf("a", [""]) == 0.0
    assert chrf(CHINESE, ["x", CHINESE]) == 1.0
    with pytest.raises(ValueError, match="at least one reference"):
        chrf("a", [])


@settings(deadline=None, max_examples=50)
@given(st.text(st.characters(max_codepoint=127)), st.text(st.characters(max_codepoint=127)))
def test_rouge_l_english_is_unchanged(hypothesis, reference):
    """ME-05: plain ASCII scores are those of rouge-score's own tokenizer."""
    assert rouge_l(hypothesis, reference) == ROUGE.score(reference, hypothesis)["rougeL"].fmeasure


def test_rouge_l_by_hand():
    """Longest common subsequence "i love": precision 2/3, recall 2/4."""
    assert rouge_l("i love cats", "i do love dogs") == pytest.approx(2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4))


@pytest.mark.parametrize(
    "text", ["我喜欢学习", "ฉันรักแมว", "मुझे पढ़ना पसंद है", "😊", "привет мир", "مرحبا", "안녕 하세요", "Ωδή"]
)
def test_rouge_l_of_other_scripts(text):
    """ME-05: identical text of any script scores 1; rouge-score's tokenizer would give 0."""
    assert rouge_l(text, text) == 1.0
    assert ROUGE.score(text, text)["rougeL"].fmeasure == 0.0


def test_rouge_l_of_chinese_counts_characters():
    """ME-05: 3 of 4 and 3 of 5 characters."""
    assert rouge_l("我喜欢猫", "我喜欢学习") == pytest.approx(2 / 3)


def test_rouge_l_of_empty_texts():
    """ME-05: 0, not an exception."""
    assert rouge_l("", "a") == rouge_l("a", "") == rouge_l("", "") == rouge_l("...", "...") == 0.0


def test_facts_reward_finds_whole_words():
    replies = ["I have Two Cats!", "two cats", "two catsuits", "cats two", "twotwo cats", "", "i live in lisbon"]
    facts = [("two cats",)] * 6 + [("may", "lisbon")]
    assert facts_reward([""] * 7, replies, facts=facts) == [1, 1, 0, 0, 0, 0, 1]
    assert facts_reward([""], ["我住在北京。"], facts=[("北京",)]) == [1]
    assert facts_reward([""] * 2, ["a", ""], facts=[(), []]) == [None, None]
    assert facts_reward([""] * 2, ["", "!"], facts=[("?",), ("!",)]) == [0, 0]  # no word, so nothing to name


def test_length_reward_of_the_nearest_reference():
    references = [["a b c d", "a b"]] * 5
    assert length_reward([""] * 5, ["x y z", "x y", "x x x x x x x x", "", "x ."], references=references) == [
        0.75,
        1.0,
        0.5,
        0.0,
        0.5,
    ]
    assert length_reward([""], [""], references=[["..."]]) == [0.0]


def test_distinct_reward():
    assert distinct_reward([""] * 5, ["a b c", "a b a b", "a", "", "x x x x"]) == [1.0, 2 / 3, 1.0, 0.0, 1 / 3]


def test_sort_digits_reward_partial_credit():
    references = [("1 2 2 9",)]

    def one(text):
        return sort_digits_reward([""], [text], references=references)[0]

    assert one("1 2 2 9") == one(" 1 2  2 9\n") == 1.0
    assert one("1 2 9 2") == 0.5
    assert one("1 2 2") == 0.75
    assert one("1 2 2 9 9") == 0.8
    assert one("") == one("2 9 1 1") == 0.0


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.lists(st.sampled_from([*"0123456789", "x", "12"])))
def test_sort_digits_reward_is_full_for_the_solution_only(digits, answer):
    """No answer but the solution scores 1, and one more word of any kind never raises a score."""
    solution = " ".join(map(str, sorted(digits)))

    def one(tokens):
        return sort_digits_reward([""], [" ".join(tokens)], references=[(solution,)])[0]

    assert (one(answer) == 1.0) == (answer == solution.split())
    assert 0 <= one(answer) <= 1
    assert one([*solution.split(), *answer]) <= 1
    assert len(answer) < len(digits) or one([*answer, "7"]) <= one(answer)


@pytest.mark.parametrize("name", BY_TEXT)
def test_rewards_score_every_completion_and_ignore_other_columns(name):
    examples = embedded_dialogues("train", count=12)
    replies = [example.responses[0] for example in examples[:10]] + ["", "?"]
    data = columns(examples) | {"something_else": [1] * 12}
    result = score(REWARDS[name], ["a prompt"] * 12, replies, data)
    assert result.shape == (12,)
    assert result.dtype == torch.float32
    assert ((result >= 0) & (result <= 1)).all()
    assert result[10] == 0  # an empty reply never pays
    assert REWARDS[name](["p"], replies[:1], **{key: values[:1] for key, values in data.items()})[0] == pytest.approx(
        result[0].item()
    )


@pytest.mark.parametrize("name", BY_TEXT)
def test_rewards_of_a_character_cut_in_the_middle(name):
    """DT-11: a cut emoji decodes to U+FFFD; every reward takes such a text."""
    data = {"references": [("👍你好",)] * 2, "facts": [("你好",)] * 2}
    assert score(REWARDS[name], [""] * 2, ["👍你好\ufffd", "\ufffd"], data).isfinite().all()


@pytest.mark.parametrize("name", ["bleu", "chrf", "rouge_l", "length"])
def test_rewards_take_the_best_reference(name):
    data = {"references": [("something quite different here", "i have two cats")]}
    assert REWARDS[name]([""], ["i have two cats"], **data) == [1.0]


def test_parse_reward_a_single_name():
    assert parse_reward("bleu") is REWARDS["bleu"]
    assert parse_reward(" chrf ") is REWARDS["chrf"]


def test_parse_reward_weighted_sum():
    data = {"references": [("a b c d",)] * 2, "facts": [("a",), ("z",)]}
    replies = ["a b", "a b c d"]
    bleu = [sentence_bleu(reply, ["a b c d"]) for reply in replies]
    both = parse_reward("bleu:0.8, facts:0.2")([""] * 2, replies, **data)
    assert both == pytest.approx([0.8 * bleu[0] + 0.2, 0.8 * bleu[1]])
    assert parse_reward("bleu,facts")([""] * 2, replies, **data) == pytest.approx([bleu[0] + 1, bleu[1]])
    assert parse_reward("bleu:2")([""] * 2, replies, **data) == pytest.approx([2 * bleu[0], 2 * bleu[1]])


def test_weighted_sum_leaves_missing_scores_out(monkeypatch):
    """ADV-09: a missing score is not a score of 0: the other weights take its place."""
    monkeypatch.setitem(REWARDS, "first", lambda prompts, completions, **columns: [1.0, None, 0.5, None, math.nan])
    monkeypatch.setitem(REWARDS, "second", lambda prompts, completions, **columns: [0.5, 0.5, None, None, 1.0])
    total = WeightedSum((("first", 3.0), ("second", -1.0)))([""] * 5, [""] * 5)
    assert total == [2.5, pytest.approx(-0.5 * 4), pytest.approx(0.5 * 4), None, pytest.approx(-4.0)]
    assert score(WeightedSum((("first", 1.0),)), [""] * 5, [""] * 5, {}).isnan().tolist() == [0, 1, 0, 1, 1]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("blue", "unknown reward 'blue'; the nearest valid: bleu"),
        ("rouge", "rouge_l"),
        ("qqq", "bleu, bleu_zh, chrf, rouge_l, facts, length, distinct, sort_digits"),
        ("", "unknown reward ''"),
        ("bleu,", "unknown reward ''"),
        ("bleu:x", "weight of reward 'bleu' must be a finite number, got 'x'"),
        ("bleu:", "weight of reward 'bleu' must be a finite number, got ''"),
        ("bleu:nan", "finite number, got 'nan'"),
        ("bleu:inf", "finite number, got 'inf'"),
        ("bleu:1,bleu:2", "'bleu' stands twice"),
        ("bleu:0,facts:0", "every weight in 'bleu:0,facts:0' is 0"),
    ],
)
def test_parse_reward_refuses(spec, message):
    with pytest.raises(ValueError, match=message):
        parse_reward(spec)


def returning(*values):
    def fixed(prompts, completions, **columns):
        return list(values)

    return fixed


def test_score_missing_is_nan():
    """ADV-09: None and NaN are missing and the others go on."""
    result = score(returning(1, None, float("nan"), True, torch.tensor(0.5)), ["p"] * 5, list("abcde"), {})
    assert result.dtype == torch.float32
    assert result.isnan().tolist() == [False, True, True, False, False]
    assert result[[0, 3, 4]].tolist() == [1.0, 1.0, 0.5]


def test_score_of_one_completion_keeps_its_shape():
    """DT-01: shape (1,) for one completion, (0,) for none."""
    assert score(returning(0.5), ["p"], ["c"], {}).shape == (1,)
    assert score(returning(), [], [], {}).shape == (0,)


@pytest.mark.parametrize("infinite", [math.inf, -math.inf, 1e39])  # 1e39 is infinite in float32
def test_score_refuses_infinity_naming_rows(infinite):
    """ADV-09: inf is an error of the reward, not a missing score."""
    with pytest.raises(ValueError, match=r"fixed gave an infinite score for completions \[1, 3\]"):
        score(returning(0.0, infinite, None, infinite), ["p"] * 4, list("abcd"), {})
    with pytest.raises(ValueError, match=r"completions \[0\]"):  # DT-01: a single row stays a list
        score(returning(infinite), ["p"], ["a"], {})


def test_score_refuses_what_is_no_number():
    with pytest.raises(ValueError, match="fixed gave 'good' for completion 1; expected a number"):
        score(returning(0.0, "good"), ["p"] * 2, list("ab"), {})


def test_score_refuses_another_number_of_scores():
    with pytest.raises(ValueError, match="gave 1 scores for 2 completions"):
        score(returning(0.5), ["p"] * 2, list("ab"), {})


def test_score_refuses_lists_of_unequal_length():
    with pytest.raises(ValueError, match="2 completions, but 1 entries in prompts"):
        score(returning(0, 0), ["p"], list("ab"), {})
    with pytest.raises(ValueError, match="2 completions, but 3 entries in facts"):
        score(returning(0, 0), ["p"] * 2, list("ab"), {"facts": [(), (), ()]})


def test_score_exception_names_the_completion():
    def careful(prompts, completions, *, facts, **columns):
        if any(fact == "bad" for fact in facts):
            raise KeyError("no such fact")
        return [1.0] * len(completions)

    with pytest.raises(RuntimeError, match="reward careful failed on completion 1, 'b': KeyError: 'no such fact'"):
        score(careful, ["p"] * 3, list("abc"), {"facts": ["good", "bad", "good"]})


def test_score_exception_of_the_batch_alone():
    def needs_one(prompts, completions, **columns):
        if len(completions) > 1:
            raise OSError("too many")
        return [1.0]

    with pytest.raises(RuntimeError, match="reward needs_one failed: OSError: too many"):
        score(needs_one, ["p"] * 2, list("ab"), {})


def test_score_names_a_weighted_sum():
    with pytest.raises(RuntimeError, match=r"'bleu', 0\.5.*references"):
        score(parse_reward("bleu:0.5"), ["p"], ["c"], {})
