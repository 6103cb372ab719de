"""Charts: bars of values, and a quantity over a knob."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kit.figures.style import COLORS, HATCH, ROW, describe, kit_look, new_figure
from kit.figures.words import (
    format_bytes,
    format_number,
    is_bytes,
    is_known,
    is_wide,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Numbers = Sequence[float | None]
Series = tuple[Numbers, Numbers, Numbers | None, Numbers | None, str]
Row = tuple[Any, float | None, float | None, float | None]  # label, value, low, high

_KINDS: dict[str, dict[str, Any]] = {
    "measured": {},
    "predicted": {"linestyle": "--", "marker": ""},
    "recorded": {"markerfacecolor": COLORS["card"], "color": COLORS["recorded"]},
}
#: As many as the style has colors.
_MARKERS = "os^DvP"
_WHISKER = {"fmt": "none", "capsize": 3.5, "elinewidth": 1.4, "zorder": 5}
#: An axis ends so many times beyond the largest value, however long intervals are.
_MOST_REACH = 1.5
#: Round numbers up to so much or more are written in thousands and millions.
_LARGE = 1e6
#: A line of more points has small markers, and an alt text of its ends only.
_MANY_POINTS = 20


@kit_look()
def draw_bars(
    labels: Sequence[str],
    values: Numbers,
    lows: Numbers | None = None,
    highs: Numbers | None = None,
    *,
    title: str,
    unit: str,
    baseline: int | None = None,
    predicted: Numbers = (),
) -> Figure:
    """Draw one horizontal bar per label, with its 95 % interval and its value in words.

    `lows` and `highs` are the intervals' ends; one that leaves the axis has an arrow
    there. A value that is None or nan is written as unknown. Where values span more
    than ten, the axis is logarithmic, and points take the place of bars. `baseline` is
    the number of a row, from 0; it is hatched. `predicted` are values of the first
    rows, drawn as dashed lines. Raises ValueError where the sequences' lengths differ.

    >>> figure = draw_bars(["0", "2"], [770, 1578], title="Two are faster", unit="1/s")
    >>> [int(bar.get_width()) for bar in figure.axes[0].patches]
    [770, 1578]
    """
    rows = _join(labels, values, lows, highs)
    marks = {y: value for y, value in enumerate(predicted) if is_known(value)}
    write = format_bytes if is_bytes(unit) else format_number
    texts = [
        "" if y in marks and not is_known(row[1]) else write(row[1])
        for y, row in enumerate(rows)
    ]
    height = ROW * max(1, len(rows)) + 0.8
    if marks:
        height += 0.3
    figure = new_figure(title, height)
    axes = figure.subplots()
    pale = [] if baseline is None else [baseline]
    shown = [row[1] for row in rows if is_known(row[1])]
    is_log = is_wide([*shown, *marks.values()])
    draw_rows(axes, rows, texts, pale=pale, marks=marks, is_log=is_log)
    _label(axes, "x", unit)
    if marks:
        figure.legend(loc="outside lower right")
    sentences = [describe_rows(rows, write)]
    if marks:
        told = [f"{labels[y]}: {write(value)}" for y, value in marks.items()]
        sentences.append(f"Predicted: {'; '.join(told)}")
    return describe(figure, f"Bars, {unit}", title, *sentences)


def draw_rows(
    axes: Axes,
    rows: Sequence[Row],
    texts: Sequence[str],
    *,
    pale: Collection[int] = (),
    marks: Mapping[int, float] | None = None,
    is_log: bool = False,
) -> None:
    """Draw a bar per row, the first at the top, with its interval and its text.

    `pale` are numbers of rows that are gray and hatched, `marks` predictions by row. On
    a logarithmic axis, which has no zero, points take the place of bars.
    """
    marks = marks or {}
    values = [row[1] for row in rows if is_known(row[1])]
    limits = _find_limits([*values, *marks.values()], rows, is_log)
    if is_log:
        axes.set_xscale("log")
    axes.set_xlim(limits)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.set_yticks(
        range(len(rows)),
        [textwrap.fill(str(row[0]), 30) for row in rows],
        color=COLORS["ink"],
    )
    for y, (_, value, low, high) in enumerate(rows):
        color = COLORS["baseline" if y in pale else "measured"]
        if is_known(value) and is_log:
            axes.plot([value], [y], "o", color=color, markersize=9)
        elif is_known(value):
            hatch = HATCH if y in pale else None
            axes.barh(y, value, 0.62, color=color, hatch=hatch, edgecolor="white", lw=0)
        _draw_interval(axes, "x", (y, value, low, high), COLORS["ink"], limits)
        ends = [end for end in (value, high, marks.get(y)) if is_known(end)]
        start = limits[0] if is_log else 0.0
        place = min(max([start, *ends]), limits[1])
        beside = {"textcoords": "offset points", "va": "center"}
        axes.annotate(texts[y], (place, y), (8, 0), annotation_clip=False, **beside)
    for number, (y, mark) in enumerate(marks.items()):
        label = None if number else "predicted"
        look = {"color": COLORS["predicted"], "linestyles": "--", "lw": 2, "zorder": 6}
        axes.vlines(mark, y - 0.4, y + 0.4, label=label, **look)


@kit_look()
def draw_lines(
    series: Mapping[str, Series],
    *,
    title: str,
    xlabel: str,
    ylabel: str,
    logx: bool = False,
) -> Figure:
    """Draw named lines.

    A series is (xs, ys, lows or None, highs or None, kind): "measured" has markers and
    95 % intervals, "predicted" is dashed, "recorded" has hollow markers. "predicted,
    workers=2" has the color of "workers=2". The vertical axis begins at zero, or is
    logarithmic where values span more than ten; so is the horizontal one if `logx`, but
    for a zero. Raises ValueError for another kind.

    >>> series = {"here": ([1, 2], [5, 9], None, None, "measured")}
    >>> figure = draw_lines(series, title="It grows", xlabel="workers", ylabel="1/s")
    >>> figure.axes[0].lines[0].get_ydata().tolist()
    [5, 9]
    """
    lines = {name: _join(*columns) for name, (*columns, _) in series.items()}
    rows = list(itertools.chain(*lines.values()))
    values = [row[1] for row in rows if is_known(row[1])]
    is_log = is_wide(values)
    limits = _find_limits(values, rows, is_log)
    numbers: dict[str, int] = {}
    figure = new_figure(title, 3.4)
    axes = figure.subplots()
    _scale_width(axes, sorted({row[0] for row in rows}), logx)
    if is_log:
        axes.set_yscale("log")
    axes.set_ylim(limits)
    for name, own in lines.items():
        kind = series[name][-1]
        if kind not in _KINDS:
            raise ValueError(f"{name}: no kind {kind!r}; there are {[*_KINDS]}")
        subject = name.removeprefix("predicted").removeprefix(", ") or "measured"
        number = numbers.setdefault(subject, len(numbers)) % len(_MARKERS)
        look = {"color": f"C{number}", "marker": _MARKERS[number], **_KINDS[kind]}
        if len(own) > 3 * _MANY_POINTS:
            look["markersize"] = 2
        xs = [row[0] for row in own]
        ys = [row[1] if is_known(row[1]) else math.nan for row in own]
        axes.plot(xs, ys, label=name, **look)
        for row in own:
            _draw_interval(axes, "y", row, look["color"], limits)
    axes.grid(visible=False, axis="x")
    _label(axes, "x", xlabel)
    _label(axes, "y", ylabel)
    if len(series) > 1:
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    write = format_bytes if is_bytes(ylabel) else format_number
    write_x = format_bytes if is_bytes(xlabel) else "{:,.9g}".format
    told = []
    for name, own in lines.items():
        points = [(write_x(x), *rest) for x, *rest in _choose_told(own)]
        told.append(f"{name}: {describe_rows(points, write)}")
    return describe(figure, f"{ylabel} over {xlabel}", title, *told)


def describe_rows(
    rows: Sequence[Row], write: Callable[[Any], str] = format_number
) -> str:
    """Return labels, values and intervals as words for an alt text."""
    words = []
    for label, value, low, high in rows:
        known = is_known(low) and is_known(high)
        ends = f" (95 % interval {write(low)} to {write(high)})" if known else ""
        words.append(f"{label}: {write(value)}{ends}")
    return "; ".join(words)


def _choose_told(rows: Sequence[Row]) -> Sequence[Row]:
    """Return a line's points, of many only the ends, the least, and the most."""
    known = sorted((row for row in rows if is_known(row[1])), key=lambda row: row[1])
    if len(rows) <= _MANY_POINTS or not known:
        return rows
    return [rows[0], known[0], known[-1], rows[-1]]


