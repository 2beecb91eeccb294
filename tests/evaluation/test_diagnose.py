"""Each seeded bug is found from a run's folder alone, healthy runs raise no alarm, and damaged folders are refused."""

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest

from grpo_from_scratch.cli.diagnose import report
from grpo_from_scratch.course.bugs import BUGS
from grpo_from_scratch.evaluation.diagnose import diagnose
from grpo_from_scratch.evaluation.run_folder import Run, load_run
from grpo_from_scratch.evaluation.symptoms import INSTRUMENTS
from grpo_from_scratch.objective.presets import PRESETS
from grpo_from_scratch.training.config import TrainConfig
from grpo_from_scratch.training.trainer import RLTrainer

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
WARD = replace(PRESETS["grpo"], baseline="leave_one_out", scale="none", kl_coef=0.1, passes=4)
FOUND_BY = {  # a few words of the instrument's name
    "max": "gradient on tokens that the clip silences",
    "reversed k3": "KL two ways",
    "k1": "away from the reference",
    "eos": "ends of replies",
    "temperature": "log-probs of updates",
    "shuffle": "add up to 0",
    "own reward": "for a point of reward",
}


def trained(folder: Path, *, bug: str | None = None, **changes) -> Run:
    """A short run from random weights, with this bug or none, read back from its folder."""
    settings = {
        "preset": WARD,
        "data": "sort_digits",
        "reward": "sort_digits",
        "steps": 8,
        "prompts_per_step": 4,
        "group_size": 8,
        "max_new_tokens": 8,
        "temperature": 0.7,
        "learning_rate": 3e-3,
        "eval_every": 4,
        "eval_prompts": 32,
        "checkpoint_every": 0,
    }
    config = TrainConfig(**settings | changes, out=str(folder))
    with BUGS[bug].inside() if bug else nullcontext():
        RLTrainer(config).train()
    return load_run(folder)


def sick(run: Run) -> list[str]:
    return [reading.instrument.name for reading in diagnose(run) if reading.status == "sick"]


@pytest.mark.parametrize("bug", BUGS)
def test_a_seeded_bug_is_found(bug, tmp_path):
    far = {
        "preset": replace(WARD, kl_coef=0.01),
        "learning_rate": 1e-2,
        "steps": 12,
    }  # near the reference k3 ≈ reversed
    found = sick(trained(tmp_path / "run", bug=bug, **far if bug == "reversed k3" else {}))
    assert any(FOUND_BY[bug] in name for name in found), found


@pytest.mark.parametrize("seed, preset", [(0, WARD), (1, "grpo"), (2, "ppo"), (3, "cluster_ema")])
def test_a_healthy_run_raises_no_alarm(seed, preset, tmp_path):
    assert sick(trained(tmp_path / "run", preset=preset, seed=seed)) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_no_preset_raises_a_false_alarm(seed, tmp_path):
    """Three presets on the verifiable task, others for each seed, and one on dialogues, as `grpo train` sets them."""
    names, usual = list(PRESETS), {"temperature": 1.0, "prompts_per_step": 8, "max_new_tokens": 12, "steps": 6}
    for preset in [names[(3 * seed + place) % len(names)] for place in range(3)]:
        assert sick(trained(tmp_path / preset, preset=preset, seed=seed, **usual)) == [], preset
    dialogues = {"data": "embedded", "reward": "bleu", "learning_rate": 1e-3}
    preset = names[seed % len(names)]
    assert sick(trained(tmp_path / "dialogues", preset=preset, seed=seed, **usual | dialogues)) == [], preset


def test_inside_puts_everything_back():
    from grpo_from_scratch.objective import loss

    before = loss.clipped_surrogate
    with pytest.raises(KeyError), BUGS["max"].inside():
        assert loss.clipped_surrogate is not before
        raise KeyError
    assert loss.clipped_surrogate is before


# ---------------------------------------------------------------- readings of invented logs

HEALTHY = {
    "grad_norm": 0.5,
    "reward_std": 0.2,
    "reward_missing": 0.0,
    "groups_without_signal": 0.1,
    "entropy": 1.0,
    "sampler_gap": 1e-7,
    "ends_trained": 1.0,
    "advantage_by_prompt": 0.0,
    "advantage_slope": 8 / 7,
    "silenced_push": 0.0,
    "clip_fraction_low": 0.02,
    "clip_fraction_high": 0.03,
    "kl_away": 0.0,
    "kl_k1_first": 0.05,
    "kl_k3_first": 0.06,
}


def invented(*, steps: int = 8, evaluations=(0.4, 0.5), config: dict | None = None, **columns) -> Run:
    """A run whose columns are constant, or as given: a list has one value for each step."""
    rows = [{"step": 0, "eval_reward": evaluations[0]}]
    for step in range(steps):
        given = {name: value[step] if isinstance(value, list) else value for name, value in columns.items()}
        rows.append({"step": step + 1} | HEALTHY | given)
    rows[-1]["eval_reward"] = evaluations[1]
    return Run(TrainConfig(preset=WARD, **config or {}), rows)


