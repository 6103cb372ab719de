"""Where the time of a step goes, and who was busy when."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kit.figures import charts, style
from kit.figures.html import describe
from kit.figures.style import (
    COLOURS,
    NAMES,
    PHASES,
    format_seconds,
    format_share,
    settle,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BAR = 0.8  # inches, the height of the bar of a step
_KEY = {"loc": "lower left", "bbox_to_anchor": (0, 0), "borderaxespad": 0, "ncols": 2}
#: So many kinds of blocks that are too narrow for their names are named below.
_MOST_NARROW = 6


@style.one_at_a_time
def draw_step(
    shares: Mapping[str, float],
    savings: Sequence[charts.Row] = (),
    *,
    title: str,
    step_seconds: float,
    overhead: float | None = None,
) -> Figure:
    """Draw a step as a bar of its phases, above what removing a cause would save.

    `shares` are fractions of the step by phase (keys of `PHASES`) that add up to 1. A
    phase has its name on it, or below where it has no room. `overhead`, a fraction that
    cuts across the phases, is written below, too. `savings` are (label, value, low,
    high), fractions of the step's time with their 95 % intervals; one that does not lie
    wholly above 0 is grey.

    >>> shares = {"input": 0.61, "forward": 0.39}
    >>> figure = draw_step(shares, title="It waits for data", step_seconds=0.1)
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['waiting for data\\n61 % · 61.0 ms', 'forward\\n39 % · 39.0 ms']
    """
    present = {phase: shares[phase] for phase in PHASES if shares.get(phase)}
    total = sum(present.values())
    inches = (style.WIDTH - 2 * style.EDGE) / total
    sentences, inside, below = [], {}, {}
    for phase, share in present.items():
        name, part = PHASES[phase], format_share(share)
        time = format_seconds(share * step_seconds)
        sentences.append(f"{name}: {part}, {time}")
        inside[phase] = f"{name}\n{part} · {time}"
        if style.measure(inside[phase]) + 0.1 > share * inches:
            inside[phase] = ""
            below[phase] = f"{name}  {part} · {time}"
    words = ["; ".join(sentences)]
    heights = [_BAR + 0.25 * math.ceil(len(below) / 2)]
    if overhead is not None:
        heights[0] += 0.3
    if savings:
        heights.append(0.46 * len(savings) + 0.8)
    figure = style.make_card(title, sum(heights) + 0.25 * len(heights))
    parts = figure.subfigures(
        len(heights), height_ratios=heights, squeeze=False, facecolor="none"
    )[:, 0]
    axes = style.add_axes(parts[0], ylim=(heights[0], 0), xlim=(0, total))
    axes.axis("off")
    start = 0.0
    for phase, share in present.items():
        style.paint(*axes.barh(0, share, _BAR, start, align="edge"), phase)
        style.write_on(axes, phase, inside[phase], (start + share / 2, _BAR / 2))
        start += share
    keys = style.list_keys(below)
    key = axes.legend(handles=keys, alignment="left", **(style.LEGEND | _KEY))
    if overhead is not None:
        words.append(f"Eager overhead, across the phases: {format_share(overhead)}")
        key.set_title(words[-1], prop={"size": 10})
        key.get_title().set_color(COLOURS["ink"])
    if savings:
        _draw_savings(style.add_axes(parts[1]), savings)
        saved = charts.tell_rows(savings, format_share)
        words.append(f"What removing a cause would save of the step: {saved}")
    first = f"Where the {format_seconds(step_seconds)} of a step go"
    return describe(figure, first, title, *words)


def _draw_savings(axes: Axes, savings: Sequence[charts.Row]) -> None:
    roles = ["measured" if (low or 0) > 0 else "baseline" for *_, low, _ in savings]
    texts = [style.format_saving(*ends) for _, *ends in savings]
    charts.draw_rows(axes, savings, texts, roles)
    axes.xaxis.set_major_formatter(lambda x, _: format_share(x, like=1))
    axes.set_xlabel("of the step's time that removing the cause would save")


class Span(NamedTuple):
    """A stretch of time, in seconds from the beginning of the picture.

    `phase` is a key of `PHASES`, or "" for anything else.
    """

    start: float
    stop: float
    phase: str
    label: str


@style.one_at_a_time
def draw_timeline(
    lanes: Mapping[str, Sequence[Span]], *, title: str, marks: Sequence[float] = ()
) -> Figure:
    """Draw one row of blocks per lane, colored by phase, over a common time axis.

    The legend counts the blocks of each phase; what is too narrow for its name is named
    and counted below the axis. `marks` are the times, in seconds, at which steps begin.
    Raises ValueError where there is nothing to draw.

    >>> lanes = {"main thread": [Span(0, 0.03, "input", "next batch")], "worker": []}
    >>> figure = draw_timeline(lanes, title="One waits", marks=[0])
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['step 1', 'next batch', 'idle']
    """
    spans = [span for lane in lanes.values() for span in lane]
    first = min([0.0, *marks, *(span.start for span in spans)])
    last = max([0.0, *marks, *(span.stop for span in spans)])
    if first == last:
        raise ValueError("draw_timeline: there is nothing to draw: no lane has a span")
    counts = Counter(span.phase for span in spans)
    keys = {x: f"{text} ({counts[x]})" for x, text in NAMES.items() if x in counts}
    height = 0.46 * len(lanes) + 1.25 + 0.25 * math.ceil(len(keys) / 3)
    figure = style.make_card(title, height)
    axes = style.add_axes(figure, xlim=(first, last))
    axes.xaxis.set_major_formatter(lambda x, _: format_seconds(x))
    axes.set_ylim(len(lanes) - 0.5, -0.5)  # the first lane at the top
    labels = [style.wrap(name, style.WIDTH / 3.5) for name in lanes]
    axes.set_yticks(range(len(lanes)), labels, color=COLOURS["ink"])
    style.draw_grid(axes, "x")
    handles = style.list_keys(keys)
    look = {"loc": "outside lower left", "ncols": 3}
    figure.legend(handles=handles, **look, **style.LEGEND)
    axes.set_xlabel("time\n")  # as high as it will be
    settle(figure)
    figure.draw_without_rendering()  # now it is known how wide the axes are
    wide = axes.get_window_extent().width / figure.dpi
    inch = (last - first) / wide
    _draw_marks(axes, sorted(marks), inch)
    narrow: list[Span] = []
    for y, lane in enumerate(lanes.values()):
        narrow += _draw_lane(axes, y, lane, inch)
    words = _name_narrow(narrow)
    axes.set_xlabel(f"time\n{style.wrap(words, wide, lines=2)}" if words else "time")
    sentences = [f"{name}: {_tell(lane, last - first)}" for name, lane in lanes.items()]
    what = f"Timeline of {format_seconds(last - first)}"
    return describe(figure, what, title, *sentences, words)


def _name_narrow(spans: Sequence[Span]) -> str:
    """Name and count the blocks that have no room for a name, the longest first."""
    counts: Counter[str] = Counter()
    seconds: dict[str, float] = {}
    for start, stop, phase, label in spans:
        name = label or NAMES[phase]
        counts[name] += 1
        seconds[name] = seconds.get(name, 0.0) + stop - start
    if not counts:
        return ""
    longest = sorted(counts, key=lambda name: -seconds[name])
    named = [f"{counts[name]} × {name}" for name in longest[:_MOST_NARROW]]
    rest = sum(counts[name] for name in longest[_MOST_NARROW:])
    if rest:
        named.append(f"{rest} others")
    return f"Narrow: {', '.join(named)}"


def _draw_lane(axes: Axes, y: int, lane: Sequence[Span], inch: float) -> list[Span]:
    """Draw the blocks of a lane on a pale track; return those too narrow for a name.

    `inch` is the time that one inch shows.
    """
    low, high = axes.get_xlim()
    axes.barh(y, high - low, 0.66, low, color=COLOURS["zone"], lw=0)
    for phase in {span.phase for span in lane}:
        blocks = sorted(span[:2] for span in lane if span.phase == phase)
        tops = [y + 0.33, math.nan] * len(blocks)
        # One path with gaps: matplotlib draws a hatch once per path, and slowly.
        edges = [end for block in blocks for end in block]
        path = axes.stairs(tops[:-1], edges, baseline=y - 0.33, fill=True)
        style.paint(path, phase)
    narrow = []
    for span in lane:
        if style.measure(span.label) + 0.06 < (span.stop - span.start) / inch:
            middle = (span.start + span.stop) / 2, y
            style.write_on(axes, span.phase, span.label, middle)
        else:
            narrow.append(span)
    if not lane:
        look = {"ha": "center", "va": "center", **style.MUTED}
        axes.text((low + high) / 2, y, "idle", **look)
    return narrow


def _draw_marks(axes: Axes, marks: Sequence[float], inch: float) -> None:
    """Draw where steps begin, and their numbers where there is room."""
    free, last = -math.inf, axes.get_xlim()[1]
    look = {"transform": axes.get_xaxis_transform(), "va": "bottom", **style.MUTED}
    line = {"color": COLOURS["ink"], "lw": 0.9, "ls": "-", **style.LINE}
    for step, mark in enumerate(marks, 1):
        axes.axvline(mark, zorder=4, **line)
        stop = mark + style.measure(f"step {step}") * inch
        if free <= mark and stop <= last:
            axes.text(mark, 1.01, f"step {step}", **look)
            free = stop + 0.1 * inch


def _tell(lane: Sequence[Span], total: float) -> str:
    """Tell what a lane's time goes to, and its longest span."""
    if not lane:
        return "idle"
    spent: Counter[str] = Counter()
    until = -math.inf
    for start, stop, phase, _ in sorted(lane):
        spent[phase] += max(0.0, stop - max(start, until))
        until = max(until, stop)
    said = [f"{NAMES[x]} {format_share(time / total)}" for x, time in spent.items()]
    said.append(f"idle {format_share(max(0, 1 - spent.total() / total))}")
    start, stop, phase, label = max(lane, key=lambda span: span.stop - span.start)
    most = f"{label or NAMES[phase]}, {format_seconds(stop - start)}"
    return f"{', '.join(said)}; longest: {most} from {format_seconds(start)}"
