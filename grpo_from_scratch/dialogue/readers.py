"""From a data spec to examples: the embedded dialogues, the digits to sort, files, real human conversations."""

import difflib
import warnings
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from grpo_from_scratch.dialogue.convai2 import convai2_conversations
from grpo_from_scratch.dialogue.conversations import Conversation, Message, replies
from grpo_from_scratch.dialogue.corpus import DIFFICULTIES, embedded_dialogues
from grpo_from_scratch.dialogue.dataset import SPLITS, Example, check_split, split_of
from grpo_from_scratch.dialogue.extras import extra
from grpo_from_scratch.dialogue.layouts import check_layout
from grpo_from_scratch.dialogue.reasoning import reasoning_task
from grpo_from_scratch.dialogue.records import Skipped, json_lines, parsed, texts
from grpo_from_scratch.dialogue.tasks import TASKS
from grpo_from_scratch.dialogue.wizard import wizard_conversations

SPECS = (
    "embedded",
    *(f"embedded:{name}" for name in DIFFICULTIES),
    "embedded:0.3",
    *TASKS,
    "reasoning:TASK",
    "jsonl:FILE",
    "convai2:FILE",
    "wizard:FILE",
    "chitchat",
)
CONVERSATIONS = {"convai2": convai2_conversations, "wizard": wizard_conversations}
FORMS = ("jsonl", *CONVERSATIONS)


def load_examples(
    spec: str, split: str, *, count: int | None = None, seed: int = 0, skip_bad: bool = False
) -> list[Example]:
    """The examples a data spec names, of one split.

    Args:
        spec: "embedded" or "embedded:DIFFICULTY" (mixed, even, hidden, or a number from 0 to 1), a task (``tasks``),
            "reasoning:TASK" (see ``reasoning_task``), "jsonl:FILE" (see ``read_jsonl``), "convai2:FILE" (see
            ``convai2_conversations``), "wizard:FILE" (see ``wizard_conversations``) or "chitchat" (see
            ``chitchat_conversations``).
        split: "train", "tuning" or "report"; no context stands in two of them.
        count: at most so many (default: all there are; generated data has its own default). A file is read no further
            than that.
        seed: for generated data.
        skip_bad: pass over bad records of a file and warn once with their number, instead of raising at the first.

    Raises:
        ValueError: an unknown spec (the nearest valid ones are named), a bad record, or no example for this split.
        FileNotFoundError: no such file.
        ImportError: "chitchat", "reasoning" or Parquet without its package.
    """
    check_split(split)
    if (generate := _generator(spec)) is not None:
        return generate(split, seed=seed, count=count)
    other = 0
    examples = []
    with closing(stream_examples(spec, skip_bad=skip_bad)) as stream:
        while count is None or len(examples) < count:
            owner, example = next(stream, (None, None))
            if example is None:
                break
            if owner == split:
                examples.append(example)
            else:
                other += 1
    if not examples and count != 0:
        raise ValueError(
            f"{spec.partition(':')[2] or spec}: no dialogue for the {split!r} split ({other} in the others); a hash "
            "puts 80 % into train, 10 % into tuning and 10 % into report, so give it more dialogues"
        )
    return examples


def stream_examples(spec: str, *, seed: int = 0, skip_bad: bool = False) -> Iterator[tuple[str, Example]]:
    """Every example a data spec names, with its split, one at a time; arguments and errors as for ``load_examples``.

    Of a file, no more than one conversation is kept in memory.
    """
    if (generate := _generator(spec)) is not None:
        for split in SPLITS:
            yield from ((split, example) for example in generate(split, seed=seed, count=None))
        return
    name, _, detail = spec.partition(":")
    if spec == "chitchat":
        yield from replies(chitchat_conversations())
        return
    if not detail or name not in FORMS:
        raise ValueError(f"unknown data {spec!r}; {_meant(spec)}")
    path = _path(detail)
    bad = Skipped() if skip_bad else None
    try:
        if name == "jsonl":
            for example in read_jsonl(path, bad):
                yield split_of("\n".join(example.background + example.turns)), example
        else:
            check_layout(path, name)
            yield from replies(CONVERSATIONS[name](path, bad))
    finally:
        if bad is not None and bad.count:
            warnings.warn(f"skipped {bad.count} bad records, the first: {bad.first}", stacklevel=3)


def _meant(spec: str) -> str:
    """What may have been meant by a spec that there is not."""
    if _path(spec).is_file():
        return f"if that file holds dialogues, say in which form: {', '.join(f'{name}:{spec}' for name in FORMS)}"
    nearest = difflib.get_close_matches(spec, SPECS, n=3)
    return f"the nearest valid: {', '.join(nearest)}" if nearest else f"valid are {', '.join(SPECS)}"


def _path(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError:  # "~somebody" who has no home here: a file's name, then
        return Path(text)


def _generator(spec: str):
    """What makes a spec's examples, if they are not read."""
    name, colon, detail = spec.partition(":")
    if spec in TASKS:
        return TASKS[spec]
    if name == "embedded" and (detail or not colon):
        difficulty = _difficulty(detail or "mixed")
        return lambda split, **options: embedded_dialogues(split, difficulty=difficulty, **options)
    if name == "reasoning" and detail:
        return partial(reasoning_task, detail)
    return None


def _difficulty(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


def read_jsonl(path: Path, bad: list[str] | Skipped | None = None) -> Iterator[Example]:
    """Dialogues of a UTF-8 file (with or without a BOM), one JSON object a line, read line by line:

        {"context": "hi" | ["hi", "hello", "how are you ?"], "response": "fine !" | "references": ["fine !", "well !"],
         "persona" | "knowledge": "i fish ." | ["i fish ."], "facts": ["fish"]}

    The last five keys are optional, except that there must be a response, references or both; fine-tuning imitates the
    response, or else the references. Blank lines and other keys are passed over.

    Args:
        path: the file.
        bad: where to note bad lines, which are then skipped; None raises at the first.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a bad line (file, line number and what was expected), or a file without any line.
    """
    check_layout(path, "jsonl")
    yield from parsed(json_lines(path), _from_record, path, bad)


def _from_record(record: Any) -> Example:
    if not isinstance(record, dict):
        raise ValueError(f"expected a JSON object with a context and a response, got a {type(record).__name__}")
    response = texts(record, "response")
    references = texts(record, "references") or response
    turns = texts(record, "context")
    if not turns:
        raise ValueError('no "context"; expected a text or a list of turns, oldest first')
    if not references:
        raise ValueError('no reply; expected "response": text or "references": [texts]')
    return Example(
        turns=turns,
        references=references,
        background=texts(record, "persona") + texts(record, "knowledge"),
        responses=response,
        facts=texts(record, "facts"),
    )


def chitchat_conversations() -> Iterator[Conversation]:
    """Real human conversations (BYU's Chit Chat Challenge, package chitchat-dataset): every message is a reply.

    Raises:
        ImportError: the package is not installed.
    """
    for conversation in extra("chitchat_dataset", "chitchat", "data chitchat").ConversationDataset():
        messages = [message.strip() for message in conversation]
        yield Conversation([Message(message, is_reply=True) for message in messages if message])