@pytest.mark.parametrize(
    "changes, name",
    [
        ({"groups_without_signal": 0.6}, "groups without signal"),
        ({"grad_norm": 0.0}, "steps without a gradient"),
        ({"grad_norm": None}, "steps without a gradient"),
        ({"reward_missing": 0.2}, "missing rewards"),
        ({"clip_fraction_low": 0.4}, "tokens that the clip silences"),
        ({"entropy": [0.4, 0.5, 0.8, 1.5, 2.0, 2.0, 2.0, 2.0]}, "growth of the entropy"),
        ({"evaluations": (0.4, 0.3)}, "gain of the held-out reward"),
        ({"sampler_gap": 0.004}, "log-probs of updates"),
        ({"advantage_slope": 1.0}, "advantage for a point of reward"),
        ({"kl_k3_first": 0.09}, "KL two ways"),
        ({"kl_k3_first": -0.01}, "KL two ways"),
    ],
)
def test_a_symptom_is_found(changes, name):
    found = sick(invented(**changes))
    assert len(found) == 1 and name in found[0]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"groups_without_signal": [0.1] * 4 + [1.0] * 4, "grad_norm": [0.5] * 4 + [0.0] * 4},  # solved
        {"sampler_gap": 0.004, "config": {"precision": "bf16"}},
        {"sampler_gap": 0.4, "config": {"top_p": 0.9}},
        {"evaluations": (0.4, 0.38)},
        {"advantage_slope": [1.0] + [8 / 7] * 7, "reward_missing": [0.5] + [0.0] * 7},
        {"kl_k1_first": 0.001, "kl_k3_first": 0.01},  # too near the reference to tell
        {"steps": 3, "clip_fraction_low": 0.9},  # too few steps
    ],
)
def test_what_is_no_symptom(changes):
    assert sick(invented(**changes)) == []


def test_what_cannot_be_judged_says_why():
    run = invented(steps=3, ends_trained=None)
    for row in run.rows:
        row.pop("sampler_gap", None)
    reasons = {reading.instrument.name: reading.said for reading in diagnose(run) if reading.status == "not judged"}
    assert reasons["what the critic explains"] == "there is no critic"
    assert reasons["groups without signal"] == "it wants 6 steps, and there are 3"
    assert "the log has no sampler_gap" in reasons.values()
    assert reasons["ends of replies in the loss"] == "there is nothing to measure it on"  # no reply ended by itself


def test_the_error_of_the_held_out_reward_is_that_of_the_replies_there_were():
    """A fall by .1, with a std of .2: 6 standard errors of two times 256 replies, and less than 1 of two times four."""
    run = invented(evaluations=(0.4, 0.3))
    assert sick(run) == ["gain of the held-out reward, standard errors"]
    for row in run.rows:
        row |= {"eval_replies": 4} if "eval_reward" in row else {}
    assert sick(run) == []


def test_report_names_finding_remedy_and_section():
    run = invented(ends_trained=0.0)
    text = "\n".join(report(run, diagnose(run)))
    assert "1 of 13 instruments say sick." in text and "The loss sees the end of only 0% of the replies" in text
    assert "Do: make the mask by position" in text and "Why: notebook 04, “Which tokens count?”." in text
    assert "Looked at, and healthy:" in text and "what the critic explains: there is no critic" in text
    assert "Nothing looks sick." in report(invented(), diagnose(invented()))


@pytest.mark.parametrize("instrument", INSTRUMENTS, ids=lambda instrument: instrument.name)
def test_every_instrument_points_at_a_section_that_is_there(instrument):
    cells = nbformat.read(NOTEBOOKS / f"{instrument.notebook}.ipynb", as_version=4).cells
    assert any(f"## {instrument.section}\n" in cell.source + "\n" for cell in cells)


# ---------------------------------------------------------------- folders


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder as a run leaves it."""
    run = invented()
    (tmp_path / "config.json").write_text(json.dumps({"config": run.config.to_dict()}), encoding="utf-8")
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in run.rows), encoding="utf-8")
    return tmp_path


def test_load_run_leaves_out_a_torn_last_line_and_says_so(folder):
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"step": 9, "grad')
    run = load_run(folder)
    assert run.torn and len(run.steps) == 8 and "cut short" in report(run, diagnose(run))[1]
    assert sick(run) == []


def test_load_run_takes_nan_for_not_measured(folder):
    row = dict.fromkeys(HEALTHY, float("nan")) | {"step": 9}
    with open(folder / "metrics.jsonl", "a") as file:
        file.write(json.dumps(row) + "\n")
    run = load_run(folder)
    assert len(run.steps) == 9 and len(run.column("entropy")) == 8 and sick(run) == []


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("metrics.jsonl", "", "no step that updated the policy yet"),
        ("metrics.jsonl", '{"step": 1}\nnonsense\n{"step": 2}\n', "line 2: not JSON"),
        ("metrics.jsonl", "[1]\n", "line 1: no row with a step"),
        ("metrics.jsonl", '{"grad_norm": 1}\n', "line 1: no row with a step"),
        ("config.json", "{torn", "is not what a run writes there"),
        ("config.json", "[" * 100_000, "is not what a run writes there"),
        ("config.json", "[]", "is not what a run writes there"),
        ("config.json", '{"config": {"stepz": 1}}', "unknown settings stepz"),
    ],
)
def test_load_run_refuses(folder, name, text, message):
    (folder / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        load_run(folder)


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl"])
def test_load_run_refuses_a_folder_without(folder, name):
    (folder / name).unlink()
    with pytest.raises(ValueError, match=f"has no {name}"):
        load_run(folder)
    with pytest.raises(ValueError, match="is no folder"):
        load_run(folder / "nowhere")