def _join(
    labels: Sequence[Any], values: Numbers, lows: Numbers | None, highs: Numbers | None
) -> list[Row]:
    """Join the columns; sequences of unequal lengths end in zip's ValueError."""
    ends = ([None] * len(labels) if x is None else x for x in (lows, highs))
    return list(zip(labels, values, *ends, strict=True))


def _find_limits(
    values: Sequence[float], rows: Sequence[Row], is_log: bool
) -> tuple[float, float]:
    """Return where an axis begins and ends: it holds zero, all values, and intervals.

    The end of an interval counts up to half as much again as the largest value, so that
    a single one of which nothing is known does not flatten all the others.

    >>> _find_limits([2.0, 1.0], [("a", 2.0, 1.5, 4e9), ("b", 1.0, 0.9, 1.1)], False)
    (0.0, 3.0)
    """
    if is_log:
        return min(values) / 1.5, max(values) * 1.5
    most = _MOST_REACH * max(map(abs, values), default=0.0)
    ends = [0.0, *values, *(end for row in rows for end in row[2:] if is_known(end))]
    low, high = max(min(ends), -most), min(max(ends), most)
    if low == high:
        return 0.0, 1.0
    room = 0.05 if high < most else 0.0
    return low * (1 + room), high * (1 + room)


def _scale_width(axes: Axes, xs: Sequence[float], logx: bool) -> None:
    """Scale the horizontal axis; put a tick at each x where there are few."""
    positive = [x for x in xs if x > 0]
    if logx and len(positive) > 1:
        if xs[0] <= 0:
            axes.set_xscale("symlog", linthresh=positive[0], linscale=0.5)
        else:
            axes.set_xscale("log")
    if len(xs) <= 10 and (logx or not is_wide(positive)):
        axes.set_xticks(xs)
        axes.minorticks_off()


