"""Marks and tables from plain sequences; the one place with colours.

Charts use matplotlib's object interface only, because pyplot is not safe on the thread
of a widget. matplotlib is imported by the first chart, not by this module.
"""

from __future__ import annotations

import base64
import functools
import html
import io
import math
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Numbers = Sequence[float | None]
Series = tuple[Numbers, Numbers, Numbers | None, Numbers | None, str]
Row = tuple[Any, float | None, float | None, float | None]  # label, value, low, high

# Okabe and Ito's colours, darkened until text in them has a contrast of 4.5 on a card.
COLOURS: dict[str, str] = {
    "measured": "#0072B2",
    "baseline": "#7A828A",
    "predicted": "#B84700",
    "recorded": "#A5427A",
    "above": "#0072B2",
    "below": "#B84700",
    "same": "#57606A",
    "zone": "#E4E8EC",
    "ink": "#1F2328",
    "muted": "#57606A",
    "grid": "#E9ECEF",
    "border": "#D0D7DE",
    "highlight": "#EAF3FA",
    "card": "#FDFDFC",
}
SERIES_COLOURS = (COLOURS["measured"], "#00755A", "#855600", "#5B4FA8", COLOURS["ink"])
HATCHES: dict[str, str] = {"baseline": "////", "hatched": "..."}
MARKERS = ("o", "s", "^", "D", "v", "P")

_WIDTH = 7.6  # inches; shown at 100 pixels an inch, the width of a notebook's text
_DPI = 200
_EDGE = 0.25  # inches between a card's edge and what is on it
_FONT = "DejaVu Sans"  # comes with matplotlib, so every machine draws the same
_LOCK = threading.RLock()


@contextmanager
def _alone() -> Iterator[None]:
    # A cell and the thread of a widget may draw at once; matplotlib shares its fonts.
    with _LOCK:
        yield


# ---------------------------------------------------------------- numbers


def format_number(value: float | None) -> str:
    """Write a number with three significant digits and every digit before the point.

    >>> format_number(1523.4), format_number(0.98), format_number(None)
    ('1,523', '0.980', 'unknown')
    """
    if not _known(value):
        return "unknown"
    rounded = float(f"{value:.3g}")
    if rounded == 0:
        return "0"
    decimals = max(0, 2 - math.floor(math.log10(abs(rounded))))
    text = f"{value:,.{decimals}f}" if decimals < 6 else f"{value:.2e}"
    return text.replace("-", "−")


def format_ratio(value: float | None) -> str:
    """Write how many times as much.

    >>> format_ratio(1.923)
    '1.92 ×'
    """
    return format_rate(value, "×")


def format_rate(value: float | None, unit: str) -> str:
    """Write a number with its unit.

    >>> format_rate(1523.4, "items/s")
    '1,523 items/s'
    """
    return f"{format_number(value)} {unit}" if _known(value) else "unknown"


def format_seconds(value: float | None) -> str:
    """Write a time in the unit that suits it, from nanoseconds to hours.

    >>> format_seconds(0.0123), format_seconds(150), format_seconds(7500)
    ('12.3 ms', '2 min 30 s', '2 h 5 min')
    """
    if not _known(value):
        return "unknown"
    sign, value = "−" if value < 0 else "", abs(value)
    if (minutes := round(value / 60)) >= 60:
        return f"{sign}{minutes // 60:,} h {minutes % 60} min"
    if (seconds := round(value)) >= 120:
        return f"{sign}{seconds // 60} min {seconds % 60} s"
    value = float(f"{value:.3g}")
    units = (("s", 1), ("ms", 1e3), ("µs", 1e6), ("ns", 1e9))
    unit, per_second = next((u for u in units if value * u[1] >= 1), units[-1])
    return f"{sign}{format_number(value * per_second)} {unit}" if value else "0 s"


