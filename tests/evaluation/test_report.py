"""What people read: every number in it stands in the table, and what must be said is said."""

import copy
import json
import re

import pytest
from rich.console import Console

from grpo_from_scratch.evaluation.report import (
    README_BEGIN,
    README_END,
    claim_cells,
    ev_text,
    explain,
    final_cells,
    learning_cells,
    main_cells,
    relative,
    render_readme,
    render_report,
    replace_block,
    terminal_tables,
    write_report,
)
from simulated_runs import all_runs, simulate, table_of, untrained


def quick_table(**config):
    runs = [
        simulate(algorithm, seed=seed, noise=0.005, evaluations=5, **settings)
        for algorithm, settings in (("ppo", {"prompts": 64, "group_size": 1, "ev": 0.1}), ("grpo", {"icc": 0.5}))
        for seed in (0, 1)
    ]
    return table_of({"mixed": [untrained(), *runs]}, **({"quick": True} | config))


def part_of(table):
    return table["difficulties"]["mixed"]


def test_render_report_names_its_source(table):
    report = render_report(table)
    assert (
        "`grpo table` in 20.6 minutes (39.1 CPU-minutes in all); source 0123abcd; python 3.13.1, torch 2.13.0."
        in report
    )
    assert report.count("10 runs on 2 initial policies for each row.") == 2
    assert "Indicative" not in report
    assert "(curves.png)" in report


def test_render_report_holds_every_row_and_verdict(table):
    report = render_report(table)
    for name, part in table["difficulties"].items():
        assert f"\n## {name}\n" in report
        for row in part["rows"]:
            assert "| " + " | ".join(main_cells(row).values()) + " |" in report
        for claim in part["claims"]:
            assert claim["grpo"]["verdict"] in report
    for verdict in table["verdicts"].values():
        assert f"**{verdict}**" in report


def test_render_report_quick_says_indicative():
    report = render_report(quick_table())
    assert "**Indicative only**" in report
    assert "- sample efficiency, to 75 % of PPO's gain: **" in report
    assert "## The article's claims, in one line each, indicative" in report
    assert "2 runs on 1 initial policy for each row." in report


def test_render_report_says_when_there_is_no_interval():
    runs = [run for run in all_runs(sft_seeds=1, seeds=1)]
    assert "has no interval" in render_report(table_of({"mixed": runs}))
    assert "has no interval" not in render_report(table_of({"mixed": all_runs(sft_seeds=1, seeds=2)}))


def test_render_report_says_where_the_ema_starts(table):
    assert "here it is the mean of the group's first batch" in render_report(table)
    other = copy.deepcopy(table)
    for part in other["difficulties"].values():
        for row in part["rows"]:
            row["preset"] = {"num_groups": 5, "alpha": 0.9, "ema_init": "global_mean"}
    assert "5 semantic groups over all prompts and α = 0.9." in render_report(other)
    assert "here it is the mean of all first rewards" in render_report(other)


def test_render_report_real_data_says_weak_with_its_numbers(table):
    real = copy.deepcopy(table)
    real["config"] |= {"data": "chitchat"}
    report = render_report(real)
    best = max(part_of(table)["rows"], key=lambda row: row["bleu"]["value"])
    assert "a policy of 0.27 M parameters is weak" in report
    assert f"has corpus BLEU {main_cells(best)['BLEU']}, the policy before RL 0.250." in report
    assert "is weak" not in render_report(table)


def test_render_report_sections_have_tables_of_one_width(table):
    for block in re.findall(r"(?:^\|.*\n)+", render_report(table), flags=re.M):
        assert len({line.count("|") for line in block.splitlines()}) == 1


def test_explain_is_five_sentences_with_the_tables_numbers(table):
    part = copy.deepcopy(part_of(table))
    text = explain(part)
    sentences = re.split(r"(?<=[a-z0-9\])])\. (?=[A-Z])", text)
    assert len(sentences) == 5
    part |= {"icc": [0.31, 0.4], "ev": [None, 0.44], "group_size": 4}
    part |= {"noise_ratio_to_constant": 1.11, "first_order_noise_ratio": 0.62, "noise_ratios": [None, 0.9, 0.3]}
    text = explain(part)
    for number in ("0.31", "0.35", "G = 4", "= 1.11 times", "EV = 0.44", "0.90 to 0.60, median 0.62", "0.25"):
        assert number in text
    assert "0.31 is more than 0.25" in text
    assert "the critic should be the quieter" in text
    grpo = next(row for row in part["rows"] if row["algorithm"] == "grpo")
    assert main_cells(grpo)["sample efficiency"] in text
    assert main_cells(grpo)["compute efficiency"] in text


def test_explain_turns_with_the_numbers(table):
    part = copy.deepcopy(part_of(table))
    part |= {"icc": [0.07], "ev": [0.1], "first_order_noise_ratio": 1.3}
    text = explain(part)
    assert "0.07 is not more than 0.125" in text
    assert "EV = 0.10 (the critic did not learn)" in text
    assert "the group mean should be the quieter" in text
    part |= {"first_order_noise_ratio": None, "ev": None, "rows": []}
    assert "No critic was measured" in explain(part)
    assert "GRPO itself was not measured" in explain(part)
    assert "no noise ratio" in explain(part | {"icc": None})


