"""ConvAI2, that is Persona-Chat: the published text files, and the JSON and Parquet that the Hugging Face hub has.

The replies to learn from are those of the speaker whose persona is known ("your persona"), and that persona is their
background. The partner's persona, where a file tells it, is left out: whoever replies does not know it. Candidates are
replies to choose from, all but the true one drawn from other conversations, so none of them becomes a reference.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo_from_scratch.dialogue.conversations import Conversation, Message, merged
from grpo_from_scratch.dialogue.records import (
    LONGEST,
    Place,
    Skipped,
    decoded,
    is_json_or_parquet,
    lines,
    parsed,
    records,
    texts,
    whole_text,
)

SILENCE = "__SILENCE__"  # stands for the message before an opening
OWN, PARTNERS = "your persona:", "partner's persona:"
NUMBERED = re.compile(rb"\s*(\d{1,6}) ")
COLUMNS = 4  # utterance, reply, reward, candidates
EXPECTED = 'expected an object with "personality" and "utterances", or with "dialog" and "user_profile"'


def convai2_conversations(path: Path, bad: list[str] | Skipped | None = None) -> Iterator[Conversation]:
    """The conversations of a file, in any of the published layouts:

    - text, one exchange a line: ``N utterance<TAB>reply<TAB>reward<TAB>candidate|candidate``, the last two columns
      optional, after lines ``N your persona: ...`` and ``N partner's persona: ...``; N counts from 1 in each
      conversation (Dinan et al. 2019, arXiv 1902.00098);
    - ``{"personality": [...], "utterances": [{"history": [...], "candidates": [...]}]}`` in an array, on lines of their
      own, in arrays by split or in Parquet; the last candidate is the true reply. Rows of one history each, as
      bavard/personachat_truecased has them, are conversations of one reply;
    - conv_ai_2, people talking with bots: ``{"dialog": [{"sender", "sender_class", "text"}], "user_profile": [...]}``.
      The person's messages are the replies to learn from, and the user's profile is their background.

    Args:
        path: the file.
        bad: where to note conversations that cannot be read, which are then skipped; None raises at the first.

    Raises:
        ValueError: a conversation that cannot be read (file, line or record, and what was expected).
    """
    if not is_json_or_parquet(path):
        yield from parsed(_numbered(path), _from_lines, path, bad)
    else:
        for found in parsed(records(path), _from_record, path, bad):
            yield from found


def _numbered(path: Path) -> Iterator[tuple[Place, list]]:
    """The lines of each conversation: a number that does not go up begins another."""
    group: list[tuple[int, bytes | ValueError]] = []
    last = size = 0
    for number, line in lines(path):
        found = None if isinstance(line, ValueError) else NUMBERED.match(line)
        count = int(found[1]) if found else last + 1
        if count <= last and group:
            yield "", group
            group, size = [], 0
        last = count
        if size <= LONGEST:
            size += 0 if isinstance(line, ValueError) else len(line)
            too_long = ValueError(f"the conversation is longer than {LONGEST >> 20} MiB; numbers begin again at 1")
            group.append((number, line if size <= LONGEST else too_long))
    if group:
        yield "", group


def _from_lines(group: list[tuple[int, bytes | ValueError]]) -> Conversation:
    persona: list[str] = []
    messages: list[Message] = []
    for expected, (number, line) in enumerate(group, start=1):
        try:
            if isinstance(line, ValueError):
                raise line
            _read_line(decoded(line), expected, persona, messages)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
    if not messages:
        raise ValueError(f"line {group[-1][0]}: the conversation has a persona and no exchange")
    return Conversation([message._replace(background=tuple(persona)) for message in messages])


def _read_line(line: str, expected: int, persona: list[str], messages: list[Message]) -> None:
    found, _, rest = line.lstrip(" ").rstrip("\r\n").partition(" ")
    if not (found.isascii() and found.isdigit() and int(found[:7]) == expected):
        other = " (or 1, where another conversation begins)" if expected > 1 else ""
        raise ValueError(f"expected a line that begins with {expected}{other}, got {line[:40]!r}")
    if rest.startswith((OWN, PARTNERS)):
        if messages:
            raise ValueError("a persona after the first exchange; expected all of it before")
        if rest.startswith(OWN):
            persona.append(whole_text(rest.removeprefix(OWN), OWN.strip(":")))
        return
    columns = rest.split("\t")
    if not 2 <= len(columns) <= COLUMNS:
        raise ValueError(
            f"expected an utterance and a reply, and perhaps a reward and candidates, between tabs; got {len(columns)} "
            "columns"
        )
    if columns[0].strip() != SILENCE:
        messages.append(Message(whole_text(columns[0], "utterance")))
    messages.append(Message(whole_text(columns[1], "reply"), is_reply=True))


def _from_record(record: Any) -> list[Conversation]:
    if not isinstance(record, dict):
        raise ValueError(f"{EXPECTED}, got a {type(record).__name__}")
    if "dialog" in record:
        return [_with_a_bot(record)]
    utterances = record.get("utterances", [record])
    if not isinstance(utterances, list) or not all(isinstance(utterance, dict) for utterance in utterances):
        raise ValueError('"utterances" must be a list of objects with "history" and "candidates"')
    persona = texts(record, "personality")
    found = [_one_reply(utterance, persona) for utterance in utterances]
    if not found:
        raise ValueError('"utterances" is empty')
    return found


def _one_reply(utterance: dict, persona: tuple[str, ...]) -> Conversation:
    history, candidates = utterance.get("history"), utterance.get("candidates")
    for name, value in (("history", history), ("candidates", candidates)):
        if not isinstance(value, list) or not value:
            raise ValueError(f'"{name}" must be a list of at least one text; {EXPECTED}')
    said = [whole_text(turn, "history") for turn in history]
    messages = [Message(turn) for turn in said if turn != SILENCE]
    return Conversation([*messages, Message(whole_text(candidates[-1], "candidates"), "", True, persona)])


def _with_a_bot(record: dict) -> Conversation:
    profile = record.get("user_profile") or []
    if isinstance(profile, list):  # the hub's schema has lists in a list
        profile = [line for part in profile for line in (part if isinstance(part, list) else [part])]
    persona = texts({"user_profile": profile}, "user_profile")
    dialog = record["dialog"]
    if not isinstance(dialog, list) or not all(isinstance(turn, dict) for turn in dialog):
        raise ValueError('"dialog" must be a list of objects with "sender", "sender_class" and "text"')
    messages = []
    for turn in dialog:
        kind = turn.get("sender_class")
        if kind not in ("Human", "Bot"):
            raise ValueError(f'"sender_class" is {_short(kind)}; expected Human or Bot')
        text = whole_text(turn.get("text"), "text", blank=True)
        if text:  # an empty message, as chat programs allow it, says nothing
            sender = whole_text(turn.get("sender", kind), "sender", blank=True)
            messages.append(Message(text, sender, kind == "Human", persona if kind == "Human" else ()))
    if len({message.speaker for message in messages}) > 2:
        raise ValueError('"dialog" has more than two senders')
    return Conversation(merged(messages))


def _short(value: Any) -> str:
    return repr(value)[:40]
