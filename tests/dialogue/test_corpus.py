import functools
import itertools
from collections import Counter

import pytest

from grpo_from_scratch.dialogue.corpus import EASY_REFERENCES, HARD_TOPICS, REPLIES, embedded_dialogues, vocabulary
from grpo_from_scratch.dialogue.dataset import SPLITS
from grpo_from_scratch.dialogue.phrases import (
    CLOSINGS,
    CORES,
    EVENTS,
    GENERIC,
    KINDS,
    MONTHS,
    OPENINGS,
    PERSONA_LINES,
    USER_TURNS,
    VALUES,
)

TRAIN = embedded_dialogues("train")
OTHER_SEED = embedded_dialogues("train", seed=7)
SLOT_WORDS = {word for values in [*VALUES.values(), MONTHS] for value in values for word in value.split()}


def background_facts(example):
    """What the background says, whatever its wording and order."""
    words = " ".join(example.background).split()
    event = [name for name in EVENTS if name in " ".join(example.background)]
    if event:  # the persona line beside a piece of knowledge is not part of what is held out
        words = next(line for line in example.background if event[0] in line).split()
    return frozenset([*event, *(word for word in words if word in SLOT_WORDS)])


def good_replies(example, kind):
    event = next((name for name in EVENTS if name in " ".join(example.background)), None)
    return filled_replies(example.topic, kind, example.facts, event)


@functools.cache
def filled_replies(topic, kind, facts, event):
    slots = {"value": facts[0], "month": facts[0], "city": facts[-1], "event": event}
    parts = itertools.product(OPENINGS[kind], CORES[topic, kind], CLOSINGS[kind])
    return {f"{opening}{core.format(**slots)} {closing}" for opening, core, closing in parts}


def names_a_fact(text, facts):
    return any(f" {fact} " in f" {text} " for fact in facts)


@pytest.fixture(scope="module")
def by_split():
    held_out = {split: embedded_dialogues(split, count=1500) for split in ("tuning", "report")}
    return {"train": TRAIN} | held_out


def test_embedded_dialogues_splits_share_no_context(by_split):
    for view in (lambda example: (example.background, example.turns), background_facts):
        seen = {split: {view(example) for example in examples} for split, examples in by_split.items()}
        assert not seen["train"] & seen["tuning"]
        assert not seen["train"] & seen["report"]
        assert not seen["tuning"] & seen["report"]


def test_embedded_dialogues_held_out_whatever_the_seed(by_split):
    trained_on = {background_facts(example) for example in OTHER_SEED}
    for split in ("tuning", "report"):
        assert not trained_on & {background_facts(example) for example in by_split[split]}


def test_embedded_dialogues_same_seed_same_data():
    assert embedded_dialogues("train", count=50) == TRAIN[:50]
    assert embedded_dialogues("train", count=50, seed=1) != TRAIN[:50]


@pytest.mark.parametrize("split", SPLITS)
def test_embedded_dialogues_count_changes_no_earlier_item(split):
    assert embedded_dialogues(split, count=40)[:10] == embedded_dialogues(split, count=10)


@pytest.mark.parametrize("difficulty", ["even", "hidden", 0.0, 0.3, 1])
def test_embedded_dialogues_difficulty_changes_references_only(difficulty):
    for mixed, other in zip(TRAIN[:300], embedded_dialogues("train", difficulty=difficulty, count=300), strict=True):
        assert (mixed.background, mixed.turns, mixed.responses, mixed.facts, mixed.kind, mixed.topic) == (
            other.background,
            other.turns,
            other.responses,
            other.facts,
            other.kind,
            other.topic,
        )


def test_embedded_dialogues_even_has_three_distinct_references():
    for example in embedded_dialogues("train", difficulty="even", count=500):
        assert len(example.references) == len(set(example.references)) == 3


def test_embedded_dialogues_mixed_is_visible_by_topic():
    for example in TRAIN:
        hard = example.topic in HARD_TOPICS
        assert len(set(example.references)) == len(example.references) == (1 if hard else EASY_REFERENCES)
    assert sum(example.topic in HARD_TOPICS for example in TRAIN) / len(TRAIN) == pytest.approx(0.5, abs=0.02)


def test_embedded_dialogues_hidden_is_independent_of_what_is_visible():
    examples = embedded_dialogues("train", difficulty="hidden")
    hard = [len(example.references) == 1 for example in examples]
    assert sum(hard) / len(hard) == pytest.approx(0.5, abs=0.02)
    for visible in ("topic", "kind", "turns", "facts"):
        groups = Counter(getattr(example, visible) for example in examples)
        hard_ones = Counter(getattr(e, visible) for e, is_hard in zip(examples, hard, strict=True) if is_hard)
        # The chi-square statistic of "as many hard ones as elsewhere" has mean and variance / 2 equal to the groups.
        statistic = sum((hard_ones[value] - count / 2) ** 2 / (count / 4) for value, count in groups.items())
        assert abs(statistic - len(groups)) < 4 * (2 * len(groups)) ** 0.5, visible


def test_embedded_dialogues_number_is_the_share_of_hard_contexts():
    hard = {}
    for share in (0, 0.2, 0.7, 1.0):
        examples = embedded_dialogues("train", difficulty=share, count=2000)
        assert {len(example.references) for example in examples} <= {1, EASY_REFERENCES}
        hard[share] = {i for i, example in enumerate(examples) if len(example.references) == 1}
        assert len(hard[share]) / 2000 == pytest.approx(share, abs=0.04)
    assert hard[0.2] < hard[0.7]  # turning the dial up makes some harder and none easier


