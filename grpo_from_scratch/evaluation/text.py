"""How good texts are: BLEU, ROUGE-L and distinct-n over a corpus, and a model's perplexity on it."""

import math
from collections.abc import Sequence

import torch
from sacrebleu.metrics import BLEU
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grpo_from_scratch.dialogue.words import words
from grpo_from_scratch.rewards import rouge_l


def _check_references(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    if not len(hypotheses):
        raise ValueError("No hypotheses to score: give at least one text.")
    if len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses)} hypotheses but {len(references)} lists of references: give one list each.")
    for i, (hypothesis, texts) in enumerate(zip(hypotheses, references, strict=True)):
        if not isinstance(hypothesis, str):
            raise ValueError(f"hypotheses[{i}] is a {type(hypothesis).__name__}, not a text; hypotheses come first.")
        if isinstance(texts, str):
            raise ValueError(f"references[{i}] is one text; give a list of texts for each hypothesis.")
        if not len(texts):
            raise ValueError(f"references[{i}] is empty; give hypothesis {i} at least one reference.")


def corpus_bleu(hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, tokenize: str = "13a") -> float:
    """Corpus BLEU in [0, 1] by sacrebleu (Post 2018, arXiv 1804.08771), without effective order.

    Counts are pooled over the corpus before the ratio. A corpus whose hypotheses all have fewer than four tokens has no
    4-grams and scores 0, even against itself; ``rewards.sentence_bleu`` is the one for single short texts.

    Args:
        hypotheses: N texts; an empty one matches nothing and counts for the brevity penalty.
        references: for each hypothesis a list of texts, as many as it has.
        tokenize: sacrebleu's tokenizer. "13a" splits on blanks and punctuation; Chinese needs "zh".

    Raises:
        ValueError: nothing to score, counts that differ, a hypothesis without references, an unknown tokenizer.
    """
    _check_references(hypotheses, references)
    if tokenize not in BLEU.TOKENIZERS:
        raise ValueError(f"Unknown tokenize {tokenize!r}; sacrebleu has {', '.join(BLEU.TOKENIZERS)}.")
    # sacrebleu wants the transpose: stream k holds the k-th reference of every hypothesis, None where there is none.
    streams = [[texts[k] if k < len(texts) else None for texts in references] for k in range(max(map(len, references)))]
    bleu = BLEU(tokenize=tokenize, force=True)  # force: generated text often has " ." at its end, no reason to warn
    return min(bleu.corpus_score(list(hypotheses), streams).score / 100, 1.0)  # 100 comes as 100.00000000000004


def corpus_rouge_l(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Mean over hypotheses of the best ROUGE-L any of its references gives, in [0, 1]. Arguments as ``corpus_bleu``."""
    _check_references(hypotheses, references)
    best = [max(rouge_l(h, text) for text in texts) for h, texts in zip(hypotheses, references, strict=True)]
    return sum(best) / len(best)


def distinct_n(texts: Sequence[str], n: int = 2) -> float:
    """Different n-grams / all n-grams over all texts, in [0, 1] (Li et al. 2016, arXiv 1510.03055).

    Tokens are ``dialogue.words``: of any script, without case and punctuation. 0 when no text has an n-gram.
    """
    if n < 1:
        raise ValueError(f"n is {n}; an n-gram has at least one token.")
    ngrams = [ngram for text in map(words, texts) for ngram in zip(*(text[i:] for i in range(n)), strict=False)]
    return len(set(ngrams)) / len(ngrams) if ngrams else 0.0


@torch.no_grad()
def perplexity(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], *, batch_size: int = 8
) -> float:
    """exp(total negative log-likelihood / number of predicted tokens): every token weighs the same.

    A text's first token (BOS, where the tokenizer adds one) is given, not predicted. The result does not depend on
    batch size or order. Dropout is off meanwhile.

    Raises:
        ValueError: a batch size below 1; no text with at least two tokens.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; it must be at least 1.")
    rows = sorted((ids for ids in (tokenizer(text)["input_ids"] for text in texts) if len(ids) > 1), key=len)
    if not rows:
        raise ValueError("No text has two tokens, so there is nothing to predict.")
    was_training, device = model.training, next(model.parameters()).device
    model.eval()
    total, count = 0.0, 0
    try:
        for first in range(0, len(rows), batch_size):
            batch = rows[first : first + batch_size]
            width = max(map(len, batch))
            # Padding is on the right, where a causal model never looks back from a real token; its id does not matter.
            ids = torch.tensor([row + [0] * (width - len(row)) for row in batch], device=device)  # (B, T)
            mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in batch], device=device)
            logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1].float()  # (B, T - 1, V)
            targets = torch.where(mask[:, 1:] > 0, ids[:, 1:], -100)
            loss = torch.nn.functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none")  # (B, T - 1)
            total += loss.double().sum().item()
            count += sum(map(len, batch)) - len(batch)
    finally:
        model.train(was_training)
    return math.exp(total / count)
