"""What looks sick in a run, told from its folder: metrics.jsonl and config.json, nothing else."""

import math
from dataclasses import dataclass

from grpo_from_scratch.evaluation.run_folder import Run
from grpo_from_scratch.evaluation.symptoms import INSTRUMENTS, Instrument


@dataclass(frozen=True)
class Reading:
    """What an instrument says of a run."""

    instrument: Instrument
    status: str  # "sick" | "healthy" | "not judged"
    value: float = math.nan
    said: str = ""  # the finding, or why it was not judged


def diagnose(run: Run) -> list[Reading]:
    """Every instrument's reading, in their order."""
    return [reading(instrument, run) for instrument in INSTRUMENTS]


def reading(instrument: Instrument, run: Run) -> Reading:
    """What one instrument says."""
    empty = [name for name in instrument.columns if not run.column(name)]
    absent = [name for name in empty if not any(name in row for row in run.steps)]
    value, reason = math.nan, instrument.exempt(run.config)
    if not reason and absent:
        reason = f"the log has no {', '.join(absent)}"
    if not reason and len(run.steps) < instrument.least:
        reason = f"it wants {instrument.least} steps, and there are {len(run.steps)}"
    if not reason and (empty or math.isnan(value := instrument.read(run))):
        reason = "there is nothing to measure it on"
    if reason:
        return Reading(instrument, "not judged", said=reason)
    if instrument.low <= value <= instrument.high:
        return Reading(instrument, "healthy", value)
    return Reading(instrument, "sick", value, instrument.sick.format(value=value))
