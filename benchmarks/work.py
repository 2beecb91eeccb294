"""The work that both sides do in a benchmark: which model answers which prompts, how often, and what is rewarded."""

import json
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

LEARNING_RATE = (
    1e-6  # everything is computed, but the policy stays, so that the last step's replies are as long as the first's
)

FORM = "it has one JSON object a line, with the texts 'prompt' and 'reference'"


@dataclass(frozen=True)
class Work:
    """GRPO steps of ``prompts * group_size`` completions.

    ``folder`` holds a Hugging Face model, its tokenizer and ``data.jsonl``, whose lines have a "prompt" and a
    "reference". Step s answers the lines from s * prompts on, round and round.
    """

    folder: Path
    group_size: int = 8
    prompts: int = 8
    max_new: int = 32
    beta: float = 0.0  # coefficient of the KL to the model as it is now

    @property
    def completions(self) -> int:
        """In each step."""
        return self.prompts * self.group_size

    @cached_property
    def rows(self) -> list[dict[str, str]]:
        """The lines of ``data.jsonl``.

        Raises:
            ValueError: there is no such file, or a line that is not of this form.
        """
        file = Path(self.folder) / "data.jsonl"
        if not file.is_file():
            raise ValueError(f"{file} does not exist: {FORM}.")
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        rows = [_row(line, f"line {number} of {file}") for number, line in enumerate(lines, 1)]
        if not rows:
            raise ValueError(f"{file} is empty: {FORM}.")
        return rows

    def rows_of(self, step: int) -> list[dict[str, str]]:
        """The lines that step ``step`` answers."""
        return [self.rows[place % len(self.rows)] for place in range(step * self.prompts, (step + 1) * self.prompts)]


def _row(line: str, where: str) -> dict[str, str]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError:
        row = None
    if not isinstance(row, dict) or not all(isinstance(row.get(name), str) for name in ("prompt", "reference")):
        raise ValueError(f"{where} cannot be used: {FORM}.")
    return row


def word_f1(prompts: list[str], completions: list[str], reference: list[str], **columns) -> list[float]:
    """F1 of the words that a completion and its reference share, each word as often as it stands in both."""
    return [_f1(text.split(), good.split()) for text, good in zip(completions, reference, strict=True)]


def _f1(words: list[str], wanted: list[str]) -> float:
    shared = sum((Counter(words) & Counter(wanted)).values())
    return 2 * shared / (len(words) + len(wanted)) if shared else 0.0