def _label(axes: Axes, along: str, label: str) -> None:
    """Name an axis, and write its numbers in full, bytes as memory."""
    axis = axes.xaxis if along == "x" else axes.yaxis
    axis.set_label_text(label)
    axis.set_major_formatter(format_bytes if is_bytes(label) else "{x:,.9g}")
    if axis.get_scale() != "log":
        return
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    ticks = axis.get_majorticklocs()
    are_round = all(float(f"{tick:.3g}") == tick for tick in ticks)
    if are_round and min(ticks) >= 1 and max(ticks) >= _LARGE and not is_bytes(label):
        axis.set_major_formatter(EngFormatter())  # else they touch: 1 M, 10 M
    axis.set_minor_formatter(NullFormatter())
    if not isinstance(axis.get_major_locator(), LogLocator):
        return
    low, high = axis.get_view_interval()
    if sum(low <= tick <= high for tick in axis.get_majorticklocs()) < 3:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))


def _draw_interval(
    axes: Axes, along: str, row: Row, color: str, limits: tuple[float, float]
) -> None:
    """Draw a whisker, if both of its ends are known; an arrow where it is cut."""
    at, _, low, high = row
    if not (is_known(low) and is_known(high)):
        return
    first, last = max(low, limits[0]), min(high, limits[1])
    if first > last:
        return
    middle, half = (first + last) / 2, (last - first) / 2
    place = (middle, at) if along == "x" else (at, middle)
    axes.errorbar(*place, **{f"{along}err": half}, ecolor=color, **_WHISKER)
    for end, cut, arrow in ((low, first, "<v"), (high, last, ">^")):
        if end != cut:
            place = (cut, at) if along == "x" else (at, cut)
            marker = arrow["xy".index(along)]
            axes.plot(*place, marker, color=color, markersize=8, clip_on=False)
