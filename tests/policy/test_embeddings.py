import json

import numpy as np
import pytest
import torch
from families import model_of, random_rollout, unpadded
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_from_scratch.policy.embeddings import TfidfEncoder, group_responses, hidden_state_embeddings, mean_hidden
from grpo_from_scratch.policy.logprobs import score_completions

pytestmark = pytest.mark.usefixtures("path")


def test_encode_equals_formula():
    """tf * (ln((1 + n) / (1 + df)) + 1), rows scaled to length 1, words ordered alphabetically."""
    texts = ["A cat, a dog", "a cat", "fish"]
    rows = np.array([[1, 2, 1, 1, 0], [0, 1, 1, 0, 0], [0, 0, 0, 0, 1]])  # columns: , a cat dog fish
    weighted = rows * (np.log(4 / (1 + np.array([1, 2, 2, 1, 1]))) + 1)
    expected = weighted / np.linalg.norm(weighted, axis=1, keepdims=True)
    np.testing.assert_allclose(TfidfEncoder().encode(texts), expected)


def test_encode_first_texts_fix_the_columns():
    encoder = TfidfEncoder()
    first = encoder.encode(["a cat", "a dog"])
    np.testing.assert_array_equal(encoder.encode(["a cat"])[0], first[0])
    assert encoder.encode(["something unseen", ""]).tolist() == [[0, 0, 0], [0, 0, 0]]


def test_encode_nothing_to_read():
    """KM-05: empty replies are zero rows, finite; a vocabulary is learnt later."""
    encoder = TfidfEncoder()
    assert encoder.encode(["", " "]).tolist() == [[0], [0]]
    assert encoder.encode(["a", "b"]).shape == (2, 2)


def test_encode_script_without_spaces():
    """Chinese replies that share characters are close, others are not."""
    rows = TfidfEncoder().encode(["我喜欢猫", "我喜欢狗", "明天下雨"])
    assert rows[0] @ rows[1] > 0.5 and rows[0] @ rows[2] == 0


@settings(deadline=None, max_examples=25)
@given(st.lists(st.text(max_size=12), min_size=1, max_size=5), st.lists(st.text(max_size=12), min_size=1, max_size=5))
def test_state_dict_round_trip(fitted, texts):
    encoder, restored = TfidfEncoder(), TfidfEncoder()
    encoder.encode(fitted)
    restored.load_state_dict(json.loads(json.dumps(encoder.state_dict())))
    np.testing.assert_array_equal(restored.encode(texts), encoder.encode(texts))


def test_hidden_state_embeddings_equals_plain_forward(model):
    """The mean over the states that have read part of the reply; a one-token reply keeps its prompt's."""
    rollout = random_rollout([4, 2], [[5, 1], [3]])
    embeddings = hidden_state_embeddings(model, rollout)
    for row, (prompt, completion) in enumerate(unpadded(rollout)):
        with torch.no_grad():
            ids = torch.tensor([prompt + completion[:-1]])
            states = model(input_ids=ids, output_hidden_states=True).hidden_states[-1][0]
        mean = states[len(prompt) :].mean(0) if len(completion) > 1 else states[-1]
        torch.testing.assert_close(embeddings[row], mean / mean.norm(), atol=1e-5, rtol=1e-5)
    assert embeddings.dtype == torch.float32 and not embeddings.requires_grad


def test_mean_hidden_of_scores():
    """A reference pass that scores can embed on the way."""
    model, rollout = model_of("llama"), random_rollout([4, 2], [[5, 1], [3]])
    hidden = score_completions(model, rollout, hidden=True).hidden
    torch.testing.assert_close(
        mean_hidden(hidden, rollout.completion_mask), hidden_state_embeddings(model, rollout), atol=1e-6, rtol=1e-5
    )


def test_group_responses_by_topic():
    responses = ["i love my cat", "rain again today", "my cat loves me", "cat , my cat", "today rain and rain"]
    groups = group_responses(responses, num_groups=2)
    assert sorted(groups.values()) == [
        ["i love my cat", "my cat loves me", "cat , my cat"],
        ["rain again today", "today rain and rain"],
    ]


def test_group_responses_any_encoder():
    class Lengths:
        def encode(self, texts):
            return [[float(len(text))] for text in texts]

    assert sorted(group_responses(["a", "bbbbbbbb", "c"], 2, Lengths()).values()) == [["a", "c"], ["bbbbbbbb"]]


def test_group_responses_few():
    """KM-02, KM-03: no more groups than distinct responses; none for none."""
    assert group_responses([]) == {}
    assert list(group_responses(["same", "same", "same"], 1).values()) == [["same"] * 3]
