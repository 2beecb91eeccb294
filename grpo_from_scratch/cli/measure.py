"""``grpo table``, ``grpo sweep`` and ``grpo vary``: experiments of many runs."""

import json
import re
from pathlib import Path
from typing import Annotated

import typer
from rich import print as rich_print

from grpo_from_scratch.cli.app import CORES, Data, SkipBad, Workers, app, parse_difficulties, parse_value, plain_errors
from grpo_from_scratch.evaluation.experiment import QUICK_ROWS, ROWS, Experiment, run_experiment
from grpo_from_scratch.evaluation.intervals import Interval
from grpo_from_scratch.evaluation.report import provenance, terminal_tables
from grpo_from_scratch.evaluation.sweep import run_sweep
from grpo_from_scratch.evaluation.vary import SETTINGS, run_variation


@app.command()
def table(
    quick: Annotated[
        bool, typer.Option("--quick", help="Two minutes: 3 rows, 2 seeds, 20 steps, indicative only.")
    ] = False,
    difficulty: Annotated[
        str,
        typer.Option(help="mixed, even, hidden, a share of hard contexts such as 0.3, several (mixed,even), or all."),
    ] = "",
    data: Data = "embedded",
    algorithms: Annotated[str, typer.Option(help=f"Rows, separated by commas, of {', '.join(ROWS)}.")] = "",
    seeds: Annotated[
        int | None, typer.Option(help="Runs a row; by default 10 (quick: 2), half on each initial policy.", min=1)
    ] = None,
    workers: Workers = CORES,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the result, where an interrupted one goes on. Default: runs/table, or runs/quick."
        ),
    ] = None,
    skip_bad: SkipBad = False,
) -> None:
    """Measure PPO against GRPO: sample efficiency, stability, BLEU.

    Writes **table.json**, **report.md** and **curves.png**. Every row has the same initial policies, completions and KL
    coefficient, and its own learning rate, from the committed sweep (`grpo sweep`).
    """
    with plain_errors(kept="the runs that are done are kept, and the same command goes on from there"):
        if difficulty and data != "embedded":
            raise ValueError(
                f"--difficulty is of the embedded dialogues, and the data is {data!r}; leave one of them out"
            )
        experiment = Experiment(
            data=data,
            difficulties=parse_difficulties(difficulty or ("mixed" if quick else "mixed,even")),
            rows=tuple(algorithms.split(",")) if algorithms else (QUICK_ROWS if quick else tuple(ROWS)),
            seeds=seeds or (2 if quick else 10),
            sft_seeds=1 if quick or seeds == 1 else 2,
            steps=20 if quick else 40,
            quick=quick,
            skip_bad=skip_bad,
        )
        out = out or Path("runs/quick" if quick else "runs/table")
        made = run_experiment(experiment, out, workers=workers)
    for shown in terminal_tables(made):
        rich_print(shown)
    typer.echo(provenance(made))
    typer.echo(f"Report: {out / 'report.md'}")


@app.command()
def sweep(
    difficulty: Annotated[str, typer.Option(help="As for table.")] = "mixed",
    algorithms: Annotated[str, typer.Option(help="As for table.")] = "",
    data: Data = "embedded",
    seeds: Annotated[int, typer.Option(help="Tuning runs for each setting.", min=1)] = 2,
    steps: Annotated[int, typer.Option(help="Steps of each run.", min=1)] = 40,
    workers: Workers = CORES,
    out: Annotated[Path, typer.Option(help="Folder of sweep.json and its runs.")] = Path("runs/sweep"),
) -> None:
    """Search each row's learning rate, passes and critic on tuning seeds and tuning dialogues.

    The result, **sweep.json**, is committed as `grpo_from_scratch/evaluation/sweep.json`, where `grpo table` reads it.
    """
    with plain_errors(kept="the runs that are done are kept, and the same command goes on from there"):
        experiment = Experiment(
            difficulties=parse_difficulties(difficulty),
            rows=tuple(algorithms.split(",")) if algorithms else tuple(ROWS),
            data=data,
            seeds=seeds,
            sft_seeds=min(2, seeds),
            steps=steps,
            eval_every=5,
        )
        found = run_sweep(experiment, out, workers=workers)
    for name, rows in found["difficulties"].items():
        for row, result in rows.items():
            typer.echo(f"{name:8} {row:12} {json.dumps(result['settings'])}")
    typer.echo(f"Written: {out / 'sweep.json'}")


@app.command()
def vary(
    changes: Annotated[
        list[str],
        typer.Argument(
            help="Any setting of TrainConfig or Preset, or shape (prompts x completions): alpha=0.9,0.99 shape=8x8.",
            metavar="NAME=VALUE,VALUE...",
        ),
    ],
    algorithm: Annotated[str, typer.Option(help=f"One of {', '.join(ROWS)}.")] = "grpo",
    difficulty: Annotated[str, typer.Option(help="As for table.")] = "mixed",
    data: Data = "embedded",
    seeds: Annotated[int, typer.Option(help="Runs of each combination, half on each initial policy.", min=2)] = 8,
    steps: Annotated[int, typer.Option(help="Steps of each run.", min=1)] = 40,
    workers: Workers = CORES,
    out: Annotated[Path, typer.Option(help="Folder of the result, where an interrupted one goes on.")] = Path(
        "runs/vary"
    ),
) -> None:
    """Run one row of the table with every combination of some settings' values.

    Writes **vary.json** and **vary.png**: rewards, metrics and curves of each combination, with 95 % intervals.
    """
    with plain_errors(kept="the runs that are done are kept, and the same command goes on from there"):
        experiment = Experiment(
            data=data,
            difficulties=parse_difficulties(difficulty),
            rows=(algorithm,),
            seeds=seeds,
            steps=steps,
            eval_every=5,
        )
        values = dict(_values(change) for change in changes)
        if len(values) < len(changes):
            raise ValueError("a setting is varied twice; write all its values in one argument")
        found = run_variation(experiment, values, out, workers=workers)
    for name, cells in found["difficulties"].items():
        for cell in cells:
            settings = " ".join(f"{setting}={value}" for setting, value in cell["settings"].items())
            typer.echo(f"{name:8} {settings:40} reward {Interval.from_json(cell['reward']).format(3)}")
    typer.echo(f"Written: {out / 'vary.json'}, {out / 'vary.png'}")


def _values(change: str) -> tuple[str, list]:
    """ "alpha=0.9,0.99" -> ("alpha", [0.9, 0.99])."""
    name, equals, text = change.partition("=")
    if not equals or not text:
        raise ValueError(f"a change is NAME=VALUE,VALUE, such as alpha=0.9,0.99, not {change!r}")
    texts = re.split(r",(?![^\[]*\])", text)  # a comma within [low, high] separates nothing
    default = SETTINGS.get(name)
    return name, [value if default is None else parse_value(value, default, name) for value in texts]
