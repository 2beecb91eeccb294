"""Verdicts: every reading of an interval against a claim, and how readings join."""

import math

import pytest

from grpo_from_scratch.evaluation.claims import joint_verdict, side_verdict
from grpo_from_scratch.evaluation.intervals import Interval


@pytest.mark.parametrize(
    ("measured", "verdict"),
    [
        (Interval(1.9, 1.5, 2.3), "reproduced"),
        (Interval(1.5, 1.1, 1.8), "reproduced"),
        (Interval(3.0, 2.5, 3.5), "reproduced"),
        (Interval(1.3, 1.1, 1.6), "not reproduced: a smaller gain"),
        (Interval(1.1, 0.9, 1.3), "not reproduced: no clear gain"),
        (Interval(1.3, 0.9, 1.9), "not reproduced: too few runs to tell"),
        (Interval(1.3, 0.9, 1.8), "not reproduced: too few runs to tell"),
        (Interval(1.3, 0.0, math.inf), "not reproduced: too few runs to tell"),
        (Interval(0.8, 0.7, 0.9), "not reproduced: the opposite"),
        (Interval(0.9, 0.0, 1.1, "<"), "not reproduced: never got there"),
        (Interval(0.9, 0.0, 2.1, "<"), "not reproduced: too few runs to tell"),
        (Interval(0.9, bound="<"), "not reproduced: too few runs for an interval"),
        (Interval(1.9), "not reproduced: too few runs for an interval"),
        (Interval(math.nan), "not measured"),
    ],
)
def test_side_verdict(measured, verdict):
    assert side_verdict("sample_efficiency", measured, 1.8) == verdict


def test_side_verdict_of_what_the_source_does_not_define():
    assert side_verdict("stability", Interval(1.3, 1.2, 1.4), 0.89 / 0.72).startswith("not comparable")


def sides(**cells) -> dict:
    """grpo_mixed="r" -> {("grpo", "mixed"): "reproduced"}, s: a smaller gain, n: no clear gain, - : not measured."""
    words = {"r": "reproduced", "s": "not reproduced: a smaller gain", "n": "not reproduced: no clear gain"}
    return {tuple(where.split("_")): words.get(cell, "not measured") for where, cell in cells.items()}


@pytest.mark.parametrize(
    ("cells", "verdict"),
    [
        ({"ema_mixed": "r", "grpo_mixed": "r"}, "reproduced"),
        ({"ema_mixed": "n", "grpo_mixed": "n"}, "not reproduced: no clear gain"),
        ({"ema_mixed": "n", "grpo_mixed": "s"}, "not reproduced"),
        ({"ema_mixed": "-", "grpo_mixed": "-"}, "not measured"),
        ({"ema_mixed": "-", "grpo_mixed": "r"}, "reproduced"),
        ({}, "not measured"),
        ({"ema_mixed": "n", "grpo_mixed": "r"}, "only when the algorithm is grpo"),
        ({"ema_mixed": "n", "grpo_mixed": "r", "ema_even": "n", "grpo_even": "r"}, "only when the algorithm is grpo"),
        ({"ema_mixed": "r", "grpo_mixed": "r", "ema_even": "n", "grpo_even": "s"}, "only when the data is mixed"),
        ({"ema_mixed": "n", "grpo_mixed": "r", "ema_even": "n", "grpo_even": "n"}, "only when grpo trains on mixed"),
        (
            {"ema_mixed": "r", "grpo_mixed": "n", "ema_even": "n", "grpo_even": "r"},
            "only when ema trains on mixed or grpo trains on even",
        ),
    ],
)
def test_joint_verdict(cells, verdict):
    assert joint_verdict(sides(**cells)) == verdict
