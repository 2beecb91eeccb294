"""``grpo rate``: rate replies blind in the terminal, and see what the ratings say."""

import getpass
import hashlib
import itertools
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from tqdm import tqdm

from grpo_from_scratch.cli.app import JudgedOn, SkipBad, Threads, app, data_of, plain_errors, printable
from grpo_from_scratch.dialogue.dataset import encode_prompt
from grpo_from_scratch.dialogue.readers import load_examples
from grpo_from_scratch.distributed.randomness import key_seed
from grpo_from_scratch.evaluation.agreement import SCALE, krippendorff_alpha, weighted_kappa
from grpo_from_scratch.evaluation.experiment import MAX_NEW_TOKENS
from grpo_from_scratch.evaluation.intervals import Interval
from grpo_from_scratch.evaluation.rating_report import (
    COLUMNS,
    metric_correlations,
    policies,
    policy_means,
    preference,
)
from grpo_from_scratch.evaluation.ratings import (
    ASPECTS,
    RatingSession,
    Reply,
    Scores,
    Sitting,
    parse_scores,
    ratings_matrix,
    replies_to,
    transcript,
)
from grpo_from_scratch.policy.loading import load_policy
from grpo_from_scratch.policy.sampling import sample
from grpo_from_scratch.training.config import TrainConfig

CELL = 22  # characters of a table's column: "−0.95 [−1.00, −0.95]" and a gap


@app.command()
def rate(
    folder: Annotated[Path, typer.Argument(help="Of the session: a new one to make it, or where it is.")],
    policy: Annotated[
        list[str] | None,
        typer.Option(help="Make a session of this policy's replies: a Hugging Face folder or hub id. Repeat for more."),
    ] = None,
    data: JudgedOn = "",
    count: Annotated[int, typer.Option(help="Held-out dialogues that each policy answers.", min=1)] = 20,
    max_new_tokens: Annotated[
        int, typer.Option(help="Longest reply of a policy; a longer one is shown cut.", min=1)
    ] = MAX_NEW_TOKENS,
    replies: Annotated[
        Path | None,
        typer.Option(help='Make a session of a JSONL file: {"policy": …, "context": …, "reply": …} on each line.'),
    ] = None,
    rater: Annotated[str, typer.Option(help="Your name, the same each time. Default: your login.")] = "",
    report: Annotated[
        bool, typer.Option("--report", help="Say what the ratings say so far, and which policy wrote what.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of the replies and of each rater's order.")] = 0,
    threads: Threads = 1,
    skip_bad: SkipBad = False,
) -> None:
    """Rate replies for fluency, relevance and informativeness, 0 to 5, not knowing which policy wrote which.

    `grpo rate runs/rating --policy A --policy B` makes a session and begins; the same command goes on later, and
    another **--rater** has an order of their own. Each rating is on the disk before the next question.
    """
    with plain_errors(kept="every rating so far is kept, and the same command goes on from there"):
        torch.set_num_threads(threads)
        if policy and replies:
            raise ValueError("a session is made of --policy or of --replies, not of both")
        if policy:
            data = data_of(policy, data)
            made_with = {"policies": policy, "data": data, "count": count, "seed": seed, "longest": max_new_tokens}
        else:
            made_with = {"replies": _fingerprint(replies), "seed": seed} if replies else {}
        if (folder / "session.json").exists():
            session = RatingSession(folder)
            if made_with and session.key["made_with"] != made_with:
                raise ValueError(
                    f"{folder} holds a session made of something else: leave the options that make one out to go on "
                    "with it, or take another folder"
                )
        elif made_with:
            made = _sampled(policy, data, count, max_new_tokens, seed, skip_bad) if policy else read_replies(replies)
            session = RatingSession.create(folder, made, seed=seed, made_with=made_with)
        else:
            raise ValueError(
                f"there is no rating session in {folder}; make one: --policy A --policy B, or --replies FILE"
            )
        if report:
            for line in report_lines(session):
                typer.echo(line)
        else:
            _sit(Sitting(session, rater or _login()))


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container, under a number that has no name
        raise ValueError("this machine has no name for you; give one with --rater NAME") from None


def _sampled(names: list[str], data: str, count: int, longest: int, seed: int, skip_bad: bool) -> Iterator[Reply]:
    """Each policy's sampled reply to each held-out dialogue."""
    if len(set(names)) < len(names):
        raise ValueError("a policy stands twice; give each once")
    examples = load_examples(data, "report", count=count, skip_bad=skip_bad)
    for name in tqdm(names, desc="sampling replies", unit="policy"):
        model, tokenizer = load_policy(name)
        rollout = sample(
            model,
            tokenizer,
            [encode_prompt(example, tokenizer, TrainConfig.max_prompt_tokens) for example in examples],
            group_size=1,
            max_new_tokens=longest,
            temperature=1.0,
            seed=key_seed(seed, "replies to rate"),
        )
        yield from replies_to(examples, rollout.texts, name)


def _fingerprint(path: Path) -> str:
    if not path.is_file():
        raise FileNotFoundError(f"no file of replies {path}")
    return hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()


