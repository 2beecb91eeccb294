"""The course's figures: one look, four forms, and panels to set them side by side.

Each form draws on ``ax`` (or on a figure of its own) and returns the Axes and what it drew, by name, so that a test
or an assert in a cell can check the numbers behind a picture. Axes are labelled, with units; series carry their names
where they end instead of a legend. A figure is 720 pixels wide, which GitHub shows unscaled, on a white ground, which
stays readable on a dark page.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

# After Okabe and Ito (2008), darkened until each has contrast 3 on white; any two stay apart under every common
# colour blindness. Names take them in this order.
COLOURS = {
    "blue": "#0072B2",
    "orange": "#D55E00",
    "green": "#009E73",
    "violet": "#8228F5",
    "wine": "#882255",
    "black": "#222222",
}
SERIES = tuple(COLOURS.values())
GREY = "#767676"  # references and baselines: what a series is compared with, never a series
WIDTH, DPI = 7.2, 100
STYLE = {
    "figure.dpi": DPI,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "axes.facecolor": "white",
    "axes.edgecolor": GREY,
    "axes.labelcolor": "#222222",
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "axes.labelsize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "font.size": 11,
    "lines.linewidth": 2.2,
    "text.color": "#222222",
    "xtick.color": "#444444",
    "ytick.color": "#444444",
}


@contextmanager
def styled() -> Iterator[None]:
    """The course's look while a figure is made.

    Not ``matplotlib.rc_context``, which puts every setting back: Jupyter's backend is loaded by the first figure and
    says then that figures are to be shown.
    """
    before = {name: matplotlib.rcParams[name] for name in STYLE}
    matplotlib.rcParams.update(STYLE)
    try:
        yield
    finally:
        matplotlib.rcParams.update(before)


@styled()
def panels(count: int = 1, *, height: float = 3.0, ratios: Sequence[float] | None = None) -> list[Axes]:
    """``count`` axes side by side in one figure of the course's width; ``height`` in inches, ``ratios`` of widths."""
    _, axes = plt.subplots(
        1, count, figsize=(WIDTH, height), dpi=DPI, layout="constrained", squeeze=False, width_ratios=ratios
    )
    return list(axes[0])


@styled()
def lines(
    series: Mapping[str, ArrayLike | tuple[ArrayLike, ArrayLike]],
    *,
    xlabel: str,
    ylabel: str,
    title: str = "",
    dots: Collection[str] = (),
    bands: Mapping[str, tuple[ArrayLike, ArrayLike]] | None = None,
    reference: Mapping[str, float] | None = None,
    ax: Axes | None = None,
) -> tuple[Axes, dict[str, np.ndarray]]:
    """Curves, each with its name at its right end.

    Args:
        series: y values by name, or pairs (x, y); without x the values are numbered from 0.
        xlabel, ylabel: what is on the axes, and its unit.
        dots: names of series drawn as dots, such as what was measured beside what was predicted.
        bands: (low, high) around a series, by its name.
        reference: heights of dashed grey lines, by name.
        ax: where to draw; set its scales before.

    Returns:
        The axes, and for each series an array (2, n) of x and y, for each reference its height.
    """
    ax = ax or panels()[0]
    drawn, ends = {}, []
    for (name, values), colour in zip(series.items(), SERIES[: len(series)], strict=True):
        x, y = values if isinstance(values, tuple) else (np.arange(len(values)), values)
        drawn[name] = np.stack([np.asarray(x, float), np.asarray(y, float)])
        ax.plot(*drawn[name], "o" if name in dots else "-", color=colour)
        if name in (bands or {}):
            ax.fill_between(drawn[name][0], *bands[name], color=colour, alpha=0.18, linewidth=0)
        ends.append((drawn[name][1][-1], name, colour))
    for name, height in (reference or {}).items():
        ax.axhline(height, color=GREY, linestyle="--", linewidth=1.5)
        drawn[name] = np.asarray(height, float)
        ends.append((float(height), name, GREY))
    ax.margins(x=0.02 if dots else 0)
    dress(ax, xlabel, ylabel, title)
    name_ends(ax, ends)
    return ax, drawn


