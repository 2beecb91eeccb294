"""What people read of a table: `report.md`, the README's block and the terminal's table.

Every number comes from the table; nothing here is measured or typed in.
"""

import json
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table as RichTable

from grpo_from_scratch.evaluation.claims import ARTICLE, NAMESAKE
from grpo_from_scratch.evaluation.figure import curves_figure, label
from grpo_from_scratch.evaluation.intervals import Interval
from grpo_from_scratch.evaluation.schema import ClaimSide, Difficulty, IntervalJSON, Row, Table
from grpo_from_scratch.evaluation.table import LEARNED_EV, first_value, last_mean

README_BEGIN, README_END = "<!-- table: begin (written by `grpo table`) -->", "<!-- table: end -->"
EV_COLUMN, NINETY = "critic's EV", "to 90 %, not 75 %"
EMA_STARTS = {"group_first": "the mean of the group's first batch", "global_mean": "the mean of all first rewards"}
FINAL_NAMES = {"bleu_greedy": "BLEU, greedy", "rouge_l": "ROUGE-L", "fact_accuracy": "facts right", "kl": "KL"}
METRICS = {"sample_efficiency": "sample efficiency, to 75 % of PPO's gain", "stability": "stability", "bleu": "BLEU"}

DEFINITIONS = f"""\
- **sample efficiency**: completions the headline PPO needs ÷ completions the algorithm needs to get 75 % of the way
  from the first held-out reward to PPO's final one (the mean of its last three evaluations), on the curve averaged over
  runs. "< x": it never got there. **Compute efficiency**: the same in CPU seconds, with critic, reference and warm-up.
- **stability**: mean of three, each 1 − dispersion ÷ the best row's gain, clipped to [0, 1]: interquartile range of the
  detrended changes between evaluations; mean of the worst quarter of drawdowns; interquartile range over runs from the
  same initial policy. "—" unless the row's gain is clear of 0.
- **BLEU**: corpus sacrebleu of sampled replies on held-out contexts. Sentence BLEU is what was trained on, so read fact
  accuracy and ROUGE-L beside it.
- **critic's EV**: the share of the reward's variance that PPO's critic explains, mean of the last three evaluations;
  below {LEARNED_EV:g} the critic did not learn.
- Averages over runs are interquartile means. Brackets are 95 % intervals of a bootstrap over RL seeds within each
  initial policy, PPO and the algorithm resampled apart."""


def number(value: float | None, digits: int = 2) -> str:
    return "—" if value is None or math.isnan(value) else f"{value:.{digits}f}".replace("-", "−")


def interval(fields: IntervalJSON, digits: int = 2) -> str:
    return Interval.from_json(_plain(fields)).format(digits)


def relative(fields: IntervalJSON) -> str:
    """A ratio as a relative change: 1.31 [1.05, 1.62] -> "+31 % [+5, +62]"."""
    ratio = Interval.from_json(_plain(fields))
    low, value, high = (100 * (end - 1) for end in (ratio.low, ratio.value, ratio.high))
    return "—" if math.isnan(value) else Interval(value, low, high, ratio.bound).format(0, sign="+", unit=" %")


def _plain(fields: IntervalJSON) -> dict:
    return {key: fields[key] for key in ("value", "low", "high", "bound") if key in fields}


def ev_text(series: Sequence[float | None] | None) -> str:
    """ "" for a row without a critic."""
    ev = last_mean(series)
    if math.isnan(ev):
        return ""
    return f"{number(ev)}: critic did not learn" if ev < LEARNED_EV else number(ev)


def main_cells(row: Row) -> dict[str, str]:
    """The columns that matter most, as text."""
    return {
        "algorithm": label(row["name"]),
        "sample efficiency": interval(row["sample_efficiency"]),
        NINETY: interval(row["sample_efficiency"]["fractions"]["0.9"]),
        "compute efficiency": interval(row["compute_efficiency"]),
        "stability": interval(row["stability"]),
        "BLEU": interval(row["bleu"], 3),
        "reward": interval(row["reward"], 3),
        EV_COLUMN: ev_text(row["ev"]),
    }


def learning_cells(row: Row) -> dict[str, str]:
    """How it got there: other targets, what stability is made of, when it settled."""
    fractions, components = row["sample_efficiency"]["fractions"], row["stability"]["components"]
    rate = row["learning_rate"]
    return {
        "algorithm": label(row["name"]),
        "learning rate": "—" if rate is None else f"{rate:g}",
        "sample efficiency at 50 %": interval(fractions["0.5"]),
        "steady over time": interval(components["across_time"]),
        "against falls": interval(components["risk"]),
        "over seeds": interval(components["across_seeds"]),
        "updates to 90 % of its own gain": interval(row["convergence_step"], 0),
    }


def final_cells(row: Row) -> dict[str, str]:
    """What came out, and what it took."""
    return {
        "algorithm": label(row["name"]),
        **{FINAL_NAMES.get(key, key): number(row[key], 3) for key in row if key not in Row.__annotations__},
        "completions": number(row["completions"], 0),
        "CPU s": number(row["cpu_seconds"], 0),
        "completions per CPU s": number(row["samples_per_second"], 0),
    }


