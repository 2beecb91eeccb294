"""What the instruments of a log say: worked by hand, and exactly healthy in every preset."""

import math
from dataclasses import replace

import pytest
import torch

from grpo_from_scratch.objective.presets import PRESETS
from grpo_from_scratch.policy.rollout import Rollout
from grpo_from_scratch.training.instruments import advantage_metrics, ends_trained, gradient_metrics
from grpo_from_scratch.training.trainer import RLTrainer

ONE = torch.ones(1, 1).bool()


def test_advantage_metrics_by_hand():
    scores, prompts = torch.tensor([1.0, 0.0, 5.0, 3.0]), torch.tensor([0, 0, 1, 1])
    of_prompts = advantage_metrics(torch.tensor([0.5, -0.5, 1.0, -1.0]), scores, prompts)
    assert of_prompts == {"advantage_by_prompt": 0.0, "advantage_slope": 1.0}
    # compared across prompts: means −1.75 and 1.75, square mean of all (1.25² + 2.25² + 2.75² + 0.75²)/4
    crossed = advantage_metrics(scores - scores.mean(), scores, prompts)
    assert crossed["advantage_by_prompt"] == pytest.approx(1.75 / math.sqrt(14.75 / 4))
    assert crossed["advantage_slope"] == pytest.approx(1.0)


def test_advantage_metrics_of_missing_and_equal_scores():
    missing = advantage_metrics(
        torch.tensor([1.0, -1.0, 0.0]), torch.tensor([2.0, 0.0, math.nan]), torch.zeros(3).long()
    )
    assert missing == {"advantage_by_prompt": 0.0, "advantage_slope": 1.0}
    equal = advantage_metrics(torch.zeros(2), torch.full((2,), 0.1), torch.zeros(2).long())
    assert all(math.isnan(value) for value in equal.values())


@pytest.mark.parametrize("ratio, advantage", [(0.5, -1.0), (2.0, 1.0), (0.5, 1.0), (2.0, -1.0)])
def test_gradient_metrics_of_a_correct_clip(ratio, advantage):
    preset = replace(PRESETS["grpo"], kl_coef=0.0)
    logps = torch.tensor([[math.log(ratio)]])
    parts = {"old_logps": torch.zeros(1, 1), "advantages": torch.tensor([advantage]), "mask": ONE, "ref_logps": None}
    assert gradient_metrics(preset, logps=logps, **parts) == {"silenced_push": 0.0}


@pytest.mark.parametrize("kind, away", [("k2", 0.0), ("k3", 0.0), ("k3_weighted", 0.0)])
@pytest.mark.parametrize("difference", [-2.0, -1e-4, 0.0, 0.5])
def test_gradient_metrics_of_a_correct_kl(kind, away, difference):
    preset = replace(PRESETS["grpo"], kl_estimator=kind)
    logps = torch.tensor([[-1.0 + difference]])
    parts = {"old_logps": None, "advantages": torch.tensor([3.0]), "mask": ONE, "ref_logps": torch.tensor([[-1.0]])}
    assert gradient_metrics(preset, logps=logps, **parts) == {"kl_away": away}


def test_gradient_metrics_of_k1_counts_by_size(monkeypatch):
    """One token above the reference, pulled back by 1; one below, pushed away by 1."""
    monkeypatch.setattr(
        "grpo_from_scratch.objective.loss.kl_estimate", lambda logps, ref, kind, ratio=None: logps - ref
    )
    parts = {"old_logps": None, "advantages": torch.zeros(1), "mask": torch.ones(1, 2).bool()}
    logps, ref_logps = torch.tensor([[-1.0, -3.0]]), torch.tensor([[-2.0, -2.0]])
    found = gradient_metrics(PRESETS["grpo"], logps=logps, ref_logps=ref_logps, **parts)
    assert found["kl_away"] == pytest.approx(0.5)


def test_ends_trained_counts_ends_in_the_mask():
    ids = torch.tensor([[5, 9, 0], [5, 6, 9], [5, 6, 7], [9, 0, 0]])
    mask = torch.tensor(
        [[1, 1, 0], [1, 1, 0], [1, 1, 1], [0, 0, 0]]
    ).bool()  # the second lost its end; no reward: fourth
    nothing = torch.zeros(1, 1).long()
    rollout = Rollout(
        prompt_ids=nothing,
        prompt_mask=nothing.bool(),
        prompt_index=torch.zeros(4).long(),
        completion_ids=ids,
        completion_mask=mask,
        logps=torch.zeros(4, 3),
        temperature=1.0,
        texts=[""] * 4,
        finished=torch.tensor([True, True, False, True]),
    )
    assert ends_trained(rollout, mask, torch.tensor([9])).tolist() == [2, 1]


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_logs_healthy_instruments(preset, make_config):
    changes = {} if PRESETS[preset].surrogate == "reinforce" else {"minibatches": 2, "microbatch_tokens": 30}
    rows = RLTrainer(make_config(preset=preset, steps=2, **changes)).train().metrics[1:]
    for row in rows:
        assert row["sampler_gap"] < 1e-5 and row["ends_trained"] in (1.0, None)
        assert row.get("silenced_push", 0.0) == 0.0 and row.get("kl_away", 0.0) == 0.0
        if PRESETS[preset].baseline in ("mean", "leave_one_out"):
            assert row["advantage_by_prompt"] is None or row["advantage_by_prompt"] < 1e-5
    assert ("kl_away" in rows[0]) == (preset == "grpo")
    assert ("kl_k1_first" in rows[0]) == (PRESETS[preset].kl_coef > 0)
