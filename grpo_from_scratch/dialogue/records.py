"""The records of a data file, one at a time and in bounded memory: lines, JSON of any shape, Parquet.

Whatever a file holds, what comes out is either a record or a ``ValueError`` that says what is wrong with it, beside the
place where it stands.
"""

import codecs
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

from grpo_from_scratch.dialogue.extras import extra

CHUNK = 1 << 20
LONGEST = 1 << 24  # bytes of a line, characters of a JSON record: a file without line breaks must not fill the memory
PARQUET_ROWS = 64  # at a time

# The Persona-Chat file that Hugging Face published: {"train": [records], "valid": [records]}.
OF_SPLITS = re.compile(rb'\s*\{\s*"(?:train|valid|validation|test)"\s*:\s*\[')
Place = str  # "line 3", "record 2 (line 40)"; empty when the error names the line itself


@dataclass
class Skipped:
    """Bad records that were passed over: how many, and what was wrong with the first."""

    count: int = 0
    first: str = ""

    def append(self, message: str) -> None:
        self.count += 1
        self.first = self.first or message


def parsed(
    records: Iterator[tuple[Place, Any]], parse: Callable[[Any], Any], path: Path, bad: list[str] | Skipped | None
) -> Iterator[Any]:
    """What ``parse`` makes of each record; a record that is an error, or of which it makes one, goes to ``bad``.

    Raises:
        ValueError: at the first bad record if ``bad`` is None.
    """
    for place, record in records:
        try:
            if isinstance(record, ValueError):
                raise record
            result = parse(record)
        except ValueError as error:
            message = f"{path}, {place}: {error}" if place else f"{path}, {error}"
            if bad is None:
                raise ValueError(message) from error
            bad.append(message)
        else:
            yield result


def lines(path: Path) -> Iterator[tuple[int, bytes | ValueError]]:
    """The lines that are not blank, numbered from 1, as bytes: one broken byte does not stop the reading of others."""
    with path.open("rb") as file:
        for number in count(1):
            line = file.readline(LONGEST)
            if not line:
                return
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            if len(line) == LONGEST and not line.endswith(b"\n"):
                while (rest := file.readline(LONGEST)) and not rest.endswith(b"\n"):
                    pass
                yield number, ValueError(f"longer than {LONGEST >> 20} MiB; expected one record")
            elif line.strip():
                yield number, line


def decoded(line: bytes) -> str:
    """The text of a line.

    Raises:
        ValueError: it is not UTF-8.
    """
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 (byte {error.start + 1} of the line); save the file as UTF-8") from error


def texts(record: dict, key: str) -> tuple[str, ...]:
    """The key's text or texts, without the blank ones; an absent or null key has none.

    Raises:
        ValueError: it holds something else, or half of a character.
    """
    value = record.get(key)
    values = [] if value is None else value if isinstance(value, list) else [value]
    return tuple(text for text in (whole_text(text, key, blank=True) for text in values) if text)


def whole_text(value: Any, name: str, *, blank: bool = False) -> str:
    """The text without blanks around it.

    Raises:
        ValueError: it is no text, half of a character, or blank although it must not be.
    """
    if not isinstance(value, str):
        raise ValueError(f'"{name}" holds a {type(value).__name__}; expected a text or a list of texts')
    if _SURROGATE.search(value):
        raise ValueError(f'"{name}" holds half of a surrogate pair; expected whole characters')
    if not value.strip() and not blank:
        raise ValueError(f'"{name}" is blank; expected a text')
    return value.strip()


def json_lines(path: Path) -> Iterator[tuple[Place, Any]]:
    """The value on each line."""
    for number, line in lines(path):
        yield f"line {number}", line if isinstance(line, ValueError) else _attempt(line)


def _attempt(line: bytes) -> Any:
    try:
        text = decoded(line)
    except ValueError as error:
        return error
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits, or a thousand brackets
        return ValueError(f"not JSON ({error}); expected an object on each line")


def is_json_or_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        return _head(file).startswith((b"{", b"[", b"PAR1"))


def _head(file: BinaryIO) -> bytes:
    head = file.read(4096).removeprefix(codecs.BOM_UTF8).lstrip()
    file.seek(0)
    return head


def records(path: Path) -> Iterator[tuple[Place, Any]]:
    """The records of a JSON array, of an object of arrays (one a split), of JSON lines or of Parquet."""
    with path.open("rb") as file:
        head = _head(file)
        if head.startswith(b"PAR1"):
            yield from _parquet_rows(path)
        elif head.startswith(b"[") or OF_SPLITS.match(head) or re.match(rb"\{\s*\n", head):
            yield from _json_stream(_Text(file), OF_SPLITS.match(head) is not None)
        else:
            yield from json_lines(path)


