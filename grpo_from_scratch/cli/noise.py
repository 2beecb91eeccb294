"""``grpo noise``: when a group's mean is a better baseline than a constant, predicted and measured."""

from pathlib import Path
from typing import Annotated

import typer

from grpo_from_scratch.cli.app import CORES, Workers, app, parse_difficulties, plain_errors
from grpo_from_scratch.evaluation.intervals import Interval
from grpo_from_scratch.evaluation.noise import DIAL, NoiseSettings, run_noise
from grpo_from_scratch.evaluation.noise_cell import NoiseStudy

QUICK = {"difficulties": ("even", "hidden"), "updates": 5, "prompts": 32, "batches": 16, "quick": True}


@app.command()
def noise(
    quick: Annotated[
        bool, typer.Option("--quick", help="A minute: 2 difficulties, few prompts, indicative only.")
    ] = False,
    difficulty: Annotated[str, typer.Option(help=f"As for table. Default: {','.join(DIAL)}.")] = "",
    updates: Annotated[
        int | None, typer.Option(help="GRPO updates before the second look. Default: 15.", min=1)
    ] = None,
    prompts: Annotated[
        int | None, typer.Option(help="Prompts whose replies' gradients are taken. Default: 160.", min=1)
    ] = None,
    batches: Annotated[
        int | None, typer.Option(help="Measured batches for each group size. Default: 56.", min=1)
    ] = None,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    workers: Workers = CORES,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the result, where an interrupted one goes on. Default: runs/noise, or runs/noise-quick."
        ),
    ] = None,
) -> None:
    """Compare the gradient noise of a global baseline with a group's, as prompts get more unequal.

    For each difficulty, before and after training: the ratio to first order, by the exact formula, and as measured.
    Writes **noise.json**, **ratio.png** and **noise_to_signal.png**.
    """
    with plain_errors(kept="the cells that are done are kept, and the same command goes on from there"):
        asked = {"updates": updates, "prompts": prompts, "batches": batches}
        if difficulty:
            asked["difficulties"] = parse_difficulties(difficulty)
        settings = NoiseSettings(seed=seed, **(QUICK if quick else {}) | {k: v for k, v in asked.items() if v})
        out = out or Path("runs/noise-quick" if quick else "runs/noise")
        study = run_noise(settings, out, workers=workers)
    for line in noise_lines(study):
        typer.echo(line)
    typer.echo(f"Written: {out / 'noise.json'}")


def noise_lines(study: NoiseStudy) -> list[str]:
    """The ratios as lines of text, one for each cell and group size."""
    lines = [f"{'difficulty':11}{'policy':12}{'ICC':>6}{'G':>4}  {'first order':>11}  {'exact':>18}  {'measured':>18}"]
    for cell in study["cells"]:
        for group in cell["groups"]:
            share, first = (Interval(row["value"]).format() for row in (cell["icc"], group["first_order"]))
            exact, measured = (Interval.from_json(group[name]).format() for name in ("exact", "measured"))
            lines.append(
                f"{cell['difficulty']:11}{cell['policy']:12}{share:>6}{group['group_size']:>4}  "
                f"{first:>11}  {exact:>18}  {measured:>18}"
            )
    return lines
