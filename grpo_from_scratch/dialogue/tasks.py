"""Verifiable tasks: data whose reward is a fact about the answer, not a likeness to a reference."""

from collections.abc import Callable

from numpy.random import Generator

from grpo_from_scratch.dialogue.dataset import Example, check_split, split_of
from grpo_from_scratch.distributed.randomness import numpy_generator

COUNTS = {"train": 2000, "tuning": 200, "report": 200}
# fmt: off
THINGS = (
    "apple", "baker", "beach", "bear", "bell", "bird", "boat", "book", "bottle", "bread", "bridge", "brother",
    "bus", "cake", "camel", "candle", "captain", "carpet", "castle", "cat", "chair", "cloud", "coat", "cook",
    "corn", "cow", "daughter", "desert", "dog", "door", "dragon", "farmer", "fire", "fish", "flag", "flower",
    "forest", "fox", "friend", "frog", "garden", "goat", "guitar", "hammer", "harbour", "hat", "hill", "horse",
    "house", "island", "jacket", "judge", "key", "king", "kitchen", "kite", "ladder", "lake", "lamp", "letter",
    "lion", "market", "mirror", "monkey", "moon", "mountain", "mouse", "nurse", "ocean", "owl", "painter",
    "pencil", "piano", "pilot", "pond", "queen", "rabbit", "rain", "river", "road", "sailor", "school", "ship",
    "shoe", "sister", "snake", "snow", "soldier", "song", "spoon", "star", "storm", "table", "teacher", "tiger",
    "town", "train", "tree", "uncle", "village", "violin", "waiter", "wind", "window", "wolf",
)
# fmt: on
SENTENCES = {  # an answer of each length
    3: "the {} waited .",
    4: "i saw the {} .",
    5: "we talked about the {} .",
    6: "nobody had ever seen the {} .",
}


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


def word_count(split: str, *, count: int | None = None, seed: int = 0) -> list[Example]:
    """Short sentences to write: "exactly 5 words about the river". ``facts`` holds the thing to be named, and the
    reference is one sentence of that length.

    Needs a model that can write. The thing decides the split, so a held-out one was never written about in training.

    Args:
        split: "train", "tuning" or "report".
        count: at most so many of all things and lengths there are.
        seed: another seed, another order.

    Raises:
        ValueError: an unknown split.
    """
    check_split(split)
    examples = [
        Example(
            turns=(f"Write one sentence of exactly {length} words about the {thing}.",),
            references=(sentence.format(thing),),
            facts=(thing,),
            topic="word_count",
        )
        for thing in THINGS
        if split_of(thing) == split
        for length, sentence in SENTENCES.items()
    ]
    return [examples[i] for i in numpy_generator(seed, f"word_count {split}").permutation(len(examples))[:count]]


TASKS: dict[str, Callable[..., list[Example]]] = {"sort_digits": sort_digits, "word_count": word_count}
