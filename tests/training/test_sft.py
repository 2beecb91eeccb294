import json
from dataclasses import replace

import pytest
import torch

from grpo_from_scratch.dialogue.dataset import DialogDataset, collate
from grpo_from_scratch.dialogue.readers import load_examples
from grpo_from_scratch.policy.loading import load_policy
from grpo_from_scratch.training.sft import SFTConfig, fine_tune, fine_tuned_policy, starting_policy


@pytest.fixture
def config(data, policy_folder) -> SFTConfig:
    return SFTConfig(model=policy_folder, data=data, steps=12, prompts_per_step=6, learning_rate=0.02, max_new_tokens=6)


def test_fine_tune_first_loss_is_plain_cross_entropy(config):
    """The loss of the first step equals Hugging Face's own on the padded dataset of the same examples."""
    examples = load_examples(config.data, "train")[:1]  # whatever is drawn, it is this one
    model, tokenizer = load_policy(config.model)
    batch = collate([*DialogDataset(examples, tokenizer, 64)], tokenizer.pad_token_id)
    with torch.no_grad():
        want = model(**batch).loss.item()
    losses = fine_tune(replace(config, steps=1), model, tokenizer, examples)
    assert losses == pytest.approx([want], rel=1e-5)


def test_fine_tune_learns(config):
    model, tokenizer = load_policy(config.model)
    losses = fine_tune(replace(config, steps=40), model, tokenizer, load_examples(config.data, "train"))
    assert losses[-1] < 0.7 * losses[0]


def test_fine_tuned_policy_is_paid_for_once(config, tmp_path):
    calls = []
    folder = fine_tuned_policy(config, lambda step, loss: calls.append(step), cache=tmp_path)
    assert calls == list(range(1, 13))
    assert fine_tuned_policy(config, lambda *_: calls.append("again"), cache=tmp_path) == folder
    assert "again" not in calls
    record = json.loads((folder / "sft.json").read_text())
    assert record["config"]["steps"] == 12 and len(record["losses"]) == 12
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


@pytest.mark.parametrize("changes", [{"seed": 1}, {"learning_rate": 0.01}, {"steps": 11}])
def test_fine_tuned_policy_of_another_config_is_another(config, tmp_path, changes):
    assert fine_tuned_policy(config, cache=tmp_path) != fine_tuned_policy(replace(config, **changes), cache=tmp_path)


def test_fine_tuned_policy_of_given_examples(config, tmp_path):
    """It learns from them, not from the config's data, and they are part of what the cache goes by."""
    examples = load_examples(config.data, "train")[:1]
    model, tokenizer = load_policy(config.model)
    losses = fine_tune(config, model, tokenizer, examples)
    folder = fine_tuned_policy(config, cache=tmp_path, examples=examples)
    assert json.loads((folder / "sft.json").read_text())["losses"] == losses
    assert fine_tuned_policy(config, cache=tmp_path) != folder
    assert fine_tuned_policy(config, cache=tmp_path, examples=load_examples(config.data, "train")[:2]) != folder


def test_starting_policy_knows_the_words_of_its_data(data):
    examples = load_examples(data, "train")
    _, tokenizer = starting_policy("tiny", data, examples, seed=0)
    assert tokenizer.unk_token_id not in tokenizer("red green blue one two three").input_ids
    assert tokenizer.unk_token_id in tokenizer("purple").input_ids


def test_starting_policy_seed_decides_the_weights(data):
    examples = load_examples(data, "train")
    first, again, other = (starting_policy("tiny", data, examples, seed)[0] for seed in (0, 0, 1))
    weight = [model.get_input_embeddings().weight for model in (first, again, other)]
    assert torch.equal(weight[0], weight[1]) and not torch.equal(weight[0], weight[2])
