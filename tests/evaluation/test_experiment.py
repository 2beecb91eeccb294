"""The experiment end to end, in a size of seconds, and the plan of the full one."""

import dataclasses
import json
from pathlib import Path

import pytest

from grpo_from_scratch.evaluation import experiment as module
from grpo_from_scratch.evaluation.experiment import (
    KL_COEF,
    ROWS,
    SWEPT,
    Experiment,
    command_line,
    jobs_of,
    preset_of,
    run_experiment,
    source_hash,
    swept_settings,
)
from grpo_from_scratch.evaluation.report import render_readme, replace_block
from grpo_from_scratch.evaluation.sweep import FIRST_SEED, STAGES, beyond_the_ends, run_sweep


def test_run_experiment_writes_table_report_and_picture(small, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["grpo", "table", "--data", "my file"])
    out = tmp_path / "table"
    table = run_experiment(small, out, workers=1)
    assert json.loads((out / "table.json").read_text()) == json.loads(json.dumps(table))
    (part,) = table["difficulties"].values()
    assert [row["name"] for row in part["rows"]] == ["untrained", "ppo 64x1", "grpo 8x8", "cluster_ema 8x8"]
    assert {row["completions"] for row in part["rows"]} == {0, 3 * 64}
    assert table["source_hash"] == source_hash() and table["command"] == "grpo table --data 'my file'"
    assert (out / "curves.png").stat().st_size > 10_000
    report = (out / "report.md").read_text()
    assert "Indicative only" in report and "is weak" in report and source_hash() in report


def test_run_experiment_resumes_from_what_is_done(small, tmp_path, monkeypatch):
    out = tmp_path / "table"
    first = run_experiment(small, out, workers=1)
    results = sorted((out / "runs").glob("*/result.json"))
    assert len(results) == 6
    results[0].unlink()  # as if interrupted during this run
    trained = []
    whole = module.RLTrainer
    monkeypatch.setattr(module, "RLTrainer", lambda config, **k: trained.append(config) or whole(config, **k))
    again = run_experiment(small, out, workers=1)
    assert [config.out for config in trained] == [str(results[0].parent)]
    rewards = [[row["reward"] for row in part["rows"]] for t in (first, again) for part in t["difficulties"].values()]
    assert rewards[0] == rewards[1]


def test_run_experiment_on_two_processes_gives_the_same_numbers(small, tmp_path):
    one = run_experiment(small, tmp_path / "one", workers=1)
    two = run_experiment(small, tmp_path / "two", workers=2)
    rewards = [[row["reward"] for row in part["rows"]] for t in (one, two) for part in t["difficulties"].values()]
    assert rewards[0] == rewards[1]


def test_jobs_share_initial_policies_and_never_seeds_with_the_sweep(tmp_path):
    experiment = Experiment()
    jobs = jobs_of(experiment, {0: "policy-0", 1: "policy-1"}, tmp_path)
    assert len(jobs) == len(ROWS) * 2 * 10 and len({job.config.out for job in jobs}) == len(jobs)
    for row in ROWS:
        mine = [job for job in jobs if (job.row, job.difficulty) == (row, "mixed")]
        assert sorted(job.config.seed for job in mine) == list(range(10)) and max(range(10)) < FIRST_SEED
        assert [job.config.model for job in mine].count("policy-0") == 5
        assert {job.config.prompts_per_step * job.config.group_size for job in mine} == {64}
        assert {job.config.preset.kl_coef for job in mine} == {KL_COEF}
        assert {job.config.eval_split for job in mine} == {"report"}
    assert [job.row for job in jobs[: len(ROWS)]] == list(ROWS)  # rows take turns


def test_job_of_other_settings_or_source_has_another_folder(tmp_path, monkeypatch):
    policies = {0: "p", 1: "q"}
    first = jobs_of(Experiment(rows=("grpo",)), policies, tmp_path)[0].config.out
    assert jobs_of(Experiment(rows=("grpo",), steps=41), policies, tmp_path)[0].config.out != first
    monkeypatch.setattr(module, "source_hash", lambda: "other")
    assert jobs_of(Experiment(rows=("grpo",)), policies, tmp_path)[0].config.out != first