def markdown_table(cells: Iterable[dict[str, str]]) -> str:
    cells = list(cells)
    lines = [list(cells[0]), ["---"] * len(cells[0]), *(list(row.values()) for row in cells)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def claim_cells(part: Difficulty) -> list[dict[str, str]]:
    """The article's claims as relative changes, beside what was measured."""

    def measured(side: ClaimSide) -> str:
        change = relative(side)
        return side["verdict"] if change == "—" else f"{change}: {side['verdict']}"

    return [
        {
            "claim": METRICS[claim["metric"]],
            "the article": f"{claim['claimed_from']:g} → {claim['claimed_to']:g} ({claim['claimed'] - 1:+.0%})",
            "cluster EMA, what it describes": measured(claim[ARTICLE]),
            "GRPO, what the name means": measured(claim[NAMESAKE]),
        }
        for claim in part["claims"]
    ]


def explain(part: Difficulty) -> str:
    """When a group mean beats a critic: five sentences with this difficulty's numbers."""
    start = first_value(part["icc"])
    if math.isnan(start):
        return "No row measured the ICC here, so there is no noise ratio to give."
    group = part["group_size"]
    return " ".join(
        (
            "A group mean is a critic nobody has to train: it removes the share of the reward's variance that lies "
            f"between prompts, the ICC, which was {number(start)} over the first updates of the fine-tuned policy and "
            f"{number(last_mean(part['icc']))} over the last.",
            "At a fixed policy and shape, with unbiased scaling, a global constant baseline has about "
            f"(1 − 1/G)/(1 − ICC) = {number(part['noise_ratio_to_constant'])} times the gradient noise of a mean over "
            f"G = {group} answers, if score norms are unrelated to reward and prompt and noise dominates; so at equal "
            f"G a group helps roughly when ICC > 1/G, and here {number(start)} is "
            f"{'more' if start > 1 / group else 'not more'} than {1 / group:.3g}.",
            _critic_sentence(part),
            _measured_sentence(part),
            "The ratio is a local diagnostic of gradient noise at one policy, not a law of learning speed: it drifts "
            "as the policy is trained, and leaves out std-normalised advantages, length normalisation and clipping.",
        )
    )


def _critic_sentence(part: Difficulty) -> str:
    ratio, ratios, ev = part["first_order_noise_ratio"], part["noise_ratios"], last_mean(part["ev"])
    if ratio is None:
        return "No critic was measured beside it here, so how much of that noise one would have left is not known."
    failed = " (the critic did not learn)" if ev < LEARNED_EV else ""
    return (
        "A critic with explained variance EV has about (1 − EV) of that noise, and the headline PPO's came to "
        f"EV = {number(ev)}{failed}; with ICC and EV after the same completions the first-order ratio goes from "
        f"{number(first_value(ratios))} to {number(last_mean(ratios))}, median {number(ratio)}, so the "
        f"{'group mean' if ratio > 1 else 'critic'} should be the quieter of the two."
    )


def _measured_sentence(part: Difficulty) -> str:
    row = next((row for row in part["rows"] if row["algorithm"] == NAMESAKE), None)
    if row is None:
        return "GRPO itself was not measured here."
    return (
        f"Measured beside it, GRPO's sample efficiency against that PPO is {interval(row['sample_efficiency'])}, and "
        f"its compute efficiency, where the critic's own cost counts too, {interval(row['compute_efficiency'])}."
    )


def provenance(table: Table) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in table["versions"].items())
    kept = table["config"].get("kept_runs", 0)
    earlier = f", {kept} runs kept from an earlier start" if kept else ""
    return (
        f"Measured by `{table['command']}` in {table['wall_seconds'] / 60:.1f} minutes "
        f"({table['cpu_seconds'] / 60:.1f} CPU-minutes in all{earlier}); source {table['source_hash']}; {versions}."
    )


def warnings(table: Table) -> list[str]:
    """What a reader must know before any number."""
    said = []
    if table["config"]["quick"]:
        said.append(
            "**Indicative only**: a quick run has too few seeds and updates to judge a claim; with two runs an "
            "interval is little more than the distance between them."
        )
    rows = [row for part in table["difficulties"].values() for row in part["rows"]]
    if any(row["reward"]["low"] is None for row in rows if row["algorithm"] != "untrained"):
        said.append("A row with a single run on some initial policy has no interval: nothing shows its spread.")
    if not table["config"]["data"].startswith("embedded"):
        said += [_weakness(table, name, part) for name, part in table["difficulties"].items()]
    return said


def _weakness(table: Table, name: str, part: Difficulty) -> str:
    rows = [row for row in part["rows"] if row["bleu"]["value"] is not None]
    best = max(rows, key=lambda row: row["bleu"]["value"], default=None)
    scores = ""
    if best:
        scores = f": the best row, {label(best['name'])}, has corpus BLEU {interval(best['bleu'], 3)}"
        before = next((row for row in rows if row["algorithm"] == "untrained"), None)
        if before:
            scores += f", the policy before RL {interval(before['bleu'], 3)}"
    return (
        f"On real data (`{name}`) a policy of {table['config']['parameters'] / 1e6:.2f} M parameters is weak{scores}. "
        "Compare the rows with one another; their level says nothing about what a real model would reach."
    )


