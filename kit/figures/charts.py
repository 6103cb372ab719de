"""Charts: bars of values, a quantity over a knob, times of steps, stacked amounts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kit.figures import style
from kit.figures.html import describe
from kit.figures.style import COLOURS, alone, format_number, is_known, write_tick

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Numbers = Sequence[float | None]
Series = tuple[Numbers, Numbers, Numbers | None, Numbers | None, str]
Row = tuple[Any, float | None, float | None, float | None]  # label, value, low, high

_DOTTED = {"color": COLOURS["ink"], "lw": 0.8, "ls": (0, (2, 3)), "zorder": 1}
_DASHED = {"color": COLOURS["predicted"], "lw": 2, "ls": (0, (2, 1)), "zorder": 5}
_OFFSET = {"textcoords": "offset points", "va": "center"}  # of a label beside a point
_LOOKS: dict[str, dict[str, Any]] = {
    "measured": {},
    "predicted": {"ls": (0, (5, 2)), "marker": ""},
    "recorded": {"mfc": COLOURS["card"], "lw": 1.1, "color": COLOURS["recorded"]},
}
#: Bands from the lowest on have these phases' looks: the colour-blind tell them apart.
_BANDS = ("forward", "copies", "optimizer", "backward", "sync", "communication")


@alone()
def draw_bars(
    labels: Sequence[str],
    values: Numbers,
    lows: Numbers | None = None,
    highs: Numbers | None = None,
    *,
    title: str,
    unit: str,
    baseline: int | None = None,
    recorded: Sequence[int] = (),
    predicted: Numbers = (),
    width: float = style.WIDTH,
) -> Figure:
    """Draw one horizontal bar per label, with its 95 % interval and its value in words.

    `lows` and `highs` are the intervals' ends. A value that is None or nan is written
    as unknown. `baseline` is the number of a row, from 0, `recorded` those of rows that
    were measured elsewhere; both are hatched. `predicted` are values of the first rows,
    each drawn as a dashed frame. `width` is in inches. Raises ValueError where the
    sequences' lengths differ.

    >>> figure = draw_bars(["0", "2"], [770, 1578], title="Two are faster", unit="1/s")
    >>> [int(bar.get_width()) for bar in figure.axes[0].patches]
    [770, 1578]
    """
    rows = _join(labels, values, lows, highs)
    marks = {y: value for y, value in enumerate(predicted) if is_known(value)}
    axes = style.make_card(title, 0.46 * max(1, len(rows)) + 0.75, width).add_subplot()
    roles = ["recorded" if y in recorded else "measured" for y in range(len(rows))]
    if baseline is not None:
        roles[baseline] = "baseline"
        axes.axvline(values[baseline] or 0, **_DOTTED)
    draw_rows(axes, rows, list(map(format_number, values)), roles, marks)
    for y, value in marks.items():
        look = {"fill": False, "ec": COLOURS[roles[y]], "ls": (0, (3, 1.5)), "lw": 1.4}
        axes.barh(y, value, 0.8, **look)
    _label_axes(axes, unit + " (dashed: predicted)" * bool(marks))
    told = "; ".join(f"{labels[y]}: {format_number(x)}" for y, x in marks.items())
    said = f"Predicted: {told}" if marks else ""
    return describe(axes.figure, f"Bars, {unit}", title, tell_rows(rows), said)


def draw_rows(
    axes: Axes,
    rows: Sequence[Row],
    texts: Sequence[str],
    roles: Sequence[str],
    marks: Mapping[int, float] | None = None,
) -> None:
    """Draw a bar per row, the first at the top, with its interval and its text.

    A text stands beyond its row's mark, too. An interval that leaves the axis is cut.
    """
    marks = marks or {}
    third = axes.get_figure(root=True).get_figwidth() / 3  # type: ignore[union-attr]
    reach = _find_reach(rows, [*marks.values()])
    for y, (_, value, low, high) in enumerate(rows):
        if is_known(value):
            hatch = style.HATCH if roles[y] != "measured" else None
            look = {"fc": COLOURS[roles[y]], "ec": COLOURS["card"], "lw": 0}
            axes.barh(y, value, 0.62, hatch=hatch, **look)
        _draw_interval(axes, "x", (y, value, low, high), COLOURS["ink"])
        end = min(reach[1], max([0, *filter(is_known, (value, high, marks.get(y)))]))
        axes.annotate(texts[y], (end, y), (7, 0), **_OFFSET)
    axes.axvline(0, color=COLOURS["ink"], lw=1)
    axes.set(xlim=reach if any(reach) else (0, 1), ylim=(max(1, len(rows)) - 0.4, -0.6))
    labels = [style.wrap(str(row[0]), third) for row in rows]
    axes.set_yticks(range(len(rows)), labels, color=COLOURS["ink"])
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(length=0)
    axes.locator_params(axis="x", nbins=min(5, int(2 * third)))


@alone()
def draw_lines(
    series: Mapping[str, Series],
    *,
    title: str,
    xlabel: str,
    ylabel: str,
    logx: bool = False,
    width: float = style.WIDTH,
) -> Figure:
    """Draw named lines, each with its name at its end.

    A series is (xs, ys, lows or None, highs or None, kind): "measured" has markers and
    95 % intervals, "predicted" is dashed, "recorded" has hollow markers. "predicted,
    workers=2" has the colour of "workers=2". The vertical axis begins at zero, or is
    logarithmic where values span more than ten; so is the horizontal one if `logx`, but
    for a zero. `width` is in inches. Raises ValueError for another kind.

    >>> series = {"here": ([1, 2], [5, 9], None, None, "measured")}
    >>> figure = draw_lines(series, title="It grows", xlabel="workers", ylabel="1/s")
    >>> figure.axes[0].lines[0].get_ydata().tolist()
    [5, 9]
    """
    lines = {name: _join(*columns) for name, (*columns, _) in series.items()}
    rows = list(itertools.chain(*lines.values()))
    looks = _choose_looks(series)
    axes = style.make_card(title, 3.7, width).add_subplot()
    _set_width(axes, sorted({x for x, *_ in rows}), logx)
    _set_height(axes, rows)
    ends = {}
    for name, own in lines.items():
        known = [row[:2] for row in own if is_known(row[1])]
        heights = [y if is_known(y) else math.nan for _, y, *_ in own]
        size = 6 if len(own) <= 60 else 2
        xs = [x for x, *_ in own]
        axes.plot(xs, heights, label=name, zorder=4, ms=size, **looks[name])
        for row in own:
            _draw_interval(axes, "y", row, looks[name]["color"])
        ends[name] = (known[-1] if known else None, looks[name]["color"])
    _label_axes(axes, xlabel, ylabel)
    _label_ends(axes, ends, max(1.5, width / 4.5))
    told = [f"{name}: {_tell_line(own)}" for name, own in lines.items()]
    return describe(axes.figure, f"{ylabel} over {xlabel}", title, *told)


def draw_steps(
    times_seconds: Numbers, *, title: str, ylabel: str = "milliseconds per step"
) -> Figure:
    """Draw the times of consecutive steps in milliseconds, beside their median.

    Steps count from 1.

    >>> figure = draw_steps([0.2, 0.01, 0.01], title="The first step is slow")
    >>> figure.axes[0].lines[0].get_ydata().tolist()
    [200.0, 10.0, 10.0]
    """
    ms = [t * 1000 if is_known(t) else None for t in times_seconds]
    known = sorted(filter(is_known, ms)) or [math.nan]
    steps, median = range(1, len(ms) + 1), known[len(known) // 2]
    series = {"measured": (steps, ms, None, None, "measured")}
    name = f"median {style.format_seconds(median / 1000)}"
    series[name] = ([1, len(ms)], [median, median], None, None, "predicted")
    return draw_lines(series, title=title, xlabel="step", ylabel=ylabel)


@alone()
def draw_stack(
    positions: Sequence[float],
    values: Mapping[str, Sequence[float]],
    *,
    title: str,
    xlabel: str,
    ylabel: str,
    regions: Sequence[tuple[float, float, str]] = (),
    marks: Mapping[str, float] | None = None,
) -> Figure:
    """Draw named amounts as bands on top of each other, and mark where all are most.

    `values` are the bands from the lowest on, six at most, each an amount for every
    position. A region (first position, last position, text) is named above. `marks`
    are named totals, a predicted one say, drawn as dashed lines across. Raises
    ValueError for sequences of unequal lengths and for more bands.

    >>> bands = {"parameters": [4, 4, 4], "activations": [0, 6, 0]}
    >>> figure = draw_stack([0, 1, 2], bands, title="T", xlabel="place", ylabel="MB")
    >>> figure.alt[18:63]
    'At most 10.0, at 1. parameters: 0: 4.00; 1: 4'
    """
    marks, totals = marks or {}, [sum(x) for x in zip(*values.values(), strict=True)]
    peak, at = max(zip(totals, positions, strict=True))
    figure = style.make_card(title, 3.7)
    axes = figure.add_subplot(xlim=(positions[0], positions[-1]))
    axes.set_ylim(0, 1.2 * max([peak, *marks.values()]) or 1)
    bands = axes.stackplot(positions, *values.values(), labels=list(values))
    for band, phase in zip(bands, _BANDS[: len(bands)], strict=True):
        style.paint(band, phase)
    axes.plot(positions, totals, color=COLOURS["ink"])
    axes.plot(at, peak, "v", color=COLOURS["ink"], label=f"peak {format_number(peak)}")
    said = [f"At most {format_number(peak)}, at {at:g}"]
    for name, mark in marks.items():
        axes.axhline(mark, label=f"{name} {format_number(mark)}", **_DASHED)
        said.append(f"{name}: {format_number(mark)}")
    above = {"transform": axes.get_xaxis_transform(), "ha": "center"}
    for start, stop, text in regions:
        axes.text((start + stop) / 2, 1.02, text, color=COLOURS["muted"], **above)
        axes.axvline(start, **_DOTTED)
        said.append(f"From {start:g} to {stop:g}: {text}")
    figure.legend(loc="outside right center", reverse=True)
    _label_axes(axes, xlabel, ylabel)
    for name, amounts in values.items():
        said.append(f"{name}: {_tell_line(_join(positions, amounts, None, None))}")
    return describe(figure, f"{ylabel} over {xlabel}", title, *said)


def tell_rows(rows: Sequence[Row], write: Callable[[Any], str] = format_number) -> str:
    """Return labels, values and intervals as words for an alt text."""
    words = []
    for label, value, low, high in rows:
        known = is_known(low) and is_known(high)
        ends = f" (95 % interval {write(low)} to {write(high)})" if known else ""
        words.append(f"{label}: {write(value)}{ends}")
    return "; ".join(words)


def _join(
    labels: Sequence[Any], values: Numbers, lows: Numbers | None, highs: Numbers | None
) -> list[Row]:
    """Join the columns; sequences of unequal lengths end in zip's ValueError."""
    ends = ([None] * len(labels) if x is None else x for x in (lows, highs))
    return list(zip(labels, values, *ends, strict=True))


