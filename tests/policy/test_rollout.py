from dataclasses import replace

import pytest
import torch
from families import numbered_tokenizer, random_rollout, unpadded

from grpo_from_scratch.policy.rollout import concatenate, decode, given_completions, pad_prompts


def test_given_completions_first_eos_kept():
    """LP-04: pad == eos == 1; the first EOS is a token of the completion, what follows is not."""
    completions = [[7, 8, 1, 1, 1], [7, 1, 9, 1, 1], [7, 8, 9, 10, 11], [1, 1, 1, 1, 1]]
    rollout = given_completions(numbered_tokenizer(pad=1, eos=1), [[5, 1, 6]], [completions])
    expected = [[1, 1, 1, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0]]
    assert rollout.completion_mask.long().tolist() == expected
    assert rollout.finished.tolist() == [True, True, False, True]
    assert rollout.prompt_mask.all()  # an EOS inside a prompt (between turns) is a token like any other
    assert rollout.texts == ["7 8 1", "7 1", "7 8 9 10 11", "1"]


def test_given_completions_unequal():
    rollout = given_completions(numbered_tokenizer(), [[5, 6, 7], [8]], [[[9], [9, 2, 9]], [[10, 11]]])
    assert rollout.prompt_ids.tolist() == [[5, 6, 7], [0, 0, 8]]
    assert rollout.prompt_mask.long().tolist() == [[1, 1, 1], [0, 0, 1]]
    assert rollout.prompt_index.tolist() == [0, 0, 1]
    assert rollout.completion_mask.long().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 0]]
    assert list(unpadded(rollout)) == [([5, 6, 7], [9]), ([5, 6, 7], [9, 2]), ([8], [10, 11])]


def test_given_completions_without_tokens():
    with pytest.raises(ValueError, match="completion 1 has no tokens"):
        given_completions(numbered_tokenizer(), [[5]], [[[6], []]])


def test_pad_prompts_refused():
    with pytest.raises(ValueError, match="no prompts"):
        pad_prompts([], 0)
    with pytest.raises(ValueError, match="prompt 1 has no tokens"):
        pad_prompts([[5], []], 0)


@pytest.mark.parametrize("rows", [[3, 0], torch.tensor([False, False, True, True, False, False]), [5], [0, 0]])
def test_select_keeps_content(rows):
    rollout = random_rollout([7, 3, 1], [[5, 1, 9], [4], [2, 8]])
    rollout = replace(rollout, examples=["a", "b", "c"], logps=torch.randn(rollout.logps.shape))
    part = rollout.select(rows)
    indices = rows if isinstance(rows, list) else rows.nonzero()[:, 0].tolist()
    everything = list(unpadded(rollout))
    assert list(unpadded(part)) == [everything[index] for index in indices]
    assert part.completion_mask.any(0).all() and part.prompt_mask.any(0).all()  # no column is all padding
    assert len(part.prompt_ids) == len({rollout.prompt_index[index].item() for index in indices})
    owners = [rollout.examples[rollout.prompt_index[index]] for index in indices]
    assert [part.examples[prompt] for prompt in part.prompt_index] == owners
    assert part.texts == [rollout.texts[index] for index in indices]
    assert torch.equal(part.logps, rollout.logps[indices, : part.logps.shape[1]])


def test_select_nothing():
    """A rank may hold no rows: nothing of everything, which can be put together with something again."""
    rollout = random_rollout([7, 3], [[5, 1], [4]])
    nothing = rollout.select([])
    assert len(nothing) == len(nothing.prompt_ids) == len(nothing.texts) == 0
    again = concatenate([nothing, rollout, rollout.select(torch.zeros(3, dtype=torch.bool))])
    assert list(unpadded(again)) == list(unpadded(rollout))


def test_concatenate_keeps_content():
    """Rollouts of other widths, one after the other: rows and examples are what they were."""
    parts = [random_rollout([7, 3], [[5, 1], [4]]), random_rollout([2], [[9]], seed=1), random_rollout([1], [[2]])]
    parts = [replace(part, examples=[f"{i}{p}" for p in range(len(part.prompt_ids))]) for i, part in enumerate(parts)]
    whole = concatenate(parts)
    assert list(unpadded(whole)) == [row for part in parts for row in unpadded(part)]
    assert [whole.examples[prompt] for prompt in whole.prompt_index] == ["00", "00", "01", "10", "20"]
    assert whole.texts == [text for part in parts for text in part.texts]
    assert concatenate(parts[:1]) is parts[0]


def test_decode_cut_character(byte_tokenizer):
    """DT-11: a whole decode round-trips; a character cut in its middle becomes U+FFFD, not an exception."""
    ids = byte_tokenizer("👍你好")["input_ids"]
    assert len(ids) == 10  # 4 + 3 + 3 bytes
    lengths = torch.tensor([10, 2])
    rows = torch.tensor([ids, ids])
    texts = decode(byte_tokenizer, rows, torch.arange(10) < lengths[:, None])
    assert texts[0] == "👍你好"
    assert set(texts[1]) == {"\N{REPLACEMENT CHARACTER}"}
