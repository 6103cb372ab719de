"""Who was busy when: one row of blocks per thread, process or stream."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kit.figures import style
from kit.figures.html import describe
from kit.figures.style import COLOURS, NAMES, alone, format_seconds, format_share

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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
    lanes: Mapping[str, Sequence[Span]], *, title: str, marks: Sequence[float] = ()
) -> Figure:
    """Draw one row of blocks per lane, coloured by phase, over a common time axis.

    The spans of a lane do not overlap. `marks` are the times, in seconds, at which
    steps begin. Raises ValueError where there is nothing to draw.

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
    keys = {x: text for x, text in NAMES.items() if x in {span.phase for span in spans}}
    figure = style.make_card(title, 0.46 * len(lanes) + 1 + 0.25 * -(-len(keys) // 3))
    axes = figure.add_subplot(xlim=(first, last), xlabel="time")
    axes.xaxis.set_major_formatter(lambda x, _: format_seconds(x))
    axes.set_ylim(len(lanes) - 0.5, -0.5)  # the first lane at the top
    labels = [style.wrap(name, style.WIDTH / 3.5) for name in lanes]
    axes.set_yticks(range(len(lanes)), labels, color=COLOURS["ink"])
    axes.grid(axis="x")
    figure.legend(handles=style.list_keys(keys), loc="outside lower left", ncols=3)
    figure.draw_without_rendering()  # now it is known how wide the axes are
    inch = (last - first) / axes.get_window_extent().width * figure.dpi
    _draw_marks(axes, marks, inch)
    for y, lane in enumerate(lanes.values()):
        _draw_lane(axes, y, lane, inch)
    what = f"Timeline of {format_seconds(last - first)}"
    told = [f"{name}: {_tell(lane, last - first)}" for name, lane in lanes.items()]
    return describe(figure, what, title, *told)


def _draw_lane(axes: Axes, y: int, lane: Sequence[Span], inch: float) -> None:
    """Draw the blocks of a lane on a pale track; `inch` is the time that one shows."""
    low, high = axes.get_xlim()
    axes.barh(y, high - low, 0.66, low, color=COLOURS["zone"])
    for phase in {span.phase for span in lane}:
        own = sorted(span[:2] for span in lane if span.phase == phase)
        edges = [end for span in own for end in span]
        tops = [y + 0.33, math.nan] * len(own)
        # One path with gaps: matplotlib draws a hatch once per path, and slowly.
        block = axes.stairs(tops[:-1], edges, baseline=y - 0.33, fill=True)
        style.paint(block, phase)
    for start, stop, phase, label in lane:
        inches = (stop - start) / inch
        if inches > 0.3 and style.measure(label) + 0.06 < inches:
            style.write_on(axes, phase, label, ((start + stop) / 2, y))
    if not lane:
        look = {"color": COLOURS["muted"], "ha": "center", "va": "center"}
        axes.text((low + high) / 2, y, "idle", **look)


def _draw_marks(axes: Axes, marks: Sequence[float], inch: float) -> None:
    """Draw where steps begin, and their numbers where there is room."""
    free, last = -math.inf, axes.get_xlim()[1]
    look = {"transform": axes.get_xaxis_transform(), "color": COLOURS["muted"]}
    for step, mark in enumerate(sorted(marks), 1):
        axes.axvline(mark, color=COLOURS["ink"], lw=0.9, zorder=4)
        stop = mark + style.measure(f"step {step}") * inch
        if free <= mark and stop <= last:
            axes.text(mark, 1.01, f"step {step}", va="bottom", **look)
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