def _find_reach(rows: Sequence[Row], marks: Numbers = ()) -> tuple[float, float]:
    """Return from where to where an axis goes: zero, all values, and their intervals.

    The end of an interval counts up to three times the largest value, so that a single
    one of which nothing is known does not flatten all the others.

    >>> _find_reach([("a", 2.0, 1.5, 4e9), ("b", 1.0, 0.9, 1.1)])
    (0.0, 6.0)
    """
    values = [x for x in (*(row[1] for row in rows), *marks) if is_known(x)] or [0.0]
    most = 3 * max(map(abs, values)) or math.inf
    ends = [0.0, *values, *(x for row in rows for x in row[2:] if is_known(x))]
    return max(min(ends), -most), min(max(ends), most)


def _tell_line(rows: Sequence[Row]) -> str:
    """Tell a line's points, of many only the first, the least, the most, the last."""
    known = sorted((row for row in rows if is_known(row[1])), key=lambda row: row[1])
    if len(rows) > 20 and known:
        rows = [rows[0], known[0], known[-1], rows[-1]]
    return tell_rows([(write_tick(x), *rest) for x, *rest in rows])


def _choose_looks(series: Mapping[str, Series]) -> dict[str, dict[str, Any]]:
    """Return the look of each line; a prediction's colour is that of its series."""
    looks, numbers = {}, {}
    for name, (*_, kind) in series.items():
        if kind not in _LOOKS:
            raise ValueError(f"{name}: no kind {kind!r}; there are {list(_LOOKS)}")
        subject = name.removeprefix("predicted").removeprefix(", ") or "measured"
        number = numbers.setdefault(subject, len(numbers)) % len(style.LINES)
        colour, marker = style.LINES[number]
        looks[name] = {"color": colour, "marker": marker} | _LOOKS[kind]
    return looks


