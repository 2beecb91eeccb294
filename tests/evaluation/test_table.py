"""The table from runs whose numbers are worked out by hand."""

import json
import math

import pytest

from grpo_from_scratch.evaluation.schema import Row, RunResult
from grpo_from_scratch.evaluation.table import first_value, last_mean
from simulated_runs import all_runs, simulate, table_of, untrained

SLOW = [0.0, 0.2, 0.4, 0.4, 0.4]  # final .4; 75 %, .3, at the 15th completion
FAST = [0.0, 0.4, 0.5, 0.5, 0.5]  # .3 at 7.5; 90 % of its own gain, .45, at 15
NEVER = [0.0, 0.1, 0.2, 0.25, 0.29]


def run(algorithm: str, reward: list[float], *, seconds: float = 1.0, **settings) -> RunResult:
    """A run with these rewards after 0, 10, 20, … completions and 0, 5, 10, … updates."""
    result = simulate(algorithm, evaluations=len(reward), **settings)
    evaluations = [
        {"step": 5 * i, "completions": 10 * i, "cpu_seconds": 10 * i * seconds, "reward": value}
        for i, value in enumerate(reward)
    ]
    return result | {"evaluations": evaluations}


def twice(*args, **settings) -> list[RunResult]:
    return [run(*args, seed=seed, **settings) for seed in (0, 1)]


def ppo(**settings) -> list[RunResult]:
    return twice("ppo", SLOW, prompts=64, group_size=1, seconds=3.0, **settings)


def rows_of(results, **config) -> dict[str, Row]:
    return {row["name"]: row for row in table_of({"mixed": results}, **config)["difficulties"]["mixed"]["rows"]}


def test_build_table_hand_numbers():
    rows = rows_of([untrained(), *ppo(), *twice("grpo", FAST)])
    assert list(rows) == ["untrained", "ppo 64x1", "grpo 8x8"]
    base, fast = rows["ppo 64x1"], rows["grpo 8x8"]
    assert base["sample_efficiency"] | {"fractions": None} == {"value": 1, "low": 1, "high": 1, "fractions": None}
    assert base["compute_efficiency"] == {"value": 1, "low": 1, "high": 1}
    assert [fast["sample_efficiency"]["fractions"][f]["value"] for f in ("0.5", "0.75", "0.9")] == [2, 2, 2]
    assert fast["sample_efficiency"]["value"] == 2
    assert fast["compute_efficiency"]["value"] == 6
    assert (fast["gain"]["value"], fast["reward"]["value"], base["reward"]["value"]) == (0.5, 0.5, 0.4)
    assert fast["convergence_step"]["value"] == 7.5
    assert (fast["seeds"], fast["sft_seeds"], fast["prompts"], fast["group_size"]) == (2, 1, 8, 8)
    assert (fast["completions"], fast["cpu_seconds"], fast["samples_per_second"]) == (40, 40, 1)
    assert base["samples_per_second"] == pytest.approx(1 / 3, rel=1e-5)
    assert fast["bleu"]["value"] == pytest.approx(0.3)
    assert fast["bleu_greedy"] == pytest.approx(0.35)


def test_build_table_stability_by_hand():
    """S = .5, the best row's gain. Second differences of FAST: −.3 −.1 0, IQR .15; of SLOW: 0 −.2 0, IQR .1.

    No drawdown, and runs that are the same."""
    rows = rows_of([*ppo(), *twice("grpo", FAST)])
    for name, spread in (("grpo 8x8", 0.15), ("ppo 64x1", 0.1)):
        stability = rows[name]["stability"]
        across_time = 1 - spread / math.sqrt(3) / 0.5
        parts = {part: stability["components"][part]["value"] for part in ("across_time", "risk", "across_seeds")}
        assert parts == pytest.approx({"across_time": across_time, "risk": 1, "across_seeds": 1}, abs=1e-5)
        assert stability["value"] == pytest.approx((across_time + 2) / 3, abs=1e-5)


def test_build_table_never_there_is_a_bound():
    row = rows_of([*ppo(), *twice("cluster_ema", NEVER)])["cluster_ema 8x8"]
    assert row["sample_efficiency"]["value"] == 15 / 40
    assert row["sample_efficiency"]["bound"] == "<"
    assert row["compute_efficiency"]["value"] == 45 / 40


def test_build_table_stability_only_of_rows_that_gained():
    """One run gains, one loses: the gain's interval holds 0, so steadiness and convergence are no merit."""
    up_and_down = [run("rloo", FAST, seed=0), run("rloo", [-r for r in SLOW], seed=1)]
    rows = rows_of([*ppo(), *up_and_down])
    assert rows["rloo 8x8"]["gain"]["low"] < 0 < rows["rloo 8x8"]["gain"]["value"]
    assert rows["rloo 8x8"]["stability"]["value"] is None
    assert rows["rloo 8x8"]["stability"]["components"]["risk"]["value"] is None
    assert rows["rloo 8x8"]["convergence_step"]["value"] is None
    assert rows["ppo 64x1"]["stability"]["value"] is not None


