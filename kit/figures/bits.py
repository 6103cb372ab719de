"""The bits of numbers as boxes, and the numbers that formats have around a value."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kit.figures import cards, phases
from kit.figures.cards import EDGE
from kit.figures.pictures import alone, describe
from kit.figures.theme import BIT_LOOKS, COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROW, _BOX = 0.31, 0.23  # inches from one row to the next; a box's height
_WIDEST = 0.19  # inches of a box
_GAP = 0.5  # of a box, between the parts of a number
_LANE = 0.24  # inches from one format's numbers to the next format's


@alone()
def draw_bits(
    bits: Mapping[str, tuple[str, str, str]],
    stored: Mapping[str, str],
    *,
    title: str,
    value: float | None = None,
    window: tuple[float, float] | None = None,
    numbers: Mapping[str, Sequence[float]] | None = None,
    counts: Mapping[str, int] | None = None,
    width: float = cards.WIDTH,
) -> Figure:
    """Draw a row of boxes per format: its sign, exponent and mantissa bits.

    `bits` maps the formats' names to the three parts, as digits, `stored` to what they
    are, which stands at the right. With a `window` (low, high) a second picture shows
    each format's `numbers` there, and `value` as a line across; `counts` says how many
    there are of each, and where `numbers` has none of these, they are drawn as a band:
    too many to tell apart. `width` is in inches. Raises ValueError for digits that are
    no bits, names without a number, a window that is none, and nothing to draw.

    >>> figure = draw_bits({"tiny": ("0", "10", "1")}, {"tiny": "3"}, title="T")
    >>> figure.alt
    'The bits of numbers, by format. T. tiny: sign 0, exponent 10, mantissa 1, is 3.'
    """
    _check(bits, stored, window)
    numbers, counts = numbers or {}, counts or {}
    names = [cards.wrap(name, width / 4) for name in bits]
    left = cards.measure_widest(names) + 0.2
    right = width - 2 * EDGE - cards.measure_widest(list(stored.values())) - 0.1
    upper = 0.28 + _ROW * len(bits)
    lower = 0.32 + _LANE * len(bits) + 0.46 if window else 0
    figure, canvas = phases.make_canvas(title, upper + lower, width)
    most = max(sum(map(len, parts)) for parts in bits.values()) + 2 * _GAP
    box = min(_WIDEST, (right - left - 0.2) / most)
    rows = [0.28 + _ROW * (y + 0.5) for y in range(len(bits))]
    ends = _draw_boxes(canvas, list(bits.values()), left, rows, box)
    _name_parts(canvas, ends)
    end = left + box * most + 0.15
    for place, name, text in zip(rows, names, stored.values(), strict=True):
        phases.write(canvas, name, (0, place), ha="left")
        phases.write(canvas, text, (end, place), ha="left")
    said = [_tell(name, parts, stored[name]) for name, parts in bits.items()]
    if window:
        _draw_numbers(canvas, upper, list(bits), window, numbers, counts, value)
        told = [f"{n}: {counts.get(n, len(numbers.get(n, ())))}" for n in bits]
        said.append(
            f"Numbers from {window[0]:.6g} to {window[1]:.6g}: {', '.join(told)}"
        )
    return describe(figure, "The bits of numbers, by format", title, *said)


def _check(
    bits: Mapping[str, tuple[str, str, str]],
    stored: Mapping[str, str],
    window: tuple[float, float] | None,
) -> None:
    if not bits:
        raise ValueError("draw_bits: no bits to draw")
    if list(bits) != list(stored):
        raise ValueError(f"draw_bits: {list(bits)} are stored as {list(stored)}")
    for name, parts in bits.items():
        if len(parts) != len(BIT_LOOKS) or set("".join(parts)) - {"0", "1"}:
            raise ValueError(f"draw_bits: {name}: {parts} are no three parts of bits")
    if window and not -math.inf < window[0] < window[1] < math.inf:
        raise ValueError(f"draw_bits: window={window} is not from low to high")


def _draw_boxes(
    canvas: Axes,
    numbers: Sequence[Sequence[str]],
    left: float,
    rows: Sequence[float],
    box: float,
) -> list[tuple[float, float]]:
    """Draw all numbers' boxes; return where the parts of the first begin and end."""
    from matplotlib.collections import PolyCollection

    corners, fills, ends = [], [], []
    size = 8.5 if box > 0.12 else 7.5
    for parts, middle in zip(numbers, rows, strict=True):
        x, low, high = left, middle - _BOX / 2, middle + _BOX / 2
        for (fill, words), digits in zip(BIT_LOOKS.values(), parts, strict=True):
            ends.append((x, x + box * len(digits)))
            look = cards.style_text(size, words) | {"ha": "center", "va": "center"}
            for digit in digits:
                corners.append([(x, low), (x + box, low), (x + box, high), (x, high)])
                fills.append(fill)
                canvas.text(x + box / 2, middle, digit, zorder=3, **look)
                x += box
            x += box * _GAP
    # One collection, because matplotlib takes long to add a hundred boxes.
    edge = {"edgecolors": COLOURS["card"], "linewidths": 0.8, "clip_on": False}
    canvas.add_collection(
        PolyCollection(corners, facecolors=fills, zorder=2, **edge), autolim=False
    )
    return ends[: len(BIT_LOOKS)]


