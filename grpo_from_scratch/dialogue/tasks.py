"""Verifiable tasks: data whose reward is a fact about the answer, not a likeness to a reference."""

from numpy.random import Generator

from grpo_from_scratch.dialogue.dataset import Example, check_split, split_of
from grpo_from_scratch.distributed.randomness import numpy_generator

COUNTS = {"train": 2000, "tuning": 200, "report": 200}


def sort_digits(split: str, *, count: int | None = None, seed: int = 0, digits: int = 3) -> list[Example]:
    """Digits to put in ascending order: "sort 3 1 2" is answered by "1 2 3".

    Digits are words of their own, so that a word-level tokenizer needs ten of them; repeats are allowed. The sorted
    answer decides the split, so a held-out answer was never rewarded in training.

    Args:
        split: "train", "tuning" or "report".
        count: how many; a longer list begins with the shorter one. Default: 2000 to train on, 200 to hold out.
        seed: another seed, other questions.
        digits: how many there are to sort. Three are learnt from scratch by a tiny model within a minute.

    Raises:
        ValueError: an unknown split, or fewer than two digits (too few answers to hold any out).
    """
    check_split(split)
    if digits < 2:
        raise ValueError(f"sort_digits needs at least 2 digits to sort, got {digits}")
    count = COUNTS[split] if count is None else count
    return [_question(numpy_generator(seed, f"sort_digits {split}", item=i), split, digits) for i in range(count)]


def _question(rng: Generator, split: str, digits: int) -> Example:
    """Draw until the answer falls into the split."""
    while True:
        given = rng.integers(10, size=digits).tolist()
        answer = " ".join(map(str, sorted(given)))
        if split_of(answer) == split:
            return Example(turns=("sort " + " ".join(map(str, given)),), references=(answer,), topic="sort_digits")
