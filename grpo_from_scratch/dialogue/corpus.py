"""The embedded dialogues: seeded, grounded in a persona or in a piece of knowledge, as hard as a dial says.

A context is two background lines (two persona lines, or one and a line of knowledge) and a user turn that asks for a
fact, for comfort or for advice. A good reply is of that kind and names a fact from the background.

What tells PPO and GRPO apart is how unequal prompts are, so that is a dial. An easy context accepts many wordings; a
hard one accepts a single idiosyncratic wording, a good reply buried in small talk, so that its rewards are low whatever
the policy does.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from numpy.random import Generator

from grpo_from_scratch.dialogue.dataset import Example, check_split, split_of
from grpo_from_scratch.dialogue.phrases import (
    CLOSINGS,
    CORES,
    EVENTS,
    GENERIC,
    KINDS,
    KNOWLEDGE_LINE,
    MONTHS,
    OPENINGS,
    PERSONA_LINES,
    USER_TURNS,
    VALUES,
)
from grpo_from_scratch.distributed.randomness import numpy_generator

COUNTS = {"train": 6000, "tuning": 500, "report": 500}
DIFFICULTIES = ("mixed", "even", "hidden")
EVEN_REFERENCES, EASY_REFERENCES = 3, 12
KNOWLEDGE_SHARE = 0.25
HARD_TOPICS = ("job", "food", "event")  # of "mixed"; drawn with probability 1/8, 1/8 and 1/4: half of all contexts
HIDDEN_HARD_SHARE = 0.5
RESPONSES = 4
GENERIC_SHARE, WRONG_FACT_SHARE, WRONG_KIND_SHARE = 0.20, 0.15, 0.10  # of the replies that fine-tuning imitates

# Every wording of a good reply, its slots still open. None twice, so drawing positions draws distinct replies.
REPLIES = {
    (topic, kind): [
        f"{opening}{core} {closing}"
        for opening, core, closing in itertools.product(OPENINGS[kind], cores, CLOSINGS[kind])
    ]
    for (topic, kind), cores in CORES.items()
}
PAIRS = list(itertools.permutations(VALUES, 2))  # what the user asks about, and what else the persona says


@dataclass(frozen=True)
class Scene:
    """What a dialogue is about: the background, and how to fill a reply's slots rightly and wrongly."""

    topic: str
    background: tuple[str, ...]
    slots: dict[str, str]
    wrong_slots: dict[str, str]
    facts: tuple[str, ...]


def embedded_dialogues(
    split: str, *, difficulty: str | float = "mixed", seed: int = 0, count: int | None = None
) -> list[Example]:
    """Seeded dialogues whose contexts no other split has.

    Args:
        split: "train", "tuning" or "report". The hash of the facts that stand together (two of a persona, or an event
            with its month and city) decides where they belong, whatever the seed.
        difficulty: how good replies are spread over contexts:
            "even": three references each;
            "mixed": twelve for easy contexts, one idiosyncratic one for hard contexts; the topic tells which is which;
            "hidden": the same half and half, but drawn by lot, so nothing in the context tells;
            a number from 0 to 1: as "hidden", with this share of hard contexts.
        seed: another seed, other dialogues. Contexts and responses do not depend on the difficulty.
        count: how many; a longer list begins with the shorter one. Default: 6000 to train on, 500 to hold out.

    Returns:
        Examples with ``references``, four noisy ``responses`` for fine-tuning, and ``facts``.

    Raises:
        ValueError: an unknown split or difficulty.
    """
    check_split(split)
    if difficulty not in DIFFICULTIES and (isinstance(difficulty, str) or not 0 <= difficulty <= 1):
        raise ValueError(f"difficulty must be {', '.join(DIFFICULTIES)} or a number from 0 to 1, got {difficulty!r}")
    count = COUNTS[split] if count is None else count
    return [_example(numpy_generator(seed, f"dialogue {split}", item=i), split, difficulty) for i in range(count)]


def vocabulary() -> list[str]:
    """Every word of the embedded dialogues, sorted. Punctuation marks are words; role marks are not among them."""
    tables = (VALUES, PERSONA_LINES, USER_TURNS, OPENINGS, CORES, CLOSINGS)
    phrases = [phrase for table in tables for options in table.values() for phrase in options]
    words = " ".join([*phrases, *EVENTS, *MONTHS, *GENERIC, KNOWLEDGE_LINE]).split()
    return sorted({word for word in words if not word.startswith("{")})


