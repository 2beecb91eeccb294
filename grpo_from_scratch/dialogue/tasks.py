"""Verifiable tasks: data whose reward is a fact about the answer, not a likeness to a reference."""

from grpo_from_scratch.dialogue.dataset import Example, check_split, split_of
from grpo_from_scratch.distributed.randomness import numpy_generator

COUNTS = {"train": 2000, "tuning": 200, "report": 200}


def sort_digits(
    split: str, *, count: int | None = None, seed: int = 0, min_digits: int = 3, max_digits: int = 4
) -> list[Example]:
    """Digits to put in ascending order: "sort 3 1 2" is answered by "1 2 3".

    Digits are words of their own, so that a word-level tokenizer needs ten of them; repeats are allowed. The sorted
    answer decides the split, so a held-out answer was never rewarded in training.

    Args:
        split: "train", "tuning" or "report".
        count: how many; a longer list begins with the shorter one. Default: 2000 to train on, 200 to hold out.
        seed: another seed, other digits.
        min_digits, max_digits: how many digits there are, each number equally often.

    Raises:
        ValueError: an unknown split, or a range without a length of at least 1.
    """
    check_split(split)
    if not 1 <= min_digits <= max_digits:
        raise ValueError(f"sort_digits needs 1 <= min_digits <= max_digits, got {min_digits} and {max_digits}")
    count = COUNTS[split] if count is None else count
    examples = []
    for item in range(count):
        rng = numpy_generator(seed, f"sort_digits {split}", item=item)
        answer = None
        while answer is None or split_of(answer) != split:
            digits = rng.integers(10, size=rng.integers(min_digits, max_digits + 1)).tolist()
            answer = " ".join(map(str, sorted(digits)))
        question = "sort " + " ".join(map(str, digits))
        examples.append(Example(turns=(question,), references=(answer,), topic="sort_digits"))
    return examples
