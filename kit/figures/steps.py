"""Where the time of a step goes, and who was busy when."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kit.figures import charts
from kit.figures.style import (
    COLORS,
    NAMES,
    PHASE_LOOKS,
    PHASES,
    ROW,
    WIDTH,
    describe,
    kit_look,
    measure_text,
    new_figure,
    paint,
)
from kit.figures.words import format_saving, format_seconds, format_share

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BAR = 0.8  # inches, the height of the bar of a step
#: So many kinds of blocks that are too narrow for their names are named below.
_MOST_NARROW = 6
_LONGEST_NAME = 40


@kit_look()
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
    wholly above 0 is gray.

    >>> shares = {"input": 0.61, "forward": 0.39}
    >>> figure = draw_step(shares, title="It waits for data", step_seconds=0.1)
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['waiting for data\\n61 % · 61.0 ms', 'forward\\n39 % · 39.0 ms']
    """
    present = {phase: shares[phase] for phase in PHASES if shares.get(phase)}
    total = sum(present.values())
    sentences, inside, below = [], {}, {}
    for phase, share in present.items():
        part = f"{format_share(share)} · {format_seconds(share * step_seconds)}"
        sentences.append(f"{PHASES[phase]}: {part.replace(' · ', ', ')}")
        inside[phase] = f"{PHASES[phase]}\n{part}"
        if measure_text(inside[phase]) > share / total * (WIDTH - 0.5):
            inside[phase] = ""
            below[phase] = f"{PHASES[phase]}  {part}"
    words = ["; ".join(sentences)]
    if overhead is not None:
        words.append(
            f"Starting operations, across the phases: {format_share(overhead)}"
        )
    lines = math.ceil(len(below) / 2) + (overhead is not None)
    heights = [_BAR + 0.25 * lines]
    if savings:
        heights.append(ROW * len(savings) + 0.8)
    figure = new_figure(title, sum(heights) + 0.2)
    # Figures of their own: the names of savings take no room from the bar of phases.
    parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)
    axes = parts[0, 0].subplots()
    axes.set(xlim=(0, total), ylim=(heights[0], 0))
    axes.axis("off")
    start = 0.0
    for phase, share in present.items():
        paint(*axes.barh(0, share, _BAR, start, align="edge"), phase)
        _write_on(axes, phase, inside[phase], (start + share / 2, _BAR / 2))
        start += share
    if lines:
        place = {"bbox_to_anchor": (0, _BAR), "bbox_transform": axes.transData}
        look = {"loc": "upper left", "alignment": "left", "ncols": 2}
        key = axes.legend(handles=_make_keys(below), **place, **look)
        key.set_title(" ".join(words[1:]))
    if savings:
        _draw_savings(parts[1, 0].subplots(), savings)
        saved = charts.describe_rows(savings, format_share)
        words.append(f"What removing a cause would save of the step: {saved}")
    first = f"Where the {format_seconds(step_seconds)} of a step go"
    return describe(figure, first, title, *words)


def _draw_savings(axes: Axes, savings: Sequence[charts.Row]) -> None:
    pale = [y for y, (_, _, low, _) in enumerate(savings) if (low or 0) <= 0]
    texts = [format_saving(*ends) for _, *ends in savings]
    charts.draw_rows(axes, savings, texts, pale=pale)
    axes.xaxis.set_major_formatter(lambda x, _: format_share(x, like=1))
    axes.set_xlabel("of the step's time that removing the cause would save")


def _make_keys(labels: Mapping[str, str]) -> list[Any]:
    """Return what a legend shows of phases: their looks and these labels."""
    from matplotlib.patches import Patch

    keys = []
    for phase, label in labels.items():
        key = Patch(label=label)
        paint(key, phase)
        keys.append(key)
    return keys


def _write_on(axes: Axes, phase: str, text: str, place: tuple[float, float]) -> None:
    """Write in the middle of a block; behind the words its hatch is left out."""
    fill, color, _ = PHASE_LOOKS[phase]
    box = {"facecolor": fill, "edgecolor": "none", "pad": 1.5, "linewidth": 0}
    axes.text(*place, text, color=color, ha="center", va="center", bbox=box, size=9.5)


# Time lines


class Span(NamedTuple):
    """A stretch of time, in seconds from the beginning of the picture.

    `phase` is a key of `PHASES`, or "" for anything else.
    """

    start: float
    stop: float
    phase: str
    label: str


@kit_look()
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
    labels = [textwrap.fill(name, 24) for name in lanes]
    beside = max(map(measure_text, labels))
    inch = (last - first) / (WIDTH - beside - 0.4)
    narrow: list[Span] = []
    height = ROW * len(lanes) + 1.0 + 0.25 * math.ceil(len(keys) / 3)
    figure = new_figure(title, height)
    axes = figure.subplots()
    axes.set(xlim=(first, last), ylim=(len(lanes) - 0.5, -0.5))
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_formatter(lambda x, _: format_seconds(x))
    axes.set_yticks(range(len(lanes)), labels, color=COLORS["ink"])
    _draw_marks(axes, sorted(marks), inch)
    for y, lane in enumerate(lanes.values()):
        narrow += _draw_lane(axes, y, lane, inch)
    words = _name_narrow(narrow)
    axes.set_xlabel("\n".join(["time", *textwrap.wrap(words, 80)]))
    handles = _make_keys(keys)
    figure.legend(handles=handles, loc="outside lower left", ncols=3)
    sentences = [f"{name}: {_tell(lane, last - first)}" for name, lane in lanes.items()]
    what = f"Timeline of {format_seconds(last - first)}"
    return describe(figure, what, title, *sentences, words)


def _name_narrow(spans: Sequence[Span]) -> str:
    """Name and count the blocks that have no room for a name, the longest first."""
    counts: Counter[str] = Counter()
    seconds: dict[str, float] = {}
    for start, stop, phase, label in spans:
        name = (label or NAMES[phase])[:_LONGEST_NAME]
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
    axes.barh(y, high - low, 0.66, low, color=COLORS["zone"], lw=0)
    for phase in {span.phase for span in lane}:
        blocks = sorted(span[:2] for span in lane if span.phase == phase)
        tops = [y + 0.33, math.nan] * len(blocks)
        # One path with gaps: matplotlib draws a hatch once per path, and slowly.
        edges = [end for block in blocks for end in block]
        path = axes.stairs(tops[:-1], edges, baseline=y - 0.33, fill=True)
        paint(path, phase)
    narrow = []
    for span in lane:
        if measure_text(span.label) + 0.06 < (span.stop - span.start) / inch:
            middle = (span.start + span.stop) / 2, y
            _write_on(axes, span.phase, span.label, middle)
        else:
            narrow.append(span)
    if not lane:
        middle = (low + high) / 2
        axes.text(middle, y, "idle", ha="center", va="center", color=COLORS["muted"])
    return narrow


def _draw_marks(axes: Axes, marks: Sequence[float], inch: float) -> None:
    """Draw where steps begin, and their numbers where there is room."""
    free, last = -math.inf, axes.get_xlim()[1]
    look = {"transform": axes.get_xaxis_transform(), "color": COLORS["muted"]}
    for step, mark in enumerate(marks, 1):
        axes.axvline(mark, color=COLORS["ink"], lw=0.9, zorder=4)
        stop = mark + measure_text(f"step {step}") * inch
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
