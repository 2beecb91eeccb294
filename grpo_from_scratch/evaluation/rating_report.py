"""What ratings say: of the policies, of a preference between two of them, and of the automatic metrics."""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from grpo_from_scratch.dialogue.words import words
from grpo_from_scratch.evaluation.agreement import SCALE
from grpo_from_scratch.evaluation.intervals import Interval, bootstrap, clustered_mean
from grpo_from_scratch.evaluation.ratings import ASPECTS, Item, RatingSession, Scores
from grpo_from_scratch.rewards import facts_reward, rouge_l, sentence_bleu

COLUMNS = (*ASPECTS, "overall")  # overall: the mean of the aspects
FEW = 10  # contexts; from fewer, a bootstrap interval holds the truth less often than it says


# reply, references, facts -> a number, or None where the reply cannot be scored
Metric = Callable[[str, Sequence[str], Sequence[str]], float | None]
METRICS: dict[str, Metric] = {
    "BLEU": lambda reply, references, facts: sentence_bleu(reply, references) if references else None,
    "ROUGE-L": lambda reply, references, facts: max((rouge_l(reply, text) for text in references), default=None),
    "words": lambda reply, references, facts: len(words(reply)),
    "facts": lambda reply, references, facts: facts_reward([""], [reply], facts=[facts])[0],
}


@dataclass(frozen=True)
class Preference:
    """Which of two policies raters prefer, from pairs: one rater's ratings of both policies' replies to one context.

    Attributes:
        share: of pairs in which the first has the higher overall rating; a tie is half a win.
        differences: mean rating of the first − that of the second, by aspect and "overall".
        pairs, contexts: how many there are.
        note: what to be careful about; empty where there is nothing.
    """

    share: Interval
    differences: dict[str, Interval]
    pairs: int
    contexts: int
    note: str


def share_of_wins(first: Sequence[float], second: Sequence[float], contexts: Sequence, *, seed: int = 0) -> Interval:
    """The share of pairs in which ``first`` is rated higher than ``second``, ties half, with its 95 % interval from a
    bootstrap over contexts. Arguments: (pairs,) each; a pair with a NaN is left out."""
    difference = (np.asarray(first, dtype=float) - np.asarray(second, dtype=float)).round(9)  # means may miss by an ulp
    won = np.where(np.isnan(difference), np.nan, (np.sign(difference) + 1) / 2)
    return clustered_mean(won, contexts, least=0, most=1, seed=seed)


def preference(session: RatingSession, first: str, second: str, *, seed: int = 0) -> Preference:
    """Compare two policies of a session by the ratings it has so far; several replies of a policy to one context count
    as their mean.

    Raises:
        ValueError: a policy that wrote no reply of the session.
    """
    check_policies(session, (first, second))
    replies = defaultdict(lambda: defaultdict(list))
    for rater, context, policy, scores in _rows(session):
        replies[rater, context][policy].append(scores)
    both = {pair: by for pair, by in replies.items() if first in by and second in by}
    contexts = [context for _, context in both]
    a, b = (
        np.array([np.mean(by[name], axis=0) for by in both.values()]).reshape(-1, len(COLUMNS))
        for name in (first, second)
    )  # (pairs, COLUMNS)
    width = SCALE[-1] - SCALE[0]
    differences = {
        name: clustered_mean(values, contexts, least=-width, most=width, seed=seed)
        for name, values in zip(COLUMNS, (a - b).T, strict=True)
    }
    count = len(set(contexts))
    return Preference(share_of_wins(a[:, -1], b[:, -1], contexts, seed=seed), differences, len(both), count, few(count))


def few(contexts: int) -> str:
    """A sentence about too few contexts, or none."""
    if contexts >= FEW:
        return ""
    return (
        f"{contexts} rated context{'s' * (contexts != 1)}: fewer than {FEW} say little, and their intervals are rough"
    )


def policies(session: RatingSession) -> list[str]:
    """The policies whose replies the session has, by name."""
    return sorted({name for entry in session.key["items"].values() for name in entry["policies"]})


def check_policies(session: RatingSession, names: Sequence[str]) -> None:
    known = policies(session)
    for name in names:
        if name not in known:
            raise ValueError(f"the session has no replies of {name!r}; it has {', '.join(known)}")


