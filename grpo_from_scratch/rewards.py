"""What a reply is worth: text scorers, persona facts, a verifiable task, and weighted sums of them.

A reward is ``reward(prompts, completions, **columns) -> list[float | None]``, TRL's shape, so TRL's own plug in.
``columns`` holds one entry for each completion of every field of its example (``dialogue.dataset.columns``). None means
"no score": the completion leaves every statistic and gets no gradient.

The scorers are the one home of sentence BLEU, chrF and ROUGE-L; all are in [0, 1] and give a blank text 0.
"""

import difflib
import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU, CHRF

from grpo_from_scratch.dialogue.reasoning import partly_right, right
from grpo_from_scratch.dialogue.words import distinct_pairs, named, words

Reward = Callable[..., list[float | None]]
ORDERS = 4  # BLEU counts n-grams of up to four words


def sentence_bleu(hypothesis: str, references: Sequence[str], *, tokenize: str = "13a") -> float:
    """Sentence BLEU with effective order (Papineni et al. 2002; sacrebleu, exponential smoothing), in [0, 1].

    Effective order leaves out n-grams longer than the hypothesis, so an identical short reply scores 1. The tokenizer,
    smoothing and brevity penalty are sacrebleu's; matches are counted here, because a reward meets the same references
    over and over and sacrebleu counts all their n-grams each time (70 against 210 microseconds for seven references).

    Args:
        hypothesis: the reply; a blank one scores 0.
        references: good replies, at least one.
        tokenize: a tokenizer of sacrebleu: "13a" needs blanks between words; Chinese takes "zh".

    Raises:
        ValueError: no references, or an unknown tokenizer.
    """
    _check_references(references)
    split = _bleu_tokenizer(tokenize)
    tokens, *reference_tokens = [split(text.rstrip()).split() for text in (hypothesis, *references)]
    counts = Counter(_ngrams(tokens))
    matches: dict[tuple[str, ...], int] = {}  # an n-gram's count in the reference that has it most often
    for other in reference_tokens:
        for ngram, count in Counter(filter(counts.__contains__, _ngrams(other))).items():
            matches[ngram] = max(count, matches.get(ngram, 0))
    correct = [0] * ORDERS
    for ngram, count in matches.items():
        correct[len(ngram) - 1] += min(count, counts[ngram])
    length = len(tokens)
    closest = min(map(len, reference_tokens), key=lambda other: (abs(other - length), other))
    total = [max(length - shorter, 0) for shorter in range(ORDERS)]
    score = BLEU.compute_bleu(correct, total, length, closest, smooth_method="exp", effective_order=True).score
    return min(score / 100, 1.0)  # sacrebleu's exp(log(100)) is an ulp above 100


def chrf(hypothesis: str, references: Sequence[str]) -> float:
    """chrF2 (Popović 2015; sacrebleu), in [0, 1]: character n-grams up to 6, recall twice as heavy; the best reference
    counts. Needs no tokenizer, so it suits every script.

    Raises:
        ValueError: no references.
    """
    _check_references(references)
    if not hypothesis.strip():
        return 0.0
    return _CHRF.sentence_score(hypothesis, list(references)).score / 100


def rouge_l(hypothesis: str, reference: str) -> float:
    """ROUGE-L F1 (Lin 2004; rouge-score), in [0, 1]: the longest common subsequence of ``words``.

    Plain English scores are rouge-score's own without stemming; its tokenizer would drop every other script.
    """
    return float(_ROUGE.score(reference, hypothesis)["rougeL"].fmeasure)  # an int 0 when a text has no word


def bleu_reward(prompts, completions, *, references, **columns) -> list[float]:
    """Sentence BLEU against the references."""
    return [sentence_bleu(text, good) for text, good in zip(completions, references, strict=True)]


def bleu_zh_reward(prompts, completions, *, references, **columns) -> list[float]:
    """Sentence BLEU against the references, of Chinese."""
    return [sentence_bleu(text, good, tokenize="zh") for text, good in zip(completions, references, strict=True)]


def chrf_reward(prompts, completions, *, references, **columns) -> list[float]:
    """chrF against the best of the references."""
    return [chrf(text, good) for text, good in zip(completions, references, strict=True)]