def _name_parts(canvas: Axes, ends: Sequence[tuple[float, float]]) -> None:
    """Name the parts above the first row, so that colour is not all."""
    for number, (name, (begun, end)) in enumerate(zip(BIT_LOOKS, ends, strict=True)):
        # The sign has one box only: its name ends where that does.
        place, side = ((begun + end) / 2, "center") if number else (end, "right")
        phases.write(canvas, name, (place, 0.14), role="muted", ha=side)


def _tell(name: str, parts: Sequence[str], stored: str) -> str:
    named = [f"{part} {digits}" for part, digits in zip(BIT_LOOKS, parts, strict=True)]
    return f"{name}: {', '.join(named)}, is {stored}"


def _draw_numbers(
    canvas: Axes,
    top: float,
    names: Sequence[str],
    window: tuple[float, float],
    numbers: Mapping[str, Sequence[float]],
    counts: Mapping[str, int],
    value: float | None,
) -> None:
    """Draw each format's numbers in the window, below the boxes."""
    found = [f"{counts.get(n, len(numbers.get(n, ()))):,}" for n in names]
    labels = [cards.wrap(name, 2) for name in names]
    words = "numbers here"
    across = cards.measure_widest([*found, words])
    left = cards.measure_widest(labels) + 0.3 + across
    phases.write(canvas, words, (left - 0.12, top + 0.16), role="muted", ha="right")
    high = _LANE * len(names)
    axes = phases.add_axes(canvas, left, top + 0.32, high)
    axes.set(xlim=window, ylim=(len(names) - 0.5, -0.5), yticks=[])
    for y, (name, label, count) in enumerate(zip(names, labels, found, strict=True)):
        place = top + 0.32 + _LANE * (y + 0.5)
        phases.write(canvas, label, (0, place), ha="left")
        phases.write(canvas, count, (left - 0.12, place), ha="right")
        colour = COLOURS["measured"]
        axes.plot(window, [y, y], color=COLOURS["grid"], lw=0.8, zorder=1)
        if numbers.get(name):
            marks = numbers[name]
            look = {"marker": "|", "ms": 11, "mew": 1.4, "ls": "", "color": colour}
            axes.plot(marks, [y] * len(marks), zorder=3, **look)
        elif counts.get(name):
            axes.barh(y, window[1] - window[0], 0.5, window[0], color=colour, alpha=0.6)
    if value is not None and window[0] <= value <= window[1]:
        look = {"color": COLOURS["predicted"], "lw": 1.6, "ls": (0, (4, 2))}
        axes.axvline(value, zorder=2, label="value", **look)
        place = {"xycoords": ("data", "axes fraction"), "ha": "center", "va": "bottom"}
        cards.write(axes, f"{value:.6g}", (value, 1), (0, 3), role="predicted", **place)
    axes.locator_params(axis="x", nbins=5)
    cards.label_axes(axes, "value", "", grid="x")
    axes.spines["bottom"].set(visible=True, color=COLOURS["ink"], linewidth=1)
