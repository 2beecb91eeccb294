"""``grpo diagnose``: what looks sick in a run, and where the course explains it."""

from pathlib import Path
from typing import Annotated

import typer

from grpo_from_scratch.cli.app import app, plain_errors
from grpo_from_scratch.evaluation.diagnose import Reading
from grpo_from_scratch.evaluation.diagnose import diagnose as readings_of
from grpo_from_scratch.evaluation.run_folder import Run, load_run


@app.command()
def diagnose(
    run: Annotated[Path, typer.Argument(help="The folder of a run, as `grpo train --out` wrote it.", metavar="RUN")],
) -> None:
    """Say what looks sick in a run, from its **metrics.jsonl** and **config.json**.

    Each instrument reads one number, and knows where it stays in a healthy run. A finding names what to do, and the
    notebook that explains it; then follows what was looked at and is healthy, and what could not be judged and why.
    """
    with plain_errors():
        found = load_run(run)
        readings = readings_of(found)
    for line in report(found, readings):
        typer.echo(line)


def report(run: Run, readings: list[Reading]) -> list[str]:
    """The readings as lines of text, what is sick first."""
    sick, healthy, skipped = (
        [reading for reading in readings if reading.status == status] for status in ("sick", "healthy", "not judged")
    )
    preset, steps = run.config.preset, len(run.steps)
    lines = [f"{steps} steps, baseline {preset.baseline}, surrogate {preset.surrogate}, KL {preset.kl_coef:g}"]
    if run.torn:
        lines.append("The last line of metrics.jsonl is cut short and left out: the run still writes, or was killed.")
    lines.append("")
    lines += [f"{len(sick)} of {len(sick) + len(healthy)} instruments say sick." if sick else "Nothing looks sick."]
    for reading in sick:
        instrument = reading.instrument
        lines += [
            "",
            f"✗ {instrument.name}: {reading.value:.3g} (healthy: {instrument.healthy})",
            f"    {reading.said[0].upper()}{reading.said[1:]}.",
            f"    Do: {instrument.advice}.",
            f"    Why: {instrument.chapter}.",
        ]
    if healthy:
        lines += ["", "Looked at, and healthy:"]
        lines += [f"  {r.instrument.name}: {r.value + 0:.3g} (healthy: {r.instrument.healthy})" for r in healthy]
    if skipped:
        lines += ["", "Not judged:"]
        lines += [f"  {r.instrument.name}: {r.said}" for r in skipped]
    return lines
