"""Curation against dialogues made by hand, against all comparisons, and against the corpus, whose faults are known."""

import itertools
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_from_scratch.dialogue.corpus import embedded_dialogues
from grpo_from_scratch.dialogue.curation import (
    Removed,
    curate,
    duplicate,
    generic,
    length,
    near_duplicate,
    oversample,
    recombine,
    repetition,
    topic_and_kind,
    wrong_facts,
)
from grpo_from_scratch.dialogue.dataset import Example
from grpo_from_scratch.dialogue.phrases import EVENTS, GENERIC


def dialogue(*responses, turn="hi ?", background=(), facts=(), topic="", kind=""):
    return Example((turn,), ("a reference",), background, responses, facts, kind, topic)


def reason(judge, reply, **fields):
    return judge(dialogue(reply, **fields), reply)


# ---------------------------------------------------------------- curate


def never(example, reply):
    return None


def no_b(example, reply):
    return "has a b" if "b" in reply else None


def no_c(example, reply):
    return "has a c" if "c" in reply else None


def test_curate_says_what_it_removed_and_why():
    examples = [dialogue("a", "b", "abc"), dialogue("bb"), dialogue("c", "a a")]
    kept, removed = curate(examples, {"never": never, "no b": no_b, "no c": no_c})
    assert [example.responses for example in kept] == [("a",), ("a a",)]
    assert removed == [
        Removed(0, "b", "no b", "has a b"),
        Removed(0, "abc", "no b", "has a b"),  # the first filter that objects
        Removed(1, "bb", "no b", "has a b"),
        Removed(2, "c", "no c", "has a c"),
    ]
    assert examples[0].responses == ("a", "b", "abc")


def test_curate_later_filters_do_not_see_what_is_gone():
    seen = []
    curate([dialogue("a", "b")], {"no b": no_b, "spy": lambda example, reply: seen.append(reply)})
    assert seen == ["a"]


def test_curate_without_responses_judges_the_references():
    example = Example(("hi ?",), ("a", "b"))
    kept, removed = curate([example], {"no b": no_b})
    assert kept == [Example(("hi ?",), ("a", "b"), responses=("a",))]  # references are what replies are compared with
    assert [entry.reply for entry in removed] == ["b"]


# ---------------------------------------------------------------- filters


def test_length_counts_words():
    judge = length(2, 4)
    assert reason(judge, "one !") == "1 word, fewer than 2"
    assert reason(judge, "") == "0 words, fewer than 2"
    assert reason(judge, "one two , three four five .") == "5 words, more than 4"
    assert reason(judge, "one two .") is reason(judge, "one two three four .") is None
    assert reason(judge, "你好吗") is None  # three words, written without blanks


def test_repetition_counts_repeated_word_pairs():
    judge = repetition(0.5)
    assert reason(judge, "so so so so so") == "75% of its word pairs are repeats"  # four pairs, one of them new
    assert reason(judge, "i see i see .") is None  # "i see", "see i", "i see": a third
    assert reason(judge, "so so so") is None  # exactly a half
    assert reason(judge, "") is reason(judge, "!") is reason(judge, "ok") is None


def test_generic_counts_different_turns():
    examples = [dialogue("Ok .", "i sail .", turn=f"question {i} ?") for i in range(4)]
    examples += [dialogue("me too .", turn="question 1 ?")] * 9  # often, but always the same turn
    examples.append(dialogue("ok", turn="QUESTION 3"))  # the same words
    assert reason(generic(examples, 3), "ok !") == "answers 4 different turns"
    assert reason(generic(examples, 4), "ok !") is None
    assert reason(generic(examples, 3), "me too .") is reason(generic(examples, 3), "never said") is None


FACTS = [dialogue(facts=("two cats",)), dialogue(facts=("may", "rome")), dialogue(facts=("jazz",))]


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ("i have two cats .", "names two cats, which its dialogue does not"),
        ("in may in ROME !", "names rome, which its dialogue does not"),  # one of two
        ("jazz in rome .", "names jazz, rome, which its dialogue does not"),
        ("it is in may .", None),  # its fact
        ("come to lisbon .", None),  # its background
        ("the circus , yes .", None),  # its turn
        ("a tent .", None),  # its fact, in no other line
        ("two black cats .", None),  # nobody's fact
        ("ok .", None),  # says nothing, so nothing wrong
    ],
)
def test_wrong_facts(reply, said):
    own = {"background": ("the fair is in may in lisbon .",), "turn": "is there a circus ?", "facts": ("may", "tent")}
    judge = wrong_facts([*FACTS, dialogue(facts=("lisbon", "circus", "tent"))])
    assert reason(judge, reply, **own) == said