def test_ev_text_labels_a_critic_that_did_not_learn():
    assert ev_text([None, 0.19, 0.19, 0.19]) == "0.19: critic did not learn"
    assert ev_text([0.2]) == "0.20"
    assert ev_text([-0.5]) == "−0.50: critic did not learn"
    assert ev_text(None) == ""


def between(value: float, **more) -> dict:
    return {"value": value, "low": value - 0.01, "high": value + 0.01} | more


def test_cells_show_each_number_in_its_own_column(table):
    row = part_of(table)["rows"][1] | {
        "name": "grpo 8x4",
        "learning_rate": 0.002,
        "ev": [0.7],
        "reward": between(0.1),
        "sample_efficiency": between(0.2, fractions={"0.5": between(0.3), "0.75": between(0.2), "0.9": between(0.4)}),
        "compute_efficiency": between(0.5),
        "stability": between(
            0.6, components={"across_time": between(0.7), "risk": between(0.8), "across_seeds": between(0.9)}
        ),
        "bleu": between(0.15),
        "convergence_step": {"value": 12.4, "low": 11.0, "high": 14.0},
        "completions": 640.0,
        "cpu_seconds": 32.0,
        "samples_per_second": 20.0,
        "rouge_l": 0.55,
        "fact_accuracy": None,
    }
    assert list(main_cells(row).values()) == [
        "GRPO 8×4", "0.20 [0.19, 0.21]", "0.40 [0.39, 0.41]", "0.50 [0.49, 0.51]", "0.60 [0.59, 0.61]",
        "0.150 [0.140, 0.160]",
        "0.100 [0.090, 0.110]", "0.70",
    ]  # fmt: skip
    assert list(learning_cells(row).values()) == [
        "GRPO 8×4", "0.002", "0.30 [0.29, 0.31]", "0.70 [0.69, 0.71]", "0.80 [0.79, 0.81]",
        "0.90 [0.89, 0.91]", "12 [11, 14]",
    ]  # fmt: skip
    cells = final_cells(row)
    assert (cells["ROUGE-L"], cells["facts right"]) == ("0.550", "—")
    assert (cells["completions"], cells["CPU s"], cells["completions per CPU s"]) == ("640", "32", "20")


def test_relative_is_a_change_in_percent():
    assert relative({"value": 1.31, "low": 1.05, "high": 1.62}) == "+31 % [+5, +62]"
    assert relative({"value": 0.375, "low": 0.0, "high": 0.5, "bound": "<"}) == "< −62 % [−100, −50]"
    assert relative({"value": 1.2, "low": 0.0, "high": None}) == "+20 % [−100, +∞]"
    assert relative({"value": 0.96, "low": 0.92, "high": 0.998}) == "−4 % [−8, −0]"  # which side of nothing
    assert relative({"value": None, "low": None, "high": None}) == "—"


def test_claim_cells_show_the_articles_claims_as_relative_changes(table):
    cells = claim_cells(part_of(table))
    assert [cell["the article"] for cell in cells] == ["1 → 1.8 (+80%)", "0.72 → 0.89 (+24%)", "0.32 → 0.38 (+19%)"]


def test_render_readme_block_replaces_itself(table):
    block = render_readme(table).replace("torch 2.13.0", "torch \\1")  # nothing in it is a pattern
    readme = f"# Title\n\n{README_BEGIN}\nold\n{README_END}\n\nend\n"
    updated = replace_block(readme, block)
    assert updated == f"# Title\n\n{block}\n\nend\n"
    assert replace_block(updated, block) == updated
    assert "source 0123abcd" in block
    for row in part_of(table)["rows"]:
        assert main_cells(row)["BLEU"] in block


@pytest.mark.parametrize(
    "readme", ["", README_BEGIN, f"{README_END} {README_BEGIN}", f"{README_BEGIN}{README_END}" * 2]
)
def test_replace_block_refuses_a_readme_without_its_markers(readme):
    with pytest.raises(ValueError, match="once, in this order"):
        replace_block(readme, "x")


def test_render_readme_is_the_same_from_the_file(table, tmp_path):
    """The README is held equal to the committed table.json, so nothing may be lost in writing it."""
    write_report(table, tmp_path / "new")
    saved = json.loads((tmp_path / "new" / "table.json").read_text(encoding="utf-8"))
    assert saved == table
    assert render_readme(saved) == render_readme(table)
    assert (tmp_path / "new" / "report.md").read_text(encoding="utf-8") == render_report(table)
    assert (tmp_path / "new" / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_terminal_tables_fit_eighty_columns(table):
    console = Console(width=80, record=True)
    for shown in terminal_tables(table):
        console.print(shown)
    text = console.export_text()
    assert "…" not in text
    for row in part_of(table)["rows"]:
        cells = main_cells(row)
        for column in ("sample efficiency", "compute efficiency", "stability", "BLEU"):
            for line in cells[column].replace(" [", "\n[").split("\n"):
                assert line in text


def test_reports_of_untrained_alone_and_of_one_algorithm_do_not_fail(tmp_path):
    alone = table_of({"mixed": [untrained()]})
    assert "Only the policy before RL." in render_report(alone)
    write_report(table_of({"mixed": [simulate("grpo", seed=s) for s in (0, 1)]}), tmp_path)
    write_report(alone, tmp_path)
