"""What fine-tuning should imitate: quality filters that say what they remove and why, and more of what is rare.

A filter looks at one reply in its dialogue and gives the reason to remove it, or None. Those that compare dialogues
with each other are made from the whole list (``generic(examples)``) or remember what they have let pass (duplicates,
which therefore come last). ``curate`` runs them in order; what a filter removes, the next ones do not see.

Augmentation only adds: the examples stay, and rare classes (of topic and kind) are added to, as they are
(``oversample``) or with a turn of another dialogue of their class (``recombine``).
"""

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from grpo_from_scratch.dialogue.dataset import Example
from grpo_from_scratch.dialogue.words import distinct_pairs, named, word_pairs, words
from grpo_from_scratch.distributed.randomness import numpy_generator

Filter = Callable[[Example, str], str | None]
Class = Callable[[Example], Hashable]


@dataclass(frozen=True)
class Removed:
    """A reply that a filter took out: of which example (its place in the list), by which filter, and why."""

    example: int
    reply: str
    filter: str
    reason: str


def curate(examples: Sequence[Example], filters: Mapping[str, Filter]) -> tuple[list[Example], list[Removed]]:
    """The examples with the replies that pass every filter, and what was removed.

    The replies are what fine-tuning imitates: an example's ``responses``, or else its references. References, with
    which a policy's replies are compared, stay. An example without a reply left is gone.

    Args:
        examples: the dialogues; they are not changed.
        filters: by the name under which they report. The first that objects removes the reply.
    """
    kept, removed = [], []
    for place, example in enumerate(examples):
        good = []
        for reply in example.imitated:
            found = next(((name, why) for name, judge in filters.items() if (why := judge(example, reply))), None)
            if found:
                removed.append(Removed(place, reply, *found))
            else:
                good.append(reply)
        if good:
            kept.append(dataclasses.replace(example, responses=tuple(good)))
    return kept, removed


# ---------------------------------------------------------------- filters

SHORTEST, LONGEST = 3, 40  # words of a reply that says something, and that somebody reads


def length(low: int = SHORTEST, high: int = LONGEST) -> Filter:
    """Fewer than ``low`` or more than ``high`` words."""

    def judge(example: Example, reply: str) -> str | None:
        count = len(words(reply))
        if count < low:
            return f"{count} word{'s' * (count != 1)}, fewer than {low}"
        return f"{count} words, more than {high}" if count > high else None

    return judge


def repetition(most: float = 0.25) -> Filter:
    """More than this share of the word pairs are repeats of earlier ones."""

    def judge(example: Example, reply: str) -> str | None:
        share = 1 - distinct_pairs(reply) if words(reply) else 0.0
        return f"{share:.0%} of its word pairs are repeats" if share > most else None

    return judge


def generic(examples: Sequence[Example], most: int = 20) -> Filter:
    """The same words answer more than ``most`` different turns of ``examples``: they fit everything and say nothing."""
    answered = defaultdict(set)
    for example in examples:
        for reply in example.imitated:
            answered[_as_words(reply)].add(_as_words(example.turns[-1]))

    def judge(example: Example, reply: str) -> str | None:
        count = len(answered[_as_words(reply)])
        return f"answers {count} different turns" if count > most else None

    return judge


def wrong_facts(examples: Sequence[Example]) -> Filter:
    """Names a fact (of any of ``examples``) that its own dialogue does not: not its background, turns or facts."""
    known = sorted({fact for example in examples for fact in example.facts})

    def judge(example: Example, reply: str) -> str | None:
        given = " | ".join((*example.background, *example.turns, *example.facts))
        wrong = [fact for fact in named(reply, known) if not named(given, [fact])]
        return f"names {', '.join(wrong)}, which its dialogue does not" if wrong else None

    return judge


def duplicate() -> Filter:
    """The same words, context and reply, have passed before: give it last, and make a new one for each ``curate``."""
    seen = set()

    def judge(example: Example, reply: str) -> str | None:
        text = (_as_words(_context(example)), _as_words(reply))
        if text in seen:
            return "the same context and reply as before"
        seen.add(text)
        return None

    return judge