def format_bytes(value: float | None) -> str:
    """Write an amount of memory in decimal units: 1 GB is 10⁹ bytes.

    >>> format_bytes(1.5e9), format_bytes(64_000_000), format_bytes(512)
    ('1.5 GB', '64 MB', '512 B')
    """
    if not _known(value):
        return "unknown"
    value, units = float(f"{value:.3g}"), ["PB", "TB", "GB", "MB", "kB", "B"]
    while abs(value) >= 1000 and len(units) > 1:
        value /= 1000
        units.pop()
    return f"{round(value, 2):,.10g} {units[-1]}".replace("-", "−")


def _known(value: Any) -> bool:
    return value is not None and math.isfinite(value)


# ---------------------------------------------------------------- charts


@_alone()
def draw_bars(
    labels: Sequence[str],
    values: Numbers,
    lows: Numbers | None = None,
    highs: Numbers | None = None,
    *,
    title: str,
    unit: str,
    baseline: int | None = None,
    hatched: Collection[int] = (),
    format: Callable[[float], str] = format_number,
) -> Figure:
    """Draw one horizontal bar per label, with its 95 % interval and its value in words.

    `lows` and `highs` are the intervals' ends. A value that is None or nan is written
    as unknown. `baseline` and `hatched` are numbers of rows, from 0; `format` writes
    the values. Raises ValueError where the sequences' lengths differ.

    >>> figure = draw_bars(["0", "2"], [770, 1578], title="Two are faster", unit="1/s")
    >>> [int(bar.get_width()) for bar in figure.axes[0].patches]
    [770, 1578]
    """
    rows = _rows(labels, values, lows, highs)
    texts = [format(row[1]) if _known(row[1]) else "unknown" for row in rows]
    names = [_wrap(label, 2.6, 10) for label in labels]
    left = _EDGE + _widest(names) + 0.15
    figure, axes = _card(title, 0.46 * max(1, len(rows)) + 0.1, left, _EDGE)
    known = [x for row in rows for x in row[1:] if _known(x)]
    low, high = min([0, *known]), max([0, *known])
    room = max(0.3, 1 - (_widest(texts) + 0.25) / (_WIDTH - left - _EDGE))
    axes.set_xlim(low * 1.05, low + ((high - low) or 1) / room)
    axes.axvline(0, color=COLOURS["ink"], lw=1)
    for y, (_, value, low, high) in enumerate(rows):
        role = "baseline" if y == baseline else "measured"
        if _known(value):
            hatch = HATCHES["hatched"] if y in hatched else HATCHES.get(role)
            look = {"facecolor": COLOURS[role], "edgecolor": COLOURS["card"], "lw": 0}
            axes.barh(y, value, 0.62, hatch=hatch, **look)
        if _known(value) and role == "baseline":
            axes.axvline(value, color=COLOURS["ink"], lw=0.8, ls=(0, (2, 3)), zorder=1)
        _draw_interval(axes, "x", y, low, high, COLOURS["ink"])
        end = max(x if _known(x) else 0 for x in (value, low, high, 0))
        _write(axes, texts[y], (end, y), (7, 0), known=_known(value))
    _label_rows(axes, names)
    _label_axes(axes, unit, "", grid="x")
    return _describe(figure, f"Bars, {unit}", title, _in_words(rows, texts, format))


