"""``grpo data``: what a data spec holds, before anything is trained on it."""

import json
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from grpo_from_scratch.cli.app import SPEC_HELP, SkipBad, app, plain_errors, printable
from grpo_from_scratch.dialogue.dataset import SPLITS, Example
from grpo_from_scratch.dialogue.readers import stream_examples
from grpo_from_scratch.dialogue.summary import Summary, spread, summarise, to_json
from grpo_from_scratch.evaluation.data_figure import data_figure
from grpo_from_scratch.policy.loading import load_policy

SHOWN = 100  # characters of a reply in a table


@app.command()
def data(
    spec: Annotated[str, typer.Argument(help=SPEC_HELP, metavar="SPEC")] = "embedded",
    count: Annotated[int, typer.Option(help="Read at most so many dialogues.", min=1)] = 100_000,
    examples: Annotated[int, typer.Option(help="Examples to show.", min=0)] = 3,
    model: Annotated[
        str, typer.Option(help="Also count the tokens of this policy: tiny, a Hugging Face folder or a hub id.")
    ] = "",
    seed: Annotated[int, typer.Option(help="Of generated data.")] = 0,
    skip_bad: SkipBad = False,
    out: Annotated[Path, typer.Option(help="Folder of the summary and its picture.")] = Path("runs/data"),
) -> None:
    """Summarise dialogues: how many, how long, what is doubtful, and a few of them.

    Writes **summary.json** and **lengths.png**.
    """
    with plain_errors():
        tokenizer = load_policy(model)[1] if model else None
        found, more = _read(spec, count, seed, skip_bad)
        summary = summarise(found, tokenizer)
        out.mkdir(parents=True, exist_ok=True)
        written = json.dumps({"spec": spec, "all": not more} | to_json(summary), indent=1)
        (out / "summary.json").write_text(written, encoding="utf-8")
        data_figure(summary, title=printable(spec)).savefig(out / "lengths.png", dpi=130)
    console = Console(highlight=False)
    for shown in (_lengths(summary), _flags(summary), _common(summary)):
        console.print(shown)
    for example in _spread_over(found["train"] or sum(found.values(), []), examples):
        typer.echo(_dialogue(example))
    if more:
        typer.echo(f"note: there are more; these are the first {count} (--count)", err=True)
    typer.echo(f"Summary: {out / 'summary.json'}   picture: {out / 'lengths.png'}")


def _read(spec: str, count: int, seed: int, skip_bad: bool) -> tuple[dict[str, list[Example]], bool]:
    """The first dialogues by split, and whether there are more.

    Raises:
        ValueError: there is none.
    """
    found: dict[str, list[Example]] = {split: [] for split in SPLITS}
    with closing(stream_examples(spec, seed=seed, skip_bad=skip_bad)) as stream:
        for split, example in islice(stream, count):
            found[split].append(example)
        more = next(stream, None) is not None
    if not any(found.values()):
        raise ValueError(f"{spec} holds no dialogue with a reply to learn from")
    return found, more


def _lengths(summary: Summary) -> list[Table]:
    table = Table(
        "", *(f"{split} ({count})" for split, count in summary.examples.items()), title="median, 95 %, longest"
    )
    for name in next(iter(summary.lengths.values())):
        cells = (", ".join(map(str, spread(lengths[name]))) for lengths in summary.lengths.values())
        table.add_row(name, *cells)
    return table


def _flags(summary: Summary) -> Table:
    table = Table("doubtful", "share", "found", "the first")
    for name, flag in summary.flags.items():
        table.add_row(name, f"{flag.share:.1%}", str(flag.found), _short(flag.first))
    return table


def _common(summary: Summary) -> Table:
    table = Table("times", "the most common replies")
    for reply, times in summary.common:
        table.add_row(str(times), _short(reply))
    return table


def _short(text: str) -> str:
    """As much of a text as a table has room for, without what a terminal or rich would take for an order."""
    text = printable(text)
    return escape(text if len(text) <= SHOWN else text[: SHOWN - 1] + "…")


def _spread_over(examples: list[Example], count: int) -> list[Example]:
    """So many examples, evenly from the whole list."""
    count = min(count, len(examples))
    return [examples[i * len(examples) // count] for i in range(count)]


def _dialogue(example: Example) -> str:
    """The example as it is read: what is known, what was said, and every good reply."""
    turns = len(example.turns)
    lines = [("known", line) for line in example.background]
    lines += [("user" if (turns - i) % 2 else "bot", turn) for i, turn in enumerate(example.turns)]
    lines += [("reply", reply) for reply in example.imitated]
    return "\n" + "\n".join(f"{name:>8}  {printable(text)}" for name, text in lines)