def test_build_table_compares_no_stability_with_a_row_that_did_not_gain():
    up_and_down = [run("grpo", FAST, seed=0), run("grpo", [-r for r in SLOW], seed=1)]
    claims = table_of({"mixed": [*ppo(), *up_and_down]})["difficulties"]["mixed"]["claims"]
    assert next(claim for claim in claims if claim["metric"] == "stability")["grpo"]["value"] is None


def test_build_table_reproduces_nothing_where_the_headline_did_not_learn():
    """Twice a BLEU of a thousandth is noise, not a claim reproduced."""
    flat = [simulate("ppo", seed=s, prompts=64, group_size=1, height=0.0, noise=0.001, bleu=0.0005) for s in range(4)]
    grown = [simulate("grpo", seed=s, noise=0.0001, bleu=0.001) for s in range(4)]
    (part,) = table_of({"mixed": flat + grown})["difficulties"].values()
    assert {claim["metric"]: claim["grpo"]["verdict"] for claim in part["claims"]} == {
        "sample_efficiency": "not comparable: PPO gained nothing here",
        "stability": "not comparable: the source does not define it",
        "bleu": "not comparable: PPO gained nothing here",
    }


def test_build_table_headline_is_ppo_with_one_completion_a_prompt():
    small = twice("ppo", FAST, ev=0.1)
    rows = rows_of([*small, *ppo()])
    assert rows["ppo 8x8"]["sample_efficiency"]["value"] == 2
    part = table_of({"mixed": [*small, *ppo(ev=0.6)]})["difficulties"]["mixed"]
    assert part["headline"] == "ppo 64x1"
    assert part["ev"] == [None, 0.6, 0.6, 0.6, 0.6]


def test_build_table_headline_is_1_by_definition_however_its_runs_differ():
    runs = [run("ppo", rewards, prompts=64, group_size=1, seed=i) for i, rewards in enumerate((SLOW, FAST))]
    row = rows_of(runs)["ppo 64x1"]
    for efficiency in (row["compute_efficiency"], *row["sample_efficiency"]["fractions"].values()):
        assert efficiency == {"value": 1, "low": 1, "high": 1}


def test_build_table_without_ppo_compares_nothing():
    part = table_of({"mixed": twice("grpo", FAST, icc=0.5)})["difficulties"]["mixed"]
    assert part["headline"] is None
    assert part["rows"][0]["sample_efficiency"]["value"] is None
    assert part["rows"][0]["stability"]["value"] is not None
    assert {claim["verdict"] for claim in part["claims"]} == {"not measured", NOT_COMPARABLE}
    assert part["first_order_noise_ratio"] is None
    assert part["noise_ratio_to_constant"] == pytest.approx((1 - 1 / 8) / 0.5)


NOT_COMPARABLE = "not comparable: the source does not define it"


def test_build_table_claims():
    part = table_of(
        {"mixed": [*ppo(bleu=0.32), *twice("grpo", FAST, bleu=0.4), *twice("cluster_ema", NEVER, bleu=0.3)]}
    )
    claims = {claim["metric"]: claim for claim in part["difficulties"]["mixed"]["claims"]}
    assert [claims[m]["claimed"] for m in ("sample_efficiency", "stability", "bleu")] == [1.8, 1.23611, 1.1875]
    assert (claims["bleu"]["claimed_from"], claims["bleu"]["claimed_to"]) == (0.32, 0.38)
    assert claims["sample_efficiency"]["grpo"] == {"value": 2, "low": 2, "high": 2, "verdict": "reproduced"}
    assert claims["sample_efficiency"]["cluster_ema"]["verdict"] == "not reproduced: never got there"
    assert claims["sample_efficiency"]["verdict"] == "only when the algorithm is grpo"
    assert claims["bleu"]["grpo"]["value"] == 1.25
    assert claims["bleu"]["cluster_ema"]["value"] == 0.9375
    assert claims["bleu"]["cluster_ema"]["verdict"] == "not reproduced: the opposite"
    steady = [(1 - spread / math.sqrt(3) / 0.5 + 2) / 3 for spread in (0.15, 0.1)]
    assert claims["stability"]["grpo"]["value"] == pytest.approx(steady[0] / steady[1], rel=1e-5)
    assert claims["stability"]["verdict"] == NOT_COMPARABLE
    assert part["verdicts"]["sample_efficiency"] == "only when the algorithm is grpo"


def test_build_table_verdicts_over_difficulties():
    good = [*ppo(), *twice("grpo", FAST), *twice("cluster_ema", FAST)]
    bad = [*ppo(), *twice("grpo", NEVER), *twice("cluster_ema", NEVER)]
    assert table_of({"mixed": good, "even": bad})["verdicts"]["sample_efficiency"] == "only when the data is mixed"
    assert table_of({"mixed": good, "even": good})["verdicts"]["sample_efficiency"] == "reproduced"