def rouge_l_reward(prompts, completions, *, references, **columns) -> list[float]:
    """ROUGE-L against the best of the references."""
    pairs = zip(completions, references, strict=True)
    return [max(rouge_l(text, reference) for reference in good) for text, good in pairs]


def facts_reward(prompts, completions, *, facts, **columns) -> list[float | None]:
    """1 if the reply names one of its example's facts, word for word, else 0; None where the example has no facts."""
    return [float(bool(named(text, known))) if known else None for text, known in zip(completions, facts, strict=True)]


def length_reward(prompts, completions, *, references, **columns) -> list[float]:
    """How close the reply comes to the length of a reference, in words: shorter / longer, of the nearest one."""
    scores = []
    for text, good in zip(completions, references, strict=True):
        length = len(words(text))
        pairs = [sorted((length, len(words(reference)))) for reference in good]
        scores.append(max(shorter / longer if longer else 0.0 for shorter, longer in pairs))
    return scores


def distinct_reward(prompts, completions, **columns) -> list[float]:
    """The share of the reply's word pairs that are not repeats (distinct-2 of a single text); 0 without a word."""
    return [distinct_pairs(text) for text in completions]


def sort_digits_reward(prompts, completions, *, references, **columns) -> list[float]:
    """The share of positions that hold the right digit, of the longer of the answer and the solution.

    So 1 is the exact solution and nothing else. Every word of the answer takes a position: leaving digits out, adding
    some, or trying several answers each lowers the score.
    """
    scores = []
    for text, (solution, *_) in zip(completions, references, strict=True):
        answer, digits = text.split(), solution.split()
        right = sum(word == digit for word, digit in zip(answer, digits, strict=False))
        scores.append(right / max(len(answer), len(digits)))
    return scores


def reasoning_reward(prompts, completions, *, item, **columns) -> list[float]:
    """1 for a right answer to a reasoning task's question and nothing around it, else 0 (``dialogue.reasoning``)."""
    return [right(question, text) for question, text in zip(item, completions, strict=True)]


def reasoning_partial_reward(prompts, completions, *, item, **columns) -> list[float]:
    """A reasoning task's own score, with partial credit, less what nonsense earns (``dialogue.reasoning``)."""
    return [partly_right(question, text) for question, text in zip(item, completions, strict=True)]


REWARDS: dict[str, Reward] = {
    "bleu": bleu_reward,
    "bleu_zh": bleu_zh_reward,
    "chrf": chrf_reward,
    "rouge_l": rouge_l_reward,
    "facts": facts_reward,
    "length": length_reward,
    "distinct": distinct_reward,
    "sort_digits": sort_digits_reward,
    "reasoning": reasoning_reward,
    "reasoning_partial": reasoning_partial_reward,
}


@dataclass(frozen=True)
class WeightedSum:
    """A reward: the weighted sum of named rewards.

    A part without a score (None or NaN) leaves the sum, and the weights of the others grow so that their absolute sum
    stays what it was: a missing score is not a score of 0, and examples stay on one scale. None if no part has one.
    """

    parts: tuple[tuple[str, float], ...]  # a name of REWARDS and its weight

    def __call__(self, prompts, completions, **columns) -> list[float | None]:
        scores = [REWARDS[name](prompts, completions, **columns) for name, _ in self.parts]
        weights = [weight for _, weight in self.parts]
        return [_weighted_sum(weights, row) for row in zip(*scores, strict=True)]


def parse_reward(spec: str) -> Reward:
    """A reward from its name ("bleu") or a weighted sum ("bleu:0.8,facts:0.2"; without a weight, 1).

    Raises:
        ValueError: an unknown name (the nearest are named), a name twice, a weight that is not a finite number, or
            nothing but weights of 0.
    """
    parts: dict[str, float] = {}
    for part in spec.split(","):
        name, colon, weight = (text.strip() for text in part.partition(":"))
        if name not in REWARDS:
            nearest = difflib.get_close_matches(name, REWARDS, n=3) or REWARDS
            raise ValueError(f"unknown reward {name!r}; the nearest valid: {', '.join(nearest)}")
        if name in parts:
            raise ValueError(f"reward {name!r} stands twice in {spec!r}; give it one weight")
        try:
            parts[name] = float(weight) if colon else 1.0
        except ValueError:
            parts[name] = math.nan
        if not math.isfinite(parts[name]):
            raise ValueError(f"the weight of reward {name!r} must be a finite number, got {weight!r}")
    if parts == {spec.strip(): 1.0}:
        return REWARDS[spec.strip()]
    if not any(parts.values()):
        raise ValueError(f"every weight in {spec!r} is 0, so no reply would be better than another")
    return WeightedSum(tuple(parts.items()))


