"""The picture of a data set: how long its texts are, and how much of it is doubtful."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from grpo_from_scratch.dialogue.summary import Summary
from grpo_from_scratch.evaluation.figure import INK

SPLIT_COLOURS = {"train": "#0072b2", "tuning": "#d55e00", "report": "#117733"}
FAINT = "#57606a"
MOST_BARS = 30  # of a histogram


def data_figure(summary: Summary, title: str) -> Figure:
    """Histograms of every length, each split's as shares of its own, and the flags below them."""
    names = list(next(iter(summary.lengths.values())))
    columns = 3 if len(names) > 4 else 2
    rows = -(-len(names) // columns)
    height = 2.5 * rows + 0.9 + 0.32 * len(summary.flags)
    figure = Figure(figsize=(10.4, height), layout="constrained", facecolor="white")
    upper, lower = figure.subfigures(2, 1, height_ratios=[2.5 * rows, 0.9 + 0.32 * len(summary.flags)])
    panels = list(upper.subplots(rows, columns, squeeze=False).flat)
    for axes, name in zip(panels, names, strict=False):
        _histogram(axes, {split: lengths[name] for split, lengths in summary.lengths.items()}, name)
    for axes in panels[len(names) :]:
        axes.set_visible(False)
    counts = ", ".join(f"{count} {split}" for split, count in summary.examples.items())
    upper.suptitle(f"{title}: {counts}", x=0.01, ha="left", color=INK, fontsize=12)
    lines, labels = panels[0].get_legend_handles_labels()
    upper.legend(lines, labels, loc="outside upper right", ncols=len(labels), frameon=False, fontsize=10)
    _flags(lower.subplots(), summary)
    return figure


def _histogram(axes: Axes, lengths: dict[str, list[int]], name: str) -> None:
    everything = np.concatenate([np.asarray(some) for some in lengths.values()])
    first, last = int(everything.min()), int(everything.max())
    # A few very long ones would press all others into the first bar, so they stand in the last one.
    usual = int(np.quantile(everything, 0.99, method="inverted_cdf"))
    if last > 1.5 * usual:
        axes.set_xlabel(f"the last bar goes on to {last}", color=FAINT, fontsize=9)
        last = usual
    width = -(-(last - first + 1) // MOST_BARS)
    edges = np.arange(first, last + width + 1, width) - 0.5
    for split, some in lengths.items():
        counts, _ = np.histogram(np.minimum(some, last), edges)
        shares = counts / max(len(some), 1)
        axes.stairs(shares, edges, color=SPLIT_COLOURS[split], linewidth=1.6, label=split)
    axes.set_title(name, loc="left", color=INK, fontsize=11)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    _quiet(axes)


def _flags(axes: Axes, summary: Summary) -> None:
    flags = dict(reversed(summary.flags.items()))
    shares = [flag.share for flag in flags.values()]
    axes.barh(range(len(flags)), shares, color=INK, height=0.55)
    for place, flag in enumerate(flags.values()):
        axes.text(flag.share, place, f" {flag.share:.1%} of {flag.among}", va="center", color=FAINT, fontsize=9)
    axes.set_yticks(range(len(flags)), list(flags))
    axes.set_xlim(0, max(0.1, *shares) * 1.25)
    axes.set_xticks([tick for tick in axes.get_xticks() if tick <= 1])
    axes.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.set_title("what is doubtful", loc="left", color=INK, fontsize=11)
    _quiet(axes)


def _quiet(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK, labelsize=9)
