"""The noise study's pictures: where the first-order form holds and where it fails, and what a group size costs."""

from collections.abc import Iterable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator

from grpo_from_scratch.evaluation.figure import INK, STYLES, spread
from grpo_from_scratch.evaluation.noise_cell import POLICIES, NoiseCell, NoiseStudy
from grpo_from_scratch.evaluation.schema import IntervalJSON
from grpo_from_scratch.objective.groups import first_order_noise_ratio

# One for each group size, light to dark, readable as text on white (at least 3.5 : 1) and ordered by lightness.
SIZE_COLOURS = ("#c2570c", "#117733", "#0072b2", "#4b2a7b")
FAINT = "#57606a"
OPEN = 1e3  # a band without an upper end goes on to so many times the value, beyond the panel
BASELINES = {
    "global": (STYLES["ppo"][0], "global constant µ"),
    "group": (STYLES["cluster_ema"][0], "leave-one-out in the group"),
}


def ratio_figure(study: NoiseStudy) -> Figure:
    """Measured ρ: on the left against ICC, with the first-order form; on the right against the exact formula."""
    figure = Figure(figsize=(10.4, 4.6), layout="constrained", facecolor="white")
    left, right = figure.subplots(1, 2)
    sizes = study["config"]["group_sizes"]
    colours = {size: SIZE_COLOURS[i % len(SIZE_COLOURS)] for i, size in enumerate(sizes)}
    for cell in study["cells"]:
        for group in cell["groups"]:
            colour = colours[group["group_size"]]
            _point(left, cell["icc"], group["measured"], colour, cell["policy"])
            _point(right, group["exact"], group["measured"], colour, cell["policy"])
    limits = {left: _limits(study, "first_order"), right: _limits(study, "exact")}
    _first_order_curves(left, colours, *limits[left])
    right.plot(limits[right], limits[right], color=FAINT, linewidth=0.9, linestyle=(0, (1, 2)))
    for axes in (left, right):
        _plain(axes)
        axes.set_yscale("log")
        axes.set_ylim(limits[axes])
        axes.axhline(1, color=FAINT, linewidth=0.9)
        _plain_ticks(axes.yaxis)
        axes.set_ylabel("measured ρ: global noise / group noise", color=INK, fontsize=11)
    right.set_xscale("log")
    right.set_xlim(limits[right])
    _plain_ticks(right.xaxis)
    left.set_xlabel("ICC: share of reward variance between prompts", color=INK, fontsize=11)
    right.set_xlabel("ρ by the exact formula, from other completions", color=INK, fontsize=11)
    left.set_title("to first order: lines are (1 − 1/G)/(1 − ICC)", loc="left", color=INK, fontsize=12)
    right.set_title("by the exact formula: dots on the diagonal agree", loc="left", color=INK, fontsize=12)
    updates = study["config"]["updates"]
    named = {"fine-tuned": "fine-tuned policy", "trained": f"after {updates} GRPO updates"}
    marks = [Line2D([], [], color=INK, label=named[policy], **_marker(INK, policy)) for policy in POLICIES]
    left.legend(handles=marks, loc="upper left", frameon=False, fontsize=10)
    return figure


def noise_to_signal_figure(study: NoiseStudy) -> Figure:
    """Noise-to-signal against the group size when a batch always has as many completions: a panel for each cell.

    Lines are the exact formula's, with 95 % bands; points are measured noise over the same signal.
    """
    difficulties = study["config"]["difficulties"]
    batch = study["config"]["batch"]
    figure = Figure(figsize=(2.5 * len(difficulties) + 1, 5.4), layout="constrained", facecolor="white")
    panels = figure.subplots(len(POLICIES), len(difficulties), sharex=True, sharey="row", squeeze=False)
    cells = {(cell["policy"], cell["difficulty"]): cell for cell in study["cells"]}
    titles = dict(zip(POLICIES, ("fine-tuned", f"after {study['config']['updates']} updates"), strict=True))
    for policy, line in zip(POLICIES, panels, strict=True):
        for difficulty, axes in zip(difficulties, line, strict=True):
            cell = cells[policy, difficulty]
            _noise_to_signal(axes, cell, batch)
            _plain(axes)
            axes.set_title(f"{difficulty}, ICC {cell['icc']['value']:.2f}", loc="left", color=INK, fontsize=11)
        if (top := _highest(cells[policy, difficulty] for difficulty in difficulties)) > 0:
            line[0].set_ylim(top=1.3 * top)
        line[0].set_ylabel(f"{titles[policy]}:\nnoise / signal, N = {batch}", color=INK, fontsize=11)
    for axes in panels[-1]:
        axes.set_xlabel("group size G", color=INK, fontsize=11)
    handles = [Line2D([], [], color=colour, linewidth=2, label=label) for colour, label in BASELINES.values()]
    figure.legend(handles=handles, loc="outside upper left", ncols=2, frameon=False, fontsize=11)
    return figure