def _set_width(axes: Axes, xs: Sequence[float], logx: bool) -> None:
    """Scale the horizontal axis; put a tick at each of a few x that have room."""
    positive = [x for x in xs if x > 0]
    if logx and len(positive) > 1:
        zero = {"linthresh": positive[0], "linscale": 0.5} if xs[0] <= 0 else {}
        axes.set_xscale("symlog" if zero else "log", **zero)
    if len(xs) <= 12 and (logx or not style.is_wide(positive)):
        axes.set_xticks(xs)


def _set_height(axes: Axes, rows: Sequence[Row]) -> None:
    """Let the vertical axis begin at zero, or make it logarithmic."""
    from matplotlib.ticker import LogLocator

    values = [y for _, y, *_ in rows if is_known(y)]
    if not style.is_wide(values):
        low, high = _find_reach(rows)
        axes.set_ylim(1.1 * low, 1.1 * high or 1)
        return
    low, high = min(values), max(values)
    axes.set(yscale="log", ylim=(low / 1.5, high * 1.5))
    few = high < 1000 * low
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,)))


def _draw_interval(axes: Axes, along: str, row: Row, colour: str) -> None:
    """Draw a whisker along "x" or "y", if both of its ends are known."""
    at, _, low, high = row
    if is_known(low) and is_known(high):
        half, middle = {f"{along}err": (high - low) / 2}, (high + low) / 2
        place = (middle, at) if along == "x" else (at, middle)
        look = {"fmt": "none", "ecolor": colour, "capsize": 3.5, "elinewidth": 1.4}
        axes.errorbar(*place, **half, **look)


