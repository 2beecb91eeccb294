"""What a data file seems to be, so that a wrong one is named instead of read wrongly."""

import codecs
import re
from pathlib import Path

HEAD = 1 << 16
SIGNATURES = {
    b"\x1f\x8b": "a gzip archive; unpack it and give the file inside",
    b"PK\x03\x04": "a zip archive; unpack it and give the file inside",
    b"BZh": "a bzip2 archive; unpack it and give the file inside",
    b"\xfd7zXZ": "an xz archive; unpack it and give the file inside",
    b"\x28\xb5\x2f\xfd": "a zstd archive; unpack it and give the file inside",
    b"%PDF": "a PDF document",
    codecs.BOM_UTF16_LE: "text in UTF-16; save it as UTF-8",
    codecs.BOM_UTF16_BE: "text in UTF-16; save it as UTF-8",
    b"ARROW1": "an Arrow file; save it as Parquet or as JSON lines",
    b"version https://git-lfs": "a Git LFS pointer; fetch the file that it points to",
}
PARQUET = b"PAR1"

# Layouts, told by what stands near the beginning. The first that fits is taken.
TEXT = re.compile(rb"\s*\d+ (?:(?:your|partner's) persona:|[^\t\n]*\t)")
KEYS = {
    "wizard": (b'"chosen_topic"', b'"checked_sentence"', b'"retrieved_passages"', b"__knowledge__"),
    "convai2": (b'"personality"', b'"candidates"', b'"bot_profile"', b'"user_profile"'),
    "clariq": (b'"clarification_need"',),
    "jsonl": (b'"context"',),
}
NAMES = {
    "wizard": "Wizard of Wikipedia",
    "convai2": "Persona-Chat (ConvAI2)",
    "jsonl": "one JSON object with a context and a response on each line",
}


def check_layout(path: Path, spec: str) -> None:
    """Refuse a file that cannot be what the spec's reader reads.

    Raises:
        FileNotFoundError: no such file.
        ValueError: it is empty, no text, or of another layout; the message says what it seems to be.
    """
    if path.is_dir():
        raise FileNotFoundError(f"no data file {path}: it is a folder; give one of the files in it")
    if not path.is_file():
        raise FileNotFoundError(f"no data file {path}")
    with path.open("rb") as file:
        head = file.read(HEAD)
    if not head.removeprefix(codecs.BOM_UTF8).strip() and len(head) < HEAD:
        raise ValueError(f"{path} is empty; expected {NAMES[spec]}")
    seems = next((what for start, what in SIGNATURES.items() if head.startswith(start)), None)
    if head.startswith(PARQUET):
        if spec != "jsonl":
            return
        seems = "Parquet; save it as JSON lines"
    elif head.count(0) > max(1, len(head) // 1000):  # a stray NUL costs a record, not the file
        seems = seems or "binary data"
    if seems:
        raise ValueError(f"{path} is no text file: it seems to be {seems}")
    layout = _layout(head.removeprefix(codecs.BOM_UTF8), spec)
    if layout == "clariq":
        raise ValueError(f"{path} seems to be ClariQ (conv_ai_3): clarifying questions, not dialogues with a persona")
    if layout != spec and layout is not None:
        raise ValueError(f"{path} seems to hold {NAMES[layout]}; read it as {layout}:{path}")


def _layout(head: bytes, spec: str) -> str | None:
    """The layout that the head shows; the spec's own wins where it shows several."""
    if TEXT.match(head):
        return "convai2"
    if head.lstrip()[:1] not in (b"{", b"["):
        return None
    if spec == "convai2" and b'"clarification_need"' in head:
        return "clariq"
    fitting = [name for name, keys in KEYS.items() if any(key in head for key in keys)]
    return spec if spec in fitting or not fitting else fitting[0]
