"""The figures' numbers, labels and colours."""

import itertools

import matplotlib
import numpy as np
import pytest

matplotlib.use("Agg")  # NB-02: works without a display

import matplotlib.pyplot as plt  # noqa: E402

from grpo_from_scratch.course import plots  # noqa: E402
from grpo_from_scratch.course.exercises import Report  # noqa: E402


@pytest.fixture(autouse=True)
def no_figures_left():
    yield
    plt.close("all")


LABELS = {"xlabel": "updates", "ylabel": "reward (0 to 1)"}
DARK = "#111111"  # JupyterLab's dark page

# Machado, Oliveira and Fernandes (2009), severity 1: how linear RGB looks to someone with each colour blindness
SEEN = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def linear(colour):
    srgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    """WCAG 2.1's contrast ratio."""
    low, high = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def lab(rgb):
    to_xyz = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    xyz = np.array(to_xyz) @ np.clip(rgb, 0, 1) / [0.95047, 1, 1.08883]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("sight", SEEN)
def test_colours_stay_apart_for_every_sight(sight):
    for one, other in itertools.combinations(plots.SERIES, 2):
        distance = np.linalg.norm(lab(SEEN[sight] @ linear(one)) - lab(SEEN[sight] @ linear(other)))
        assert distance > 15, (one, other)  # about 2 can be told apart side by side; a thin line needs more


def test_colours_are_readable():
    assert all(contrast(colour, "#ffffff") >= 3 for colour in (*plots.SERIES, plots.GREY))  # WCAG: graphics
    words = [plots.STYLE[key] for key in ("text.color", "axes.labelcolor", "xtick.color", "ytick.color")]
    assert all(contrast(colour, "#ffffff") >= 4.5 for colour in words)  # WCAG: text
    for colour in Report.COLOURS.values():  # text of an exercise stands on the page itself, light or dark
        assert contrast(colour, "#ffffff") >= 3.5 and contrast(colour, DARK) >= 3.5


def test_lines_draws_and_returns_the_numbers():
    series = {"none": [0.0, 0.5, 0.4], "mean": ([1, 2, 4], [0.1, 0.2, 0.9])}
    ax, drawn = plots.lines(
        series, **LABELS, title="learns", bands={"mean": ([0, 0, 0], [1, 1, 1])}, reference={"best": 1.0}
    )
    np.testing.assert_array_equal(drawn["none"], [[0, 1, 2], [0.0, 0.5, 0.4]])
    np.testing.assert_array_equal(drawn["mean"], [[1, 2, 4], [0.1, 0.2, 0.9]])
    assert drawn["best"] == 1.0
    for line, name in zip(ax.lines[:2], series, strict=True):
        np.testing.assert_array_equal(line.get_xydata().T, drawn[name])
    assert len(ax.collections) == 1 and list(ax.lines[2].get_ydata()) == [1.0, 1.0]
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_title(loc="left")) == ("updates", "reward (0 to 1)", "learns")
    colours = {text.get_text(): text.get_color() for text in ax.texts}
    assert colours == {"none": plots.SERIES[0], "mean": plots.SERIES[1], "best": plots.GREY}


def test_lines_draws_dots_where_asked():
    ax, _ = plots.lines({"predicted": [1, 2], "measured": [1.1, 1.9]}, **LABELS, dots={"measured"})
    assert [(line.get_linestyle(), line.get_marker()) for line in ax.lines] == [("-", "None"), ("None", "o")]


@pytest.mark.parametrize(
    "ends", [{"d": 0.0, "a": 0.999, "b": 1.0, "c": 1.001}, {"a": 0.0, "b": 0.001, "c": 0.002, "d": 1}]
)
def test_lines_names_do_not_overlap_and_keep_their_order(ends):
    ax, _ = plots.lines({name: [0.0, end] for name, end in ends.items()}, **LABELS)
    ax.figure.canvas.draw()
    boxes = {text.get_text(): text.get_window_extent() for text in ax.texts}
    for lower, upper in itertools.pairwise(ends):
        assert boxes[lower].y1 <= boxes[upper].y0 + 1
    lowest = next(iter(ends))  # room is made upwards, so this one stays at its line's end
    assert abs(boxes[lowest].y0 + boxes[lowest].y1 - 2 * ax.transData.transform((1, ends[lowest]))[1]) < 10
    picture = ax.figure.bbox
    assert all(box.x1 <= picture.x1 and box.y1 <= picture.y1 for box in boxes.values())


def test_bars_draws_and_returns_the_numbers():
    ax, drawn = plots.bars(
        {"exact": [0.1, -0.2], "sampled": [0.3, 0.4]}, ["a", "b"], **LABELS, errors={"sampled": [0.05, 0.06]}
    )
    np.testing.assert_array_equal(drawn["sampled"], [0.3, 0.4])
    assert [patch.get_height() for patch in ax.patches] == [0.1, -0.2, 0.3, 0.4]
    assert [text.get_text() for text in ax.texts] == ["0.10", "-0.20"]  # values where no error bar stands
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["exact", "sampled"]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["a", "b"]


def test_points_draws_and_returns_the_numbers():
    ax, drawn = plots.points({"facts": ([0, 1, 2], [3, 4, 8])}, **LABELS)
    np.testing.assert_array_equal(drawn["facts"], [[0, 1, 2], [3, 4, 8]])
    np.testing.assert_array_equal(ax.collections[0].get_offsets().T, drawn["facts"])
    assert ax.texts[0].get_position() == (1, 4)


@pytest.mark.parametrize("centre", [None, 0.0])
def test_heatmap_draws_and_returns_the_numbers(centre):
    values = [[0.0, -0.5, 2.0], [1.0, np.nan, 0.25]]
    ax, drawn = plots.heatmap(values, rows=["p", "q"], columns=["x", "y", "z"], **LABELS, centre=centre)
    np.testing.assert_array_equal(drawn["values"], values)
    assert [text.get_text() for text in ax.texts] == ["0.00", "-0.50", "2.00", "1.00", "0.25"]
    image = ax.images[0]
    for text, value in zip(ax.texts, [0.0, -0.5, 2.0, 1.0, 0.25], strict=True):
        ground = matplotlib.colors.to_hex(image.to_rgba(value))
        assert contrast(matplotlib.colors.to_hex(text.get_color()), ground) > 3


def test_panels_share_a_figure_of_the_courses_width():
    left, right = plots.panels(2, height=2.5)
    assert left.figure is right.figure
    width, height = left.figure.get_size_inches() * left.figure.dpi
    assert (round(width), round(height)) == (720, 250)


def test_the_look_leaves_other_figures_alone():
    matplotlib.rcdefaults()
    before = dict(matplotlib.rcParams)
    plots.lines({"a": [0, 1]}, **LABELS)
    assert dict(matplotlib.rcParams) == before


def test_a_backend_loaded_by_the_first_figure_stays_interactive():
    matplotlib.interactive(False)
    with plots.styled():
        matplotlib.interactive(True)  # what Jupyter's backend does when the first figure loads it
    assert matplotlib.is_interactive()
    matplotlib.interactive(False)