def _label_axes(axes: Axes, xlabel: str, ylabel: str = "") -> None:
    """Name the axes that carry numbers, and draw a grid across the last of them."""
    ylabel += " (logarithmic)" * (axes.get_yscale() == "log")
    for axis, label in ((axes.xaxis, xlabel), (axes.yaxis, ylabel)):
        in_bytes = label.startswith("bytes")
        if label:
            axis.set_label_text(label)
            axis.set_major_formatter(style.format_bytes if in_bytes else write_tick)
    axes.grid(axis="y" if ylabel else "x")
    axes.minorticks_off()


def _label_ends(axes: Axes, ends: Mapping[str, tuple[Any, str]], inches: float) -> None:
    """Write names at the right, as near to their (x, y) as they have room."""
    import numpy as np

    names = [style.wrap(name, inches) for name in ends]
    corner = axes.get_xlim()[1], axes.get_ylim()[0]
    places = [point or corner for point, _ in ends.values()]
    heights = (axes.transScale + axes.transLimits).transform(places)[:, 1]
    lines = 1 + max((name.count("\n") for name in names), default=0)
    order, room = heights.argsort(kind="stable"), 0.068 * lines * np.arange(len(names))
    # Each is as far above the last as it must be, and none is above the picture.
    spots = np.maximum.accumulate(heights[order] - room) + room
    heights[order] = np.minimum(spots, 1 + room - room[-1:])
    line = {"arrowstyle": "-", "color": COLOURS["border"], "relpos": (0, 0.5)}
    look = {"textcoords": "axes fraction", "va": "center", "arrowprops": line}
    for i, (_, colour) in enumerate(ends.values()):
        axes.annotate(names[i], places[i], (1.03, heights[i]), color=colour, **look)
