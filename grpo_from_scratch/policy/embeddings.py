"""What a reply looks like as a vector: TF-IDF of its text, or the hidden states of a frozen model that read it.

An encoder is anything with ``encode(list[str]) -> array (N, D)``; a SentenceTransformer fits as it is.
"""

import re
from collections.abc import Sequence

import numpy as np
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from torch import Tensor, nn

from grpo_from_scratch.objective.groups import SemanticGroups
from grpo_from_scratch.policy.logprobs import hidden_states
from grpo_from_scratch.policy.rollout import Rollout

# Where a script writes no spaces (Chinese, Japanese), a character counts as a word, so that replies differ in them.
WORDS = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+|[^\w\s]")


class TfidfEncoder:
    """TF-IDF over words and marks, rows of length 1. The first texts it encodes fix its vocabulary and weights.

    A text without any known word becomes a row of zeros.
    """

    def __init__(self) -> None:
        self._vectorizer: TfidfVectorizer | None = None

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """(N,) texts -> (N, D) float64."""
        if self._vectorizer is None:
            counts = {word for text in texts for word in _words(text)}
            if not counts:
                return np.zeros((len(texts), 1))  # nothing to learn a vocabulary from yet
            self._vectorizer = _vectorizer(None).fit(texts)
        return self._vectorizer.transform(texts).toarray()

    def state_dict(self) -> dict:
        """JSON-able; empty before the first fit."""
        if self._vectorizer is None:
            return {}
        words = self._vectorizer.get_feature_names_out().tolist()
        return {"words": words, "idf": self._vectorizer.idf_.tolist()}

    def load_state_dict(self, state: dict) -> None:
        """Go back to the vocabulary and weights of ``state_dict``."""
        self._vectorizer = None
        if state:
            self._vectorizer = _vectorizer({word: index for index, word in enumerate(state["words"])})
            self._vectorizer.idf_ = np.array(state["idf"])


def hidden_state_embeddings(model: nn.Module, rollout: Rollout) -> Tensor:
    """Mean last hidden state over each reply's tokens, scaled to length 1: (B, H) float32."""
    with torch.no_grad():
        return mean_hidden(hidden_states(model, rollout), rollout.completion_mask)


def mean_hidden(hidden: Tensor, mask: Tensor) -> Tensor:
    """``Scores.hidden`` (B, T, H), completion mask (B, T) -> mean over each reply, of length 1: (B, H) float32.

    The state that predicts token t has read the tokens before it. So the one at t = 0 knows only the prompt and is left
    out, and no state has read the last token; a reply of one token is represented by its prompt.
    """
    read = mask.clone()
    read[:, 0] &= mask.sum(1) == 1
    total = torch.where(read[..., None], hidden.float(), 0).sum(1)  # (B, H); the scale falls out with the count
    return nn.functional.normalize(total, dim=-1)


def group_responses(responses: Sequence[str], num_groups: int = 3, encoder=None) -> dict[int, list[str]]:
    """Responses by semantic group: KMeans over their embeddings, TF-IDF's by default.

    Returns:
        {group id: its responses in their order}; fewer groups when there are fewer distinct responses.
    """
    if not responses:
        return {}
    embeddings = np.asarray((encoder or TfidfEncoder()).encode(list(responses)))
    groups: dict[int, list[str]] = {}
    for group, response in zip(SemanticGroups(num_groups).assign(embeddings).tolist(), responses, strict=True):
        groups.setdefault(group, []).append(response)
    return dict(sorted(groups.items()))


def _vectorizer(vocabulary: dict[str, int] | None) -> TfidfVectorizer:
    return TfidfVectorizer(analyzer=_words, vocabulary=vocabulary)


def _words(text: str) -> list[str]:
    return WORDS.findall(text.lower())
