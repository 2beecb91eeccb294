"""What a data set holds: how much, how long, and what is doubtful about it."""

import dataclasses
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from grpo_from_scratch.dialogue import curation
from grpo_from_scratch.dialogue.curation import Filter
from grpo_from_scratch.dialogue.dataset import Example, encode_prompt, encode_reply
from grpo_from_scratch.dialogue.words import words

COMMON = 5  # replies that are listed
MOST_FACTS = 1000  # for every reply each of them is looked for
FOREIGN = re.compile(r"[^\x00-\x7f]+")
UNREADABLE = re.compile("[\x00-\x08\x0e-\x1f\x7f\ufffd]")  # controls, and what stands for bytes that were lost

Lengths = dict[str, list[int]]  # what was counted ("words of the reply"), one number for each of its kind


@dataclass(frozen=True)
class Flag:
    """How many of the data are doubtful in one way, out of how many, and the first that is."""

    found: int
    among: int
    first: str = ""

    @property
    def share(self) -> float:
        return self.found / self.among if self.among else 0.0


@dataclass(frozen=True)
class Summary:
    """What ``summarise`` found.

    ``lengths`` is by split, and below that by what was counted; ``flags`` by what is doubtful; ``common`` has the
    replies that occur most often, and how often.
    """

    examples: dict[str, int]
    lengths: dict[str, Lengths]
    flags: dict[str, Flag]
    common: list[tuple[str, int]]


def summarise(examples: dict[str, Sequence[Example]], tokenizer: PreTrainedTokenizerBase | None = None) -> Summary:
    """Counts, lengths and flags of examples by split.

    Replies are what fine-tuning imitates, as in ``curation.curate``: the responses, or else the references. Lengths are
    in words (``words.words``), and with a tokenizer also in tokens, of whole prompts and of replies with their EOS.
    """
    everything = [example for some in examples.values() for example in some]
    replies = Counter(reply for example in everything for reply in example.imitated)
    lengths = {split: _lengths(some, tokenizer) for split, some in examples.items()}
    counts = {split: len(some) for split, some in examples.items()}
    return Summary(counts, lengths, _flags(everything, tokenizer), replies.most_common(COMMON))


def broken_characters() -> Filter:
    """Bytes that were read as another encoding ("Ã©" for "é"), or lost to a replacement character or a control."""

    def judge(example: Example, reply: str) -> str | None:
        text = "\n".join((*example.background, *example.turns, reply))
        if UNREADABLE.search(text):
            return "holds a control or replacement character"
        wrong = next((run[0] for run in FOREIGN.finditer(text) if _twice_encoded(run[0])), None)
        return f"holds {wrong!r}, which is UTF-8 read as another encoding" if wrong else None

    return judge


def _twice_encoded(run: str) -> bool:
    for encoding in ("cp1252", "latin-1"):
        try:
            return len(run.encode(encoding).decode("utf-8")) < len(run)
        except UnicodeError:
            continue
    return False


def to_json(summary: Summary) -> dict[str, Any]:
    """Plain JSON, with quantiles of the lengths."""
    lengths = {
        split: {
            name: dict(zip(("median", "95 %", "longest"), spread(some), strict=True)) for name, some in found.items()
        }
        for split, found in summary.lengths.items()
    }
    flags = {name: dataclasses.asdict(flag) for name, flag in summary.flags.items()}
    return {"examples": summary.examples, "lengths": lengths, "flags": flags, "common": summary.common}


def spread(lengths: Sequence[int]) -> tuple[int, int, int]:
    """Median, 95 % quantile and maximum, all values that occur; zeros of an empty list."""
    ordered = sorted(lengths) or [0]
    return ordered[(len(ordered) - 1) // 2], ordered[(95 * (len(ordered) - 1)) // 100], ordered[-1]


def _lengths(examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase | None) -> Lengths:
    made: dict[str, Callable[[Example], Iterator[int]]] = {
        "turns": lambda example: iter([len(example.turns)]),
        "words of background": lambda example: iter([sum(len(words(line)) for line in example.background)]),
        "words of turns": lambda example: iter([sum(len(words(turn)) for turn in example.turns)]),
        "words of a reply": lambda example: (len(words(reply)) for reply in example.imitated),
    }
    if tokenizer is not None:
        made["tokens of a prompt"] = lambda example: iter([len(encode_prompt(example, tokenizer))])
        made["tokens of a reply"] = lambda example: (len(encode_reply(reply, tokenizer)) for reply in example.imitated)
    return {name: [length for example in examples for length in of(example)] for name, of in made.items()}


def _flags(examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase | None) -> dict[str, Flag]:
    judges = {
        f"replies under {curation.SHORTEST} or over {curation.LONGEST} words": curation.length(),
        "replies that repeat themselves": curation.repetition(),
        "replies that answer everything": curation.generic(examples),
        "replies that stood before, context and all": curation.duplicate(),
        "broken characters": broken_characters(),
    }
    if 0 < len({fact for example in examples for fact in example.facts}) <= MOST_FACTS:
        judges["replies with another dialogue's facts"] = curation.wrong_facts(examples)
    flags = {name: _judged(examples, judge) for name, judge in judges.items()}
    flags["contexts that stood before"] = _repeated_contexts(examples)
    flags["dialogues without background"] = _among(examples, lambda example: not example.background)
    if tokenizer is not None and tokenizer.unk_token_id is not None:
        unknown = tokenizer.unk_token_id
        flags["prompts with words that the tokenizer does not know"] = _among(
            examples, lambda example: unknown in encode_prompt(example, tokenizer)
        )
    return flags


def _judged(examples: Sequence[Example], judge: Filter) -> Flag:
    pairs = [(reply, judge(example, reply)) for example in examples for reply in example.imitated]
    found = [f"{reply} ({reason})" for reply, reason in pairs if reason]
    return Flag(len(found), len(pairs), found[0] if found else "")


def _among(examples: Sequence[Example], doubtful: Callable[[Example], bool]) -> Flag:
    found = [example.turns[-1] for example in examples if doubtful(example)]
    return Flag(len(found), len(examples), found[0] if found else "")


def _repeated_contexts(examples: Sequence[Example]) -> Flag:
    times: dict[tuple, int] = defaultdict(int)
    found = []
    for example in examples:
        context = example.background + example.turns
        times[context] += 1
        if times[context] > 1:
            found.append(example.turns[-1])
    return Flag(len(found), len(examples), found[0] if found else "")