def near_duplicate(examples: Sequence[Example], least: float = 0.8) -> Filter:
    """Much like one that has passed before: context and reply each share ``least`` of their word pairs with its own.

    The share is Jaccard's, common / all. Dialogues with different facts are never duplicates: in text made alike, the
    fact is the word that matters. As ``duplicate``, give it last and make a new one for each ``curate``.

    Not every pair is compared: of two sets that share so much, the rarest pairs cannot all differ (prefix filtering,
    Bayardo et al. 2007), so candidates are looked up by those. The result is that of all comparisons.
    """
    counts = Counter(pair for e in examples for reply in e.imitated for pair in set(word_pairs(reply)))
    passed: dict[tuple, list[tuple[set, set]]] = defaultdict(list)  # (facts, a rare pair of the reply): both sets

    def judge(example: Example, reply: str) -> str | None:
        pairs = sorted(set(word_pairs(reply)), key=lambda pair: (counts[pair], pair))
        rare = pairs[: len(pairs) - math.ceil(least * len(pairs) - 1e-9) + 1]
        ours = set(word_pairs(_context(example))), set(pairs)
        for pair in rare:
            for theirs in passed[example.facts, pair]:
                shares = [_jaccard(a, b) for a, b in zip(ours, theirs, strict=True)]
                if min(shares) >= least:
                    return f"shares {shares[0]:.0%} of the context and {shares[1]:.0%} of the reply with one before"
        for pair in rare:
            passed[example.facts, pair].append(ours)
        return None

    return judge


def _context(example: Example) -> str:
    return " | ".join((*example.background, *example.turns))


def _as_words(text: str) -> str:
    return " ".join(words(text))


def _jaccard(a: set, b: set) -> float:
    union = len(a | b)
    return len(a & b) / union if union else 1.0


# ---------------------------------------------------------------- augmentation


def topic_and_kind(example: Example) -> Hashable:
    """The class of an example unless you say otherwise."""
    return example.topic, example.kind


def oversample(
    examples: Sequence[Example], *, exponent: float = 0.5, of: Class = topic_and_kind, seed: int = 0
) -> list[Example]:
    """The examples, and after them copies of the rare ones.

    A class of n examples, where the largest has m, ends with n·(m/n)^(1 − exponent) on average: exponent 1 adds
    nothing, 0 makes all classes equally large, and in between classes share the data as n^exponent (as languages share
    the batches of a multilingual model: Conneau and Lample 2019, arXiv 1901.07291, equation 1).

    Args:
        exponent: in [0, 1].
        of: the class of an example.
        seed: of the lot that decides who is copied once more, drawn for each example by its place.

    Raises:
        ValueError: an exponent outside [0, 1].
    """
    return [*examples, *(examples[place] for place in _extra(examples, exponent, of, seed))]


def recombine(
    examples: Sequence[Example], *, exponent: float = 0.5, of: Class = topic_and_kind, seed: int = 0
) -> list[Example]:
    """As ``oversample``, but a copy answers the turns of another dialogue of its class where its facts stay right.

    A copy keeps its background, and its replies keep to that. It takes another dialogue's turns only if these lean on
    nothing that is missing: every word they share with their own background must stand in the copy's too ("when is the
    kite parade ?" goes to backgrounds that know a kite parade). Where no turns fit, the copy stays as it was.

    A split by the background holds for the copies. Where it goes by the whole context (``read_jsonl``), a copy may
    meet a held-out one: compare them.
    """
    turns_of = defaultdict(set)  # for each class: turns, and which words of theirs stand in their background
    for example in examples:
        said = set(words(" | ".join(example.turns)))
        turns_of[of(example)].add((example.turns, frozenset(said & _background_words(example))))
    choices = {name: sorted(found, key=lambda pair: (pair[0], sorted(pair[1]))) for name, found in turns_of.items()}
    result = list(examples)
    for item, place in enumerate(_extra(examples, exponent, of, seed)):
        example = examples[place]
        known = _background_words(example)
        fitting = [turns for turns, leans in choices[of(example)] if leans <= known and turns != example.turns]
        lot = int(numpy_generator(seed, "recombine", item=item).random() * len(fitting))
        result.append(dataclasses.replace(example, turns=fitting[lot]) if fitting else example)
    return result


def _background_words(example: Example) -> set[str]:
    return set(words(" | ".join(example.background)))


def _extra(examples: Sequence[Example], exponent: float, of: Class, seed: int) -> Iterator[int]:
    """The place of an example once for each copy to add."""
    if not 0 <= exponent <= 1:
        raise ValueError(f"exponent must be from 0 (all classes equally large) to 1 (nothing added), got {exponent}")
    sizes = Counter(map(of, examples))
    for place, example in enumerate(examples):
        copies = (max(sizes.values()) / sizes[of(example)]) ** (1 - exponent) - 1
        lot = numpy_generator(seed, "oversample", item=place).random()
        yield from [place] * math.floor(copies + lot)