def _difficulty_section(name: str, part: Difficulty) -> str:
    seeds = sorted({(row["seeds"], row["sft_seeds"]) for row in part["rows"] if row["algorithm"] != "untrained"})
    runs = " or ".join(f"{n} runs on {k} initial polic{'y' if k == 1 else 'ies'}" for n, k in seeds)
    over_time = [
        f"- {what}: " + (", ".join(number(v) for v in series) if series else "not measured")
        for what, series in (
            ("ICC of the groups", part["icc"]),
            ("EV of the headline's critic", part["ev"]),
            ("first-order noise ratio, that critic's over the group mean's", part["noise_ratios"]),
        )
    ]
    return "\n\n".join(
        (
            f"## {name}",
            f"{runs} for each row." if runs else "Only the policy before RL.",
            markdown_table(main_cells(row) for row in part["rows"]),
            "### The article's claims",
            markdown_table(claim_cells(part)),
            "### When does a group mean beat a critic?",
            explain(part),
            "At each evaluation:\n\n" + "\n".join(over_time),
            "### How each row learned",
            markdown_table(learning_cells(row) for row in part["rows"]),
            "### What came out, and what it took",
            markdown_table(final_cells(row) for row in part["rows"]),
        )
    )


def _method(table: Table) -> str:
    swept = ", ".join(f"{name}: on {where}" for name, where in table["config"]["swept_on"].items())
    lines = [
        DEFINITIONS,
        "- **settings**: every row's learning rate and passes, and PPO's critic and its warm-up, were searched by "
        f"`grpo sweep` on tuning seeds and tuning dialogues ({swept}).",
    ]
    rows = [row for part in table["difficulties"].values() for row in part["rows"] if row["algorithm"] == ARTICLE]
    if rows:
        preset = rows[0]["preset"]
        lines.append(
            f"- **cluster EMA** is the article's: {preset['num_groups']} semantic groups over all prompts and "
            f"α = {preset['alpha']:g}. It does not say where a baseline starts; here it is "
            f"{EMA_STARTS[preset['ema_init']]}."
        )
    return "\n".join(lines)


def render_report(table: Table) -> str:
    """`report.md`."""
    verdicts = [f"- {METRICS[metric]}: **{verdict}**" for metric, verdict in table["verdicts"].items()]
    return "\n\n".join(
        (
            "# PPO against GRPO, measured",
            provenance(table),
            *(f"> {line}" for line in warnings(table)),
            f"## The article's claims, in one line each{', indicative' if table['config']['quick'] else ''}",
            "\n".join(verdicts),
            "![Held-out reward against completions and against CPU seconds](curves.png)",
            *(_difficulty_section(name, part) for name, part in table["difficulties"].items()),
            "## How each number is defined",
            _method(table),
        )
    ) + "\n"  # fmt: skip


def render_readme(table: Table) -> str:
    """The README's block, markers included: the rows, the claims and where they come from."""
    parts = [README_BEGIN]
    for name, part in table["difficulties"].items():
        parts += [f"**{name}**", markdown_table(main_cells(row) for row in part["rows"])]
        parts.append(markdown_table(claim_cells(part)))
    return "\n\n".join((*parts, *warnings(table), provenance(table), README_END))


def replace_block(readme: str, block: str) -> str:
    """The README with its block replaced.

    Raises:
        ValueError: the README does not have both markers once.
    """
    pattern = re.escape(README_BEGIN) + ".*?" + re.escape(README_END)
    if len(re.findall(pattern, readme, flags=re.S)) != 1:
        raise ValueError(f"README.md must hold {README_BEGIN!r} and {README_END!r} once, in this order.")
    return re.sub(pattern, lambda _: block, readme, flags=re.S)


def terminal_tables(table: Table) -> list[RichTable]:
    """For ``rich.print``, one table for each difficulty; intervals stand below their values, to fit 80 columns."""
    tables = []
    for name, part in table["difficulties"].items():
        cells = [main_cells(row) for row in part["rows"]]
        shown = RichTable(title=name, box=SIMPLE, padding=0, collapse_padding=True)
        columns = [column for column in cells[0] if column not in ("reward", NINETY)]
        for column in columns:
            side = "left" if column == "algorithm" else "right"
            shown.add_column(column.replace(" ", "\n"), justify=side, no_wrap=column != EV_COLUMN)
        for row in cells:
            shown.add_row(*(escape(row[column].replace(" [", "\n[")) for column in columns))
        tables.append(shown)
    return tables


def write_report(table: Table, folder: Path) -> None:
    """Write `table.json`, `report.md` and `curves.png` into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(table, indent=1, ensure_ascii=False, allow_nan=False)
    (folder / "table.json").write_text(text + "\n", encoding="utf-8")
    (folder / "report.md").write_text(render_report(table), encoding="utf-8")
    curves_figure(table).savefig(folder / "curves.png", dpi=150)