@_alone()
def draw_lines(
    series: Mapping[str, Series],
    *,
    title: str,
    xlabel: str,
    ylabel: str,
    logx: bool = False,
) -> Figure:
    """Draw named lines, each with its name at its end.

    A series is (xs, ys, lows or None, highs or None, style): "measured" has markers and
    95 % intervals, "predicted" is dashed, "recorded" has hollow markers. The vertical
    axis begins at zero. Raises ValueError for another style, and for x ≤ 0 if `logx`.

    >>> series = {"here": ([1, 2], [5, 9], None, None, "measured")}
    >>> figure = draw_lines(series, title="It grows", xlabel="workers", ylabel="1/s")
    >>> figure.axes[0].lines[0].get_ydata().tolist()
    [5, 9]
    """
    names = [_wrap(name, 1.7, 10) for name in series]
    figure, axes = _card(title, 3.3, 1.05, _EDGE + _widest(names) + 0.2)
    axes.set_xscale("log" if logx else "linear")
    drawn = {"measured": 0, "predicted": 0, "recorded": 0}
    everything: list[Row] = []
    ends, words = [], []
    for name, (xs, ys, lows, highs, style) in series.items():
        if style not in drawn:
            raise ValueError(f"{name}: no style {style!r}; there are {list(drawn)}")
        if logx and any(x <= 0 for x in xs):
            raise ValueError(f"{name}: a logarithmic axis cannot show x ≤ 0")
        number, drawn[style] = drawn[style], drawn[style] + 1
        colour = COLOURS[style]
        if style == "predicted":
            look: dict[str, Any] = {"ls": (0, (5, 2)), "lw": 1.8}
        elif style == "recorded":
            look = {"ms": 7, "mfc": COLOURS["card"], "mew": 1.6, "lw": 1.1}
        else:
            look = {"ms": 6.5, "lw": 1.8}
            colour = SERIES_COLOURS[number % len(SERIES_COLOURS)]
        if style != "predicted":
            look["marker"] = MARKERS[number % len(MARKERS)]
        rows = _rows(xs, ys, lows, highs)
        heights = [y if _known(y) else math.nan for y in ys]
        axes.plot(xs, heights, color=colour, zorder=4, label=name, **look)
        for x, _, low, high in rows:
            _draw_interval(axes, "y", x, low, high, colour)
        last = [row[:2] for row in rows if _known(row[1])][-1:] or [(None, None)]
        ends.append((*last[0], colour))
        texts = [format_number(y) for y in ys]
        shown = [(_write_tick(x), *rest) for x, *rest in rows]
        words.append(f"{name}: {_in_words(shown, texts, format_number)}")
        everything += rows
    known = [y for row in everything for y in row[1:] if _known(y)]
    axes.set_ylim(min([0, *known]) * 1.1, max([0, *known]) * 1.1 or 1)
    axes.margins(x=0.05)
    if 0 < len({row[0] for row in everything}) <= 12:
        _set_ticks(axes, [row[0] for row in everything])
    _label_ends(axes, names, ends)
    _label_axes(axes, xlabel, ylabel, grid="y")
    return _describe(figure, f"{ylabel} over {xlabel}", title, ". ".join(words))


