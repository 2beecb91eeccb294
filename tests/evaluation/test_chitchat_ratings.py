"""The ratings that come with chitchat-dataset: what the module says of them is counted here."""

import json
import sys
from collections import Counter

import pytest

from grpo_from_scratch.evaluation.chitchat_ratings import CHITCHAT_ASPECTS, chitchat_ratings


@pytest.fixture(scope="module")
def rated():
    pytest.importorskip("chitchat_dataset")
    return chitchat_ratings()


def test_chitchat_ratings_are_what_the_module_says(rated):
    assert len(rated) == 5988
    assert {score for conversation in rated for score in conversation.scores.values()} == set(range(1, 11))
    fives = [set(conversation.scores.values()) == {5} for conversation in rated]
    assert sum(fives) == 2920
    witty = Counter(conversation.scores["witty"] for conversation in rated)
    assert (witty[5], witty[4] + witty[6]) == (3294, 255)
    single = [five for conversation, five in zip(rated, fives, strict=True) if len(conversation.messages) == 1]
    assert len(single) == 2284 and sum(single) / len(single) == pytest.approx(0.697, abs=5e-4)


def test_chitchat_ratings_no_conversation_is_rated_twice(rated):
    """So no agreement can be computed. By texts and times: many people said "hi" and got "hello"."""
    from chitchat_dataset import Dataset

    said = Counter(json.dumps(conversation["messages"]) for conversation in Dataset().values())
    assert max(said.values()) == 1


def test_chitchat_ratings_first_conversation(rated):
    first = rated[0]
    assert first.messages[0] == "Hello How are you doing today?"
    assert first.scores == dict.fromkeys(CHITCHAT_ASPECTS, 10)


def test_chitchat_ratings_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "chitchat_dataset", None)
    with pytest.raises(ImportError, match=r"pip install 'grpo-from-scratch\[chitchat\]'"):
        chitchat_ratings()