def test_duplicate_is_the_same_words_in_the_same_context():
    judge = duplicate()
    context = {"turn": "hi ?", "background": ("i sail .",)}
    assert reason(judge, "ok .", **context) is None
    assert reason(judge, "OK", turn="Hi !", background=("I sail",)) == "the same context and reply as before"
    assert reason(judge, "fine .", **context) is None
    assert reason(judge, "ok .", turn="and you ?", background=("i sail .",)) is None
    assert reason(judge, "ok .", turn="hi ?") is None


def test_near_duplicate_by_hand():
    judge = near_duplicate([], 0.6)
    assert reason(judge, "a b c d e") is None  # pairs ab bc cd de
    assert reason(judge, "a b c d x") == "shares 100% of the context and 60% of the reply with one before"  # 3 of 5
    assert reason(judge, "a b c x y") is None  # 2 of 6
    assert reason(judge, "a b c d e", turn="how are you ?") is None  # another context
    assert reason(judge, "a b c d e", facts=("e",)) is None  # another fact
    assert reason(near_duplicate([]), "") is None


LETTERS = st.lists(st.sampled_from("abcd"), max_size=6).map(" ".join)


def pairs(text):
    found = text.split()
    return set(itertools.pairwise(found)) or {(word,) for word in found}


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(LETTERS, LETTERS, st.sampled_from(["", "f"])), max_size=9), st.sampled_from([0.3, 0.5, 0.8]))
def test_near_duplicate_is_all_comparisons(rows, least):
    """Against the slow way: every reply with every one that has passed, in fractions."""

    def alike(a, b):
        union = len(a | b)
        return union == 0 or Fraction(len(a & b), union) >= Fraction(str(least))

    passed, expected = [], []
    for context, reply, fact in rows:
        ours = pairs(context), pairs(reply), fact
        close = any(f == fact and pairs(reply) and alike(c, ours[0]) and alike(r, ours[1]) for c, r, f in passed)
        expected.append(close)
        if not close:
            passed.append(ours)
    examples = [dialogue(reply, turn=context, facts=(fact,)) for context, reply, fact in rows]
    judge = near_duplicate(examples, least)
    assert [judge(example, example.responses[0]) is not None for example in examples] == expected


def test_filters_find_the_faults_of_the_corpus():
    """Generic replies are a closed list there; a wrong fact is a reply that is not generic and names none of its own.

    (That one names its own fact and another beside it does not happen: a reply's slots are all right or all wrong.)
    """
    examples = embedded_dialogues("train", count=2000)
    replies = [(place, reply) for place, example in enumerate(examples) for reply in example.responses]
    empty = [(place, reply) for place, reply in replies if reply in GENERIC]
    wrong = [
        (place, reply)
        for place, reply in replies
        if reply not in GENERIC and not any(f" {fact} " in f" {reply} " for fact in examples[place].facts)
    ]
    for judge, expected in ((generic(examples), empty), (wrong_facts(examples), wrong)):
        _, removed = curate(examples, {"it": judge})
        assert [(entry.example, entry.reply) for entry in removed] == expected


# ---------------------------------------------------------------- augmentation

SIZES = {"job": 64, "pet": 16, "food": 1}


def unequal():
    return [dialogue(f"{topic} {i}", topic=topic) for topic, size in SIZES.items() for i in range(size)]