def score(reward: Reward, prompts: Sequence[str], completions: Sequence[str], columns: dict[str, list]) -> torch.Tensor:
    """Run a reward over a batch of completions.

    Args:
        reward: the reward.
        prompts, completions: texts, B each.
        columns: further fields, lists of B each.

    Returns:
        float32 of shape (B,); NaN where the reward gave None or NaN.

    Raises:
        ValueError: lists of unequal length, a number of scores other than B, a score that is not a number, or an
            infinite one (naming the rows).
        RuntimeError: the reward raised; names the completion.
    """
    count = len(completions)
    for name, values in {"prompts": prompts, **columns}.items():
        if len(values) != count:
            raise ValueError(f"{count} completions, but {len(values)} entries in {name}")
    try:
        scores = list(reward(prompts, completions, **columns))
    except Exception as error:
        row = _first_failing(reward, prompts, completions, columns)
        where = "" if row is None else f" on completion {row}, {completions[row]!r}"
        raise RuntimeError(f"reward {_name(reward)} failed{where}: {type(error).__name__}: {error}") from error
    if len(scores) != count:
        raise ValueError(f"reward {_name(reward)} gave {len(scores)} scores for {count} completions")
    result = torch.tensor([_number(reward, row, value) for row, value in enumerate(scores)], dtype=torch.float32)
    infinite = result.isinf().nonzero()[:, 0].tolist()
    if infinite:
        raise ValueError(f"reward {_name(reward)} gave an infinite score for completions {infinite}; give None instead")
    return result


class _RougeTokenizer:
    tokenize = staticmethod(words)


_CHRF = CHRF()
_ROUGE = RougeScorer(["rougeL"], tokenizer=_RougeTokenizer())


@functools.cache
def _bleu_tokenizer(name: str) -> Callable[[str], str]:
    if name not in BLEU.TOKENIZERS:
        raise ValueError(f"unknown tokenizer {name!r}; sacrebleu has {', '.join(BLEU.TOKENIZERS)}")
    return BLEU(tokenize=name).tokenizer  # remembers the texts it has split


def _check_references(references: Sequence[str]) -> None:
    if isinstance(references, str) or not references:  # a text would be taken for a list of characters
        raise ValueError(f"expected a list of at least one reference, got {references!r}")


def _ngrams(tokens: list[str]) -> Iterator[tuple[str, ...]]:
    return itertools.chain.from_iterable(
        zip(*(tokens[i:] for i in range(n)), strict=False) for n in range(1, ORDERS + 1)
    )


def _weighted_sum(weights: list[float], scores: Sequence[float | None]) -> float | None:
    present = [(w, s) for w, s in zip(weights, scores, strict=True) if s is not None and not math.isnan(s)]
    kept = sum(abs(weight) for weight, _ in present)
    if kept == 0:
        return None
    return sum(weight * value for weight, value in present) * sum(map(abs, weights)) / kept


def _number(reward: Reward, row: int, value) -> float:
    try:
        return math.nan if value is None else float(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"reward {_name(reward)} gave {value!r} for completion {row}; expected a number") from error


def _first_failing(reward: Reward, prompts, completions, columns: dict[str, list]) -> int | None:
    """The first completion on which the reward raises by itself; None if it only raises on the batch."""
    for i in range(len(completions)):
        try:
            reward([prompts[i]], [completions[i]], **{name: [values[i]] for name, values in columns.items()})
        except Exception:
            return i
    return None


def _name(reward: Reward) -> str:
    return getattr(reward, "__name__", repr(reward))
