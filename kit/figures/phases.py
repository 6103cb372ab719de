"""Blocks of a step's phases: their fill and hatch, the words on them, and a key."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kit.figures import cards
from kit.figures.cards import EDGE
from kit.figures.style import PHASE_LOOKS, PHASES, is_known
from kit.figures.timelines import Span

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE = 9.5  # points, of the words on blocks and beside them
LINE = 0.22  # inches from one line of labels to the next
_BELOW = 0.63  # inches that a card leaves below its axes
_SWATCH = 0.22  # inches; half as high

Spot = tuple[float, int]  # where a label begins, in inches, and on which line


def make_canvas(title: str, height: float, width: float) -> tuple[Figure, Axes]:
    """Make a card to draw on in inches from its upper left; `height` is all of it."""
    height -= _BELOW - EDGE
    figure, axes = cards.make_card(title, height, EDGE, EDGE, width)
    axes.set(xlim=(0, width - 2 * EDGE), ylim=(height, 0))
    axes.set(xticks=[], yticks=[])
    return figure, axes


def add_axes(canvas: Axes, left: float, top: float, height: float) -> Axes:
    """Add axes that end at the canvas's right edge; all lengths are in inches."""
    right = canvas.get_xlim()[1]
    ends = canvas.transData.transform([(left, top + height), (right, top)])
    ends = canvas.get_figure().transFigure.inverted().transform(ends)
    place = (*ends[0], *(ends[1] - ends[0]))
    axes = canvas.get_figure().add_axes(place, facecolor="none")
    axes.spines[:].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(False)  # whatever a style sheet says
    return axes


def name_phase(phase: str) -> str:
    """Return a phase's words."""
    return PHASES.get(phase, "other")


def check_phase(phase: str, where: str) -> None:
    """Raise a ValueError that begins with `where` for a phase that has no look."""
    if phase not in PHASE_LOOKS:
        known = ", ".join(map(repr, PHASES))
        raise ValueError(f"{where}: no phase {phase!r}; there are {known}")


def draw_blocks(
    axes: Axes, phase: str, spans: Sequence[tuple[float, float]], y: float, high: float
) -> None:
    """Draw (start, stop) spans of a phase as blocks around the height `y`."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    fill, words, hatch = PHASE_LOOKS[phase]
    low, top, corners = y - high / 2, y + high / 2, []
    for start, stop in spans:
        corners += [(start, low), (stop, low), (stop, top), (start, top), (start, low)]
    # One path, because matplotlib draws a hatch once per path, and slowly.
    sides = [Path.MOVETO, *[Path.LINETO] * 3, Path.CLOSEPOLY] * len(spans)
    look = {"facecolor": fill, "edgecolor": (words, 0.4), "lw": 0, "zorder": 2}
    look |= {"hatch": hatch or None, "clip_on": False}
    patch = PathPatch(Path(corners, sides), **look)
    patch.set_hatch_linewidth(1)
    axes.add_artist(patch)


def write_on(axes: Axes, phase: str, text: str, place: tuple[float, float]) -> None:
    """Write in the middle of a block; behind the words its hatch is left out."""
    fill, colour, _ = PHASE_LOOKS[phase]
    box = {"facecolor": fill, "edgecolor": "none", "pad": 1.5}
    look = {"ha": "center", "linespacing": 1.25, "bbox": box, "role": colour}
    write(axes, text, place, **look)


def write(
    axes: Axes, text: str, place: tuple[float, float], role: str = "ink", **look: Any
) -> None:
    """Write in the size of labels, at a place in the axes' own units."""
    look = {"va": "center", "zorder": 5} | look | cards.style_text(SIZE, role)
    axes.text(*place, text, **look)


def measure(text: str) -> float:
    """Return the width of a label's longest line, in inches."""
    return cards.measure_widest([text]) * SIZE / 10


def cut(text: str, inches: float) -> str:
    """Shorten a label to this width, to nothing where three letters have no room."""
    text = " ".join(text.split())
    if measure(text) <= inches:
        return text
    low, high = 0, len(text)
    while high - low > 1:
        middle = (low + high) // 2
        fits = measure(f"{text[:middle].rstrip()}…") <= inches
        low, high = (middle, high) if fits else (low, middle)
    return f"{text[:low].rstrip()}…" if low >= 3 else ""


def write_share(value: float | None, like: float | None = None) -> str:
    """Write a fraction in per cent, with a decimal where it, or `like`, is below 10 %.

    >>> write_share(0.61), write_share(0.0234), write_share(-0.004, like=0.61)
    ('61 %', '2.3 %', '0 %')
    """
    if not is_known(value):
        return "unknown"
    decimals = int(abs(value if like is None else like) < 0.0995)
    text = f"{100 * value:,.{decimals}f}".replace("-", "−")
    return ("0" if not text.strip("−0.") else text) + " %"


def format_saving(value: float | None, low: float | None, high: float | None) -> str:
    """Write a fraction that is saved, with its interval, which may not be known.

    >>> format_saving(0.61, 0.58, 0.64), format_saving(0.61, -9e9, 0.9)
    ('61 % [58, 64]', '61 % [under −1,000, 90]')
    """
    if not (is_known(value) and is_known(low) and is_known(high)):
        return write_share(value)
    # An end far below nothing saved says no more than "far below".
    ends = (
        "under −1,000 %" if end < -10 else write_share(end, value)
        for end in (low, high)
    )
    return f"{write_share(value)} [{', '.join(e.removesuffix(' %') for e in ends)}]"


def place_key(texts: Sequence[str], across: float) -> list[Spot]:
    """Place labels, each behind a swatch, on as many lines as they need."""
    spots: list[Spot] = []
    x, row = 0.0, 0
    for text in texts:
        wide = _SWATCH + 0.08 + measure(text)
        if x and x + wide > across:
            x, row = 0.0, row + 1
        spots.append((x, row))
        x += wide + 0.22
    return spots


def draw_key(
    canvas: Axes, items: Sequence[tuple[str, str]], spots: Sequence[Spot], top: float
) -> None:
    """Draw (phase, text) items as small labelled blocks at their spots."""
    for (phase, text), (x, row) in zip(items, spots, strict=True):
        y = top + LINE * (row + 0.5)
        draw_blocks(canvas, phase, [(x, x + _SWATCH)], y, _SWATCH / 2)
        write(canvas, text, (x + _SWATCH + 0.08, y), ha="left")


def count_lines(spots: Sequence[tuple[float, int]]) -> int:
    """Return how many lines labels at these spots take."""
    return 1 + max((row for _, row in spots), default=-1)


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
