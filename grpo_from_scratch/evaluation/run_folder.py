"""A run as its folder tells it: config.json and metrics.jsonl."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

from grpo_from_scratch.training.config import TrainConfig
from grpo_from_scratch.training.logs import read_metrics


@dataclass(frozen=True)
class Run:
    """A run as its folder tells it."""

    config: TrainConfig
    rows: list[dict]  # of metrics.jsonl, the row before the first step included
    torn: bool = False  # the last line was cut short

    @property
    def steps(self) -> list[dict]:
        """The rows of steps in which the policy was updated."""
        return [row for row in self.rows if "grad_norm" in row]

    def column(self, name: str) -> list[float]:
        """The numbers of one column over the steps; a step without one is left out."""
        return [float(row[name]) for row in self.steps if is_number(row.get(name))]


def load_run(folder: str | Path) -> Run:
    """Read a run's folder.

    Raises:
        ValueError: no folder, a file that is missing or damaged (the message names the line), or no step yet. Only the
            last line of metrics.jsonl may be cut short, as a crash leaves it.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder; give the one that `grpo train --out` wrote")
    for name in ("config.json", "metrics.jsonl"):
        if not (folder / name).is_file():
            raise ValueError(f"{folder} has no {name}, so it is not the folder of a run")
    try:
        config = TrainConfig.from_dict(json.loads((folder / "config.json").read_text(encoding="utf-8"))["config"])
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError) as error:
        raise ValueError(f"{folder / 'config.json'} is not what a run writes there ({error})") from None
    rows = read_metrics(folder / "metrics.jsonl")
    written = [line for line in (folder / "metrics.jsonl").read_bytes().split(b"\n") if line.strip()]
    run = Run(config, rows, torn=len(rows) < len(written))
    if not run.steps:
        raise ValueError(f"{folder / 'metrics.jsonl'} has no step that updated the policy yet: nothing to judge")
    return run


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
