"""The drawing of chapter 00: twenty intervals."""

from __future__ import annotations

import logging

import numpy
from matplotlib.figure import Figure
from scipy import stats

from kit.figures import COLORS, kit_look
from kit.figures.style import describe, new_figure

# torch.utils.benchmark loads it, and it says on some machines that there is no CUDA.
logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)


def simulate_intervals(count: int = 20, values: int = 5) -> list[tuple[float, float]]:
    """Return 95 % intervals of a mean that is 1, each of some random values."""
    random = numpy.random.default_rng(5)
    intervals = []
    for _ in range(count):
        drawn = random.normal(1.0, 0.05, values)
        half = stats.t.ppf(0.975, values - 1) * stats.sem(drawn)
        intervals.append((drawn.mean() - half, drawn.mean() + half))
    return intervals


@kit_look()
def draw_intervals(intervals: list[tuple[float, float]]) -> Figure:
    """Draw intervals below each other, and the truth, which is 1, as a line."""
    count = len(intervals)
    missing = sum(not low < 1 < high for low, high in intervals)
    title = f"{count - missing} of {count} intervals hold the truth"
    figure = new_figure(title, 2.8)
    axes = figure.subplots()
    for row, (low, high) in enumerate(intervals):
        holds = low < 1 < high
        color = COLORS["measured" if holds else "muted"]
        axes.hlines(row, low, high, color, lw=3.5)
        if not holds:
            axes.text(low, row, "misses ", color=color, ha="right", va="center")
    axes.axvline(1, color=COLORS["ink"], lw=1.2)
    axes.set_xticks([1], ["the truth"])
    axes.set(yticks=[], ylim=(count, -1))
    axes.grid(visible=False)
    return describe(
        figure,
        title,
        f"{count} horizontal intervals around a vertical line, the truth; "
        f"{missing} of them lie beside it",
    )
