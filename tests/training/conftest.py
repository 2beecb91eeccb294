"""A policy of a few thousand weights and a few dialogues: a training step in a tenth of a second."""

import json
from pathlib import Path

import pytest

from grpo_from_scratch.policy.loading import new_tiny_policy, save_policy
from grpo_from_scratch.training.config import TrainConfig

WORDS = "red green blue one two three"


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> str:
    """The spec of a JSONL file with dialogues in every split."""
    file = tmp_path_factory.mktemp("data") / "dialogues.jsonl"
    words = WORDS.split()
    lines = [
        {"context": f"{a} {b} {c}", "references": [f"{a} {b}", f"{b} {c}"]} for a in words for b in words for c in words
    ]
    file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return f"jsonl:{file}"


@pytest.fixture(scope="session")
def policy_folder(tmp_path_factory) -> str:
    model, tokenizer = new_tiny_policy([WORDS], hidden_size=16, layers=1, heads=2)
    folder = tmp_path_factory.mktemp("policy")
    save_policy(model, tokenizer, folder)
    return str(folder)


@pytest.fixture
def make_config(data, policy_folder, tmp_path):
    """TrainConfig(**changes) of a small run with a folder of its own; ``out`` names the folder."""

    def make(out: str = "run", **changes) -> TrainConfig:
        settings = {
            "model": policy_folder,
            "data": data,
            "reward": "chrf",
            "steps": 6,
            "prompts_per_step": 4,
            "group_size": 3,
            "max_new_tokens": 5,
            "learning_rate": 0.01,
            "eval_every": 3,
            "eval_prompts": 5,
            "out": str(Path(tmp_path) / out),
        }
        return TrainConfig(**settings | changes)

    return make