def _highest(cells: Iterable[NoiseCell]) -> float:
    """The highest known end of any line or band; 0 without any."""
    rows = [row for cell in cells for name in BASELINES for row in cell["noise_to_signal"][name] if row]
    return max((row[end] or 0 for row in rows for end in ("value", "high")), default=0)


def _noise_to_signal(axes: Axes, cell: NoiseCell, batch: int) -> None:
    sizes = cell["noise_to_signal"]["group_sizes"]
    signal = cell["terms"]["signal"]["value"]
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    if signal is None or signal <= 0:
        axes.text(0.5, 0.5, "more noise than signal\nin this pool", transform=axes.transAxes, ha="center", color=FAINT)
        return
    axes.set_yscale("log")
    for name, (colour, _) in BASELINES.items():
        known = [(size, row) for size, row in zip(sizes, cell["noise_to_signal"][name], strict=True) if row]
        low, value, high = (np.array([row[end] for _, row in known], dtype=float) for end in ("low", "value", "high"))
        where = [size for size, _ in known]
        axes.plot(where, value, color=colour, linewidth=2)
        axes.fill_between(
            where, low, np.where(np.isnan(high), OPEN * value, high), color=colour, alpha=0.13, linewidth=0
        )
        measured = [(group["group_size"], group["noise"][name]["measured"]["value"]) for group in cell["groups"]]
        heights = [noise / (batch * signal) for _, noise in measured]
        axes.plot([size for size, _ in measured], heights, "o", color=colour, markersize=4)
    _plain_ticks(axes.yaxis)


def _first_order_curves(axes: Axes, colours: dict[int, str], low: float, high: float) -> None:
    """The form's line for each group size, named where it ends or leaves the panel."""
    start, end = axes.get_xlim()
    shares = np.linspace(min(0.0, start), min(0.98, end), 200)
    for size, colour in colours.items():
        axes.plot(shares, [first_order_noise_ratio(share, size) for share in shares], color=colour, linewidth=1.4)
    axes.set_xlim(shares[0], shares[-1])
    ends = [np.log(min(high, first_order_noise_ratio(shares[-1], size))) for size in colours]
    heights = spread(ends, 0.05 * np.log(high / low))
    outside = max(0.0, max(heights) - np.log(high))
    for (size, colour), height in zip(colours.items(), heights, strict=True):
        where = (shares[-1], np.exp(height - outside))
        axes.annotate(f"G = {size}", where, (4, 0), textcoords="offset points", color=colour, fontsize=10, va="center")


def _marker(colour: str, policy: str) -> dict:
    face = colour if policy == POLICIES[0] else "white"
    return {"marker": "o", "markersize": 6, "markerfacecolor": face, "markeredgecolor": colour, "linestyle": "none"}


def _point(axes: Axes, x: IntervalJSON, y: IntervalJSON, colour: str, policy: str) -> None:
    """A cross of two intervals; an open or unknown end is left out."""
    if x["value"] is None or y["value"] is None:
        return
    reach = [[[_reach(v, "low")], [_reach(v, "high")]] for v in (x, y)]
    axes.errorbar(
        x["value"],
        y["value"],
        xerr=reach[0],
        yerr=reach[1],
        ecolor=colour,
        elinewidth=0.8,
        **_marker(colour, policy),
        zorder=3,
    )


def _reach(interval: IntervalJSON, end: str) -> float:
    return 0.0 if interval[end] is None else abs(interval[end] - interval["value"])


def _limits(study: NoiseStudy, prediction: str) -> tuple[float, float]:
    """What a panel shows of ρ: every measured and predicted value with its interval."""
    groups = [group for cell in study["cells"] for group in cell["groups"]]
    ends = [
        group[name][end] for group in groups for name in (prediction, "measured") for end in ("low", "value", "high")
    ]
    ends = [end for end in ends if end is not None and end > 0]
    return 0.9 * min(ends), 1.15 * max(ends)


def _plain(axes: Axes) -> None:
    axes.grid(color="#d0d7de", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK, labelsize=10)


def _plain_ticks(axis) -> None:
    """Ticks at 1, 2 and 5 of every decade, as people write them, on a logarithmic axis."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())