def test_experiment_refuses_more_policies_than_seeds():
    with pytest.raises(ValueError, match="1 seeds cannot use 2 initial policies"):
        Experiment(seeds=1)


def test_preset_of_keeps_what_was_published():
    """Only passes and the KL coefficient are the table's own; where the KL stands is the preset's."""
    for row in ROWS:
        changed = (
            dataclasses.asdict(preset_of(row)).items() - dataclasses.asdict(module.PRESETS[ROWS[row].preset]).items()
        )
        assert {name for name, _ in changed} <= {"passes", "kl_coef"}


def test_run_sweep_takes_the_best_trial_of_every_stage(small, tmp_path, monkeypatch):
    stages = {
        "grpo": ({"learning_rate": (1e-3, 1e-2)},),
        "ppo": ({"learning_rate": (1e-3,)}, {"critic_passes": (1, 2)}),
    }
    monkeypatch.setattr("grpo_from_scratch.evaluation.sweep.STAGES", stages)
    found = run_sweep(dataclasses.replace(small, rows=("grpo", "ppo")), tmp_path / "sweep", workers=1)
    (rows,) = found["difficulties"].values()
    tried = {row: [trial["settings"] for trial in rows[row]["trials"]] for row in rows}
    assert tried["grpo"][:2] == [{"learning_rate": 1e-3}, {"learning_rate": 1e-2}]
    assert tried["ppo"][1:3] == [{"learning_rate": 1e-3, "critic_passes": passes} for passes in (1, 2)]
    for row in rows.values():
        assert row["settings"] == max(row["trials"], key=lambda trial: sum(trial["scores"]))["settings"]
        assert beyond_the_ends(row["settings"], row["trials"]) == []
    assert json.loads((tmp_path / "sweep" / "sweep.json").read_text()) == json.loads(json.dumps(found))


def test_every_row_has_a_search_and_a_result():
    assert set(STAGES) == set(ROWS)
    for row, stages in STAGES.items():
        assert set(swept_settings("mixed", row)) == {name for stage in stages for name in stage}
        assert swept_settings("no such data", row) == swept_settings("mixed", row)


def test_no_setting_of_the_committed_sweep_is_an_end_of_what_was_tried():
    """PPO gets its best: whatever lies beyond was tried and scored less."""
    swept = json.loads(SWEPT.read_text(encoding="utf-8"))["difficulties"]
    for row, result in swept["mixed"].items():
        assert beyond_the_ends(result["settings"], result["trials"]) == [], row


@pytest.mark.parametrize(
    "name, tried, best, beyond",
    [
        ("learning_rate", [0.1, 0.2, 0.4], 0.2, []),
        ("learning_rate", [0.1, 0.2], 0.2, [0.4]),
        ("learning_rate", [0.1, 0.2], 0.1, [0.05]),
        ("passes", [1, 2], 1, []),  # below 1 they mean nothing
        ("passes", [1, 2], 2, [4]),
        ("critic_warmup", [1, 3], 1, [0]),
        ("critic_warmup", [0, 1], 0, []),
    ],
)
def test_beyond_the_ends(name, tried, best, beyond):
    trials = [{"settings": {name: value}} for value in tried]
    assert beyond_the_ends({name: best}, trials) == [{name: value} for value in beyond]


def test_command_line_can_be_typed_again(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/some/where/grpo", "table", "--data", "jsonl:a b"])
    assert command_line() == "grpo table --data 'jsonl:a b'"


def test_readme_shows_the_committed_table():
    """README's table is what `grpo table` wrote, with its source hash."""
    root = Path(__file__).parents[2]
    table = json.loads((root / "benchmarks" / "table" / "table.json").read_text(encoding="utf-8"))
    readme = (root / "README.md").read_text(encoding="utf-8")
    assert replace_block(readme, render_readme(table)) == readme
    assert table["source_hash"] in readme
