"""From whole conversations to examples: which messages are replies to learn from, what they answer, in which split."""

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from grpo_from_scratch.dialogue.dataset import SPLITS, Example, split_of

CONTEXT_TURNS = 3  # messages of context: the one answered, and the exchange before it
SLOTS = 1 << 24


class Message(NamedTuple):
    """One message of a conversation."""

    text: str
    speaker: str = ""
    is_reply: bool = False  # one to learn from
    background: tuple[str, ...] = ()  # what its speaker knew


class Conversation(NamedTuple):
    """Messages in order, and what an opening reply answers (a topic; empty: an opening is no reply)."""

    messages: list[Message]
    opening: str = ""
    topic: str = ""


def merged(messages: Iterable[Message]) -> list[Message]:
    """Messages that follow one another from the same speaker made one, so that speakers alternate."""
    turns: list[Message] = []
    for message in messages:
        if turns and turns[-1].speaker == message.speaker:
            before = turns.pop()
            known = tuple(dict.fromkeys(before.background + message.background))
            message = message._replace(text=f"{before.text} {message.text}", background=known)
        turns.append(message)
    return turns


def replies(conversations: Iterable[Conversation]) -> Iterator[tuple[str, Example]]:
    """Each reply with the last CONTEXT_TURNS messages before it, and the split it belongs to.

    A conversation belongs to one split as a whole. Its first two messages decide, down to letters and digits: Persona-
    Chat tells each training conversation twice, once from either side, with personas original or revised, in lower case
    or not, and those must not be held out in one version and trained on in another.

    People often open alike ("hi"), so a context that stands in conversations of several splits goes to the first that
    has it, and is left out of the others. To know that in 16 MiB however long the file is, a context is remembered by
    the slot of its hash; two contexts in one slot can cost an example (of a million, about one in a hundred), and never
    let a context into two splits.
    """
    owners = bytearray(SLOTS)
    for conversation in conversations:
        texts = [message.text for message in conversation.messages]
        split = split_of("\n".join(re.sub(r"\W", "", text.lower()) for text in texts[:2]))
        for i, message in enumerate(conversation.messages):
            turns = tuple(texts[max(0, i - CONTEXT_TURNS) : i]) or (conversation.opening,)
            if not message.is_reply or turns == ("",):
                continue
            example = Example(turns, (message.text,), background=message.background, topic=conversation.topic)
            if _owner(owners, example, split) == split:
                yield split, example


def _owner(owners: bytearray, example: Example, split: str) -> str:
    """The split that first had a context of this hash: this one, if none had."""
    context = "\n".join(example.background + example.turns).encode()
    slot = int.from_bytes(hashlib.blake2b(context, digest_size=8).digest(), "little") % SLOTS
    owners[slot] = owners[slot] or SPLITS.index(split) + 1
    return SPLITS[owners[slot] - 1]
