import pytest

from grpo_from_scratch.dialogue.dataset import SPLITS
from grpo_from_scratch.dialogue.tasks import sort_digits


@pytest.mark.parametrize("split", SPLITS)
def test_sort_digits_reference_is_the_sorted_question(split):
    for example in sort_digits(split, count=100):
        command, *digits = example.turns[0].split()
        assert command == "sort"
        assert example.references == (" ".join(sorted(digits)),)
        assert 3 <= len(digits) <= 4


def test_sort_digits_splits_share_no_answer():
    answers = {split: {example.references for example in sort_digits(split, count=600)} for split in SPLITS}
    assert not answers["train"] & answers["tuning"]
    assert not answers["train"] & answers["report"]
    assert not answers["tuning"] & answers["report"]


def test_sort_digits_count_and_seed():
    assert sort_digits("train", count=30)[:10] == sort_digits("train", count=10)
    assert sort_digits("train", count=10, seed=1) != sort_digits("train", count=10)


def test_sort_digits_lengths():
    lengths = {len(example.references[0].split()) for example in sort_digits("train", min_digits=2, max_digits=5)}
    assert lengths == {2, 3, 4, 5}
    for low, high in ((0, 3), (4, 3)):
        with pytest.raises(ValueError, match="1 <= min_digits <= max_digits"):
            sort_digits("train", min_digits=low, max_digits=high)
    with pytest.raises(ValueError, match="train, tuning, report"):
        sort_digits("test")
