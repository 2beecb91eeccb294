"""The picture's numbers and its legibility; how it looks is for eyes."""

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import to_rgb
from matplotlib.text import Text

from grpo_from_scratch.evaluation import figure
from grpo_from_scratch.evaluation.figure import curves_figure, label, spread


def lines_of(axes) -> dict[str, tuple]:
    return {line.get_label(): line.get_xydata() for line in axes.lines if not line.get_label().startswith("_")}


def test_curves_figure_draws_the_tables_numbers(table):
    panels = curves_figure(table).axes
    for part, (left, right) in zip(table["difficulties"].values(), (panels[:2], panels[2:]), strict=True):
        for axes, x in ((left, "completions"), (right, "cpu_seconds")):
            drawn = lines_of(axes)
            assert len(drawn) == len(part["curves"]) == 6
            for name, curve in part["curves"].items():
                np.testing.assert_array_equal(drawn[label(name)].T, [curve[x], curve["reward"]["mean"]])
            assert len(axes.collections) == 6  # the bands
            band = axes.collections[0].get_paths()[0].vertices[:, 1]
            reward = next(iter(part["curves"].values()))["reward"]
            assert band.min() == pytest.approx(min(reward["low"]))
            assert band.max() == pytest.approx(max(reward["high"]))


def test_curves_figure_labels_every_line_once_and_says_units(table):
    drawn = curves_figure(table)
    drawn.draw_without_rendering()
    left, right = drawn.axes[:2]
    texts = [text.get_text() for text in left.texts]
    assert sorted(texts) == sorted(map(label, table["difficulties"]["mixed"]["curves"]))
    boxes = [Text.get_window_extent(text) for text in left.texts]  # without their leader lines
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    width = drawn.bbox.width
    assert all(box.x0 >= 0 and box.x1 <= width for box in boxes)
    assert all(box.x1 <= right.get_window_extent().x0 for box in boxes)
    assert (left.get_xlabel(), right.get_xlabel()) == ("completions sampled", "CPU seconds")
    assert left.get_ylabel() == "held-out reward"


def test_curves_figure_gives_every_line_its_own_look(table):
    looks = {line.get_label(): (line.get_color(), line.get_linestyle()) for line in curves_figure(table).axes[0].lines}
    assert looks["PPO 64×1"][0] == figure.INK
    assert looks["PPO 8×8"][0] == figure.SECOND_SHAPE[0]
    assert len(set(looks.values())) == len(looks)


def test_curves_figure_marks_the_height_where_efficiency_is_read(table):
    curve = np.array(table["difficulties"]["mixed"]["curves"]["ppo 64x1"]["reward"]["mean"])
    target = curve[0] + 0.75 * (curve[-3:].mean() - curve[0])
    for axes in curves_figure(table).axes[:2]:
        heights = [line.get_ydata()[0] for line in axes.lines if line.get_label().startswith("_")]
        assert heights == pytest.approx([target])


def test_curves_figure_without_interval_headline_or_known_names(table):
    lone = copy.deepcopy(table)
    part = lone["difficulties"].pop("even")
    lone["difficulties"]["mixed"] = part
    curve = part["curves"].pop("ppo 64x1")
    part["headline"] = None
    curve["reward"] |= {"low": [None] * 9, "high": [None] * 9}
    part["curves"] |= {f"mine{i} 8x8": curve for i in range(4)}
    left = curves_figure(lone).axes[0]
    assert len(lines_of(left)) == 9
    assert [text.get_text() for text in left.texts][-1] == "mine3 8×8"


def luminance(colour) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


def colours() -> dict[str, str]:
    styles = figure.STYLES | dict(enumerate(figure.SPARE_STYLES)) | {"second": figure.SECOND_SHAPE}
    return {str(name): colour for name, (colour, _) in styles.items()}


def test_styles_are_readable_as_text_on_white():
    """WCAG contrast of at least 3.5 : 1 (large text and graphics need 3)."""
    for name, colour in colours().items():
        assert 1.05 / (luminance(colour) + 0.05) >= 3.5, name


# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
BLINDNESS = {
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def lab(colour, matrix) -> np.ndarray:
    linear = np.array([c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)])
    seen = np.clip(np.array(matrix) @ linear, 0, 1)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ seen / [0.9505, 1, 1.089]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("kind", ["none", *BLINDNESS])
def test_styles_differ_in_hue_or_in_dashes_for_everyone(kind):
    """Rows with the same dashes are at least 20 apart in CIELAB as any viewer sees them; 2 is just noticeable."""
    matrix = BLINDNESS.get(kind, np.eye(3))
    styles = list((figure.STYLES | {"second": figure.SECOND_SHAPE}).items())
    for i, (name, (colour, dashes)) in enumerate(styles):
        for other, (other_colour, other_dashes) in styles[:i]:
            distance = np.linalg.norm(lab(colour, matrix) - lab(other_colour, matrix))
            assert dashes != other_dashes or distance >= 20, (name, other, distance)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=8), st.floats(0.01, 0.5))
def test_spread_keeps_order_and_distance_and_moves_nothing_needlessly(heights, distance):
    placed = spread(heights, distance)
    order = np.argsort(heights, kind="stable")
    gaps = np.diff(np.array(placed)[order])
    assert (gaps >= distance - 1e-9).all()
    if (np.diff(np.sort(heights)) >= distance).all():
        assert placed == pytest.approx(heights)
    assert np.mean(placed) == pytest.approx(np.mean(heights), abs=1e-9)


def test_spread_hand_numbers():
    assert spread([1.0, 1.0], 0.5) == pytest.approx([0.75, 1.25])
    assert spread([1.0, 0.9, 5.0], 0.5) == pytest.approx([1.2, 0.7, 5.0])


def test_label():
    assert label("ppo 64x1") == "PPO 64×1"
    assert label("untrained") == "untrained"
    assert label("max_fun 2x2") == "max_fun 2×2"
