"""The pictures of chapter 06: the knee, losses, time to a target, and waves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from batches_06 import Race
from matplotlib.figure import Figure

from kit.figures import COLORS, draw_lines, kit_look
from kit.tuning import Line


def draw_knee(sizes: Sequence[int], rates: Sequence[float], step: Line) -> Figure:
    """Draw images per second, those of the line t(b), its limit, and two shares."""
    curve = _spread(sizes[0], sizes[-1])
    lines = {
        "measured": (sizes, rates, None, None, "measured"),
        "predicted": (
            curve,
            [size / step.predict(size) for size in curve],
            None,
            None,
            "predicted",
        ),
    }
    half, most = step.find_knee(0.5), step.find_knee(0.95)
    if 0 < half and most < math.inf:
        title = (
            f"A batch of {half:.0f} has half of the highest rate, {most:.0f} has 95 %"
        )
    else:
        title = "These sizes have no knee: the line has no fixed part, or nothing else"
    names = {"xlabel": "images in a batch", "ylabel": "images per second"}
    figure = draw_lines(lines, title=title, logx=True, **names)
    axes = figure.axes[0]
    _set_ticks(axes, sizes)
    if 0 < half and most < math.inf:
        limit = 1 / step.each
        low, high = axes.get_ylim()
        axes.set_ylim(low, max(high, 1.1 * limit))
        axes.axhline(limit, color=COLORS["muted"], linestyle=":")
        look = {"color": COLORS["muted"], "va": "bottom", "size": 9}
        axes.text(sizes[0], limit, "highest rate, r", **look)
        for share, size in ((0.5, half), (0.95, most)):
            if sizes[0] <= size <= sizes[-1]:
                axes.axvline(size, color=COLORS["muted"], linestyle=":")
                axes.text(size, low, f" {share:.0%}", **look)
    return figure


def draw_losses(curves: Mapping[str, Sequence[float]], size: int) -> Figure:
    """Draw the training losses of batches of `size`; the title names the lowest."""
    lines, ends = {}, {}
    for name, losses in curves.items():
        seen = [size * (step + 1) for step in range(len(losses))]
        lines[name] = (seen, losses, None, None, "measured")
        ends[name] = sum(losses[-4:]) / 4
    best = min(ends, key=lambda name: ends[name])
    title = f"In the last four steps, {best} has the lowest mean loss: {ends[best]:.2f}"
    names = {"xlabel": "images seen", "ylabel": "training loss"}
    return draw_lines(lines, title=title, **names)


@kit_look()
def draw_target(
    sizes: Sequence[int],
    seconds: Sequence[Sequence[float]],
    race: Race,
    step: Line,
) -> Figure:
    """Draw the seconds to the target: each seed, the formula, and the best batches."""
    curve = _spread(min(sizes), max(sizes))
    formula = [race.images.predict(b) / b * step.predict(b) for b in curve]
    order = sorted(range(len(sizes)), key=lambda place: sizes[place])
    middles = [sorted(seconds[place])[len(seconds[place]) // 2] for place in order]
    lines = {
        "median": ([sizes[p] for p in order], middles, None, None, "measured"),
        "formula": (curve, formula, None, None, "predicted"),
    }
    low, high = race.best
    title = f"By the formula, a batch of {low:.0f} to {high:.0f} is at the target first"
    if round(low) == round(high):
        title = f"By the formula, a batch of {low:.0f} is at the target first"
    names = {"xlabel": "images in a batch", "ylabel": "seconds to the target"}
    figure = draw_lines(lines, title=title, logx=True, **names)
    axes = figure.axes[0]
    every = [*formula, *(value for row in seconds for value in row)]
    axes.set_yscale("linear")
    axes.set_ylim(0, 1.08 * max(every))
    axes.lines[0].set_linestyle("none")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    _set_ticks(axes, sorted(sizes))
    axes.axvspan(low, high, color=COLORS["zone"], zorder=0)
    for place in order:
        row = seconds[place]
        look = {"ms": 4, "mfc": "none", "mec": COLORS["muted"], "zorder": 5}
        axes.plot([sizes[place]] * len(row), row, "o", **look)
    return figure


def draw_waves(rows: Sequence[int], waves: Sequence[int], title: str) -> Figure:
    """Draw how many waves a matrix product needs, by the rows of the batch."""
    lines = {"waves": (rows, waves, None, None, "predicted")}
    names = {"xlabel": "images in a batch", "ylabel": "waves"}
    figure = draw_lines(lines, title=title, **names)
    figure.axes[0].lines[0].set_linestyle("-")
    return figure


def _spread(low: float, high: float) -> list[float]:
    """Return sizes between two, each larger by the same factor."""
    factor = (high / low) ** (1 / 60)
    return [round(low * factor**place, 1) for place in range(61)]


def _set_ticks(axes: object, sizes: Sequence[int]) -> None:
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])  # type: ignore[attr-defined]
    axes.minorticks_off()  # type: ignore[attr-defined]
