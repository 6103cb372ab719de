"""Where the time of a step goes, and who was busy when."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kit.figures import charts, style
from kit.figures.html import describe
from kit.figures.style import COLOURS, NAMES, PHASES, format_seconds, format_share

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BAR = 0.8  # inches, the height of the bar of a step
_KEY = {"loc": "lower left", "bbox_to_anchor": (0, 0), "borderaxespad": 0, "ncols": 2}


@style.alone()
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
    there = {phase: shares[phase] for phase in PHASES if shares.get(phase)}
    across = (style.WIDTH - 2 * style.EDGE) / sum(there.values())
    told, inside, beside = [], {}, {}
    for phase, share in there.items():
        time, words = format_seconds(share * step_seconds), format_share(share)
        told.append(f"{PHASES[phase]}: {words}, {time}")
        inside[phase] = f"{PHASES[phase]}\n{words} · {time}"
        if style.measure(inside[phase]) + 0.1 > share * across:
            inside[phase], beside[phase] = "", inside[phase].replace("\n", "  ")
    said = ["; ".join(told)]
    heights = [_BAR + 0.25 * -(-len(beside) // 2) + 0.3 * (overhead is not None)]
    heights += [0.46 * len(savings) + 0.8] * bool(savings)
    figure = style.make_card(title, sum(heights) + 0.25 * len(heights))
    parts = figure.subfigures(len(heights), height_ratios=heights, squeeze=False)[:, 0]
    axes = parts[0].add_subplot(ylim=(heights[0], 0), xlim=(0, sum(there.values())))
    axes.axis("off")
    start = 0.0
    for phase, share in there.items():
        style.paint(*axes.barh(0, share, _BAR, start, align="edge"), phase)
        style.write_on(axes, phase, inside[phase], (start + share / 2, _BAR / 2))
        start += share
    key = axes.legend(handles=style.list_keys(beside), alignment="left", **_KEY)
    if overhead is not None:
        said.append(f"Eager overhead, across the phases: {format_share(overhead)}")
        key.set_title(said[-1])
    if savings:
        _draw_savings(parts[1].add_subplot(), savings)
        saved = charts.tell_rows(savings, format_share)
        said.append(f"What removing a cause would save of the step: {saved}")
    first = f"Where the {format_seconds(step_seconds)} of a step go"
    return describe(figure, first, title, *said)


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


@style.alone()
def draw_timeline(
    lanes: Mapping[str, Sequence[Span]], *, title: str, marks: Sequence[float] = ()
) -> Figure:
    """Draw one row of blocks per lane, coloured by phase, over a common time axis.

    `marks` are the times, in seconds, at which
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
    _draw_marks(axes, sorted(marks), inch)
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
        tops = [y + 0.33, math.nan] * len(own)
        # One path with gaps: matplotlib draws a hatch once per path, and slowly.
        edges = [end for span in own for end in span]
        style.paint(axes.stairs(tops[:-1], edges, baseline=y - 0.33, fill=True), phase)
    for start, stop, phase, label in lane:
        if style.measure(label) + 0.06 < (stop - start) / inch:
            style.write_on(axes, phase, label, ((start + stop) / 2, y))
    if not lane:
        look = {"color": COLOURS["muted"], "ha": "center", "va": "center"}
        axes.text((low + high) / 2, y, "idle", **look)


def _draw_marks(axes: Axes, marks: Sequence[float], inch: float) -> None:
    """Draw where steps begin, and their numbers where there is room."""
    free, last = -math.inf, axes.get_xlim()[1]
    look = {"transform": axes.get_xaxis_transform(), "color": COLOURS["muted"]}
    for step, mark in enumerate(marks, 1):
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