@_alone()
def draw_steps(
    times_seconds: Numbers,
    *,
    title: str,
    ylabel: str = "milliseconds per step",
    regions: Sequence[tuple[int, int, str]] = (),
) -> Figure:
    """Draw the times of consecutive steps in milliseconds, beside their median.

    Steps count from 1. A region (first step, last step, text) is shaded. Steps over
    twice the median have another mark; if one is over 30 medians the axis is
    logarithmic.

    >>> figure = draw_steps([0.2, 0.01, 0.01], title="The first step is slow")
    >>> figure.axes[0].lines[0].get_ydata().tolist()
    [200.0, 10.0, 10.0]
    """
    ms = [t * 1000 if _known(t) else math.nan for t in times_seconds]
    known = sorted(t for t in ms if _known(t)) or [0.0]
    median, many = known[len(known) // 2], len(ms) > 100
    text = f"median\n{format_seconds(median / 1000)}"
    figure, axes = _card(title, 2.9, 1.05, _EDGE + _widest([text]) + 0.2)
    look = {"color": COLOURS["measured"], "marker": "o", "lw": 0.8}
    look |= {"ls": "", "ms": 2.5} if many else {"ls": "-", "ms": 5}
    axes.plot(range(1, len(ms) + 1), ms, **look)
    slow = [(step, t) for step, t in enumerate(ms, 1) if t > 2 * median]
    look = {"color": COLOURS["below"], "marker": "D", "ls": "", "ms": 5}
    axes.plot([step for step, _ in slow], [t for _, t in slow], **look)
    axes.set_xlim(0.4 - 0.01 * len(ms), 0.6 + 1.01 * len(ms))
    axes.set_ylim(0, known[-1] * 1.2 or 1)
    if known[-1] > 30 * median > 0:
        axes.set(yscale="log", ylim=(known[0] / 1.6, known[-1] * 2.5))
        ylabel += " (logarithmic)"
    for start, stop, words in regions:
        axes.axvspan(start - 0.5, stop + 0.5, color=COLOURS["zone"], lw=0, zorder=0)
        side, x = ("right", stop) if start + stop > len(ms) else ("left", start)
        look = {"xycoords": ("data", "axes fraction"), "ha": side, "va": "top"}
        shift = (-8, -5) if side == "right" else (5, -5)
        _write(axes, words, (x, 1), shift, role="muted", **look)
    axes.axhline(median, color=COLOURS["ink"], lw=0.8, ls=(0, (2, 3)), zorder=1)
    _set_ticks(axes, [1, *(x for x in axes.get_xticks() if x > 1 and x % 1 == 0)])
    _label_ends(axes, [text], [(None, median, COLOURS["ink"])])
    _label_axes(axes, "step", ylabel, grid="y")
    said = [f"{len(ms)} steps, {text}".replace("\n", " ")]
    said += [f"steps {start} to {stop}: {words}" for start, stop, words in regions]
    slowest = sorted(slow, key=lambda pair: -pair[1])[:5]
    said += [f"step {step} took {format_seconds(t / 1000)}" for step, t in slowest]
    return _describe(figure, "Times of steps", title, "; ".join(said))


@_alone()
def draw_intervals(
    labels: Sequence[str],
    values: Numbers,
    lows: Numbers,
    highs: Numbers,
    *,
    title: str,
    xlabel: str,
    zone: tuple[float, float] = (1 / 1.02, 1.02),
) -> Figure:
    """Draw ratios with their 95 % intervals around 1, over the zone called "same".

    The axis is logarithmic: twice and half are equally far from 1. Filled marks are
    decided, hollow ones are not. Raises ValueError for a ratio that is not positive.

    >>> figure = draw_intervals(["2"], [2.04], [1.98], [2.11], title="Two", xlabel="×")
    >>> figure.axes[0].get_xscale()
    'log'
    """
    rows = _rows(labels, values, lows, highs)
    known = [x for row in rows for x in row[1:] if _known(x)]
    if any(x <= 0 for x in known):
        raise ValueError(f"ratios must be positive; there is {min(known)}")
    names = [_wrap(label, 2.4, 10) for label in labels]
    texts = [format_ratio(value) for value in values]
    sides = list(texts)
    for y, (_, _, low, high) in enumerate(rows):
        if _known(low) and _known(high):
            sides[y] += f"  [{format_number(low)}, {format_number(high)}]"
    left, right = _EDGE + _widest(names) + 0.15, 2 * _EDGE + _widest(sides)
    figure, axes = _card(title, 0.42 * max(1, len(rows)) + 0.3, left, right)
    axes.set_xscale("log")
    around = [*zone, 0.93, 1.07, *known]
    pad = (max(around) / min(around)) ** 0.04
    axes.set_xlim(min(around) / pad, max(around) * pad)
    _label_rows(axes, names, above=1)
    below = 1 - 0.45 / (max(1, len(names)) + 0.55)  # leaves a line of text at the top
    axes.axvspan(*zone, ymax=below, color=COLOURS["zone"], lw=0, zorder=0)
    axes.axvline(1, ymax=below, color=COLOURS["ink"], lw=0.8, zorder=1)
    middle = math.sqrt(zone[0] * zone[1])
    _write(axes, "same", (middle, -0.76), role="muted", ha="center")
    for y, (_, value, low, high) in enumerate(rows):
        colour, marker, face = COLOURS["ink"], "o", COLOURS["card"]
        if _known(low) and _known(high):
            if zone[0] <= low and high <= zone[1]:
                colour, marker, face = COLOURS["same"], "s", COLOURS["same"]
            elif low > zone[1]:
                colour, marker, face = COLOURS["above"], "o", COLOURS["above"]
            elif high < zone[0]:
                colour, marker, face = COLOURS["below"], "D", COLOURS["below"]
        _draw_interval(axes, "x", y, low, high, colour)
        if _known(value):
            look = {"marker": marker, "ms": 7, "mfc": face, "ls": "", "zorder": 4}
            axes.plot([value], [y], color=colour, **look)
        coordinates = ("axes fraction", "data")
        look = {"known": _known(value), "xycoords": coordinates}
        _write(axes, sides[y], (1, y), (10, 0), **look)
    ticks = [1, 2, 0.5, 4, 0.25, 1.5, 0.67, 1.25, 0.8, 1.1, 0.9, 1.05, 0.95]
    _set_ticks(axes, [*ticks, 10, 0.1, 3, 0.33, 100, 0.01, 1000, 8, 0.125])
    _label_axes(axes, xlabel, "", grid="x")
    return _describe(figure, "Ratios", title, _in_words(rows, texts, format_ratio))


def _rows(
    labels: Sequence[Any], values: Numbers, lows: Numbers | None, highs: Numbers | None
) -> list[Row]:
    # Sequences of unequal lengths end in zip's ValueError.
    none = [None] * len(labels)
    lows, highs = (none if ends is None else ends for ends in (lows, highs))
    return list(zip(labels, values, lows, highs, strict=True))


def _text(size: float, role: str) -> dict[str, Any]:
    # Said for every text, so that a style sheet of the reader's changes no card.
    look = {"fontsize": size, "family": _FONT, "parse_math": False}
    return look | {"color": COLOURS.get(role, role)}


def _width(text: str, size: float, weight: str) -> float:
    from matplotlib.backends.backend_agg import RendererAgg
    from matplotlib.font_manager import FontProperties

    font = FontProperties(family=_FONT, size=size, weight=weight)
    renderer = RendererAgg(1, 1, 72)  # at 72 dots per inch, a pixel is a point
    return renderer.get_text_width_height_descent(text, font, ismath=False)[0] / 72


def _widest(texts: Sequence[str]) -> float:
    lines = [line for text in texts for line in text.split("\n")]
    return max((_width(line, 10, "normal") for line in lines), default=0)


def _wrap(text: str, inches: float, size: float, weight: str = "normal") -> str:
    lines = [""]
    for word in text.split():
        while len(word) > 1 and _width(word, size, weight) > inches:
            word = f"{word[:-2]}…"
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and _width(longer, size, weight) > inches:
            lines.append(word)
        else:
            lines[-1] = longer
    return "\n".join(lines)


def _card(title: str, height: float, left: float, right: float) -> tuple[Figure, Axes]:
    title = _wrap(title, _WIDTH - 2 * _EDGE, 12, "bold")
    top, bottom = 0.36 + 0.22 * (title.count("\n") + 1), 0.63
    total, across = top + height + bottom, _WIDTH - left - right
    figure_type, axes_type = _card_types()
    figure = figure_type((_WIDTH, total), _DPI, facecolor=COLOURS["card"])
    place = (left / _WIDTH, bottom / total, across / _WIDTH, height / total)
    axes = figure.add_axes(axes_type(figure, place, facecolor="none"))
    heading = axes.set_title(title, loc="left", pad=12, **_text(12, "ink"))
    heading.set(x=(_EDGE - left) / across, weight="bold", linespacing=1.3)
    axes.spines[:].set_visible(False)
    axes.set_axisbelow(True)
    return figure, axes


def _write(
    axes: Axes,
    text: str,
    place: tuple[float, float],
    shift: tuple[float, float] = (0, 0),
    *,
    known: bool = True,
    role: str = "ink",
    **look: Any,
) -> None:
    look = {"va": "center", "textcoords": "offset points", "zorder": 5} | look
    axes.annotate(text, place, shift, **look, **_text(10, role if known else "muted"))


def _draw_interval(
    axes: Axes, along: str, at: float, low: Any, high: Any, colour: str
) -> None:
    if _known(low) and _known(high):
        middle, half = (low + high) / 2, (high - low) / 2
        place = {"x": middle, "y": at} if along == "x" else {"x": at, "y": middle}
        look = {"ecolor": colour, "elinewidth": 1.4, "capsize": 3.5, "zorder": 3}
        axes.errorbar(**place, **{f"{along}err": half}, fmt="none", **look)


def _write_tick(value: float, _: Any = None) -> str:
    return f"{value:,.6g}".replace("-", "−")


def _label_rows(axes: Axes, names: Sequence[str], above: float = 0.6) -> None:
    axes.set_ylim(max(1, len(names)) - 0.45, -above)
    axes.set_yticks(range(len(names)), names, **_text(10, "ink"))


def _label_axes(axes: Axes, xlabel: str, ylabel: str, *, grid: str) -> None:
    axes.set_xlabel(xlabel, labelpad=6, **_text(10, "muted"))
    axes.set_ylabel(ylabel, labelpad=8, **_text(10, "muted"))
    axes.grid(axis=grid, color=COLOURS["grid"], lw=0.8, ls="-")
    axes.tick_params(length=0, which="both", pad=6)
    for axis in [axes.xaxis, axes.yaxis] if grid == "y" else [axes.xaxis]:
        axis.set_major_formatter(_write_tick)
        look = {"labelcolor": COLOURS["muted"], "labelfontfamily": _FONT}
        axis.set_tick_params(labelsize=9.5, **look)
    axes.minorticks_off()
    if grid == "y":
        axes.spines["bottom"].set(visible=True, color=COLOURS["ink"], linewidth=1)


def _set_ticks(axes: Axes, wanted: Sequence[float]) -> None:
    # The first come first; a tick too close to one that is there is left out.
    low, high = axes.get_xlim()
    kept: dict[float, float] = {}
    for x in (x for x in wanted if low <= x <= high):
        place = axes.transData.transform((x, 1))[0] / _DPI
        if all(abs(place - other) > 0.42 for other in kept.values()):
            kept[x] = place
    axes.set_xticks(sorted(kept))


def _label_ends(
    axes: Axes, names: Sequence[str], ends: Sequence[tuple[Any, Any, str]]
) -> None:
    bottom, top = axes.get_window_extent().intervaly
    gap = (0.2 + 0.16 * max((n.count("\n") for n in names), default=0)) * _DPI
    wanted = [axes.transData.transform((1, y or 0))[1] for _, y, _ in ends]
    order = sorted(range(len(ends)), key=wanted.__getitem__)
    heights = dict.fromkeys(order, bottom)
    for i, below in zip(order, [None, *order], strict=False):
        floor = bottom if below is None else heights[below] + gap
        heights[i] = max(wanted[i], floor)
    for i, above in zip(reversed(order), [None, *reversed(order)], strict=False):
        ceiling = top if above is None else heights[above] - gap
        heights[i] = min(heights[i], ceiling)
    for i, (name, (x, y, colour)) in enumerate(zip(names, ends, strict=True)):
        line = {"arrowstyle": "-", "color": COLOURS["border"], "shrinkB": 7}
        place = (1.025, (heights[i] - bottom) / (top - bottom))
        look = {"textcoords": "axes fraction", "role": colour, "annotation_clip": False}
        look["arrowprops"] = None if x is None else line
        _write(axes, name, (0, 0) if x is None else (x, y), place, **look)


def _in_words(
    rows: Sequence[Row], texts: Sequence[str], write: Callable[[float], str]
) -> str:
    words = []
    for (label, _, low, high), text in zip(rows, texts, strict=True):
        known = _known(low) and _known(high)
        ends = f" (95 % interval {write(low)} to {write(high)})" if known else ""
        words.append(f"{label}: {text}{ends}")
    return "; ".join(words)


def _describe(figure: Figure, kind: str, title: str, words: str) -> Figure:
    sentences = (kind, title, words)
    figure.alt = " ".join(f"{s.rstrip('.')}." for s in sentences if s)
    return figure


# ---------------------------------------------------------------- pictures


@_alone()
def to_png(figure: Figure) -> bytes:
    """Render a figure as PNG bytes.

    >>> to_png(draw_bars([], [], title="Nothing yet", unit="items/s"))[:4]
    b'\\x89PNG'
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = bytes(canvas.buffer_rgba())
    picture = Image.frombytes("RGBA", canvas.get_width_height(), pixels).convert("RGB")
    # 128 colours show a chart as well as 16 million, in a third of the bytes.
    picture = picture.quantize(128, dither=Image.Dither.NONE)
    file = io.BytesIO()
    picture.save(file, "PNG", optimize=True)
    return file.getvalue()


def to_html(figure: Figure, alt: str) -> str:
    """Render a figure as an HTML image that holds its bytes and its alt text."""
    source = base64.b64encode(to_png(figure)).decode()
    border = f"border:1px solid {COLOURS['border']};border-radius:8px"
    return (
        f'<img alt="{html.escape(alt)}" width="{round(figure.get_figwidth() * 100)}" '
        f'style="max-width:100%;height:auto;{border}" '
        f'src="data:image/png;base64,{source}">'
    )


class Picture:
    """A figure that a notebook shows as a static image with alt text."""

    def __init__(self, figure: Figure, alt: str) -> None:
        self.figure, self.axes, self.alt = figure, figure.axes, alt

    def __repr__(self) -> str:
        return self.alt

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/html": to_html(self.figure, self.alt), "text/plain": self.alt}


def show(drawn: Axes | Figure, alt: str | None = None) -> Picture:
    """Make a figure, or the figure of these axes, the picture of a notebook cell.

    What this module draws describes and shows itself; any other figure needs this and
    an `alt`. Raises ValueError where there is no alt text.
    """
    figure = drawn.get_figure(root=True)
    alt = alt or getattr(figure, "alt", "")
    if not alt:
        raise ValueError("a picture needs alt text: show(figure, 'what it shows')")
    return Picture(figure, alt)


@functools.cache
def _card_types() -> tuple[type[Figure], type[Axes]]:
    # IPython shows a bare Figure or Axes as text, unless pyplot has been set up.
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    class Shown:
        def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
            return show(self)._repr_mimebundle_()

    class CardFigure(Shown, Figure):
        alt = ""

    class CardAxes(Shown, Axes):
        pass

    return CardFigure, CardAxes


# ---------------------------------------------------------------- tables


def html_card(
    title: str,
    rows: Sequence[tuple[str, object, str]],
    *,
    note: str = "",
    footer: str = "",
) -> str:
    """Write (name, value, remark) rows as a light HTML card; every text is escaped.

    >>> "&lt;b&gt;" in html_card("A trial", [("knob", "<b>", "as given")])
    True
    """
    muted = f"color:{COLOURS['muted']};"
    body = ""
    for name, value, remark in rows:
        whole = "white-space:nowrap;" if len(_plain(value)) < 30 else ""
        body += f"<tr>{_cell(name, f'{muted}white-space:nowrap;font-weight:400', _ROW)}"
        body += f"{_cell(value, f'{whole}font-weight:600')}{_cell(remark, muted)}</tr>"
    return _box(
        _line(title, "font-weight:600;font-size:15px"),
        _line(note, "margin-top:4px"),
        f'<table style="{_TABLE}"><tbody>{body}</tbody></table>' * bool(rows),
        _line(footer, f"{muted}margin-top:6px;font-size:13px"),
    )


def html_sentence(text: str, details: str = "") -> str:
    """Write a finding as a light HTML card, and what stands behind it in small.

    >>> "1 &lt; 2" in html_sentence("1 < 2")
    True
    """
    return html_card(text, [], footer=details)


def html_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    caption: str = "",
    align: Sequence[str] | None = None,
    highlight: int | None = None,
) -> str:
    """Write a table as a light HTML card; every text is escaped.

    `align` has "left", "right" or "center" per column: by default columns of numbers
    are right, the first is left. `highlight` is the number of the row to set off.

    >>> html_table(["knob", "rate"], [["<2>", 770]]).count("&lt;2&gt;")
    1
    """
    sides = _sides(headers, rows)
    align = align or sides
    line = f"border-bottom:1px solid {COLOURS['border']};color:{COLOURS['muted']}"
    head = (
        _cell(header, f"text-align:{side};{line}", 'th scope="col"')
        for header, side in zip(headers, align, strict=True)
    )
    body = ""
    for number, row in enumerate(rows):
        tint = f"background:{COLOURS['highlight']};font-weight:600"
        more = tint if number == highlight else ""
        cells = zip(row, align, strict=True)
        body += "<tr>" + "".join(
            _cell(value, f"text-align:{side};{more}") for value, side in cells
        )
        body += "</tr>"
    return _box(
        _line(caption, "font-weight:600"),
        f'<table style="{_TABLE}"><thead><tr>{"".join(head)}</tr></thead>'
        f"<tbody>{body}</tbody></table>",
    )


def html_pictures(pictures: Sequence[tuple[str, bytes]], *, caption: str) -> str:
    """Write (name, JPEG bytes) as a row of small pictures in a light HTML card.

    >>> 'alt="ring"' in html_pictures([("ring", b"")], caption="One photo")
    True
    """
    shown = ""
    for name, jpeg in pictures:
        source = base64.b64encode(jpeg).decode()
        image = (
            f'<img alt="{html.escape(name)}" width="64" height="64" '
            f'style="border-radius:4px" src="data:image/jpeg;base64,{source}">'
        )
        style = f"display:inline-block;margin:6px 0 0 8px;color:{COLOURS['muted']}"
        text = f'<div style="font-size:12px">{html.escape(name)}</div>'
        shown += f'<span style="{style}">{image}{text}</span>'
    return _box(_line(caption, "font-weight:600"), shown)


def text_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Write a table in plain text; columns of numbers are aligned to the right.

    >>> print(text_table(["workers", "rate"], [["0", 770], ["auto", None]]))
    workers  rate
    0         770
    auto        –
    """
    texts = [list(headers), *([_plain(value) for value in row] for row in rows)]
    columns = []
    for i, side in enumerate(_sides(headers, rows)):
        width = max(len(line[i]) for line in texts)
        pad = str.rjust if side == "right" else str.ljust
        columns.append([pad(line[i], width) for line in texts])
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))


