"""Charts: bars of values, a quantity over a knob, times of steps, stacked amounts."""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kit.figures import style
from kit.figures.html import describe
from kit.figures.style import (
    COLOURS,
    TEXT,
    format_amount,
    format_number,
    is_known,
    one_at_a_time,
    write_tick,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Numbers = Sequence[float | None]
Series = tuple[Numbers, Numbers, Numbers | None, Numbers | None, str]
Row = tuple[Any, float | None, float | None, float | None]  # label, value, low, high

_DOTTED = {"color": COLOURS["ink"], "lw": 0.8, "ls": (0, (2, 3)), "zorder": 1}
_DOTTED |= style.LINE
_DASHED = {"color": COLOURS["predicted"], "lw": 2, "ls": (0, (2, 1)), "zorder": 5}
_OFFSET = {"textcoords": "offset points", "va": "center"}  # of a label beside a point
_LOOKS: dict[str, dict[str, Any]] = {
    "measured": {"lw": 1.5},
    "predicted": {"lw": 1.5, "ls": (0, (5, 2)), "marker": ""},
    "recorded": {"mfc": COLOURS["card"], "lw": 1.1, "color": COLOURS["recorded"]},
}
#: Bands from the lowest on have these phases' looks: the colour-blind tell them apart.
_BANDS = ("forward", "copies", "optimizer", "backward", "sync", "communication")
#: Machines that recorded the same, beside a row's bar.
_MARKERS = ("D", "s", "^", "v", "P", "X")
#: An interval counts for the axis up to so many times the largest value.
_MOST_REACH = 1.5
_ROW, _LINE_OF_TEXT = 0.46, 0.17  # inches
#: What a text needs beside it, in inches: the gap to its bar, and half a marker.
_BESIDE = 0.4
_BETWEEN_TICKS = 0.08  # inches between the numbers of an axis


@one_at_a_time
def draw_bars(
    labels: Sequence[str],
    values: Numbers,
    lows: Numbers | None = None,
    highs: Numbers | None = None,
    *,
    title: str,
    unit: str,
    baseline: int | None = None,
    recorded: Mapping[str, Sequence[Row]] | None = None,
    predicted: Numbers = (),
    width: float = style.WIDTH,
) -> Figure:
    """Draw one horizontal bar per label, with its 95 % interval and its value in words.

    `lows` and `highs` are the intervals' ends; an interval that leaves the axis is cut
    and marked. A value that is None or nan is written as unknown, unless something else
    is drawn in its row. Where values span more than ten, the axis is logarithmic, and
    points take the place of bars. `baseline` is the number of a row, from 0; it is
    hatched. `recorded` has, by the name of a machine, the rows that it recorded (label,
    value, low, high), `predicted` values of the first rows: markers and dashed lines
    that a legend explains. `width` is in inches. Raises ValueError where the sequences'
    lengths differ.

    >>> figure = draw_bars(["0", "2"], [770, 1578], title="Two are faster", unit="1/s")
    >>> [int(bar.get_width()) for bar in figure.axes[0].patches]
    [770, 1578]
    """
    rows = _join(labels, values, lows, highs)
    marks = {y: value for y, value in enumerate(predicted) if is_known(value)}
    recorded = recorded or {}
    places = {label: y for y, label in enumerate(labels)}
    others = {
        name: {places[row[0]]: row for row in theirs}
        for name, theirs in recorded.items()
    }
    has_values = any(is_known(row[1]) for row in rows)
    keys = _list_keys(has_values=has_values, has_marks=bool(marks), names=[*others])
    has_legend = bool(marks or others)
    height = _find_row_height(labels, width / 3) * max(1, len(rows)) + 0.75
    if has_legend:
        height += 0.22 * math.ceil(len(keys) / 2)
    axes = style.add_axes(style.make_card(title, height, width))
    roles = ["measured"] * len(rows)
    if baseline is not None:
        roles[baseline] = "baseline"
    elsewhere = [row for theirs in others.values() for row in theirs.values()]
    shown = [row[1] for row in (*rows, *elsewhere) if is_known(row[1])]
    is_log = style.is_wide([*shown, *marks.values()])
    write = functools.partial(format_amount, unit=unit)
    texts = _write_values(values, write, marks, others)
    draw_rows(axes, rows, texts, roles, marks, others, is_log=is_log)
    if baseline is not None and is_known(values[baseline]):
        axes.axvline(values[baseline] or 0, **_DOTTED)
    _label_axes(axes, unit, along="x")
    if has_legend:
        _explain(axes, keys)
    sentences = [tell_rows(rows, write)] if has_values or not has_legend else []
    if marks:
        predictions = [f"{labels[y]}: {write(x)}" for y, x in marks.items()]
        sentences.append(f"Predicted: {'; '.join(predictions)}")
    for name, theirs in recorded.items():
        sentences.append(f"Recorded on {name}: {tell_rows(theirs, write)}")
    return describe(axes.figure, f"Bars, {unit}", title, *sentences)


def _write_values(
    values: Numbers,
    write: Callable[[Any], str],
    marks: Mapping[int, float],
    others: Mapping[str, Mapping[int, Row]],
) -> list[str]:
    """Return the text of each row: "unknown" only where nothing else is drawn in it."""
    drawn = {*marks}
    for theirs in others.values():
        drawn |= {*theirs}
    texts = []
    for y, value in enumerate(values):
        is_empty = y in drawn and not is_known(value)
        texts.append("" if is_empty else write(value))
    return texts


def _find_row_height(labels: Sequence[str], third: float) -> float:
    """Return how high a row is, in inches, so that its label has room on the left."""
    lines = [style.wrap(str(label), third).count("\n") + 1 for label in labels]
    return max(_ROW, 0.12 + _LINE_OF_TEXT * max(lines, default=1))


def draw_rows(
    axes: Axes,
    rows: Sequence[Row],
    texts: Sequence[str],
    roles: Sequence[str],
    marks: Mapping[int, float] | None = None,
    others: Mapping[str, Mapping[int, Row]] | None = None,
    *,
    is_log: bool = False,
) -> None:
    """Draw a bar per row, the first at the top, with its interval and its text.

    `marks` are predictions by row, and `others` what each machine recorded of them. A
    text stands beyond all that its row shows. On a logarithmic axis, which has no zero,
    points take the place of bars.
    """
    marks = marks or {}
    others = others or {}
    third = axes.get_figure(root=True).get_figwidth() / 3  # type: ignore[union-attr]
    every = [*rows, *(row for own in others.values() for row in own.values())]
    every += [("", mark, None, None) for mark in marks.values()]
    if is_log:
        known = [row[1] for row in every if is_known(row[1])]
        reach = min(known) / 1.5, max(known) * 1.5
        _make_logarithmic(axes, "x", reach)
    else:
        reach = _find_reach(every)
        axes.axvline(0, color=COLOURS["ink"], lw=1, ls="-", **style.LINE)
    for y, (_, value, low, high) in enumerate(rows):
        if is_known(value):
            _draw_value(
                axes, y, value, roles[y], from_edge=reach[0] if is_log else None
            )
        _draw_interval(axes, "x", (y, value, low, high), COLOURS["ink"], reach)
        if y in marks:
            axes.vlines(marks[y], y - 0.4, y + 0.4, **_DASHED)
    for number, own in enumerate(others.values()):
        _draw_recorded(axes, own, number, reach)
    for y, (_, value, _, high) in enumerate(rows):
        ends = [end for end in (value, high) if is_known(end)]
        start = max([reach[0] if is_log else 0.0, *ends])
        beside = [own[y] for own in others.values() if y in own]
        if y in marks:
            beside.append(("", marks[y], None, None))
        place = _find_room(texts[y], start, beside, reach, 3 * third, is_log=is_log)
        axes.annotate(texts[y], (min(reach[1], place), y), (9, 0), **_OFFSET, **TEXT)
    axes.set(xlim=reach if any(reach) else (0, 1), ylim=(max(1, len(rows)) - 0.4, -0.6))
    labels = [style.wrap(str(row[0]), third) for row in rows]
    axes.set_yticks(range(len(rows)), labels, color=COLOURS["ink"])
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(length=0)
    axes.tick_params("y", pad=7)
    if not is_log:
        axes.locator_params(axis="x", nbins=min(5, int(2 * third)))


def _find_room(
    text: str,
    start: float,
    beside: Sequence[Row],
    reach: tuple[float, float],
    inches: float,
    *,
    is_log: bool,
) -> float:
    """Return where a row's text begins: after `start`, and on nothing beside it."""
    scale = math.log if is_log else float
    total = scale(reach[1]) - scale(reach[0])
    # The axes take about six tenths of the card's width.
    room = total * (style.measure(text) + _BESIDE) / (0.6 * inches)
    for _, *values in sorted(beside, key=lambda row: row[1] or 0.0):
        known = [value for value in values if is_known(value)]
        is_behind = bool(known) and max(known) > start
        if is_behind and scale(min(known)) < scale(start) + room:
            start = max(known)
    return start


def _draw_value(
    axes: Axes, y: int, value: float, role: str, from_edge: float | None
) -> None:
    """Draw a row's value: a bar from zero, or a point where the axis has no zero."""
    colour = COLOURS[role]
    if from_edge is None:
        hatch = None if role == "measured" else style.HATCH
        look = {"fc": colour, "ec": COLOURS["card"], "lw": 0, "align": "center"}
        axes.barh(y, value, 0.62, hatch=hatch, **look)
        return
    axes.hlines(y, from_edge, value, color=COLOURS["zone"], lw=5, ls="-", zorder=1)
    filled = colour if role == "measured" else COLOURS["card"]
    point = {"marker": "o", "ms": 9, "mfc": filled, "mec": colour, "mew": 2}
    axes.plot([value], [y], ls="", zorder=4, **point)


def _draw_recorded(
    axes: Axes, rows: Mapping[int, Row], number: int, reach: tuple[float, float]
) -> None:
    """Draw what another machine recorded as hollow markers on the rows."""
    for y, (_, value, low, high) in rows.items():
        row = (y, value, low, high)
        _draw_interval(axes, "x", row, COLOURS["recorded"], reach)
        if is_known(value):
            look = _choose_marker(number) | {"clip_on": False}
            axes.plot([value], [y], ls="", zorder=6, **look)


def _choose_marker(number: int) -> dict[str, Any]:
    return {
        "marker": _MARKERS[number % len(_MARKERS)],
        "ms": 7,
        "mfc": COLOURS["card"],
        "mec": COLOURS["recorded"],
        "mew": 1.6,
    }


def _list_keys(*, has_values: bool, has_marks: bool, names: Sequence[str]) -> list[Any]:
    """Return what a legend says of bars, dashed lines and the machines' markers."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    keys: list[Any] = []
    if has_values:
        look = {"fc": COLOURS["measured"], "ec": COLOURS["card"], "lw": 0}
        keys.append(Patch(label="measured here", **look))
    if has_marks:
        keys.append(Line2D([], [], label="predicted", **_DASHED, **style.LINE))
    for number, name in enumerate(names):
        label = f"recorded on {name}"
        keys.append(Line2D([], [], ls="", label=label, **_choose_marker(number)))
    return keys


def _explain(axes: Axes, keys: Sequence[Any]) -> None:
    """Show a legend below the picture."""
    figure: Any = axes.get_figure(root=True)
    columns = 2 if figure.get_figwidth() >= style.WIDTH else 1
    look = {"loc": "outside lower left", "ncols": columns}
    figure.legend(handles=keys, **look, **style.LEGEND)


@one_at_a_time
def draw_lines(
    series: Mapping[str, Series],
    *,
    title: str,
    xlabel: str,
    ylabel: str,
    logx: bool = False,
    machines: Mapping[str, str] | None = None,
    width: float = style.WIDTH,
) -> Figure:
    """Draw named lines, each with its name at its end.

    A series is (xs, ys, lows or None, highs or None, kind): "measured" has markers and
    95 % intervals, "predicted" is dashed, "recorded" has hollow markers. "predicted,
    workers=2" has the colour of "workers=2". The vertical axis begins at zero, or is
    logarithmic where values span more than ten; so is the horizontal one if `logx`, but
    for a zero. `machines` says which recorded series a legend explains, and by which
    machine's name. `width` is in inches. Raises ValueError for another kind.

    >>> series = {"here": ([1, 2], [5, 9], None, None, "measured")}
    >>> figure = draw_lines(series, title="It grows", xlabel="workers", ylabel="1/s")
    >>> figure.axes[0].lines[0].get_ydata().tolist()
    [5, 9]
    """
    lines = {name: _join(*columns) for name, (*columns, _) in series.items()}
    rows = list(itertools.chain(*lines.values()))
    machines = machines or {}
    looks = _choose_looks(series)
    kinds = list(dict.fromkeys(machines.values()))
    for name, machine in machines.items():
        looks[name]["marker"] = _choose_marker(kinds.index(machine))["marker"]
    names = [
        style.wrap(_shorten(name, machines.get(name)), max(1.5, width / 4.5))
        for name in series
    ]
    high = max(2.8, sum(map(_measure_height, names)))
    height = high + 0.9 + 0.25 * len(kinds)
    axes = style.add_axes(style.make_card(title, height, width))
    _set_width(axes, sorted({x for x, *_ in rows}), logx)
    reach = _set_height(axes, rows)
    ends = []
    for name, own in lines.items():
        known = [row[:2] for row in own if is_known(row[1])]
        heights = [y if is_known(y) else math.nan for _, y, *_ in own]
        size = 6 if len(own) <= 60 else 2
        xs = [x for x, *_ in own]
        look = {"zorder": 4, "ms": size, "mew": 1.0, **style.LINE, **looks[name]}
        axes.plot(xs, heights, label=name, **look)
        for row in own:
            _draw_interval(axes, "y", row, looks[name]["color"], reach)
        ends.append((known[-1] if known else None, looks[name]["color"]))
    _label_axes(axes, xlabel, ylabel)
    if not style.is_bytes(xlabel):
        _write_ticks(axes)
    _label_ends(axes, names, ends, high)
    if kinds:
        _explain(axes, _list_keys(has_values=False, has_marks=False, names=kinds))
    told = [f"{name}: {_tell_line(own, ylabel)}" for name, own in lines.items()]
    return describe(axes.figure, f"{ylabel} over {xlabel}", title, *told)


def _shorten(name: str, machine: str | None) -> str:
    """Return a series' name without that of its machine, which a legend has."""
    if machine is None:
        return name
    rest = name.removesuffix(machine).removesuffix(", ")
    return f"{rest}, recorded" if rest else "recorded"


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
    known = [time for time in ms if is_known(time)]
    median = statistics.median(known) if known else math.nan
    series = {"measured": (range(1, len(ms) + 1), ms, None, None, "measured")}
    name = f"median {style.format_seconds(median / 1000)}"
    series[name] = ([1, len(ms)], [median, median], None, None, "predicted")
    return draw_lines(series, title=title, xlabel="step", ylabel=ylabel)


@one_at_a_time
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
    if len(values) > len(_BANDS):
        raise ValueError(
            f"draw_stack: {len(values)} bands ({', '.join(values)}); at most "
            f"{len(_BANDS)} can be told apart. Add some of them up."
        )
    marks = marks or {}
    totals = [sum(amounts) for amounts in zip(*values.values(), strict=True)]
    peak, at = max(zip(totals, positions, strict=True))
    figure = style.make_card(title, 3.7)
    axes = style.add_axes(figure, xlim=(positions[0], positions[-1]))
    axes.set_ylim(0, 1.2 * max([peak, *marks.values()]) or 1)
    bands = axes.stackplot(positions, *values.values(), labels=list(values))
    for band, phase in zip(bands, _BANDS, strict=False):
        style.paint(band, phase)
    line = {"color": COLOURS["ink"], "lw": 1.5, "ls": "-", "marker": ""}
    axes.plot(positions, totals, **line, **style.LINE)
    top = {"marker": "v", "ms": 6, "mew": 1.0, "ls": "", "color": COLOURS["ink"]}
    axes.plot(at, peak, label=f"peak {format_number(peak)}", **top)
    sentences = [f"At most {format_number(peak)}, at {at:g}"]
    for name, mark in marks.items():
        label = f"{name} {format_number(mark)}"
        axes.axhline(mark, label=label, **_DASHED, **style.LINE)
        sentences.append(f"{name}: {format_number(mark)}")
    above = {"transform": axes.get_xaxis_transform(), "ha": "center", "va": "baseline"}
    for start, stop, text in regions:
        axes.text((start + stop) / 2, 1.02, text, **above, **style.MUTED)
        axes.axvline(start, **_DOTTED)
        sentences.append(f"From {start:g} to {stop:g}: {text}")
    figure.legend(loc="outside right center", reverse=True, **style.LEGEND)
    _label_axes(axes, xlabel, ylabel)
    for name, amounts in values.items():
        points = _tell_line(_join(positions, amounts, None, None), ylabel)
        sentences.append(f"{name}: {points}")
    return describe(figure, f"{ylabel} over {xlabel}", title, *sentences)


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


def _find_reach(rows: Sequence[Row]) -> tuple[float, float]:
    """Return from where to where an axis goes: zero, all values, and their intervals.

    The end of an interval counts up to half as much again as the largest value, so that
    a single one of which nothing is known does not flatten all the others.

    >>> _find_reach([("a", 2.0, 1.5, 4e9), ("b", 1.0, 0.9, 1.1)])
    (0.0, 3.0)
    """
    values = [row[1] for row in rows if is_known(row[1])] or [0.0]
    most = _MOST_REACH * max(map(abs, values)) or math.inf
    ends = [0.0, *values, *(x for row in rows for x in row[2:] if is_known(x))]
    return max(min(ends), -most), min(max(ends), most)


def _tell_line(rows: Sequence[Row], unit: str) -> str:
    """Tell a line's points, of many only the first, the least, the most, the last."""
    known = sorted((row for row in rows if is_known(row[1])), key=lambda row: row[1])
    if len(rows) > 20 and known:
        rows = [rows[0], known[0], known[-1], rows[-1]]
    write = functools.partial(format_amount, unit=unit)
    return tell_rows([(write_tick(x), *rest) for x, *rest in rows], write)


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
    if len(xs) > 1:
        scale = axes.xaxis.get_transform()
        first, last = scale.transform([xs[0], xs[-1]])
        room = 0.05 * (last - first)
        axes.set_xlim(scale.inverted().transform([first - room, last + room]))
    elif xs:
        axes.set_xlim(xs[0] - 1, xs[0] + 1)


def _write_ticks(axes: Axes) -> None:
    """Write the numbers of a horizontal axis so that they do not overlap."""
    low, high = axes.get_xlim()
    xs = [x for x in axes.get_xticks() if low <= x <= high]
    scale = axes.xaxis.get_transform()
    first, last = scale.transform([low, high])
    figure: Any = axes.get_figure(root=True)
    inches = 0.7 * figure.get_figwidth() / (last - first)
    places = [inches * (place - first) for place in scale.transform(xs)]
    axes.set_xticks(xs, _fit_ticks(xs, places))


def _fit_ticks(xs: Sequence[float], inches: Sequence[float]) -> list[str]:
    """Return the texts of ticks at these places, so that no two overlap.

    Large numbers are written shorter where there is no room, and then left out.

    >>> _fit_ticks([1, 1_000_000, 10_000_000], [0.0, 3.0, 3.7])
    ['1', '1 M', '10 M']
    """
    for write in (write_tick, _write_short_tick):
        texts = [write(x) for x in xs]
        kept = _keep_apart(texts, inches)
        if kept == texts:
            break
    return kept


def _keep_apart(texts: Sequence[str], inches: Sequence[float]) -> list[str]:
    """Return texts centered at these places, empty where one would meet another."""
    kept = []
    free = -math.inf
    for text, place in zip(texts, inches, strict=True):
        half = style.measure(text) / 2
        fits = place - half > free
        kept.append(text if fits else "")
        if fits:
            free = place + half + _BETWEEN_TICKS
    return kept


def _write_short_tick(x: float) -> str:
    """Write a tick with thousands as k and millions as M."""
    if abs(x) >= 1e6:
        return f"{x / 1e6:,.3g} M"
    if abs(x) >= 1e4:
        return f"{x / 1e3:.3g} k"
    return write_tick(x)


def _set_height(axes: Axes, rows: Sequence[Row]) -> tuple[float, float]:
    """Let the vertical axis begin at zero, or make it logarithmic; return its ends."""
    values = [row[1] for row in rows if is_known(row[1])]
    if style.is_wide(values):
        reach = min(values) / 1.5, max(values) * 1.5
        _make_logarithmic(axes, "y", reach)
        return reach
    low, high = _find_reach(rows)
    reach = 1.1 * low, 1.1 * high or 1.0
    axes.set_ylim(reach)
    return reach


def _make_logarithmic(axes: Axes, along: str, reach: tuple[float, float]) -> None:
    """Make the axis along "x" or "y" logarithmic, with ticks at round numbers."""
    from matplotlib.ticker import LogLocator

    axes.set(**{f"{along}scale": "log", f"{along}lim": reach})
    axis = axes.xaxis if along == "x" else axes.yaxis
    figure: Any = axes.get_figure(root=True)
    inches = 0.6 * figure.get_figwidth() if along == "x" else 3.0
    axis.set_major_locator(LogLocator(subs=_choose_ticks(reach, along, inches)))


def _choose_ticks(
    reach: tuple[float, float], along: str, inches: float
) -> tuple[int, ...]:
    """Return at which multiples of powers of ten ticks have room for their numbers."""
    low, high = reach
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for multiples in ((1, 2, 5), (1, 3)):
        ticks = [m * 10.0**p for p in powers for m in multiples]
        shown = [tick for tick in ticks if low <= tick <= high]
        needed = sum(style.measure(write_tick(tick)) + 0.2 for tick in shown)
        if along == "y":
            needed = 0.3 * len(shown)
        if needed <= inches:
            return multiples
    return (1,)


def _draw_interval(
    axes: Axes, along: str, row: Row, color: str, reach: tuple[float, float]
) -> None:
    """Draw a whisker along "x" or "y", if both of its ends are known.

    Where one lies beyond the axis, it is cut there, and an arrow says so.
    """
    at, _, low, high = row
    if not (is_known(low) and is_known(high)):
        return
    cut_low, cut_high = max(low, reach[0]), min(high, reach[1])
    if cut_low > cut_high:
        return
    half = {f"{along}err": (cut_high - cut_low) / 2}
    middle = (cut_high + cut_low) / 2
    place = (middle, at) if along == "x" else (at, middle)
    look = {"fmt": "none", "ecolor": color, "capsize": 3.5, "elinewidth": 1.4}
    axes.errorbar(*place, **half, **look, capthick=1.0, zorder=5)
    arrows = {"x": ("<", ">"), "y": ("v", "^")}[along]
    ends = ((low, cut_low, arrows[0]), (high, cut_high, arrows[1]))
    for end, cut, arrow in ends:
        if end != cut:
            place = (cut, at) if along == "x" else (at, cut)
            look = {"marker": arrow, "ms": 8, "mew": 0, "color": color, "ls": ""}
            axes.plot(*place, **look, clip_on=False, zorder=6)


def _label_axes(axes: Axes, xlabel: str, ylabel: str = "", along: str = "y") -> None:
    """Name the axes that carry numbers, and draw a grid across the one `along`."""
    for axis, label in ((axes.xaxis, xlabel), (axes.yaxis, ylabel)):
        if not label:
            continue
        in_bytes = style.is_bytes(label)
        # A horizontal axis with a tick at each choice shows what it is.
        if axis.get_scale() == "log" and (axis is axes.yaxis or along == "x"):
            label += " (logarithmic)"
        axis.set_label_text(label)
        axis.set_major_formatter(style.format_bytes if in_bytes else write_tick)
    style.draw_grid(axes, along)


def _label_ends(
    axes: Axes, names: Sequence[str], ends: Sequence[tuple[Any, str]], inches: float
) -> None:
    """Write names at the right, as near to their (x, y) as they have room.

    `inches` is how high the axes are, about.
    """
    corner = axes.get_xlim()[1], axes.get_ylim()[0]
    places = [point or corner for point, _ in ends]
    wanted = (axes.transScale + axes.transLimits).transform(places)[:, 1]
    halves = [_measure_height(name) / inches / 2 for name in names]
    heights = _spread(wanted.tolist(), halves)
    line = {"arrowstyle": "-", "edgecolor": COLOURS["border"], "facecolor": "none"}
    line |= {"linewidth": 1.0, "mutation_scale": 10, "relpos": (0, 0.5)}
    look = {"textcoords": "axes fraction", "va": "center", "arrowprops": line}
    for name, (_, color), point, height in zip(
        names, ends, places, heights, strict=True
    ):
        place = (1.03, height)
        axes.annotate(name, point, place, color=color, size=10, **look)


def _measure_height(name: str) -> float:
    """Return how high a text is, in inches, with the room that it needs."""
    return _LINE_OF_TEXT * (name.count("\n") + 1) + 0.08


def _spread(wanted: Sequence[float], halves: Sequence[float]) -> list[float]:
    """Return heights near the wanted ones, none nearer to the next than their halves.

    Each is as far above the one below as it must be, and none is above 1.

    >>> _spread([0.5, 0.5, 1.0], [0.1, 0.1, 0.1])
    [0.5, 0.7, 0.9]
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    heights = list(wanted)
    floor = -math.inf
    for i in order:
        heights[i] = max(heights[i], floor + halves[i])
        floor = heights[i] + halves[i]
    ceiling = 1.0
    for i in reversed(order):
        heights[i] = min(heights[i], ceiling - halves[i])
        ceiling = heights[i] - halves[i]
    return heights