def test_build_table_noise_ratios_pair_icc_and_ev_of_one_evaluation():
    """G = 8. ICC .5 at first: (1 − 1/8)/(1 − .5) = 1.75 over a constant. An EV leaves (1 − EV) of its evaluation's."""
    runs = [changed(run, ev=[None, 0.0, 0.2, 0.4, 0.6]) for run in ppo()]
    part = table_of({"mixed": [*runs, *twice("rloo", FAST, icc=0.1), *twice("grpo", FAST, icc=0.5)]})
    part = part["difficulties"]["mixed"]
    assert part["icc"] == pytest.approx([0.5, 0.55, 0.6, 0.65, 0.7])
    assert part["group_size"] == 8
    assert part["noise_ratio_to_constant"] == pytest.approx(1.75)
    expected = [0.875 / 0.45, 0.8 * 0.875 / 0.4, 0.6 * 0.875 / 0.35, 0.4 * 0.875 / 0.3]
    assert part["noise_ratios"][0] is None
    assert part["noise_ratios"][1:] == pytest.approx(expected, rel=1e-5)
    assert part["first_order_noise_ratio"] == pytest.approx((expected[1] + expected[2]) / 2, rel=1e-5)


def test_build_table_noise_ratios_need_the_same_completions():
    part = table_of({"mixed": [*ppo(ev=0.6), *twice("grpo", [*FAST, 0.5], icc=0.5)]})["difficulties"]["mixed"]
    assert part["noise_ratios"] is None
    assert part["first_order_noise_ratio"] is None


def test_build_table_series_average_the_runs_that_have_a_value():
    runs = ppo(ev=0.6)
    runs[1] = runs[1] | {"ev": [None, 0.2, None, 0.6, 0.6]}
    assert rows_of(runs)["ppo 64x1"]["ev"] == pytest.approx([None, 0.4, 0.6, 0.6, 0.6])


def test_last_mean_and_first_value_skip_what_is_missing():
    assert last_mean([9, 1, 2, None, 6]) == 3
    assert last_mean([4.0]) == 4
    assert math.isnan(last_mean([None]))
    assert math.isnan(last_mean(None))
    assert first_value([None, 0.3, 0.4]) == 0.3
    assert math.isnan(first_value(None))


def test_build_table_single_run_has_values_and_no_intervals():
    rows = rows_of([ppo()[0], run("grpo", FAST)])
    efficiency = rows["grpo 8x8"]["sample_efficiency"]
    assert (efficiency["value"], efficiency["low"], efficiency["high"]) == (2, None, None)
    assert rows["grpo 8x8"]["stability"]["value"] is None


def test_build_table_untrained_row_has_only_what_it_is():
    row = rows_of([untrained(), *ppo()])["untrained"]
    for key in ("preset", "prompts", "group_size", "learning_rate", "ev", "samples_per_second"):
        assert row[key] is None
    assert row["completions"] == row["cpu_seconds"] == 0
    assert row["reward"]["value"] == pytest.approx(0.3)
    for key in ("gain", "sample_efficiency", "compute_efficiency", "stability", "convergence_step"):
        assert row[key]["value"] is None


def test_build_table_metric_that_is_not_defined_is_null():
    runs = ppo()
    for result in runs:
        result["final"]["fact_accuracy"] = None
    assert rows_of(runs)["ppo 64x1"]["fact_accuracy"] is None


def test_build_table_does_not_depend_on_the_order_of_runs():
    runs = all_runs(sft_seeds=2, seeds=2)
    assert table_of({"mixed": runs})["difficulties"]["mixed"]["rows"][-1]["name"] == "cluster_ema 8x8"
    forward, backward = (
        {row["name"]: row for row in table_of({"mixed": order})["difficulties"]["mixed"]["rows"]}
        for order in (runs, runs[::-1])
    )
    assert forward == backward


def test_build_table_is_json_without_nan(table):
    assert json.loads(json.dumps(table, allow_nan=False)) == table


def changed(run: RunResult, **fields) -> RunResult:
    return run | fields


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (run("grpo", FAST, seed=0), "two results for the same"),
        (run("grpo", FAST[:-1], seed=1), "evaluation steps"),
        (changed(run("grpo", FAST, seed=1), final={"bleu": 0.1}), "final metrics"),
        (
            changed(run("grpo", FAST, seed=1), config={"prompts_per_step": 8, "group_size": 8, "learning_rate": 1.0}),
            "learning rates",
        ),
        (run("grpo", [0.0, 0.1, math.nan, 0.1, 0.1], seed=1), "grpo 8x8: reward of run 1 is nan at evaluation 2"),
        (changed(run("grpo", FAST, seed=1), icc=[0.1]), "1 values of icc for 5 evaluations"),
    ],
)
def test_build_table_refuses_runs_that_are_not_one_row(second, message):
    with pytest.raises(ValueError, match=message):
        table_of({"mixed": [run("grpo", FAST, seed=0), second]})


def test_build_table_refuses_no_runs_and_taken_names():
    with pytest.raises(ValueError, match="No difficulty"):
        table_of({})
    with pytest.raises(ValueError, match="hidden: no runs"):
        table_of({"hidden": []})
    taken = run("grpo", FAST)
    taken["final"]["reward"] = 0.4
    with pytest.raises(ValueError, match="final has reward"):
        table_of({"mixed": [taken]})
