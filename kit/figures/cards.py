"""The card under every chart: its size, title, texts, axes and intervals."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from kit.figures.style import COLOURS, format_bytes, is_known

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Numbers = Sequence[float | None]
Row = tuple[Any, float | None, float | None, float | None]  # label, value, low, high

WIDTH = 7.6  # inches; shown at 100 pixels an inch, the width of a notebook's text
#: An interval is drawn as far as this many times the largest value.
_FARTHEST = 3.0
EDGE = 0.25  # inches between a card's edge and what is on it
_DPI = 200
_FONT = "DejaVu Sans"  # comes with matplotlib, so every machine draws the same


def make_card(
    title: str, height: float, left: float, right: float, width: float = WIDTH
) -> tuple[Figure, Axes]:
    """Make a card of this width for axes of this height; all lengths are in inches."""
    from matplotlib.figure import Figure

    first, second, *more = [*wrap(title, width - 2 * EDGE, 12, "bold").split("\n"), ""]
    title = f"{first}\n{second[:-1]}…" if any(more) else f"{first}\n{second}".rstrip()
    top, bottom = 0.36 + 0.22 * (title.count("\n") + 1), 0.63
    total, across = top + height + bottom, width - left - right
    figure = Figure((width, total), _DPI, facecolor=COLOURS["card"], layout="none")
    place = (left / width, bottom / total, across / width, height / total)
    axes = figure.add_axes(place, facecolor="none")
    heading = axes.set_title(title, loc="left", pad=12, **style_text(12, "ink"))
    heading.set(x=(EDGE - left) / across, weight="bold", linespacing=1.3)
    axes.spines[:].set_visible(False)
    axes.set_axisbelow(True)
    return figure, axes


def join_rows(
    labels: Sequence[Any], values: Numbers, lows: Numbers | None, highs: Numbers | None
) -> list[Row]:
    """Join the columns; sequences of unequal lengths end in zip's ValueError."""
    ends = ([None] * len(labels) if x is None else x for x in (lows, highs))
    return list(zip(labels, values, *ends, strict=True))


def list_known(rows: Sequence[Row]) -> list[float]:
    """Return all values and ends of intervals that are known."""
    return [x for row in rows for x in row[1:] if is_known(x)]


def write_rows(rows: Sequence[Row], write: Callable[[float], str]) -> str:
    """Write labels, values and intervals as words for an alt text."""
    words = []
    for label, value, low, high in rows:
        known = is_known(low) and is_known(high)
        ends = f" (95 % interval {write(low)} to {write(high)})" if known else ""
        text = write(value) if is_known(value) else "unknown"
        words.append(f"{label}: {text}{ends}")
    return "; ".join(words)


def write_tick(value: float, _: Any = None) -> str:
    """Write a number on an axis: a whole one in full, a huge one with a word.

    >>> write_tick(0.25), write_tick(2**20), write_tick(4e9), write_tick(-1e-7)
    ('0.25', '1,048,576', '4 billion', '−1e−07')
    """
    text = f"{value:,.6g}"
    if 1e6 <= abs(value) < 1e15:
        words = ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"))
        unit, word = next(pair for pair in words if abs(value) >= pair[0])
        whole = value == round(value) and abs(value) < 1e8
        text = f"{value:,.0f}" if whole else f"{value / unit:.4g} {word}"
    return text.replace("-", "−")


def write_bytes(value: float, _: Any = None) -> str:
    """Write an amount of memory on an axis."""
    return format_bytes(value)


def wrap(text: str, inches: float, size: float = 10, weight: str = "normal") -> str:
    """Break a text into lines no wider than this, wide words after hyphens; cut them.

    >>> wrap("an amd-epyc-2-cores-avx512", 1.5)
    'an amd-epyc-2-\\ncores-avx512'
    """
    lines = [""]
    for word in text.split():
        is_wide = _measure(word, size, weight) > inches
        glue = " "
        for part in re.findall("[^-]*-|[^-]+", word) if is_wide else [word]:
            while len(part) > 1 and _measure(part, size, weight) > inches:
                part = f"{part[:-2]}…"
            longer = f"{lines[-1]}{glue}{part}".strip()
            if lines[-1] and _measure(longer, size, weight) > inches:
                lines.append(part)
            else:
                lines[-1] = longer
            glue = ""
    return "\n".join(lines)


def measure_widest(texts: Sequence[str]) -> float:
    """Return the width of the longest line, in inches."""
    return max((_measure(x) for text in texts for x in text.split("\n")), default=0)


def _measure(text: str, size: float = 10, weight: str = "normal") -> float:
    from matplotlib.backends.backend_agg import RendererAgg
    from matplotlib.font_manager import FontProperties

    font = FontProperties(family=_FONT, size=size, weight=weight)
    renderer = RendererAgg(1, 1, 72)  # at 72 dots per inch, a pixel is a point
    return renderer.get_text_width_height_descent(text, font, ismath=False)[0] / 72


def style_text(size: float, role: str) -> dict[str, Any]:
    """Say all of a text's look, so that a reader's style sheet changes no card."""
    look = {"fontsize": size, "family": _FONT, "parse_math": False}
    return look | {"color": COLOURS.get(role, role)}


