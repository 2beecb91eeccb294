"""The noise study end to end, in a size of seconds, and the committed run with its figures."""

import copy
import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex
from typer.testing import CliRunner

from grpo_from_scratch import cli
from grpo_from_scratch.evaluation.noise import DIAL, NoiseSettings, read_noise, run_noise
from grpo_from_scratch.evaluation.noise_cell import POLICIES, summary
from grpo_from_scratch.evaluation.noise_figure import noise_to_signal_figure, ratio_figure
from grpo_from_scratch.evaluation.noise_terms import (
    global_noise,
    group_noise,
)
from grpo_from_scratch.objective.groups import first_order_noise_ratio

COMMITTED = Path(__file__).parents[2] / "benchmarks" / "noise"


SMALL = NoiseSettings(difficulties=("hidden",), updates=1, prompts=4, replies=3, batch=4, batches=3, group_sizes=(2, 4))


@pytest.fixture
def untrained(monkeypatch, tmp_path):
    """The study begins with a new tiny policy instead of a fine-tuned one."""
    from grpo_from_scratch.evaluation import noise

    whole = noise.train_config  # with a reward that is not 0 for everything an untrained model says
    monkeypatch.setattr(noise, "initial_policies", lambda *_: {0: "tiny"})
    monkeypatch.setattr(noise, "train_config", lambda *a, **k: replace(whole(*a, **k), reward="chrf"))
    monkeypatch.setattr("sys.argv", ["grpo", "noise"])
    return noise


def test_run_noise_writes_and_goes_on_from_what_is_done(untrained, tmp_path, monkeypatch):
    study = run_noise(SMALL, tmp_path, workers=1)
    assert read_noise(tmp_path / "noise.json") == json.loads(json.dumps(study))
    assert [(cell["difficulty"], cell["policy"], cell["updates"]) for cell in study["cells"]] == [
        ("hidden", "fine-tuned", 0),
        ("hidden", "trained", 1),
    ]
    assert all((tmp_path / name).stat().st_size > 10_000 for name in ("ratio.png", "noise_to_signal.png"))
    finished = sorted((tmp_path / "runs").glob("*/cell.json"))
    assert len(finished) == 2
    finished[0].unlink()
    measured = []
    whole = untrained.gradient_pool
    monkeypatch.setattr(untrained, "gradient_pool", lambda *a, **k: measured.append(a) or whole(*a, **k))
    again = run_noise(SMALL, tmp_path, workers=1)
    assert len(measured) == 1 and again["cells"] == study["cells"]


def test_cells_of_other_settings_have_other_folders(tmp_path):
    assert NoiseSettings().key == NoiseSettings(difficulties=("even",), quick=True).key != NoiseSettings(prompts=9).key


def grpo(*arguments: str, code: int = 0) -> str:
    found = CliRunner().invoke(cli.app, list(arguments), env={"COLUMNS": "200", "GRPO_TRACEBACK": ""})
    assert found.exit_code == code, found.output
    return " ".join(found.output.split())


def test_command(untrained, tmp_path, monkeypatch):
    monkeypatch.setattr(NoiseSettings, "__init__", _smaller(NoiseSettings.__init__))
    said = grpo("noise", "--quick", "--difficulty", "0.5", "--out", str(tmp_path / "o"), "--workers", "1")
    config = read_noise(tmp_path / "o" / "noise.json")["config"]
    assert config["difficulties"] == ["0.5"] and config["quick"]
    assert "0.5 trained" in said and said.endswith(f"Written: {tmp_path / 'o' / 'noise.json'}")