@styled()
def bars(
    series: Mapping[str, ArrayLike],
    names: Sequence[str],
    *,
    xlabel: str,
    ylabel: str,
    title: str = "",
    errors: Mapping[str, ArrayLike] | None = None,
    digits: int | None = 2,
    ax: Axes | None = None,
) -> tuple[Axes, dict[str, np.ndarray]]:
    """Bars in groups, with their values above them.

    Args:
        series: heights by series, one for each of ``names``.
        names: what stands under each group of bars.
        xlabel, ylabel: what is on the axes, and its unit.
        errors: half-lengths of error bars, by series.
        digits: decimals of the values above the bars; None leaves them out.

    Returns:
        The axes, and each series' heights.
    """
    ax = ax or panels()[0]
    drawn = {name: np.asarray(values, float) for name, values in series.items()}
    width = 0.8 / len(drawn)
    for index, ((name, heights), colour) in enumerate(zip(drawn.items(), SERIES[: len(drawn)], strict=True)):
        where = np.arange(len(names)) + (index - (len(drawn) - 1) / 2) * width
        shown = ax.bar(where, heights, width * 0.92, color=colour, label=name)
        if name in (errors or {}):
            ax.errorbar(where, heights, np.asarray(errors[name], float), fmt="none", ecolor="#222222", capsize=3)
        elif digits is not None:
            ax.bar_label(shown, fmt=f"%.{digits}f", fontsize=8.5, padding=2)
    ax.axhline(0, color=GREY, linewidth=1)
    ax.set_xticks(range(len(names)), names)
    ax.grid(axis="x", visible=False)
    ax.margins(y=0.14)
    dress(ax, xlabel, ylabel, title)
    if len(drawn) > 1:  # bars have no end to write a name at
        above = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.1, "borderpad": 0}
        ax.legend(frameon=False, labelcolor="linecolor", ncols=len(drawn), handlelength=1, **above)
        ax.set_title(title, pad=24)
    return ax, drawn


@styled()
def points(
    series: Mapping[str, tuple[ArrayLike, ArrayLike]],
    *,
    xlabel: str,
    ylabel: str,
    title: str = "",
    ax: Axes | None = None,
) -> tuple[Axes, dict[str, np.ndarray]]:
    """Clouds of points (x, y), each with its name at its middle.

    Returns:
        The axes, and for each cloud an array (2, n).
    """
    ax = ax or panels()[0]
    drawn = {name: np.stack([np.asarray(x, float), np.asarray(y, float)]) for name, (x, y) in series.items()}
    for (name, cloud), colour, marker in zip(drawn.items(), SERIES[: len(drawn)], "osD^vP"[: len(drawn)], strict=True):
        ax.scatter(*cloud, s=22, color=colour, marker=marker, alpha=0.75, linewidth=0)
        ground = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5}
        ax.text(*np.median(cloud, axis=1), name, color=colour, weight="bold", ha="center", va="center", bbox=ground)
    dress(ax, xlabel, ylabel, title)
    return ax, drawn


@styled()
def heatmap(
    values: ArrayLike,
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    xlabel: str,
    ylabel: str,
    title: str = "",
    digits: int = 2,
    centre: float | None = None,
    ax: Axes | None = None,
) -> tuple[Axes, dict[str, np.ndarray]]:
    """A table of numbers as colours, with the numbers in it; NaN stays blank.

    Args:
        values: (len(rows), len(columns)).
        centre: where a two-sided scale turns from violet to orange; None is a one-sided scale.

    Returns:
        The axes, and ``{"values": array}``.
    """
    ax = ax or panels()[0]
    table = np.asarray(values, float)
    if centre is None:
        shown = ax.imshow(table, cmap="Blues", aspect="auto", vmax=np.nanmax(table) * 1.3 or 1)
    else:
        reach = np.nanmax(np.abs(table - centre)) or 1
        shown = ax.imshow(table, cmap="PuOr_r", aspect="auto", vmin=centre - reach * 1.3, vmax=centre + reach * 1.3)
    for (row, column), value in np.ndenumerate(table):
        if np.isfinite(value):
            light = np.dot(shown.to_rgba(value)[:3], (0.299, 0.587, 0.114)) > 0.5
            colour = "#222222" if light else "white"
            ax.text(column, row, f"{value:.{digits}f}", ha="center", va="center", color=colour, fontsize=10)
    ax.set_xticks(range(len(columns)), columns)
    ax.set_yticks(range(len(rows)), rows)
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    dress(ax, xlabel, ylabel, title)
    return ax, {"values": table}


def dress(ax: Axes, xlabel: str, ylabel: str, title: str) -> None:
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    ax.set_title(title)


def name_ends(ax: Axes, ends: list[tuple[float, str, str]]) -> None:
    """Write each (height, name, colour) right of the axes at its height, pushed apart where names would overlap."""
    to_fraction = ax.transData + ax.transAxes.inverted()
    x = ax.get_xlim()[1]
    labels = sorted((to_fraction.transform((x, height))[1], name, colour) for height, name, colour in ends)
    gap = 0.2 / (ax.figure.get_figheight() * ax.get_position().height)  # a line of text, in heights of the axes
    heights = [min(max(fraction, 0.0), 1.0) for fraction, *_ in labels]
    for index in range(1, len(heights)):
        heights[index] = max(heights[index], heights[index - 1] + gap)
    ceiling = 1.0
    for index in reversed(range(len(heights))):
        ceiling = heights[index] = min(heights[index], ceiling)
        ceiling -= gap
    for height, (_, name, colour) in zip(heights, labels, strict=True):
        where = {"xycoords": "axes fraction", "va": "center", "annotation_clip": False}
        ax.annotate(name, (1.015, height), color=colour, **where)