def write(
    axes: Axes,
    text: str,
    place: tuple[float, float],
    shift: tuple[float, float] = (0, 0),
    *,
    role: str = "ink",
    **look: Any,
) -> None:
    """Write on the axes, `shift` points from a place; `role` is a role or a colour."""
    look = {"va": "center", "textcoords": "offset points", "zorder": 5} | look
    axes.annotate(text, place, shift, **look, **style_text(10, role))


def find_reach(rows: Sequence[Row], marks: Numbers = ()) -> tuple[float, float]:
    """Return from where to where an axis goes: zero, all values, and their intervals.

    The end of an interval counts up to so many times the largest value, so that a
    single one of which nothing is known does not flatten all the others.

    >>> find_reach([("a", 2.0, 1.5, 4e9), ("b", 1.0, 0.9, 1.1)])
    (0.0, 6.0)
    """
    values = [x for x in (*(row[1] for row in rows), *marks) if is_known(x)]
    most = _FARTHEST * max(map(abs, values), default=0.0)
    low, *_, high = sorted([0.0, 0.0, *list_known(rows), *values])
    return (max(low, -most), min(high, most)) if most else (low, high)


def draw_interval(
    axes: Axes,
    along: str,
    at: float,
    low: Any,
    high: Any,
    colour: str,
    reach: tuple[float, float] = (-math.inf, math.inf),
) -> None:
    """Draw a whisker along "x" or "y" where both ends are known.

    Beyond its reach it is cut, and an arrow there says that it goes on.
    """
    if not (is_known(low) and is_known(high)):
        return

    def place(where: float) -> dict[str, float]:
        return {"x": where, "y": at} if along == "x" else {"x": at, "y": where}

    start, stop = (min(max(end, reach[0]), reach[1]) for end in (low, high))
    look = {"ecolor": colour, "elinewidth": 1.4, "capsize": 3.5, "zorder": 3}
    half = {f"{along}err": (stop - start) / 2}
    axes.errorbar(**place((start + stop) / 2), **half, fmt="none", **look)
    arrows = "<>" if along == "x" else "v^"
    for end, shown, arrow in zip((low, high), (start, stop), arrows, strict=True):
        if end != shown:
            axes.scatter(**place(shown), marker=arrow, color=colour, s=42, zorder=5)


def label_axes(axes: Axes, xlabel: str, ylabel: str, *, grid: str) -> None:
    """Name the axes and draw the grid across "x" or "y"."""
    axes.set_xlabel(xlabel, labelpad=6, **style_text(10, "muted"))
    axes.set_ylabel(ylabel, labelpad=8, **style_text(10, "muted"))
    axes.grid(axis=grid, color=COLOURS["grid"], lw=0.8, ls="-")
    axes.tick_params(length=0, which="both", pad=6)
    numbers = [(axes.xaxis, xlabel), (axes.yaxis, ylabel)]
    for axis, label in numbers if grid == "y" else numbers[:1]:
        in_bytes = label.startswith("bytes")
        axis.set_major_formatter(write_bytes if in_bytes else write_tick)
        look = {"labelcolor": COLOURS["muted"], "labelfontfamily": _FONT}
        axis.set_tick_params(labelsize=9.5, **look)
    axes.minorticks_off()
    if grid == "y":
        axes.spines["bottom"].set(visible=True, color=COLOURS["ink"], linewidth=1)


def set_ticks(axes: Axes, wanted: Sequence[float]) -> None:
    """Set ticks along x; those too close to one that comes earlier are left out."""
    low, high = axes.get_xlim()
    kept: dict[float, float] = {}
    for x in (x for x in wanted if low <= x <= high):
        place = axes.transData.transform((x, 1))[0] / _DPI
        if all(abs(place - other) > 0.42 for other in kept.values()):
            kept[x] = place
    axes.set_xticks(sorted(kept))


def label_ends(
    axes: Axes, names: Sequence[str], ends: Sequence[tuple[Any, Any, str]]
) -> None:
    """Write names at the right, as near to their (x, y, colour) as they have room."""
    bottom, top = axes.get_window_extent().intervaly
    gap = (0.2 + 0.16 * max((n.count("\n") for n in names), default=0)) * _DPI
    heights = [axes.transData.transform((1, y or 0))[1] for _, y, _ in ends]
    order = sorted(range(len(ends)), key=heights.__getitem__)
    floor, ceiling = bottom, top
    for i in order:
        heights[i] = max(heights[i], floor)
        floor = heights[i] + gap
    for i in reversed(order):
        heights[i] = min(heights[i], ceiling)
        ceiling = heights[i] - gap
    for height, name, (x, y, colour) in zip(heights, names, ends, strict=True):
        line = {"arrowstyle": "-", "color": COLOURS["border"], "shrinkB": 7}
        line["relpos"] = (0, 0.5)  # from the left edge, so not across other names
        place = (1.025, (height - bottom) / (top - bottom))
        look = {"textcoords": "axes fraction", "annotation_clip": False, "role": colour}
        look["arrowprops"] = None if x is None else line
        write(axes, name, (0, 0) if x is None else (x, y), place, **look)
