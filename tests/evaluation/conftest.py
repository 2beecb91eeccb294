import dataclasses
import json

import pytest

from grpo_from_scratch.evaluation import experiment
from grpo_from_scratch.evaluation.schema import Table
from simulated_runs import all_runs, table_of

WORDS = ["red", "green", "blue", "one", "two", "three"]


@pytest.fixture(scope="session")
def table() -> Table:
    """Two difficulties with every row, ten runs each on two initial policies."""
    return table_of({"mixed": all_runs(), "even": all_runs(noise=0.02)})


@pytest.fixture
def small(tmp_path, monkeypatch) -> experiment.Experiment:
    """Two steps on a few dialogues, initial policies fine-tuned for three steps in a cache of its own."""
    lines = [{"context": f"{a} {b} {c}", "response": f"{a} {b}"} for a in WORDS for b in WORDS for c in WORDS]
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "cache"))
    whole = experiment.sft_config
    monkeypatch.setattr(
        experiment,
        "sft_config",
        lambda *a: dataclasses.replace(whole(*a), steps=3, prompts_per_step=4, max_new_tokens=4),
    )
    return experiment.Experiment(
        data=f"jsonl:{tmp_path / 'data.jsonl'}",
        rows=("ppo", "grpo", "cluster_ema"),
        seeds=2,
        sft_seeds=1,
        steps=3,
        eval_every=1,
        eval_prompts=8,
        quick=True,
    )