# A notebook's theme colours the rows of tables: each cell has a background of its own.
_TABLE = "border-collapse:collapse;border:none;margin:6px 0 0 0;font-size:14px"
_ROW = 'th scope="row"'
_CELL = (
    f"text-align:left;vertical-align:top;padding:4px 24px 4px 8px;border:none;"
    f"white-space:normal;max-width:none;background:{COLOURS['card']};"
    f"color:{COLOURS['ink']};"
)
_BOX = (
    f"background:{COLOURS['card']};color:{COLOURS['ink']};line-height:1.45;"
    f"border:1px solid {COLOURS['border']};border-radius:8px;padding:12px 10px;"
    "margin:4px 0;max-width:760px;box-sizing:border-box;overflow-x:auto;"
    "font-size:14px;font-variant-numeric:tabular-nums"
)


def _box(*parts: str) -> str:
    return f'<div style="{_BOX}">{"".join(parts)}</div>'


def _line(text: str, style: str) -> str:
    style = f"padding-left:8px;{style}"
    return f'<div style="{style}">{html.escape(text)}</div>' if text else ""


def _cell(value: object, style: str = "", tag: str = "td") -> str:
    text = html.escape(_plain(value))
    return f'<{tag} style="{_CELL}{style}">{text}</{tag.split()[0]}>'


def _sides(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    for row in rows:
        if len(row) != len(headers):
            raise ValueError(f"{len(row)} cells under {len(headers)} headers: {row}")
    sides = ["left"] * len(headers)
    for i in range(1, len(headers)):
        texts = [_plain(row[i]) for row in rows]
        if all(t[:1] in "–−-[0123456789" or t == "unknown" for t in texts):
            sides[i] = "right"
    return sides


def _plain(value: object) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    return str(value) if not isinstance(value, bool) else "yes" if value else "no"
