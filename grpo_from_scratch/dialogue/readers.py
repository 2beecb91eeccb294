"""From a data spec to examples: the embedded dialogues, the digits to sort, a JSONL file, real human conversations."""

import difflib
import json
import warnings
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from grpo_from_scratch.dialogue.corpus import DIFFICULTIES, embedded_dialogues
from grpo_from_scratch.dialogue.dataset import Example, check_split, split_of
from grpo_from_scratch.dialogue.reasoning import reasoning_task
from grpo_from_scratch.dialogue.tasks import sort_digits

SPECS = (
    "embedded",
    *(f"embedded:{name}" for name in DIFFICULTIES),
    "embedded:0.3",
    "sort_digits",
    "reasoning:TASK",
    "jsonl:FILE",
    "chitchat",
)
CHITCHAT_TURNS = 3  # messages of context: the one answered, and the exchange before it


def load_examples(
    spec: str, split: str, *, count: int | None = None, seed: int = 0, skip_bad: bool = False
) -> list[Example]:
    """The examples a data spec names, of one split.

    Args:
        spec: "embedded" or "embedded:DIFFICULTY" (mixed, even, hidden, or a number from 0 to 1), "sort_digits",
            "reasoning:TASK" (see ``reasoning_task``), "jsonl:FILE" (see ``read_jsonl``) or "chitchat" (see
            ``read_chitchat``).
        split: "train", "tuning" or "report"; no context stands in two of them.
        count: at most so many (default: all there are; generated data has its own default).
        seed: for generated data.
        skip_bad: pass over bad lines of a file and warn once with their number, instead of raising at the first.

    Raises:
        ValueError: an unknown spec (the nearest valid ones are named), a bad line, or no example for this split.
        FileNotFoundError: no such file.
        ImportError: "chitchat" or "reasoning" without its package.
    """
    check_split(split)
    name, _, detail = spec.partition(":")
    if name == "embedded" and (detail or spec == name):
        return embedded_dialogues(split, difficulty=_difficulty(detail or "mixed"), seed=seed, count=count)
    if spec == "sort_digits":
        return sort_digits(split, seed=seed, count=count)
    if name == "reasoning" and detail:
        return reasoning_task(detail, split, count=count, seed=seed)
    if spec == "chitchat":
        return list(islice(read_chitchat(split), count))
    if name == "jsonl" and detail:
        return _load_jsonl(Path(detail).expanduser(), split, count, skip_bad)
    nearest = difflib.get_close_matches(spec, SPECS, n=3) or SPECS
    raise ValueError(f"unknown data {spec!r}; the nearest valid: {', '.join(nearest)}")


def _difficulty(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


def _load_jsonl(path: Path, split: str, count: int | None, skip_bad: bool) -> list[Example]:
    bad: list[str] | None = [] if skip_bad else None
    other = 0
    examples = []
    for example in read_jsonl(path, bad):
        if split_of("\n".join(example.background + example.turns)) != split:
            other += 1
        elif count is None or len(examples) < count:
            examples.append(example)
    if bad:
        warnings.warn(f"skipped {len(bad)} bad lines, the first: {bad[0]}", stacklevel=3)
    if not examples:
        raise ValueError(
            f"{path}: no dialogue for the {split!r} split ({other} in the others); a context's hash puts 80 % into "
            "train, 10 % into tuning and 10 % into report, so give it more dialogues"
        )
    return examples


def read_jsonl(path: Path, bad: list[str] | None = None) -> Iterator[Example]:
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
    if not path.is_file():
        raise FileNotFoundError(f"no data file {path}")
    lines = 0
    with path.open("rb") as file:  # bytes, so that one broken line does not stop the reading of the others
        for number, line in enumerate(file, start=1):
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if not line.strip():
                continue
            lines += 1
            try:
                example = _parse_line(line)
            except ValueError as error:
                message = f"{path}, line {number}: {error}"
                if bad is None:
                    raise ValueError(message) from error
                bad.append(message)
            else:
                yield example
    if not lines:
        raise ValueError(f"{path} is empty; expected one JSON object with a context and a response on each line")


def _parse_line(line: bytes) -> Example:
    try:
        record = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 (byte {error.start + 1} of the line); save the file as UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({error}); expected an object with a context and a response") from error
    if not isinstance(record, dict):
        raise ValueError(f"expected a JSON object with a context and a response, got a {type(record).__name__}")
    response = _texts(record, "response")
    references = _texts(record, "references") or response
    turns = _texts(record, "context")
    if not turns:
        raise ValueError('no "context"; expected a text or a list of turns, oldest first')
    if not references:
        raise ValueError('no reply; expected "response": text or "references": [texts]')
    return Example(
        turns=turns,
        references=references,
        background=_texts(record, "persona") + _texts(record, "knowledge"),
        responses=response,
        facts=_texts(record, "facts"),
    )


def _texts(record: dict, key: str) -> tuple[str, ...]:
    """The key's text or texts, without the blank ones; an absent or null key has none."""
    value = record.get(key)
    values = [] if value is None else value if isinstance(value, list) else [value]
    for text in values:
        if not isinstance(text, str):
            raise ValueError(f'"{key}" holds a {type(text).__name__}; expected a text or a list of texts')
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise ValueError(f'"{key}" holds half of a surrogate pair ; expected whole characters')
    return tuple(text.strip() for text in values if text.strip())


def read_chitchat(split: str) -> Iterator[Example]:
    """Real human conversations (BYU's Chit Chat Challenge, package chitchat-dataset): each reply to the last
    CHITCHAT_TURNS messages before it.

    A conversation belongs to one split as a whole. People often open alike ("hi"), so a context that stands in
    conversations of several splits goes to the first that has it, and is left out of the others.

    Raises:
        ImportError: the package is not installed.
    """
    try:
        from chitchat_dataset import ConversationDataset
    except ImportError as error:
        raise ImportError("the chitchat data needs its package: pip install 'grpo-from-scratch[chitchat]'") from error
    owners: dict[tuple[str, ...], str] = {}
    for conversation in ConversationDataset():
        messages = [message.strip() for message in conversation]
        messages = [message for message in messages if message]
        owner = split_of("\n".join(messages))
        for i in range(1, len(messages)):
            turns = tuple(messages[max(0, i - CHITCHAT_TURNS) : i])
            if owners.setdefault(turns, owner) == owner == split:
                yield Example(turns=turns, references=(messages[i],))
