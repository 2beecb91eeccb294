"""What all commands share: the app, options that several take, and how errors are told."""

import json
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from transformers.utils.logging import disable_progress_bar

from grpo_from_scratch.dialogue.corpus import DIFFICULTIES
from grpo_from_scratch.dialogue.readers import load_examples
from grpo_from_scratch.dialogue.tasks import TASKS

app = typer.Typer(
    help="Group Relative Policy Optimization from scratch: measure it against PPO, train with it, judge the result.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
)

Workers = Annotated[int, typer.Option(help="Runs at a time, each on one core.", min=1)]
SPEC_HELP = (
    "embedded[:mixed|even|hidden|0.3], jsonl:FILE, convai2:FILE, wizard:FILE, chitchat, "
    f"{', '.join(TASKS)} or reasoning:NAME."
)
Data = Annotated[str, typer.Option(help=SPEC_HELP, metavar="SPEC")]
JudgedOn = Annotated[
    str, typer.Option(help=f"{SPEC_HELP} Default: what the policy was trained on.", metavar="SPEC", show_default=False)
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Skip bad records of a data file, and say how many.")]
Threads = Annotated[int, typer.Option(help="Torch threads; two are often slower than one on a busy machine.", min=1)]
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def plain_errors(*, kept: str = "nothing was written") -> Iterator[None]:
    """What a user can mend is said in a sentence, without a traceback; Ctrl-C says what is kept."""
    disable_progress_bar()  # transformers' own, of loading weights
    warnings.showwarning = lambda message, *_, **__: typer.echo(f"note: {_safe(message)}", err=True)
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"\nStopped: {kept}.", err=True)
        raise typer.Exit(130) from None
    except (ValueError, OSError, ImportError, RuntimeError, FloatingPointError) as error:
        if os.environ.get("GRPO_TRACEBACK"):
            raise
        typer.echo(f"grpo{_rank()}: {_safe(error)}", err=True)
        raise typer.Exit(1) from None


def _safe(message: Exception | Warning) -> str:
    """What it says, which may quote a stranger's file, without orders to the terminal."""
    return printable(str(message), keep="\n")


def _rank() -> str:
    """Who speaks, in a job of several processes, whose messages share a terminal."""
    return f" (rank {os.environ['RANK']})" if int(os.environ.get("WORLD_SIZE", 1)) > 1 else ""


def printable(text: str, *, keep: str = "") -> str:
    """The text as it may go to a terminal: controls, which can move a cursor or turn a line round, are spelt out, but
    for those to ``keep``."""
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def data_of(policies: list[str], named: str) -> str:
    """The data to judge policies on: what is named, or else what they were trained on.

    ``grpo train`` leaves that in the folder above a policy, ``grpo sft`` within it; of other policies nobody knows, and
    they get the embedded dialogues.

    Raises:
        ValueError: nothing is named and they were trained on different data, or a record is damaged.
    """
    found = {named} if named else {_trained_on(Path(policy)) for policy in policies}
    if len(found) > 1:
        raise ValueError(f"these policies were trained on {' and '.join(sorted(found))}; name one with --data")
    return found.pop()


def _trained_on(policy: Path) -> str:
    for record in (policy / "sft.json", policy.parent / "config.json"):
        try:
            config = json.loads(record.read_text(encoding="utf-8")).get("config") if record.is_file() else None
        except (ValueError, AttributeError, RecursionError) as error:
            raise ValueError(f"{record} is damaged, so the policy's data are not known: give --data") from error
        if isinstance(config, dict) and isinstance(config.get("data"), str):
            return config["data"]
    return "embedded"


def parse_value(text: str, example: Any, name: str) -> Any:
    """The value that a text means for a setting whose default is ``example``."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    tree = {list: ("betas", "num_groups"), dict: ("device_map",)}
    named = name in tree.get(type(value), ())
    number = isinstance(example, float) and isinstance(value, int) and not isinstance(value, bool)
    if not (named or number or (type(value) is type(example) and name != "betas")):
        kinds = {"betas": "two numbers, [0.9, 0.95]", "device_map": 'a map in JSON, {"layer_0": "cuda:0", …}'}
        kind = kinds.get(name, f"a value like {json.dumps(example)}")
        raise ValueError(f"{name} takes {kind}, not {text!r}")
    return value


def parse_difficulties(text: str) -> tuple[str, ...]:
    """Names separated by commas, or ``all``."""
    names = DIFFICULTIES if text == "all" else tuple(name.strip() for name in text.split(","))
    for name in names:
        load_examples(f"embedded:{name}", "report", count=1)  # refuses an unknown one before anything runs
    return names