@pytest.mark.parametrize(
    ("exponent", "expected"),
    [
        (1.0, {"job": 64, "pet": 16, "food": 1}),
        (0.5, {"job": 64, "pet": 32, "food": 8}),  # √(64/16) = 2 times, √64 = 8 times
        (0.0, {"job": 64, "pet": 64, "food": 64}),
    ],
)
def test_oversample_whole_multiples(exponent, expected):
    examples = unequal()
    result = oversample(examples, exponent=exponent)
    assert result[: len(examples)] == examples
    assert Counter(example.topic for example in result) == expected
    copies = Counter(example.responses for example in result)
    assert {copies[example.responses] for example in examples if example.topic == "pet"} == {expected["pet"] // 16}


def test_oversample_fractions_by_lot():
    """3 of 7: each stands 7/3 times on average, so twice or three times, whatever the seed."""
    examples = [dialogue(str(i), topic="rare" if i < 3 else "frequent") for i in range(10)]
    totals = []
    for seed in range(300):
        counts = Counter(example.responses for example in oversample(examples, exponent=0.0, seed=seed))
        assert {counts[example.responses] for example in examples[:3]} <= {2, 3}
        assert all(counts[example.responses] == 1 for example in examples[3:])
        totals.append(sum(counts[example.responses] for example in examples[:3]))
    assert sum(totals) / len(totals) == pytest.approx(7, abs=4 * (3 * 2 / 9 / 300) ** 0.5)  # 4 standard errors


def test_oversample_by_another_class():
    examples = [dialogue(topic="pet", kind=kind) for kind in ["fact"] * 4 + ["advice"]]
    assert Counter(e.kind for e in oversample(examples, exponent=0.0)) == {"fact": 4, "advice": 4}
    assert oversample(examples, exponent=0.0, of=lambda example: example.topic) == examples


@pytest.mark.parametrize("exponent", [-0.1, 1.1, float("nan")])
def test_augmentation_refuses_an_exponent(exponent):
    for augment in (oversample, recombine):
        with pytest.raises(ValueError, match="exponent must be from 0"):
            augment(unequal(), exponent=exponent)


def test_augmentation_of_nothing_is_nothing():
    assert oversample([]) == recombine([]) == []


KITE = {"background": ("the kite parade is in may .", "i sail ."), "facts": ("may",), "topic": "event"}
RACE = {"background": ("the river race is in june .", "i read ."), "facts": ("june",), "topic": "event"}


def test_recombine_takes_turns_that_lean_on_nothing_missing():
    rare = [
        dialogue("in may .", turn="when is the kite parade ?", **KITE),
        dialogue("in june .", turn="when is the river race ?", **RACE),
        dialogue("it is in june .", turn="what is on here ?", **RACE),  # leans on "is", which both backgrounds hold
    ]
    frequent = [dialogue(str(i), turn="and you ?", topic="job") for i in range(30)]
    added = recombine(rare + frequent, exponent=0.0)[33:]
    assert len(added) == 27
    for example in added:
        (original,) = (e for e in rare if e.responses == example.responses)
        assert (example.background, example.facts) == (original.background, original.facts)
        # the first may borrow the last's turn; the others have each other's; nobody asks the wrong background
        allowed = {"in may .": {"what is on here ?"}, "in june .": {"what is on here ?"}}
        assert example.turns[0] in allowed.get(example.responses[0], {"when is the river race ?"})


def test_recombine_draws_anew_for_each_copy():
    rare = [dialogue("one", topic="pet"), *(dialogue("two", turn=f"question {i} ?", topic="pet") for i in range(5))]
    copies = recombine(rare + [dialogue(topic="job")] * 240, exponent=0.0)[246:]
    turns = Counter(example.turns for example in copies if example.responses == ("one",))
    assert set(turns) == {(f"question {i} ?",) for i in range(5)}
    assert sum(turns.values()) == 39  # of 240/6 in all


def test_recombine_stays_a_copy_where_nothing_fits():
    rare = [dialogue("in may .", turn="when is the kite parade ?", **KITE)]
    rare += [dialogue("in june .", turn="when is the river race ?", **RACE)]
    frequent = [dialogue(topic="job")] * 4
    assert Counter(recombine(rare + frequent, exponent=0.0)[6:]) == {rare[0]: 1, rare[1]: 1}


def test_recombine_keeps_corpus_facts_right_and_splits_apart():
    examples = embedded_dialogues("train", count=1200)
    rare = ("event", "pet")
    examples = [e for i, e in enumerate(examples) if e.topic not in rare or i % 8 == 0]
    added = recombine(examples, exponent=0.0)[len(examples) :]
    assert sum(example.topic in rare for example in added) > 300
    assert len({(e.background, e.turns) for e in added} - {(e.background, e.turns) for e in examples}) > 50
    turns = {name: {e.turns for e in examples if topic_and_kind(e) == name} for name in map(topic_and_kind, examples)}
    originals = {(e.background, e.facts, e.responses, e.references, e.topic, e.kind) for e in examples}
    for e in added:
        assert (e.background, e.facts, e.responses, e.references, e.topic, e.kind) in originals
        assert e.turns in turns[topic_and_kind(e)]
        assert all(event in e.background[0] + e.background[1] for event in EVENTS if event in e.turns[0])
    held_out = {(e.background, e.turns) for split in ("tuning", "report") for e in embedded_dialogues(split)}
    assert not held_out & {(e.background, e.turns) for e in added}


def test_augmentation_is_keyed_by_its_seed():
    examples = embedded_dialogues("train", count=150)
    for augment in (oversample, recombine):
        assert augment(examples, seed=3) == augment(examples, seed=3)
        assert augment(examples, seed=3) != augment(examples, seed=4)
