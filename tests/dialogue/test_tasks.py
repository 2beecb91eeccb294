import pytest

from grpo_from_scratch.dialogue.dataset import SPLITS
from grpo_from_scratch.dialogue.readers import load_examples
from grpo_from_scratch.dialogue.tasks import TASKS, sort_digits, word_count


@pytest.mark.parametrize("split", SPLITS)
def test_sort_digits_reference_is_the_sorted_question(split):
    for example in sort_digits(split, count=100):
        command, *digits = example.turns[0].split()
        assert command == "sort"
        assert example.references == (" ".join(sorted(digits)),)
        assert len(digits) == 3
        assert set(digits) <= set("0123456789")


def test_sort_digits_splits_share_no_answer():
    answers = {split: {example.references for example in sort_digits(split, count=600)} for split in SPLITS}
    assert not answers["train"] & answers["tuning"]
    assert not answers["train"] & answers["report"]
    assert not answers["tuning"] & answers["report"]


def test_sort_digits_count_and_seed():
    assert sort_digits("train", count=30)[:10] == sort_digits("train", count=10)
    assert sort_digits("train", count=10, seed=1) != sort_digits("train", count=10)


@pytest.mark.parametrize("split", SPLITS)
def test_sort_digits_has_as_many_digits_as_asked(split):
    for digits in (2, 5):
        assert {len(example.references[0].split()) for example in sort_digits(split, count=20, digits=digits)} == {
            digits
        }


def test_sort_digits_refuses():
    with pytest.raises(ValueError, match="at least 2 digits"):
        sort_digits("train", digits=1)
    with pytest.raises(ValueError, match="train, tuning, report"):
        sort_digits("test")


@pytest.mark.parametrize("split", SPLITS)
def test_word_count_reference_does_what_is_asked(split):
    """As many words as the question says, the thing among them; the question asks for nothing else."""
    examples = word_count(split)
    for example in examples:
        *_, length, _, _, _, thing = example.turns[0].removesuffix(".").split()
        spoken = [word for word in example.references[0].split() if word.isalpha()]
        assert len(spoken) == int(length) and example.facts == (thing,) and thing in spoken
    assert len({example.turns for example in examples}) == len(examples) >= 32


def test_word_count_splits_share_no_thing():
    things = {split: {example.facts for example in word_count(split)} for split in SPLITS}
    assert not things["train"] & (things["tuning"] | things["report"]) and not things["tuning"] & things["report"]


def test_word_count_count_and_seed():
    assert word_count("train", count=10) == word_count("train")[:10] != word_count("train", seed=1)[:10]
    with pytest.raises(ValueError, match="train, tuning, report"):
        word_count("test")


@pytest.mark.parametrize("task", TASKS)
def test_every_task_is_data(task):
    assert load_examples(task, "report", seed=2, count=9) == TASKS[task]("report", seed=2, count=9)
