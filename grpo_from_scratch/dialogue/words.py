"""The words of a text in any script, whether it repeats itself, and whether it says something word for word."""

import functools
import itertools
import re
import unicodedata
from collections.abc import Iterable

# Scripts written without blanks, where a character stands for a word: Thai to Myanmar, Khmer, kana, Han.
UNSPACED = (
    (0x0E00, 0x109F),
    (0x1780, 0x17FF),
    (0x3040, 0x30FF),
    (0x3400, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x3FFFF),
)


def words(text: str) -> list[str]:
    """Lower-case words without punctuation; a character each in scripts without blanks and for emoji.

    Plain ASCII text is split as rouge-score does it.
    """
    text = unicodedata.normalize("NFC", text).lower()  # "é" may be one character or two
    return re.findall(r"[a-z0-9]+", text) if text.isascii() else "".join(map(_set_apart, text)).split()


def word_pairs(text: str) -> list[tuple[str, ...]]:
    """Neighbouring words, in order, repeats included; of a text with a single word, that word."""
    found = words(text)
    return list(itertools.pairwise(found)) or [(word,) for word in found]


def distinct_pairs(text: str) -> float:
    """The share of the text's word pairs that are not repeats (distinct-2 of a single text); 0 without a word."""
    pairs = word_pairs(text)
    return len(set(pairs)) / len(pairs) if pairs else 0.0


def named(text: str, phrases: Iterable[str]) -> list[str]:
    """Those of the phrases that the text says, word for word: "two cats" is not in "two black cats"."""
    said = f" {' '.join(words(text))} "
    return [phrase for phrase in phrases if (wanted := " ".join(words(phrase))) and f" {wanted} " in said]


@functools.cache
def _set_apart(character: str) -> str:
    """The character as it goes into a word, between blanks if it is a word of its own, or a blank if it is none."""
    category = unicodedata.category(character)
    part_of_word = category[0] in "LNM"  # letters, digits, and the marks that belong to them
    if category == "So" or (part_of_word and any(low <= ord(character) <= high for low, high in UNSPACED)):
        return f" {character} "
    return character if part_of_word else " "