def _example(rng: Generator, split: str, difficulty: str | float) -> Example:
    # References come last, so that the difficulty, which decides how many are drawn, changes nothing before them.
    scene = _scene(rng, split)
    kind = _pick(rng, KINDS)
    turn = _pick(rng, USER_TURNS[scene.topic, kind]).format(**scene.slots)
    lot = rng.random()
    responses = tuple(_noisy_reply(rng, scene, kind) for _ in range(RESPONSES))
    return Example(
        turns=(turn,),
        references=_references(rng, scene, kind, difficulty, lot),
        background=scene.background,
        responses=responses,
        facts=scene.facts,
        kind=kind,
        topic=scene.topic,
    )


def _scene(rng: Generator, split: str) -> Scene:
    """Draw until the facts fall into the split."""
    while True:
        topic, other = _pick(rng, PAIRS)
        value, aside = _pick(rng, VALUES[topic]), _pick(rng, VALUES[other])
        if rng.random() < KNOWLEDGE_SHARE:
            topic, facts = "event", (_pick(rng, MONTHS), _pick(rng, VALUES["city"]))
            slots = {"event": _pick(rng, EVENTS), "month": facts[0], "city": facts[1]}
            wrong = {"month": _pick_other(rng, MONTHS, facts[0]), "city": _pick_other(rng, VALUES["city"], facts[1])}
            lines = [KNOWLEDGE_LINE.format(**slots)]
            key = sorted(slots.values())
        else:
            facts, slots, wrong = (value,), {"value": value}, {"value": _pick_other(rng, VALUES[topic], value)}
            lines = [_pick(rng, PERSONA_LINES[topic]).format(value=value)]
            key = sorted([value, aside])  # both facts, in either role
        if split_of(" | ".join(key)) == split:
            break
    lines.insert(int(rng.random() < 0.5), _pick(rng, PERSONA_LINES[other]).format(value=aside))
    return Scene(topic, tuple(lines), slots, slots | wrong, facts)


def _noisy_reply(rng: Generator, scene: Scene, kind: str) -> str:
    """A reply as people write them: mostly good, at times empty talk, a wrong fact, or an answer to something else."""
    lot = rng.random()
    if lot < GENERIC_SHARE:
        return _pick(rng, GENERIC)
    lot -= GENERIC_SHARE
    if lot < WRONG_FACT_SHARE:
        return _pick(rng, REPLIES[scene.topic, kind]).format(**scene.wrong_slots)
    lot -= WRONG_FACT_SHARE
    if lot < WRONG_KIND_SHARE:
        kind = _pick_other(rng, KINDS, kind)
    return _pick(rng, REPLIES[scene.topic, kind]).format(**scene.slots)


def _references(rng: Generator, scene: Scene, kind: str, difficulty: str | float, lot: float) -> tuple[str, ...]:
    """Distinct good replies: a few, many, or one buried in small talk."""
    replies = REPLIES[scene.topic, kind]
    if _is_hard(scene.topic, difficulty, lot):
        return (f"{_pick(rng, GENERIC)} {_pick(rng, replies).format(**scene.slots)} {_pick(rng, GENERIC)}",)
    count = EVEN_REFERENCES if difficulty == "even" else EASY_REFERENCES
    return tuple(replies[i].format(**scene.slots) for i in rng.permutation(len(replies))[:count])


def _is_hard(topic: str, difficulty: str | float, lot: float) -> bool:
    """Whether a context is hard; ``lot`` is uniform in [0, 1) and independent of all that can be seen."""
    if difficulty == "even":
        return False
    if difficulty == "mixed":
        return topic in HARD_TOPICS
    return lot < (HIDDEN_HARD_SHARE if difficulty == "hidden" else difficulty)


def _pick(rng: Generator, options: Sequence):
    return options[int(rng.random() * len(options))]


def _pick_other(rng: Generator, options: Sequence[str], taken: str) -> str:
    """Any option but one: a wrong fact must not be right by chance."""
    return _pick(rng, [option for option in options if option != taken])