def _smaller(init):
    return lambda self, **asked: init(
        self, **asked | {"updates": 1, "prompts": 4, "replies": 3, "batch": 4, "batches": 3, "group_sizes": (2,)}
    )


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--difficulty", "medium"], "difficulty must be mixed, even, hidden or a number"),
        (["--difficulty", "even,even"], "a difficulty stands twice in even, even"),
        (["--prompts", "2"], "the noise study needs at least 3 prompts, not 2"),
        (["--batches", "1"], "the noise study needs at least 2 batches, not 1"),
    ],
)
def test_bad_input_gets_one_sentence(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = grpo("noise", *arguments, code=1)
    assert said.startswith("grpo: ") and message in said and list(tmp_path.iterdir()) == []


def test_settings_refuse_a_group_that_does_not_fit():
    with pytest.raises(ValueError, match="a group of 6 does not fit a batch of 64"):
        NoiseSettings(group_sizes=(2, 6))


def ratios(group_size: int, first_order: float | None, measured: tuple) -> dict:
    low, value, high = measured
    return {
        "group_size": group_size,
        "first_order": {"value": first_order},
        "exact": {"value": 1.0},
        "measured": {"low": low, "value": value, "high": high},
    }


def test_summary_by_hand():
    groups = [
        ratios(2, 1.0, (1.5, 2.0, 3.0)),  # clear, and ICC < 1/2 says the other side
        ratios(4, 2.0, (1.5, 2.0, 3.0)),  # clear and right
        ratios(8, 2.0, (0.5, 2.0, 3.0)),  # not clear
        ratios(16, None, (0.5, 2.0, 3.0)),  # not known
    ]
    cells = [{"policy": "fine-tuned", "icc": {"value": 0.4}, "groups": groups}]
    found = summary(cells)
    assert found["fine-tuned"] == {
        "ratios": 3,
        "first_order": {
            "rms": pytest.approx(np.log(2) / np.sqrt(3), rel=1e-5),
            "max": pytest.approx(np.log(2), rel=1e-5),
            "inside": 2,
        },
        "exact": {"rms": pytest.approx(np.log(2), rel=1e-5), "max": pytest.approx(np.log(2), rel=1e-5), "inside": 1},
        "sign": {"clear": 2, "right": 1},
    }
    nothing = {"rms": None, "max": 0, "inside": 0}
    assert found["trained"] == {"ratios": 0, "first_order": nothing, "exact": nothing, "sign": {"clear": 0, "right": 0}}


@pytest.fixture(scope="module")
def committed():
    return read_noise(COMMITTED / "noise.json")


def test_committed_study_is_whole_and_small(committed):
    assert (COMMITTED / "noise.json").stat().st_size < 200_000
    assert {path.name for path in COMMITTED.iterdir()} == {"noise.json", "ratio.png", "noise_to_signal.png"}
    assert len(committed["config"]["difficulties"]) >= 5 and set(DIAL) <= set(committed["config"]["difficulties"])
    assert len(committed["cells"]) == len(POLICIES) * len(committed["config"]["difficulties"])
    assert not committed["config"]["quick"] and committed["summary"] == summary(committed["cells"])
    for cell in committed["cells"]:
        for group in cell["groups"]:
            assert group["first_order"]["value"] == pytest.approx(
                first_order_noise_ratio(cell["icc"]["value"], group["group_size"]), rel=1e-4
            )
            known = {name: np.array(cell["terms"][name]["value"]) for name in cell["terms"]}
            ratio = global_noise(known, group["group_size"]) / group_noise(known, group["group_size"])
            assert group["exact"]["value"] == pytest.approx(float(ratio), rel=1e-4)


def test_ratio_figure_draws_the_committed_numbers(committed):
    left, right = ratio_figure(committed).axes
    measured = [g["measured"]["value"] for c in committed["cells"] for g in c["groups"]]
    exact = [g["exact"]["value"] for c in committed["cells"] for g in c["groups"]]
    shares = [c["icc"]["value"] for c in committed["cells"] for _ in c["groups"]]
    hollow = [c["policy"] == "trained" for c in committed["cells"] for _ in c["groups"]]
    for axes, across in ((left, shares), (right, exact)):
        points = [line for line in axes.lines if line.get_marker() == "o" and len(line.get_xdata()) == 1]
        assert [line.get_xdata()[0] for line in points] == across
        assert [line.get_ydata()[0] for line in points] == measured
        assert [to_hex(line.get_markerfacecolor()) == "#ffffff" for line in points] == hollow


def test_noise_to_signal_figure_draws_the_committed_numbers(committed):
    panels = noise_to_signal_figure(committed).axes
    names = committed["config"]["difficulties"]
    cells = {(cell["policy"], cell["difficulty"]): cell for cell in committed["cells"]}
    for axes, key in zip(panels, itertools.product(POLICIES, names), strict=True):
        for baseline, line in zip(("global", "group"), axes.lines[::2], strict=True):
            known = [row["value"] for row in cells[key]["noise_to_signal"][baseline] if row]
            assert line.get_ydata().tolist() == pytest.approx(known)


def test_noise_to_signal_figure_shows_an_open_end_and_a_pool_without_signal():
    study = copy.deepcopy(read_noise(COMMITTED / "noise.json"))
    first, second = study["cells"][:2]
    for baseline in ("global", "group"):
        for row in filter(None, first["noise_to_signal"][baseline]):
            row["high"] = None
    second["terms"]["signal"] = {"value": -0.1, "low": -0.3, "high": 0.2}
    figure = noise_to_signal_figure(study)
    figure.draw_without_rendering()
    columns = len(study["config"]["difficulties"])
    opened, silent = figure.axes[0], figure.axes[columns]
    top = opened.get_ylim()[1]
    assert all(band.get_paths()[0].vertices[:, 1].max() > top for band in opened.collections)
    assert not silent.lines and "more noise than signal" in silent.texts[0].get_text()
