"""metrics.jsonl: one line a step, readable while the run goes on and consistent after a resume."""

import json
import math
import os
from pathlib import Path
from typing import Any


class MetricsLog:
    """Appends one JSON object a step to ``folder/metrics.jsonl``.

    Opening it at ``step`` drops the lines of later steps: a run that goes on from a checkpoint writes those again.
    NaN is written as null, since JSON has no NaN and a reader must not take "not measured" for a number.
    """

    def __init__(self, folder: Path, step: int):
        self.path = folder / "metrics.jsonl"
        kept = (
            [row for row in read_metrics(self.path) if row["step"] <= step] if self.path.exists() and step >= 0 else []
        )
        partial = self.path.with_suffix(".partial")
        partial.write_text("".join(_line(row) for row in kept), encoding="utf-8")
        os.replace(partial, self.path)

    def write(self, row: dict[str, Any]) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(_line(row))


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics file; a last line cut short by a crash is left out.

    Raises:
        ValueError: any other line is no row of a run.
    """
    rows = []
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line) if line.strip() else None
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                break
            raise ValueError(f"{path}, line {number}: not JSON ({error}); mend the line or delete the run") from error
        if isinstance(row, dict) and type(row.get("step")) is int:
            rows.append(row)
        elif line.strip():
            raise ValueError(f"{path}, line {number}: no row with a step; mend the line or delete the run")
    return rows


def _line(row: dict[str, Any]) -> str:
    clean = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()
    }
    return json.dumps(clean) + "\n"
