"""The table's picture: held-out reward against what it cost, in completions and in CPU seconds."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from grpo_from_scratch.evaluation import curves
from grpo_from_scratch.evaluation.schema import Difficulty, Table

LABELS = {
    "ppo": "PPO",
    "grpo": "GRPO",
    "dr_grpo": "Dr. GRPO",
    "rloo": "RLOO",
    "cluster_ema": "cluster EMA",
    "untrained": "untrained",
}
# Told apart by people who see fewer colours, and dark enough to be read as text on white (at least 3.9 : 1); rows close
# in hue differ in their dashes too. Okabe and Ito 2008, Tol 2021.
INK = "#24292f"
STYLES = {
    "ppo": (INK, "-"),
    "grpo": ("#0072b2", "-"),
    "dr_grpo": ("#882255", (0, (6, 1.5))),
    "rloo": ("#117733", (0, (4, 1.2, 1, 1.2))),
    "cluster_ema": ("#d55e00", "-"),
}
SPARE_STYLES = (("#6a51a3", (0, (1, 1))), ("#8c6d00", (0, (3, 1, 1, 1, 1, 1))), ("#006d77", (0, (8, 2))))
SECOND_SHAPE = ("#6e7781", (0, (3, 1.5)))  # PPO in another batch shape than the headline's


def label(name: str) -> str:
    """ "ppo 64x1" -> "PPO 64×1"."""
    algorithm, _, shape = name.partition(" ")
    return " ".join(filter(None, (LABELS.get(algorithm, algorithm), shape.replace("x", "×"))))


def _styles(names: Sequence[str], headline: str | None) -> dict[str, tuple]:
    spare = iter(SPARE_STYLES * len(names))
    styles = {}
    for name in names:
        algorithm = name.split(" ")[0]
        if algorithm == "ppo" and name != headline:
            styles[name] = SECOND_SHAPE
        else:
            styles[name] = STYLES.get(algorithm) or next(spare)
    return styles


def spread(heights: Sequence[float], distance: float) -> list[float]:
    """Heights for labels, in the given order's places, moved as little as need be to stand ``distance`` apart."""
    order = np.argsort(heights, kind="stable")
    # Subtracting each rank's distance turns "at least distance apart" into "never falling": isotonic regression.
    blocks: list[list[float]] = []  # [sum, count]
    for rank, index in enumerate(order):
        blocks.append([heights[index] - rank * distance, 1])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            total, count = blocks.pop()
            blocks[-1][0] += total
            blocks[-1][1] += count
    flat = [total / count for total, count in blocks for _ in range(count)]
    placed = [0.0] * len(heights)
    for rank, index in enumerate(order):
        placed[index] = flat[rank] + rank * distance
    return placed


def _draw(axes: Axes, part: Difficulty, x: str, styles: dict[str, tuple]) -> None:
    for name, curve in part["curves"].items():
        colour, dashes = styles[name]
        reward = curve["reward"]
        low, high = (np.array(reward[end], dtype=float) for end in ("low", "high"))
        axes.fill_between(curve[x], low, high, color=colour, alpha=0.13, linewidth=0)
        axes.plot(curve[x], reward["mean"], color=colour, linestyle=dashes, linewidth=2, label=label(name))
    axes.set_xlim(left=0)
    axes.grid(color="#d0d7de", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK, labelsize=11)


def _write_labels(axes: Axes, part: Difficulty, styles: dict[str, tuple]) -> None:
    """Each line's name beside its end, instead of a legend."""
    names = list(part["curves"])
    ends = [part["curves"][name]["reward"]["mean"][-1] for name in names]
    bottom, top = axes.get_ylim()
    heights = spread(ends, 0.075 * (top - bottom))
    right = axes.get_xlim()[1]
    for name, end, height in zip(names, ends, heights, strict=True):
        colour, _ = styles[name]
        axes.annotate(
            label(name),
            xy=(part["curves"][name]["completions"][-1], end),
            xytext=(right * 1.03, height),
            color=colour,
            fontsize=11,
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": colour,
                "linewidth": 0.7,
                "shrinkA": 1,
                "shrinkB": 1,
                "relpos": (0, 0.5),
            },
        )


def _draw_target(axes: Axes, part: Difficulty, headline: str, *, named: bool) -> None:
    """The height at which sample efficiency is read."""
    curve = np.array(part["curves"][headline]["reward"]["mean"])
    target = curve[0] + curves.HEADLINE_FRACTION * (curves.final_reward(curve) - curve[0])
    axes.axhline(target, color="#57606a", linewidth=0.9, linestyle=(0, (1, 2)))
    if named:
        text = f"{100 * curves.HEADLINE_FRACTION:.0f} % of PPO's gain"
        style = {"fontsize": 9.5, "color": "#57606a", "path_effects": [withStroke(linewidth=3, foreground="white")]}
        axes.annotate(
            text, (0.99, target), (0, -4), ("axes fraction", "data"), "offset points", ha="right", va="top", **style
        )


def curves_figure(table: Table) -> Figure:
    """One line of panels for each difficulty: against completions on the left, against CPU seconds on the right.

    Lines are interquartile means over runs, shades their 95 % bands. The ground stays white in dark mode, so every
    contrast holds there too.
    """
    parts = table["difficulties"]
    figure = Figure(figsize=(9.6, 0.5 + 3.4 * len(parts)), layout="constrained", facecolor="white")
    panels = figure.subplots(len(parts), 2, sharey="row", squeeze=False)
    for (name, part), (left, right) in zip(parts.items(), panels, strict=True):
        headline = part["headline"]
        styles = _styles(list(part["curves"]), headline)
        for axes, x in ((left, "completions"), (right, "cpu_seconds")):
            _draw(axes, part, x, styles)
            if headline in part["curves"]:
                _draw_target(axes, part, headline, named=axes is right)
        _write_labels(left, part, styles)
        left.set_ylabel("held-out reward", color=INK, fontsize=11)
        left.set_title(f"{name}: what a completion buys", loc="left", color=INK, fontsize=12)
        right.set_title("what a CPU second buys", loc="left", color=INK, fontsize=12)
        left.set_xlabel("completions sampled", color=INK, fontsize=11)
        right.set_xlabel("CPU seconds", color=INK, fontsize=11)
    return figure
