"""Variations of a row: which runs they are, what is said of them, and the files they leave."""

import dataclasses
import json

import numpy as np
import pytest
from scipy.stats import trim_mean

from grpo_from_scratch.evaluation.experiment import Experiment, swept_settings, train_config
from grpo_from_scratch.evaluation.vary import SETTINGS, run_variation, summary, variation_figure, varied


@pytest.fixture
def config():
    return train_config(Experiment(), "cluster_ema", swept_settings("mixed", "cluster_ema"))


def test_varied_puts_each_setting_where_it_belongs(config):
    other = varied(config, {"alpha": 0.5, "learning_rate": 1e-4, "shape": "16x4"})
    flat, before = (c.to_dict() | c.to_dict()["preset"] for c in (other, config))
    changed = {name for name in flat if name != "preset" and flat[name] != before[name]}
    assert changed == {"alpha", "learning_rate", "prompts_per_step", "group_size"}
    assert (other.preset.alpha, other.learning_rate, other.prompts_per_step, other.group_size) == (0.5, 1e-4, 16, 4)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"alpah": 1}, "'alpah' is no setting to vary; nearest is 'alpha'"),
        ({"seed": 1}, "'seed' is no setting to vary"),
        ({"shape": "8"}, "a shape is PROMPTSxCOMPLETIONS"),
        ({"alpha": 2.0}, r"alpha must be within \[0, 1\]"),
        ({"group_size": 1, "groups": "prompt", "baseline": "mean"}, "group_size must be at least 2"),
    ],
)
def test_varied_refuses(config, settings, message):
    with pytest.raises(ValueError, match=message):
        varied(config, settings)


def test_settings_are_fields_and_their_defaults(config):
    flat = config.to_dict() | config.to_dict()["preset"]
    assert set(SETTINGS) - {"shape"} < set(flat)
    assert SETTINGS["alpha"] == 0.95 and not {"seed", "out", "data", "model"} & set(SETTINGS)


def made_up_runs(rewards: np.ndarray) -> list[dict]:
    return [
        {
            "sft_seed": seed % 2,
            "seed": seed,
            "evaluations": [{"completions": 64 * i, "reward": r} for i, r in enumerate(curve)],
            "final": {"bleu": 0.1 * seed, "rouge_l": 0.3, "fact_accuracy": None, "distinct": 0.2, "kl": 0.0},
            "icc": [None, 0.1 * seed],
            "ev": None,
        }
        for seed, curve in enumerate(rewards.tolist())
    ]


def test_summary_is_the_interquartile_mean_of_the_last_three_evaluations():
    rewards = np.random.default_rng(0).random((8, 6))
    found = summary(made_up_runs(rewards))
    finals = rewards[:, -3:].mean(1)
    assert found["final_rewards"] == pytest.approx(finals, rel=1e-5) and found["seeds"] == list(range(8))
    assert found["reward"]["value"] == pytest.approx(trim_mean(finals, 0.25), rel=1e-5)
    assert found["reward"]["low"] < found["reward"]["value"] < found["reward"]["high"]
    assert found["average"]["value"] == pytest.approx(trim_mean(rewards.mean(1), 0.25), rel=1e-5)
    assert found["final"]["bleu"]["value"] == pytest.approx(0.35) and "fact_accuracy" not in found["final"]
    assert found["curve"]["mean"] == pytest.approx(trim_mean(rewards, 0.25, axis=0), rel=1e-5)
    assert found["completions"] == [0, 64, 128, 192, 256, 320]
    assert found["icc"] == pytest.approx([0.1 * seed for seed in range(8)]) and found["ev"] == [None] * 8


def test_run_variation_runs_every_combination(small, tmp_path):
    experiment = dataclasses.replace(small, rows=("cluster_ema",), seeds=2)
    changes = {"alpha": [0.5, 0.9], "shape": ["8x8", "4x4", "2x2"]}
    found = run_variation(experiment, changes, tmp_path / "out", workers=1)
    (cells,) = found["difficulties"].values()
    combinations = [{"alpha": a, "shape": s} for a in (0.5, 0.9) for s in ("8x8", "4x4", "2x2")]
    assert [cell["settings"] for cell in cells] == combinations
    assert [cell["completions"][-1] for cell in cells] == [3 * 64, 3 * 16, 3 * 4] * 2
    configs = [json.loads(p.read_text())["config"] for p in (tmp_path / "out" / "runs").glob("*/config.json")]
    ran = {(c["preset"]["alpha"], f"{c['prompts_per_step']}x{c['group_size']}", c["seed"]) for c in configs}
    assert ran == {(c["alpha"], c["shape"], seed) for c in combinations for seed in (0, 1)} and len(configs) == 12
    assert json.loads((tmp_path / "out" / "vary.json").read_text()) == json.loads(json.dumps(found))
    assert (tmp_path / "out" / "vary.png").stat().st_size > 5000


def test_variation_figure_draws_every_number():
    cells = [
        {"settings": {"alpha": a, "passes": p}, "reward": {"value": a + p, "low": a + p - 0.1, "high": a + p + 0.3}}
        for a in (0.1, 0.2, 0.3)
        for p in range(7)  # more lines than the table has rows
    ]
    figure = variation_figure(
        {"changes": {"alpha": [0.1, 0.2, 0.3], "passes": list(range(7))}, "difficulties": {"d": cells}}
    )
    (axes,) = figure.axes
    assert len(axes.containers) == 7
    for passes, container in enumerate(axes.containers):
        line, _, (bars,) = container
        assert line.get_ydata() == pytest.approx([0.1 + passes, 0.2 + passes, 0.3 + passes])
        ends = [segment[:, 1] for segment in bars.get_segments()]
        assert np.ptp(ends, axis=1) == pytest.approx(0.4) and ends[0][0] == pytest.approx(passes)
