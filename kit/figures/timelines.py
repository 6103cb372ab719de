"""Who was busy when: one row of blocks per thread, process or stream."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kit.figures import cards, phases
from kit.figures.cards import EDGE
from kit.figures.numbers import format_seconds, is_known
from kit.figures.phases import LINE, write_share
from kit.figures.pictures import alone, describe
from kit.figures.theme import COLOURS, PHASE_LOOKS, PHASES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LANE = 0.46  # inches from one lane to the next
_BLOCK = 0.66  # of a lane's height
_WAITS = ("input", "communication", "sync")  # told apart from being busy
_UNITS = ((2, 1, "seconds"), (2e-3, 1e3, "milliseconds"), (0, 1e6, "microseconds"))


class Span(NamedTuple):
    """A stretch of time, in seconds from the beginning of the picture.

    `phase` is a key of `PHASES`, or "" for anything else.
    """

    start: float
    stop: float
    phase: str
    label: str


@alone()
def draw_timeline(
    lanes: Mapping[str, Sequence[Span]],
    *,
    title: str,
    marks: Sequence[float] = (),
    width: float = cards.WIDTH,
) -> Figure:
    """Draw one row of blocks per lane, coloured by phase, over a common time axis.

    Where spans of a lane overlap, the one that began last is seen. What is narrower
    than half a pixel is drawn together with its neighbours, in the phase that takes
    most of their time. `marks` are the times, in seconds, at which steps begin; `width`
    is in inches. Raises ValueError for an unknown phase, a span that ends before it
    begins, a time that is not known, and where there is nothing to draw.

    >>> lanes = {"main thread": [Span(0, 0.03, "input", "next batch")], "worker": []}
    >>> figure = draw_timeline(lanes, title="One waits", marks=[0])
    >>> [text.get_text() for text in figure.axes[1].texts]
    ['next batch', 'idle', 'step 1']
    """
    first, last = _check(lanes, marks)
    per_second, unit = next(u[1:] for u in _UNITS if last - first >= u[0])
    names = [cards.wrap(name, width / 3.5) for name in lanes]
    left, right = cards.measure_widest(names) + 0.18, width - 2 * EDGE
    found = {span.phase for spans in lanes.values() for span in spans}
    key = [(phase, phases.name_phase(phase)) for phase in [*PHASES, ""]]
    key = [item for item in key if item[0] in found]
    spots = phases.place_key([text for _, text in key], right - left)
    top, high = 0.24 * (len(marks) > 0), _LANE * len(lanes)
    below = 0.62 + LINE * phases.count_lines(spots)
    figure, canvas = phases.make_canvas(title, top + high + below - EDGE + 0.2, width)
    axes = phases.add_axes(canvas, left, top, high)
    axes.set_xlim(first * per_second, last * per_second)
    axes.set_ylim(len(lanes) - 0.5, -0.5)  # the first lane at the top
    inch = (last - first) / (right - left)
    told = []
    for y, (name, spans) in enumerate(lanes.items()):
        told.append(f"{name}: {_describe_lane(spans, last - first)}")
        _draw_lane(axes, y, merge(spans, inch / figure.dpi / 2), per_second, inch)
    _draw_marks(axes, sorted(marks), per_second, inch * per_second)
    axes.set_yticks(range(len(names)), names, **cards.style_text(10, "ink"))
    cards.label_axes(axes, unit, "", grid="x")
    shifted = [(x + left, row) for x, row in spots]
    phases.draw_key(canvas, key, shifted, top + high + 0.6)
    what = f"Timeline of {format_seconds(last - first)}"
    return describe(figure, what, title, *told)


def flatten(spans: Sequence[Span]) -> list[Span]:
    """Cut spans into pieces that do not overlap: what began last hides the rest.

    >>> [span[:3] for span in flatten([Span(0, 9, "a", ""), Span(2, 3, "b", "")])]
    [(0, 2, 'a'), (2, 3, 'b'), (3, 9, 'a')]
    """
    pieces: list[Span] = []
    begun: list[Span] = []
    at = -math.inf
    ordered = sorted(spans, key=lambda span: (span.start, -span.stop))
    for span in [*ordered, Span(math.inf, math.inf, "", "")]:
        while begun and at < span.start:
            stop = min(begun[-1].stop, span.start)
            if stop > at:
                pieces.append(begun[-1]._replace(start=at, stop=stop))
                at = stop
            if begun[-1].stop <= at:
                begun.pop()
        at = max(at, span.start)
        begun.append(span)
    return pieces


def merge(spans: Sequence[Span], least: float) -> list[Span]:
    """Return as few spans that do not overlap as look the same at this resolution.

    Shorter ones than `least` seconds that begin within the same `least` become one, in
    the phase that takes most of their time; then neighbours of a phase with a gap below
    `least` do, unless one has a label of its own and is wide enough to show it.

    >>> merge([Span(i, i + 0.9, "forward", "") for i in range(9)], 0.5)
    [Span(start=0, stop=8.9, phase='forward', label='')]
    """
    seen: list[Span] = []
    for _, group in itertools.groupby(
        flatten(spans),
        lambda span: span.start // least if span.stop - span.start < least else span,
    ):
        piece, *others = group
        if others:
            times = _add_up([piece, *others])
            most = max(times, key=times.__getitem__)
            labels = {piece.label, *(other.label for other in others)}
            label = piece.label if len(labels) == 1 else ""
            piece = Span(piece.start, others[-1].stop, most, label)
        last = seen[-1] if seen else None
        if last and piece.start - last.stop < least and _are_alike(last, piece, least):
            label = last.label if last.label == piece.label else ""
            seen[-1] = Span(last.start, piece.stop, last.phase, label)
        else:
            seen.append(piece)
    return seen


def _are_alike(a: Span, b: Span, least: float) -> bool:
    """Return whether two neighbours need not be told apart."""
    if a.phase != b.phase:
        return False
    short = 8 * least  # has no room for a label
    told = any(x.label and x.stop - x.start >= short for x in (a, b))
    return a.label == b.label or not told


def _add_up(spans: Sequence[Span]) -> dict[str, float]:
    times: dict[str, float] = {}
    for span in spans:
        times[span.phase] = times.get(span.phase, 0) + span.stop - span.start
    return times


def _check(
    lanes: Mapping[str, Sequence[Span]], marks: Sequence[float]
) -> tuple[float, float]:
    """Return when the picture begins and ends."""
    times = [0.0, *marks]
    for name, spans in lanes.items():
        for start, stop, phase, label in spans:
            where = f"draw_timeline: {label or phase or 'a span'!r} of {name!r}"
            phases.check_phase(phase, where)
            if not (is_known(start) and is_known(stop) and start <= stop):
                raise ValueError(f"{where} lasts from {start} s to {stop} s")
            times += (start, stop)
    if not all(map(is_known, times)):
        raise ValueError(f"draw_timeline: a mark has no time: {list(marks)}")
    if not lanes or max(times) == min(times):
        raise ValueError("draw_timeline: there is nothing to draw: no lane has a span")
    return min(times), max(times)


def _describe_lane(spans: Sequence[Span], total: float) -> str:
    times = _add_up(flatten(spans))
    if not times:
        return "idle"
    busy = sum(time for phase, time in times.items() if phase not in _WAITS)
    said = [f"busy {write_share(busy / total)}"]
    waits = (phase for phase in _WAITS if phase in times)
    said += [f"{PHASES[phase]} {write_share(times[phase] / total)}" for phase in waits]
    said.append(f"idle {write_share(max(0, 1 - sum(times.values()) / total))}")
    longest = sorted(spans, key=lambda span: span.start - span.stop)[:3]
    told = (
        f"{span.label or phases.name_phase(span.phase)}"
        f" ({format_seconds(span.stop - span.start)} from {format_seconds(span.start)})"
        for span in longest
    )
    return f"{', '.join(said)}; longest: {', '.join(told)}"


def _draw_lane(
    axes: Axes, y: int, spans: Sequence[Span], per_second: float, inch: float
) -> None:
    """Draw the blocks of a lane on a pale track; `inch` is the time that one shows."""
    low, high = axes.get_xlim()
    axes.barh(y, high - low, _BLOCK, low, color=COLOURS["zone"], lw=0, zorder=1)
    for phase in PHASE_LOOKS:
        ends = [
            (span.start * per_second, span.stop * per_second)
            for span in spans
            if span.phase == phase
        ]
        if ends:
            phases.draw_blocks(axes, phase, ends, y, _BLOCK)
    for span in spans:
        inches = (span.stop - span.start) / inch
        text = phases.cut(span.label, inches - 0.1) if inches > 0.3 else ""
        if text:
            middle = (span.start + span.stop) / 2 * per_second
            phases.write_on(axes, span.phase, text, (middle, y))
    edges = [
        b.start * per_second
        for a, b in itertools.pairwise(spans)
        if b.start - a.stop < 0.005 * inch
        and min(a.stop - a.start, b.stop - b.start) > 0.06 * inch
    ]
    ends = (y - _BLOCK / 2, y + _BLOCK / 2)
    axes.vlines(edges, *ends, color=COLOURS["card"], lw=0.8, zorder=3)
    if not spans:
        box = {"facecolor": COLOURS["zone"], "edgecolor": "none", "pad": 2}
        look = {"role": "muted", "ha": "center", "bbox": box}
        phases.write(axes, "idle", ((low + high) / 2, y), **look)


def _draw_marks(
    axes: Axes, marks: Sequence[float], per_second: float, inch: float
) -> None:
    """Draw where steps begin, and their numbers where there is room."""
    across, last = axes.get_xaxis_transform(), axes.get_xlim()[1]
    free = -math.inf
    for step, mark in enumerate((mark * per_second for mark in marks), 1):
        for colour, lw in ((COLOURS["card"], 2.4), (COLOURS["ink"], 0.9)):
            look = {"color": colour, "lw": lw, "zorder": 4, "clip_on": False}
            axes.plot([mark, mark], [0, 1], transform=across, **look)
        text = f"step {step}"
        start = mark + 0.06 * inch
        stop = start + phases.measure(text) * inch
        if start >= free and stop <= last:
            look = {"va": "bottom", "ha": "left", "transform": across}
            phases.write(axes, text, (start, 1.02), role="muted", **look)
            free = stop + 0.1 * inch