def test_embedded_dialogues_hard_reference_is_a_good_reply_in_small_talk():
    for example in embedded_dialogues("train", difficulty=1.0, count=300):
        (reference,) = example.references
        assert any(reference.startswith(f"{talk} ") for talk in GENERIC)
        assert any(reference.endswith(f" {talk}") for talk in GENERIC)
        assert names_a_fact(reference, example.facts)


def test_embedded_dialogues_references_keep_to_facts_and_kind():
    for example in TRAIN[:1000]:
        assert all(names_a_fact(reference, example.facts) for reference in example.references)
        if len(example.references) > 1:
            assert set(example.references) <= good_replies(example, example.kind)


def test_embedded_dialogues_facts_come_from_the_background():
    for example in TRAIN[:2000]:
        assert all(any(f" {fact} " in f" {line} " for line in example.background) for fact in example.facts)


def test_embedded_dialogues_response_shares():
    """Of the replies that fine-tuning imitates, 20 % say nothing, 15 % a wrong fact, 10 % answer something else."""
    shares = Counter()
    for example in TRAIN + OTHER_SEED:
        good, others = good_replies(example, example.kind), set(KINDS) - {example.kind}
        other_kinds = set().union(*(good_replies(example, kind) for kind in others))
        assert len(example.responses) == 4
        for response in example.responses:
            if response in GENERIC:
                shares["generic"] += 1
            elif response in good:
                shares["good"] += 1
            elif response in other_kinds:
                shares["wrong kind"] += 1
            else:
                assert not names_a_fact(response, example.facts), response
                shares["wrong fact"] += 1
    shares = {name: count / 48_000 for name, count in shares.items()}
    assert shares == pytest.approx({"generic": 0.20, "wrong fact": 0.15, "wrong kind": 0.10, "good": 0.55}, abs=0.005)


def test_embedded_dialogues_topics_and_kinds_as_documented():
    topics, kinds = Counter(e.topic for e in TRAIN), Counter(e.kind for e in TRAIN)
    assert topics["event"] / len(TRAIN) == pytest.approx(1 / 4, abs=0.02)
    for topic in VALUES:
        assert topics[topic] / len(TRAIN) == pytest.approx(1 / 8, abs=0.02)
    assert {kind: kinds[kind] / len(TRAIN) for kind in KINDS} == pytest.approx(dict.fromkeys(KINDS, 1 / 3), abs=0.02)


def test_embedded_dialogues_background_comes_in_either_order():
    first = [any(fact in example.background[0] for fact in example.facts) for example in TRAIN]
    assert sum(first) / len(first) == pytest.approx(0.5, abs=0.02)


def test_embedded_dialogues_every_persona_line_is_said_beside_another():
    asides = {line for e in TRAIN for line in e.background if not any(f" {fact} " in line for fact in e.facts)}
    assert asides == {
        line.format(value=v) for topic, lines in PERSONA_LINES.items() for line in lines for v in VALUES[topic]
    }


def test_embedded_dialogues_every_value_is_in_every_split(by_split):
    """What is held out is how facts go together; the facts themselves are all trained on, and all asked for."""
    every = {word for values in [*VALUES.values(), MONTHS] for value in values for word in value.split()} | set(EVENTS)
    for examples in by_split.values():
        texts = [f" {line} " for example in examples for line in example.background]
        assert all(any(f" {word} " in text for text in texts) for word in every)
        assert {example.facts[0] for example in examples if example.topic == "event"} == set(MONTHS)


def test_vocabulary_holds_every_word_and_no_other():
    every = [*TRAIN, *embedded_dialogues("report"), *embedded_dialogues("tuning", difficulty=0.5)]
    texts = [text for e in every for text in (*e.background, *e.turns, *e.references, *e.responses)]
    assert {word for text in texts for word in text.split()} == set(vocabulary())
    assert vocabulary() == sorted(set(vocabulary()))
    assert 300 <= len(vocabulary()) <= 350  # the size that the tiny model is made for


def test_phrases_values_are_no_word_of_another_phrase():
    """Otherwise a reply could name a fact by accident ("you may go" and the month of may)."""
    templates = [PERSONA_LINES, USER_TURNS, OPENINGS, CORES, CLOSINGS, {"generic": GENERIC}, {"event": EVENTS}]
    phrases = [phrase for table in templates for phrases in table.values() for phrase in phrases]
    last_words = {value.split()[-1] for values in [*VALUES.values(), MONTHS] for value in values}
    assert not last_words & {word for phrase in phrases for word in phrase.split()}
    every_value = [value for values in [*VALUES.values(), EVENTS, MONTHS] for value in values]
    assert len(every_value) == len(set(every_value))


@pytest.mark.parametrize(("topic", "kind"), list(CORES))
def test_phrases_replies_of_a_list_differ_and_name_a_slot(topic, kind):
    replies = REPLIES[topic, kind]
    assert len(set(replies)) == len(replies) == len(OPENINGS[kind]) * len(CORES[topic, kind]) * len(CLOSINGS[kind])
    assert len(replies) >= EASY_REFERENCES
    facts = ("{month}", "{city}") if topic == "event" else ("{value}",)
    assert all(any(fact in reply for fact in facts) for reply in replies)


@pytest.mark.parametrize("difficulty", ["hiden", "0.3", -0.1, 1.5, float("nan")])
def test_embedded_dialogues_refuses_an_unknown_difficulty(difficulty):
    with pytest.raises(ValueError, match="mixed, even, hidden or a number from 0 to 1"):
        embedded_dialogues("train", difficulty=difficulty, count=1)


def test_embedded_dialogues_refuses_an_unknown_split():
    with pytest.raises(ValueError, match="train, tuning, report"):
        embedded_dialogues("test", count=1)
