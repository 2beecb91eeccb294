"""Wizard of Wikipedia: the published JSON, and the JSON lines or Parquet of a version on the Hugging Face hub.

The replies to learn from are the wizard's. What is known to it, a reply's background, is the sentence of Wikipedia that
the wizard marked as used for it; a reply written without one has no background. A wizard that opens the conversation
answers its topic.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo_from_scratch.dialogue.conversations import Conversation, Message, merged
from grpo_from_scratch.dialogue.records import Skipped, parsed, records, whole_text

NOTHING_USED = "no_passages_used"
KNOWLEDGE = "__knowledge__"  # between title and sentence, in the hub's version
EXPECTED = 'expected an object with "chosen_topic" and "dialog"'


def wizard_conversations(path: Path, bad: list[str] | Skipped | None = None) -> Iterator[Conversation]:
    """The conversations of a file, in either layout:

    - as published: ``{"chosen_topic": text, "dialog": [{"speaker": "0_Wizard" | "1_Apprentice", "text": text,
      "checked_sentence": {key: sentence}}]}`` in an array; 0 is whoever speaks first, and ``checked_sentence`` may be
      absent, empty or say that no passage was used (Dinan et al. 2019, arXiv 1811.01241);
    - as chujiezheng/wizard_of_wikipedia: ``{"topics", "post", "response", "knowledge", "labels"}``, lists with an entry
      for each exchange: a label is the place of the sentence used in that exchange's knowledge, and the first post
      holds the topic, alone when the wizard opens.

    Args:
        path: the file, read one conversation at a time.
        bad: where to note conversations that cannot be read, which are then skipped; None raises at the first.

    Raises:
        ValueError: a conversation that cannot be read (file, record and what was expected).
    """
    yield from parsed(records(path), _from_record, path, bad)


def _from_record(record: Any) -> Conversation:
    if not isinstance(record, dict):
        raise ValueError(f"{EXPECTED}, got a {type(record).__name__}")
    if "dialog" in record:
        conversation = _published(record)
    elif "post" in record:
        conversation = _from_hub(record)
    else:
        raise ValueError(f"{EXPECTED}, got one with {', '.join(sorted(record))[:80] or 'nothing in it'}")
    if not any(message.is_reply for message in conversation.messages):
        raise ValueError("the wizard says nothing")
    return conversation


def _published(record: dict) -> Conversation:
    topic = whole_text(record.get("chosen_topic"), "chosen_topic")
    dialog = record["dialog"]
    if not isinstance(dialog, list) or not all(isinstance(turn, dict) for turn in dialog):
        raise ValueError('"dialog" must be a list of objects with "speaker" and "text"')
    messages = []
    for number, turn in enumerate(dialog, start=1):
        try:
            messages.append(_message(turn))
        except ValueError as error:
            raise ValueError(f"turn {number}: {error}") from error
    return Conversation(merged(messages), opening=topic, topic=topic)


def _message(turn: dict) -> Message:
    speaker = whole_text(turn.get("speaker"), "speaker")
    is_wizard = "Wizard" in speaker
    if is_wizard == ("Apprentice" in speaker):
        raise ValueError(f'"speaker" is {speaker[:40]!r}; expected 0_Wizard, 1_Wizard, 0_Apprentice or 1_Apprentice')
    background = _checked(turn.get("checked_sentence")) if is_wizard else ()
    return Message(whole_text(turn.get("text"), "text"), speaker, is_wizard, background)


def _checked(sentences: Any) -> tuple[str, ...]:
    """The sentence marked as used. Parquet gives every key that any conversation has, most of them null."""
    if sentences is not None and not isinstance(sentences, dict):
        raise ValueError(f'"checked_sentence" holds a {type(sentences).__name__}; expected an object')
    found = [
        whole_text(text, "checked_sentence", blank=True) for text in (sentences or {}).values() if text is not None
    ]
    return tuple(text for text in found[:1] if text and text != NOTHING_USED)


def _from_hub(record: dict) -> Conversation:
    posts, responses, knowledge, labels = (_list(record, key) for key in ("post", "response", "knowledge", "labels"))
    if not len(posts) == len(responses) == len(knowledge) == len(labels):
        raise ValueError('"post", "response", "knowledge" and "labels" must have an entry each for every exchange')
    if not posts:
        raise ValueError('"post" is empty')
    first, _, rest = whole_text(posts[0], "post").partition("\n")
    topics = _list(record, "topics") if "topics" in record else []
    topic = whole_text(topics[0], "topics") if topics else first
    if first.strip() == topic:  # "topic" or "topic\nmessage"
        posts = [rest, *posts[1:]]
    messages = []
    for i, (post, response) in enumerate(zip(posts, responses, strict=True)):
        asked = whole_text(post, "post", blank=i == 0)
        if asked:
            messages.append(Message(asked, "apprentice"))
        used = _used(knowledge[i], labels[i])
        messages.append(Message(whole_text(response, "response"), "wizard", True, used))
    return Conversation(messages, opening=topic, topic=topic)


def _used(sentences: Any, label: Any) -> tuple[str, ...]:
    if not isinstance(sentences, list):
        raise ValueError(f'"knowledge" holds a {type(sentences).__name__}; expected a list of sentences')
    if type(label) is not int or not 0 <= label < len(sentences):
        raise ValueError(f'"labels" holds {repr(label)[:40]}; expected a place in a list of {len(sentences)} sentences')
    sentence = whole_text(sentences[label], "knowledge").partition(KNOWLEDGE)[2].strip()
    return () if sentence in ("", NOTHING_USED) else (sentence,)


def _list(record: dict, key: str) -> list:
    if not isinstance(record.get(key), list):
        raise ValueError(f'"{key}" holds a {type(record.get(key)).__name__}; expected a list')
    return record[key]