def policy_means(session: RatingSession, *, seed: int = 0) -> dict[str, dict[str, Interval]]:
    """{policy: {aspect or "overall": mean rating with its 95 % interval from a bootstrap over contexts}}."""
    rows = _rows(session)
    means = {}
    for policy in policies(session):
        mine = [(context, scores) for _, context, name, scores in rows if name == policy]
        contexts = [context for context, _ in mine]
        scores = np.array([scores for _, scores in mine]).reshape(-1, len(COLUMNS))
        means[policy] = {
            name: clustered_mean(values, contexts, least=SCALE[0], most=SCALE[-1], seed=seed)
            for name, values in zip(COLUMNS, scores.T, strict=True)
        }
    return means


def metric_correlations(
    session: RatingSession, metrics: Mapping[str, Metric] = METRICS, *, seed: int = 0
) -> dict[str, dict[str, Interval]]:
    """How well each automatic metric orders the replies as people do: {metric: {aspect or "overall": Spearman's ρ}}.

    A reply's rating is its mean over raters. The 95 % intervals are from a bootstrap over contexts. NaN where a metric
    or a rating is the same for every reply; a reply that a metric cannot score (no references, no facts) is left out.
    """
    ratings = defaultdict(list)
    for (_, id), scores in session.ratings().items():
        ratings[id].append(_columns(scores))
    rated = [item for item in session.items if item.id in ratings]
    contexts = [_context(item) for item in rated]
    means = np.array([np.mean(ratings[item.id], axis=0) for item in rated]).reshape(-1, len(COLUMNS))
    found = {}
    for name, metric in metrics.items():
        entries = [session.key["items"][item.id] for item in rated]
        scores = [metric(item.reply, e["references"], e["facts"]) for item, e in zip(rated, entries, strict=True)]
        found[name] = {
            column: _correlation(_by_context(scores, contexts), _by_context(values, contexts), seed)
            for column, values in zip(COLUMNS, means.T, strict=True)
        }
    return found


def spearman(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Spearman's ρ over the last two dimensions (contexts, replies), NaN left out in pairs; NaN without spread.

    scipy.stats.spearmanr's value, for many resamples at once.
    """
    x, y = (a.reshape(*a.shape[:-2], -1) for a in (x, y))
    known = ~(np.isnan(x) | np.isnan(y))
    count = np.maximum(known.sum(-1, keepdims=True), 1)
    ranks = [rankdata(np.where(known, a, np.nan), axis=-1, nan_policy="omit") for a in (x, y)]
    ranks = [np.where(known, r, 0.0) for r in ranks]
    x, y = (np.where(known, r - r.sum(-1, keepdims=True) / count, 0.0) for r in ranks)
    spread = np.sqrt((x**2).sum(-1) * (y**2).sum(-1))
    return np.divide((x * y).sum(-1), spread, out=np.full(spread.shape, np.nan), where=spread > 0)


def _correlation(scores: np.ndarray, ratings: np.ndarray, seed: int) -> Interval:
    if not scores.size:
        return Interval(np.nan)
    found = bootstrap(spearman, (np.zeros(len(scores)), (scores, ratings)), count=1000, seed=seed)
    # a resample without spread may be anything, and a correlation lies within [−1, 1]
    return dataclasses.replace(found, low=float(np.clip(found.low, -1, 1)), high=float(np.clip(found.high, -1, 1)))


def _rows(session: RatingSession) -> list[tuple[str, tuple, str, list[float]]]:
    """(rater, context, policy, COLUMNS) of each rating; of a reply that several policies wrote, once for each."""
    items = {item.id: item for item in session.items}
    return [
        (rater, _context(items[id]), policy, _columns(scores))
        for (rater, id), scores in session.ratings().items()
        for policy in session.key["items"][id]["policies"]
    ]


def _columns(scores: Scores) -> list[float]:
    return [*map(float, scores.values()), sum(scores.values()) / len(scores)]


def _context(item: Item) -> tuple:
    return item.background, item.context


def _by_context(values: Iterable[float | None], contexts: Iterable[tuple]) -> np.ndarray:
    """(contexts, replies), NaN where a context has fewer replies or a value is None."""
    rows = defaultdict(list)
    for value, context in zip(values, contexts, strict=True):
        rows[context].append(math.nan if value is None else value)
    width = max(map(len, rows.values()), default=0)
    return np.array([row + [math.nan] * (width - len(row)) for row in rows.values()]).reshape(len(rows), width)