def read_replies(path: Path) -> Iterator[Reply]:
    """Replies of a UTF-8 file, one JSON object a line:

        {"policy": "A", "context": "hi" | ["hi", "hello", "how are you ?"], "reply": "fine !",
         "persona" | "knowledge": …, "references" | "response": …, "facts": …}

    The last three are optional, texts or lists of texts; without references there is no BLEU.

    Raises:
        ValueError: a bad line (file, line number and what was expected).
    """
    for number, line in enumerate(path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise ValueError("expected an object")
            context, name, text = _texts(record, "context"), record.get("policy"), record.get("reply")
            if not context or not isinstance(name, str) or not isinstance(text, str):
                raise ValueError('expected a "context", and texts for "policy" and "reply"')
            background = _texts(record, "persona", "knowledge")
            references = _texts(record, "references") or _texts(record, "response")
            yield Reply(name, context, text.strip(), background, references, _texts(record, "facts"))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None


def _texts(record: dict[str, Any], *names: str) -> tuple[str, ...]:
    values = [record.get(name) or [] for name in names]
    lists = [[value] if isinstance(value, str) else value for value in values]
    for name, texts in zip(names, lists, strict=True):
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise ValueError(f'"{name}" should be a text or a list of texts')
    return tuple(text for texts in lists for text in texts)


def _sit(sitting: Sitting) -> None:
    """Show, ask, save, until every reply is rated or the rater stops."""
    typer.echo(f"Rate {', '.join(ASPECTS)} from {SCALE[0]} (worst) to {SCALE[-1]} (best). b: back, q: stop.")
    answer = None
    while answer != "q":
        _show(sitting)
        answer = _answer(sitting)
        if isinstance(answer, dict):
            sitting.rate(answer)
        elif answer == "b":
            sitting.back()
    done = len(sitting.rated)
    typer.echo(f"{done} of {len(sitting.order)} replies rated by {sitting.rater}: {sitting.session.path}")


def _show(sitting: Sitting) -> None:
    if sitting.item is None:
        typer.echo("\nEvery reply is rated. Enter: stop, b: look at the last one again.")
        return
    typer.echo(f"\nReply {sitting.position + 1} of {len(sitting.order)}")
    for who, text in transcript(sitting.item):
        typer.echo(_line(who, text))
    typer.echo(typer.style(_line("B, reply", sitting.item.reply or "(nothing)"), bold=True))
    if before := sitting.rated.get(sitting.item.id):
        typer.echo(_line("so far", " ".join(map(str, before.values()))))


def _line(who: str, text: str) -> str:
    return f"  {who + ':':10}" + printable(text, keep="\n").replace("\n", "\n" + " " * 12)


def _answer(sitting: Sitting) -> Scores | str:
    """Scores, "b" or "q": asked until one of them is typed. The end of the input stops."""
    while True:
        try:
            typed = input(f"{' '.join(ASPECTS)}: " if sitting.item else "> ").strip().lower()
        except EOFError:
            typer.echo()
            return "q"
        if not sitting.item and typed != "b":
            return "q"
        if typed in ("b", "q"):
            return typed
        try:
            return parse_scores(typed)
        except ValueError as error:
            typer.echo(f"Not saved: {error}.")


def report_lines(session: RatingSession) -> Iterator[str]:
    """What the ratings say so far, as lines of text."""
    ratings = session.ratings()
    if not ratings:
        yield f"No ratings yet in {session.path}."
        return
    raters = sorted({rater for rater, _ in ratings})
    counts = (f"{name} ({sum(rater == name for rater, _ in ratings)} of {len(session.items)})" for name in raters)
    yield f"Raters: {', '.join(counts)}"
    yield from _table("Mean rating", policy_means(session))
    yield ""
    note = ""
    for first, second in itertools.combinations(policies(session), 2):
        found = preference(session, first, second)
        if not found.pairs:
            yield f"{first} and {second}: no dialogue yet in which somebody rated both."
            continue
        yield (
            f"{first} wins {found.share.format()} of its {found.pairs} pairs with {second} on {found.contexts} "
            f"contexts (a tie is half), and is {found.differences['overall'].format(sign='+')} better overall"
        )
        note = note or found.note
    if note:
        yield f"Note: {note}."
    yield from _agreement_lines(session, raters)
    yield from _table("Spearman's rho with", metric_correlations(session))


def _table(title: str, rows: dict[str, dict[str, Any]]) -> Iterator[str]:
    width = max(map(len, [title, *rows])) + 2
    yield ""
    yield title.ljust(width) + "".join(name.ljust(CELL) for name in COLUMNS)
    for name, cells in rows.items():
        yield name.ljust(width) + "".join(cells[column].format().ljust(CELL) for column in COLUMNS)


def _agreement_lines(session: RatingSession, raters: list[str]) -> Iterator[str]:
    if len(raters) < 2:
        yield "Agreement needs 2 raters; there is one."
        return
    measures = {"Krippendorff's alpha, ordinal": krippendorff_alpha}
    if len(raters) == 2:
        measures["quadratic kappa"] = lambda matrix: weighted_kappa(*matrix)
    for name, measure in measures.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            values = {aspect: measure(ratings_matrix(session, aspect)) for aspect in ASPECTS}
        shown = ", ".join(f"{aspect} {Interval(value).format()}" for aspect, value in values.items())
        reasons = "; ".join(dict.fromkeys(str(warning.message) for warning in caught))
        yield f"Agreement ({name}): {shown}" + (f" ({reasons})" if reasons else "")