def _parquet_rows(path: Path) -> Iterator[tuple[Place, Any]]:
    parquet = extra("pyarrow.parquet", "parquet", f"{path} is Parquet, which")
    from pyarrow import ArrowException

    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(PARQUET_ROWS):
                for row in batch.to_pylist():
                    number += 1
                    yield f"record {number}", row
    except (ArrowException, OSError, UnicodeDecodeError) as error:
        yield f"record {number + 1}", ValueError(f"not readable as Parquet ({' '.join(str(error).split())[:200]})")


class _Unreadable(ValueError):
    """Where JSON breaks, nobody knows where the next record begins."""


def _json_stream(text: "_Text", of_splits: bool) -> Iterator[tuple[Place, Any]]:
    numbers = count(1)
    number = next(numbers)
    try:
        for value in _split_arrays(text) if of_splits else _array(text) if text.peek() == "[" else _objects(text):
            yield f"record {number} (line {text.started})", value
            number = next(numbers)
        if text.peek():
            raise _Unreadable(f"expected the end of the file, got {text.peek()!r}")
    except _Unreadable as error:
        yield f"record {number} (line {text.line})", ValueError(f"{error}; what follows cannot be read")


def _split_arrays(text: "_Text") -> Iterator[Any]:
    text.take("{")
    while True:
        text.value()  # the name of the split: which records are held out is decided by their content
        text.take(":")
        yield from _array(text)
        if text.peek() != ",":
            break
        text.take(",")
    text.take("}")


def _array(text: "_Text") -> Iterator[Any]:
    text.take("[")
    while text.peek() != "]":
        yield text.value()
        if text.peek() != ",":
            break
        text.take(",")
    text.take("]")


def _objects(text: "_Text") -> Iterator[Any]:
    while text.peek():
        yield text.value()


class _Text:
    """A JSON file as text, of which only the current record and what was read ahead is kept.

    A byte that is not UTF-8 spoils the record that holds it and no other: it is read as a lone surrogate.
    """

    def __init__(self, file: BinaryIO):
        self.file = file
        self.utf8 = codecs.getincrementaldecoder("utf-8-sig")(errors="surrogateescape")
        self.text, self.position, self.ended = "", 0, False
        self.line = self.started = 1  # of the position, and where the last value began

    def peek(self) -> str:
        """The next character that is no blank; empty at the end."""
        while True:
            blanks = _BLANKS.match(self.text, self.position).end()
            self._pass_to(blanks)
            if self.position < len(self.text) or not self._more():
                return self.text[self.position : self.position + 1]

    def take(self, expected: str) -> None:
        if self.peek() != expected:
            raise _Unreadable(f"not JSON (expected {expected!r}, got {self.peek() or 'the end of the file'!r})")
        self._pass_to(self.position + 1)

    def value(self) -> Any:
        """The value that begins here, or a ``ValueError`` if its bytes are not UTF-8."""
        self.peek()
        self.started = self.line
        while True:
            try:
                value, end = _DECODER.raw_decode(self.text, self.position)
            except json.JSONDecodeError as error:
                # A value that the end of the buffer cuts fails near that end, or in a text that nothing closes.
                cut = error.msg.startswith("Unterminated") or error.pos >= len(self.text) - len(r"\ud83d\ude00")
                if not (cut and len(self.text) - self.position < LONGEST and self._more()):
                    line = self.line + self.text.count("\n", self.position, error.pos)
                    self.line = line
                    raise _Unreadable(f"not JSON ({error.msg})") from None
            except RecursionError:
                raise _Unreadable("not JSON (nested too deeply)") from None
            except ValueError as error:
                raise _Unreadable(f"not JSON ({error})") from None
            else:
                broken = _NOT_UTF8.search(self.text, self.position, end) is not None
                self._pass_to(end)
                return ValueError("not UTF-8; save the file as UTF-8") if broken else value

    def _pass_to(self, position: int) -> None:
        self.line += self.text.count("\n", self.position, position)
        self.position = position

    def _more(self) -> bool:
        """Read as much again as is waiting, so that a long record is decoded few times. False at the end."""
        waiting = self.text[self.position :]
        data = b"" if self.ended else self.file.read(max(CHUNK, len(waiting)))
        self.ended = self.ended or not data
        self.text, self.position = waiting + self.utf8.decode(data, final=self.ended), 0
        return bool(data)


_DECODER = json.JSONDecoder()
_BLANKS = re.compile(r"[ \t\n\r]*")
_SURROGATE = re.compile("[\ud800-\udfff]")
_NOT_UTF8 = re.compile("[\udc80-\udcff]")  # what "surrogateescape" makes of such bytes
